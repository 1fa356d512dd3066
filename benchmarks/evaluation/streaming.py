"""Retrievals while blocks stream in: how long one takes, and what it brings (paper, Table II).

For each number of blocks a process of its own (`python -m evaluation.streaming`) streams them
evenly over the same time. For each update interval there is a continuous query that finds every
block, and each has a reader that comes once an interval, between two ticks, and takes everything
that is new. A block is one observation: a grid point of a made-up forecast at one hour.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa

import galileo
from benchmarks import clusters
from benchmarks.evaluation import plots
from benchmarks.evaluation.page import Block, extent, picture, seconds, table
from benchmarks.evaluation.plots import Axes, Line
from benchmarks.evaluation.sizes import Sizes
from benchmarks.figures import quantity
from benchmarks.sizes import Bench
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
    words = (running.addresses[0], dataset, blocks, sizes.stream_s, bench.sizes.stride)
    with clusters.child("benchmarks.evaluation.streaming", *words) as process:
        for thread in threads:
            thread.start()
        output, _ = process.communicate("go\n")
        if process.returncode:
            raise AssertionError(f"the source ended with status {process.returncode}")
    sent = _sent(output)
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
    """Retrieves what is new once an interval; `last` is put when the stream is over."""

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


BATCHES_PER_S = 10
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """Blocks, the seconds that it took, and how far the commits reach, partition by partition."""

    blocks: int
    took_s: float
    reached: dict[int, int]


def _sent(line: str) -> Sent:
    """What a source printed at its end."""
    raw = json.loads(line)
    return Sent(raw["blocks"], raw["took_s"], {int(p): s for p, s in raw["reached"].items()})


def main(address: str, dataset: str, blocks: int, seconds: float, stride: int) -> None:
    table = clusters.forecast(blocks, stride=stride)
    batches = min(blocks, max(1, round(seconds * BATCHES_PER_S)))
    edges = [blocks * number // batches for number in range(batches + 1)]
    with galileo.connect(address, timeout=clusters.PATIENCE) as client:
        client.schema(dataset)
        print(clusters.READY, flush=True)
        sys.stdin.readline()
        started = time.monotonic()

        def send(number: int) -> Cursor:
            due = started + number * seconds / batches
            time.sleep(max(0.0, due - time.monotonic()))
            start, end = edges[number], edges[number + 1]
            return client.ingest(dataset, table.slice(start, end - start)).reached

        with ThreadPoolExecutor(AT_ONCE) as pool:
            receipts = list(pool.map(send, range(batches)))
        took_s = time.monotonic() - started
    reached = Cursor()
    for one in receipts:
        reached = reached.join(one)
    print(json.dumps(asdict(Sent(blocks, took_s, dict(reached.items())))))


PAPER_NODES = 75
PAPER_RETRIEVAL_S = {1_000: 0.101, 100_000: 0.109, 1_000_000: 0.178}
"""Table II: seconds of a retrieval, by the number of streamed blocks."""


def tell(taken: Streaming) -> Block:
    rows = [
        (
            f"{stream.blocks:,}",
            f"{query.interval_s:g} s",
            quantity(stream.blocks / stream.sent_s, "blocks/s"),
            f"{len(query.retrievals)}",
            f"{statistics.median(one.blocks for one in query.retrievals):,.0f}",
            _median(query),
            extent([one.seconds for one in query.retrievals]),
            _paper_retrieval(stream.blocks),
        )
        for stream in taken.streams
        for query in stream.queries
    ]
    head = (
        *("streamed", "interval", "sent", "updates", "blocks per update", "retrieval"),
        *("lowest to highest", "the paper"),
    )
    return Block(
        [
            *table(head, rows, left=2),
            "",
            picture("paper-streaming.svg", "Retrieval time by the number of streamed blocks"),
        ],
        {"paper-streaming.svg": lambda: _plot(taken)},
        [
            (
                f"Table II: retrieval, {stream.blocks:,} streamed blocks",
                _paper_retrieval(stream.blocks),
                ", ".join(
                    f"{_median(query)} at {query.interval_s:g} s" for query in stream.queries
                ),
            )
            for stream in taken.streams
        ],
    )


def _median(query: Standing) -> str:
    return seconds([one.seconds for one in query.retrievals])


def _plot(taken: Streaming) -> bytes:
    title = f"sent over {taken.meant_s:g} s or more"
    axes = Axes(title, "blocks", "ms, median", log_x=True, log_y=True)
    blocks = [float(stream.blocks) for stream in taken.streams]
    drawn = []
    for number, first in enumerate(taken.streams[0].queries):
        runs = [stream.queries[number].retrievals for stream in taken.streams]
        medians = [1e3 * statistics.median(one.seconds for one in run) for run in runs]
        drawn.append(Line(f"interval {first.interval_s:g} s", blocks, medians))
    paper = [1e3 * taken_s for taken_s in PAPER_RETRIEVAL_S.values()]
    x = [float(count) for count in PAPER_RETRIEVAL_S]
    drawn.append(Line(f"the paper, {PAPER_NODES} nodes", x, paper, dashed=True))
    return plots.lines(axes, drawn)


def _paper_retrieval(blocks: int) -> str:
    paper_s = PAPER_RETRIEVAL_S.get(blocks)
    return "not stated" if paper_s is None else quantity(paper_s, "s")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
