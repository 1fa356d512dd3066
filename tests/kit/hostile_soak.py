"""Bystanders beside hostile connections and bombs, on nodes and a gateway that ask for tokens.

`Soak` has a writer, a follower and a map beside connections of all kinds. `explosions` sends each
bomb by a stranger, a reader and a writer. `comparisons` has rates of callers alone, and beside
others that are idle, slow or greedy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import io
import itertools
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from fault_injection import bombs
from fault_injection.bombs import (
    BODIES,
    CHANNEL,
    DATASET,
    NODE_BOMBS,
    NOTES,
    SUBSCRIPTIONS,
    Body,
    Bomb,
)
from fault_injection.bystanders import MIB, Memory, fill, flood_process, repeated
from fault_injection.hostile import IDLE, KINDS, READER, STRANGER, WRITER, GatewayFlood, Kind
from fault_injection.ledger import numbered
from proving import Tokens, auth_section

import galileo
from galileo.client.json_lines import json_lines
from galileo.cluster import LocalCluster
from galileo.local_services import LocalGateway
from galileo.rpc.access import Role

ROWS = 100_000
BATCH_ROWS = 1_000
FIRST = 10_000_000
"""Number of the first observation that a bystander stores."""
PAUSE_S = 0.05
"""Of a bystander between two requests, which leaves some of the processors free."""
TIMEOUT_S = 60.0
SETTLE_S = 2.0
ALONE_PART = 0.1
"""Of the time of a soak, before it and after it."""
IDLE_S, REPORT_S = 15.0, 15.0
TENANTS = tuple(f"greedy{number}" for number in range(10))
IDLE_COUNT, GREEDY_CONNECTIONS = 200, 4
COMPARISONS, WINDOWS = 7, 4
FREE_MIB = 8.0
"""Growth after which the next bomb gets a new gateway: free memory of the old one would hide it."""
READINGS_MAX = 3
REFUSED_MIB_MAX, NODE_MIB_MAX = 1.0, 300.0
UNPACKED_FACTOR, SPARE_MIB, UNPACKED_MIB_MAX = 8, 32, 256
ITEMS = f"/collections/{DATASET}/items"
ARROW = "application/vnd.apache.arrow.stream"
COUNT = quote("SELECT (COUNT(*) AS ?n) { ?a ?b ?c }")
COUNT_LABELS = f"{bombs.SPARQL}?query={COUNT}&filter={quote(bombs.LABELS)}"
DOWNLOAD = f"{bombs.ITEMS}?f=csv&limit=10000"
EVENTS = f"/channels/{CHANNEL}/brokers/mail/events"
UNAVAILABLE = http.HTTPStatus.SERVICE_UNAVAILABLE

Flooders = Sequence[tuple[Kind, int, str]]
"""Kinds, the number of connections of each, and the names of their callers."""
Step = Callable[[], int]
"""A request; returns its status, or 0 without an answer."""


class Site:
    """A cluster and a gateway whose callers have tokens; use it in a `with` block."""

    def __init__(self, place: Path, *, nodes: int = 1, replicas: int = 1) -> None:
        self.place, self.counts = place, Counter[str]()
        self.connections = contextlib.ExitStack()
        self.tokens = Tokens.of_all_roles(place / "principals.toml")
        self.tokens.add(WRITER, Role.WRITER)
        for name in (*TENANTS, "calm"):
            self.tokens.add(name, Role.READER)
        self.cluster = LocalCluster(
            nodes,
            1,
            place / "cluster",
            replicas=replicas,
            settings={"auth": auth_section(self.tokens, self.tokens.tokens["node"])},
            proof=self.tokens.proof("admin"),
        )
        self.gateway = LocalGateway(self.cluster.addresses, log=place / "gateway.log")

    def __enter__(self) -> Site:
        self.cluster.start()
        client = self.cluster.client(timeout="120s")
        fill(client, ROWS)
        client.create_dataset(NOTES)
        rows = numbered(0, ROWS).drop_columns(["number"])
        client.ingest(NOTES.name, rows.append_column("note", pa.nulls(ROWS, pa.string())))
        client.create_channel(
            galileo.Channel(
                CHANNEL, dataset=DATASET, template="temperature > :least", period="200ms"
            )
        )
        for broker in ("mail", "other"):
            client.subscribe(CHANNEL, {"id": [broker], "least": [309.5]}, broker=broker)
        self.start_gateway()
        return self

    def __exit__(self, *exc: object) -> None:
        self.connections.close()
        self.gateway.stop()
        self.cluster.stop()

    @property
    def address(self) -> str:
        return urlsplit(self.gateway.url).netloc

    def start_gateway(self) -> None:
        """Starts the gateway again, and waits until it has answered a request of each kind."""
        self.gateway.kill()
        self.gateway.start()
        for path, media_type, body in _honest_bodies():
            for caller in (STRANGER, "wrong", READER, "writer"):
                status = Http(self, caller).ask("POST", path, body, media_type)
            assert status == http.HTTPStatus.CREATED, (path, media_type, status)
        status = Http(self, READER).ask("GET", COUNT_LABELS)
        assert status == http.HTTPStatus.OK, status

    @contextlib.contextmanager
    def beside(self, flooders: Flooders, *, seed: int) -> Iterator[None]:
        """Holds hostile connections for the block."""
        token_of = self.tokens.tokens
        plan = {
            "gateway": self.address,
            "node": self.cluster.addresses[0],
            "seed": seed,
            "floods": [
                (kind.name, count, token_of.get(caller, "")) for kind, count, caller in flooders
            ],
        }
        command = [sys.executable, "-m", "fault_injection.hostile"]
        log = self.place / "hostile.log"
        with flood_process(command, log=log, counts=self.counts, plan=f"{json.dumps(plan)}\n"):
            time.sleep(SETTLE_S)
            yield


class Http:
    """A connection of a caller to the gateway, opened again where it ends; the site closes it."""

    def __init__(self, site: Site, caller: str) -> None:
        token = site.tokens.tokens.get(caller, caller)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection = http.client.HTTPConnection(site.address, timeout=TIMEOUT_S)
        site.connections.callback(self._connection.close)

    def ask(self, method: str, path: str, body: bytes | None = None, media_type: str = "") -> int:
        """The status of a request; 0 where there was no answer."""
        try:
            with self.answer(method, path, body, media_type) as reply:
                reply.read()
                return reply.status
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0

    def open_events(self) -> int:
        """Opens a stream of events, reads its first line, and returns its status."""
        try:
            with self.answer("GET", EVENTS) as reply:
                reply.readline()
                return reply.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            self._connection.close()

    def answer(
        self, method: str, path: str, body: bytes | None = None, media_type: str = "", **more: str
    ) -> http.client.HTTPResponse:
        self._connection.request(
            method, path, body, {**self._headers, "Content-Type": media_type, **more}
        )
        return self._connection.getresponse()


class Bystander(threading.Thread):
    """Repeats a request, and notes how long each takes and what failed.

    Args:
        name: of what it does.
        step: the request.
        pause_s: between two of them.
    """

    def __init__(self, name: str, step: Step, *, pause_s: float = PAUSE_S) -> None:
        super().__init__(name=name, daemon=True)
        self.is_over = threading.Event()
        self._step, self._pause_s = step, pause_s
        self._notes: list[tuple[int, float]] = []

    def run(self) -> None:
        while not self.is_over.wait(self._pause_s):
            started = time.monotonic()
            self.note(self._step(), time.monotonic() - started)

    def note(self, status: int, took_s: float) -> None:
        self._notes.append((status, took_s))

    def take(self) -> list[tuple[int, float]]:
        """Status and duration of the requests since the last call."""
        notes, self._notes = self._notes, []
        return notes


class Follower(Bystander):
    """Reads the events of the channel; waits are those from sending a batch to its first event."""

    def __init__(self, site: Site, sent_at: dict[int, float]) -> None:
        super().__init__("follower", lambda: 0)
        self._site, self._sent_at, self._token = site, sent_at, ""

    def run(self) -> None:
        while not self.is_over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._read()

    def _read(self) -> None:
        last = {"Last-Event-ID": self._token} if self._token else {}
        with Http(self._site, READER).answer("GET", EVENTS, **last) as reply:
            if reply.status != http.HTTPStatus.OK:
                self.note(reply.status, 0.0)
                time.sleep(PAUSE_S)
            for line in reply:
                if line.startswith(b"id: "):
                    self._token = line[4:].decode().strip()
                if line.startswith(b"data: "):
                    self._take_event(json.loads(line[6:]))
                if self.is_over.is_set():
                    return

    def _take_event(self, document: Any) -> None:
        numbers = [one["properties"]["number"] for one in document.get("features", ())]
        for batch in {number // BATCH_ROWS for number in numbers} & self._sent_at.keys():
            self.note(http.HTTPStatus.OK, time.monotonic() - self._sent_at.pop(batch))


class Soak:
    """A writer, a follower and a map alone, then beside hostile connections, and alone again.

    Args:
        site: where all of them are.
        report: takes lines that show progress.

    Attributes:
        figures: of each bystander and phase: statuses and durations, and the seconds of the phase.
        memory: lines about the memory of processes.
    """

    def __init__(self, site: Site, report: Callable[[str], object]) -> None:
        self._site, self._report = site, report
        self.figures: dict[tuple[str, str], tuple[list[tuple[int, float]], float]] = {}
        self.memory: list[str] = []

    def run(self, *, connections: int, minutes: float, seed: int) -> None:
        """Runs until the time is over."""
        sent_at: dict[int, float] = {}
        bystanders = [
            Bystander("writer", _batches(self._site, sent_at)),
            Follower(self._site, sent_at),
            Bystander("map", _tiles(self._site, random.Random(seed))),
        ]
        for bystander in bystanders:
            bystander.start()
        time.sleep(SETTLE_S)
        try:
            for phase, part in (("alone", ALONE_PART), ("beside", 1.0), ("alone", ALONE_PART)):
                hostile = shared(connections if phase == "beside" else 0, [*KINDS.values()])
                with self._weighed(phase), self._site.beside(hostile, seed=seed):
                    self._watch(bystanders, seconds=60.0 * minutes * part, phase=phase)
        finally:
            for bystander in bystanders:
                bystander.is_over.set()
        time.sleep(IDLE_S)
        with self._weighed("idle afterwards"):
            pass

    @contextlib.contextmanager
    def _weighed(self, phase: str) -> Iterator[None]:
        processes = {
            "gateway": self._site.gateway,
            **{one.name: one for one in self._site.cluster.nodes},
        }
        memories = {name: Memory(one.pid) for name, one in processes.items() if one.pid}
        try:
            yield
        finally:
            for name, memory in memories.items():
                memory.stop()
                self.memory.append(
                    f"{name} {phase}: {memory.before / MIB:.0f} MiB, then at most "
                    f"{memory.peak / MIB:.0f} MiB"
                )

    def _watch(self, bystanders: Sequence[Bystander], *, seconds: float, phase: str) -> None:
        """Collects what bystanders note, and reports it from time to time."""
        for bystander in bystanders:
            bystander.take()
        last, until = time.monotonic(), time.monotonic() + seconds
        while last < until:
            time.sleep(min(REPORT_S, until - last))
            took_s, last = time.monotonic() - last, time.monotonic()
            rates = []
            for bystander in bystanders:
                notes, known = bystander.take(), (bystander.name, phase)
                before, before_s = self.figures.get(known, ([], 0.0))
                self.figures[known] = before + notes, before_s + took_s
                rates.append(f"{bystander.name} {len(notes) / took_s:.1f}/s")
            self._report(f"{phase}, {max(0.0, until - last):.0f} s left: {', '.join(rates)}")

    def table(self) -> Iterator[str]:
        """The figures as a table in Markdown, and what the hostile connections did."""
        yield "| bystander | | each second | p50, ms | p99, ms | longest, ms | 503 | other |"
        yield f"| {' | '.join(['---'] * 8)} |"
        for (name, phase), (notes, seconds) in sorted(self.figures.items()):
            statuses = Counter(status for status, _ in notes if not 200 <= status < 300)
            waits_ms = 1e3 * np.array([took_s for _, took_s in notes] or [np.nan])
            waits = " | ".join(f"{wait:.0f}" for wait in np.quantile(waits_ms, [0.5, 0.99, 1.0]))
            refused = statuses.pop(UNAVAILABLE, 0)
            rate = len(notes) / seconds
            yield f"| {name} | {phase} | {rate:.2f} | {waits} | {refused} | {dict(statuses)} |"
        yield from self.memory
        kinds: dict[str, list[str]] = {}
        for name, count in sorted(self._site.counts.items()):
            kind, what = name.removeprefix("flood: ").split(": ", 1)
            kinds.setdefault(kind, []).append(f"{what} {count:,}")
        yield from (f"{kind}: {', '.join(counts)}" for kind, counts in kinds.items())


def shared(count: int, kinds: Sequence[Kind]) -> Flooders:
    """So many connections, as many of each kind as of any other as far as it goes."""
    numbers = [count // len(kinds) + (place < count % len(kinds)) for place in range(len(kinds))]
    pairs = zip(kinds, numbers, strict=True)
    return [(kind, number, kind.caller) for kind, number in pairs if number]


@dataclasses.dataclass(frozen=True, slots=True)
class Explosion:
    """What one bomb did: the answer, the memory that it took and may take, waits of a bystander."""

    name: str
    sent: int
    unpacked: int
    answer: str
    over_mib: float
    most_mib: float
    longest_ms: float

    HEAD: ClassVar = (
        "| bomb | sent, KB | unpacked, MiB | answer | MiB | at most | longest wait, ms |"
    )

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.sent / 1e3:,.1f} | {self.unpacked / MIB:,.1f} | {self.answer} "
            f"| {self.over_mib:.1f} | {self.most_mib:.0f} | {self.longest_ms:.0f} |"
        )


def explosions(site: Site) -> Iterator[Explosion]:
    """Each bomb by each caller; a new gateway follows one that took more than `FREE_MIB`."""
    for bomb in (*BODIES, *NODE_BOMBS):
        content = bomb.content()
        for caller in (STRANGER, READER, "writer"):
            yield (explosion := _least_explosion(site, bomb, content, caller))
            if isinstance(bomb, Body) and explosion.over_mib > FREE_MIB:
                site.start_gateway()


def _least_explosion(site: Site, bomb: Body | Bomb, content: bytes, caller: str) -> Explosion:
    """What a bomb did; one that took too much is sent again.

    A process may take a MiB for other work at the same moment. What a bomb takes repeats.
    """
    readings = [_explosion(site, bomb, content, caller)]
    while readings[-1].over_mib > readings[-1].most_mib and len(readings) < READINGS_MAX:
        readings.append(_explosion(site, bomb, content, caller))
    return min(readings, key=lambda reading: reading.over_mib)


def _explosion(site: Site, bomb: Body | Bomb, content: bytes, caller: str) -> Explosion:
    is_body, (node, *_) = isinstance(bomb, Body), site.cluster.nodes
    pid, address = (site.gateway.pid, site.address) if is_body else (node.pid, node.address)
    assert pid is not None, "it runs"
    is_allowed = caller == "writer" or (caller == READER and "SPARQL" in bomb.name)
    unpacked = max(bomb.unpacked, len(content))
    most_mib = SPARE_MIB + UNPACKED_FACTOR * min(unpacked / MIB, UNPACKED_MIB_MAX)
    page = Http(site, "calm")
    # Beside a bystander, so little memory as a refused body takes could not be measured.
    has_bystander = is_allowed or not is_body
    watching = repeated(lambda: page.ask("GET", f"{ITEMS}?limit=1"))
    with watching if has_bystander else contextlib.nullcontext([np.nan]) as waits_s:
        time.sleep(PAUSE_S)
        memory = Memory(pid)
        answer = bomb.send(address, site.tokens.tokens.get(caller, ""), content=content)
        memory.stop()
    return Explosion(
        f"{bomb.name}, by a {caller or 'stranger'}",
        len(content),
        unpacked,
        answer,
        memory.over_mib,
        (most_mib if is_allowed else REFUSED_MIB_MAX) if is_body else NODE_MIB_MAX,
        1e3 * max(waits_s, default=np.nan),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Requests of one caller each second, alone and beside others."""

    name: str
    alone: float
    beside: float
    least: float
    longest_s: float
    failures: Counter[int]

    @property
    def is_held(self) -> bool:
        return self.beside >= self.least * self.alone and not self.failures

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.alone:.2f}/s alone, {self.beside:.2f}/s beside, "
            f"{self.beside / (self.alone or np.nan):.3f} of it (at least {self.least:.3f}), "
            f"longest wait {self.longest_s:.2f} s, failures {dict(self.failures)}: "
            f"{'held' if self.is_held else 'broken'}"
        )


