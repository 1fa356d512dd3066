"""Floods over HTTP: of the SPARQL endpoint, and of a node's metrics and readiness.

The bystander asks over and over, each time by a new connection, and comes back where he is turned
away. What he waits for one answer counts with all its attempts.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from fault_injection.requirements import SIGNALS

from faults.bystanders import PATIENCE, asked, fill, flooding, p99_ms, weighed
from faults.floods import BEFORE_S, LASTS_S, judge
from faults.registry import Scenario, Trial
from galileo.cluster import LocalCluster, free_ports

ROWS = 20_000
TRIPLES = 5_000
QUERY_S = 5
"""What the endpoint gives a query, so that a bystander waits for one of a flood at most so long."""
ANSWERS_MIB = 16
"""What it holds of answers that are being taken, so that few readers are too many."""
SERVED_WITHIN_S = 120.0
PAUSE_S = 0.02
SAME_HOST, OTHER_HOST = "127.0.0.1", "127.0.0.2"
QUERY = "SELECT (COUNT(?a) AS ?n) { ?a <urn:is> ?b }"
LATER = (0, http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.GATEWAY_TIMEOUT)
"""After these he comes back; 0: he was cut off."""
PAGES = ("/metrics", "/ready", "/live")


@dataclass(slots=True, eq=False)
class Visitor(threading.Thread):
    """Gets pages in turn until it is stopped.

    Attributes:
        address: host:port.
        paths: of the pages.
        source: address that he comes from.
        waits_s: for each answer.
        turned_away: attempts that were refused or cut off.
        failure: an answer that is none, or did not come; there must be none.
    """

    address: str
    paths: Sequence[str]
    source: str = SAME_HOST
    waits_s: list[float] = field(default_factory=list)
    turned_away: int = 0
    failure: BaseException | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread.__init__(self, daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        try:
            while not self._stopping.wait(PAUSE_S):
                for path in self.paths:
                    started = time.monotonic()
                    self._get(path, until=started + SERVED_WITHIN_S)
                    self.waits_s.append(time.monotonic() - started)
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self._stopping.set()
        self.join(2 * SERVED_WITHIN_S)
        if self.is_alive():
            raise TimeoutError("the bystander did not come to an end")

    def _get(self, path: str, *, until: float) -> None:
        """Raises: RuntimeError: another answer than what was asked for, or none in time."""
        while time.monotonic() < until:
            try:
                status, text = self._answer(path)
            except (OSError, http.client.HTTPException):
                status, text = 0, ""
            if status == http.HTTPStatus.OK:
                return
            if status not in LATER or '"ready"' in text:
                raise RuntimeError(f"{path} was answered with {status}: {text}")
            self.turned_away += 1
            time.sleep(PAUSE_S)
        raise RuntimeError(f"{path} was not answered within {SERVED_WITHIN_S:g} s")

    def _answer(self, path: str) -> tuple[int, str]:
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(
            host, int(port), timeout=SERVED_WITHIN_S, source_address=(self.source, 0)
        )
        with contextlib.closing(connection):
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()


@contextlib.contextmanager
def visited(address: str, paths: Sequence[str], source: str) -> Iterator[Visitor]:
    """A bystander within the block.

    Raises:
        RuntimeError: he was not served.
    """
    visitor = Visitor(address, paths, source)
    visitor.start()
    try:
        yield visitor
    finally:
        visitor.stop()
    if visitor.failure is not None:
        raise RuntimeError("the bystander was not served") from visitor.failure


@contextlib.contextmanager
def endpoint(directory: Path) -> Iterator[tuple[int, str]]:
    """`galileo sparql serve` in a process of its own: its id, and host:port."""
    source = directory / "things.nt"
    source.write_text("".join(f"<urn:a{n}> <urn:is> <urn:b{n % 7}> .\n" for n in range(TRIPLES)))
    options = ["--timeout", str(QUERY_S), "--answers-mib", str(ANSWERS_MIB)]
    command = [sys.executable, "-m", "galileo", "sparql", "serve", str(source)]
    with (
        (directory / "endpoint.log").open("w") as errors,
        subprocess.Popen(
            [*command, *options, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None, "a pipe was asked for"
            url = json.loads(process.stdout.readline())["url"]
            yield process.pid, urlsplit(url).netloc
        finally:
            process.kill()


@dataclass(frozen=True, slots=True)
class HttpFlood:
    """One flood over HTTP.

    Attributes:
        at: which server is flooded.
        kind: of `faults.http_flooding`.
        count: of connections at a time.
        does: in words.
        over_mib_max: that the process may take for it.
        source: where the bystander comes from; the flood comes from `SAME_HOST`.
        row: of the table of faults.
    """

    at: Literal["sparql", "metrics"]
    kind: str
    count: int
    does: str
    over_mib_max: int
    source: str = SAME_HOST
    row: str = "floods"

    def scenario(self) -> Scenario:
        who = "another client" if self.source == SAME_HOST else "a client of another host"
        what = {"sparql": "the endpoint", "metrics": "the node"}[self.at]
        holds = f"{what} takes at most {self.over_mib_max} MiB for it, and {who} is served"
        name = f"flood-{self.at}-{self.kind.replace('_', '-')}"
        return Scenario(name, f"{self.does}: {holds}", (SIGNALS,), 1, self.run, row=self.row)

    def run(self, trial: Trial) -> None:
        if self.at == "sparql":
            with endpoint(trial.directory) as (pid, address):
                self._flood(trial, pid, address, (f"/sparql?query={quote(QUERY)}",))
            return
        address = f"127.0.0.1:{free_ports(1)[0]}"
        settings = {"metrics": {"address": address}}
        with LocalCluster(1, 1, trial.directory / "cluster", settings=settings) as cluster:
            client = cluster.client(timeout=PATIENCE)
            fill(client, ROWS)
            (node,) = cluster.nodes
            with asked(client) as caller:
                self._flood(trial, node.pid, address, PAGES)
            trial.expect(node.running, "the node is dead")
            trial.counts["calls over gRPC"] += len(caller.waits_s)
            trial.figures["p99 of gRPC, ms"] = p99_ms(caller.waits_s)

    def _flood(self, trial: Trial, pid: int | None, address: str, paths: Sequence[str]) -> None:
        with visited(address, paths, self.source) as before:
            time.sleep(BEFORE_S)
        with weighed(pid) as memory:
            during = self._waits(trial, address, paths)
        judge(trial, memory, before.waits_s, during, over_mib_max=self.over_mib_max)
        with visited(address, paths, self.source) as later:
            time.sleep(BEFORE_S)
        trial.figures["p99 after, ms"] = p99_ms(later.waits_s)

    def _waits(self, trial: Trial, address: str, paths: Sequence[str]) -> list[float]:
        waits: list[float] = []
        module = "faults.http_flooding"
        with flooding(trial, self.kind, address, self.count, module=module):
            for _ in trial.each_round():
                with visited(address, paths, self.source) as visitor:
                    time.sleep(LASTS_S)
                waits += visitor.waits_s
                trial.counts["times turned away"] += visitor.turned_away
        return waits


FLOODS = (
    HttpFlood("sparql", "silent", 1_000, "1,000 connections to the endpoint that say nothing", 100),
    HttpFlood("sparql", "slow", 500, "500 requests to the endpoint, byte by byte", 100),
    HttpFlood("sparql", "endless_heads", 50, "headers to the endpoint that never end", 100),
    HttpFlood("sparql", "slow_bodies", 500, "500 bodies to the endpoint, byte by byte", 100),
    HttpFlood("sparql", "huge_bodies", 50, "bodies to the endpoint that never end", 200),
    HttpFlood(
        *("sparql", "expensive", 200, "200 clients with queries that never end", 100),
        source=OTHER_HOST,
    ),
    HttpFlood(
        *("sparql", "takers", 100, "100 readers that take nothing of a big answer", 300),
        source=OTHER_HOST,
        row="slow or stopped reader",
    ),
    HttpFlood("metrics", "silent", 1_000, "1,000 connections to metrics that say nothing", 100),
    HttpFlood("metrics", "slow", 500, "500 requests for metrics, byte by byte", 100),
    HttpFlood("metrics", "endless_heads", 50, "headers to metrics that never end", 100),
)

SCENARIOS = tuple(flood.scenario() for flood in FLOODS)
