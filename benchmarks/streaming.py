"""A large answer as a stream and as a whole; and what a reader that stops does to others.

`python -m benchmarks.streaming ADDRESS DATASET batches|whole|forever` is a client in a process of
its own that reads one answer. It says when it begins, and prints what that took, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import galileo
from benchmarks import clusters
from benchmarks.clusters import DATASET, SMALL, fill
from benchmarks.figures import Figure, Peer, Spread, Subject, seconds
from benchmarks.processes import Growth
from benchmarks.sizes import Bench
from galileo.client import Client

COLLECTED = "the same, collected by `query`"
SMALL_CALLS = 40


def measure(bench: Bench) -> Iterator[Figure]:
    with clusters.cluster(bench.directory, nodes=1) as running:
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, DATASET)
        fill(client, bench, labels=bench.sizes.stream_labels)
        yield from _whole_and_in_batches(running, bench)
        yield from _beside_others(running, client, bench)


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
    """A small query alone, with a reader that has stopped, and with one that reads on."""
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
    yield Figure(f"{name} next to a reader that has stopped", "s", beside_stopped, (peer,))
    with reading_on(running.addresses[0], DATASET):
        beside_reader = _calls(small)
    yield Figure(f"{name} next to one that reads on", "s", beside_reader, (peer,))


def _calls(subject: Subject) -> Spread:
    return Spread.of([seconds(subject) for _ in range(SMALL_CALLS)])


def _one(value: float) -> Spread:
    return Spread.of([value])


NOTHING = "temperature < 0"


@dataclass(frozen=True, slots=True)
class Read:
    """Seconds until the first labels and until the last, labels, bytes that the client grew by."""

    first_s: float
    all_s: float
    labels: int
    grown: int


def read(address: str, dataset: str, how: str) -> Read:
    """The answer, read by a fresh process."""
    with clusters.child("benchmarks.streaming", address, dataset, how) as process:
        output, _ = process.communicate()
        if process.returncode:
            raise AssertionError(f"a reader ended with status {process.returncode}")
    return Read(**json.loads(output))


@contextlib.contextmanager
def reading_on(address: str, dataset: str) -> Iterator[None]:
    """Meanwhile a fresh process reads the answer in batches, over and over."""
    with clusters.child("benchmarks.streaming", address, dataset, "forever") as process:
        yield
        if process.poll() is not None:
            raise AssertionError(f"a reader ended with status {process.returncode}")
        process.terminate()


def main(address: str, dataset: str, how: str) -> None:
    with galileo.connect(address) as client:
        client.query(dataset, NOTHING)
        print(clusters.READY, flush=True)
        while how == "forever":
            sum(_counts(client, dataset, "batches"))
        with Growth(os.getpid()) as growth:
            started = time.perf_counter()
            first_s, labels = 0.0, 0
            for count in _counts(client, dataset, how):
                first_s = first_s or time.perf_counter() - started
                labels += count
            all_s = time.perf_counter() - started
    print(json.dumps(asdict(Read(first_s, all_s, labels, growth.bytes))))


def _counts(client: galileo.Client, dataset: str, how: str) -> Iterator[int]:
    if how == "whole":
        yield len(client.query(dataset))
        return
    batches = client.query_batches(dataset)
    yield from map(len, batches)
    if batches.end is None or not batches.end.complete:
        raise AssertionError(f"expected a complete answer, got one that ends with {batches.end}")


if __name__ == "__main__":
    main(*sys.argv[1:])
