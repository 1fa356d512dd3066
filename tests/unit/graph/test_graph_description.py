"""Descriptions against a table of all paths that is looked through by pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from galileo.geo import geohash
from galileo.graph import description
from galileo.graph.description import VALUES_MAX, Descriptions
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros

SCHEMA = Schema(
    "air",
    [
        Feature("temperature", "K"),
        Feature("station", type="text"),
        Feature("count", type="int"),
        Feature("wet", type="bool"),
        Feature("note", type="text", indexed=False),
    ],
    geohash_precision=3,
    time_bucket="1h",
)
HOUR_US = 3_600_000_000


def paths(random: np.random.Generator, size: int) -> pd.DataFrame:
    missing = random.random((4, size)) < 0.2
    columns: dict[str, Any] = {
        "cell": geohash.encode(random.uniform(-80, 80, size), random.uniform(-170, 170, size), 3),
        "bucket": random.integers(-1000, 1000, size) * HOUR_US,
        "temperature": random.normal(280, 20, size),
        "station": random.choice(["a", "b", "c d", ""], size),
        "count": random.integers(-(2**40), 2**40, size),
        "wet": random.random(size) < 0.5,
    }
    frame = pd.DataFrame(columns).astype(object)
    for hidden, name in zip(missing, ("temperature", "station", "count", "wet"), strict=True):
        frame.loc[hidden, name] = None
    return frame.assign(row=np.arange(size), rows=random.integers(1, 9, size))


def batch_of(frame: pd.DataFrame) -> pa.RecordBatch:
    arrays = [
        times_from_micros(frame["bucket"].to_numpy(np.int64))
        if field.name == "bucket"
        else pa.array(frame[field.name].tolist(), field.type)
        for field in SCHEMA.path_schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.path_schema)


def check(graph: MetadataGraph, frame: pd.DataFrame, partitions: frozenset[int]) -> None:
    described = graph.describe(partitions)
    assert (described.paths, described.observations) == (len(frame), frame["rows"].sum())
    if frame.empty:
        assert described.extent is None
        return
    west, south, east, north = geohash.bounds(frame["cell"].to_numpy(np.uint64), 3)
    assert described.extent == description.Extent(
        south.min(),
        west.min(),
        north.max(),
        east.max(),
        frame["bucket"].min(),
        frame["bucket"].max() + HOUR_US,
    )
    for name in ("temperature", "count", "wet"):
        numbers = described.numbers[name]
        values = frame[name].astype(float).repeat(frame["rows"])
        assert numbers.missing == values.isna().sum()
        if values.notna().any():
            assert (numbers.minimum, numbers.maximum) == (values.min(), values.max())
            assert numbers.mean == pytest.approx(values.mean(), rel=1e-9, abs=1e-3)
    expected = frame["station"].repeat(frame["rows"])
    assert described.texts["station"].nulls == expected.isna().sum()
    assert described.texts["station"].counts == expected.dropna().value_counts().to_dict()


@pytest.mark.parametrize("seed", range(6))
def test_describe_random_history_equals_pandas(seed: int) -> None:
    random = np.random.default_rng(seed)
    graph = MetadataGraph(SCHEMA, memtable_paths_max=40, block_paths=16)
    parts: list[pd.DataFrame] = []
    dropped = dict.fromkeys(range(3), 0)
    for step in range(30):
        partition, sequence = int(random.integers(3)), step + 1
        frame = paths(random, int(random.integers(1, 30)))
        graph.insert(batch_of(frame), partition=partition, sequence=sequence)
        parts.append(frame.assign(partition=partition, sequence=sequence))
        if random.random() < 0.2:
            dropped[partition] = max(dropped[partition], int(random.integers(1, sequence + 1)))
            graph.drop_before(partition, dropped[partition])
        if random.random() < 0.2:
            graph.maintain()
        if step % 3:
            continue
        wanted = frozenset(random.choice(3, int(random.integers(1, 4)), replace=False).tolist())
        whole = pd.concat(parts)
        lives = whole["sequence"] >= whole["partition"].map(dropped)
        check(graph, whole[lives & whole["partition"].isin(wanted)], wanted)


def test_describe_empty_graph_equals_pandas() -> None:
    check(MetadataGraph(SCHEMA), paths(np.random.default_rng(0), 0), frozenset([0]))


def test_describe_sealed_run_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    real = Descriptions._of

    def counted(self: Descriptions, paths: Any) -> Any:
        looked.append(len(paths))
        return real(self, paths)

    monkeypatch.setattr(Descriptions, "_of", counted)
    random = np.random.default_rng(1)
    graph = MetadataGraph(SCHEMA, memtable_paths_max=50)
    for sequence in (1, 2):
        graph.insert(batch_of(paths(random, 60)), partition=0, sequence=sequence)
    graph.insert(batch_of(paths(random, 10)), partition=0, sequence=3)
    assert graph.describe(frozenset([0])).paths == 130
    assert sum(looked) == 130
    looked.clear()
    assert graph.describe(frozenset([0])).paths == 130
    assert looked == [10]


def test_describe_many_texts_has_no_counts() -> None:
    graph = MetadataGraph(SCHEMA)
    frame = paths(np.random.default_rng(2), VALUES_MAX + 100)
    frame["station"] = [None if n < 50 else f"s{n}" for n in range(len(frame))]
    graph.insert(batch_of(frame), partition=0, sequence=1)
    described = graph.describe(frozenset([0])).texts["station"]
    assert (described.has_more, described.counts) == (True, {})
    assert described.nulls == frame["rows"][frame["station"].isna()].sum()
