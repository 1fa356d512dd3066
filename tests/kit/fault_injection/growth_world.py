"""A cluster whose nodes change under load: producers, readers, and many continuous queries.

At the end the observations, in the nodes and on their disks, are compared with the producers'
ledger, and the labels of each continuous query with an answer of the nodes.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from waiting import wait_until

from fault_injection.ccq_readers import WatchReader
from fault_injection.damage import observations, read_all
from fault_injection.delivery import Deliveries
from fault_injection.history import Read
from fault_injection.ledger import Ledger, Producer, numbered_schema
from fault_injection.nodes import left_behind
from fault_injection.trial import Trial
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht import placement, topology_changes
from galileo.dht.topology import Topology
from galileo.errors import TransientError
from galileo.labels import LabelSet
from galileo.local_node import LocalNode

DATASET = "numbered"
PARTITIONS = 16
PRODUCERS, PRODUCER_PAUSE_S = 3, 0.4
QUERY_PAUSE_S = 0.5
CCQS, CCQ_INTERVAL, WATCHED_INTERVAL = 100, "2s", "500ms"
WATCHED, READ = "temperature > 260", "temperature > 308"
FETCH_PAUSE_S = 0.5
PATIENCE = "180s"
EXPIRATION = "12h"
FIRST_S, DRAIN_S, TIDY_S = 300.0, 300.0, 60.0
RECOVERED_S = 15.0
"""After a restart every answer is complete; a bound for a busy machine."""

Settings = dict[str, dict[str, Any]]
Span = tuple[float, float]
"""Beginning and end, by the monotonic clock."""


def many_queries(count: int) -> list[str]:
    """Queries that each match some percent: of temperature, and every other one of place too."""
    lows = 250.0 + np.arange(count) * 60.0 / count
    west = -180.0 + np.arange(count) * 300.0 / count
    return [
        f"temperature BETWEEN {low:.1f} AND {low + 3:.1f}"
        if number % 2
        else f"temperature > 270 AND S_INTERSECTS(geometry, BBOX({x:.1f}, -60, {x + 40:.1f}, 60))"
        for number, (low, x) in enumerate(zip(lows, west, strict=True))
    ]


class QueryReader(threading.Thread):
    """Reads everything, and counts and reads a part of it, again and again.

    The ledger's history has what was read of everything. A part that is counted or read has at
    least what a query found before.

    Attributes:
        calls: of each kind, with their beginnings and ends.
        incomplete: answers that named missing partitions, and calls that were refused because
            some were missing.
        lacking: complete answers with fewer observations than before; there must be none.
        failure: the error that ended it early; there must be none.
    """

    def __init__(self, client: Client, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self.calls = defaultdict[str, list[Span]](list)
        self.incomplete: list[Span] = []
        self.lacking: list[str] = []
        self.failure: BaseException | None = None
        self._client, self._ledger = client, ledger
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.wait(QUERY_PAUSE_S):
                for name, call in (
                    ("query", self._query),
                    ("count", self._count),
                    ("read", self._read),
                ):
                    began = time.monotonic()
                    is_complete = call()
                    self.calls[name].append((began, time.monotonic()))
                    if not is_complete:
                        self.incomplete.append(self.calls[name][-1])
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        """Raises RuntimeError if it failed before."""
        self._stopping.set()
        self.join()
        if self.failure is not None:
            raise RuntimeError("a reader of queries failed") from self.failure

    def _query(self) -> bool:
        began = time.monotonic()
        labels = self._client.query(DATASET)
        try:
            table = self._client.read(labels, columns=["number"])
        except TransientError:
            return False
        numbers = table.column("number").to_numpy().astype(np.int64)
        is_complete = labels.complete and not _has_missing(table)
        self._ledger.history.add_read(Read(began, time.monotonic(), numbers, is_complete))
        return is_complete

    def _count(self) -> bool:
        labels = self._client.query(DATASET, READ)
        try:
            count = self._client.count(DATASET, READ)
        except TransientError:
            return False
        self._expect(count, _rows(labels))
        return labels.complete

    def _read(self) -> bool:
        labels = self._client.query(DATASET, READ)
        try:
            table = self._client.read(labels, exact=False)
        except TransientError:
            return False
        is_complete = labels.complete and not _has_missing(table)
        if is_complete:
            self._expect(table.num_rows, _rows(labels))
        return is_complete

    def _expect(self, found: int, due: int) -> None:
        if found < due:
            self.lacking.append(f"{found} of {due} observations")


class ManyReader(threading.Thread):
    """Fetches the news of many continuous queries, one after the other, again and again.

    Attributes:
        queries: by id.
        deliveries: the answers about each.
        errors: that were answered, by kind; temporary ones are no failure.
        failure: the error that ended it early; there must be none.
    """

    def __init__(self, client: Client, queries: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.queries = {
            client.submit(DATASET, query, interval=CCQ_INTERVAL, expiration=EXPIRATION).id: query
            for query in queries
        }
        self.deliveries = {ccq_id: Deliveries() for ccq_id in self.queries}
        self.errors: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._client = client
        self._tokens = dict.fromkeys(self.queries, "")
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.wait(FETCH_PAUSE_S):
                for ccq_id in self.queries:
                    self._fetch(ccq_id)
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        """Raises RuntimeError if it failed before."""
        self._stopping.set()
        self.join()
        if self.failure is not None:
            raise RuntimeError("the reader of many queries failed") from self.failure

    def count(self, ccq_id: str) -> int:
        """Labels of a query so far. Raises RuntimeError if it failed."""
        if self.failure is not None:
            raise RuntimeError("the reader of many queries failed") from self.failure
        return len(self.deliveries[ccq_id])

    def _fetch(self, ccq_id: str) -> None:
        try:
            update = self._client.fetch(ccq_id, token=self._tokens[ccq_id])
        except TransientError as error:
            self.errors[error.kind] += 1
            return
        if update.is_news:
            self.deliveries[ccq_id].take(update)
        self._tokens[ccq_id] = update.token


class Command:
    """A run of `galileo` in a process of its own, which is repeated until it succeeds."""

    def __init__(self, trial: Trial, contact: LocalNode, *words: str) -> None:
        self.name = " ".join(words)
        self._trial = trial
        self._words = [*("--node", contact.address, "--timeout", PATIENCE), *words, "--json"]
        self._log = trial.directory / "command.log"
        self._process = self._started()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def complete(self, *, is_done: str = "") -> None:
        """Waits until it has succeeded; an error that says `is_done` is a success as well."""
        while self._process.wait() != 0:
            said = self._log.read_text(errors="replace")
            if is_done and is_done in said:
                return
            self._trial.counts["commands repeated"] += 1
            self._trial.say(
                f"galileo {self.name} ended ({self._process.returncode}): {said[-300:]}"
            )
            time.sleep(1.0)
            self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "galileo", *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@dataclass(slots=True)
class GrowthWorld:
    """All running parts.

    Attributes:
        steps: each with its name, and when it took place.
        outages: each from the kill of a node until it serves again.
    """

    trial: Trial
    cluster: LocalCluster
    client: Client
    ledger: Ledger
    producers: Sequence[Producer]
    queries: QueryReader
    watcher: WatchReader
    many: ManyReader
    steps: list[tuple[str, Span]] = field(default_factory=list)
    outages: list[Span] = field(default_factory=list)

    @property
    def topology(self) -> Topology:
        return Topology.from_json(self.client.topology_json())

    def voter(self) -> LocalNode:
        return self._one_of(topology_changes.voters(self.topology))

    def coordinator(self) -> LocalNode:
        """The node that coordinates most of the continuous queries."""
        counted = Counter(one.coordinator for one in self.client.list_ccqs())
        return self.cluster.node(counted.most_common(1)[0][0])

    def partitions(self) -> dict[str, int]:
        """The number of partitions of each node."""
        owned = placement.partitions_by_node(self.topology)
        return {name: len(partitions) for name, partitions in owned.items()}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Records when a step takes place, for the longest stalls within it."""
        began = time.monotonic()
        self.trial.say(name)
        yield
        self.steps.append((name, (began, time.monotonic())))
        self.trial.note_longest(f"longest {name}, ms", time.monotonic() - began)
        self.trial.counts[f"{name}s"] += 1

    def check(self) -> None:
        """Raises if a reader or a producer has ended."""
        failures = [one.failure for one in self.producers]
        failures += [self.queries.failure, self.watcher.failure, self.many.failure]
        for failure in failures:
            if failure is not None:
                raise RuntimeError("a producer or a reader failed") from failure

    def _one_of(self, names: Sequence[str]) -> LocalNode:
        return self.cluster.node(self.trial.random.choice(names))


