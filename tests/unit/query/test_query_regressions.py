"""Faults that scans of such stores have had: each has a test that would catch it again."""

from __future__ import annotations

import json
from collections import Counter
from itertools import permutations

import numpy as np
import pyarrow as pa
import pytest
import shapely
from expected_errors import raises
from hypothesis import example, given
from hypothesis import strategies as st

from galileo.errors import InputError, QuerySyntaxError, UnknownProperty, UnsupportedQuery
from galileo.geo.geohash import to_text
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.query import parse, time_predicates
from galileo.query.cql_syntax import read
from galileo.query.cql_text import operand_text
from galileo.query.predicates import leaves
from galileo.query.spatial_predicates import InCells

FEATURES = (Feature("t", "K"), Feature("n", type="int"), Feature("s", type="text"))
ORDERS = list(permutations(FEATURES))
VALUES = [
    {"t": t, "n": n, "s": s}
    for t in (None, 280.0, 290.0, 300.0)
    for n in (None, 1, 2)
    for s in (None, "a", "b")
]


def observations(schema):
    """One observation per combination of values, in two cells; `id` numbers them."""
    count = len(VALUES)
    columns = {
        "latitude": np.tile([40.0, -40.0], count)[:count],
        "longitude": np.full(count, 12.0),
        "time": times_from_micros(np.arange(count) * 60_000_000),
        **{f.name: pa.array([v[f.name] for v in VALUES], f.arrow_type) for f in FEATURES},
        "id": pa.array(range(count)),
    }
    return pa.table(columns).select(schema.observation_schema.names).cast(schema.observation_schema)


def scanned(text, order=FEATURES, *, memtable_paths_max=7):
    """How often a scan finds each observation, its features being levels in an order."""
    schema = Schema("world", [*order, Feature("id", type="int", indexed=False)])
    graph = MetadataGraph(schema, memtable_paths_max=memtable_paths_max, block_paths=3)
    table, batch = paths.index(schema, observations(schema))
    graph.insert(batch, partition=0, sequence=1)
    numbers: Counter[int] = Counter()
    for label in graph.scan(parse(text, schema)).to_pylist():
        numbers.update(table.column("id").slice(label["row"], label["rows"]).to_pylist())
    return numbers


def numbers_where(test):
    return [number for number, row in enumerate(VALUES) if test(row)]


@pytest.mark.parametrize(
    "text",
    [
        "t > 285 OR n = 1 OR s = 'a'",
        "t > 285 OR t > 280 OR t >= 290",
        "(t > 285 AND n = 1) OR (t > 285 AND s = 'a') OR n = 1",
        "geohash LIKE '%' OR t > 285 OR S_INTERSECTS(geometry, BBOX(-180,-90,180,90))",
        "geohash LIKE 's%' OR geohash LIKE 'k%' OR DWITHIN(geometry, POINT(12 40), 1e7)",
    ],
)
@pytest.mark.parametrize("memtable_paths_max", [7, 10_000])
def test_scan_match_of_both_sides_of_or_comes_once(text, memtable_paths_max):
    found = scanned(text, memtable_paths_max=memtable_paths_max)
    assert set(found.values()) == {1}


def test_scan_or_finds_matches_of_either_side():
    wanted = numbers_where(lambda row: (row["t"] or 0) > 285 or row["n"] == 1)
    assert sorted(scanned("t > 285 OR n = 1")) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "temperature > 2",
        "t > 285 OR temperature > 2",
        "t > 285 AND NOT temperature IS NULL",
        "false AND temperature > 2",
        "temperature BETWEEN 1 AND 2",
        "temperature IN (1)",
        "temperature LIKE 'x'",
        "CASEI(temperature) = 'x'",
        "2 < temperature",
        "NOT temperature",
        "S_INTERSECTS(temperature, POINT(1 2))",
        "DWITHIN(temperature, POINT(1 2), 3)",
        "T_AFTER(temperature, DATE('2012-01-01'))",
        "T > 2",
    ],
)
def test_parse_unknown_feature_raises_with_property(text):
    schema = Schema("world", FEATURES)
    with pytest.raises(UnknownProperty) as caught:
        parse(text, schema)
    assert caught.value.details["property"] in ("temperature", "T")


@pytest.mark.parametrize("order", ORDERS)
def test_scan_excluded_row_stays_excluded_in_any_order(order):
    """Of a row with a missing `n` or `s`, NOT (...) is unknown or false, so it stays out."""
    text = "t > 285 AND (n = 1 OR s = 'a') AND NOT (n = 1 AND s = 'a') AND geohash LIKE 's%'"
    wanted = numbers_where(
        lambda row: (row["t"] or 0) > 285 and (row["n"], row["s"]) in ((2, "a"), (1, "b"))
    )
    in_s = [number for number in wanted if number % 2 == 0]
    assert 0 < len(in_s) < len(wanted)
    assert sorted(scanned(text, order)) == in_s


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("text", "test"),
    [
        ("t > 285", lambda row: row["t"] is not None and row["t"] > 285),
        ("NOT t > 285", lambda row: row["t"] is not None and row["t"] <= 285),
        ("n <> 1", lambda row: row["n"] == 2),
        ("n NOT IN (1)", lambda row: row["n"] == 2),
        ("s NOT LIKE 'a%'", lambda row: row["s"] == "b"),
        ("t IS NULL", lambda row: row["t"] is None),
        ("n IS NULL AND s IS NOT NULL", lambda row: row["n"] is None and row["s"] is not None),
        ("t > 285 OR s IS NULL", lambda row: (row["t"] or 0) > 285 or row["s"] is None),
        ("t > 285 OR NOT t > 285", lambda row: row["t"] is not None),
    ],
)
def test_scan_missing_values_match_alike_on_every_level(order, text, test):
    found = scanned(text, order)
    assert sorted(found) == numbers_where(test)
    assert set(found.values()) == {1}


