"""Observations as users bring them: every shape that is taken, every message of a refusal."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InvalidObservations
from galileo.model.observations import TEXT_BYTES_MAX, nan_to_null, normalise
from galileo.model.paths import buckets_from_table
from galileo.model.schema import Feature, Schema
from galileo.model.times import column_micros

SCHEMA = Schema(
    "nam",
    [
        Feature("temperature", "K"),
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("wet", type="bool", indexed=False),
    ],
)
T0 = dt.datetime(2012, 3, 1, 6, tzinfo=dt.UTC)


def columns(**changes: Any) -> dict[str, Any]:
    return {
        "latitude": [40.0, 41.5],
        "longitude": [-105.0, 12.0],
        "time": [T0, T0 + dt.timedelta(minutes=1)],
        "temperature": [290.5, 280.0],
        "count": [1, 2],
        "station": ["KDEN", "LOWW"],
        "wet": [True, False],
    } | changes


def table(**changes: Any) -> pa.Table:
    return pa.table(columns(**changes))


def refused(data: Any) -> str:
    with pytest.raises(InvalidObservations) as caught:
        normalise(SCHEMA, data)
    return caught.value.message


# --- every shape -----------------------------------------------------------------------------


def test_every_container_gives_the_same_table() -> None:
    plain = table()
    wanted = normalise(SCHEMA, plain)
    assert wanted.schema.equals(SCHEMA.observation_schema)
    wanted.validate(full=True)
    batches = plain.to_batches(max_chunksize=1)
    containers: list[Any] = [
        plain.to_batches()[0],
        batches,
        iter(batches),
        pa.RecordBatchReader.from_batches(plain.schema, batches),
        pd.DataFrame(columns()),
        plain.select(list(reversed(plain.column_names))),
    ]
    for container in containers:
        assert normalise(SCHEMA, container).equals(wanted)


def test_a_normalised_table_stays_as_it_is() -> None:
    once = normalise(SCHEMA, table())
    assert normalise(SCHEMA, once).equals(once)


def test_buffers_are_kept_where_nothing_changes() -> None:
    once = normalise(SCHEMA, table())
    twice = normalise(SCHEMA, once)
    for name in once.column_names:
        before, after = (t.column(name).chunk(0).buffers()[1].address for t in (once, twice))
        assert before == after, name


def test_a_pandas_index_is_dropped() -> None:
    frame = pd.DataFrame(columns(), index=[7, 7])
    assert normalise(SCHEMA, frame).equals(normalise(SCHEMA, table()))


def test_no_rows_are_fine() -> None:
    got = normalise(SCHEMA, table().slice(0, 0))
    assert got.schema.equals(SCHEMA.observation_schema)
    assert got.num_rows == 0


def test_dictionary_columns_are_decoded() -> None:
    station = pa.array(["KDEN", None]).dictionary_encode()
    count = pa.array([5, 5], pa.int8()).dictionary_encode()
    got = normalise(SCHEMA, table(station=station, count=count))
    assert got.column("station").to_pylist() == ["KDEN", None]
    assert got.column("count").to_pylist() == [5, 5]
    frame = pd.DataFrame(columns())
    frame["station"] = frame["station"].astype("category")
    assert normalise(SCHEMA, frame).column("station").to_pylist() == ["KDEN", "LOWW"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.string()])
def test_texts_of_every_layout(kind: pa.DataType) -> None:
    got = normalise(SCHEMA, table(station=pa.array(["a", None], kind)))
    assert got.column("station").to_pylist() == ["a", None]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.int8(), pa.uint64()])
def test_numbers_of_every_width(kind: pa.DataType) -> None:
    two = pa.array(np.array([2, 3], dtype=kind.to_pandas_dtype()), kind)
    got = normalise(SCHEMA, table(temperature=two, latitude=two, longitude=two))
    for name in ("temperature", "latitude", "longitude"):
        assert got.column(name).to_pylist() == [2.0, 3.0]


def test_missing_values_are_nulls() -> None:
    temperature = pa.array([float("nan"), None])
    nothing = pa.nulls(2)
    got = normalise(
        SCHEMA, table(temperature=temperature, count=nothing, station=nothing, wet=nothing)
    )
    for name in ("temperature", "count", "station", "wet"):
        assert got.column(name).to_pylist() == [None, None], name
        assert got.column(name).null_count == 2


def test_nan_is_null_in_narrow_floats_too() -> None:
    got = normalise(SCHEMA, table(temperature=pa.array([1.5, float("nan")], pa.float32())))
    assert got.column("temperature").to_pylist() == [1.5, None]


def test_infinity_is_a_value() -> None:
    got = normalise(SCHEMA, table(temperature=[float("inf"), -float("inf")]))
    assert got.column("temperature").to_pylist() == [float("inf"), -float("inf")]


# --- coordinates -----------------------------------------------------------------------------


@given(st.lists(st.floats(-180, 360), min_size=1, max_size=20))
def test_longitudes_are_folded_beyond_180(values: list[float]) -> None:
    n = len(values)
    got = normalise(
        Schema("s", [Feature("t")]),
        pa.table({"latitude": [0.0] * n, "longitude": values, "time": [T0] * n, "t": [1.0] * n}),
    )
    wanted = [value - 360 if value > 180 else value for value in values]
    assert got.column("longitude").to_pylist() == wanted


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [(180, 180), (-180, -180), (360, 0), (180.00001, 180.00001 - 360), (359, -1), (0, 0)],
)
def test_edges_of_longitude(given_: float, wanted: float) -> None:
    got = normalise(SCHEMA, table(longitude=[float(given_)] * 2))
    assert got.column("longitude").to_pylist() == [wanted] * 2


def test_the_poles_are_places() -> None:
    assert normalise(SCHEMA, table(latitude=[90, -90])).column("latitude").to_pylist() == [90, -90]


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("latitude", 90.001, "-90 to 90"),
        ("latitude", -91.0, "-90 to 90"),
        ("latitude", float("inf"), "-90 to 90"),
        ("longitude", 360.5, "-180 to 360"),
        ("longitude", -180.5, "-180 to 360"),
    ],
)
def test_a_coordinate_out_of_range_names_the_row(name: str, value: float, limits: str) -> None:
    chunks = pa.chunked_array([[1.0, 2.0, 3.0], [value, value]])
    data = pa.concat_tables([table()] * 3).slice(0, 5).drop_columns([name])
    with pytest.raises(InvalidObservations) as caught:
        normalise(SCHEMA, data.append_column(name, chunks))
    assert caught.value.message == (
        f"expected a {name} from {limits} degrees, got {value!r} in row 3; "
        "nothing of this table was stored"
    )
    assert caught.value.details == {"row": 3}


@pytest.mark.parametrize("name", ["latitude", "longitude"])
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_coordinate_names_the_row(name: str, missing: float | None) -> None:
    with pytest.raises(InvalidObservations) as caught:
        normalise(SCHEMA, table(**{name: [1.0, missing]}))
    assert caught.value.message == (
        f"expected a value in every row of column '{name}', got none in row 1; "
        "nothing of this table was stored"
    )
    assert caught.value.details == {"row": 1}


@pytest.mark.parametrize("values", [["a", "b"], [True, False], [None, None], [Decimal(1)] * 2])
def test_a_coordinate_that_is_no_number_is_refused(values: list[Any]) -> None:
    assert "expected degrees in column 'latitude', got " in refused(table(latitude=values))


# --- time ------------------------------------------------------------------------------------


def test_naive_times_are_utc() -> None:
    naive = [dt.datetime(2012, 3, 1, 6), dt.datetime(2012, 3, 1, 6, 1)]
    assert normalise(SCHEMA, table(time=naive)).equals(normalise(SCHEMA, table()))


def test_texts_with_mixed_offsets_are_times() -> None:
    texts = ["2012-03-01T06:00:00Z", "2012-03-01T07:01:00+01:00"]
    assert normalise(SCHEMA, table(time=texts)).equals(normalise(SCHEMA, table()))


def test_zones_of_pandas_are_understood() -> None:
    frame = pd.DataFrame(columns())
    frame["time"] = frame["time"].dt.tz_convert("Asia/Tokyo")
    assert normalise(SCHEMA, frame).equals(normalise(SCHEMA, table()))


def test_a_text_that_is_no_time_is_refused() -> None:
    message = refused(table(time=["2012-03-01", "soon"]))
    assert message.endswith("in column 'time', got 'soon' in row 1")


def test_numbers_are_no_times() -> None:
    message = refused(table(time=[1, 2]))
    assert message == (
        "expected times in column 'time' (timestamp, date or ISO 8601 text), got int64; "
        "convert numbers first, for they do not say their unit"
    )


@pytest.mark.parametrize("times", [[T0, None], ["2012-03-01", None]])
def test_a_missing_time_names_the_row(times: list[Any]) -> None:
    assert refused(table(time=times)) == (
        "expected a value in every row of column 'time', got none in row 1; "
        "nothing of this table was stored"
    )


@pytest.mark.parametrize("second", [-62_135_596_801, 253_402_300_800])
def test_a_time_that_no_calendar_text_can_say_is_refused(second: int) -> None:
    times = pa.array([0, second]).cast(pa.timestamp("s"))
    assert refused(table(time=times)) == (
        "expected times of the years 1 to 9999 in column 'time', got another in row 1; "
        "nothing of this table was stored"
    )


def test_a_time_whose_bucket_begins_before_the_calendar_is_refused() -> None:
    """Year 1 begins on a Monday, and weeks since 1970 begin on Thursdays."""
    weekly = Schema("nam", [Feature("count", type="int")], time_bucket="7d")
    monday = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    places: dict[str, Any] = {"latitude": [0.0, 0.0], "longitude": [0.0, 0.0], "count": [1, 2]}
    with pytest.raises(InvalidObservations) as caught:
        normalise(weekly, pa.table({**places, "time": [T0, monday]}))
    assert caught.value.message == (
        "expected times from 0001-01-04T00:00:00Z on in column 'time', where the first time bucket "
        "begins, got an earlier one in row 1; nothing of this table was stored"
    )
    kept = normalise(weekly, pa.table({**places, "time": [T0, monday + dt.timedelta(days=3)]}))
    assert buckets_from_table(weekly, kept).min() == column_micros(kept.column("time")).min()
    assert normalise(SCHEMA, table(time=[T0, monday])).num_rows == 2


def test_a_time_that_overflows_is_refused() -> None:
    times = pa.array([0, 2**62]).cast(pa.timestamp("s"))
    assert refused(table(time=times)).startswith("expected times that microseconds can hold")


# --- features --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "wanted", "got"),
    [
        ("temperature", ["a", "b"], "float", "string"),
        ("temperature", [True, False], "float", "bool"),
        ("temperature", [Decimal(1), Decimal(2)], "float", "decimal128(1, 0)"),
        ("count", [1.0, 2.0], "int", "double"),
        ("count", [True, False], "int", "bool"),
        ("station", [1, 2], "text", "int64"),
        ("station", [b"a", b"b"], "text", "binary"),
        ("wet", [0, 1], "bool", "int64"),
        ("wet", [[True], [False]], "bool", "list<item: bool>"),
    ],
)
def test_a_feature_of_a_wrong_type_is_refused(
    name: str, values: list[Any], wanted: str, got: str
) -> None:
    assert refused(table(**{name: values})) == (
        f"expected {wanted} values in column '{name}', got {got}; convert the column first"
    )


def test_a_dictionary_of_a_wrong_type_is_refused() -> None:
    message = refused(table(count=pa.array(["a", "b"]).dictionary_encode()))
    assert message.startswith("expected int values in column 'count', got string")


def test_an_integer_that_does_not_fit_is_refused() -> None:
    message = refused(table(count=pa.array([1, 2**64 - 1], pa.uint64())))
    assert message.startswith("expected int values in column 'count': Integer value ")


def test_an_integer_that_a_double_would_change_is_refused() -> None:
    message = refused(table(temperature=[1, 2**53 + 1]))
    assert message.startswith("expected float values in column 'temperature': Integer value ")


# --- names and containers --------------------------------------------------------------------


def test_missing_and_unknown_columns_are_named_with_a_hint() -> None:
    data = table().rename_columns(
        ["lat", "longitude", "time", "Temprature", "count", "station", "qqq"]
    )
    assert refused(data) == (
        "expected the columns latitude, longitude, time, temperature, count, station, wet for "
        "dataset 'nam'; missing: latitude, temperature, wet; "
        "unknown: lat (did you mean latitude?), Temprature (did you mean temperature?), qqq. "
        "Rename or drop columns, or fill a missing feature with nulls"
    )


def test_only_missing_and_only_unknown_columns() -> None:
    assert "'nam'; missing: wet. Rename" in refused(table().drop_columns(["wet"]))
    assert "'nam'; unknown: colour. Rename" in refused(table(colour=[1, 2]))


def test_a_column_given_twice_is_refused() -> None:
    twice = table().append_column("wet", pa.array([True, True]))
    assert refused(twice) == "expected each column once, got wet again"
    frame = pd.concat([pd.DataFrame(columns()), pd.DataFrame({"wet": [True, True]})], axis=1)
    assert "wet" in refused(frame)


@pytest.mark.parametrize("data", [5, None, "text", {"latitude": [1]}, [1, 2], []])
def test_what_is_no_table_is_refused(data: Any) -> None:
    message = refused(data)
    assert message.startswith(
        "expected an Arrow table, record batches of one schema or a pandas DataFrame, "
        f"got {type(data).__name__}: "
    )


def test_batches_of_two_schemas_are_refused() -> None:
    one, other = table().to_batches()[0], table(count=[1.5, 2.5]).to_batches()[0]
    assert "record batches of one schema" in refused([one, other])


@pytest.mark.parametrize(
    "station", [["a", 5], [{"a": 1}, "b"], [object(), object()], np.array([1j, 2j])]
)
def test_a_frame_of_mixed_objects_is_refused(station: Any) -> None:
    message = refused(pd.DataFrame(columns(station=station)))
    assert message.startswith("a column of the DataFrame cannot be converted to Arrow: ")
    assert "column station with type " in message


def test_a_reader_that_fails_is_refused_by_name() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table().schema) as writer:
        writer.write_table(table())
    cut = sink.getvalue()[:-200]
    assert "got RecordBatchStreamReader: " in refused(pa.ipc.open_stream(cut))


numbers = st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, math.inf, -math.inf])


@given(st.lists(st.lists(numbers, max_size=4), min_size=1, max_size=3))
def test_nan_is_null_wherever_it_stands(chunks: list[list[float | None]]) -> None:
    """Among infinities, in a later chunk, beside a null."""
    column = pa.chunked_array(chunks, pa.float64())
    flat = [value for chunk in chunks for value in chunk]
    expected = [None if value is None or math.isnan(value) else value for value in flat]
    assert nan_to_null(column).to_pylist() == expected


@given(st.lists(st.lists(numbers, max_size=3), min_size=1, max_size=3))
def test_a_place_is_refused_wherever_it_is_none(chunks: list[list[float | None]]) -> None:
    column = pa.chunked_array(chunks, pa.float64())
    flat = column.to_pylist()
    others = {name: [values[0]] * len(flat) for name, values in columns().items()}
    data = pa.table(others).set_column(0, "latitude", column)
    wrong = [value is None or not -90.0 <= value <= 90.0 for value in flat]
    if any(wrong):
        with pytest.raises(InvalidObservations) as caught:
            normalise(SCHEMA, data)
        assert wrong[caught.value.details["row"]]
    elif flat:
        assert normalise(SCHEMA, data).column("latitude").to_pylist() == flat


def _texts(kind: str, text: str, rows: int) -> pa.Array:
    """`rows` times one text that is kept once."""
    if kind == "view":
        view = struct.pack("<i4sii", len(text), text[:4].encode(), 0, 0)
        buffers = [None, pa.py_buffer(view * rows), pa.py_buffer(text.encode())]
        return pa.Array.from_buffers(pa.string_view(), rows, buffers)
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array([text]))


@pytest.mark.parametrize("kind", ["view", "codes"])
def test_texts_kept_once_are_counted_for_every_row(kind: str) -> None:
    found = normalise(SCHEMA, table(station=_texts(kind, "x" * 40, 2)))
    assert found.column("station").to_pylist() == ["x" * 40] * 2
    message = refused(table(station=_texts(kind, "x" * (TEXT_BYTES_MAX // 2 + 1), 2)))
    assert "268,435,456 bytes of texts in column 'station', got 268,435,458" in message


def test_a_text_that_would_fill_the_memory_is_refused_at_once() -> None:
    """Without the count, Arrow would be asked for 100 GB."""
    count = 100_000
    coded = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(count, np.int8)), pa.array(["x" * 1_000_000])
    )
    rows = {name: [column[0]] * count for name, column in columns().items() if name != "station"}
    assert "100,000,000,000" in refused(pa.table({**rows, "station": coded}))
    times = pa.table({**rows, "station": ["x"] * count, "time": coded})
    assert "column 'time'" in refused(times)


def test_codes_of_what_cannot_be_decoded_are_refused() -> None:
    views = pa.array(["a"], pa.string_view())
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), views)
    assert "convert the column first" in refused(table(station=coded))
