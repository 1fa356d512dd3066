"""A large answer as a stream and as a whole; and what a reader that stops does to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Peer, Spread
from benchmarks.measure import Subject, seconds
from benchmarks.memory import Growth
from benchmarks.reader import Read, read, reading_on
from benchmarks.sizes import Bench
from benchmarks.worker import SMALL
from galileo.client import Client
from galileo.generate import NamLike

DATASET = "nam"
COLLECTED = "the same, collected by `query`"
SMALL_CALLS = 40


def measure(bench: Bench) -> Iterator[Figure]:
    with clusters.cluster(bench.directory, nodes=1) as running:
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, DATASET)
        fill(client, bench, labels=bench.sizes.stream_labels)
        yield from _whole_and_in_batches(running, bench)
        yield from _beside_others(running, client, bench)


def fill(client: Client, bench: Bench, *, labels: int) -> None:
    """Stores as many observations of a forecast, each of which makes one label."""
    model = NamLike(seed=7, stride=bench.sizes.stride)
    bench.say(f"storing {labels:,} observations")
    tables = model.stream(clusters.START, hours=-(-labels // model.rows))
    client.ingest(DATASET, _first(tables, labels))


def _first(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    for table in tables:
        yield table.slice(0, rows)
        rows = max(0, rows - table.num_rows)


def _whole_and_in_batches(running: galileo.LocalCluster, bench: Bench) -> Iterator[Figure]:
    labels = bench.sizes.stream_labels
    streamed: list[tuple[Read, int]] = []
    whole: list[tuple[Read, int]] = []
    # What merging of the graph takes after an ingest is none of this.
    _measured(running, labels, how="batches")
    for _ in range(bench.sizes.runs):
        streamed.append(_measured(running, labels, how="batches"))
        whole.append(_measured(running, labels, how="whole"))

    def figure(name: str, unit: str, value: Callable[[tuple[Read, int]], float]) -> Figure:
        peer = Peer(COLLECTED, Spread.of([value(one) for one in whole]))
        return Figure(name, unit, Spread.of([value(one) for one in streamed]), (peer,))

    yield figure(f"until the first of {labels:,} labels", "s", lambda one: one[0].first_s)
    yield figure(f"{labels:,} labels in batches", "labels/s", lambda one: labels / one[0].all_s)
    yield figure("what the client grows by meanwhile", "B", lambda one: one[0].grown)
    grown = Spread.of([node for _, node in streamed])
    yield Figure("what the node grows by meanwhile", "B", grown)


def _measured(running: galileo.LocalCluster, labels: int, *, how: str) -> tuple[Read, int]:
    """One read, and the bytes that the node grew by."""
    with Growth(running.nodes[0].pid) as growth:
        one = read(running.addresses[0], DATASET, how)
    if one.labels != labels:
        raise AssertionError(f"expected {labels:,} labels, got {one.labels:,}")
    return one, growth.bytes


def _beside_others(running: galileo.LocalCluster, client: Client, bench: Bench) -> Iterator[Figure]:
    """A small query alone, beside a reader that has stopped, and beside one that reads on."""
    expected = len(client.query(DATASET, SMALL))

    def small() -> None:
        if (found := len(client.query(DATASET, SMALL))) != expected:
            raise AssertionError(f"expected {expected:,} labels, got {found:,}")

    alone = _calls(small)
    with (
        Growth(running.nodes[0].pid) as growth,
        running.client().query_batches(DATASET) as stopped,
    ):
        next(stopped)
        beside_stopped = _calls(small)
    yield Figure("what the node grows by for a reader that has stopped", "B", _one(growth.bytes))
    peer = Peer("the same alone", alone)
    name = f"a query for {expected:,} labels"
    yield Figure(f"{name} beside a reader that has stopped", "s", beside_stopped, (peer,))
    with reading_on(running.addresses[0], DATASET):
        beside_reader = _calls(small)
    yield Figure(f"{name} beside one that reads on", "s", beside_reader, (peer,))


def _calls(subject: Subject) -> Spread:
    return Spread.of([seconds(subject) for _ in range(SMALL_CALLS)])


def _one(value: float) -> Spread:
    return Spread.of([value])
