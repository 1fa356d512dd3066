"""What grows with the metadata graph and what must not: resident memory, the cost of a delta."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator

import numpy as np
import psutil

from benchmarks import weather
from benchmarks.figures import Figure, Goal, Peer, Spread
from benchmarks.measure import in_turn
from benchmarks.sizes import Bench
from galileo.cursor import Cursor
from galileo.graph.metadata_graph import MetadataGraph
from galileo.query import parse

LARGE = 10
"""How many times the paths of the other benchmarks the larger graph has."""
PATH_BYTES_MAX = 64.0
DELTA_MAX_S = 2e-3


def measure(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    most = LARGE * sizes.paths
    for paths in (sizes.paths_few, sizes.paths, most):
        yield delta(paths, bench)
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


def delta(paths: int, bench: Bench) -> Figure:
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
        raise AssertionError("a delta of the graph is not what was inserted last")
    (taken,) = in_turn(lambda: graph.scan(everything, after=after), runs=bench.sizes.runs)
    name = f"what is new since a sequence: {new:,} beside {paths:,} paths"
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
