"""Bulk requests against protobuf's own encoding of the same messages."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from galileo.labels import from_ipc
from galileo.wire import zero_copy
from galileo.wire.v1 import storage_pb2
from galileo.wire.zero_copy import ALIGNMENT, Bulk, decoder, encode, stream_of

ingests = st.builds(
    storage_pb2.IngestRequest,
    dataset=st.text(max_size=200),
    producer=st.text(max_size=20),
    batch=st.integers(0, 2**64 - 1),
)
contents = st.binary(max_size=300)


def address_of(data: bytes) -> int:
    address: int = pa.py_buffer(data).address
    return address


@given(ingests, contents)
def test_zero_copy_encode_random_message_equals_protobuf(
    head: storage_pb2.IngestRequest, data: bytes
) -> None:
    encoded = encode(Bulk(head, pa.py_buffer(data)))
    read = storage_pb2.IngestRequest.FromString(encoded)
    assert (read.dataset, read.producer, read.batch) == (head.dataset, head.producer, head.batch)
    assert read.observations == data


@given(ingests, contents)
def test_zero_copy_decode_protobuf_message_is_equal(
    head: storage_pb2.IngestRequest, data: bytes
) -> None:
    whole = storage_pb2.IngestRequest(observations=data)
    whole.MergeFrom(head)
    read = decoder(storage_pb2.IngestRequest)(whole.SerializeToString())
    assert read.head == head
    assert read.observations.to_pybytes() == data


@given(ingests, contents)
def test_zero_copy_decode_shares_memory(head: storage_pb2.IngestRequest, data: bytes) -> None:
    encoded = encode(Bulk(head, pa.py_buffer(data)))
    read = decoder(storage_pb2.IngestRequest)(encoded)
    assert read.observations.to_pybytes() == data
    assert not read.head.observations
    assert read.observations.address % ALIGNMENT == 0
    if data and address_of(encoded) % ALIGNMENT == 0:
        place = read.observations.address - address_of(encoded)
        assert place == len(encoded) - len(data)


def test_zero_copy_decode_repeated_field_takes_last() -> None:
    twice = b"".join(
        storage_pb2.IngestRequest(observations=data, batch=place).SerializeToString()
        for place, data in ((1, b"first"), (2, b"second"))
    )
    read = decoder(storage_pb2.IngestRequest)(twice)
    assert read.observations.to_pybytes() == b"second"
    assert read.head.batch == 2


@given(st.binary(max_size=60))
def test_zero_copy_decode_random_bytes_raises_as_protobuf(data: bytes) -> None:
    decode = decoder(storage_pb2.IngestRequest)
    try:
        expected = storage_pb2.IngestRequest.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode(data)
        return
    # A group, which protobuf skips and no message of Galileo has, is refused.
    with contextlib.suppress(DecodeError) if has_group(data) else contextlib.nullcontext():
        assert decode(data).observations.to_pybytes() == expected.observations


def has_group(data: bytes) -> bool:
    """Whether a field of the message may be a group."""
    return any(byte & 7 == 3 for byte in data)


def test_zero_copy_decode_group_raises() -> None:
    with pytest.raises(DecodeError, match="wire type 3"):
        decoder(storage_pb2.IngestRequest)(bytes([6 << 3 | 3, 6 << 3 | 4]))


@pytest.mark.parametrize(
    "data",
    [b"\x22", b"\x22\x05abc", b"\x18\x80", b"\x19123", b"\x1d123", b"\x27", b"\x80" * 11],
    ids=["no length", "cut", "endless number", "short 64", "short 32", "wire type 7", "long tag"],
)
def test_zero_copy_decode_truncated_raises(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decoder(storage_pb2.IngestRequest)(data)


def test_zero_copy_decode_fixed_width_fields_are_skipped() -> None:
    extra = bytes([14 << 3 | 1]) + bytes(8) + bytes([13 << 3 | 5]) + bytes(4)
    message = storage_pb2.IngestRequest(dataset="d", observations=b"xyz").SerializeToString()
    read = decoder(storage_pb2.IngestRequest)(extra + message)
    assert read.head.dataset == "d"
    assert read.observations.to_pybytes() == b"xyz"


def test_zero_copy_table_is_aligned() -> None:
    table = pa.table({"a": pa.array(range(1000), pa.int64()), "b": ["x"] * 1000})
    head = storage_pb2.IngestRequest(dataset="d", producer="p", batch=7)
    read = decoder(storage_pb2.IngestRequest)(encode(Bulk(head, stream_of(table))))
    found = from_ipc(read.observations, table.schema)
    assert found.equals(table)
    assert found.column("a").chunk(0).buffers()[1].address % 8 == 0


def test_zero_copy_padding_field_is_unused() -> None:
    for kind in zero_copy.BULK:
        assert zero_copy._PADDING_FIELD not in kind.DESCRIPTOR.fields_by_number
        assert zero_copy.FIELD in kind.DESCRIPTOR.fields_by_name


def test_zero_copy_table_of_many_chunks_is_combined() -> None:
    piece = pa.table({"a": [1, 2]})
    table = pa.concat_tables([piece] * (zero_copy.CHUNKS_MAX + 1))
    read = pa.ipc.open_stream(stream_of(table)).read_all()
    assert read.equals(table)
    assert read.column("a").num_chunks == 1
    few = pa.ipc.open_stream(stream_of(pa.concat_tables([piece] * 3))).read_all()
    assert few.column("a").num_chunks == 3


@pytest.mark.parametrize("data", [bytes(1 << 20), b"\x3a\x00" * (1 << 20)])
def test_zero_copy_decode_too_many_fields_raises(data: bytes) -> None:
    """Sixty megabytes of them would keep a node busy for a minute."""
    with pytest.raises(DecodeError, match="at most 100 fields"):
        decoder(storage_pb2.IngestRequest)(data)


def test_has_more_fields_number_0_raises() -> None:
    with pytest.raises(DecodeError, match="number 0"):
        zero_copy.has_more_fields(bytes(10), 100)
