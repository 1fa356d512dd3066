"""How fast the metadata graph answers, against plain NumPy over the same columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import weather
from benchmarks.figures import Figure, Peer
from benchmarks.graph_insert import concatenated, insert
from benchmarks.measure import in_turn
from benchmarks.sizes import Bench
from galileo.cursor import Cursor
from galileo.geo import geohash
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.times import micros
from galileo.query import parse

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


def measure(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    batches = weather.path_batches(sizes.paths, size=sizes.paths_per_batch, seed=1)
    graph, columns = insert(batches, merged=True), concatenated(batches)
    columns["bucket"] = columns["bucket"].astype("datetime64[us]").astype(np.int64)
    bench.say(f"a graph of {graph.count():,} paths in {graph.runs} sealed runs")
    for question in QUESTIONS:
        yield asked(question, graph, columns, runs=sizes.runs)
    yield parsed(runs=sizes.runs)
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
    name = f"what is new since a sequence: {sizes.paths_new:,} beside {paths:,} paths"
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
