"""Files of the rows of tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import shapely
from expected_errors import raises
from parameters import keep_quick

from galileo.errors import InputError, InvalidObservations
from galileo.formats.table_files import open_rows
from galileo.geo.geometry_columns import to_stored
from galileo.geo.regions import VERTICES_MAX
from galileo.model.table import Table, versions_of

COLUMNS = pa.schema([("id", pa.string()), ("n", pa.int64()), ("place", pa.binary())])
POINT = shapely.Point(-105.25, 40.125)
LARGE_NUMBER = 9_007_199_254_740_993
"""No double holds it."""


def places(path: Path) -> list[bytes | None]:
    rows = pa.concat_tables(open_rows(path, COLUMNS), promote_options="default")
    stored: list[bytes | None] = to_stored(rows.column("place")).to_pylist()
    return stored


def huge() -> shapely.Polygon:
    """As many vertices as a geometry may have, with all digits."""
    angles = np.linspace(0, 2 * np.pi, VERTICES_MAX)[:-1]
    return shapely.Polygon(np.column_stack([np.cos(angles), np.sin(angles)]))


def test_geometries_come_from_every_format(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"], "n": [1, 2], "place": [POINT.wkb, None]})
    pq.write_table(table, tmp_path / "rows.parquet")
    pa.feather.write_feather(table, tmp_path / "rows.arrow")
    (tmp_path / "rows.csv").write_text(f'id,n,place\na,1,"{POINT.wkt}"\nb,2,\n')
    (tmp_path / "rows.tsv").write_text(f"id\tn\tplace\na\t1\t{POINT.wkt}\nb\t2\t\n")
    geojson = json.loads(shapely.to_geojson(POINT))
    lines = [{"id": "a", "n": 1, "place": geojson}, {"id": "b", "n": 2, "place": None}]
    (tmp_path / "rows.ndjson").write_text("\n".join(map(json.dumps, lines)))
    lines[0]["place"] = POINT.wkt
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for path in tmp_path.iterdir():
        assert places(path) == [POINT.wkb, None], path.name


def test_json_lines_mix_geojson_and_wkt_and_keep_other_columns(tmp_path: Path) -> None:
    path, geojson = tmp_path / "rows.ndjson", json.loads(shapely.to_geojson(POINT))
    lines = [
        {"id": "ü", "n": LARGE_NUMBER, "place": geojson},
        {"id": "b", "place": POINT.wkt},
        {"id": "c", "n": None},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    [table] = open_rows(path, COLUMNS)
    assert table.column("id").to_pylist() == ["ü", "b", "c"]
    assert table.column("n").to_pylist() == [LARGE_NUMBER, None, None]
    assert places(path) == [POINT.wkb, POINT.wkb, None]


@pytest.mark.parametrize(
    "suffix", keep_quick(["csv", "wkt.ndjson", "geojson.ndjson"], "csv", "wkt.ndjson")
)
def test_largest_geometry_fits_a_row_of_text(tmp_path: Path, suffix: str) -> None:
    shape, path = huge(), tmp_path / f"rows.{suffix}"
    wkt = shapely.to_wkt(shape, rounding_precision=30)
    geojson = shapely.to_geojson(shape)
    rows = {
        "csv": f'id,place\na,"{wkt}"\nb,"{wkt}"\n',
        "wkt.ndjson": f'{{"place":"{wkt}"}}\n{{"place":"{wkt}"}}',
        "geojson.ndjson": f'{{"place":{geojson}}}\n{{"place":{geojson}}}',
    }
    path.write_text(rows[suffix])
    assert places(path) == [shapely.to_wkb(shape)] * 2


@pytest.mark.parametrize(
    "text",
    ['{"place": {"type"', '{"place": {}}\n[1]', '{"place": {}}\n{"n": "x"}', '{"place": {}}\n7'],
)
def test_damaged_json_lines_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.ndjson"
    path.write_text(text)
    with raises(InputError):
        list(open_rows(path, COLUMNS))


def test_damaged_arrow_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    offsets = pa.py_buffer(np.array([0, 900_000_000, 3], np.int32))
    wrong = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    schema = pa.schema([COLUMNS.field(2)])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([wrong], schema=schema))
    with raises(InputError):
        list(open_rows(path, COLUMNS))


class WkbType(pa.ExtensionType):
    """Geometries, which Arrow writes as Parquet's types Geometry and Geography."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = json.dumps(metadata).encode()
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return self._metadata

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> WkbType:
        return cls(json.loads(serialized))


@pytest.mark.parametrize(
    ("metadata", "is_stored"),
    [
        ({}, True),
        ({"crs": "OGC:CRS84"}, True),
        ({"crs": "EPSG:4326"}, True),
        ({"crs": "srid:4326"}, True),
        ({"crs": "srid:5070"}, False),
        ({"crs": "EPSG:3857", "edges": "spherical"}, False),
        ({"crs": {"type": "ProjectedCRS", "name": "UTM"}}, False),
    ],
)
def test_parquet_geometries_say_their_reference_system(
    tmp_path: Path, metadata: dict[str, Any], is_stored: bool
) -> None:
    path = tmp_path / "x.parquet"
    points = pa.array([shapely.to_wkb(shapely.Point(8, 50))])
    typed = pa.ExtensionArray.from_storage(WkbType(metadata), points)
    pa.register_extension_type(WkbType({}))
    try:
        pq.write_table(pa.table({"i": [1], "place": typed}), path, store_schema=False)
    finally:
        pa.unregister_extension_type("geoarrow.wkb")
    assert '"Geo' in pq.ParquetFile(path).schema.column(1).logical_type.to_json()
    table = Table("t", {"i": "int", "place": "geometry"}, key="i")
    rows = pa.concat_tables(open_rows(path, table.arrow_schema))
    if is_stored:
        assert versions_of(table, rows).column("place").to_pylist() == points.to_pylist()
    else:
        with raises(InvalidObservations, expected="crs", column="place"):
            versions_of(table, rows)
