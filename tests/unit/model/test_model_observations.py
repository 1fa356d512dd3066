"""Observations as users bring them: every shape that is taken, every refusal."""

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
from expected_errors import raises
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


def check_refused(data: Any, **details: Any) -> None:
    with raises(InvalidObservations, **details):
        normalise(SCHEMA, data)


# --- every shape -----------------------------------------------------------------------------


def test_normalise_any_container_gives_same_table() -> None:
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


def test_normalise_normalised_table_is_unchanged() -> None:
    once = normalise(SCHEMA, table())
    assert normalise(SCHEMA, once).equals(once)


def test_normalise_deleting_row_has_its_key_alone() -> None:
    schema = Schema("nam", SCHEMA.features, key="station")
    given = columns(deleted=[False, True])
    rows = normalise(schema, pa.table(given)).to_pylist()
    plain = normalise(schema, pa.table(columns(deleted=[False, False]))).to_pylist()
    gone = {"temperature": None, "count": None, "wet": None, "deleted": True}
    assert rows == [plain[0], plain[1] | gone]
    assert None not in plain[1].values()


def test_normalise_normalised_table_keeps_buffers() -> None:
    once = normalise(SCHEMA, table())
    twice = normalise(SCHEMA, once)
    for name in once.column_names:
        before, after = (t.column(name).chunk(0).buffers()[1].address for t in (once, twice))
        assert before == after, name


def test_normalise_pandas_index_is_dropped() -> None:
    frame = pd.DataFrame(columns(), index=[7, 7])
    assert normalise(SCHEMA, frame).equals(normalise(SCHEMA, table()))


def test_normalise_no_rows_gives_empty_table() -> None:
    got = normalise(SCHEMA, table().slice(0, 0))
    assert got.schema.equals(SCHEMA.observation_schema)
    assert got.num_rows == 0


def test_normalise_nan_in_float32_becomes_null() -> None:
    got = normalise(SCHEMA, table(temperature=pa.array([1.5, float("nan")], pa.float32())))
    assert got.column("temperature").to_pylist() == [1.5, None]


def test_normalise_infinity_is_kept() -> None:
    got = normalise(SCHEMA, table(temperature=[float("inf"), -float("inf")]))
    assert got.column("temperature").to_pylist() == [float("inf"), -float("inf")]


# --- coordinates -----------------------------------------------------------------------------


@given(st.lists(st.floats(-180, 360), min_size=1, max_size=20))
def test_normalise_longitude_above_180_is_folded(values: list[float]) -> None:
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
def test_normalise_longitude_at_limit_is_folded(given_: float, wanted: float) -> None:
    got = normalise(SCHEMA, table(longitude=[float(given_)] * 2))
    assert got.column("longitude").to_pylist() == [wanted] * 2


def test_normalise_longitude_180_beside_larger_ones_stays() -> None:
    got = normalise(SCHEMA, table(longitude=[180.0, 190.0]))
    assert got.column("longitude").to_pylist() == [180.0, -170.0]


ROUNDED = st.sampled_from([-180.0, -90.0, 90.0, 180.0, 360.0]).flatmap(
    lambda bound: st.floats(bound - 2e-4, bound + 2e-4)
)


@given(st.lists(ROUNDED, min_size=1, max_size=5))
def test_normalise_coordinate_beyond_its_bound_by_rounding_is_clipped(values: list[float]) -> None:
    """Within a ten-thousandth of a degree; farther ones are refused."""
    schema = Schema("s", [Feature("t")])
    for name, low, high in (("latitude", -90.0, 90.0), ("longitude", -180.0, 360.0)):
        zeros = dict.fromkeys(("latitude", "longitude", "t"), [0.0] * len(values))
        data = pa.table(zeros | {"time": [T0] * len(values), name: values})
        if any(value < low - 1e-4 or value > high + 1e-4 for value in values):
            with raises(InvalidObservations, expected="degrees", column=name):
                normalise(schema, data)
            continue
        clipped = [min(max(value, low), high) for value in values]
        wanted = [value - 360 if value > 180 else value for value in clipped]
        assert normalise(schema, data).column(name).to_pylist() == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latitude", 90.001),
        ("latitude", -91.0),
        ("latitude", float("inf")),
        ("longitude", 360.5),
        ("longitude", -180.5),
    ],
)
def test_normalise_coordinate_out_of_range_raises_with_row(name: str, value: float) -> None:
    chunks = pa.chunked_array([[1.0, 2.0, 3.0], [value, value]])
    data = pa.concat_tables([table()] * 3).slice(0, 5).drop_columns([name])
    check_refused(data.append_column(name, chunks), expected="degrees", column=name, row=3)