DATES = [str(day) for day in np.arange("1990-01-01", "1995-01-01", dtype="datetime64[D]")]


def test_parse_many_negated_dates_is_fast():
    """What it took doubled with each date: thirty of them took all memory."""
    schema = Schema("world", [*FEATURES])
    listed = ", ".join(f"'{date}'" for date in DATES[::2])
    query = parse(f"datetime NOT IN ({listed})", schema)
    noons = np.array(DATES, dtype="datetime64[us]").astype(np.int64) + 43_200_000_000
    count = len(noons)
    table = pa.table(
        {
            "latitude": np.zeros(count),
            "longitude": np.zeros(count),
            "time": times_from_micros(noons),
            **{f.name: pa.nulls(count, f.arrow_type) for f in FEATURES},
        }
    )
    assert np.flatnonzero(query.match_observations(table)).tolist() == [*range(1, count, 2)]


def test_parse_many_cells_compares_each_few_times(monkeypatch):
    """Each was compared with all others: ten thousand cells in JSON took most of a minute."""
    schema = Schema("world", [*FEATURES], geohash_precision=4)
    cells = to_text(np.arange(0, 2**20, 1024, dtype=np.uint64), 4).to_pylist()
    compared = 0

    def count(mine, other):
        nonlocal compared
        compared += 1
        return (mine.prefixes, mine.negated) == (other.prefixes, other.negated)

    monkeypatch.setattr(InCells, "__eq__", count)
    any_of = {
        "op": "or",
        "args": [{"op": "=", "args": [{"property": "geohash"}, cell]} for cell in cells],
    }
    for condition in (any_of, {"op": "not", "args": [any_of]}):
        (leaf,) = leaves(parse(condition, schema).tree)
        assert leaf.prefixes == tuple(sorted(cells))
    assert compared < 20 * len(cells)


def test_parse_text_too_long_as_json_raises():
    schema = Schema("world", [*FEATURES], geohash_precision=5)
    days = np.arange("1990-01-01", "2016-01-01", dtype="datetime64[D]")
    listed = ", ".join(f"'{day}'" for day in days)
    with raises(QuerySyntaxError, position=1000000, bound=1000000):
        parse(f"datetime IN ({listed})", schema)
    readable = 0
    for depth in range(56, 66):
        condition = {"op": "in", "args": [{"property": "geohash"}, ["9xjq8", "9xjq9"]]}
        condition = {"op": "not", "args": [condition]}
        for level in range(depth):
            other = {"op": "=", "args": [{"property": "n"}, level]}
            condition = {"op": ("and", "or")[level % 2], "args": [condition, other]}
        try:
            query = parse(json.dumps(condition), schema)
        except QuerySyntaxError:
            continue
        assert parse(query.to_json(), schema) == query
        readable += 1
    assert readable > 4


@pytest.mark.parametrize(("digits", "kind"), [(4_000, UnsupportedQuery), (5_000, QuerySyntaxError)])
def test_parse_number_of_thousands_of_digits_raises(digits, kind):
    schema = Schema("world", [*FEATURES])
    text = f'{{"op": "=", "args": [{{"property": "n"}}, {"1" * digits}]}}'
    with raises(kind):
        parse(text, schema)


@pytest.mark.parametrize("text", ["9x\0%", "9xjq8\0", "\0%", "9x\0x%"])
def test_parse_geohash_with_nul_raises(text):
    schema = Schema("world", [*FEATURES], geohash_precision=5)
    with raises(InputError, expected="geohash"):
        parse({"op": "like", "args": [{"property": "geohash"}, text]}, schema)


def test_parse_point_in_extra_brackets_is_accepted():
    schema = Schema("world", [*FEATURES])
    place = {"type": "Point", "coordinates": [[-105, 40]]}
    condition = {"op": "dwithin", "args": [{"property": "geometry"}, place, 5000]}
    assert parse(condition, schema) == parse("DWITHIN(geometry, POINT(-105 40), 5000)", schema)


ENDS = st.none() | st.integers(-4, 4)


@example(spans=[(0, 5), (1, 2)])
@given(spans=st.lists(st.tuples(ENDS, ENDS), max_size=5))
def test_outside_random_spans_equals_test_of_every_time(spans):
    def lies_in(span, time):
        lo, hi = span
        return (lo is None or lo <= time) and (hi is None or time < hi)

    rest = time_predicates.outside(spans)
    for time in range(-6, 7):
        outside = not any(lies_in(span, time) for span in spans)
        assert sum(lies_in(span, time) for span in rest) == outside
    assert not any(time_predicates.empty(span) for span in rest)


