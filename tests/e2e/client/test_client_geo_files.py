from __future__ import annotations

import json
import sys
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

import galileo
from galileo.client.geo_files import PIECE_ROWS
from galileo.errors import InputError, MissingExtra
from galileo.geo import geohash
from galileo.model.times import times_from_micros

SCHEMA = galileo.Schema(
    "buoys", [galileo.Feature("t", "K"), galileo.Feature("name", type="text")], geohash_precision=3
)


def observations(rows: int = 5) -> pa.Table:
    rng = np.random.default_rng(rows)
    return pa.table(
        {
            "latitude": rng.uniform(-90, 90, rows),
            "longitude": rng.uniform(-180, 180, rows),
            "time": times_from_micros(np.arange(rows) * 1_000_000),
            "t": pa.array([None, *rng.normal(size=rows - 1)][:rows], pa.float64()),
            "name": pa.array(['a "quoted"\n'] * rows),
        },
        schema=SCHEMA.observation_schema,
    )


def labels(places: list[tuple[float, float]]) -> galileo.Labels:
    latitude, longitude = np.array(places).T
    rows = len(places)
    columns = {
        "cell": geohash.encode(latitude, longitude, 3),
        "bucket": times_from_micros(np.zeros(rows, dtype=np.int64)),
        "t": np.arange(rows, dtype=np.float64),
        "name": [None] * rows,
        "row": np.arange(rows, dtype=np.int32),
        "rows": np.ones(rows, dtype=np.int32),
        "partition": np.zeros(rows, dtype=np.int32),
        "sequence": np.ones(rows, dtype=np.int64),
    }
    return galileo.Labels(SCHEMA, pa.table(columns, schema=SCHEMA.label_schema))


AROUND = [(0.1, 179.99), (0.1, -179.99), (89.9, 0.0), (-89.9, 10.0), (51.5, -0.1)]


def geo(path: Path) -> Any:
    return json.loads(pq.read_metadata(path).metadata[b"geo"])


def test_write_geoparquet_of_observations_has_points(tmp_path: Path) -> None:
    table, path = observations(), tmp_path / "o.parquet"
    galileo.write_geoparquet(table, path)
    frame = geopandas.read_parquet(path)
    assert frame.crs == "OGC:CRS84"
    np.testing.assert_array_equal(frame.geometry.x, table.column("longitude").to_numpy())
    np.testing.assert_array_equal(frame.geometry.y, table.column("latitude").to_numpy())
    assert pq.read_table(path).drop_columns(["geometry"]).equals(table)
    [column] = geo(path)["columns"].values()
    assert column["bbox"] == list(frame.total_bounds)


def test_write_geoparquet_of_labels_has_rectangles(tmp_path: Path) -> None:
    held, path = labels(AROUND), tmp_path / "l.parquet"
    galileo.write_geoparquet(held, path)
    frame = geopandas.read_parquet(path)
    assert shapely.equals(frame.geometry.array, held.to_geopandas().geometry.array).all()
    assert frame.geometry.exterior.is_ccw.all()
    assert frame["geohash"].tolist() == held.geohashes().to_pylist()


def test_write_geoparquet_metadata_is_version_1_1(tmp_path: Path) -> None:
    """Required fields and values of the specification's JSON schema."""
    for data, kind in ((observations(), "Point"), (labels(AROUND), "Polygon")):
        galileo.write_geoparquet(data, tmp_path / "x.parquet")
        result = geo(tmp_path / "x.parquet")
        assert set(result) == {"version", "primary_column", "columns"}
        assert result["version"] == "1.1.0"
        assert list(result["columns"]) == [result["primary_column"]] == ["geometry"]
        column = result["columns"]["geometry"]
        assert set(column) == {"encoding", "geometry_types", "orientation", "bbox"}
        assert (column["encoding"], column["geometry_types"]) == ("WKB", [kind])
        assert column["orientation"] == "counterclockwise"
        assert len(column["bbox"]) == 4
        field = pq.read_schema(tmp_path / "x.parquet").field("geometry")
        assert field.type == pa.binary()


@pytest.mark.parametrize("write", [galileo.write_geoparquet, galileo.write_geojson])
def test_write_geo_file_of_pieces_equals_the_whole(write: Any, tmp_path: Path) -> None:
    table = observations(40)
    write(table, tmp_path / "whole.x")
    write((table.slice(at, 7) for at in range(0, 40, 7)), tmp_path / "pieces.x")
    read = geopandas.read_parquet if write is galileo.write_geoparquet else read_geojson
    pd.testing.assert_frame_equal(read(tmp_path / "whole.x"), read(tmp_path / "pieces.x"))


