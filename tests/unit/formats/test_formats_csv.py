from __future__ import annotations

import datetime as dt
import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError, InvalidObservations, UnknownProperty
from galileo.formats import Mapping, open_source, suggest_schema
from galileo.formats.csv import SAMPLE_ROWS_MAX
from galileo.formats.source import BATCH_BYTES_MAX


def read(path: Path, *texts: str) -> pa.Table:
    return pa.concat_tables(open_source(path, mapping=Mapping.parse(texts)).batches())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "points.csv"


@pytest.mark.parametrize("word", ["", "  ", "NA", "N/A", "M", "NaN", " nan ", "null"])
def test_csv_word_for_missing_is_null(path: Path, word: str) -> None:
    path.write_text(f"lat,lon,time,t,s\n1,2,2020-01-01,{word},{word}\n3,4,2020-01-01,5,x\n")
    source = open_source(path)
    assert pa.concat_tables(source.batches()).column("t").to_pylist() == [5]
    assert source.skipped == 1


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_csv_delimiter_and_line_end_are_detected(path: Path, delimiter: str, newline: str) -> None:
    lines = ["# made by a station", "", "\ufefflat,lon,time,t".lstrip("\ufeff"), "1,2,2020-01-01,3"]
    text = newline.join(lines).replace(",", delimiter) + newline
    path.write_bytes(text.encode())
    assert read(path).column("t").to_pylist() == [3]


def test_csv_byte_order_mark_is_ignored(path: Path) -> None:
    path.write_bytes("lat,lon,time,t\n1,2,2020-01-01,3\n".encode("utf-8-sig"))
    assert read(path).column("latitude").to_pylist() == [1.0]


def test_csv_gzip_is_read_and_truncated_raises(path: Path) -> None:
    packed = path.with_suffix(".csv.gz")
    text = "lat,lon,time,t\n" + "1,2,2020-01-01,3\n" * 10
    packed.write_bytes(gzip.compress(text.encode()))
    source = open_source(packed)
    assert source.format == "csv"
    assert sum(batch.num_rows for batch in source.batches()) == source.rows == 10
    packed.write_bytes(gzip.compress(text.encode())[:-12])
    with pytest.raises(InputError):
        list(open_source(packed).batches())


def test_csv_quoted_delimiter_and_line_end_are_text(path: Path) -> None:
    path.write_text('lat,lon,time,"a, b"\n1,2,2020-01-01,"x, ""y""\nz"\n')
    table = read(path, "note=a, b")
    assert table.column("note").to_pylist() == ['x, "y"\nz']


@pytest.mark.parametrize(
    ("header", "texts"),
    [
        ("Latitude,LONGITUDE,DateTime", ()),
        ("lat,long,timestamp", ()),
        ("y,x,date", ()),
        ("a,b,c", ("latitude=a", "longitude=b", "time=c")),
    ],
)
def test_csv_coordinates_by_usual_or_mapped_name_are_read(
    path: Path, header: str, texts: tuple[str]
) -> None:
    path.write_text(f"{header},t\n1,2,2020-01-01,3\n")
    table = read(path, "t=t", *texts)
    assert table.slice(0, 1).to_pylist() == [
        {"latitude": 1.0, "longitude": 2.0, "time": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "t": 3}
    ]


def test_csv_time_in_columns_of_parts_is_recognised(path: Path) -> None:
    path.write_text("lat,lon,day,Month,YEAR,hour,t\n1,2,3,4,1990,5,6\n")
    table = read(path)
    assert table.column_names[3:] == ["t"]
    assert table.column("time").to_pylist() == [dt.datetime(1990, 4, 3, 5, tzinfo=dt.UTC)]


def test_csv_missing_coordinate_raises_with_column(path: Path) -> None:
    path.write_text("a,lon,time,t\n1,2,2020-01-01,3\n")
    with raises(InputError, expected="coordinate", column="latitude"):
        open_source(path)
    with raises(UnknownProperty, nearest="lon", column="lom"):
        open_source(path, mapping=Mapping.parse(["latitude=lom"]))


def test_csv_constant_time_is_that_of_every_row(path: Path) -> None:
    path.write_text("lat,lon,t\n1,2,3\n4,5,6\n")
    moments = read(path, "time=@2001-02-03").column("time").to_pylist()
    assert moments == [dt.datetime(2001, 2, 3, tzinfo=dt.UTC)] * 2


def test_csv_empty_column_is_no_feature(path: Path) -> None:
    path.write_text("lat,lon,time,t,empty\n1,2,2020-01-01,3,\n1,2,2020-01-01,4,NA\n")
    source = open_source(path)
    assert list(source.features) == ["t"]
    assert [(v.name, v.description) for v in source.variables()][1] == ("empty", "no value")


@pytest.mark.parametrize("newline", ["", "\n"])
def test_csv_header_without_rows_has_no_features(path: Path, newline: str) -> None:
    path.write_text(f"lat,lon,time,t{newline}")
    source = open_source(path)
    assert source.rows == 0
    assert [variable.name for variable in source.variables()] == ["t"]
    with raises(InputError, expected="features", bound=256):
        list(source.batches())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "header"),
        ("lat,lon,lat\n1,2,3\n", "unique"),
        ("lat,lon,time,t\n1,2,2020-01-01\n", "csv"),
    ],
)
def test_csv_invalid_table_raises(path: Path, text: str, expected: str) -> None:
    path.write_text(text)
    with raises(InputError, expected=expected):
        open_source(path)


def test_csv_other_encoding_raises(path: Path) -> None:
    path.write_bytes("lat,lon,time,t\n1,2,2020-01-01,Köln\n".encode("latin-1"))
    with raises(InputError, expected="csv"):
        open_source(path)


