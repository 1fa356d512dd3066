"""Random geometries: columns accept those that queries accept, and they mean the same there."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shapely
from parameters import keep_quick
from shapes import drawn, points_about

import galileo
from galileo.errors import InputError
from galileo.geo.geometry_columns import to_stored, to_wkt
from galileo.model.schema import Feature, Schema
from galileo.query import parse

SCHEMA = Schema("world", [Feature("t")], geohash_precision=3)
TURNS = (-360.0, 0.0, 360.0)
CASES = 400


def random_line(chance: np.random.Generator, vertices: int) -> Any:
    """Positions of which some are far away, equal, or of a coarse grid."""
    reach = chance.choice([3, 100, 250, 400])
    positions = chance.uniform(-reach, reach, (vertices, 2)) * [1, 0.4]
    return np.round(positions) if chance.random() < 0.5 else positions


def random_shape(chance: np.random.Generator) -> Any:
    """Any shape: also crossed, empty, out of range, with heights, of another kind."""
    kind = chance.integers(10)
    if kind == 0:
        return shapely.Point(random_line(chance, 1)[0])
    if kind == 1:
        return shapely.MultiPoint(random_line(chance, int(chance.integers(0, 4))))
    if kind == 2:
        return shapely.LineString(random_line(chance, int(chance.choice([0, 2, 2, 3, 9]))))
    if kind == 3:
        return shapely.MultiLineString([random_line(chance, 3) for _ in range(2)])
    if kind == 4:
        return shapely.Polygon(random_line(chance, int(chance.choice([3, 3, 4, 6]))))
    if kind == 5:
        empty = shapely.Polygon() if chance.random() < 0.3 else shapely.box(20, 20, 30, 30)
        return shapely.MultiPolygon([shapely.Polygon(random_line(chance, 3)), empty])
    if kind == 6:
        return shapely.GeometryCollection([shapely.Point(1, 2)] * int(chance.integers(0, 2)))
    if kind == 7:
        return shapely.force_3d(shapely.MultiPolygon([shapely.box(0, 0, 9, 9)]), z=5)
    return drawn(chance) or shapely.Point()


def column(*values: Any) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values)])


def query_of(shape: Any) -> Any:
    """The query that a shape is the literal of; None where it is refused."""
    try:
        return parse(galileo.within(shape).to_json(), SCHEMA)
    except InputError:
        return None


def stored_of(given: pa.ChunkedArray) -> Any:
    """The shape that a table stores; None where it is refused."""
    try:
        [made] = to_stored(given)
    except InputError:
        return None
    return shapely.from_wkb(made.as_py())


def matches(query: Any, longitude: Any, latitude: Any) -> list[bool]:
    columns = {
        "latitude": latitude,
        "longitude": longitude,
        "time": pa.array(np.zeros(len(latitude), np.int64)).cast(pa.timestamp("us", "UTC")),
        "t": pa.nulls(len(latitude), pa.float64()),
    }
    found = query.match_observations(pa.table(columns, schema=SCHEMA.observation_schema))
    return list(found.tolist())


def intersects(shape: Any, longitude: Any, latitude: Any) -> list[bool]:
    """By single points, wherever a whole turn brings them."""
    return [
        any(shape.intersects(shapely.Point(x + turn, y)) for turn in TURNS)
        for x, y in zip(longitude, latitude, strict=True)
    ]


@pytest.mark.parametrize("seed", keep_quick(range(CASES), *range(100)))
def test_accepted_geometries_are_literals_of_queries_and_others_are_not(seed: int) -> None:
    chance = np.random.default_rng(seed)
    shape = random_shape(chance)
    literal = query_of(shape)
    order, flavor = int(chance.integers(2)), str(chance.choice(["iso", "extended"]))
    stored = stored_of(column(shapely.to_wkb(shape, byte_order=order, flavor=flavor)))
    assert (stored is None) == (literal is None), shape.wkt
    if stored is None:
        return
    assert stored.equals_exact(shapely.force_2d(shape)), shape.wkt
    longitude, latitude = points_about(stored, chance)
    query = query_of(stored)
    found = matches(query, longitude, latitude)
    assert found == intersects(stored, longitude, latitude), shape.wkt
    assert found == matches(literal, longitude, latitude), shape.wkt
    for text in (to_wkt(column(stored.wkb)), shapely.to_geojson([shape])):
        assert stored_of(column(*text)).equals_exact(stored), shape.wkt


def damaged(value: bytes, chance: np.random.Generator) -> bytes:
    """WKB with some bytes changed, cut off, or repeated."""
    changed = bytearray(value)
    for _ in range(chance.integers(0, 3)):
        place = int(chance.integers(len(changed)))
        choice = chance.integers(4)
        if choice == 0:  # Kinds, flags and counts are there.
            changed[place % 12] = int(chance.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 32, 128, 255]))
        elif choice == 1:
            changed[place] = int(chance.integers(256))
        elif choice == 2:
            del changed[max(place, 1) :]
        else:
            changed[place:place] = changed[: int(chance.integers(len(changed)))]
    return bytes(changed)


def shape_by_geos(value: bytes) -> Any:
    """What GEOS makes of WKB alone; None where it is no WKB."""
    try:
        shape = shapely.from_wkb(value)
        return shape if value[0] <= 1 and shapely.get_srid(shape) in (0, 4326) else None
    except (shapely.errors.ShapelyError, NotImplementedError):
        return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.slow
def test_damaged_wkb_is_what_queries_make_of_it_or_refused() -> None:
    chance, outcomes = np.random.default_rng(11), {True: 0, False: 0}
    for _ in range(1_500):
        is_iso, order = bool(chance.integers(2)), int(chance.integers(2))
        shape = shapely.set_srid(random_shape(chance), int(chance.choice([0, 0, 4326])))
        flavor = "iso" if is_iso else "extended"
        whole = shapely.to_wkb(shape, byte_order=order, include_srid=not is_iso, flavor=flavor)
        value = damaged(whole, chance)
        given, stored = shape_by_geos(value), stored_of(column(value))
        literal = None if given is None else query_of(given)
        assert (stored is None) == (literal is None), value.hex()
        outcomes[stored is None] += 1
        if stored is not None:
            assert query_of(stored) is not None, value.hex()
    assert min(outcomes.values()) > 200


def test_geometries_of_a_column_are_those_of_its_rows() -> None:
    chance = np.random.default_rng(7)
    values = [shapely.to_wkb(random_shape(chance)) for _ in range(1_000)]
    alone = [stored_of(column(value)) for value in values]
    accepted = [(v, s) for v, s in zip(values, alone, strict=True) if s is not None]
    assert len(accepted) > len(values) // 4
    whole = to_stored(column(*(value for value, _ in accepted)))
    assert whole.to_pylist() == [
        shapely.to_wkb(shape, byte_order=1, output_dimension=2) for _, shape in accepted
    ]
    row = next(row for row, shape in enumerate(alone) if shape is None)
    with pytest.raises(InputError) as refused:
        to_stored(column(*values[: row + 1]))
    assert refused.value.details["row"] == row


@pytest.mark.parametrize("seed", keep_quick(range(100), *range(30)))
def test_boxes_mean_the_same_in_tables_and_queries(seed: int) -> None:
    chance = np.random.default_rng(seed)
    longitude = chance.choice([-360, -181, -180, -5, 0, 5, 180, 190, 360, 361], 2).astype(float)
    latitude = chance.choice([-91, -90, -5, 0, 5, 90], 2).astype(float)
    box = [longitude[0], latitude[0], longitude[1], latitude[1]]
    literal, stored = query_of(box), stored_of(column(box))
    assert (stored is None) == (literal is None), box
    if stored is None:
        return
    places = chance.uniform([-180, -90], [180, 90], (50, 2)).T
    again = query_of(json.loads(shapely.to_geojson(stored)))
    assert matches(literal, *places) == matches(again, *places), box
