"""Arrow streams say what they unpack to, and are believed before they are unpacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import MessageTooLarge
from galileo.packing.arrow_streams import STREAM_MESSAGES_MAX, read_stream

COMPRESSIONS = (None, "lz4", "zstd")


def written(table: pa.Table, compression: str | None = None, *, times: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        for _ in range(times):
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def allocated(work: Callable[[], object]) -> int:
    """Bytes that Arrow took at most while something was refused."""
    kept = pa.default_memory_pool()
    # One of its own: the peak of any other is that of everything since the process began.
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(MessageTooLarge):
            work()
        return int(pool.max_memory())
    finally:
        pa.set_memory_pool(kept)


@given(
    values=st.lists(st.one_of(st.none(), st.integers(-9, 9)), max_size=40),
    texts=st.lists(st.text(max_size=5), max_size=40),
    compression=st.sampled_from(COMPRESSIONS),
    is_coded=st.booleans(),
    times=st.integers(1, 3),
)
def test_read_stream_random_table_equals_arrow(
    values: Sequence[int | None],
    texts: Sequence[str],
    compression: str | None,
    is_coded: bool,
    times: int,
) -> None:
    count = min(len(values), len(texts))
    column = pa.array(texts[:count], pa.string())
    coded = column.dictionary_encode() if is_coded else column
    table = pa.table({"a": pa.array(values[:count], pa.int64()), "b": coded})
    data = written(table, compression, times=times)
    expected = pa.ipc.open_stream(data).read_all()
    assert read_stream(data).equals(expected)
    assert read_stream(pa.py_buffer(data)).equals(expected)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_read_stream_bound_counts_unpacked_bytes(compression: str | None) -> None:
    table = pa.table({"a": np.zeros(1_000), "b": np.zeros(1_000, np.int8)})
    data = written(table, compression, times=3)
    assert read_stream(data, bytes_max=27_200).num_rows == 3_000
    with raises(MessageTooLarge, expected="bytes", bound=26999):
        read_stream(data, bytes_max=26_999)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_read_stream_bomb_raises_before_allocation(compression: str) -> None:
    data = written(pa.table({"a": np.zeros(20 << 20)}), compression)
    assert len(data) < 1 << 20
    assert allocated(lambda: read_stream(data)) < 1 << 20


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_read_stream_dictionary_bomb_raises(compression: str) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["x" * (80 << 20)]))
    data = written(pa.table({"a": texts}), compression)
    assert len(data) < 1 << 20
    with pytest.raises(MessageTooLarge):
        read_stream(data)


def test_read_stream_shared_buffer_counts_per_column() -> None:
    """By hand: a batch whose heads name the same place of the body again and again."""
    table = pa.table({f"c{number}": np.zeros(1_000) for number in range(8)})
    data = bytearray(written(table))
    message = pa.ipc.MessageReader.open_stream(pa.py_buffer(bytes(data)))
    message.read_next_message()
    head = message.read_next_message().metadata.to_pybytes()
    place = data.index(head)
    for number in range(8):
        nulls = (8_000 * number).to_bytes(8, "little") + bytes(8)
        values = (8_000 * number).to_bytes(8, "little") + (8_000).to_bytes(8, "little")
        at = data.index(nulls + values, place) + len(nulls)
        data[at : at + 8] = bytes(8)
    assert read_stream(bytes(data), bytes_max=64_000).num_rows == 1_000
    with pytest.raises(MessageTooLarge):
        read_stream(bytes(data), bytes_max=63_999)


def test_read_stream_too_many_batches_raises() -> None:
    table = pa.table({"a": [1]})
    assert read_stream(written(table, times=STREAM_MESSAGES_MAX)).num_rows == STREAM_MESSAGES_MAX
    with raises(MessageTooLarge, expected="batches", bound=16384):
        read_stream(written(table, times=STREAM_MESSAGES_MAX + 1))


def test_read_stream_large_schema_raises() -> None:
    schema = pa.schema([pa.field(f"a{number}", pa.null()) for number in range(30_000)])
    with raises(MessageTooLarge, expected="schema_bytes", bound=1048576):
        read_stream(written(schema.empty_table()))


@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_read_stream_random_damage_raises_known_errors_only(place: int, byte: int) -> None:
    """Whatever a changed byte makes of it: a table, or one of the errors that are reported."""
    data = bytearray(written(pa.table({"a": ["x", "y"], "b": [1, None]}), "zstd"))
    data[place % len(data)] = byte
    try:
        read_stream(bytes(data))
    except (MessageTooLarge, pa.ArrowException, ValueError, OSError):
        return


def test_read_stream_length_overflow_raises() -> None:
    data = bytearray(written(pa.table({"a": np.zeros(1_000), "b": np.zeros(1_000)}), "zstd"))
    size = (8_000).to_bytes(8, "little")
    most = (2**63 - 1).to_bytes(8, "little")
    assert data.count(size) == 2
    with pytest.raises(MessageTooLarge):
        read_stream(bytes(data.replace(size, most)))