@pytest.mark.parametrize("name", ["latitude", "longitude"])
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_normalise_missing_coordinate_raises_with_row(name: str, missing: float | None) -> None:
    check_refused(table(**{name: [1.0, missing]}), expected="no_nulls", column=name, row=1)


@pytest.mark.parametrize("values", [["a", "b"], [True, False], [None, None]])
def test_normalise_coordinate_of_other_type_raises(values: list[Any]) -> None:
    check_refused(table(latitude=values), expected="degrees", column="latitude")


# --- time ------------------------------------------------------------------------------------


def test_normalise_pandas_time_zone_becomes_utc() -> None:
    frame = pd.DataFrame(columns())
    frame["time"] = frame["time"].dt.tz_convert("Asia/Tokyo")
    assert normalise(SCHEMA, frame).equals(normalise(SCHEMA, table()))


def test_normalise_invalid_time_text_raises_with_row() -> None:
    check_refused(table(time=["2012-03-01", "soon"]), expected="iso_8601", column="time", row=1)


def test_normalise_numeric_times_raises() -> None:
    check_refused(table(time=[1, 2]), expected="times", column="time")


@pytest.mark.parametrize("times", [[T0, None], ["2012-03-01", None]])
def test_normalise_missing_time_raises_with_row(times: list[Any]) -> None:
    check_refused(table(time=times), expected="no_nulls", column="time", row=1)


@pytest.mark.parametrize("second", [-62_135_596_801, 253_402_300_800])
def test_normalise_time_outside_calendar_raises_with_row(second: int) -> None:
    times = pa.array([0, second]).cast(pa.timestamp("s"))
    check_refused(table(time=times), expected="calendar_time", column="time", row=1)


def test_normalise_bucket_before_calendar_raises_with_row() -> None:
    """Year 1 begins on a Monday, and weeks since 1970 begin on Thursdays."""
    weekly = Schema("nam", [Feature("count", type="int")], time_bucket="7d")
    monday = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    places: dict[str, Any] = {"latitude": [0.0, 0.0], "longitude": [0.0, 0.0], "count": [1, 2]}
    with raises(InvalidObservations, expected="calendar_bucket", column="time", row=1):
        normalise(weekly, pa.table({**places, "time": [T0, monday]}))
    kept = normalise(weekly, pa.table({**places, "time": [T0, monday + dt.timedelta(days=3)]}))
    assert buckets_from_table(weekly, kept).min() == column_micros(kept.column("time")).min()
    assert normalise(SCHEMA, table(time=[T0, monday])).num_rows == 2


def test_normalise_time_overflow_raises() -> None:
    times = pa.array([0, 2**62]).cast(pa.timestamp("s"))
    check_refused(table(time=times), expected="microseconds", column="time")


# --- features --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("temperature", ["a", "b"], "float"),
        ("temperature", [True, False], "float"),
        ("temperature", [1, 2**53 + 1], "float"),
        ("count", [1.0, 2.0], "int"),
        ("count", [True, False], "int"),
        ("count", pa.array(["a", "b"]).dictionary_encode(), "int"),
        ("count", pa.array([1, 2**64 - 1], pa.uint64()), "int"),
        ("count", [Decimal("1.5"), Decimal(2)], "int"),
        ("station", [Decimal(1), Decimal(2)], "text"),
        ("station", [1, 2], "text"),
        ("station", [b"a", b"b"], "text"),
        ("wet", [0, 1], "bool"),
        ("wet", [[True], [False]], "bool"),
    ],
)
def test_normalise_feature_of_other_type_raises(name: str, values: Any, expected: str) -> None:
    check_refused(table(**{name: values}), expected=expected, column=name)


# --- names and containers --------------------------------------------------------------------


def test_normalise_missing_and_unknown_columns_raises_with_both() -> None:
    data = table().rename_columns(
        ["lat", "longitude", "time", "Temprature", "count", "station", "qqq"]
    )
    check_refused(
        data,
        expected="columns_of_dataset",
        missing_columns=["latitude", "temperature", "wet"],
        unknown_columns=["lat", "Temprature", "qqq"],
    )
    check_refused(table().drop_columns(["wet"]), missing_columns=["wet"], unknown_columns=[])
    check_refused(table(colour=[1, 2]), missing_columns=[], unknown_columns=["colour"])


