"""Bytes that travel between processes or wait in files, below gRPC and the file formats.

Where a checksum stands before what is decoded, the target puts the right one there: else nothing
behind it would ever be reached.
"""

from __future__ import annotations

from collections.abc import Iterator

import google_crc32c
import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from fuzzing.targets import Target
from galileo.ccq import pack_codec
from galileo.ccq.packs import pack_labels
from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.labels import from_ipc, to_ipc
from galileo.packing import pack, unpack
from galileo.samplers import SamplerSpec
from galileo.server.peer_messaging import TAGGED
from galileo.storage.frame import (
    FrameHeader,
    decode_body,
    decode_header,
    encode_body,
    encode_header,
)
from galileo.testing.conformance import sample_labels
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.match_codec import part_from_pb
from galileo.wire.v1 import storage_pb2
from galileo.wire.zero_copy import decoder

LABELS = sample_labels(seed=1).in_commit_order()
LABEL_SCHEMA = LABELS.table.schema
FEW = LABELS.table.slice(0, 20)
_CRC_BYTES = 4
_PACK_START = len(b"GL") + 1 + _CRC_BYTES


def _crc(data: bytes, order: str = "little") -> bytes:
    value: int = google_crc32c.value(data)
    return value.to_bytes(_CRC_BYTES, "little" if order == "little" else "big")


def _pack(data: bytes) -> None:
    head = pack(FEW, compressed=False)[: _PACK_START - _CRC_BYTES]
    unpack(head + _crc(data) + data, LABEL_SCHEMA).validate(full=True)


def _packs() -> Iterator[bytes]:
    for compressed in (False, True):
        yield pack(FEW, compressed=compressed)[_PACK_START:]


def _pack_file(data: bytes) -> None:
    labels = pack_codec.from_bytes(data + _crc(data), LABELS.schema)
    for one in labels.packs:
        assert one.rows >= 0
    labels.labels().table.validate(full=True)


def _pack_files() -> Iterator[bytes]:
    labels = pack_labels(LABELS, compressed=True)
    assert labels is not None
    yield pack_codec.to_bytes(labels, compressed=True)[:-_CRC_BYTES]


def _arrow(data: bytes) -> None:
    from_ipc(data, LABEL_SCHEMA)


def _arrows() -> Iterator[bytes]:
    for compression in (None, "lz4", "zstd"):
        yield to_ipc(FEW, compression=compression)


def _frame_header(data: bytes) -> None:
    """With the checksum that the header should have at its end."""
    header = decode_header(data + _crc(data))
    assert decode_header(encode_header(header)) == header


def _frame_headers() -> Iterator[bytes]:
    for producer in ("radar", "r" * 90):
        body = encode_body(FEW.to_batches()[0])
        header = FrameHeader(
            partition=3,
            sequence=9,
            group=0,
            producer=producer,
            batch=4,
            rows=20,
            paths=20,
            committed_at_us=1,
            paths_bytes=body.size,
            observations_bytes=body.size,
            paths_crc=body.crc,
            observations_crc=body.crc,
        )
        yield encode_header(header)[:-_CRC_BYTES]


def _frame_body(data: bytes) -> None:
    batch = decode_body(pa.py_buffer(data), LABEL_SCHEMA)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:  # frames have a checksum, so this is looked at by `verify`
        raise InputError(str(error)) from error


def _frame_bodies() -> Iterator[bytes]:
    body = encode_body(FEW.to_batches()[0])
    yield b"".join(bytes(buffer) for buffer in body.buffers)


def _bulk(data: bytes) -> None:
    """Taken apart by hand it must be what protobuf says."""
    try:
        expected = storage_pb2.IngestRequest.FromString(data)
    except DecodeError:
        expected = None
    try:
        found = decoder(storage_pb2.IngestRequest)(data)
    except DecodeError:
        raise InputError("no message") from None
    assert expected is not None, "accepted what is no protobuf message"
    assert found.observations.to_pybytes() == expected.observations
    assert found.head.dataset == expected.dataset


def _bulks() -> Iterator[bytes]:
    yield storage_pb2.IngestRequest(
        dataset="nam", producer="p", batch=7, observations=to_ipc(FEW.slice(0, 2))
    ).SerializeToString()


def _matched(data: bytes) -> None:
    try:
        part = peers_pb2.MatchPart.FromString(data)
    except DecodeError:
        raise InputError("no message") from None
    part_from_pb(part, LABEL_SCHEMA)


def _matches() -> Iterator[bytes]:
    numbers = np.arange(3, dtype="<i4").tobytes()
    part = peers_pb2.MatchPart(answered=numbers, items=numbers, places=numbers)
    part.labels.append(to_ipc(FEW.slice(0, 3)))
    part.reached.partitions.extend([0, 1])
    part.reached.sequences.extend([4, 5])
    yield part.SerializeToString()


def _mail(data: bytes) -> None:
    value = TAGGED.decode(data)
    assert TAGGED.decode(TAGGED.encode(value)) == value


def _letters() -> Iterator[bytes]:
    yield TAGGED.encode((Cursor({1: 2}), SamplerSpec("uniform", {"fraction": 0.1}, 3), None, 1.5))


TARGETS = (
    Target("pack", "packed columns of labels, right checksum", _pack, _packs, weight=4),
    Target("pack-file", "spill files, right checksum", _pack_file, _pack_files, 16384, weight=2),
    Target("arrow", "Arrow IPC streams of labels", _arrow, _arrows, 16384),
    Target(
        "frame-header",
        "headers of commits, right checksum",
        _frame_header,
        _frame_headers,
        weight=3,
    ),
    Target(
        "frame-body",
        "bodies of commits, right checksum",
        _frame_body,
        _frame_bodies,
        16384,
        weight=2,
    ),
    Target("bulk", "ingest requests, taken apart without a copy", _bulk, _bulks, weight=3),
    Target("matched", "matches of standing queries", _matched, _matches, weight=2),
    Target("mail", "messages between nodes", _mail, _letters, weight=3),
)
