from __future__ import annotations

import json
from pathlib import Path

import geopandas
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.cli.table_writer import STDOUT, format_of, writing
from galileo.errors import InputError

TABLE = pa.table({"latitude": [1.0, 2.0], "longitude": [3.0, 4.0], "t": [0.5, None]})
CELLS = pa.table({"geohash": ["9xj", "9xk"], "t": [0.5, 1.5]})


@pytest.mark.parametrize("name", ["x.geoparquet", "x.geojson"])
@pytest.mark.parametrize(("table", "kind"), [(TABLE, "Point"), (CELLS, "Polygon")])
def test_writing_of_geo_formats_has_shapes(
    table: pa.Table, kind: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    with writing(str(path), table.schema, format=format_of(str(path), None)) as writer:
        writer.write(table.slice(0, 1))
        writer.write(table.slice(1))
    if name.endswith("json"):
        result = json.loads(path.read_text())
        kinds = [feature["geometry"]["type"] for feature in result["features"]]
        assert result["features"][0]["properties"]["t"] == 0.5
    else:
        kinds = list(geopandas.read_parquet(path).geom_type)
    assert kinds == [kind, kind]


@pytest.mark.parametrize("format", ["geojson", "geoparquet"])
def test_format_of_geo_formats_on_standard_output_is_refused(format: str) -> None:
    with raises(InputError, parameter="format"):
        format_of(STDOUT, format)
