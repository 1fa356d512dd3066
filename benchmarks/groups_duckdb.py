"""Groups by cell and time window, from the metadata graph and by DuckDB over the same columns.

Both run in this process, in memory, and return an Arrow table. DuckDB has two threads, the graph
uses one. Percentiles are compared by the processor time of both, which other work on the machine
disturbs least. Values are as they are drawn, without regard to place and time, so that nearly every
path has a block of its own.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import weather
from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.graph_duckdb import LARGE, PLAIN, THREADS, Layout, filled
from benchmarks.sizes import Bench, NotInstalled
from galileo.graph.group_merger import GroupMerger
from galileo.graph.group_values import EXACT_MAX
from galileo.graph.groups import Groups
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.grouping import Grouping
from galileo.query import parse

RATIO_MAX = 1.5
PERCENTILES_MAX = 1.2
YEAR = Layout("a year", weather.SCHEMA, hours=36)
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
    graph, peer = filled(YEAR, duckdb, paths=LARGE * sizes.paths, batch=batch)
    for precision in PRECISIONS:
        yield monthly(precision, graph, peer, runs=sizes.runs)
    peer.close()


def monthly(precision: int, graph: MetadataGraph, database: Any, *, runs: int) -> Figure:
    grouping = Grouping.of([f"cell:{precision}", "window:1mo"], {"temperature": ["mean", "p90"]})
    shift = 5 * (weather.SCHEMA.geohash_precision - precision)
    statement = (
        f"SELECT cell >> {shift} AS cell, date_trunc('month', bucket) AS time, "
        "sum(rows)::BIGINT AS observations, sum(rows * temperature) / sum(rows) AS mean, "
        "quantile_cont(temperature, 0.9) AS p90 FROM paths GROUP BY ALL"
    )
    found = groups(graph, "", grouping)
    expected = database.sql(f"{statement} ORDER BY ALL").to_arrow_table()
    check(found, expected, {"temperature_mean": "mean"})
    exact = np.array(found.column("observations")) <= EXACT_MAX  # A sketch has the others.
    mine, theirs = (
        np.array(table.column(name))[exact]
        for table, name in ((found, "temperature_p90"), (expected, "p90"))
    )
    if not np.allclose(mine, theirs, rtol=1e-12):
        raise AssertionError("the graph and DuckDB differ about percentiles")
    spread, peer = in_turn(
        lambda: groups(graph, "", grouping),
        lambda: database.sql(statement).to_arrow_table(),
        runs=runs,
        clock=time.process_time,
    )
    title = (
        f"mean and p90 by cells of {precision} characters and months, {found.num_rows:,} groups of "
        f"{graph.count():,} paths, processor time"
    )
    goals = (Goal("at most", PERCENTILES_MAX, of_peer=True),)
    return Figure(title, "s", spread, (Peer(f"DuckDB, {THREADS} threads", peer),), goals)


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
    expected = database.sql(f"{statement} ORDER BY ALL").to_arrow_table()
    check(found, expected, {"temperature_mean": "mean", "temperature_max": "most"})
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


def check(found: pa.Table, expected: pa.Table, names: Mapping[str, str]) -> None:
    """Both are in the order of cell and time, and have the same columns by other names."""
    counts = (table.column("observations").to_pylist() for table in (found, expected))
    same = [np.array_equal(*counts)]
    for mine, theirs in names.items():
        same.append(np.allclose(found.column(mine), expected.column(theirs), rtol=1e-12))
    if not all(same):
        raise AssertionError("the graph and DuckDB differ about groups")
