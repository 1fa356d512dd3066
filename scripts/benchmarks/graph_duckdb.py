"""How fast the metadata graph answers, against DuckDB over the same columns in memory.

Both run in this process and return an Arrow table with all columns of a label table: cell,
bucket, the features, row, rows, partition and sequence. DuckDB has two threads, the graph uses
one. It is asked of its table in the order in which commits arrived.
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
from benchmarks.figures import Figure, Peer
from benchmarks.measure import in_turn
from benchmarks.sizes import Bench, NotInstalled
from galileo.geo import geohash
from galileo.graph.metadata import MetadataGraph
from galileo.model.schema import Feature, FeatureType, Schema
from galileo.query import parse

THREADS = 2
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
        whole: whether the values are rounded to integers.
    """

    name: str
    schema: Schema
    whole: bool = False


def _schema(names: Sequence[str], *, kind: FeatureType) -> Schema:
    features = [Feature(name, type=kind) for name in names]
    return Schema("weather", features, geohash_precision=5, time_bucket="1h")


NAMES = tuple(feature.name for feature in weather.SCHEMA.indexed)
PLAIN = Layout("four floats", weather.SCHEMA)
WHOLE = Layout("four integers", _schema(NAMES, kind="int"), whole=True)
TURNED = Layout("levels in reverse order", _schema(NAMES[::-1], kind="float"))

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
    for paths, layouts in ((sizes.paths, (PLAIN, WHOLE, TURNED)), (LARGE * sizes.paths, (PLAIN,))):
        for layout in layouts:
            graph, peer = filled(layout, duckdb, paths=paths, batch=sizes.paths_per_batch)
            bench.say(f"{layout.name}: {graph.count():,} paths in {graph.runs} sealed runs")
            for name in QUESTIONS:
                yield asked(name, layout, graph, peer, runs=sizes.runs)
            peer.close()


def filled(layout: Layout, duckdb: Any, *, paths: int, batch: int) -> tuple[MetadataGraph, Any]:
    """A graph and a database of the same paths."""
    graph, stored = MetadataGraph(layout.schema), []
    for number, plain in enumerate(weather.path_batches(paths, size=batch, seed=1)):
        place, commit = weather.place(number), arranged(plain, layout)
        graph.insert(commit, **place)
        graph.maintain()
        stored.append(_placed(commit, place))
    peer = duckdb.connect(":memory:", config={"threads": THREADS})
    peer.execute("SET TimeZone = 'UTC'")
    peer.register("stored", pa.Table.from_batches(stored))
    peer.execute("CREATE TABLE paths AS SELECT * FROM stored")
    peer.unregister("stored")
    return graph, peer


def arranged(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """The paths of `weather` in another layout."""

    def column(field: pa.Field) -> pa.Array:
        values = batch.column(field.name)
        return pc.round(values).cast(pa.int64()) if field.type != values.type else values

    schema = layout.schema.path_schema
    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def asked(name: str, layout: Layout, graph: MetadataGraph, peer: Any, *, runs: int) -> Figure:
    text, sql = QUESTIONS[name]
    query = parse(text, layout.schema)
    statement = f"SELECT * FROM paths WHERE {sql}"
    found = graph.scan(query)
    if not np.array_equal(_identities(found), _identities(peer.sql(statement).to_arrow_table())):
        raise AssertionError(f"the graph and DuckDB differ about {text!r}")
    count = found.num_rows
    del found
    scan, select = in_turn(
        lambda: graph.scan(query), lambda: peer.sql(statement).to_arrow_table(), runs=runs
    )
    title = f"{name}, {layout.name}: {count:,} of {graph.count():,} paths, `{text}`"
    return Figure(title, "s", scan, (Peer(f"DuckDB, {THREADS} threads", select),))


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
