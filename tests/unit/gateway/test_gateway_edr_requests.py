"""Requests of EDR as conditions; what is wrong in them is named."""

from __future__ import annotations

import numpy as np
import pytest
from expected_errors import raises
from starlette.datastructures import QueryParams

import galileo
from galileo.errors import InputError
from galileo.gateway.edr_requests import (
    PARAMETERS,
    POLYGON_VERTICES_MAX,
    TRAJECTORY_M,
    EdrSelection,
    Positions,
    edr_request,
    location_feature,
)

SCHEMA = galileo.Schema(
    "weather",
    [
        galileo.Feature("temperature", unit="K"),
        galileo.Feature("station", type="text"),
        galileo.Feature("note", type="text", indexed=False),
    ],
)
LINE = "LINESTRING(0 0, 1 1)"
RING = "0 0," + ",".join(f"{x} 1" for x in range(POLYGON_VERTICES_MAX))


@pytest.mark.parametrize(
    ("kind", "text", "query"),
    [
        (
            "area",
            "coords=POLYGON((1 2,3 2,3 4,1 2))&datetime=2014-03-01T06:00:00Z/..",
            "S_INTERSECTS(geometry, POLYGON((1 2, 3 2, 3 4, 1 2))) AND "
            "datetime >= TIMESTAMP('2014-03-01T06:00:00Z')",
        ),
        (
            "area",
            "coords=polygon((2 1,2 3,4 3,2 1))&crs=EPSG:4326",
            "S_INTERSECTS(geometry, POLYGON((1 2, 3 2, 3 4, 1 2)))",
        ),
        ("cube", "bbox=1,2,3,4&z=9", "S_INTERSECTS(geometry, BBOX(1, 2, 3, 4))"),
        ("cube", "bbox=2,1,4,3&crs=EPSG:4326", "S_INTERSECTS(geometry, BBOX(1, 2, 3, 4))"),
        (
            "radius",
            "coords=POINT(190 2)&within=3&within-units=KM",
            "DWITHIN(geometry, POINT(-170 2), 3000)",
        ),
    ],
)
def test_edr_request_has_the_condition(kind: str, text: str, query: str) -> None:
    wanted = edr_request(kind, QueryParams(text), SCHEMA, "")
    assert isinstance(wanted.where, EdrSelection)
    assert str(wanted.condition(wanted.where.condition)) == query
    assert wanted.features == SCHEMA.features
    assert wanted.format == "coveragejson"


def test_edr_request_of_positions_has_each_point_once() -> None:
    text = "coords=MULTIPOINT((3 4), (1 2), (3 4))&parameter-name=station,temperature"
    wanted = edr_request("position", QueryParams(text), SCHEMA, "")
    assert isinstance(wanted.where, Positions)
    assert wanted.where.points.tolist() == [[1, 2], [3, 4]]
    assert [feature.name for feature in wanted.features] == ["station", "temperature"]


def test_edr_request_of_a_line_has_its_corridor() -> None:
    trajectory = edr_request("trajectory", QueryParams({"coords": LINE}), SCHEMA, "").where
    text = f"coords={LINE}&corridor-width=20&width-units=km&corridor-height=1&height-units=m"
    corridor = edr_request("corridor", QueryParams(text), SCHEMA, "").where
    for where in (trajectory, corridor):
        assert isinstance(where, EdrSelection)
        assert where.corridor is not None
        assert where.corridor.radius_m == TRAJECTORY_M == 10_000
        assert np.array_equal(where.corridor.ends, [[1, 1]])


@pytest.mark.parametrize(
    ("kind", "text", "parameter"),
    [
        ("position", "", "coords"),
        ("position", "coords=LINESTRING(0 0,1 1)", "coords"),
        ("position", "coords=POINT(0 91)", "coords"),
        ("position", "coords=POINT(1e999 0)", "coords"),
        ("position", "coords=POINT(1 2 3)", "coords"),
        ("position", "coords=POINT EMPTY", "coords"),
        ("position", f"coords=MULTIPOINT({','.join(f'{x} 1' for x in range(21))})", "coords"),
        ("position", "coords=POINT(1 2)&within=3", "within"),
        ("position", "coords=POINT(1 2)&crs=EPSG:25832", "crs"),
        ("position", "coords=POINT(1 2)&crs=EPSG:3857&f=csv", "crs"),
        ("position", "coords=POINT(1 2)&f=xml", "f"),
        ("position", "coords=POINT(1 2)&parameter-name=temprature", "parameter-name"),
        ("position", "coords=POINT(1 2)&parameter-name=", "parameter-name"),
        ("position", "coords=POINT(1 2)&datetime=x", "datetime"),
        ("position", "coords=POINT(1 2)&z=0/10", "z"),
        ("position", "coords=GEOMETRYCOLLECTION(" * 3_000, "coords"),
        ("area", f"coords=POLYGON(({RING}))", "coords"),
        ("area", "coords=POLYGON((0 0,1 1,1 0,0 1,0 0))", "coords"),
        ("area", "coords=POLYGON((0 0,1 1))", "coords"),
        ("area", "coords=POINT(0 0)", "coords"),
        ("cube", "", "bbox"),
        ("cube", "bbox=1,2,3", "bbox"),
        ("radius", "coords=POINT(1 2)&within=3", "within-units"),
        ("radius", "coords=POINT(1 2)&within-units=m", "within"),
        ("radius", "coords=POINT(1 2)&within=-3&within-units=m", "within"),
        ("radius", "coords=POINT(1 2)&within=nan&within-units=m", "within"),
        ("radius", "coords=POINT(1 2)&within=1e999&within-units=m", "within"),
        ("radius", "coords=POINT(1 2)&within=3&within-units=furlong", "within-units"),
        ("trajectory", "coords=LINESTRING(0 0)", "coords"),
        ("trajectory", "coords=LINESTRING(0 0, 180 0)", "coords"),
        ("corridor", f"coords={LINE}&corridor-width=2", "width-units"),
        ("corridor", f"coords={LINE}&width-units=km", "corridor-width"),
        ("location", "coords=POINT(1 2)", "coords"),
    ],
)
def test_edr_request_with_a_wrong_parameter_names_it(kind: str, text: str, parameter: str) -> None:
    with raises(InputError, parameter=parameter):
        edr_request(kind, QueryParams(text), SCHEMA, "")


@pytest.mark.parametrize("kind", PARAMETERS)
def test_edr_request_takes_the_parameters_of_its_kind(kind: str) -> None:
    values = {
        "coords": {"area": "POLYGON((0 0,1 0,1 1,0 0))", "radius": "POINT(1 2)"}.get(kind, LINE),
        "within-units": "nmi",
        "width-units": "mi",
        "within": "5",
        "corridor-width": "5",
        "bbox": "1,2,3,4",
        "datetime": "../..",
        "crs": "CRS84",
        "f": "GeoJSON",
        "parameter-name": "note",
    }
    if kind == "position":
        values["coords"] = "POINT(1 2)"
    given = {name: values.get(name, "1") for name in PARAMETERS[kind]}
    wanted = edr_request(kind, QueryParams(given), SCHEMA, "")
    assert (wanted.format, [one.name for one in wanted.features]) == ("geojson", ["note"])


def test_locations_are_of_the_only_indexed_text_feature() -> None:
    other = galileo.Feature("country", type="text")
    assert location_feature(SCHEMA) == "station"
    assert location_feature(galileo.Schema("two", [*SCHEMA.features, other])) == ""
    assert location_feature(galileo.Schema("none", [galileo.Feature("t")])) == ""
