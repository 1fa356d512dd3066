"""A small world of paths with every feature type, and a dumb store to compare the graph with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.geo import geohash
from galileo.graph.columns import columns_from_batch
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros, times_from_micros
from galileo.query.query import Query

START_US = micros("2012-02-27T00:00:00Z")
STATIONS = np.array(["alpha", "beta", "bravo", "", "ä/ö"], dtype=object)
PREFIXES = ("9xj5", "9xj6", "9xjq", "9wz0", "9x00", "djf3", "u4pr")
QUERIES = (
    "temperature > 290",
    "NOT (temperature > 290)",
    "temperature IS NULL",
    "temperature IS NOT NULL AND humidity IS NULL",
    "temperature BETWEEN 285 AND 291 OR humidity < 3",
    "gusts = 3",
    "gusts > 1 AND gusts <= 4",
    "gusts IN (1, 5) OR gusts IS NULL",
    "station = 'alpha'",
    "station LIKE 'b%'",
    "station IS NULL",
    "NOT (station = 'alpha' OR raining = true)",
    "raining = true",
    "raining IS NULL AND temperature < 288",
    "geohash LIKE '9x%'",
    "geohash LIKE '9xj%' AND temperature >= 287",
    "geohash LIKE 'd%' OR gusts = 2",
    "T_AFTER(datetime, TIMESTAMP('2012-02-28T12:00:00Z'))",
    "T_BEFORE(datetime, TIMESTAMP('2012-02-28T06:00:00Z')) AND humidity > 5",
    "S_INTERSECTS(geometry, BBOX(-107, 38, -104, 41))",
    "S_INTERSECTS(geometry, POLYGON((-110 36, -100 36, -100 42, -110 36))) AND temperature > 286",
)


@dataclass(frozen=True)
class World:
    """Random batches of paths of one schema."""

    schema: Schema

    def batch(self, seed: int, size: int, *, hours: int = 72) -> pa.RecordBatch:
        rng = np.random.default_rng(seed)
        cells = geohash.from_text(list(PREFIXES))[rng.integers(0, len(PREFIXES), size)]
        hour = rng.integers(0, hours, size)
        columns = [pa.array(cells), times_from_micros(START_US + hour * self.schema.time_bucket_us)]
        columns += [self._feature(rng, feature, size) for feature in self.schema.indexed]
        rows = rng.integers(1, 4, size).astype(np.int32)
        first = (np.cumsum(rows) - rows).astype(np.int32)
        columns += [pa.array(first), pa.array(rows)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.path_schema)

    def _feature(self, rng: np.random.Generator, feature: Feature, size: int) -> pa.Array:
        share = rng.choice([0.0, 0.2, 1.0], p=[0.3, 0.6, 0.1])
        null = rng.random(size) < share
        values: dict[str, Callable[[], Any]] = {
            "float": lambda: np.round(rng.uniform(283, 294, size)) - 283 * (feature.unit == "%"),
            "int": lambda: rng.integers(0, 6, size),
            "bool": lambda: rng.random(size) < 0.5,
            "text": lambda: STATIONS[rng.integers(0, len(STATIONS), size)],
        }
        return pa.array(values[feature.type](), mask=null, type=feature.arrow_type)


@dataclass
class DumbStore:
    """Commits in a list; a scan looks at every path of every commit."""

    schema: Schema
    commits: list[tuple[int, int, pa.RecordBatch]] = field(default_factory=list)

    def insert(self, batch: pa.RecordBatch, *, partition: int, sequence: int) -> None:
        self.commits.append((partition, sequence, batch))

    def rows(self) -> list[dict[str, Any]]:
        return [
            row | {"partition": partition, "sequence": sequence}
            for partition, sequence, batch in self.commits
            for row in batch.to_pylist()
        ]

    def scan(
        self,
        query: Query,
        *,
        after: Cursor = EMPTY_CURSOR,
        until: Cursor | None = None,
        partitions: Iterable[int] | None = None,
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for partition, sequence, batch in self.commits:
            wanted = partitions is None or partition in partitions
            ended = until is not None and sequence > until[partition]
            if not wanted or ended or sequence <= after[partition] or batch.num_rows == 0:
                continue
            mask = query.match_paths(columns_from_batch(self.schema, batch))
            place = {"partition": partition, "sequence": sequence}
            found += [row | place for row in batch.filter(pa.array(mask)).to_pylist()]
        return in_order(found)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["partition"], row["sequence"], row["row"]))


@pytest.fixture(scope="session")
def world() -> World:
    features = [
        Feature("temperature", "K"),
        Feature("humidity", "%"),
        Feature("gusts", type="int"),
        Feature("note", type="text", indexed=False),
        Feature("station", type="text"),
        Feature("raining", type="bool"),
    ]
    return World(Schema("obs", features, geohash_precision=4, time_bucket="1h"))


@pytest.fixture(scope="session")
def query_texts() -> tuple[str, ...]:
    return QUERIES


@pytest.fixture(scope="session")
def dumb_store() -> type[DumbStore]:
    return DumbStore


@pytest.fixture(scope="session")
def rows_of() -> Callable[[pa.Table], list[dict[str, Any]]]:
    """A label table as dicts in commit order."""
    return lambda table: in_order(table.to_pylist())
