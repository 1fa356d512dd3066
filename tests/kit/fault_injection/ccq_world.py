"""A cluster with a stream and continuous queries, each with a reader.

At the end the received labels are compared with answers of the nodes, and with the disks, without
the predicates of Galileo; only samples are drawn with the sampler itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
from processes import is_alive

from fault_injection.ccq_readers import FetchReader, Reader, SpoolReader, WatchReader
from fault_injection.damage import read_all
from fault_injection.ledger import numbered_schema
from fault_injection.nodes import PATIENCE
from fault_injection.stream import Stream
from fault_injection.trial import Trial
from galileo import samplers
from galileo.client import Ccq, Client
from galileo.cluster import LocalCluster
from galileo.labels import LabelSet
from galileo.local_node import LocalNode
from galileo.samplers import SamplerSpec
from galileo.spark.runtime_dir import RuntimeDir

Flags = npt.NDArray[np.bool_]
Predicate = Callable[[LabelSet], Flags]


def warm_within_box(labels: LabelSet) -> Flags:
    """temperature > 265 AND S_INTERSECTS(geometry, BBOX(-150, -60, 120, 70))"""
    south, north, west, east = _bounds(labels)
    inside = (east > -150) & (west < 120) & (north > -60) & (south < 70)
    return np.asarray(inside & (_temperatures(labels) > 265))


def warm(labels: LabelSet) -> Flags:
    """temperature > 260"""
    return np.asarray(_temperatures(labels) > 260)


def mild_or_in_cell_s(labels: LabelSet) -> Flags:
    """temperature BETWEEN 255 AND 290 OR geohash LIKE 's%'"""
    values = _temperatures(labels)
    south, _, west, _ = _bounds(labels)
    in_s = (south >= 0) & (south < 45) & (west >= 0) & (west < 45)
    return np.asarray(((values >= 255) & (values <= 290)) | in_s)


def judge_by_disks(
    trial: Trial,
    directories: Sequence[Path],
    readers: Sequence[Reader],
    *,
    dataset: str,
    predicates: Mapping[str, Predicate],
    sent: int,
) -> None:
    """Compare each reader's labels with the logs, which must have `sent` observations."""
    stored, labels = _stored(trial, directories, dataset)
    trial.counts["commits read from disk"] += stored
    found = int(labels.table.column("rows").to_numpy().sum())
    trial.expect(found == sent, f"sent {sent} observations, the disks have {found}")
    for reader in readers:
        wanted = labels.where(predicates[reader.way](labels))
        spec = reader.ccq.info.sampler
        if spec is not None:
            wanted = samplers.apply(samplers.load(spec), wanted, seed=spec.seed)
        audit = reader.deliveries.audit(wanted)
        trial.counts["labels due by the disks"] += len(wanted)
        wrong = f"reader by {reader.way}, by the disks: {audit.wrong} of {audit}"
        trial.expect(not audit.wrong, wrong)


def _stored(trial: Trial, directories: Sequence[Path], dataset: str) -> tuple[int, LabelSet]:
    """How many commits all nodes have, and a label for each path in them."""
    schema = numbered_schema(dataset)
    tables, commits = [schema.label_schema.empty_table()], 0
    for directory in directories:
        reading = read_all(directory)
        trial.expect(not reading.refusals, f"{directory.name}: {reading.refusals[:3]}")
        for (name, partition, sequence), (_, paths) in reading.commits.items():
            if name == dataset:
                tables.append(_labels(paths, partition, sequence, schema.label_schema))
                commits += 1
    return commits, LabelSet(schema, pa.concat_tables(tables).combine_chunks())


def _labels(paths: pa.RecordBatch, partition: int, sequence: int, schema: pa.Schema) -> pa.Table:
    count = paths.num_rows
    places = [pa.array(np.full(count, partition, np.int32)), pa.array(np.full(count, sequence))]
    return pa.Table.from_arrays([*paths.columns, *places], schema=schema)


def _temperatures(labels: LabelSet) -> npt.NDArray[np.float64]:
    return np.asarray(labels.table.column("temperature").to_numpy())


def _bounds(labels: LabelSet) -> tuple[npt.NDArray[np.float64], ...]:
    """South, north, west and east of each label's geohash cell, in degrees.

    A geohash bisects the world repeatedly, longitude first.
    """
    cells = labels.table.column("cell").to_numpy()
    bits = 5 * labels.schema.geohash_precision
    low = [np.full(len(cells), -90.0), np.full(len(cells), -180.0)]
    size = [180.0, 360.0]
    for number in range(bits):
        axis = 1 - number % 2
        size[axis] /= 2
        is_upper = (cells >> np.uint64(bits - 1 - number)) & np.uint64(1)
        low[axis] += size[axis] * is_upper
    return low[0], low[0] + size[0], low[1], low[1] + size[1]


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
PREDICATES: dict[str, Predicate] = {
    WatchReader.way: warm_within_box,
    FetchReader.way: warm,
    SpoolReader.way: mild_or_in_cell_s,
}
"""The three queries as functions, for each reader."""


@dataclass(slots=True)
class World:
    """All running parts.

    Attributes:
        families: all processes of evaluators so far; none may outlive the cluster.
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
        """The coordinator of the first query."""
        first = self.readers[0].ccq.id
        (name,) = [one.coordinator for one in self.client.list_ccqs() if one.id == first]
        return self.cluster.node(name)

    def evaluator(self) -> psutil.Process | None:
        """The process of the evaluator; its family is recorded."""
        process = RuntimeDir(self.cluster.evaluator_directory).holder()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.families |= {process, *process.children(recursive=True)}
        return process


def three_nodes(trial: Trial, *, settings: dict[str, dict[str, Any]] | None = None) -> LocalCluster:
    """A cluster in two groups, not started yet."""
    return LocalCluster(3, 2, trial.directory / "cluster", settings=settings)


@contextlib.contextmanager
def ccq_world(trial: Trial, cluster: LocalCluster | None = None) -> Iterator[World]:
    """A world after its first updates; checked at the end of the block.

    Args:
        trial: records violations.
        cluster: of at least three nodes, not started yet; None: a plain one.
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
    judge_by_disks(
        trial,
        [cluster.directory / node.name for node in cluster.nodes],
        world.readers,
        dataset=DATASET,
        predicates=PREDICATES,
        sent=stream.sent,
    )
    _judge_left(trial, families)


def wait_for_updates(world: World, *, timeout_s: float) -> None:
    """Wait until each reader has received an update."""
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
    """Wait until everything is stored and delivered, then compare."""
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
        failed = f"the sampler of the reader by {reader.way} failed {reader.samplings_failed} times"
        trial.expect(reader.samplings_failed == 0, failed)


def _wanted(client: Client, ccq: Ccq) -> LabelSet:
    found = client.query(DATASET, ccq.info.query)
    if not found.complete:
        raise AssertionError(f"expected a complete answer, {found.missing} is missing")
    spec = ccq.info.sampler
    return samplers.apply(samplers.load(spec), found, seed=spec.seed) if spec else found


def _drain(trial: Trial, world: World, wanted: list[LabelSet]) -> None:
    """Wait until each reader has received as many labels as there are."""
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
    left = [one for one in alive if is_alive(one.pid)]
    trial.counts["left behind"] += len(left)
    trial.expect(not left, f"processes of Spark outlived the cluster: {left}")
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
