from __future__ import annotations

import struct

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import ConfigError, CorruptData, InputError
from galileo.storage.frame import (
    ALIGNMENT,
    FORMAT_VERSION,
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    Body,
    FrameHeader,
    checksum,
    decode_body,
    decode_header,
    encode_body,
    encode_header,
    producer_name,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
PRODUCERS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255).filter(
    lambda name: len(name.encode()) <= 255
)
LENGTHS = U32.map(lambda length: length * ALIGNMENT)


@st.composite
def headers(draw: st.DrawFn) -> FrameHeader:
    sequence = draw(U64)
    behind = st.integers(0, min(sequence, 2**32 - 1))
    return FrameHeader(
        partition=draw(U32),
        sequence=sequence,
        group=sequence - draw(behind),
        producer=draw(PRODUCERS),
        batch=draw(U64),
        rows=draw(U32),
        paths=draw(U32),
        committed_at_us=draw(st.integers(-(2**63), 2**63 - 1)),
        paths_bytes=draw(LENGTHS),
        observations_bytes=draw(LENGTHS),
        paths_crc=draw(U32),
        observations_crc=draw(U32),
        epoch=draw(U64),
        committed=sequence - draw(behind),
        added=draw(st.one_of(st.just(0), st.integers(0, 2**16 - 1))),
    )


HEADERS = headers()


@given(HEADERS, st.binary(max_size=100))
def test_encode_header_random_header_round_trips(header: FrameHeader, behind: bytes) -> None:
    stored = encode_header(header)
    assert len(stored) == header.header_bytes
    assert len(stored) % ALIGNMENT == 0
    assert HEADER_BYTES_MIN <= len(stored) <= HEADER_BYTES_MAX
    assert decode_header(stored + behind) == header


@given(HEADERS, st.data())
def test_decode_header_any_flipped_bit_raises_corrupt_data(
    header: FrameHeader, data: st.DataObject
) -> None:
    stored = bytearray(encode_header(header))
    bit = data.draw(st.integers(0, 8 * len(stored) - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptData):
        decode_header(bytes(stored) + bytes(HEADER_BYTES_MAX))


@given(HEADERS, st.data())
def test_decode_header_truncated_raises_corrupt_data(
    header: FrameHeader, data: st.DataObject
) -> None:
    stored = encode_header(header)
    with pytest.raises(CorruptData):
        decode_header(stored[: data.draw(st.integers(0, len(stored) - 1))])


@given(HEADERS)
def test_decode_header_later_format_raises_config_error(header: FrameHeader) -> None:
    stored = bytearray(encode_header(header))
    stored[8:10] = struct.pack("<H", FORMAT_VERSION + 1)
    stored[-4:] = struct.pack("<I", google_crc32c.value(bytes(stored[:-4])))
    with raises(ConfigError, expected="format_version"):
        decode_header(bytes(stored))


def test_header_with_name_of_client_has_128_bytes() -> None:
    producer = f"client-{'0' * 32}"
    header = FrameHeader(1, 2, 1, producer, 4, 5, 6, 7, 64, 64, 8, 9, 2**64 - 1, 2)
    assert header.header_bytes == 128


SCHEMA = pa.schema([("value", pa.float64()), ("text", pa.string()), ("flag", pa.bool_())])
ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.floats(allow_nan=False)),
        st.one_of(st.none(), st.text(max_size=20)),
        st.one_of(st.none(), st.booleans()),
    ),
    max_size=50,
)


def batch_of(rows: list[tuple[float | None, str | None, bool | None]]) -> pa.RecordBatch:
    columns = [pa.array([row[n] for row in rows], type=kind) for n, kind in enumerate(SCHEMA.types)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@given(ROWS, st.integers(0, 10))
def test_encode_body_random_slice_round_trips(
    rows: list[tuple[float | None, str | None, bool | None]], skipped: int
) -> None:
    batch = batch_of(rows).slice(skipped)
    body = encode_body(batch)
    stored = b"".join(bytes(buffer) for buffer in body.buffers)
    assert len(stored) == body.size
    assert body.size % ALIGNMENT == 0
    assert body.crc == google_crc32c.value(stored) == checksum([stored[:5], stored[5:]])
    assert decode_body(pa.py_buffer(stored), SCHEMA).equals(batch)


@given(ROWS, st.data())
def test_batches_of_equal_values_have_equal_bodies(
    rows: list[tuple[float | None, str | None, bool | None]], data: st.DataObject
) -> None:
    batch = batch_of(rows)
    start = data.draw(st.integers(0, len(rows)))
    middle = data.draw(st.integers(start, len(rows)))
    end = data.draw(st.integers(middle, len(rows)))
    sliced = batch.slice(start, end - start)
    is_within = [start <= row < end for row in range(len(rows))]
    halves = [batch.slice(start, middle - start), batch.slice(middle, end - middle)]
    joined = pa.Table.from_batches(halves).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(sliced)
    received = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
    noise = pa.array([1.5 if value is None else value for value, _, _ in rows], pa.float64())
    others = [
        batch.filter(pa.array(is_within, pa.bool_())),
        *joined.to_batches()[:1],
        received,
        # Other values below the nulls.
        batch.set_column(
            0,
            SCHEMA.field(0),
            pa.Array.from_buffers(
                pa.float64(),
                len(rows),
                [batch.column(0).is_valid().buffers()[1], noise.buffers()[1]],
            ),
        ).slice(start, end - start),
    ]

    body = encode_body(batch_of(rows[start:end]))

    assert {bytes_of(encode_body(one)) for one in (sliced, *others)} == {bytes_of(body)}


def bytes_of(body: Body) -> bytes:
    return b"".join(bytes(buffer) for buffer in body.buffers)


def test_decode_body_shares_memory_of_buffer() -> None:
    batch = pa.record_batch({"value": np.arange(1000.0)})
    buffer = pa.py_buffer(b"".join(bytes(part) for part in encode_body(batch).buffers))
    values = decode_body(buffer, batch.schema).column(0).buffers()[1]
    assert buffer.address <= values.address < buffer.address + buffer.size


def test_decode_body_other_bytes_raises_corrupt_data() -> None:
    with raises(CorruptData, expected="record_batch"):
        decode_body(pa.py_buffer(b"\xff" * 128), pa.schema([("value", pa.float64())]))


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 128, "\ud800"])
def test_producer_name_invalid_raises(name: str) -> None:
    with pytest.raises(InputError):
        producer_name(name)


def test_producer_name_of_255_bytes_is_accepted() -> None:
    assert producer_name("ü" * 127 + "x") == "ü" * 127 + "x"


def test_decode_header_producer_of_invalid_utf8_raises_corrupt_data():
    header = FrameHeader(1, 2, 1, "radar", 4, 5, 6, 7, 64, 64, 8, 9, 10, 2)
    data = encode_header(header)[:-4].replace(b"radar", b"r\xffdar")
    data += struct.pack("<I", google_crc32c.value(data))
    with raises(CorruptData, expected="producer"):
        decode_header(data)
