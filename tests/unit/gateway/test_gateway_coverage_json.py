"""CoverageJSON that was made by columns, against its reading value by value."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from covjson_pydantic.coverage import Coverage, CoverageCollection
from expected_errors import raises
from generated_schemas import schemas, tables
from hypothesis import given, settings
from hypothesis import strategies as st

import galileo
from galileo.errors import InputError
from galileo.gateway import coverage_json
from galileo.gateway.coverage_json import DATA_TYPES, encode
from galileo.gateway.crs import ALL, CRS84, EPSG_3857, EPSG_4326, Crs
from galileo.model.times import iso, micros
from galileo.rdf.terms import STANDARD_NAME

SCHEMA = galileo.Schema(
    "weather",
    [
        galileo.Feature("temperature", unit="K"),
        galileo.Feature("station", type="text"),
        galileo.Feature("count", unit="things", type="int"),
        galileo.Feature("rising", type="bool"),
    ],
)


def observations(rows: int) -> pa.Table:
    """At few places and times, so that some are equal."""
    random = np.random.default_rng(rows)
    temperatures = [None, float("nan"), 1e-300, *random.normal(280, 9, rows)][:rows]
    return pa.table(
        {
            "latitude": random.integers(-2, 3, rows).astype(float),
            "longitude": random.integers(-2, 3, rows).astype(float) / 3,
            "time": pa.array(random.integers(-4, 9, rows) * 500_000, pa.timestamp("us", "UTC")),
            "temperature": pa.array(temperatures, pa.float64(), from_pandas=False),
            "station": [['a "b"\n', None, "é"][at] for at in random.integers(0, 3, rows)],
            "count": random.integers(-(2**62), 2**62, rows),
            "rising": [[True, False, None][at] for at in random.integers(0, 3, rows)],
        },
        schema=SCHEMA.observation_schema,
    )


def encoded(
    table: pa.Table, *, crs: Crs = CRS84, location: str = "", single: bool = False
) -> dict[str, Any]:
    pieces = encode(table, SCHEMA.features, crs=crs, location=location, single=single)
    data = b"".join(pieces)
    document: dict[str, Any] = json.loads(data)
    model = Coverage if document["type"] == "Coverage" else CoverageCollection
    model.model_validate_json(data)
    return document


def expected_rows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    rows = Counter[tuple[Any, ...]]()
    micros = table["time"].cast(pa.int64()).to_pylist()
    for row, at in zip(table.to_pylist(), micros, strict=True):
        value = row["temperature"]
        temperature = value if value == value else None
        rising = None if row["rising"] is None else int(row["rising"])
        values = temperature, row["station"], row["count"], rising
        rows[row["longitude"], row["latitude"], iso(at), *values] += 1
    return rows


def read_rows(coverages: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """The rows of point series, whose times are in order and differ."""
    rows = Counter[tuple[Any, ...]]()
    for coverage in coverages:
        axes, ranges = coverage["domain"]["axes"], coverage["ranges"]
        times = axes["t"]["values"]
        assert (np.diff([micros(at) for at in times]) > 0).all(), "a series has each time once"
        [x], [y] = axes["x"]["values"], axes["y"]["values"]
        assert list(ranges) == [feature.name for feature in SCHEMA.features]
        for feature in SCHEMA.features:
            array = ranges[feature.name]
            assert array["dataType"] == DATA_TYPES[feature.type]
            assert (array["shape"], array["axisNames"]) == ([len(times)], ["t"])
        columns = [array["values"] for array in ranges.values()]
        for at, *values in zip(times, *columns, strict=True):
            rows[x, y, at, *values] += 1
    return rows


@pytest.mark.parametrize("location", ["", "station"])
@pytest.mark.parametrize(("rows", "piece_rows"), [(0, 9), (1, 9), (2, 1), (400, 9), (400, 4_000)])
def test_coverages_have_each_observation_once(
    rows: int, piece_rows: int, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage_json, "PIECE_ROWS", piece_rows)
    table = observations(rows)
    document = encoded(table, location=location)
    assert (document["type"], document["domainType"]) == ("CoverageCollection", "PointSeries")
    assert set(document["parameters"]) == {feature.name for feature in SCHEMA.features}
    coverages = document["coverages"]
    assert read_rows(coverages) == expected_rows(table)
    if location:
        stations = [set(coverage["ranges"]["station"]["values"]) for coverage in coverages]
        assert all(len(names) == 1 for names in stations), "a series is of one station"
    elif rows:
        assert 0 < len(coverages) < rows or rows < 3


def test_single_series_is_a_coverage_of_its_own() -> None:
    table = observations(1)
    document = encoded(table, crs=EPSG_4326, single=True)
    assert document["type"] == "Coverage"
    assert document["domain"]["domainType"] == "PointSeries"
    assert read_rows([document]) == expected_rows(table)
    assert document["domain"]["referencing"][0]["coordinates"] == ["y", "x"]
    assert document["parameters"]["temperature"]["unit"]["id"].endswith("/unit/K")
    assert "id" not in document["parameters"]["count"]["unit"]
    assert "unit" not in document["parameters"]["rising"]


@pytest.mark.parametrize("crs", ALL, ids=lambda crs: crs.uri.rpartition("/")[2])
def test_places_are_in_the_system_that_is_named(crs: Crs) -> None:
    table = observations(5)
    document = encoded(table, crs=crs)
    assert document["referencing"][0]["system"] == {"type": crs.kind, "id": crs.uri}
    places = {
        (axes["x"]["values"][0], axes["y"]["values"][0])
        for axes in (coverage["domain"]["axes"] for coverage in document["coverages"])
    }
    degrees = (table[name].to_numpy() for name in ("longitude", "latitude"))
    assert places == set(zip(*map(np.ndarray.tolist, crs.from_degrees(*degrees)), strict=True))


@settings(max_examples=10)
@given(case=schemas.flatmap(lambda schema: st.tuples(st.just(schema), tables(schema))))
def test_random_observations_come_back_with_what_describes_them(
    case: tuple[galileo.Schema, pa.Table],
) -> None:
    schema, table = case
    data = b"".join(encode(table, schema.features, crs=CRS84, single=False))
    CoverageCollection.model_validate_json(data)
    document = json.loads(data)
    read = [
        read_feature(feature, document["parameters"][feature.name]) for feature in schema.features
    ]
    assert read == [
        dataclasses.replace(feature, unit="") if feature.flags else feature
        for feature in schema.features
    ]
    rows = [read_coverage(coverage, schema) for coverage in document["coverages"]]
    order = [("latitude", "ascending")]
    assert (
        pa.concat_tables(rows)
        .sort_by(order)
        .equals(table.cast(schema.observation_schema).sort_by(order))
    )


def read_feature(feature: galileo.Feature, parameter: dict[str, Any]) -> galileo.Feature:
    """The feature with what a parameter says of it, which is not its type and its index."""
    observed = parameter["observedProperty"]
    flags = {value: meaning for meaning, value in parameter.get("categoryEncoding", {}).items()}
    assert [one["id"] for one in observed.get("categories", [])] == [*flags.values()]
    description = parameter["description"]["en"]
    return dataclasses.replace(
        feature,
        unit=parameter.get("unit", {}).get("symbol", ""),
        standard_name=observed["id"].removeprefix(STANDARD_NAME)
        if observed["id"].startswith(STANDARD_NAME)
        else "",
        description="" if description == feature.name else description,
        flags=flags,
    )


def read_coverage(coverage: dict[str, Any], schema: galileo.Schema) -> pa.Table:
    axes = {axis: each["values"] for axis, each in coverage["domain"]["axes"].items()}
    count = len(axes["t"])
    times = [micros(time) for time in axes["t"]]
    columns = {
        "latitude": pa.array(axes["y"] * count),
        "longitude": pa.array(axes["x"] * count),
        "time": pa.array(times, pa.timestamp("us", "UTC")),
    }
    for feature in schema.features:
        values = coverage["ranges"][feature.name]["values"]
        python_type = {"bool": bool, "float": float, "float32": float}.get(feature.type)
        if python_type is not None:
            values = [None if value is None else python_type(value) for value in values]
        columns[feature.name] = pa.array(values, feature.arrow_type)
    return pa.table(columns, schema=schema.observation_schema)


def test_pole_in_web_mercator_and_too_many_series_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = observations(3).set_column(0, "latitude", pa.array([0.0, 90.0, 1.0]))
    encoded(table, crs=EPSG_4326)
    with raises(InputError, parameter="crs"):
        encoded(table, crs=EPSG_3857)
    monkeypatch.setattr(coverage_json, "SERIES_MAX", 2)
    with raises(InputError, parameter="f", bound=2):
        encoded(table)