def read_geojson(path: Path) -> Any:
    return geopandas.GeoDataFrame.from_features(json.loads(path.read_text())["features"])


@pytest.mark.parametrize("write", [galileo.write_geoparquet, galileo.write_geojson])
def test_write_geo_file_of_an_empty_table_is_valid(write: Any, tmp_path: Path) -> None:
    write(SCHEMA.observation_schema.empty_table(), tmp_path / "empty")
    if write is galileo.write_geojson:
        result = json.loads((tmp_path / "empty").read_text())
        assert result == {"type": "FeatureCollection", "features": []}
    else:
        assert len(geopandas.read_parquet(tmp_path / "empty")) == 0
    with raises(InputError):
        write([], tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize("write", [galileo.write_geoparquet, galileo.write_geojson])
def test_write_geo_file_of_an_empty_answer_has_all_columns(
    client: galileo.Client, fresh_name: Callable[[str], str], write: Any, tmp_path: Path
) -> None:
    name = fresh_name("empty-files")
    client.create_dataset(galileo.Schema(name, SCHEMA.features))
    client.ingest(name, observations())
    for query, exact in (("", True), ("t > 1e6", True), ("t > 1e6", False)):
        labels = client.query(name, query)
        assert bool(len(labels)) is (query == "")
        write(client.read(labels), tmp_path / "whole")
        write(client.read_batches(labels, exact=exact), tmp_path / "pieces")
        assert_same_file(tmp_path / "whole", tmp_path / "pieces")
        write(labels, tmp_path / "whole")
        write(client.query_batches(name, query), tmp_path / "pieces")
        assert_same_file(tmp_path / "whole", tmp_path / "pieces")


def assert_same_file(one: Path, other: Path) -> None:
    """The same columns and rows, in any order."""
    if one.read_bytes()[:4] != b"PAR1":
        assert sorted(read_lines(one)) == sorted(read_lines(other))
        return
    tables = [pq.read_table(path) for path in (one, other)]
    assert tables[0].schema.remove_metadata() == tables[1].schema.remove_metadata()
    assert sorted(map(str, tables[0].to_pylist())) == sorted(map(str, tables[1].to_pylist()))


def read_lines(path: Path) -> list[str]:
    return [json.dumps(feature) for feature in json.loads(path.read_text())["features"]]


def test_to_geojson_of_observations_has_points() -> None:
    table = observations()
    result = json.loads(galileo.to_geojson(table))
    rows = table.to_pylist()
    for feature, row in zip(result["features"], rows, strict=True):
        assert set(feature) == {"type", "geometry", "properties"}
        place = {"type": "Point", "coordinates": [row["longitude"], row["latitude"]]}
        assert feature["geometry"] == place
        properties = dict(feature["properties"])
        assert pd.Timestamp(properties.pop("time")) == row["time"]
        assert properties == {"t": row["t"], "name": row["name"]}


def test_to_geojson_of_border_cells_stays_within_bounds() -> None:
    result = json.loads(galileo.to_geojson(labels(AROUND)))
    for feature, (latitude, longitude) in zip(result["features"], AROUND, strict=True):
        shape = shapely.geometry.shape(feature["geometry"])
        assert shape.covers(shapely.Point(longitude, latitude))
        assert shape.exterior.is_ccw
        west, south, east, north = shape.bounds
        assert -180 <= west < east <= 180
        assert -90 <= south < north <= 90
        assert east - west < 2, "no rectangle goes the long way round"
    assert result["features"][0]["geometry"]["coordinates"][0][0][0] == 180.0


def test_write_geoparquet_of_a_large_table_has_row_groups(tmp_path: Path) -> None:
    table = observations(PIECE_ROWS + 3)
    galileo.write_geoparquet(table, tmp_path / "large.parquet")
    assert pq.read_metadata(tmp_path / "large.parquet").num_row_groups == 2


def test_to_geopandas_of_observations_has_points() -> None:
    frame = galileo.to_geopandas(observations())
    assert frame.crs == "EPSG:4326"
    assert frame.geometry.x.tolist() == frame["longitude"].tolist()


def test_write_geojson_without_positions_is_refused(tmp_path: Path) -> None:
    with raises(InputError):
        galileo.write_geojson(pa.table({"t": [1.0]}), tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_write_geojson_to_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with raises(InputError, file=str(tmp_path / "no" / "x.geojson")):
        galileo.write_geojson(observations(), tmp_path / "no" / "x.geojson")


def test_to_geopandas_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geopandas", None)
    with raises(MissingExtra, extra="plots"):
        galileo.to_geopandas(observations())


def test_write_geoparquet_without_geopandas_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "geopandas", None)
    galileo.write_geoparquet(observations(), tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 5
