"""Percentiles of groups against NumPy and DuckDB, and sketches within the bound on their error."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.graph import group_merger, group_values
from galileo.graph.group_merger import GroupMerger
from galileo.graph.group_values import EXACT_MAX, GroupValues
from galileo.model.grouping import Grouping
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros

SCHEMA = Schema(
    "air", [Feature("t"), Feature("station", type="int")], geohash_precision=2, time_bucket="1h"
)
SHARES = [0.0, 0.025, 0.5, 0.9, 0.999, 1.0]


def observations(values: np.ndarray, stations: np.ndarray) -> pa.Table:
    count = len(values)
    columns = {
        "latitude": np.zeros(count),
        "longitude": np.zeros(count),
        "time": times_from_micros(np.arange(count, dtype=np.int64)),
        "t": pa.array(values, from_pandas=True),
        "station": stations,
    }
    return pa.table(columns, schema=SCHEMA.observation_schema)


def grouping() -> Grouping:
    return Grouping.of("station", {"t": ["count", *(f"p{100 * s:g}" for s in SHARES)]})


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    has_weights=st.booleans(),
    cuts=st.integers(1, 4),
)
def test_percentiles_equal_those_of_numpy(
    seed: int, sizes: list[int], has_weights: bool, cuts: int
) -> None:
    random = np.random.default_rng(seed)
    numbers = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    values = random.choice([-np.inf, -1.5, 0.1, 0.3, 2e300, 7.0], len(numbers))
    values = np.where(random.random(len(numbers)) < 0.5, random.normal(size=len(numbers)), values)
    weights = random.integers(1, 9, len(numbers)) if has_weights else np.ones_like(numbers)
    valid = random.random(len(numbers)) < 0.9
    parts = []
    for at in np.array_split(np.arange(len(numbers)), cuts):
        part = GroupValues.of(values[at], valid[at], weights[at]).renumbered(numbers[at])
        again = GroupValues.from_arrow(*part.to_arrow(len(sizes)).values())
        parts.append(again.reduced(len(sizes)))
    whole = GroupValues.concat(parts, [len(sizes)] * cuts)
    whole = whole.renumbered(np.tile(np.arange(len(sizes)), cuts)).reduced(len(sizes))
    found = whole.percentiles(SHARES, len(sizes))
    assert whole.rank_error == 0.0
    for group in range(len(sizes)):
        mine = (numbers == group) & valid
        each = np.repeat(values[mine], weights[mine])
        if len(each):
            with np.errstate(invalid="ignore", over="ignore"):
                expected = np.quantile(each, SHARES)
            real = np.isfinite(expected)
            result = np.array(found)[:, group]
            assert np.allclose(result[real], expected[real], rtol=1e-12, atol=1e-300)
            assert not np.isfinite(result[np.isinf(expected)]).any()


def test_percentiles_of_many_groups_equal_those_of_duckdb() -> None:
    random = np.random.default_rng(1)
    count = 25_000
    stations = random.zipf(1.3, count) % 500
    values = np.where(random.random(count) < 0.05, np.nan, random.normal(280, 10, count))
    table = observations(values, stations)
    merger = GroupMerger(grouping(), SCHEMA)
    for start in range(0, count, 4_000):
        part = GroupMerger(grouping(), SCHEMA)
        part.add_observations(table.slice(start, 4_000))
        merger.add_table(part.partial())
    columns = ", ".join(f"quantile_cont(t, {share})" for share in SHARES)
    statement = (
        f"SELECT station, count(*), count(t), {columns} FROM observed GROUP BY ALL ORDER BY 1"
    )
    connection = duckdb.connect()
    connection.register("observed", table)
    expected = connection.sql(statement).to_arrow_table()
    found = merger.answer()
    assert merger.rank_error == 0.0
    for mine, theirs in zip(found.columns, expected.columns, strict=True):
        assert mine.null_count == theirs.null_count
        assert np.allclose(mine.fill_null(0), theirs.fill_null(0), rtol=1e-12)


@pytest.mark.parametrize("kind", ["normal", "sorted", "few", "heavy"])
def test_sketches_merged_in_any_order_and_cut_stay_within_their_bound(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Group 0 is large, group 1 has exactly as many values as are exact, group 2 is small."""
    monkeypatch.setattr(group_merger, "MERGE_ROWS", 30_000)
    random = np.random.default_rng(7)
    sizes = (150_000, EXACT_MAX, 11)
    stations = np.repeat(np.arange(3), sizes)
    values = random.normal(size=sum(sizes))
    if kind == "few":
        values = np.round(values, 2)
    elif kind == "heavy":
        values = np.exp(5 * values)
    order = np.argsort(values) if kind == "sorted" else random.permutation(len(values))
    values, stations = values[order], stations[order]
    if kind == "sorted":
        stations = random.permutation(stations)
    table = observations(values, stations)
    cuts = np.sort(random.integers(0, len(values), 9))
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(values)], strict=True):
        part = GroupMerger(grouping(), SCHEMA)
        part.add_observations(table.slice(start, stop - start))
        parts.append(part.partial())
    merger = GroupMerger(grouping(), SCHEMA)
    for number in random.permutation(len(parts)):
        merger.add_table(parts[number])
    answer, again = merger.answer(), merger.answer()
    assert again.equals(answer)
    error = merger.rank_error
    assert (error == 0.0) == (kind == "few")
    assert error < 0.002
    for group in range(3):
        mine = np.sort(values[stations == group])
        [row] = answer.filter(pa.compute.equal(answer["station"], group)).to_pylist()
        found = list(row.values())[3:]
        if group or kind == "few":
            assert np.allclose(found, np.quantile(mine, SHARES), rtol=1e-12)
        for share, value in zip(SHARES, found, strict=True):
            low, high = (
                np.searchsorted(mine, value, side) / len(mine) for side in ("left", "right")
            )
            if not group:
                assert low - 2 * error <= share <= high + 2 * error


def test_weighted_values_go_into_a_sketch_as_often_as_they_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_values, "_GIVEN_VALUES", 1_000)
    random = np.random.default_rng(5)
    values, weights = random.normal(size=20_000), random.integers(1, 20, 20_000)
    each = GroupValues.of(values, np.ones(20_000, bool), weights)
    whole = each.renumbered(np.zeros(20_000, np.int64)).reduced(1)
    [sketch] = whole.sketches.values()
    assert sketch.n == weights.sum()
    [[median]] = whole.percentiles([0.5], 1)
    rank = (np.repeat(values, weights) <= median).mean()
    assert abs(rank - 0.5) < 2 * whole.rank_error


def test_values_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_merger, "VALUES_MAX", 1_000)
    merger = GroupMerger(grouping(), SCHEMA)
    merger.add_observations(observations(np.arange(1_001.0), np.zeros(1_001, np.int64)))
    with raises(InputError, parameter="statistics", bound=1_000):
        merger.answer()


def test_standard_deviation_of_large_values_is_that_of_their_distances() -> None:
    random = np.random.default_rng(2)
    values = 1e9 + random.normal(0, 1e-3, 50_000)
    grouping = Grouping.of([], {"t": "std"})
    merger = GroupMerger(grouping, SCHEMA)
    for start in range(0, 50_000, 999):
        part = GroupMerger(grouping, SCHEMA)
        part.add_observations(observations(values, np.zeros(50_000, np.int64)).slice(start, 999))
        merger.add_table(part.partial())
    [found] = merger.answer()["t_std"].to_pylist()
    assert np.isclose(found, np.std(values - 1e9, ddof=1), rtol=1e-9)
