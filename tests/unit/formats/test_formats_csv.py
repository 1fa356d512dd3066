from __future__ import annotations

import datetime as dt
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from expected_errors import raises
from hypothesis import example, given
from hypothesis import strategies as st
from parameters import keep_quick

from galileo.arrays import BATCH_BYTES_MAX
from galileo.errors import GalileoWarning, InputError, InvalidObservations, UnknownProperty
from galileo.formats import CsvOptions, Mapping, open_source, suggest_schema
from galileo.formats.bad_rows import BAD_ROWS_MAX
from galileo.formats.csv import end_of_rows
from galileo.formats.source import skipped_words
from galileo.formats.table_files import open_rows
from galileo.model.schema import Feature, Schema


def read(path: Path, *texts: str, csv: CsvOptions | None = None) -> pa.Table:
    return pa.concat_tables(open_source(path, mapping=Mapping.of(texts, csv=csv)).batches())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "points.csv"


@pytest.mark.parametrize("word", ["", "  ", "NA", "N/A", "M", "NaN", " nan ", "null"])
def test_csv_word_for_missing_is_null(path: Path, word: str) -> None:
    path.write_text(f"lat,lon,time,t\n1,2,2020-01-01,{word}\n3,4,2020-01-01,5\n")
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
    assert sum(batch.num_rows for batch in source.batches()) == 10
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
    assert [(v.name, v.reason) for v in source.variables()][1] == ("empty", "no value")


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
    ],
)
def test_csv_invalid_table_raises(path: Path, text: str, expected: str) -> None:
    path.write_text(text)
    with raises(InputError, expected=expected):
        list(open_source(path).batches())


def test_other_bytes_in_comments_move_no_row(path: Path) -> None:
    text = "# K\xf6ln \xe9\xe9\nlat,lon,time,t\n12,2,2020-01-01,3\n"
    path.write_bytes(text.encode("latin-1"))
    assert read(path).column("latitude").to_pylist() == [12.0]
    path.write_bytes("lat,lon,time,K\xf6ln\n12,2,2020-01-01,3\n".encode("latin-1"))
    with raises(InputError, expected="csv"):
        open_source(path)


def test_csv_row_of_other_width_raises_with_line(path: Path) -> None:
    path.write_text('lat,lon,time,t\n1,2,2020-01-01,"a\n\nb"\n\n1,2,2020-01-01\n')
    with raises(InvalidObservations, expected="csv", row=1, line=6):
        list(open_source(path).batches())


def test_csv_other_encoding_raises(path: Path) -> None:
    path.write_bytes("lat,lon,time,t\n1,2,2020-01-01,Köln\n".encode("latin-1"))
    with raises(InvalidObservations, expected="csv", row=0, line=2, column="t"):
        list(open_source(path).batches())
    options = CsvOptions(encoding="latin-1")
    assert read(path, csv=options).column("t").to_pylist() == ["Köln"]


def test_csv_invalid_latitude_raises_with_row(path: Path) -> None:
    path.write_text("lat,lon,time,t\n1,2,2020-01-01,3\n10N,2,2020-01-01,3\n")
    with raises(InvalidObservations, row=1, column="lat"):
        read(path)


def test_csv_fraction_beyond_sample_is_float(path: Path) -> None:
    rows = 400_000
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


@pytest.mark.slow
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


# --- texts, words and types ------------------------------------------------------------------

TEXTS = st.none() | st.text(
    st.sampled_from(list("aZ0,;\"'|# \t\n\r\u00a0é")) | st.characters(codec="utf-8"), max_size=6
)
WORDS = st.sampled_from(["", "NA", "NULL", "nan", " x ", "a\r\nb", '"', "M", "\ufeff"])


@given(st.lists(st.tuples(TEXTS | WORDS, st.none() | st.integers(-9, 9)), min_size=1, max_size=8))
def test_texts_and_nulls_survive_an_export_and_an_import(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str | None, int | None]]
) -> None:
    texts, numbers = ([row[n] for row in rows] for n in (0, 1))
    path = tmp_path_factory.mktemp("csv") / "made.csv"
    count = len(rows)
    time = pa.array([0] * count).cast(pa.timestamp("us", "UTC"))
    table = pa.table(
        {"latitude": [1.5] * count, "longitude": [2.5] * count, "time": time}
        | {"n": pa.array(numbers, pa.int64()), "text": pa.array(texts, pa.string())}
    )
    pa.csv.write_csv(table, path)
    schema = Schema("x", [Feature("n", type="int"), Feature("text", type="text")])
    observations = list(open_source(path, schema=schema).batches())
    kept = [row for row in rows if row != (None, None)]
    stored = pa.concat_tables(observations) if observations else None
    assert (stored.column("text").to_pylist() if stored else []) == [row[0] for row in kept]
    assert (stored.column("n").to_pylist() if stored else []) == [row[1] for row in kept]
    columns = pa.schema([("text", pa.string()), ("n", pa.int64()), ("time", table["time"].type)])
    back = pa.concat_tables(open_rows(path, columns))
    assert back.column("text").to_pylist() == texts
    assert back.column("n").to_pylist() == numbers