@contextlib.contextmanager
def growth_world(
    trial: Trial,
    *,
    nodes: int = 1,
    replicas: int = 1,
    settings: Settings | None = None,
    prepare: Callable[[LocalCluster], None] = lambda _: None,
) -> Iterator[GrowthWorld]:
    """A world of one group after its first updates; judged at the end of the block.

    Args:
        trial: of the scenario.
        nodes: at the begin.
        replicas: of each partition.
        settings: of the nodes, by section.
        prepare: called with the cluster before it starts.
    """
    place = trial.directory / "cluster"
    cluster = LocalCluster(
        *(nodes, 1, place), partitions_per_group=PARTITIONS, replicas=replicas, settings=settings
    )
    prepare(cluster)
    with cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_dataset(numbered_schema(DATASET))
        ledger = Ledger(DATASET)
        producers = [
            Producer(ledger, cluster.client(timeout=PATIENCE), pause_s=PRODUCER_PAUSE_S)
            for _ in range(PRODUCERS)
        ]
        ccq = client.submit(DATASET, WATCHED, interval=WATCHED_INTERVAL, expiration=EXPIRATION)
        world = GrowthWorld(
            trial,
            cluster,
            client,
            ledger,
            producers,
            QueryReader(cluster.client(timeout=PATIENCE), ledger),
            WatchReader(cluster.client(timeout=PATIENCE), ccq),
            ManyReader(cluster.client(timeout=PATIENCE), many_queries(CCQS)),
        )
        for thread in (*producers, world.queries, world.watcher, world.many):
            thread.start()
        wait_until(lambda: world.watcher.count() > 0, what="an update", timeout_s=FIRST_S)
        trial.say("the first update has come")
        yield world
        _judge(world)
        directories = [place / node.name for node in cluster.nodes]
    if replicas == 1:
        _judge_disks(trial, ledger, directories)
    for directory in directories if replicas == len(directories) else ():
        _judge_disks(trial, ledger, [directory])


