from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.formats import geojson, open_source
from galileo.model.schema import Feature, Schema

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


@pytest.mark.parametrize("name", ["x.json", "x.json.gz", "x.ndjson", "x.JSON"])
def test_array_of_objects_is_read_as_pandas_reads_it(tmp_path: Path, name: str) -> None:
    rows = [ROW, ROW | {"t": 2.5, "note": "a]},{\nb"}, ROW | {"lat": None}]
    text = "\ufeff " + json.dumps(rows, indent=2)
    path = tmp_path / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    source = open_source(path)
    table = pa.concat_tables(source.batches())
    frame = pd.read_json(io.StringIO(json.dumps(rows))).dropna(subset=["lat"])
    assert (source.format, source.skipped) == ("ndjson", 1)
    assert table.column("t").to_pylist() == frame["t"].to_list() == [1.0, 2.5]
    assert table.column("note").to_pylist() == [None, "a]},{\nb"]


def test_empty_array_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(" [ ] ")
    assert list(open_source(path, schema=Schema("s", [Feature("t")])).batches()) == []


def test_array_that_is_too_deep_or_too_wide_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[" + '{"a":' * 100 + "1" + "}" * 100 + "]")
    with raises(InputError, expected="nesting", bound=64):
        open_source(path)
    path.write_text(json.dumps([{f"{number}": 1} for number in range(9_000)]))
    with raises(InputError, expected="columns", bound=8_192):
        open_source(path)


def test_array_that_is_too_large_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geojson, "FILE_BYTES_MAX", 10)
    with raises(InputError):
        read_array(tmp_path / "x.json", [ROW])


def test_array_of_geojson_features_says_what_makes_a_collection(tmp_path: Path) -> None:
    feature = {"type": "Feature", "geometry": {"type": "Point"}, "properties": {"t": 1}}
    with raises(InputError, expected="json_lines"):
        read_array(tmp_path / "x.json", [feature])


def read_array(path: Path, rows: list[Any]) -> pa.Table:
    path.write_text(json.dumps(rows))
    return pa.concat_tables(open_source(path).batches())


VALUES = {
    "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "i": st.none() | st.integers(-(2**53), 2**53),
    "s": st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    "b": st.none() | st.booleans(),
}


@given(st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=8))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_array_gives_the_values_that_json_has(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path / "x.json"
    rows = [{"x": 1.5, "t": 1.0, **row} for row in rows]
    path.write_text(json.dumps([{"lat": 1, "lon": 2, "time": "2020-01-01", **row} for row in rows]))
    schema = Schema(
        "s",
        [
            *(Feature("x"), Feature("t"), Feature("f"), Feature("i", type="int")),
            *(Feature("s", type="text"), Feature("b", type="bool")),
        ],
    )
    table = pa.concat_tables(open_source(path, schema=schema).batches())
    assert table.select(["x", "t", *VALUES]).to_pylist() == rows


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
