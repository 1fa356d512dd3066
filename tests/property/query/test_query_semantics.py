"""Random predicate trees against an evaluator that goes row by row with three truth values."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct

import numpy as np
import pyarrow as pa
import shapely
import shapely.geometry
from generated import examples
from hypothesis import event, example, given
from hypothesis import strategies as st

from galileo.geo import geohash, ranges
from galileo.model import paths
from galileo.model.schema import Feature, Schema
from galileo.query import Columns, Zones, from_arrow, parse
from galileo.query.columns import IntColumn
from galileo.query.feature_predicates import COMPARE, NumberIs

FEATURES = [
    Feature("t", "K"),
    Feature("n", type="int"),
    Feature("s", type="text"),
    Feature("b", type="bool"),
    Feature("w", type="float32"),
]
PRECISION = 3
SCHEMA = Schema("world", FEATURES, geohash_precision=PRECISION, time_bucket="6h")
START = dt.datetime(1969, 12, 31, tzinfo=dt.UTC)
HOUR = 3_600_000_000
EXAMPLES = 200
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

LONGITUDES = [-180.0, -179.5, -178.59375, -90.0, -45.1, 0.0, 0.5, 1.40625, 90.0, 179.3, 180.0]
LATITUDES = [-90.0, -89.5, -45.0, 0.0, 0.3, 1.40625, 5.625, 45.0, 89.9, 90.0]
TEXTS = [
    "",
    "a",
    "ab",
    "AB",
    "a%",
    "a_b",
    "É",
    "éé",
    "x\ny",
    "\\",
    "ß",
    "SS",
    "ΣΑΣ",
    "σας",
    "İ",
    "i",
]

# --- observations ----------------------------------------------------------------------------

observations = st.fixed_dictionaries(
    {
        "latitude": st.sampled_from(LATITUDES),
        "longitude": st.sampled_from(LONGITUDES),
        "time": st.integers(0, 48).map(lambda hours: START + dt.timedelta(hours=hours)),
        "t": st.sampled_from([None, -1.5, 0.0, 1.0, 2.5]),
        "n": st.sampled_from([None, -1, 0, 1, 7]),
        "s": st.sampled_from([None, *TEXTS]),
        "b": st.sampled_from([None, True, False]),
        "w": st.sampled_from([None, -1.5, 0.0, 0.1, 2.5, 4.3]),
    }
)
tables = st.lists(observations, min_size=1, max_size=25).map(
    lambda rows: pa.Table.from_pylist(rows, schema=SCHEMA.observation_schema)
)

# --- predicates as CQL2 JSON -----------------------------------------------------------------


def node(op, *args):
    return {"op": op, "args": list(args)}


def prop(name):
    return {"property": name}


signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
numbers = st.sampled_from([-1.5, -1.0, 0.0, 0.1, 0.5, 1.0, 2.5, 4.3, 7.0, 1e39])
texts = st.sampled_from(TEXTS)
patterns = st.sampled_from(
    ["%", "_", "a%", "%b", "a_b", "a\\%", "a\\_b", "x%y", "é_", "", "A_", "s%", "ß", "Σ%", "i%"]
)
folds = st.booleans()


def casei(fold, operand):
    return node("casei", operand) if fold else operand


comparisons = st.one_of(
    st.builds(
        lambda op, name, value: node(op, prop(name), value), signs, st.sampled_from("tnw"), numbers
    ),
    st.builds(
        lambda op, name, value: node(op, value, prop(name)), signs, st.sampled_from("tnw"), numbers
    ),
    st.builds(lambda op, value: node(op, prop("s"), value), signs, texts),
    st.builds(
        lambda op, value: node(op, prop("b"), value), st.sampled_from(["=", "<>"]), st.booleans()
    ),
    st.just(prop("b")),
    st.builds(
        lambda name, lo, hi: node("between", prop(name), lo, hi),
        st.sampled_from("tnw"),
        numbers,
        numbers,
    ),
    st.builds(
        lambda name, some: node("in", prop(name), some),
        st.sampled_from("tnw"),
        st.lists(numbers, min_size=1, max_size=3),
    ),
    st.builds(
        lambda f, g, some: node("in", casei(f, prop("s")), [casei(g, x) for x in some]),
        folds,
        folds,
        st.lists(texts, min_size=1, max_size=3),
    ),
    st.builds(
        lambda f, g, like: node("like", casei(f, prop("s")), casei(g, like)), folds, folds, patterns
    ),
    st.builds(lambda name: node("isNull", prop(name)), st.sampled_from("tnsbw")),
)

moments = st.one_of(
    st.integers(-6, 60).map(
        lambda hours: {"timestamp": (START + dt.timedelta(hours=hours)).isoformat()}
    ),
    st.integers(-1, 3).map(
        lambda days: {"date": (START + dt.timedelta(days=days)).date().isoformat()}
    ),
)


@st.composite
def intervals(draw):
    lo, hi = sorted([draw(moments), draw(moments)], key=lambda m: span_of(m)[0])
    if span_of(lo)[0] >= span_of(hi)[1]:
        hi = lo
    ends = [lo if draw(st.integers(0, 4)) else "..", hi if draw(st.integers(0, 4)) else ".."]
    return {"interval": ends}


functions = ["t_after", "t_before", "t_disjoint", "t_equals", "t_intersects"]
times = st.one_of(
    st.builds(lambda op, when: node(op, prop("datetime"), when), signs, moments),
    st.builds(lambda op, when: node(op, when, prop("datetime")), signs, moments),
    st.builds(lambda lo, hi: node("between", prop("datetime"), lo, hi), moments, moments),
    st.builds(
        lambda some: node("in", prop("datetime"), some), st.lists(moments, min_size=1, max_size=2)
    ),
    st.builds(
        lambda op, when: node(op, prop("datetime"), when),
        st.sampled_from(functions),
        moments | intervals(),
    ),
    st.builds(
        lambda op, when: node(op, when, prop("datetime")),
        st.sampled_from(functions),
        moments | intervals(),
    ),
    st.builds(lambda when: node("t_during", prop("datetime"), when), intervals()),
)


@st.composite
def geometries(draw):
    west = draw(st.sampled_from([*LONGITUDES, 170.0, -190.0, 200.0]))
    south = draw(st.sampled_from(LATITUDES[:-1]))
    width = draw(st.sampled_from([0.25, 1.40625, 20.0, 100.0]))
    north = min(south + draw(st.sampled_from([0.1, 1.40625, 30.0])), 90.0)
    kind = draw(st.sampled_from(["bbox", "box", "triangle", "point", "line"]))
    if kind == "bbox":
        return {"bbox": [west, south, (west + width + 180) % 360 - 180, north]}
    if kind == "point":
        return {"type": "Point", "coordinates": [west, south]}
    if kind == "line":
        return {"type": "LineString", "coordinates": [[west, south], [west + width, north]]}
    ring = [[west, south], [west + width, south], [west + width, north], [west, north]]
    ring = ring if kind == "box" else ring[:3]
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}


prefixes = st.builds(
    lambda lat, lon, length: geohash.to_text(geohash.encode([lat], [lon], length), length)[
        0
    ].as_py(),
    st.sampled_from(LATITUDES),
    st.sampled_from(LONGITUDES),
    st.integers(1, 6),
)
wildcards = st.builds(
    lambda prefix, kept: "".join(a if b else "_" for a, b in zip(prefix, kept, strict=False)),
    prefixes,
    st.lists(st.booleans(), min_size=6, max_size=6),
)
cells = prefixes.filter(lambda prefix: len(prefix) >= PRECISION)
spatial = st.sampled_from(["s_intersects", "s_disjoint"])
distant = st.builds(
    lambda op, lat, lon, metres: node(
        op, prop("geometry"), {"type": "Point", "coordinates": [lon, lat]}, metres
    ),
    st.sampled_from(["dwithin", "S_DWITHIN"]),
    st.sampled_from([*LATITUDES, 88.0]),
    st.sampled_from([*LONGITUDES, 178.0, 190.0, -300.0]),
    st.sampled_from([0, 40_000.0, 250_000, 6e6, 1.5e7, 2.1e7]),
)
places = st.one_of(
    distant,
    st.builds(lambda op, where: node(op, prop("geometry"), where), spatial, geometries()),
    st.builds(lambda op, where: node(op, where, prop("geometry")), spatial, geometries()),
    st.builds(lambda where: node("s_within", prop("geometry"), where), geometries()),
    st.builds(lambda prefix: node("like", prop("geohash"), f"{prefix}%"), prefixes | wildcards),
    st.builds(
        lambda op, cell: node(op, prop("geohash"), cell), st.sampled_from(["=", "<>"]), cells
    ),
    st.builds(
        lambda some: node("in", prop("geohash"), some), st.lists(cells, min_size=1, max_size=3)
    ),
)


def trees(leaves):
    return st.recursive(
        leaves | st.booleans(),
        lambda inner: st.one_of(
            st.builds(lambda parts: node("and", *parts), st.lists(inner, max_size=3)),
            st.builds(lambda parts: node("or", *parts), st.lists(inner, max_size=3)),
            st.builds(lambda part: node("not", part), inner),
        ),
        max_leaves=6,
    )


def query_of(tree):
    return parse(json.dumps(tree) if isinstance(tree, dict) else str(tree).lower(), SCHEMA)


# --- the evaluator to check against ----------------------------------------------------------


def span_of(when):
    if "date" in when:
        day = dt.datetime.fromisoformat(when["date"]).replace(tzinfo=dt.UTC)
        return micros(day), micros(day) + 24 * HOUR
    at = micros(dt.datetime.fromisoformat(when["timestamp"]))
    return at, at + 1


def micros(moment):
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


def truth(tree, row):
    """True, False or None for unknown."""
    if isinstance(tree, bool):
        return tree
    if "op" not in tree:
        return row[tree["property"]]
    op, args = tree["op"], tree["args"]
    if op == "not":
        inner = truth(args[0], row)
        return None if inner is None else not inner
    if op in ("and", "or"):
        found = [truth(arg, row) for arg in args]
        decisive = op == "or"
        if decisive in found:
            return decisive
        return None if None in found else not decisive
    named = args[0] if is_about(args[0]) else args[1]
    return condition(op, args, name=name_of(named), row=row)


def is_about(arg):
    return isinstance(arg, dict) and ("property" in arg or arg.get("op") == "casei")


def name_of(operand):
    return operand["property"] if "property" in operand else operand["args"][0]["property"]


def condition(op, args, *, name, row):
    if name == "geometry":
        return placed(op, args, row)
    if name == "geohash":
        return in_cell(op, args[1], row)
    if name == "datetime":
        return timed(op, args, micros(row["time"]))
    value = row[name]
    if op == "isNull":
        return value is None
    if value is None:
        return None
    if name == "w":
        args = [single(arg) for arg in args]
    return compared(op, args, value)


def single(arg):
    """An operand that is compared with a float32 feature, rounded as its values are."""
    if isinstance(arg, list):
        return [single(item) for item in arg]
    is_number = isinstance(arg, float) and abs(arg) < 3e38
    return struct.unpack("f", struct.pack("f", arg))[0] if is_number else arg


def compared(op, args, value):
    values = [operand(arg, value) for arg in args]
    if op == "between":
        return values[1] <= values[0] <= values[2]
    if op == "in":
        return any(values[0] == operand(item, value) for item in args[1])
    if op == "like":
        return re.fullmatch(pattern(values[1]), values[0], re.DOTALL) is not None
    return relation(op, values[0], values[1])


def operand(arg, value):
    if isinstance(arg, dict) and "property" in arg:
        return value
    if isinstance(arg, dict):
        return operand(arg["args"][0], value).casefold()
    return arg


def pattern(like):
    parts = re.findall(r"\\.|.", like, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return "".join(wild.get(part) or re.escape(part[-1]) for part in parts)


def relation(op, left, right):
    signs = {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return signs[op]


def timed(op, args, at):
    if op == "in":
        return any(timed("=", [prop("datetime"), when], at) for when in args[1])
    if op == "between":
        return span_of(args[1])[0] <= at < span_of(args[2])[1]
    swapped = not is_about(args[0])
    when = args[0] if swapped else args[1]
    if op.startswith("t_"):
        swap = {"t_after": "t_before", "t_before": "t_after"} if swapped else {}
        return in_interval(swap.get(op, op), when, at)
    first, end = span_of(when)
    mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="} if swapped else {}
    now = first if first <= at < end else at
    return relation(mirrored.get(op, op), now, first)


def in_interval(op, when, at):
    ends = when.get("interval", [when, when])
    first = -(10**20) if ends[0] == ".." else span_of(ends[0])[0]
    last = 10**20 if ends[1] == ".." else span_of(ends[1])[1] - 1
    results = {
        "t_after": at > last,
        "t_before": at < first,
        "t_disjoint": at < first or at > last,
        "t_intersects": first <= at <= last,
        "t_during": first < at < last,
        "t_equals": ends[0] == ends[1] != ".." and first <= at <= last,
    }
    return results[op]


def placed(op, args, row):
    if op.lower().endswith("dwithin"):
        longitude, latitude = args[1]["coordinates"]
        return distance_m((latitude, longitude), (row["latitude"], row["longitude"])) <= args[2]
    where = args[1] if is_about(args[0]) else args[0]
    shape = shape_of(where)
    around = [shapely.Point(row["longitude"] + turn, row["latitude"]) for turn in (-360, 0, 360)]
    if op == "s_within":
        return any(point.within(shape) for point in around)
    return any(point.intersects(shape) for point in around) == (op == "s_intersects")


def distance_m(here, there):
    """By the haversine formula, one pair at a time; 0 between equal places, poles included."""
    (up, around), (to_up, to_around) = ([math.radians(part) for part in at] for at in (here, there))
    if abs(here[0]) == 90:
        return 6_371_008.8 * abs(to_up - up)
    if here[0] == there[0] and (here[1] - there[1]) % 360 == 0:
        return 0.0
    flat = math.cos(up) * math.cos(to_up) * math.sin((to_around - around) / 2) ** 2
    return 2 * 6_371_008.8 * math.asin(min(1, math.sqrt(math.sin((to_up - up) / 2) ** 2 + flat)))


def shape_of(where):
    if "bbox" not in where:
        return shapely.geometry.shape(where)
    west, south, east, north = where["bbox"]
    return flat_box(west, south, east + 360 * (west > east), north)


def flat_box(west, south, east, north):
    corners = {(west, south), (west, north), (east, south), (east, north)}
    return shapely.MultiPoint(sorted(corners)).convex_hull


def in_cell(op, raw, row):
    whole = geohash.encode([row["latitude"]], [row["longitude"]], 12)
    text = geohash.to_text(whole, 12)[0].as_py()
    if op == "in":
        return any(text.startswith(cell) for cell in raw)
    prefix = re.escape(raw.rstrip("%")).replace("_", ".")
    return (re.match(prefix, text) is not None) != (op == "<>")


# --- the properties --------------------------------------------------------------------------


def path_columns(batch):
    columns = {name: from_arrow(batch.column(name)) for name in ("t", "n", "s", "b", "w")}
    cell = batch.column("cell").to_numpy()
    return Columns(cell, batch.column("bucket").cast(pa.int64()).to_numpy(), columns)


def as_mapping(columns):
    return {"cell": columns.cell, "bucket": columns.bucket, **columns.features}


def expected(tree, table):
    return [truth(tree, row) is True for row in table.to_pylist()]


@examples(EXAMPLES)
@given(trees(st.one_of(comparisons, times, places)), tables)
def test_match_observations_random_query_equals_row_by_row(tree, table):
    found = query_of(tree).match_observations(table).tolist()
    event(f"any match: {any(found)}")
    assert found == expected(tree, table)


@examples(EXAMPLES)
@given(trees(comparisons), tables)
def test_match_paths_random_features_equal_observations(tree, table):
    table, batch = paths.index(SCHEMA, table)
    found = query_of(tree).match_paths(as_mapping(path_columns(batch)))
    assert np.repeat(found, batch.column("rows").to_numpy()).tolist() == expected(tree, table)


@examples(EXAMPLES)
@given(trees(st.one_of(comparisons, times, places)), tables, st.integers(1, 5))
def test_match_paths_and_zones_random_query_lose_nothing(tree, table, width):
    query = query_of(tree)
    table, batch = paths.index(SCHEMA, table)
    columns, starts = path_columns(batch), batch.column("row").to_numpy()
    exact = np.logical_or.reduceat(np.array(expected(tree, table)), starts)
    found = query.match_paths(columns)
    assert found[exact].all()
    in_zone = np.logical_or.reduceat(found, np.arange(0, len(found), width))
    zones = Zones.of(columns, np.arange(0, len(found), width))
    assert query.may_match_zones(zones)[in_zone].all()
    limits, (lo, hi) = query.cell_ranges(), query.time_range()
    assert limits is None or ranges.contains(limits, columns.cell[found]).all()
    assert lo is None or (columns.bucket[found] >= lo).all()
    assert hi is None or (columns.bucket[found] < hi).all()


@examples(EXAMPLES)
@given(trees(st.one_of(comparisons, times, places)), tables)
def test_to_json_random_query_round_trips(tree, table):
    query = query_of(tree)
    again = parse(query.to_json(), SCHEMA)
    assert again == query
    assert hash(again) == hash(query)
    assert again.to_json() == query.to_json()
    assert (again.match_observations(table) == query.match_observations(table)).all()


@given(geometries(), st.sampled_from(["s_intersects", "s_within", "s_disjoint"]))
def test_match_paths_random_region_equals_rectangles(where, op):
    """A cell matches where its rectangle meets the region; negated, where it is not covered."""
    cell = np.arange(32**PRECISION, dtype=np.uint64)[::29]
    columns = {"cell": cell, "bucket": np.zeros(len(cell), dtype=np.int64)}
    shape, (west, south, east, north) = shape_of(where), geohash.bounds(cell, PRECISION)
    moved = [shapely.box(west + turn, south, east + turn, north) for turn in (-360, 0, 360)]
    meets = np.any([shapely.intersects(shape, boxes) for boxes in moved], axis=0)
    covered = np.any([shapely.covers(shape, boxes) for boxes in moved], axis=0)
    found = query_of(node(op, prop("geometry"), where)).match_paths(columns)
    assert (found == (~covered if op == "s_disjoint" else meets)).all()


# --- query whole numbers -------------------------------------------------------------------------


WHOLE = st.integers(-5, 5) | st.integers(2**53 - 3, 2**53 + 3) | st.integers(-(2**63), 2**63 - 1)
BOUNDS = st.integers(-50, 50).map(lambda n: n / 10) | WHOLE.map(float)


@given(values=st.lists(WHOLE, min_size=1), bound=BOUNDS, sign=st.sampled_from(sorted(COMPARE)))
@example(values=[2**53, 2**53 + 1], bound=2.0**53 - 1, sign=">")
@example(values=[2**53 + 1], bound=2.0**53, sign="=")
def test_number_is_random_integers_compare_as_doubles(values, bound, sign):
    valid = np.arange(len(values)) % 3 != 1
    column = IntColumn(np.array(values, dtype=np.int64), valid)
    expected = COMPARE[sign](np.array(values, dtype=np.int64).astype(np.float64), bound) & valid
    assert NumberIs("gusts", sign, bound).match(column).tolist() == expected.tolist()