def comparisons(site: Site, *, minutes: float, seed: int) -> Iterator[Comparison]:
    """A writer beside idle and slow connections, and a tenant beside greedy ones."""
    proof = site.tokens.proof("writer")
    client = galileo.Client(*site.cluster.addresses, timeout="120s", proof=proof)
    numbers = itertools.count(2 * FIRST, BATCH_ROWS)

    def ingest() -> int:
        client.ingest(DATASET, numbered(next(numbers), BATCH_ROWS))
        return http.HTTPStatus.OK

    compare = functools.partial(
        _comparison, site, seconds=60.0 * minutes / (COMPARISONS * 2 * WINDOWS), seed=seed
    )
    for who, caller in (("strangers", STRANGER), ("one reader", READER)):
        idle = shared(IDLE_COUNT, [kind for kind in IDLE if kind.caller == caller])
        for way, step in (("HTTP", _batches(site, {})), ("gRPC", ingest)):
            name = f"writer over {way} beside {IDLE_COUNT} slow or idle connections of {who}"
            yield compare(name, step, idle, least=0.95)
    calm = Http(site, "calm")
    for what, ask, method in (
        ("SPARQL", functools.partial(calm.ask, "GET", COUNT_LABELS), "expensive"),
        ("events", calm.open_events, "streams_of_events"),
        ("downloads", functools.partial(calm.ask, "GET", DOWNLOAD), "downloads"),
    ):
        kind = Kind(GatewayFlood, method, READER)
        greedy = [(kind, GREEDY_CONNECTIONS, tenant) for tenant in TENANTS]
        name = f"{what} of one tenant beside {len(TENANTS)} greedy ones"
        yield compare(name, ask, greedy, least=0.8 / (len(TENANTS) + 1))


