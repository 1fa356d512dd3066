from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.formats import open_source

ROW = {"lat": 40.0, "lon": -105.0, "time": "2014-03-01T00:00:00Z", "t": 1}


def read(path: Path, *rows: Any) -> pa.Table:
    text = "\n".join(json.dumps(row) for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return pa.concat_tables(open_source(path).batches())


@pytest.mark.parametrize("name", ["x.ndjson", "x.jsonl", "x.ndjson.gz"])
def test_ndjson_lines_are_rows(tmp_path: Path, name: str) -> None:
    table = read(tmp_path / name, ROW, ROW | {"t": 2.5, "note": "a\nb"})
    assert table.column("t").to_pylist() == [1.0, 2.5]
    assert table.column("note").to_pylist() == [None, "a\nb"]
    assert table.column("latitude").to_pylist() == [40.0, 40.0]


def test_ndjson_number_as_time_is_milliseconds(tmp_path: Path) -> None:
    text, number = (
        read(tmp_path / "x.ndjson", ROW | {"time": time}).column("time")
        for time in ("2014-03-01T00:00:00Z", 1_393_632_000_000)
    )
    assert number.equals(text)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([ROW, ROW | {"t": "x"}], "properties_of_one_type"),
        ([[1]], "objects"),
        ([{"": [None, None]}], "coordinate"),
        ([None], "objects"),
        ([{}], "json_lines"),
        ([{"lat": 1, "t": 1}], "coordinate"),
    ],
)
def test_ndjson_other_lines_are_refused(tmp_path: Path, rows: list[Any], expected: str) -> None:
    with raises(InputError, expected=expected):
        read(tmp_path / "x.ndjson", *rows)


def test_ndjson_number_that_overflows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_text(json.dumps(ROW).replace('"t": 1', '"t": 1e999'))
    with raises(InputError, expected="properties_of_one_type"):
        open_source(path)


def test_ndjson_of_geojson_features_says_what_makes_a_collection(tmp_path: Path) -> None:
    feature = {"type": "Feature", "geometry": {"type": "Point"}, "properties": {"t": 1}}
    with raises(InputError, expected="json_lines"):
        read(tmp_path / "x.ndjson", feature)
