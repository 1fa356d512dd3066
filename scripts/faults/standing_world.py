"""A cluster with a stream and standing queries, each followed by a reader, for faults to befall."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
from fault_injection.ccq_readers import FetchReader, Reader, SpoolReader, WatchReader
from fault_injection.ledger import numbered_schema
from fault_injection.nodes import PATIENCE
from fault_injection.stream import Stream

from faults import standing_truth
from faults.registry import Trial
from galileo import samplers
from galileo.client import Ccq, Client
from galileo.cluster import LocalCluster
from galileo.labels import LabelSet
from galileo.local_node import LocalNode
from galileo.samplers import SamplerSpec
from galileo.spark.runtime import RuntimeDir

DATASET = "numbered"
IMPATIENCE = "200ms"
INTERVAL = "250ms"
EXPIRATION = "12h"
FIRST_S, DRAIN_S = 300.0, 300.0
LEFT_BEHIND_S = 30.0

WATCHED = "temperature > 265 AND S_INTERSECTS(geometry, BBOX(-150, -60, 120, 70))"
FETCHED = "temperature > 260"
SPOOLED = "temperature BETWEEN 255 AND 290 OR geohash LIKE 's%'"
SAMPLER = SamplerSpec("uniform", {"fraction": 0.5}, seed=11)
PREDICATES: dict[str, standing_truth.Predicate] = {
    WatchReader.way: standing_truth.warm_within_box,
    FetchReader.way: standing_truth.warm,
    SpoolReader.way: standing_truth.mild_or_in_cell_s,
}
"""What the three queries say, once more, for each reader."""


@dataclass(slots=True)
class World:
    """Everything that runs.

    Attributes:
        families: processes of evaluators that were ever seen; none may outlive the cluster.
    """

    cluster: LocalCluster
    client: Client
    stream: Stream
    readers: tuple[Reader, ...]
    families: set[psutil.Process]

    @property
    def spooler(self) -> SpoolReader:
        return next(one for one in self.readers if isinstance(one, SpoolReader))

    def coordinator(self) -> LocalNode:
        """That of the first query."""
        first = self.readers[0].ccq.id
        (name,) = [one.coordinator for one in self.client.list_ccqs() if one.id == first]
        return self.cluster.node(name)

    def evaluator(self) -> psutil.Process | None:
        """The process that is the evaluator; its family is remembered."""
        process = RuntimeDir(self.cluster.evaluator_directory).holder()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.families |= {process, *process.children(recursive=True)}
        return process


def three_nodes(trial: Trial, *, settings: dict[str, dict[str, Any]] | None = None) -> LocalCluster:
    """A cluster in two groups, not started yet."""
    return LocalCluster(3, 2, trial.directory / "cluster", settings=settings)


@contextlib.contextmanager
def standing(trial: Trial, cluster: LocalCluster | None = None) -> Iterator[World]:
    """A world that has had its first updates; judged at the end of the block.

    Args:
        trial: that is told what did not hold.
        cluster: of at least three nodes, not started yet; a plain one where there is none.
    """
    cluster = cluster or three_nodes(trial)
    families: set[psutil.Process] = set()
    with cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_dataset(numbered_schema(DATASET))
        stream = Stream(cluster.client(timeout=IMPATIENCE), DATASET)
        world = World(cluster, client, stream, _readers(trial, cluster, client), families)
        try:
            for reader in world.readers:
                reader.start()
            stream.start()
            wait_for_updates(world, timeout_s=FIRST_S)
            trial.say("all readers have had an update")
            yield world
            _judge(trial, world)
            world.evaluator()
        finally:
            world.spooler.end()
    standing_truth.judge(
        trial,
        [cluster.directory / node.name for node in cluster.nodes],
        world.readers,
        dataset=DATASET,
        predicates=PREDICATES,
        sent=stream.sent,
    )
    _judge_left(trial, families)


def wait_for_updates(world: World, *, timeout_s: float) -> None:
    """Returns when each reader has been handed something more."""
    waiting = {reader.way: (reader, reader.count()) for reader in world.readers}
    deadline = time.monotonic() + timeout_s
    while waiting := {way: one for way, one in waiting.items() if one[0].count() <= one[1]}:
        if time.monotonic() > deadline:
            ways = ", ".join(waiting)
            raise TimeoutError(f"no update within {timeout_s:.0f} s to the readers by {ways}")
        time.sleep(0.05)


def _readers(trial: Trial, cluster: LocalCluster, client: Client) -> tuple[Reader, ...]:
    def submit(query: str, *, sampler: SamplerSpec | None = None) -> Ccq:
        return client.submit(
            DATASET,
            query,
            interval=INTERVAL,
            expiration=EXPIRATION,
            sampler=sampler,
            compression="lz4" if sampler else "none",
        )

    spool = trial.directory / "reader.spool"
    return (
        WatchReader(cluster.client(timeout=PATIENCE), submit(WATCHED)),
        FetchReader(cluster.client(timeout=PATIENCE), submit(FETCHED, sampler=SAMPLER)),
        SpoolReader(cluster.addresses, submit(SPOOLED), spool),
    )


def _judge(trial: Trial, world: World) -> None:
    """Lets everything be stored and handed out, then compares."""
    world.stream.finish()
    trial.counts["observations"] += world.stream.sent
    trial.counts["attempts repeated"] += world.stream.retried
    stored = world.client.count(DATASET)
    trial.expect(stored == world.stream.sent, f"sent {world.stream.sent}, stored {stored}")
    wanted = [_wanted(world.client, reader.ccq) for reader in world.readers]
    _drain(trial, world, wanted)
    for reader, labels in zip(world.readers, wanted, strict=True):
        reader.close()
        world.client.cancel(reader.ccq.id)
        _judge_reader(trial, reader, labels)
        trial.counts["samplings failed"] += reader.samplings_failed
        failed = f"reader by {reader.way} was told {reader.samplings_failed} times of its sampler"
        trial.expect(reader.samplings_failed == 0, f"{failed}, which did nothing wrong")


def _wanted(client: Client, ccq: Ccq) -> LabelSet:
    found = client.query(DATASET, ccq.info.query)
    if not found.complete:
        raise AssertionError(f"expected a complete answer, {found.missing} is missing")
    spec = ccq.info.sampler
    return samplers.apply(samplers.load(spec), found, seed=spec.seed) if spec else found


def _drain(trial: Trial, world: World, wanted: list[LabelSet]) -> None:
    """Waits until each reader was handed as many labels as there are; the judge looks at which."""
    deadline = time.monotonic() + DRAIN_S
    for reader, labels in zip(world.readers, wanted, strict=True):
        while reader.count() < len(labels) and time.monotonic() < deadline:
            time.sleep(0.1)
        late = reader.count() < len(labels)
        trial.expect(not late, f"{reader.way}: {reader.count()} of {len(labels)} labels came")


def _judge_reader(trial: Trial, reader: Reader, wanted: LabelSet) -> None:
    audit = reader.deliveries.audit(wanted)
    trial.counts["updates"] += audit.updates
    trial.counts["labels"] += audit.labels
    for name in ("missed", "repeated", "foreign", "lied", "disordered", "receded"):
        trial.counts[name] += getattr(audit, name)
    trial.expect(not audit.wrong, f"reader by {reader.way}: {audit.wrong} of {audit}")
    trial.expect(audit.labels > 0, f"reader by {reader.way} was handed nothing")


def _judge_left(trial: Trial, families: set[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(families), timeout=LEFT_BEHIND_S)
    left = [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    trial.counts["left behind"] += len(left)
    trial.expect(not left, f"processes of Spark outlived the cluster: {left}")
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
