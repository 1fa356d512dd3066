"""Groups of paths and of observations, against a dictionary that counts row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.geo import geohash
from galileo.graph import group_merger
from galileo.graph.group_merger import GroupMerger
from galileo.graph.groups import Groups
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.grouping import Grouping, cell, parse_key, window
from galileo.model.paths import index
from galileo.model.schema import Feature, Schema
from galileo.model.times import micros, times_from_micros
from galileo.query import parse

SCHEMA = Schema(
    "air",
    [
        Feature("t"),
        Feature("n", type="int"),
        Feature("station", type="text"),
        Feature("wet", type="bool"),
        Feature("note", type="text", indexed=False),
    ],
    geohash_precision=2,
    time_bucket="1h",
)
START_US = micros("1969-12-31T20:00:00Z")
OF_PATHS = ["count", "sum", "min", "max", "mean", "std", "median", "p90", "p2.5"]
ALL = [*OF_PATHS, "first", "last"]
OF_TEXTS = ["count", "first", "last"]
STATISTICS = {"t": ALL, "n": ALL, "wet": ALL, "station": OF_TEXTS}
STATISTICS_OF_PATHS = {"t": OF_PATHS, "n": OF_PATHS, "wet": OF_PATHS, "station": "count"}
KEYS = (
    "cell:1",
    "cell:2",
    "bits:7",
    "window:1h",
    "window:6h",
    "window:1mo",
    "t",
    "n",
    "station",
    "wet",
)


def observations(count: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)

    def some(values: Any) -> pa.Array:
        return pa.array(values, mask=random.random(count) < 0.2)

    columns = {
        "latitude": random.uniform(-60, 60, count).round(1),
        "longitude": random.uniform(-180, 180, count).round(1),
        "time": times_from_micros(START_US + random.integers(0, 48, count) * 900_000_000),
        "t": some(random.choice([-math.inf, -1.5, -0.0, 0.0, 2.25, 300.0], count)),
        "n": some(random.choice([-(2**40), -3, 0, 7, 2**40], count)),
        "station": some(random.choice(["", "a", "ä", "zz"], count)),
        "wet": some(random.random(count) < 0.5),
        "note": some(random.choice(["x", "y"], count)),
    }
    return pa.table(columns, schema=SCHEMA.observation_schema)


def graph_of(commits: Sequence[pa.Table], **options: int) -> MetadataGraph:
    graph = MetadataGraph(SCHEMA, **options)
    for sequence, table in enumerate(commits, start=1):
        batch = index(SCHEMA, table)[1]
        graph.insert(batch, partition=sequence % 3, sequence=sequence)
    return graph


def paths_alone(
    expected: dict[tuple[Any, ...], dict[str, Any]],
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Without the statistics that need the times of observations."""
    return {
        key: {name: value for name, value in found.items() if not name.endswith(("first", "last"))}
        for key, found in expected.items()
    }


def of_paths(graph: MetadataGraph, grouping: Grouping, query: str = "") -> GroupMerger:
    merger = GroupMerger(grouping, SCHEMA)
    for piece in graph.group_pieces(parse(query, SCHEMA), grouping):
        assert piece is None or isinstance(piece, Groups), "every path was certain"
        if piece is not None:
            merger.add_paths(piece, graph.texts)
    return merger