@given(st.text(st.sampled_from(list('",\n\ra')), max_size=14))
@example('"\na')  # A piece that begins with a quotation and ends within a field.
def test_pieces_end_where_rows_end(text: str) -> None:
    data, is_quoted, is_start, end = text.encode(), False, True, 0
    characters = enumerate(text)
    for number, character in characters:
        if is_quoted:
            if character == '"' and text[number + 1 : number + 2] == '"':
                next(characters)
            elif character == '"':
                is_quoted, is_start = False, False
            continue
        is_quoted = character == '"' and is_start
        is_start = character in ",\n\r"
        end = number + 1 if character == "\n" else end
    assert end_of_rows(data, ",", '"', b"\n") == end


@pytest.mark.parametrize("reader", keep_quick(["dataset", "table"], "table"))
def test_line_ends_in_texts_are_kept_over_borders_of_blocks(
    path: Path, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("galileo.formats.csv.BLOCK_BYTES", 64)
    texts = [f"{row}\r\n\n{'x' * (row % 70)}\r\n" for row in range(300)]
    lines = [f'1,2,2020-01-01,"{text}"\r\n' for text in texts]
    path.write_bytes(("lat,lon,time,text\r\n" + "".join(lines)).encode())
    tables = (
        open_source(path).batches()
        if reader == "dataset"
        else open_rows(path, pa.schema([("text", pa.string())]))
    )
    assert pa.concat_tables(tables).column("text").to_pylist() == texts


def test_blanks_of_quoted_texts_are_kept_and_others_dropped(path: Path) -> None:
    path.write_text('lat,lon,time,a,b\n1,2,2020-01-01, x ," x "\n1,2,2020-01-01,  ,"  "\n')
    table = read(path)
    assert table.column("a").to_pylist() == ["x", None]
    assert table.column("b").to_pylist() == [" x ", "  "]


def test_column_with_late_numbers_is_numeric(path: Path) -> None:
    head = "lat,lon,time,t,n,id\n"
    path.write_text(head + "1,2,2020-01-01,,7,x\n" * 210_000 + "1,2,2020-01-01,3.5,8,y\n")
    source = open_source(path)
    assert [feature.type for feature in suggest_schema(source, "x").features] == [
        "float",
        "int",
        "text",
    ]


def test_column_of_numbers_and_a_word_says_why_it_is_text(path: Path) -> None:
    path.write_text("lat,lon,time,t\n" + "1,2,2020-01-01,1.5\n" * 3 + "1,2,2020-01-01,MM\n")
    source = open_source(path)
    [variable] = source.variables()
    assert (variable.type, variable.words) == ("text", ("MM",))
    assert variable.reason == "3 of 4 values are numbers, 1 is 'MM'"
    schema = suggest_schema(source, "x")
    later = open_source(path, schema=schema, mapping=Mapping.of(None, "MM"))
    list(later.batches())
    assert "are numbers and were stored as texts" in str(later.warnings()[0])


def test_types_of_a_dataset_decide_without_a_guess(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("lat,lon,time,code,n,gust\n1,2,2020-01-01,7,007,NA\n")
    monkeypatch.delattr("galileo.formats.csv.TypeGuess")
    features = [Feature("code", type="text"), Feature("n", type="int"), Feature("gust")]
    [table] = open_source(path, schema=Schema("x", features)).batches()
    assert table.select([3, 4, 5]).to_pylist() == [{"code": "7", "n": 7, "gust": None}]


# --- dialects --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a note\n\nlat;lon;time;t\n1;2;2020-01-01;3,5\n", {"skip": 2, "decimal": ","}),
        ("1|2|2020-01-01|3.5\n", {"names": ["lat", "lon", "time", "t"]}),
        ("lat^lon^time^t\n1^2^2020-01-01^3.5\n", {"separator": "^"}),
        ("lat lon  time\tt\n 1  2 '2020-01-01'  3.5 \n", {"separator": " ", "quote": "'"}),
        ("lat,lon,time,t\n1,2,'2020-01-01',3.5\n", {"quote": "'"}),
        ("lat,lon,time,t\ndeg,deg,UTC,K\n1,2,2020-01-01,3.5\n", {"units": True}),
        ("lat,lon,time,t\n1,2,1/1/20 0:00,3.5\n", {"time_format": "%m/%d/%y %H:%M"}),
        ("lat,lon,time,t\n1,2,2019-12-31T17:00,3.5\n", {"time_zone": "America/Denver"}),
        ("# 5s\nlat\tlon\ttime\tt\n5s\t15s\t20d\t5n\n1\t2\t2020-01-01\t3.5\n", {}),
        ("#lat lon time t\n#deg deg UTC K\n1 2 2020-01-01 3.5\n", {}),
    ],
)
def test_dialects_are_read(path: Path, text: str, options: dict[str, Any]) -> None:
    path.write_text(text)
    [row] = read(path, csv=CsvOptions(**options)).to_pylist()
    time = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert row == {"latitude": 1.0, "longitude": 2.0, "time": time, "t": 3.5}


