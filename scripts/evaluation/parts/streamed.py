"""Retrievals while blocks stream in: how long one takes, and what it brings (paper, Table II).

For each number of blocks a process of its own streams them evenly over the same time. Continuous
queries that find every block stand meanwhile, one for each update interval, and each has a reader
that comes once an interval, between two ticks, and takes everything that is new.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from benchmarks import clusters
from benchmarks.sizes import Bench

import galileo
from evaluation.parts import stream_source
from evaluation.sizes import Sizes
from galileo.client import Ccq, Client
from galileo.cursor import Cursor

NODES = 3
EXPIRATION = "1h"
SETTINGS = {"limits": {"answer_labels_max": 2_000_000, "cache_bytes_max": 1 << 30}}
TIMEOUT_S = 180.0
AFTER_A_TICK = 0.5
APART_S = 0.15
"""Between the moments of two readers, as a share of a second, lest they come at the same time."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """One of those that brought something: seconds, and new blocks."""

    seconds: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What the reader of one continuous query retrieved, in order."""

    interval_s: float
    retrievals: tuple[Retrieval, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """Blocks, seconds in which they were sent, and what became of each query."""

    blocks: int
    sent_s: float
    queries: tuple[Standing, ...]


@dataclass(frozen=True, slots=True)
class Streaming:
    """Attributes:
    meant_s: over which each stream was meant to be sent.
    """

    nodes: int
    meant_s: float
    streams: tuple[Stream, ...]


def measure(sizes: Sizes, bench: Bench) -> Streaming:
    with (
        clusters.cluster(bench.directory, nodes=NODES, settings=SETTINGS) as running,
        clusters.warm_evaluator(running),
    ):
        streams = [
            _stream(sizes, bench, running=running, blocks=blocks) for blocks in sizes.streamed
        ]
    return Streaming(NODES, sizes.stream_s, tuple(streams))


def _stream(sizes: Sizes, bench: Bench, *, running: galileo.LocalCluster, blocks: int) -> Stream:
    bench.say(f"streaming {blocks:,} blocks over {sizes.stream_s:g} s")
    client, dataset = running.client(timeout=clusters.PATIENCE), f"stream-{blocks}"
    clusters.create_dataset(running, client, dataset)
    readers = [
        _Reader(running.client(timeout=clusters.PATIENCE), dataset, interval_s, number)
        for number, interval_s in enumerate(sizes.stream_intervals_s)
    ]
    threads = [threading.Thread(target=reader.run, daemon=True) for reader in readers]
    with stream_source.source(
        running.addresses[0],
        dataset,
        blocks=blocks,
        seconds=sizes.stream_s,
        stride=bench.sizes.stride,
    ) as process:
        for thread in threads:
            thread.start()
        output, _ = process.communicate("go\n")
        if process.returncode:
            raise AssertionError(f"the source ended with status {process.returncode}")
    sent = stream_source.sent(output)
    for reader in readers:
        reader.last.put(Cursor(sent.reached))
    for thread in threads:
        thread.join()
    return Stream(blocks, sent.took_s, tuple(r.finished(blocks) for r in readers))


class _Last:
    """How far a stream reached, as soon as that is known."""

    def __init__(self) -> None:
        self._reached: Cursor | None = None

    def put(self, reached: Cursor) -> None:
        self._reached = reached

    def is_covered(self, frontier: Cursor) -> bool:
        return self._reached is not None and frontier.covers(self._reached)


@dataclass(slots=True)
class _Reader:
    """Retrieves what is new once an interval; `last` is told when the stream is over."""

    client: Client
    dataset: str
    interval_s: float
    number: int
    last: _Last = field(default_factory=_Last)
    retrievals: list[Retrieval] = field(default_factory=list)
    labels: list[pa.Table] = field(default_factory=list)
    failure: Exception | None = None
    ccq: Ccq = field(init=False)

    def __post_init__(self) -> None:
        self.ccq = self.client.submit(self.dataset, interval=self.interval_s, expiration=EXPIRATION)

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.failure = error

    def _run(self) -> None:
        token, deadline = self.ccq.token, time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            time.sleep(self._pause_s(time.monotonic()))
            started = time.perf_counter()
            updates = clusters.drain(self.client, self.ccq.id, token=token)
            took_s = time.perf_counter() - started
            token, blocks = updates[-1].token, sum(len(update.labels) for update in updates)
            if blocks:
                self.retrievals.append(Retrieval(took_s, blocks))
                self.labels += [update.labels.table for update in updates]
            if self.last.is_covered(updates[-1].frontier):
                return
        raise TimeoutError(f"not everything came within {TIMEOUT_S:.0f} s")

    def _pause_s(self, now: float) -> float:
        """Until its next moment; cycles are due at multiples of the interval on this clock."""
        phase = AFTER_A_TICK * self.interval_s + APART_S * self.number * min(self.interval_s, 1.0)
        return self.interval_s - (now - phase) % self.interval_s

    def finished(self, blocks: int) -> Standing:
        """Everything came, and once."""
        if self.failure is not None:
            raise self.failure
        table = pa.concat_tables(self.labels)
        columns = [table.column(name).to_numpy() for name in ("partition", "sequence", "row")]
        places = np.ravel_multi_index(columns, [int(column.max()) + 1 for column in columns])
        different = len(np.unique(places))
        stored = len(self.client.query(self.dataset))
        if not blocks == stored == table.num_rows == different:
            raise AssertionError(
                f"expected {blocks:,} blocks once, {stored:,} are stored, {table.num_rows:,} "
                f"came, {different:,} of them different"
            )
        self.client.cancel(self.ccq.id)
        return Standing(self.interval_s, tuple(self.retrievals))
