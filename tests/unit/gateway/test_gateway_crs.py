"""Coordinate reference systems of a gateway, against PROJ."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

import galileo
from galileo.errors import InputError
from galileo.gateway.crs import ALL, CRS84, EPSG_3857, EPSG_4326, Crs, crs_of
from galileo.query.cql_syntax import read

pyproj = pytest.importorskip("pyproj", reason="needs pyproj, of the extra plots")


def places(rows: int = 500) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    longitude = np.append(random.uniform(-180, 180, rows), [0, 180, -180, 10])
    return longitude, np.append(random.uniform(-89, 89, rows), [0, 85.06, -85.06, -89.99])


@pytest.mark.parametrize("crs", ALL, ids=lambda crs: crs.uri.rpartition("/")[2])
def test_positions_are_those_of_proj(crs: Crs) -> None:
    longitude, latitude = places()
    table = pa.table({"latitude": latitude, "longitude": longitude, "n": np.arange(len(latitude))})
    converted = crs.positions(table)
    authority, code = ("OGC", "CRS84") if crs is CRS84 else ("EPSG", crs.uri.rpartition("/")[2])
    to = pyproj.Transformer.from_crs("OGC:CRS84", f"{authority}:{code}")
    expected = np.stack(to.transform(longitude, latitude), axis=1)
    found = np.stack([converted[name].to_numpy() for name in ("longitude", "latitude")], axis=1)
    assert np.allclose(found, expected, rtol=1e-13, atol=1e-8)
    assert converted.column_names == table.column_names
    assert np.allclose(crs.to_degrees(found), np.stack([longitude, latitude], axis=1), atol=1e-9)
    assert pyproj.CRS.from_wkt(crs.wkt).name.startswith("WGS 84")


def test_poles_have_no_position_in_web_mercator() -> None:
    table = pa.table({"latitude": [90.0, -90.0, 0.0], "longitude": [1.0, 2.0, 3.0]})
    texts = json.loads(galileo.to_geojson(EPSG_3857.positions(table)))["features"]
    assert [feature["geometry"] is None for feature in texts] == [True, True, False]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("S_INTERSECTS(geometry, POINT(40 -105))", "S_INTERSECTS(geometry, POINT(-105 40))"),
        (
            "S_WITHIN(geometry, MULTIPOLYGON(((1 10, 2 20, 3 10, 1 10)))) OR t > 1",
            "S_WITHIN(geometry, MULTIPOLYGON(((10 1, 20 2, 10 3, 10 1)))) OR t > 1",
        ),
        ("NOT DWITHIN(geometry, POINT(40 -105), 5)", "NOT DWITHIN(geometry, POINT(-105 40), 5)"),
        (
            "S_INTERSECTS(geometry, BBOX(1, 10, 2, 20))",
            "S_INTERSECTS(geometry, BBOX(10, 1, 20, 2))",
        ),
        ("true", "true"),
    ],
)
def test_geometries_of_filters_are_in_degrees(filter: str, expected: str) -> None:
    assert EPSG_4326.filter_in_degrees(read(filter)) == read(expected)
    assert CRS84.filter_in_degrees(read(filter)) == read(filter)


@pytest.mark.parametrize(
    "coordinates",
    [1, None, ["a", "b"], [1], [[1, 2], [3]], [[1, 2], 3], [[[1, {}]]], [10**400, 1], [None, 1]],
)
def test_filter_with_coordinates_that_are_none_is_refused(coordinates: object) -> None:
    tree = {"op": "s_intersects", "args": [{"type": "Polygon", "coordinates": coordinates}]}
    with raises(InputError, parameter="filter"):
        EPSG_4326.filter_in_degrees(tree)


def test_filter_nested_too_deep_is_refused() -> None:
    tree: object = True
    for _ in range(2_000):
        tree = {"op": "not", "args": [tree]}
    with raises(InputError, parameter="filter"):
        EPSG_3857.filter_in_degrees(tree)
    tree = 1
    for _ in range(2_000):
        tree = [tree]
    with raises(InputError, parameter="filter"):
        EPSG_3857.filter_in_degrees({"type": "Point", "coordinates": tree})


@pytest.mark.parametrize("name", ["EPSG:3857", "[EPSG:3857]", "epsg:3857", EPSG_3857.uri])
def test_systems_have_short_names(name: str) -> None:
    assert crs_of({"crs": name}, "crs") is EPSG_3857
    assert crs_of({}, "crs") is CRS84


def test_unknown_system_is_refused() -> None:
    with raises(InputError, parameter="bbox-crs"):
        crs_of({"bbox-crs": "EPSG:25832"}, "bbox-crs")