def _comparison(
    site: Site, name: str, step: Step, hostile: Flooders, *, least: float, seconds: float, seed: int
) -> Comparison:
    """Mean rates of requests without pauses, in windows alone and beside others.

    Their order lets a rate that falls as the dataset grows fall alike for both.
    """
    rates: dict[bool, list[float]] = {False: [], True: []}
    noted: list[tuple[int, float]] = []
    for is_beside in (False, True, True, False) * (WINDOWS // 2):
        with site.beside(hostile if is_beside else (), seed=seed):
            bystander = Bystander(name, step, pause_s=0.0)
            bystander.start()
            time.sleep(seconds)
            bystander.is_over.set()
            bystander.join()
        notes = bystander.take()
        served = sum(200 <= status < 300 for status, _ in notes)
        rates[is_beside].append(served / sum(took_s for _, took_s in notes))
        noted += notes if is_beside else []
    return Comparison(
        name,
        float(np.mean(rates[False])),
        float(np.mean(rates[True])),
        least,
        max(took_s for _, took_s in noted),
        Counter(status for status, _ in noted if not 200 <= status < 300),
    )


def _batches(site: Site, sent_at: dict[int, float]) -> Step:
    """A step that stores a batch, and notes when it was sent."""
    writer, numbers = Http(site, "writer"), itertools.count(FIRST, BATCH_ROWS)

    def send() -> int:
        first = next(numbers)
        body = _arrow(numbered(first, BATCH_ROWS))
        sent_at[first // BATCH_ROWS] = time.monotonic()
        return writer.ask("POST", ITEMS, body, ARROW)

    return send


def _tiles(site: Site, chance: random.Random) -> Step:
    """A step that gets a tile."""
    reader, tiles = Http(site, READER), f"/collections/{DATASET}/tiles/WebMercatorQuad"

    def get() -> int:
        zoom = chance.randrange(2, 5)
        row, column = (chance.randrange(1 << zoom) for _ in range(2))
        return reader.ask("GET", f"{tiles}/{zoom}/{row}/{column}")

    return get


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _honest_bodies() -> Iterator[tuple[str, str, bytes]]:
    """Path, media type and content of a body in each format."""
    table = numbered(FIRST - 100, 10)
    csv, parquet = io.BytesIO(), io.BytesIO()
    pa.csv.write_csv(table, csv)
    pq.write_table(table, parquet)
    yield ITEMS, "text/csv", csv.getvalue()
    yield ITEMS, "application/vnd.apache.parquet", parquet.getvalue()
    yield ITEMS, ARROW, _arrow(table)
    yield ITEMS, "application/x-ndjson", "\n".join(json_lines(table).to_pylist()).encode()
    yield ITEMS, "application/geo+json", galileo.to_geojson(table).encode()
    row = {"id": "warm", "broker": "none", "least": 999.0}
    yield SUBSCRIPTIONS, "application/json", json.dumps(row).encode()
    yield SUBSCRIPTIONS, "application/x-ndjson", json.dumps(row).encode()
    yield SUBSCRIPTIONS, "text/csv", b"id,broker,least\nwarm,none,999\n"