def test_line_of_units_gives_units(path: Path) -> None:
    path.write_text("lat,lon,time,t\ndeg,deg,UTC,degree_C\n1,2,2020-01-01,3.5\n")
    source = open_source(path, mapping=Mapping.of(None, csv=CsvOptions(units=True)))
    assert suggest_schema(source, "x").features[0].unit == "degree_C"


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "cp1252", "utf-8-sig"])
def test_encodings_are_read(path: Path, codec: str) -> None:
    path.write_bytes("lat,lon,time,t\n1,2,2020-01-01,Köln\n".encode(codec))
    options = CsvOptions() if codec in ("utf-16", "utf-8-sig") else CsvOptions(encoding=codec)
    assert read(path, csv=options).column("t").to_pylist() == ["Köln"]


@pytest.mark.parametrize(
    "options",
    [
        {"separator": ";;"},
        {"quote": ""},
        {"decimal": "'"},
        {"skip": -1},
        {"encoding": "klingon"},
        {"time_zone": "Mars/Olympus"},
    ],
)
def test_options_that_are_none_raise(options: dict[str, Any]) -> None:
    with raises(InputError, option=next(iter(options))):
        CsvOptions(**options)


def test_options_of_csv_for_another_format_raise(path: Path) -> None:
    path = path.with_suffix(".ndjson")
    path.write_text('{"lat": 1, "lon": 2, "time": "2020-01-01"}\n')
    with raises(InputError, expected="csv"):
        open_source(path, mapping=Mapping.of(None, csv=CsvOptions(skip=1)))


@pytest.mark.parametrize(
    ("text", "options", "line"),
    [
        ("31.02.2020", {"time_format": "%d.%m.%Y"}, 3),
        ("2020-13-01", {"time_format": "%Y-%m-%d"}, 3),
        ("2024-03-10T02:30", {"time_zone": "America/Denver"}, 3),
    ],
)
def test_times_that_are_none_raise_with_line(
    path: Path, text: str, options: dict[str, Any], line: int
) -> None:
    good = "01.01.2020" if "." in text else "2020-01-01"
    path.write_text(f"lat,lon,time,t\n1,2,{good},1\n1,2,{text},3\n")
    with raises(InvalidObservations, expected="times", column="time", row=1, line=line):
        read(path, csv=CsvOptions(**options))


def test_point_in_a_number_with_decimal_commas_raises(path: Path) -> None:
    path.write_text("lat;lon;time;t\n1,5;2;2020-01-01;1.234,5\n1,5;2;2020-01-01;1.5\n")
    schema = Schema("x", [Feature("t")])
    mapping = Mapping.of(None, csv=CsvOptions(decimal=","))
    with raises(InvalidObservations, row=1, line=3, column="t"):
        list(open_source(path, mapping=mapping, schema=schema).batches())


