"""How fast the metadata graph takes paths and answers, its memory, and what grows with it."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa

from benchmarks import weather
from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn
from benchmarks.sizes import Bench
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.geo import geohash
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.times import micros
from galileo.query import parse

PATHS_PER_S = 1e6


def measure_inserts(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    batches = weather.path_batches(sizes.paths, size=sizes.paths_per_batch, seed=1)
    alone, merging, floor = in_turn(
        lambda: insert(batches, merged=False),
        lambda: insert(batches, merged=True),
        lambda: concatenated(batches),
        runs=sizes.runs,
    )
    peer = Peer("NumPy concatenation of the columns", floor.per_second(sizes.paths))
    what = f"of {sizes.paths:,} paths in commits of {sizes.paths_per_batch:,}"
    yield Figure(f"insert {what}", "paths/s", alone.per_second(sizes.paths), (peer,))
    yield Figure(
        f"insert {what}, runs merged after each, as a node does",
        "paths/s",
        merging.per_second(sizes.paths),
        (peer,),
        (Goal("at least", PATHS_PER_S),),
    )
    yield memory(insert(batches, merged=True), batches)


def insert(batches: Sequence[pa.RecordBatch], *, merged: bool) -> MetadataGraph:
    """A new graph of these commits."""
    graph = MetadataGraph(weather.SCHEMA)
    for number, batch in enumerate(batches):
        graph.insert(batch, **weather.place(number))
        if merged:
            graph.maintain()
    return graph


def concatenated(batches: Sequence[pa.RecordBatch]) -> dict[str, Any]:
    """The same columns as plain arrays, one each."""
    return {
        name: np.concatenate([batch.column(name).to_numpy() for batch in batches])
        for name in batches[0].schema.names
    }


def memory(graph: MetadataGraph, batches: Sequence[pa.RecordBatch]) -> Figure:
    paths = graph.count()
    plain = sum(array.nbytes for array in concatenated(batches).values())
    return Figure(
        f"memory of the graph of {paths:,} paths",
        "B/path",
        Spread.of([graph.memory_bytes() / paths]),
        (Peer("the columns alone", Spread.of([plain / paths])),),
    )


CELL = "9xp5"
DAY = ("2014-03-05", "2014-03-06")
RUN_S = 0.02
MASK, GATHERED = "NumPy mask", "mask and rows gathered"

Columns = dict[str, Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Question:
    """A query, and the same as a mask over plain columns."""

    name: str
    text: str
    mask: Callable[[Columns], Mask]


QUESTIONS = (
    Question(
        "selective",
        "humidity >= 90 AND temperature > 305 AND wind < 2",
        lambda c: (c["humidity"] >= 90) & (c["temperature"] > 305) & (c["wind"] < 2),
    ),
    Question("wide", "wind > 15", lambda c: c["wind"] > 15),
    Question(
        "medium",
        "humidity >= 80 AND temperature > 295",
        lambda c: (c["humidity"] >= 80) & (c["temperature"] > 295),
    ),
    Question("broad", "temperature > 270", lambda c: c["temperature"] > 270),
    Question(
        "one cell, one day",
        f"geohash LIKE '{CELL}%' AND datetime >= DATE('{DAY[0]}') AND datetime < DATE('{DAY[1]}')",
        lambda c: _in_cell(c) & _in_day(c),
    ),
)


def measure_queries(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    batches = weather.path_batches(sizes.paths, size=sizes.paths_per_batch, seed=1)
    graph, columns = insert(batches, merged=True), concatenated(batches)
    columns["bucket"] = columns["bucket"].astype("datetime64[us]").astype(np.int64)
    bench.say(f"a graph of {graph.count():,} paths in {graph.runs} sealed runs")
    for question in QUESTIONS:
        yield asked(question, graph, columns, runs=sizes.runs)
    yield parsed(runs=sizes.runs)
    yield first_commits(bench, graph, commits=len(batches))
    for paths in (sizes.paths_few, sizes.paths):
        yield delta(bench, paths)


def asked(question: Question, graph: MetadataGraph, columns: Columns, *, runs: int) -> Figure:
    query = parse(question.text, weather.SCHEMA)
    found = graph.scan(query).num_rows
    wanted = int(question.mask(columns).sum())
    if found != wanted:
        raise AssertionError(f"expected {wanted} paths of {question.text!r}, the graph has {found}")
    scan, mask, gathered = in_turn(
        lambda: graph.scan(query),
        lambda: np.flatnonzero(question.mask(columns)),
        lambda: _gather(columns, np.flatnonzero(question.mask(columns))),
        runs=runs,
        run_s=RUN_S,
    )
    name = f"{question.name}: {found:,} of {graph.count():,} paths, `{question.text}`"
    return Figure(name, "s", scan, (Peer(MASK, mask), Peer(GATHERED, gathered)))


def parsed(*, runs: int) -> Figure:
    """What a query costs before the first path is looked at."""
    (taken,) = in_turn(lambda: parse(QUESTIONS[0].text, weather.SCHEMA), runs=runs, run_s=RUN_S)
    return Figure("reading the selective query's text", "s", taken)


def first_commits(bench: Bench, graph: MetadataGraph, *, commits: int) -> Figure:
    """What a fetch with an old token costs the graph, against the labels of the whole range."""
    last = [weather.place(number) for number in range(commits)]
    until = Cursor({one["partition"]: one["sequence"] for one in last})
    everything, labels_max = parse("", weather.SCHEMA), FIRST_COMMITS * bench.sizes.paths_per_batch

    def first() -> list[pa.RecordBatch | None]:
        bounds = {"labels_max": labels_max, "piece_labels_max": labels_max}
        return list(graph.scan_first(everything, after=EMPTY_CURSOR, until=until, **bounds))

    found = sum(piece.num_rows for piece in first() if piece is not None)
    if found != labels_max:
        raise AssertionError(f"expected the first {labels_max} labels, the graph has {found}")
    taken, whole = in_turn(
        first, lambda: graph.scan(everything, until=until), runs=bench.sizes.runs, run_s=RUN_S
    )
    name = f"the first {labels_max:,} labels of {graph.count():,}, whole commits"
    return Figure(name, "s", taken, (Peer("all of them", whole),))


def delta(bench: Bench, paths: int) -> Figure:
    """What is new since a sequence, over graphs of different sizes."""
    sizes = bench.sizes
    batches = weather.path_batches(paths, size=sizes.paths_per_batch, seed=2)
    graph = insert(batches, merged=True)
    last = [weather.place(number) for number in range(len(batches))]
    after = Cursor({one["partition"]: one["sequence"] for one in last})
    generator = np.random.default_rng(3)
    news = weather.path_batch(sizes.paths_new, generator, hours=(weather.HOURS - 1, 1))
    graph.insert(news, partition=0, sequence=after[0] + 1)
    everything = parse("", weather.SCHEMA)
    counts = [batch.num_rows for batch in batches] + [sizes.paths_new]
    partitions = np.repeat([*(one["partition"] for one in last), 0], counts).astype(np.int32)
    sequences = np.repeat([*(one["sequence"] for one in last), after[0] + 1], counts)
    if graph.scan(everything, after=after).num_rows != sizes.paths_new:
        raise AssertionError("a delta of the graph is not what was inserted last")
    scan, mask = in_turn(
        lambda: graph.scan(everything, after=after),
        lambda: np.flatnonzero(after.past(partitions, sequences)),
        runs=sizes.runs,
        run_s=RUN_S,
    )
    name = f"what is new since a sequence: {sizes.paths_new:,} next to {paths:,} paths"
    return Figure(name, "s", scan, (Peer(f"{MASK} over the sequences", mask),))


def _gather(columns: Columns, rows: npt.NDArray[np.intp]) -> list[Any]:
    return [column[rows] for column in columns.values()]


def _in_cell(columns: Columns) -> Mask:
    low, high = geohash.prefix_range(CELL, weather.SCHEMA.geohash_precision)
    mask: Mask = (columns["cell"] >= low) & (columns["cell"] < high)
    return mask


def _in_day(columns: Columns) -> Mask:
    mask: Mask = (columns["bucket"] >= micros(DAY[0])) & (columns["bucket"] < micros(DAY[1]))
    return mask


FIRST_COMMITS = 5
LARGE = 10
"""How many times the paths of the other benchmarks the larger graph has."""
PATH_BYTES_MAX = 64.0
DELTA_MAX_S = 2e-3


def measure_growth(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    most = LARGE * sizes.paths
    for paths in (sizes.paths_few, sizes.paths, most):
        yield merged_delta(paths, bench)
    yield summary(bench)
    bench.say(f"filling a graph of {most:,} paths in a process of its own")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        resident, counted = pool.apply(resident_bytes, (most, sizes.paths_per_batch))
    yield Figure(
        f"resident memory of a graph of {most:,} paths, merged after each commit",
        "B/path",
        Spread.of([resident / most]),
        (Peer("what the graph says of itself", Spread.of([counted / most])),),
        (Goal("at most", PATH_BYTES_MAX),),
    )


def grown(paths: int, *, batch: int) -> MetadataGraph:
    """A graph into which commits came one by one, each thrown away afterwards."""
    graph, generator = MetadataGraph(weather.SCHEMA), np.random.default_rng(1)
    count = paths // batch
    stretch = weather.HOURS / count
    for number in range(count):
        hours = (number * stretch, stretch)
        graph.insert(weather.path_batch(batch, generator, hours=hours), **weather.place(number))
        graph.maintain()
    return graph


def resident_bytes(paths: int, batch: int) -> tuple[int, int]:
    """What a process grows by with a graph, and what the graph counts."""
    process, everything = psutil.Process(), parse("", weather.SCHEMA)
    grown(batch, batch=batch).scan(everything)
    gc.collect()
    before = process.memory_info().rss
    graph = grown(paths, batch=batch)
    gc.collect()
    return process.memory_info().rss - before, graph.memory_bytes()


def merged_delta(paths: int, bench: Bench) -> Figure:
    """The labels of the newest commit."""
    new, batch = bench.sizes.paths_new, bench.sizes.paths_per_batch
    graph, generator = grown(paths, batch=batch), np.random.default_rng(2)
    commits = paths // batch
    last = {p: len(range(p, commits, weather.PARTITIONS)) for p in range(weather.PARTITIONS)}
    after, everything = Cursor(last), parse("", weather.SCHEMA)
    news = weather.path_batch(new, generator, hours=(weather.HOURS - 1, 1))
    graph.insert(news, partition=0, sequence=last[0] + 1)
    graph.maintain()
    if graph.scan(everything, after=after).num_rows != new:
        raise AssertionError("a merged_delta of the graph is not what was inserted last")
    (taken,) = in_turn(lambda: graph.scan(everything, after=after), runs=bench.sizes.runs)
    name = f"what is new since a sequence: {new:,} next to {paths:,} paths"
    return Figure(name, "s", taken, goals=(Goal("at most", DELTA_MAX_S),))


def summary(bench: Bench) -> Figure:
    """Statistics and a histogram of one feature, against a scan of the same paths."""
    paths = bench.sizes.paths
    graph = grown(paths, batch=bench.sizes.paths_per_batch)
    query = parse("humidity >= 70 AND temperature > 300", weather.SCHEMA)
    edges = np.linspace(270, 350, 41).tolist()
    taken, scan = in_turn(
        lambda: graph.summarise(query, "temperature", bins=edges),
        lambda: graph.scan(query),
        runs=bench.sizes.runs,
    )
    name = f"summary of temperature in 40 bins, {paths:,} paths, query M"
    return Figure(name, "s", taken, (Peer("the scan alone", scan),))
