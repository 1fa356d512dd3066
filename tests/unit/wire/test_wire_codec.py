from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.model.windows import WindowChanges
from galileo.wire import codec
from galileo.wire.channel import MESSAGE_BYTES_MAX
from galileo.wire.v1 import common_pb2, continuous_pb2

cursors = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=6)


@given(cursors)
def test_cursor_to_pb_random_cursor_round_trips(positions: dict[int, int]) -> None:
    sent = Cursor(positions)
    packed = codec.cursor_to_pb(sent).SerializeToString()
    assert codec.cursor_from_pb(common_pb2.Cursor.FromString(packed)) == sent


def test_cursor_from_pb_unequal_lists_raises() -> None:
    value = common_pb2.Cursor(partitions=[1, 2], sequences=[3])
    with raises(InputError, expected="same_lengths", name="cursor"):
        codec.cursor_from_pb(value)


@given(st.integers(0, 50), st.integers(1, 20))
def test_table_chunks_random_table_round_trips(rows: int, rows_max: int) -> None:
    table = pa.table({"number": np.arange(rows), "text": [f"text {n}" for n in range(rows)]})
    chunks = list(codec.table_chunks(table, rows_max))
    sizes = [codec.table_of([chunk], table.schema).num_rows for chunk in chunks]
    assert sizes == [min(rows_max, rows - start) for start in range(0, rows, rows_max)]
    assert codec.table_of(chunks, table.schema).equals(table)


def test_table_chunks_slice_has_its_rows_only() -> None:
    table = pa.table({"text": ["x" * 1000] * 10_000})
    (chunk,) = codec.table_chunks(table.slice(5_000, 10), 100)
    assert len(chunk) < 20_000


def test_table_chunks_wide_rows_fit_message() -> None:
    """Twenty texts of 4 MB: few rows, and too much for one message."""
    table = pa.table({"text": pa.array(["x" * (4 << 20)] * 20, pa.string())})
    chunks = [len(chunk) for chunk in codec.table_chunks(table, codec.ROWS_PER_MESSAGE)]
    assert max(chunks) < MESSAGE_BYTES_MAX
    assert sum(chunks) > 20 * (4 << 20)


def test_table_chunks_rows_of_different_width_fit_message() -> None:
    widths = [16 << 20] * 4 + [1] * 1000
    table = pa.table({"number": range(len(widths)), "text": ["x" * width for width in widths]})
    chunks = list(codec.table_chunks(table, codec.ROWS_PER_MESSAGE))
    assert max(map(len, chunks)) < MESSAGE_BYTES_MAX
    assert codec.table_of(chunks, table.schema).equals(table)


@pytest.mark.parametrize("chunk_rows", [100, 100_000])
async def test_row_streams_are_small_and_have_all_rows_once(chunk_rows: int) -> None:
    numbers = np.arange(100_000)
    whole = pa.table({"a": numbers, "b": numbers * 0.5, "c": [f"{n:07}" for n in numbers]})
    table = pa.concat_tables(
        whole.slice(start, chunk_rows) for start in range(0, whole.num_rows, chunk_rows)
    )
    streams = [stream async for stream in codec.row_streams(table)]
    assert max(stream.size for stream in streams) <= 1.1 * codec.STREAM_BYTES_MAX
    assert len(streams) <= 4 * table.nbytes / codec.STREAM_BYTES_MAX
    parts = [pa.ipc.open_stream(stream).read_all() for stream in streams]
    assert pa.concat_tables(parts).equals(whole)


def test_table_of_other_schema_raises() -> None:
    (chunk,) = codec.table_chunks(pa.table({"a": [1]}), 10)
    with raises(InputError, expected="columns"):
        codec.table_of([chunk], pa.schema([("b", pa.int64())]))
    with raises(InputError, expected="arrow_stream"):
        codec.table_of([b"rubbish"], pa.schema([("b", pa.int64())]))


def test_table_of_no_chunks_is_empty() -> None:
    schema = pa.schema([("b", pa.int64())])
    assert list(codec.table_chunks(schema.empty_table(), 10)) == []
    assert codec.table_of([], schema).equals(schema.empty_table())


micros = st.integers(-(2**62), 2**62)


counts = st.integers(0, 9)


@given(st.none() | micros, st.lists(st.tuples(micros, counts, counts, st.integers(0, 2))))
def test_windows_to_pb_random_changes_round_trip(
    clock_us: int | None, changes: list[tuple[int, int, int, int]]
) -> None:
    *columns, states = np.array(changes, dtype=np.int64).reshape(-1, 4).T
    sent = WindowChanges(clock_us, 7, *columns, states.astype(np.uint8))
    value = continuous_pb2.Windows.FromString(codec.windows_to_pb(sent).SerializeToString())
    found = codec.windows_from_pb(value)
    assert (found.clock_us, found.size_us) == (clock_us, 7)
    assert found.to_list() == sent.to_list()


@pytest.mark.parametrize(
    "wrong",
    [
        {"starts": b"1234567"},
        {"labels": bytes(16)},
        {"withdrawn": b""},
        {"states": b"\3"},
        {"states": b""},
    ],
)
def test_windows_from_pb_unequal_lists_raises(wrong: dict[str, bytes]) -> None:
    right = {"starts": bytes(8), "labels": bytes(8), "withdrawn": bytes(8), "states": b"\1"}
    with raises(InputError, expected="same_lengths", name="windows"):
        codec.windows_from_pb(continuous_pb2.Windows(size_us=1, **(right | wrong)))
