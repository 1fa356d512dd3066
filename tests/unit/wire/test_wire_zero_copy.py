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
from galileo.wire.internal.v1 import peers_pb2
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
def test_protobuf_reads_what_is_encoded(head: storage_pb2.IngestRequest, data: bytes) -> None:
    encoded = encode(Bulk(head, pa.py_buffer(data)))
    read = storage_pb2.IngestRequest.FromString(encoded)
    assert (read.dataset, read.producer, read.batch) == (head.dataset, head.producer, head.batch)
    assert read.observations == data


@given(ingests, contents)
def test_what_protobuf_encodes_is_read(head: storage_pb2.IngestRequest, data: bytes) -> None:
    whole = storage_pb2.IngestRequest(observations=data)
    whole.MergeFrom(head)
    read = decoder(storage_pb2.IngestRequest)(whole.SerializeToString())
    assert read.head == head
    assert read.observations.to_pybytes() == data


@given(ingests, contents)
def test_what_is_encoded_is_read_without_a_copy(
    head: storage_pb2.IngestRequest, data: bytes
) -> None:
    encoded = encode(Bulk(head, pa.py_buffer(data)))
    read = decoder(storage_pb2.IngestRequest)(encoded)
    assert read.observations.to_pybytes() == data
    assert not read.head.observations
    assert read.observations.address % ALIGNMENT == 0
    if data and address_of(encoded) % ALIGNMENT == 0:
        place = read.observations.address - address_of(encoded)
        assert place == len(encoded) - len(data)


def test_the_last_value_counts_as_it_does_in_protobuf() -> None:
    twice = b"".join(
        peers_pb2.CommitRequest(observations=data, batch=place).SerializeToString()
        for place, data in ((1, b"first"), (2, b"second"))
    )
    read = decoder(peers_pb2.CommitRequest)(twice)
    assert read.observations.to_pybytes() == b"second"
    assert read.head.batch == 2


@given(st.binary(max_size=60))
def test_bytes_are_refused_where_protobuf_refuses_them(data: bytes) -> None:
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


def test_a_group_is_refused() -> None:
    with pytest.raises(DecodeError, match="wire type 3"):
        decoder(storage_pb2.IngestRequest)(bytes([6 << 3 | 3, 6 << 3 | 4]))


@pytest.mark.parametrize(
    "data",
    [b"\x22", b"\x22\x05abc", b"\x18\x80", b"\x19123", b"\x1d123", b"\x27", b"\x80" * 11],
    ids=["no length", "cut", "endless number", "short 64", "short 32", "wire type 7", "long tag"],
)
def test_a_message_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decoder(storage_pb2.IngestRequest)(data)


def test_fields_of_fixed_width_are_passed_over() -> None:
    extra = bytes([14 << 3 | 1]) + bytes(8) + bytes([13 << 3 | 5]) + bytes(4)
    message = storage_pb2.IngestRequest(dataset="d", observations=b"xyz").SerializeToString()
    read = decoder(storage_pb2.IngestRequest)(extra + message)
    assert read.head.dataset == "d"
    assert read.observations.to_pybytes() == b"xyz"


def test_a_table_comes_through_with_its_numbers_in_place() -> None:
    table = pa.table({"a": pa.array(range(1000), pa.int64()), "b": ["x"] * 1000})
    head = storage_pb2.IngestRequest(dataset="d", producer="p", batch=7)
    read = decoder(storage_pb2.IngestRequest)(encode(Bulk(head, stream_of(table))))
    found = from_ipc(read.observations, table.schema)
    assert found.equals(table)
    assert found.column("a").chunk(0).buffers()[1].address % 8 == 0


def test_no_message_has_the_field_that_keeps_the_place() -> None:
    for kind in (storage_pb2.IngestRequest, peers_pb2.CommitRequest):
        assert zero_copy._PADDING_FIELD not in kind.DESCRIPTOR.fields_by_number
        assert zero_copy.FIELD in kind.DESCRIPTOR.fields_by_name


def test_a_table_in_very_many_pieces_is_put_together() -> None:
    piece = pa.table({"a": [1, 2]})
    table = pa.concat_tables([piece] * (zero_copy.CHUNKS_MAX + 1))
    read = pa.ipc.open_stream(stream_of(table)).read_all()
    assert read.equals(table)
    assert read.column("a").num_chunks == 1
    few = pa.ipc.open_stream(stream_of(pa.concat_tables([piece] * 3))).read_all()
    assert few.column("a").num_chunks == 3


@pytest.mark.parametrize("data", [bytes(1 << 20), b"\x3a\x00" * (1 << 20)])
def test_a_head_of_very_many_fields_is_refused_at_once(data: bytes) -> None:
    """Sixty megabytes of them would keep a node busy for a minute."""
    with pytest.raises(DecodeError, match="at most 100 fields"):
        decoder(storage_pb2.IngestRequest)(data)


def test_fields_without_a_number_are_none() -> None:
    with pytest.raises(DecodeError, match="number 0"):
        zero_copy.has_more_fields(bytes(10), 100)
