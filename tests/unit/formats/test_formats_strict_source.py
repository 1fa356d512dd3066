"""A strict source takes a body as it is, or names the row and the column of its first mistake."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from expected_errors import raises

import galileo
from galileo.client.geo_files import to_geojson
from galileo.client.json_lines import json_lines
from galileo.errors import InputError, InvalidObservations
from galileo.formats.memory_file import MemoryFile, is_memory_file
from galileo.formats.strict_source import FORMATS, StrictSource

SCHEMA = galileo.Schema(
    "weather",
    [
        galileo.Feature("temperature"),
        galileo.Feature("level", type="int"),
        galileo.Feature("note", type="text"),
        galileo.Feature("wet", type="bool"),
    ],
)
ROWS = 10


def observations(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "latitude": [40.0 + row / 100 for row in range(rows)],
            "longitude": [-105.0] * rows,
            "time": pa.array([1_393_632_000_000_000 + row for row in range(rows)]),
            "temperature": [None, *(0.5 + row for row in range(1, rows))],
            "level": list(range(rows)),
            "note": [f'"{row}"' for row in range(rows)],
            "wet": [row % 2 == 0 for row in range(rows)],
        }
    ).cast(SCHEMA.observation_schema)


def encoded(format: str, table: pa.Table) -> bytes:
    sink = io.BytesIO()
    if format == "geojson":
        return to_geojson(table).encode()
    if format == "ndjson":
        return "\n".join(json_lines(table).to_pylist()).encode()
    if format == "csv":
        pyarrow.csv.write_csv(table, sink)
    elif format == "parquet":
        pyarrow.parquet.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


@pytest.fixture
def body() -> Iterator[MemoryFile]:
    with MemoryFile() as file:
        yield file


def read(body: MemoryFile, format: str, data: bytes, *, rows_max: int = 65_536) -> pa.Table:
    body.write(data)
    return pa.concat_tables(StrictSource(body.path, format, SCHEMA).batches(rows_max))


def mistake(body: MemoryFile, format: str, data: bytes) -> tuple[int | None, str | None]:
    with pytest.raises(InputError) as failed:
        read(body, format, data)
    return failed.value.details.get("row"), failed.value.details.get("column")


@pytest.mark.parametrize("format", FORMATS)
def test_strict_source_reads_what_was_written(body: MemoryFile, format: str) -> None:
    table = observations()
    assert read(body, format, encoded(format, table)).equals(table)


@pytest.mark.parametrize("format", FORMATS)
def test_strict_source_features_that_are_absent_are_null(body: MemoryFile, format: str) -> None:
    table = observations()
    read_back = read(body, format, encoded(format, table.drop_columns(["level", "wet"])))
    assert read_back.column("level").null_count == read_back.column("wet").null_count == ROWS
    assert read_back.column("note").equals(table.column("note"))


@pytest.mark.parametrize("format", FORMATS)
def test_strict_source_unknown_column_is_named(body: MemoryFile, format: str) -> None:
    table = observations().append_column("temprature", pa.array(range(ROWS)))
    assert mistake(body, format, encoded(format, table)) == (None, "temprature")


@pytest.mark.parametrize("format", FORMATS)
def test_strict_source_without_any_feature_is_refused(body: MemoryFile, format: str) -> None:
    table = observations().select(["latitude", "longitude", "time"])
    with raises(InvalidObservations, expected="feature"):
        read(body, format, encoded(format, table))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("column", ["latitude", "time"])
def test_strict_source_row_without_a_place_or_time_is_named(
    body: MemoryFile, format: str, column: str
) -> None:
    table = observations()
    values: list[Any] = table.column("latitude").to_pylist()
    values[7] = 91.0
    if column == "time":
        values = [None if row == 7 else f"2014-03-01T06:00:0{row}Z" for row in range(ROWS)]
    table = table.set_column(table.column_names.index(column), column, pa.array(values))
    assert mistake(body, format, encoded(format, table)) == (7, column)


def feature(row: int, **properties: Any) -> dict[str, Any]:
    point = {"type": "Point", "coordinates": [-105.0, 40.0]}
    given = {"time": f"2014-03-01T06:00:0{row}Z", "temperature": 1, **properties}
    return {"type": "Feature", "geometry": point, "properties": given}


def collection(*features: Any) -> bytes:
    return json.dumps({"type": "FeatureCollection", "features": features}, indent=1).encode()


def test_strict_source_reads_one_feature(body: MemoryFile) -> None:
    data = {**feature(1, note="x"), "id": "p1.2.3"}
    data["geometry"]["coordinates"].append(1_600.0)
    assert read(body, "geojson", json.dumps(data).encode()).num_rows == 1


GOOD = feature(1)
WRONG_GEOJSON: list[tuple[bytes, int | None, str | None]] = [
    (collection(GOOD, GOOD, feature(2, temperature="warm")), 2, "temperature"),
    (collection(GOOD, feature(2, level=1.5)), 1, "level"),
    (collection(GOOD, feature(2, note=5), feature(3, note="x")), 1, "note"),
    (collection(GOOD, feature(2, wet="no")), 1, "wet"),
    (collection(GOOD, feature(2, temperature=[1])), 1, "temperature"),
    (collection(feature(1, temperature=[1])), None, "temperature"),
    (collection(GOOD, feature(2, time="soon")), 1, "time"),
    (collection(GOOD, {**GOOD, "geometry": None}), 1, "latitude"),
    (collection(GOOD, {**GOOD, "geometry": {"type": "Point", "coordinates": [1]}}), 1, "geometry"),
    (
        collection(GOOD, {**GOOD, "geometry": {"type": "LineString", "coordinates": [[1, 2]]}}),
        1,
        "geometry",
    ),
    (collection(GOOD, 5), 1, None),
    (collection(GOOD, GOOD)[:-9], 1, None),
    (collection(GOOD, {**GOOD, "crs": {"properties": {"name": "EPSG:3857"}}}), None, None),
    (b"", 0, None),
    (b"[]", 0, None),
    (b"null", 0, None),
    (b'"features": [', 0, None),
    (b'{"type": "Feature"}', 0, "geometry"),
]


@pytest.mark.parametrize(("data", "row", "column"), WRONG_GEOJSON)
def test_strict_source_mistake_in_geojson(
    body: MemoryFile, data: bytes, row: int | None, column: str | None
) -> None:
    found = mistake(body, "geojson", data)
    assert found == (row, column)


LINE = b'{"lat": 40, "lon": 8, "time": "2014-03-01T06:00:00Z", "level": 1}\n'
HEAD = b"lat,lon,time,level\n"
FIELDS = b"40,8,2014-03-01T06:00:00Z,1\n"


@pytest.mark.parametrize(
    ("format", "data", "row", "column"),
    [
        ("ndjson", LINE * 3 + LINE.replace(b": 1}", b': "x"}'), 3, "level"),
        ("ndjson", LINE + b"\n" + b"[1]\n", 1, None),
        ("ndjson", b"[" + LINE + b"," + LINE.replace(b": 1}", b': "x"}') + b"]", 1, "level"),
        ("ndjson", b"[" + LINE + b"," + LINE.replace(b"40", b"400") + b"]", 1, "latitude"),
        ("ndjson", b"[" + LINE + b", 1]", 1, None),
        ("ndjson", LINE + b'{"lat": 40,\n', 1, None),
        ("ndjson", LINE + LINE.replace(b"40", b"400"), 1, "latitude"),
        ("ndjson", b"null\n" + LINE, 0, None),
        ("ndjson", LINE + b"null\n", 1, None),
        ("csv", HEAD + FIELDS * 3 + b"40,8,2014-03-01,x\n", 3, "level"),
        ("csv", HEAD + FIELDS * 3 + b"40,8,2014-03-01\n", 3, None),
        ("csv", HEAD + FIELDS * 3 + b"40,x,2014-03-01,1\n", 3, "lon"),
        ("csv", HEAD + FIELDS * 3 + b",8,2014-03-01,1\n", 3, "latitude"),
        ("csv", HEAD + FIELDS + b"40,8,soon,1\n", 1, "time"),
        ("csv", HEAD + FIELDS + b"40,8,2014-03-01,\xff\n", 1, "level"),
        ("csv", HEAD + FIELDS * 200_000 + b"40,8,2014-03-01T00:00:00Z,x\n", 200_000, "level"),
        ("csv", HEAD + FIELDS * 200_000 + b"400,8,2014-03-01T00:00:00Z,1\n", 200_000, "latitude"),
        ("csv", HEAD + FIELDS * 200_000 + b"40,8,soon,1\n", 200_000, "time"),
        ("csv", b"", None, None),
        ("csv", b"lat,lat,time\n", None, "lat"),
        ("parquet", b"PAR1 no", None, None),
        ("arrow", b"no", None, None),
    ],
)
def test_strict_source_mistake_in_other_formats(
    body: MemoryFile, format: str, data: bytes, row: int | None, column: str | None
) -> None:
    assert mistake(body, format, data) == (row, column)


@pytest.mark.parametrize(
    ("format", "data"),
    [("geojson", collection()), ("ndjson", b""), ("ndjson", b"\n"), ("csv", HEAD)],
)
def test_strict_source_without_rows_has_no_batches(
    body: MemoryFile, format: str, data: bytes
) -> None:
    body.write(data)
    assert list(StrictSource(body.path, format, SCHEMA).batches()) == []


def test_strict_source_batches_are_the_same_each_time(body: MemoryFile) -> None:
    body.write(encoded("csv", observations(1_000)))
    source = StrictSource(body.path, "csv", SCHEMA)
    first, second = ([*source.batches(300)] for _ in range(2))
    assert [table.num_rows for table in first] == [300, 300, 300, 100]
    assert all(one.equals(other) for one, other in zip(first, second, strict=True))


def test_memory_file_is_known_by_its_path(body: MemoryFile, tmp_path: Any) -> None:
    body.write(b"ab")
    body.write(b"c")
    assert (body.size, body.path.read_bytes()) == (3, b"abc")
    assert is_memory_file(body.path)
    assert not is_memory_file(tmp_path)


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("latitude,longitude,temperature", "time"),
        ("LAT,Lat,longitude,time,temperature", "latitude"),
        ("latitude,longitude,TIME,Time,temperature", "time"),
    ],
)
def test_strict_source_over_http_names_no_options_of_commands_or_python(
    body: MemoryFile, header: str, column: str
) -> None:
    row = ",".join("1" for _ in header.split(","))
    body.write(f"{header}\n{row}\n".encode())
    with pytest.raises(InputError) as refused:
        list(StrictSource(body.path, "csv", SCHEMA).batches())
    words = refused.value.http_message
    assert words.endswith(f"; name one column {column!r}")
    assert "--" not in words
    assert "mapping=" not in words
    assert refused.value.details["column"] == column