def _judge(world: GrowthWorld) -> None:
    trial = world.trial
    for producer in world.producers:
        producer.stop()
    world.queries.stop()
    _note_stalls(world)
    trial.judge(world.ledger.audit(world.client), "the end")
    _judge_history(world)
    trial.counts["queries"] += sum(map(len, world.queries.calls.values()))
    trial.counts["queries incomplete"] += len(world.queries.incomplete)
    _judge_incomplete(world)
    trial.expect(not world.queries.lacking, f"complete answers had {world.queries.lacking[:3]}")
    trial.say("all is stored; the labels of each continuous query are compared")
    _judge_ccqs(world)
    world.many.stop()
    world.watcher.close()
    for kind, count in world.many.errors.items():
        trial.counts[f"fetches answered with {kind}"] += count
    wait_until(lambda: _is_tidy(world), what="old copies to go", timeout_s=TIDY_S)


def _judge_history(world: GrowthWorld) -> None:
    audit = world.ledger.history.audit()
    for name in ("writes", "reads", "lacking", "early", "repeated"):
        world.trial.counts[f"history: {name}"] += getattr(audit, name)
    world.trial.expect(audit.is_linearizable, f"no correct store has this history: {audit}")


def _judge_incomplete(world: GrowthWorld) -> None:
    """An answer is incomplete only while a node is down, or has just come back."""
    for began, ended in world.queries.incomplete:
        back = max((end for since, end in world.outages if since < ended), default=0.0)
        late_s = max(began - back, 0.0)
        is_explained = late_s < RECOVERED_S
        world.trial.expect(is_explained, f"an answer lacked partitions {late_s:.1f} s later")
        if is_explained:
            world.trial.note_longest("longest incomplete answers after a restart, ms", late_s)


def _judge_ccqs(world: GrowthWorld) -> None:
    """Waits until each query has as many labels as there are, then compares."""
    trial, deadline = world.trial, time.monotonic() + DRAIN_S
    readers = {world.watcher.ccq.id: (WATCHED, world.watcher.deliveries)}
    readers |= {i: (query, world.many.deliveries[i]) for i, query in world.many.queries.items()}
    for ccq_id, (query, deliveries) in readers.items():
        wanted = world.client.query(DATASET, query)
        trial.expect(wanted.complete, f"{query}: {wanted.missing} is missing at the end")
        while len(deliveries) < len(wanted) and time.monotonic() < deadline:
            world.check()
            time.sleep(0.1)
        audit = deliveries.audit(wanted)
        trial.counts["continuous queries"] += 1
        trial.counts["updates"] += audit.updates
        trial.counts["labels"] += audit.labels
        for name in ("missed", "repeated", "foreign", "lied", "disordered", "receded"):
            trial.counts[f"labels {name}"] += getattr(audit, name)
        trial.expect(not audit.wrong, f"{ccq_id} ({query}): {audit.wrong} of {audit}")


def _is_tidy(world: GrowthWorld) -> bool:
    """Whether no node has a copy that it should not have; several copies are not looked at."""
    return world.topology.is_replicated or not left_behind(world.topology, world.cluster)


def _judge_disks(trial: Trial, ledger: Ledger, directories: Sequence[Path]) -> None:
    readings = [read_all(directory) for directory in directories]
    refusals = [refusal for reading in readings for refusal in reading.refusals]
    trial.expect(not refusals, f"reading was refused: {refusals[:3]}")
    trial.judge(ledger.compare(observations(*readings)), "the end, read from the disks")


def _note_stalls(world: GrowthWorld) -> None:
    """The longest batch, query and time without an update, in each kind of step."""
    batches = [call for producer in world.producers for call in producer.calls]
    updated = world.watcher.deliveries.updated
    gaps = list(itertools.pairwise(updated))
    for name, span in world.steps:
        for what, spans in (
            ("batch", batches),
            *world.queries.calls.items(),
            ("time without an update", gaps),
        ):
            longest = max(
                (end - began for began, end in spans if _overlap((began, end), span)), default=0.0
            )
            world.trial.note_longest(f"longest {what} amid a {name}, ms", longest)


def _has_missing(table: pa.Table) -> bool:
    return b"galileo.missing" in (table.schema.metadata or {})


def _rows(labels: LabelSet) -> int:
    return int(labels.table.column("rows").to_numpy().sum())


def _overlap(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]
