"""How fast the metadata graph answers, against DuckDB over the same columns in memory.

Both run in this process and return an Arrow table with all columns of a label table: cell,
bucket, the features, row, rows, partition and sequence. DuckDB has two threads, the graph uses
one. DuckDB's table stands in the order in which commits arrived: that of time or, in some layouts,
sorted as a whole, from which the bounds of its row groups profit.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import weather
from benchmarks.figures import Figure, Goal, Peer, in_turn
from benchmarks.sizes import FULL, Bench, NotInstalled
from galileo.geo import geohash
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.schema import Feature, FeatureType, Schema
from galileo.model.times import column_micros, times_from_micros
from galileo.query import parse

THREADS = 2
RATIO_MAX = 1.3
WIDE_MAX_S = 0.003
"""Of question U with a million paths."""
LARGE = 10
"""How many times the paths of the other benchmarks the larger graph has."""
CELL = "9xp5"
DAY = ("2014-03-05T00:00:00Z", "2014-03-06T00:00:00Z")


@dataclass(frozen=True, slots=True)
class Layout:
    """The same weather with other levels.

    Attributes:
        name: for people.
        schema: its features in the order of levels.
        step: what the values are rounded to multiples of; None: they are as drawn.
        order: columns by which everything is sorted before it is committed; none: by time.
        hours: how many an hour becomes, so that the ten days are as many times as long.
    """

    name: str
    schema: Schema
    step: float | None = None
    order: tuple[str, ...] = ()
    hours: int = 1


def _schema(names: Sequence[str], *, kind: FeatureType) -> Schema:
    features = [Feature(name, type=kind) for name in names]
    return Schema("weather", features, geohash_precision=5, time_bucket="1h")


NAMES = tuple(feature.name for feature in weather.SCHEMA.indexed)
PLAIN = Layout("raw values", weather.SCHEMA)
WHOLE = Layout("integers", _schema(NAMES, kind="int"), step=1.0)
COARSE = Layout("values in steps of 0.5", weather.SCHEMA, step=0.5)
TURNED = Layout("levels in reverse order", _schema(NAMES[::-1], kind="float"))
BY_PLACE = Layout("sorted by space and time", weather.SCHEMA, order=("cell", "bucket"))
BY_FEATURE = Layout("sorted by features", weather.SCHEMA, order=NAMES)
BY_COARSE = Layout("steps of 0.5, sorted by features", weather.SCHEMA, step=0.5, order=NAMES)
LAYOUTS = (PLAIN, WHOLE, COARSE, TURNED, BY_PLACE, BY_FEATURE, BY_COARSE)
LARGE_LAYOUTS = (PLAIN, COARSE, BY_PLACE)

PLACE = geohash.prefix_range(CELL, weather.SCHEMA.geohash_precision)
QUESTIONS = {
    "S": ("humidity >= 90 AND temperature > 305 AND wind < 2",) * 2,
    "M": ("humidity >= 70 AND temperature > 300",) * 2,
    "U": ("wind > 15",) * 2,
    "B": ("humidity >= 50",) * 2,
    "X": (
        f"geohash LIKE '{CELL}%' AND datetime >= TIMESTAMP('{DAY[0]}') "
        f"AND datetime < TIMESTAMP('{DAY[1]}')",
        f"cell >= {PLACE[0]} AND cell < {PLACE[1]} AND bucket >= TIMESTAMPTZ '{DAY[0]}' "
        f"AND bucket < TIMESTAMPTZ '{DAY[1]}'",
    ),
}
"""In CQL2 and in SQL."""


def measure(bench: Bench) -> Iterator[Figure]:
    try:
        duckdb = importlib.import_module("duckdb")
    except ImportError:
        raise NotInstalled("DuckDB is not installed: pip install duckdb") from None
    sizes = bench.sizes
    for paths, layouts in ((sizes.paths, LAYOUTS), (LARGE * sizes.paths, LARGE_LAYOUTS)):
        for layout in layouts:
            graph, peer = filled(layout, duckdb, paths=paths, batch=sizes.paths_per_batch)
            bench.say(f"{layout.name}: {graph.count():,} paths in {graph.runs} sealed runs")
            for name in QUESTIONS:
                yield asked(name, layout, graph, peer, runs=sizes.runs)
            peer.close()


def filled(layout: Layout, duckdb: Any, *, paths: int, batch: int) -> tuple[MetadataGraph, Any]:
    """A graph and a database of the same paths."""
    graph, stored = MetadataGraph(layout.schema), []
    for number, commit in enumerate(commits(layout, paths=paths, batch=batch)):
        place = weather.place(number)
        graph.insert(commit, **place)
        graph.maintain()
        stored.append(_placed(commit, place))
    peer = duckdb.connect(":memory:", config={"threads": THREADS})
    peer.execute("SET TimeZone = 'UTC'")
    peer.register("stored", pa.Table.from_batches(stored))
    peer.execute("CREATE TABLE paths AS SELECT * FROM stored")
    peer.unregister("stored")
    return graph, peer


def commits(layout: Layout, *, paths: int, batch: int) -> Iterator[pa.RecordBatch]:
    """The paths of `weather` in a layout, in commits of `batch`, each sorted as commits are."""
    drawn = (arranged(one, layout) for one in weather.path_batches(paths, size=batch, seed=1))
    if not layout.order:
        yield from drawn
        return
    whole = pa.Table.from_batches(drawn)
    whole = whole.sort_by([(name, "ascending") for name in layout.order]).combine_chunks()
    for start in range(0, whole.num_rows, batch):
        part = whole.slice(start, batch).sort_by([("cell", "ascending"), ("bucket", "ascending")])
        rows = pa.array(np.arange(part.num_rows, dtype=np.int32))
        at = part.schema.get_field_index("row")
        [commit] = part.set_column(at, part.field("row"), rows).combine_chunks().to_batches()
        yield commit


def arranged(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """Some paths of `weather` in another layout."""

    def column(field: pa.Field) -> pa.Array:
        values = batch.column(field.name)
        if field.name == "bucket":
            since = column_micros(values) - weather.START_US
            return times_from_micros(weather.START_US + layout.hours * since)
        if layout.step is None or field.name not in NAMES:
            return values
        return pc.multiply(pc.round(pc.divide(values, layout.step)), layout.step).cast(field.type)

    schema = layout.schema.path_schema
    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def asked(name: str, layout: Layout, graph: MetadataGraph, database: Any, *, runs: int) -> Figure:
    text, sql = QUESTIONS[name]
    query = parse(text, layout.schema)
    statement = f"SELECT * FROM paths WHERE {sql}"
    found = graph.scan(query)
    if not np.array_equal(
        _identities(found), _identities(database.sql(statement).to_arrow_table())
    ):
        raise AssertionError(f"the graph and DuckDB differ about {text!r}")
    count = found.num_rows
    del found
    scan, select = in_turn(
        lambda: graph.scan(query), lambda: database.sql(statement).to_arrow_table(), runs=runs
    )
    title = f"{name}, {layout.name}: {count:,} of {graph.count():,} paths, `{text}`"
    goals = [Goal("at most", RATIO_MAX, of_peer=True)]
    if name == "U" and graph.count() == FULL.paths:
        goals.append(Goal("at most", WIDE_MAX_S))
    peer = Peer(f"DuckDB, {THREADS} threads", select)
    return Figure(title, "s", scan, (peer,), tuple(goals))


def _placed(batch: pa.RecordBatch, place: dict[str, int]) -> pa.RecordBatch:
    count = batch.num_rows
    partition = pa.array(np.full(count, place["partition"], dtype=np.int32))
    sequence = pa.array(np.full(count, place["sequence"], dtype=np.int64))
    return batch.append_column("partition", partition).append_column("sequence", sequence)


def _identities(table: pa.Table) -> npt.NDArray[np.int64]:
    """Partition, sequence and row of each label in one number, ascending."""
    columns = (
        np.asarray(table.column(n), dtype=np.int64) for n in ("partition", "sequence", "row")
    )
    partition, sequence, row = columns
    return np.sort((partition << 56) | (sequence << 32) | row)