def test_csv_invalid_latitude_raises_with_row(path: Path) -> None:
    path.write_text("lat,lon,time,t\n1,2,2020-01-01,3\n10N,2,2020-01-01,3\n")
    with raises(InvalidObservations, row=1, column="lat"):
        read(path)


def test_csv_fraction_beyond_sample_is_float(path: Path) -> None:
    rows = 2 * SAMPLE_ROWS_MAX
    path.write_text("lat,lon,time,t\n" + "1,2,2020-01-01,3\n" * rows + "1,2,2020-01-01,3.5\n")
    source = open_source(path)
    assert suggest_schema(source, "x").features[0].type == "float"
    assert source.rows == pytest.approx(rows, rel=0.01)
    assert pa.concat_tables(source.batches()).column("t").to_pylist()[-1] == 3.5


CELL = st.none() | st.floats(-1e6, 1e6) | st.integers(-9999, 9999)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=30))
def test_csv_random_table_equals_pandas(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, Any]]
) -> None:
    frame = pd.DataFrame(rows, columns=["a", "b"], dtype=float)
    frame.insert(0, "lat", 1.5)
    frame.insert(1, "lon", 2.5)
    frame.insert(2, "time", "2020-01-01T00:00:00Z")
    path = tmp_path_factory.mktemp("csv") / "made.csv"
    frame.to_csv(path, index=False)
    expected = pd.read_csv(path, float_precision="round_trip").dropna(subset=["a", "b"], how="all")
    source = open_source(path, mapping=Mapping.parse(["a=a", "b=b"]))
    tables = [batch.to_pandas() for batch in source.batches(7)]
    assert sum(map(len, tables)) + source.skipped == len(frame)
    assert sum(map(len, tables)) == len(expected)
    for name in ("a", "b"):
        found = [v for table in tables for v in table[name]]
        pd.testing.assert_series_equal(
            pd.Series(found, dtype=float),
            pd.Series(expected[name].to_numpy(), dtype=float),
            check_exact=True,
        )


def test_csv_too_many_columns_raises(path: Path) -> None:
    path.write_text(",".join(f"c{number}" for number in range(300_000)) + "\n")
    with raises(InputError, expected="columns", bound=4096):
        open_source(path)


def test_csv_long_texts_give_smaller_batches(path: Path) -> None:
    lines = [f"1,2,2020-01-01,{row},{'x' * 300_000}\n" for row in range(150)]
    path.write_text("lat,lon,time,t,note\n" + "".join(lines))
    batches = list(open_source(path).batches())
    assert len(batches) > 1
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES_MAX
    assert pa.concat_tables(batches).column("t").to_pylist() == list(range(150))
    assert [len(batch) for batch in batches] == [len(one) for one in open_source(path).batches()]


def test_csv_infinity_is_float(path: Path) -> None:
    path.write_text("lat,lon,time,t\n1,2,2020-01-01,-inf\n1,2,2020-01-01,1.5\n1,2,2020-01-01,Inf\n")
    assert read(path).column("t").to_pylist() == [float("-inf"), 1.5, float("inf")]


@pytest.mark.parametrize("number", ["1e999", "9" * 400])
def test_csv_number_beyond_float_raises_with_row(path: Path, number: str) -> None:
    path.write_text(f"lat,lon,time,t\n1,2,2020-01-01,1.5\n1,2,2020-01-01,{number}\n")
    with raises(InvalidObservations, row=1, column="t"):
        read(path)


STATION = "when,temp,wind\n2020-01-01,-9999,3\n2020-01-02,5,---\n2020-01-03,-9999.0,---\n"


def test_csv_mapped_constants_give_place_and_name(path: Path) -> None:
    path.write_text(STATION)
    mapping = Mapping.of(
        [
            "time=when",
            "latitude=39.1",
            "longitude=-105.5",
            'station="A12"',
            "t=temp * 2",
            "wind=wind",
        ],
        missing=["temp=-9999", "---"],
    )
    source = open_source(path, mapping=mapping)
    features = suggest_schema(source, "x").features
    assert [(one.name, one.type) for one in features] == [
        ("station", "text"),
        ("t", "float"),
        ("wind", "int"),
    ]
    rows = pa.concat_tables(source.batches()).drop_columns("time").to_pylist()
    place = {"latitude": 39.1, "longitude": -105.5, "station": "A12"}
    assert rows == [place | {"t": None, "wind": 3}, place | {"t": 10.0, "wind": None}]
    assert source.skipped == 1


def test_csv_sentinel_of_unknown_variable_raises(path: Path) -> None:
    path.write_text(STATION)
    mapping = Mapping.of(["time=when", "latitude=1", "longitude=2", "t=temp"], missing="tmp=-9999")
    with raises(UnknownProperty, nearest="temp", variable="tmp"):
        list(open_source(path, mapping=mapping).batches())


def test_csv_ambiguous_coordinate_raises(path: Path) -> None:
    path.write_text("lat,lon,long,time,t\n1,2,3,2020-01-01,4\n")
    with raises(InputError, expected="one_column", column="longitude"):
        open_source(path)
    assert read(path, "longitude=long", "t=t").column("longitude").to_pylist() == [3.0]


def test_csv_several_usual_names_takes_best(path: Path) -> None:
    path.write_text("x,y,Lat,Lon,valid,Timestamp,t\n7,8,1,2,2021-01-01,2020-01-01,4\n")
    table = read(path)
    assert table.column("latitude").to_pylist() == [1.0]
    assert table.column("time").to_pylist() == [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]