# --- coordinates of geometries in text -----------------------------------------------------------


@pytest.mark.parametrize(
    ("scientific", "plain"),
    [
        ("POINT(4.6e-05 1)", "POINT(0.000046 1)"),
        ("POINT(-4.6E-05 +1.5E+1)", "POINT(-0.000046 15)"),
        ("POINT Z (1e1 2e0 3.5e3)", "POINT Z (10 2 3500)"),
        ("LINESTRING(1E0 .2e1, 3 4e-7)", "LINESTRING(1 2, 3 0.0000004)"),
        ("POLYGON((0 0, 1e1 0, 1e1 1.e1, 0 0))", "POLYGON((0 0, 10 0, 10 10, 0 0))"),
        ("MULTIPOINT((1e0 2e0), (3 4e0))", "MULTIPOINT((1 2), (3 4))"),
        ("multipolygon(((0 0, 1e1 0, 1e1 1e1, 0 0)))", "MULTIPOLYGON(((0 0, 10 0, 10 10, 0 0)))"),
        (
            "GEOMETRYCOLLECTION(POINT(1e-5 2), POINT(1 2e0))",
            "GEOMETRYCOLLECTION(POINT(0.00001 2), POINT(1 2))",
        ),
        ("BBOX(1e-5, 0, 1E1, 1)", "BBOX(0.00001, 0, 10, 1)"),
        ("POINT(-.5 6.)", "POINT(-0.5 6)"),
        ("POINT M (1e0 2 3)", "POINT(1 2)"),
    ],
)
def test_read_scientific_coordinates_equals_plain(scientific: str, plain: str) -> None:
    for condition in ("S_INTERSECTS(geometry, {})", "NOT (S_WITHIN(geometry, {}) AND n > 1e-3)"):
        assert read(condition.format(scientific)) == read(condition.format(plain))


@given(st.floats(-180, 180), st.floats(-90, 90))
def test_read_random_coordinates_are_exact(longitude: float, latitude: float) -> None:
    tree = read(f"S_INTERSECTS(geometry, POINT({longitude!r} {latitude!r}))")
    assert tree["args"][1]["coordinates"] == [longitude, latitude]


@given(st.lists(st.tuples(st.floats(-180, 180), st.floats(-90, 90)), min_size=2, max_size=20))
def test_read_random_lines_in_one_query_are_exact(positions: list[tuple[float, float]]) -> None:
    line = shapely.LineString(positions)
    text = operand_text(json.loads(shapely.to_geojson(line)))
    near = "DWITHIN(geometry, POINT(0.5 1.5), 2.5)"
    tree = read(f"S_INTERSECTS(geometry, {text}) OR {near} OR n = 3")
    first, second, third = tree["args"]
    assert first["args"][1]["coordinates"] == [*map(list, positions)]
    assert second["args"][1:] == [{"type": "Point", "coordinates": [0.5, 1.5]}, 2.5]
    assert third["args"][1] == 3


def test_parse_valid_polygons_of_nearly_equal_corners_are_accepted() -> None:
    """The corner at 180.79999999999998 would be on the edge at 180.8 if it was rounded."""
    text = (
        "MULTIPOLYGON(((178 5.6, 179.75 3.85, 178.7 0.7, 178 5.6)), "
        "((180.8 0.7, 180.79999999999998 0.6999999999999929, 180.8 0.7000000000000106, 180.8 0.7)))"
    )
    (leaf,) = leaves(parse(f"S_INTERSECTS(geometry, {text})", Schema("world", [*FEATURES])).tree)
    assert shapely.equals_identical(leaf.region.shape, shapely.from_wkt(text))


def test_read_coordinate_that_no_double_holds_raises() -> None:
    with raises(QuerySyntaxError, position=35):
        read("S_INTERSECTS(geometry, POINT(1.25 -1e400))")


def test_read_text_like_geometry_is_unchanged() -> None:
    tree = read("""s = 'POINT(1e5 2)' AND "POINT(1e5 2)" > 1e-5""")
    assert tree["args"][0]["args"][1] == "POINT(1e5 2)"
    assert tree["args"][1]["args"][0] == {"property": "POINT(1e5 2)"}


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("S_INTERSECTS(geometry, POINT(1e-5 2)) ! n = 1", 38),
        ("! S_INTERSECTS(geometry, POINT(1e-5 2))", 0),
        ("S_INTERSECTS(geometry, POINT(1e-5 2e-7)) AND n > !", 49),
        ("S_INTERSECTS(geometry, POINT(1.23456789 2.5)) AND n > !", 54),
        ("S_INTERSECTS(geometry, POINT(1.23456789 2.5 3 4 5))", 40),
    ],
)
def test_read_error_beside_coordinates_has_position(text: str, position: int) -> None:
    with pytest.raises(QuerySyntaxError) as caught:
        read(text)
    assert caught.value.details["position"] == position
