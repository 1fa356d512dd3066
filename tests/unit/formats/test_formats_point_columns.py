"""Points of GeoParquet and GeoArrow become latitudes and longitudes; others are refused."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from expected_errors import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galileo.errors import InputError, InvalidObservations
from galileo.formats import Mapping, open_source
from galileo.formats.memory_file import MemoryFile
from galileo.formats.strict_source import StrictSource
from galileo.geo.points import positions
from galileo.model.schema import Feature, Schema

POINTS = [shapely.Point(-105.5, 40.25), None, shapely.Point(8.5, -47.0), shapely.Point()]


def frame(shapes: list[Any], crs: Any = 4326, **columns: Any) -> Any:
    time = pd.to_datetime(["2020-01-01T06:00Z"] * len(shapes))
    data = {"t": np.arange(float(len(shapes))), "time": time, **columns}
    return geopandas.GeoDataFrame(data, geometry=shapes, crs=crs)


def write_wkb(frame: Any, path: Path) -> None:
    frame.to_parquet(path)


def write_geoarrow(frame: Any, path: Path) -> None:
    frame.to_parquet(path, geometry_encoding="geoarrow", row_group_size=2)


def write_feather(frame: Any, path: Path) -> None:
    frame.to_feather(path)


WRITERS = pytest.mark.parametrize("write", [write_wkb, write_geoarrow, write_feather])
Write = Callable[[Any, Path], None]


def read(path: Path, *maps: str) -> pa.Table:
    return pa.concat_tables(open_source(path, mapping=Mapping.parse(maps)).batches())


@WRITERS
@pytest.mark.parametrize("crs", [4326, "OGC:CRS84"])
def test_points_are_places_as_in_geopandas(tmp_path: Path, write: Write, crs: Any) -> None:
    path = tmp_path / "points.data"
    write(frame(POINTS, crs), path)
    source = open_source(path)
    table = pa.concat_tables(source.batches())
    expected = frame(POINTS).dropna(subset="geometry")
    expected = expected[~expected.is_empty]
    assert source.lacking["latitude"] == 2
    assert table.column_names == ["latitude", "longitude", "time", "t"]
    assert table.column("latitude").to_pylist() == expected.geometry.y.to_list()
    assert table.column("longitude").to_pylist() == expected.geometry.x.to_list()
    assert table.column("t").to_pylist() == [0.0, 2.0]


@WRITERS
def test_distances_beside_points_are_features(tmp_path: Path, write: Write) -> None:
    write(frame(POINTS[:1], x=[500_000.0], y=[4_000_000.0]), tmp_path / "points.data")
    [row] = read(tmp_path / "points.data").to_pylist()
    assert (row["latitude"], row["x"], row["y"]) == (40.25, 500_000.0, 4_000_000.0)


def test_named_columns_and_mapped_ones_have_priority(tmp_path: Path) -> None:
    path = tmp_path / "points.parquet"
    write_wkb(frame(POINTS[:1], lat=[1.0], lon=[2.0]), path)
    assert read(path).column("latitude").to_pylist() == [1.0]
    write_wkb(frame(POINTS[:1], north=[3.0]), path)
    table = read(path, "latitude=north", "longitude=7", "t=t")
    assert table.column("latitude").to_pylist() == [3.0]


def test_heights_and_other_forms_of_wkb_are_read(tmp_path: Path) -> None:
    forms = {
        "height": shapely.to_wkb(shapely.Point(1, 2, 3)),
        "iso height": shapely.to_wkb(shapely.Point(1, 2, 3), flavor="iso"),
        "big-endian": shapely.to_wkb(shapely.Point(1, 2), byte_order=0),
        "srid": shapely.to_wkb(shapely.set_srid(shapely.Point(1, 2), 4326), include_srid=True),
    }
    for name, wkb in forms.items():
        x, y = positions(pa.array([None, wkb, shapely.to_wkb(shapely.Point(3, 4))], pa.binary()))
        assert np.isnan(x[0]), name
        assert (x[1:].tolist(), y[1:].tolist()) == ([1.0, 3.0], [2.0, 4.0]), name


@pytest.mark.parametrize(
    "crs", [3857, 4269, 25832, 'LOCAL_CS["a"]', None], ids=["mercator", "nad83", "utm", "map", "-"]
)
@WRITERS
def test_other_reference_systems_are_refused(tmp_path: Path, write: Write, crs: Any) -> None:
    write(frame(POINTS[:1], crs), tmp_path / "points.data")
    if crs is None and write is write_geoarrow:
        write = write_wkb
    with raises(InputError, expected="crs"):
        open_source(tmp_path / "points.data")


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (shapely.LineString([(0, 0), (1, 1)]), "LineString"),
        (shapely.box(0, 0, 1, 1), "Polygon"),
        (shapely.MultiPoint([(0, 0), (1, 1)]), "MultiPoint"),
    ],
)
def test_other_geometries_are_refused_with_their_row(tmp_path: Path, shape: Any, name: str) -> None:
    path = tmp_path / "points.parquet"
    write_wkb(frame([*POINTS, shape, *POINTS]), path)
    with raises(InvalidObservations, expected="points", row=4) as caught:
        read(path)
    assert f"got a {name} in row 4 of {path}" in str(caught.value)
    assert "galileo table upsert" in caught.value.command_message


@pytest.mark.parametrize(
    ("wkb", "expected"),
    [
        (b"", "geometry_type"),
        (b"\1\1\0\0\0", "coordinates"),
        (b"\2\1\0\0\0" + bytes(16), "geometry_type"),
        (struct.pack("<BI", 1, 99) + bytes(16), "geometry_type"),
        (struct.pack("<BIIdd", 1, 0x2000_0001, 3857, 1, 2), "crs"),
    ],
)
def test_malformed_points_are_refused_with_their_row(wkb: bytes, expected: str) -> None:
    plain = pa.array([None, shapely.to_wkb(shapely.Point(1, 2)), wkb], pa.binary())
    for column in (plain, plain.dictionary_encode(), plain.cast(pa.large_binary())):
        with raises(InputError, expected=expected, row=2):
            positions(column)


def with_geo(table: pa.Table, geo: bytes, path: Path) -> Path:
    pq.write_table(table.replace_schema_metadata({b"geo": geo}), path)
    return path


def test_metadata_that_fits_no_column_is_refused(tmp_path: Path) -> None:
    table = pa.table({"t": [1.0], "time": ["2020-01-01"], "geometry": [7]})
    geo = json.dumps({"primary_column": "geometry", "columns": {}}).encode()
    for metadata in (geo, b"{}", b"not JSON"):
        with raises(InputError, expected="points"):
            open_source(with_geo(table, metadata, tmp_path / "x.parquet"))
    with raises(InputError, expected="points"):
        open_source(with_geo(table.select(["t", "time"]), geo, tmp_path / "x.parquet"))


def test_many_rows_of_one_large_geometry_take_little_memory(tmp_path: Path) -> None:
    """A dictionary stores once what decoded would take gigabytes."""
    large = shapely.to_wkb(shapely.Point(1, 2).buffer(1, quad_segs=20_000))
    rows = 2_000
    table = pa.table(
        {
            "t": np.zeros(rows),
            "time": pa.array(["2020-01-01"] * rows),
            "geometry": pa.DictionaryArray.from_arrays(
                np.zeros(rows, np.int32), pa.array([large], pa.binary())
            ),
        }
    )
    geo = json.dumps({"primary_column": "geometry", "columns": {"geometry": {}}}).encode()
    path = with_geo(table, geo, tmp_path / "x.parquet")
    assert path.stat().st_size < 3 << 20
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        with raises(InvalidObservations, expected="points", row=0):
            read(path)
    finally:
        pa.set_memory_pool(usual)
    assert 0 < (pool.max_memory() or 0) < 64 << 20


def test_body_of_points_is_read_and_bounded() -> None:
    schema = Schema("s", [Feature("t")])
    sink = io.BytesIO()
    frame(POINTS[:1]).to_parquet(sink)
    with MemoryFile() as body:
        body.write(sink.getvalue())
        [table] = StrictSource(body.path, "parquet", schema).batches()
    assert table.column("latitude").to_pylist() == [40.25]


degrees = st.floats(-90, 90).map(lambda number: round(number, 6))


@given(st.lists(st.none() | st.tuples(degrees, degrees, st.booleans()), min_size=1, max_size=8))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_points_are_those_that_geopandas_reads(tmp_path: Path, places: list[Any]) -> None:
    shapes = [place and shapely.Point(*place[:2], *([5.0] if place[2] else [])) for place in places]
    path = tmp_path / "points.parquet"
    write_wkb(frame(shapes), path)
    tables = list(open_source(path).batches())
    rows = [row for table in tables for row in table.to_pylist()]
    again = geopandas.read_parquet(path).dropna(subset="geometry")
    assert [row["t"] for row in rows] == again["t"].to_list()
    assert [row["latitude"] for row in rows] == again.geometry.y.to_list()
    assert [row["longitude"] for row in rows] == again.geometry.x.to_list()