def test_bad_rows_are_kept_aside_with_line_and_mistake(path: Path, tmp_path: Path) -> None:
    lines = ['1,2,2020-01-01,1,"a\n\nb"', "1,2,2020-01-01,2", "95x,2,2020-01-01,3,c"]
    lines += ["", "1,2,soon,4,d", "1,2,2020-01-01,five,e", '1,2,2020-01-01,6,"f"', "1,2,3,4,5,6"]
    path.write_text("lat,lon,time,t,s\n" + "\n".join(lines) + "\n")
    schema = Schema("x", [Feature("t", type="int"), Feature("s", type="text")])
    bad = tmp_path / "bad.csv"
    mapping = Mapping.of(None, csv=CsvOptions(bad_rows=bad))
    source = open_source(path, mapping=mapping, schema=schema)
    for _ in range(2):
        table = pa.concat_tables(source.batches())
        assert table.column("t").to_pylist() == [1, 6]
        assert source.skipped == 0
        kept = pd.read_csv(bad)
        assert kept["line"].to_list() == [5, 6, 8, 9, 11]
        assert kept["row"].to_list()[1] == "95x,2,2020-01-01,3,c"
        assert "expected 5 fields, got 4" in kept["mistake"][0]
        assert "got 'five'" in kept["mistake"][3]
        assert list(map(str, source.warnings())) == [
            f"5 bad rows were left out and written to {bad}"
        ]
    with pytest.warns(GalileoWarning, match="3 bad rows were left out"):
        rows = pa.concat_tables(open_rows(path, pa.schema([("t", pa.int64())]), mapping.csv))
    assert rows.column("t").to_pylist() == [1, 3, 4, 6]


def test_bad_rows_of_any_place_and_column_are_found(path: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    bad = set(generator.choice(1_500, 40, replace=False).tolist()) | {0, 1, 2, 1_499}
    wrong = ["x,2,2020-01-01,3", "1,2,soon,3", "1,2,2020-01-01,3.5", f"1,2,2020-01-01,{2**63}"]
    rows = [
        wrong[row % len(wrong)] if row in bad else f"1,2,2020-01-01,{row}" for row in range(1_500)
    ]
    path.write_text("\n".join(["lat,lon,time,n", *rows, ""]))
    schema = Schema("x", [Feature("n", type="int")])
    mapping = Mapping.of(None, csv=CsvOptions(bad_rows=tmp_path / "bad.csv"))
    table = pa.concat_tables(open_source(path, schema=schema, mapping=mapping).batches())
    assert table.column("n").to_pylist() == [row for row in range(1_500) if row not in bad]
    kept = pd.read_csv(tmp_path / "bad.csv")
    assert kept["row"].tolist() == [rows[row] for row in sorted(bad)]
    assert kept["line"].tolist() == [row + 2 for row in sorted(bad)]


def test_files_share_a_file_of_bad_rows_and_others_are_not_overwritten(
    path: Path, tmp_path: Path
) -> None:
    other, bad = path.with_name("other.csv"), tmp_path / "bad.csv"
    csv = CsvOptions(bad_rows=bad)
    for file in (path, other, path):
        file.write_text("lat,lon,time,t\n1,2,2020-01-01,1\n1,2\n")
        assert len(read(file, csv=csv)) == 1
    kept = pd.read_csv(bad)
    assert kept["file"].to_list() == [str(other), str(path)]
    bad.write_text("a,b\n1,2\n")
    with raises(InputError, option="bad_rows"):
        read(path, csv=csv)
    assert bad.read_text() == "a,b\n1,2\n"


def test_too_many_bad_rows_raise(path: Path, tmp_path: Path) -> None:
    path.write_text("lat,lon,time,t\n" + "x,2,2020-01-01,1\n" * (BAD_ROWS_MAX + 1))
    with raises(InputError, bound=BAD_ROWS_MAX):
        read(path, csv=CsvOptions(bad_rows=tmp_path / "bad.csv"))


def test_file_without_places_can_be_looked_at(path: Path) -> None:
    path.write_text("time,wind\n2020-01-01,3.5\n")
    source = open_source(path, is_place_needed=False)
    assert source.place_error is not None
    found = [(variable.name, variable.type) for variable in source.variables()]
    assert found == [("time", "text"), ("wind", "float")]
    assert source.samples(["wind"]) == {"wind": ["3.5"]}


def test_unclosed_quotation_raises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("galileo.formats.csv.BLOCK_BYTES", 64)
    monkeypatch.setattr("galileo.formats.csv.ROW_BYTES_MAX", 256)
    path.write_text('lat,lon,time,t\n1,2,2020-01-01,"x\n' + "1,2,2020-01-01,y\n" * 40)
    with raises(InputError, expected="csv", bound=256):
        list(open_source(path).batches())


def test_rows_are_counted_by_what_they_lack(path: Path) -> None:
    path.write_text("lat,lon,time,t\n,2,2020-01-01,1\n,2,,\n1,,2020-01-01,1\n1,2,,1\n1,2,2020,\n")
    source = open_source(path, schema=Schema("x", [Feature("t")]))
    assert list(source.batches()) == []
    assert source.lacking == {"latitude": 2, "longitude": 1, "time": 1, "value": 1}
    words = "2 rows without a latitude, 1 row without a longitude, 1 row without a time"
    assert skipped_words(source.lacking) == f"{words}, 1 row without a value"
