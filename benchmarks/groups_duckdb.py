"""Groups by cell and time window, from the metadata graph and by DuckDB over the same columns.

Both run in this process, in memory, and return an Arrow table. DuckDB has two threads, the graph
uses one. Values are as they are drawn, without regard to place and time, so that nearly every path
has a block of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import weather
from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.graph_duckdb import LARGE, PLAIN, THREADS, filled
from benchmarks.sizes import Bench, NotInstalled
from galileo.graph.group_merger import GroupMerger
from galileo.graph.groups import Groups
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.grouping import Grouping
from galileo.query import parse

RATIO_MAX = 1.5
PRECISIONS = (3, 4)
"""Characters of the cells."""
CONDITIONS = (("", "TRUE"), ("humidity >= 50",) * 2)
"""In CQL2 and in SQL."""
STATISTICS = {"temperature": ["mean", "max"]}


def measure(bench: Bench) -> Iterator[Figure]:
    try:
        duckdb = importlib.import_module("duckdb")
    except ImportError:
        raise NotInstalled("DuckDB is not installed: pip install duckdb") from None
    sizes = bench.sizes
    batch = LARGE * sizes.paths_per_batch
    graph, peer = filled(PLAIN, duckdb, paths=LARGE * sizes.paths, batch=batch)
    bench.say(f"{graph.count():,} paths in {graph.runs} sealed runs")
    for precision in PRECISIONS:
        for condition in CONDITIONS:
            yield grouped(precision, condition, graph, peer, runs=sizes.runs)
    peer.close()


def grouped(
    precision: int, condition: tuple[str, str], graph: MetadataGraph, database: Any, *, runs: int
) -> Figure:
    text, sql = condition
    grouping = Grouping.of([f"cell:{precision}", "window:1h"], STATISTICS)
    shift = 5 * (weather.SCHEMA.geohash_precision - precision)
    statement = (
        f"SELECT cell >> {shift} AS cell, time_bucket(INTERVAL 1 HOUR, bucket) AS time, "
        "sum(rows)::BIGINT AS observations, sum(rows * temperature) / sum(rows) AS mean, "
        f"max(temperature) AS most FROM paths WHERE {sql} GROUP BY ALL"
    )
    found = groups(graph, text, grouping)
    check(found, database.sql(f"{statement} ORDER BY ALL").to_arrow_table())
    mine, theirs = in_turn(
        lambda: groups(graph, text, grouping),
        lambda: database.sql(statement).to_arrow_table(),
        runs=runs,
    )
    title = (
        f"cells of {precision} characters and hours, {found.num_rows:,} groups of "
        f"{graph.count():,} paths{f', `{text}`' if text else ''}"
    )
    goals = (Goal("at most", RATIO_MAX, of_peer=True),)
    return Figure(title, "s", mine, (Peer(f"DuckDB, {THREADS} threads", theirs),), goals)


def groups(graph: MetadataGraph, text: str, grouping: Grouping) -> pa.Table:
    """The answer of one node, as `LocalAnalytics` makes it."""
    merger = GroupMerger(grouping, graph.schema)
    for piece in graph.group_pieces(parse(text, graph.schema), grouping):
        if isinstance(piece, Groups):
            merger.add_paths(piece, graph.texts)
    return merger.answer()


def check(found: pa.Table, expected: pa.Table) -> None:
    """Both are in the order of cell and time."""
    counts = (table.column("observations").to_pylist() for table in (found, expected))
    same = [np.array_equal(*counts)]
    for mine, theirs in (("temperature_mean", "mean"), ("temperature_max", "most")):
        same.append(np.allclose(found.column(mine), expected.column(theirs), rtol=1e-12))
    if not all(same):
        raise AssertionError("the graph and DuckDB differ about groups")