def test_normalise_duplicate_column_raises() -> None:
    twice = table().append_column("wet", pa.array([True, True]))
    check_refused(twice, expected="unique", column="wet")
    frame = pd.concat([pd.DataFrame(columns()), pd.DataFrame({"wet": [True, True]})], axis=1)
    check_refused(frame, expected="table")


@pytest.mark.parametrize("data", [5, None, "text", {"latitude": [1]}, [1, 2], []])
def test_normalise_other_object_raises(data: Any) -> None:
    check_refused(data, expected="table")


def test_normalise_batches_of_two_schemas_raises() -> None:
    one, other = table().to_batches()[0], table(count=[1.5, 2.5]).to_batches()[0]
    check_refused([one, other], expected="table")


@pytest.mark.parametrize(
    "station", [["a", 5], [{"a": 1}, "b"], [object(), object()], np.array([1j, 2j])]
)
def test_normalise_frame_of_mixed_objects_raises(station: Any) -> None:
    check_refused(pd.DataFrame(columns(station=station)), expected="arrow_columns")


def test_normalise_truncated_stream_raises() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table().schema) as writer:
        writer.write_table(table())
    cut = sink.getvalue()[:-200]
    check_refused(pa.ipc.open_stream(cut), expected="table")


numbers = st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, math.inf, -math.inf])


@given(st.lists(st.lists(numbers, max_size=4), min_size=1, max_size=3))
def test_nan_is_null_wherever_it_stands(chunks: list[list[float | None]]) -> None:
    """Among infinities, in a later chunk, beside a null."""
    column = pa.chunked_array(chunks, pa.float64())
    flat = [value for chunk in chunks for value in chunk]
    expected = [None if value is None or math.isnan(value) else value for value in flat]
    assert nan_to_null(column).to_pylist() == expected


@given(st.lists(st.lists(numbers, max_size=3), min_size=1, max_size=3))
def test_normalise_invalid_latitude_in_any_chunk_raises_with_row(
    chunks: list[list[float | None]],
) -> None:
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
def test_normalise_shared_text_beyond_limit_raises(kind: str) -> None:
    found = normalise(SCHEMA, table(station=_texts(kind, "x" * 40, 2)))
    assert found.column("station").to_pylist() == ["x" * 40] * 2
    longer = table(station=_texts(kind, "x" * (TEXT_BYTES_MAX // 2 + 1), 2))
    check_refused(longer, column="station", bound=TEXT_BYTES_MAX)


def test_normalise_huge_shared_text_raises_before_decoding() -> None:
    """Without the count, Arrow would be asked for 100 GB."""
    count = 100_000
    coded = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(count, np.int8)), pa.array(["x" * 1_000_000])
    )
    rows = {name: [column[0]] * count for name, column in columns().items() if name != "station"}
    check_refused(pa.table({**rows, "station": coded}), column="station", bound=TEXT_BYTES_MAX)
    times = pa.table({**rows, "station": ["x"] * count, "time": coded})
    check_refused(times, column="time", bound=TEXT_BYTES_MAX)


def test_normalise_dictionary_of_another_type_is_not_decoded() -> None:
    blocks, rows = pa.array([bytes(1 << 20)], pa.binary(1 << 20)), 2_048
    coded = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), blocks)
    others = {name: values * (rows // 2) for name, values in columns().items()}
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    check_refused(pa.table(others | {"station": coded}), expected="text", column="station")
    assert pool.max_memory() - before < 1 << 30


# --- features that were added ------------------------------------------------------------------


GUST, SITE = Feature("gust", "m/s"), Feature("site", type="text")
WIDER = SCHEMA.with_features([GUST, SITE])


def test_normalise_without_added_features_has_nulls_in_them() -> None:
    plain, wide = normalise(SCHEMA, table()), normalise(WIDER, table())
    assert wide.schema == WIDER.observation_schema
    assert wide.select(plain.column_names) == plain
    assert [wide.column(name).null_count for name in ("gust", "site")] == [2, 2]


def test_normalise_with_one_added_feature_has_null_in_the_other() -> None:
    wide = normalise(WIDER, table(site=["a", None]))
    assert wide.column("site").to_pylist() == ["a", None]
    assert wide.column("gust").null_count == 2


def test_normalise_without_a_first_feature_is_refused_with_added_ones() -> None:
    with raises(InvalidObservations, missing_columns=["station"], unknown_columns=["gusts"]):
        normalise(WIDER, table(gusts=[1.0, 2.0]).drop_columns(["station"]))