def counted(table: pa.Table, by: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Counts and statistics of groups, row by row."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {} if by else {(): []}
    for row in table.to_pylist():
        groups.setdefault(tuple(key_of(row, key) for key in by), []).append(row)
    return {key: statistics_of(rows) for key, rows in groups.items()}


def key_of(row: dict[str, Any], key: str) -> Any:
    kind, _, value = key.partition(":")
    if kind in ("cell", "bits"):
        bits = int(value) * (5 if kind == "cell" else 1)
        code = int(geohash.encode([row["latitude"]], [row["longitude"]], 12)[0]) >> (60 - bits)
        return code if bits % 5 else geohash.to_text([code], bits // 5)[0].as_py()
    if key == "window:1mo":
        return row["time"].replace(day=1, hour=0, minute=0, second=0)
    if kind == "window":
        width_us = window(value).width_us
        time_us = round(row["time"].timestamp() * 1e6)
        return times_from_micros(np.array([time_us // width_us * width_us]))[0].as_py()
    return row[key]


def statistics_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"observations": len(rows)}
    for name in ("t", "n", "wet", "station"):
        values = [row[name] for row in rows if row[name] is not None]
        found[f"{name}_count"] = len(values)
        if name != "station":
            total = float(sum(values))
            found[f"{name}_sum"] = total if values else None
            found[f"{name}_mean"] = total / len(values) if values else None
            found[f"{name}_min"] = min(values, default=None)
            found[f"{name}_max"] = max(values, default=None)
            found |= {
                f"{name}_{s}": one for s, one in spread_of([float(v) for v in values]).items()
            }
        at = {row["time"] for row in rows if row[name] is not None}
        for statistic, end in (("first", min), ("last", max)):
            time = end(at, default=None)
            tied = [r[name] for r in rows if r["time"] == time and r[name] is not None]
            found[f"{name}_{statistic}"] = end(tied, default=None)
    return found


def spread_of(values: list[float]) -> dict[str, float | None]:
    with np.errstate(invalid="ignore"):
        shares = {"median": 0.5, "p90": 0.9, "p2.5": 0.025}
        spread: dict[str, float | None] = {
            name: float(np.quantile(values, share)) if values else None
            for name, share in shares.items()
        }
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"std": std, **spread}


def check(answer: pa.Table, expected: dict[tuple[Any, ...], dict[str, Any]], keys: int) -> None:
    rows = [tuple(row.values()) for row in answer.to_pylist()]
    names = answer.column_names[keys:]
    found = {row[:keys]: dict(zip(names, row[keys:], strict=True)) for row in rows}
    assert len(found) == len(rows)
    assert found.keys() == expected.keys()
    for key, statistics in expected.items():
        assert found[key].keys() == statistics.keys()
        for name, value in statistics.items():
            assert is_same(found[key][name], value), (key, name, found[key][name], value)
    assert [row[:keys] for row in rows] == sorted((row[:keys] for row in rows), key=in_order)


def is_same(found: Any, expected: Any) -> bool:
    """Sums may be rounded in another order; NumPy has no quantiles between equal infinities."""
    if type(found) is not float or type(expected) is not float or math.isnan(expected):
        return type(found) is type(expected) and (
            found == expected or found != found or expected != expected
        )
    return math.isclose(found, expected, rel_tol=1e-12)


def in_order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Null last, and texts by their bytes."""
    return tuple(
        (value is None, 0 if value is None else value.encode() if isinstance(value, str) else value)
        for value in key
    )


@given(
    seed=st.integers(0, 2**32),
    by=st.lists(st.sampled_from(KEYS), max_size=4, unique_by=lambda key: parse_key(key).column),
)
def test_groups_of_paths_and_of_observations_equal_those_counted_row_by_row(
    seed: int, by: list[str]
) -> None:
    by = by if sum(key.startswith(("cell", "bits")) for key in by) < 2 else by[:1]
    grouping = Grouping.of(by, STATISTICS)
    grouping.check(SCHEMA)
    table = observations(120, seed)
    expected = counted(table, by)
    commits = [table.slice(start, 30) for start in range(0, 120, 30)]
    graph = graph_of(commits, memtable_paths_max=50, block_paths=16)
    paths = of_paths(graph, Grouping.of(by, STATISTICS_OF_PATHS))
    rows = GroupMerger(grouping, SCHEMA)
    for commit in commits:
        rows.add_observations(commit)
    both = GroupMerger(grouping, SCHEMA)
    for half in (0, 2):
        part = GroupMerger(grouping, SCHEMA)
        for commit in commits[half : half + 2]:
            part.add_observations(commit)
        both.add_table(part.partial())
    check(paths.answer(), paths_alone(expected), len(by))
    for merger in (rows, both):
        check(merger.answer(), expected, len(by))


@pytest.mark.parametrize("by", [[], ["cell:1"], ["n", "station"]])
def test_groups_of_nothing_are_none_or_the_group_of_all(by: list[str]) -> None:
    grouping = Grouping.of(by, STATISTICS_OF_PATHS)
    part = of_paths(MetadataGraph(SCHEMA), grouping)
    whole = GroupMerger(grouping, SCHEMA)
    for _ in range(2):
        whole.add_table(part.partial())
    for merger in (part, whole, GroupMerger(grouping, SCHEMA)):
        answer = merger.answer()
        assert answer.column_names == list(grouping.names())
        assert answer.num_rows == (0 if by else 1)
        if not by:
            [row] = answer.to_pylist()
            assert (row["observations"], row["t_count"], row["t_sum"]) == (0, 0, None)


def test_groups_by_keys_of_the_widest_ranges_are_told_apart() -> None:
    """The combined keys do not fit into 64 bits."""
    random = np.random.default_rng(5)
    table = observations(2_000, 5)
    wide = random.integers(-(2**63), 2**63, 50)
    table = table.set_column(4, "n", pa.array(random.choice(wide, 2_000)))
    table = table.set_column(3, "t", pa.array(random.choice(random.normal(size=50), 2_000)))
    by = ["n", "t", "station", "window:1s"]
    statistics = {"wet": ALL, "n": ["min", "max"]}
    merger = GroupMerger(Grouping.of(by, statistics), SCHEMA)
    for start in range(0, 2_000, 500):
        merger.add_observations(table.slice(start, 500))
    expected = counted(table, by)
    names = [*merger.answer().column_names[len(by) :]]
    check(merger.answer(), {k: {n: v[n] for n in names} for k, v in expected.items()}, len(by))


def test_groups_by_keys_whose_product_is_too_wide_are_told_apart() -> None:
    """Each key fits into 64 bits, and all of them together do not."""
    table = observations(600, 6)
    by = ["n", "window:1s", "cell:12"]
    merger = GroupMerger(Grouping.of(by, {"wet": "sum"}), SCHEMA)
    for start in range(0, 600, 200):
        merger.add_observations(table.slice(start, 200))
    names = ("observations", "wet_sum")
    expected = {k: {n: v[n] for n in names} for k, v in counted(table, by).items()}
    check(merger.answer(), expected, len(by))


def test_paths_at_the_edge_of_a_region_are_labels_to_read() -> None:
    table = observations(3_000, 1)
    graph = graph_of([table])
    query = parse("S_INTERSECTS(geometry, BBOX(-100.5, -40.2, 70.3, 33.1)) AND wet = TRUE", SCHEMA)
    grouping = Grouping.of(["cell:1", "station"])
    merger, edges = GroupMerger(grouping, SCHEMA), []
    for piece in graph.group_pieces(query, grouping):
        if isinstance(piece, pa.RecordBatch):
            edges.append(piece)
        elif piece is not None:
            merger.add_paths(piece, graph.texts)
    inside = sum(merger.answer().column("observations").to_pylist())
    left = pa.Table.from_batches(edges)
    certain = query.must_match_paths(
        {name: left.column(name) for name in query.features}
        | {"cell": left.column("cell").to_numpy(), "bucket": np.zeros(left.num_rows, np.int64)}
    )
    assert inside > 0
    assert left.num_rows > 0
    assert not certain.any()
    labels = graph.scan(query)
    assert inside + sum(left.column("rows").to_pylist()) == sum(labels.column("rows").to_pylist())


def test_groups_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_merger, "GROUPS_MAX", 20)
    merger = GroupMerger(Grouping.of(["cell:2"]), SCHEMA)
    merger.add_observations(observations(300, 2))
    with raises(InputError, parameter="by", bound=20):
        merger.answer()


def test_groups_above_the_limit_are_refused_before_all_have_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_merger, "GROUPS_MAX", 20)
    monkeypatch.setattr(group_merger, "MERGE_ROWS", 60)
    merger = GroupMerger(Grouping.of(["cell:2"]), SCHEMA)
    with raises(InputError, bound=20):
        for seed in range(100):
            merger.add_observations(observations(30, seed))


def test_columns_of_an_answer_have_names_of_their_own() -> None:
    schema = Schema("odd", [Feature("observations"), Feature("t"), Feature("t_max")])
    grouping = Grouping.of(["observations", "t_max"], {"t": "max"})
    grouping.check(schema)
    assert grouping.names() == ("observations", "t_max", "observations_", "t_max_")
    assert len(GroupMerger(grouping, schema).answer().column_names) == 4


@pytest.mark.parametrize(
    ("by", "statistics", "details"),
    [
        (["cell:1", "bits:7"], None, {"parameter": "by"}),
        (["t", "t"], None, {"parameter": "by"}),
        ([f"window:{n}h" for n in range(1, 10)], None, {"parameter": "by"}),
        (["temperature"], None, {"expected": "feature", "feature": "temperature"}),
        ([], {"note": "max"}, {"expected": "numeric_feature", "feature": "note"}),
        ([], {"note": "p90"}, {"expected": "numeric_feature", "statistic": "p90"}),
        ([], {"t": "mode"}, {"expected": "statistics", "feature": "t"}),
        ([], {"t": "p101"}, {"expected": "statistics", "feature": "t"}),
        ([], {"t": "p-1"}, {"expected": "statistics", "feature": "t"}),
        ([], {"t": []}, {"expected": "statistics", "feature": "t"}),
        ([], {"t": [f"p{n / 10}" for n in range(513)]}, {"bound": 512}),
        ([], {"t": ["min", "min"]}, {"expected": "statistics", "feature": "t"}),
    ],
)
def test_grouping_that_a_dataset_lacks_is_refused(
    by: list[str], statistics: Any, details: dict[str, Any]
) -> None:
    with raises(InputError, **details):
        Grouping.of(by, statistics).check(SCHEMA)


@pytest.mark.parametrize(
    "by",
    [
        *("cell:0", "cell:13", "cell:x", "bits:61", "a:b"),
        *("window:", "window:0s", "window:101y", "window:0mo", "window:1201mo", "window:1.5mo"),
    ],
)
def test_key_that_is_none_is_refused(by: str) -> None:
    with raises(InputError):
        Grouping.of(by)


def test_key_has_a_text_that_reads_as_itself() -> None:
    for key in (
        cell(5),
        cell(bits=7),
        window("90m"),
        window(1e-6),
        window("2w"),
        window("3mo"),
        parse_key("t"),
    ):
        assert parse_key(str(key)) == key
    with raises(InputError, parameter="by"):
        cell()
    with raises(InputError, parameter="by"):
        cell(5, bits=25)


@pytest.mark.parametrize(
    ("by", "is_in_graph"),
    [
        ("cell:2", True),
        ("cell:3", False),
        ("bits:11", False),
        ("window:2h", True),
        ("window:90m", False),
        ("window:1mo", True),
        ("window:1w", True),
        ("note", False),
    ],
)
def test_grouping_finer_than_paths_is_not_in_the_graph(by: str, is_in_graph: bool) -> None:
    assert Grouping.of(by).is_in_graph(SCHEMA) is is_in_graph


@pytest.mark.parametrize(
    "width", ["1mo+6h", "1mo 1d", "3 months from 5d", "1y+1mo", "1mo@Europe/Berlin"]
)
def test_calendar_window_with_an_offset_is_refused(width: str) -> None:
    with raises(InputError, parameter="by", expected="calendar_window"):
        window(width)


@pytest.mark.parametrize("text", ["1mo", "3mo", "12mo", "5y", "1w", "2w", "14d"])
def test_windows_of_the_calendar_begin_on_first_days_and_mondays(text: str) -> None:
    random = np.random.default_rng(3)
    times = random.integers(micros("0001-01-01"), micros("9999-12-31"), 500)
    times = np.concatenate([times, random.integers(-(10**14), 10**14, 3_000)])
    key = window(text)
    begins = key.begins(key.numbers(times))
    each = times.astype("datetime64[us]")
    if key.months:
        months = each.astype("datetime64[M]").astype(np.int64) + 12 * 1970
        expected = (months // key.months * key.months - 12 * 1970).astype("datetime64[M]")
    else:
        weeks = key.width_us // (7 * 86_400_000_000)
        days = (each.astype("datetime64[D]") - np.datetime64("1969-12-29")).astype(np.int64)
        expected = np.datetime64("1969-12-29") + days // (7 * weeks) * (7 * weeks)
        assert {day.weekday() for day in expected.astype(object)} == {0}
    assert np.array_equal(begins.astype("datetime64[us]"), expected.astype("datetime64[us]"))


def test_calendar_windows_of_buckets_that_cross_months_are_not_in_the_graph() -> None:
    def is_in_graph(bucket: str, by: str) -> bool:
        schema = Schema("air", [Feature("t")], geohash_precision=2, time_bucket=bucket)
        return Grouping.of(by).is_in_graph(schema)

    assert is_in_graph("1d", "window:1mo")
    assert not is_in_graph("7d", "window:1mo")
    assert not is_in_graph("7d", "window:1w")  # Buckets begin on Thursdays.


def test_first_and_last_are_read_from_observations() -> None:
    assert not Grouping.of([], {"t": "last"}).is_in_graph(SCHEMA)
    assert "time" in Grouping.of([], {"t": "last"}).columns(SCHEMA)
