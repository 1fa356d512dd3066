"""Bytes that travel between processes or wait in the files of a node, below gRPC.

Where a checksum precedes what is decoded, the target puts the right one there: else nothing after
it would ever be reached.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from fuzzing.files import scratch
from fuzzing.targets import Target
from galileo.ccq import pack_codec
from galileo.cursor import Cursor
from galileo.cycle import (
    CycleAnswer,
    CycleRequest,
    ItemFailure,
    MatchBatch,
    MatchedPartitions,
    Matches,
)
from galileo.dht.membership import Gossip
from galileo.dht.node_states import Digest, StateDelta, StateEntry
from galileo.dht.topology import Move
from galileo.errors import CorruptData, InputError
from galileo.labels import from_ipc, to_ipc
from galileo.model import paths as model_paths
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.model.windows import ClockStep
from galileo.node.peers import ScanTask
from galileo.node.replication.protocol import Envelope
from galileo.node.shard import PublishedCommits
from galileo.packing import Compression, pack, unpack
from galileo.packs import PackColumns, pack_labels
from galileo.replication.messages import Append, StartTerm, Vote
from galileo.replication.values import Epochs, Member, ReplicaSet
from galileo.rpc.gossip import GossipRequest, Heartbeat, SynopsisChange
from galileo.rpc.internal import SERVICE
from galileo.rpc.internal_calls import SCAN
from galileo.rpc.peers import GOSSIP
from galileo.rpc.replication import REPLICATE
from galileo.samplers import SamplerSpec
from galileo.server.gossip_codec import decode_commits, encode_commits
from galileo.server.peer_messaging import TAGGED
from galileo.spark.owners import OWNER, MatchReader
from galileo.storage.disk import REAL_DISK
from galileo.storage.frame import (
    FrameHeader,
    decode_body,
    decode_header,
    encode_body,
    encode_header,
)
from galileo.storage.journal import Commit, PartitionJournal
from galileo.storage.metadata_files import MetadataFiles
from galileo.storage.metadata_log import MetadataLog
from galileo.storage.recovery import SegmentScan, scan
from galileo.storage.segment import segment_name
from galileo.storage.writer import JournalOptions
from galileo.testing.conformance import sample_labels
from galileo.wire.messages import DIGEST_BYTES, Forms, MessageCodec
from galileo.wire.typed_service import TypedCall
from galileo.wire.v1 import storage_pb2
from galileo.wire.zero_copy import decoder

LABELS = sample_labels(seed=1).in_commit_order()
LABEL_SCHEMA = LABELS.table.schema
MATCH = OWNER.calls["match"]
ANSWER: MessageCodec[CycleAnswer] = MessageCodec(
    Forms().of(CycleAnswer), digest=bytes(8), name="answer"
)
FEW = LABELS.table.slice(0, 20)
_CRC_BYTES = 4
_PACK_START = len(b"GL") + 1 + _CRC_BYTES


def _crc(data: bytes, order: str = "little") -> bytes:
    value: int = google_crc32c.value(data)
    return value.to_bytes(_CRC_BYTES, "little" if order == "little" else "big")


def _pack(data: bytes) -> None:
    head = pack(FEW, Compression.NONE)[: _PACK_START - _CRC_BYTES]
    unpack(head + _crc(data) + data, LABEL_SCHEMA).validate(full=True)


def _packs() -> Iterator[bytes]:
    for compression in (Compression.NONE, Compression.LZ4):
        yield pack(FEW, compression)[_PACK_START:]


def _pack_file(data: bytes) -> None:
    labels = pack_codec.from_bytes(data + _crc(data), LABELS.schema)
    for one in labels.packs:
        assert one.rows >= 0
    labels.labels().table.validate(full=True)


def _pack_files() -> Iterator[bytes]:
    labels = pack_labels(LABELS, Compression.LZ4)
    assert labels is not None
    yield pack_codec.to_bytes(labels, Compression.LZ4)[:-_CRC_BYTES]


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
            epoch=7,
            committed=8,
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


def _asked(data: bytes) -> None:
    (request,) = MATCH.decode(data)
    request.check()
    for node in range(len(request.addresses)):
        request.for_node(node)
    request.slice(1, 2).range()


def _requests() -> Iterator[bytes]:
    numbers = np.arange(2)
    request = CycleRequest(
        dataset="nam",
        schema_json=SCHEMA.to_json(),
        partitions=numbers.astype(np.int32),
        after=np.arange(4),
        cursors=numbers.astype(np.int32),
        digests=np.zeros(32, dtype=np.uint8),
        items=numbers.astype(np.uint32),
        samplers_json=("{}",),
        samplers=numbers.astype(np.uint32),
        is_compressed=numbers.astype(np.bool_),
        addresses=("a", "b"),
        owners=numbers.astype(np.int32),
        committed=numbers,
    )
    yield MATCH.encode(request)


def _matched(data: bytes) -> None:
    MatchReader(LABEL_SCHEMA).take(MATCH.decode_answer(data))


def _matches() -> Iterator[bytes]:
    numbers = np.arange(3, dtype=np.uint32)
    batch = MatchBatch(numbers, numbers, FEW.slice(0, 3))
    part = MatchedPartitions(numbers, Cursor({0: 4, 1: 5}), batch, Cursor({1: 2}))
    yield MATCH.encode_answer(Matches((part,), numbers, (ItemFailure(numbers, InputError("no")),)))


def _answered(data: bytes) -> None:
    for labels in ANSWER.decode(data).packs.labels(LABELS.schema).values():
        labels.labels()


def _answers() -> Iterator[bytes]:
    labels = pack_labels(LABELS, Compression.LZ4)
    assert labels is not None
    nothing = np.zeros(0, dtype=np.uint32)
    yield ANSWER.encode(CycleAnswer((), PackColumns.of({1: labels}), nothing, ()))


def _mail(data: bytes) -> None:
    value = TAGGED.decode(data)
    assert TAGGED.decode(TAGGED.encode(value)) == value


def _letters() -> Iterator[bytes]:
    yield TAGGED.encode((Cursor({1: 2}), SamplerSpec("uniform", {"fraction": 0.1}, 3), None, 1.5))


SCHEMA = Schema("nam", [Feature("temperature", "K")], geohash_precision=4)
COMMITS = 3
RELAXED = JournalOptions(durability="none")


def _commit(batch: int) -> Commit:
    rng = np.random.default_rng(batch)
    table = pa.table(
        [
            pa.array(np.round(rng.uniform(30, 50, 2), 3)),
            pa.array(np.round(rng.uniform(-120, -80, 2), 3)),
            pa.array([0, 3_600_000_000], pa.int64()).cast(TIME_TYPE),
            pa.array(np.round(rng.uniform(250, 310, 2), 1)),
        ],
        schema=SCHEMA.observation_schema,
    )
    return Commit("radar", batch, *model_paths.index(SCHEMA, table))


@functools.cache
def _written() -> tuple[bytes, tuple[pa.RecordBatch, ...]]:
    """A segment of a few commits, and the paths of each."""
    directory = scratch() / "written"
    journal = PartitionJournal.open(
        directory,
        schema=SCHEMA,
        partition=0,
        options=RELAXED,
        replay=lambda commits: None,
        wall=lambda: 0.0,
    )
    for batch in range(1, COMMITS + 1):
        journal.append([_commit(batch)])
    journal.close()
    path = directory / segment_name(1)
    found = tuple(frame.paths for frame in scan(_plan(path)))
    return path.read_bytes(), found


def _plan(path: Path) -> SegmentScan:
    return SegmentScan(path, 0, 1, SCHEMA, last=True)


def _segment(data: bytes) -> None:
    """What is read of a changed segment is what was written, from the first commit on."""
    _, written = _written()
    path = scratch() / segment_name(1)
    path.write_bytes(data)
    found = [frame.paths for frame in scan(_plan(path))]
    assert len(found) <= len(written), "read more commits than were written"
    for one, expected in zip(found, written, strict=False):
        assert one.equals(expected), "read something else than was written"


def _segments() -> Iterator[bytes]:
    yield _written()[0]


def _record_batch(data: bytes) -> None:
    """A batch of records, with the checksum put right; what is read can be written and read."""
    directory = scratch() / "records"
    shutil.rmtree(directory, ignore_errors=True)
    MetadataFiles(directory, _NO_WAIT).save(f"{1:016d}", data)
    found = MetadataLog(directory, _NO_WAIT).load_all()
    assert sum(map(len, found.values())) <= len(data), "read more than was written"


class _NoWait(type(REAL_DISK)):  # type: ignore[misc]
    def fdatasync(self, descriptor: int) -> None:
        """Nothing is lost that is wanted."""

    def sync_directory(self, directory: Path) -> None:
        """As above."""


_NO_WAIT = _NoWait()


def _record_batches() -> Iterator[bytes]:
    directory = scratch() / "made"
    shutil.rmtree(directory, ignore_errors=True)
    batches = MetadataLog(directory, _NO_WAIT)
    batches.save({"a": b"one", "b.c": b"", "d": b"\0" * 20})
    found = MetadataFiles(directory, _NO_WAIT).load(f"{1:016d}")
    if found is None:
        raise CorruptData("expected the batch that was written")
    yield found


_CALLS = tuple(SERVICE.calls[name] for name in sorted(SERVICE.calls))


def _internal(data: bytes) -> None:
    """A request of the call that the first byte names, with the digest of all types put there.

    Or an entry of gossip with a node's last commits.
    """
    chosen = (data[0] if data else 0) % (len(_CALLS) + 1)
    if chosen == len(_CALLS):
        published = decode_commits(_ENTRY[:DIGEST_BYTES] + data[1:])
        assert decode_commits(encode_commits(published)) == published
        return
    call = _CALLS[chosen]
    again = call.encode(*call.decode(SERVICE.digest + data[1:]))
    assert len(call.encode(*call.decode(again))) == len(again)


def _internals() -> Iterator[bytes]:
    a, b, epochs = Member("a", "1"), Member("b", "2"), Epochs(((2, 7),), 5)
    append = Append(7, "nam", 1, 7, epochs, 1, 1)
    vote = Vote(7, 6, {"nam": epochs, "rain": Epochs()}, {"nam": 3})
    start = StartTerm(7, ReplicaSet(7, 1, frozenset({a, b})), {"nam": 5}, {"nam": epochs})
    frames = Envelope(3, a, b, append, pa.py_buffer(b"frames"), b"begins", 2)
    for envelopes in ([frames, frames], [Envelope(0, a, b, one) for one in (vote, start)]):
        yield _named(REPLICATE, REPLICATE.encode(envelopes))
    column = np.ones(2, np.uint32)
    delta = StateDelta("a", 7, 0, 1, (StateEntry("disk", 1, b"1"),))
    states = Gossip(Digest(("a", "b"), column.astype(np.uint64), column, column), (delta,))
    heartbeat = Heartbeat((SynopsisChange("nam", pa.py_buffer(b"delta"), 0),), (Move(0, 1, "a"),))
    gossip = GossipRequest("a", 7, 1, 2, b"topology", heartbeat, states, (b"message",))
    yield _named(GOSSIP, GOSSIP.encode(gossip))
    scan = ScanTask(1, "nam", "true", Cursor({1: 2}), Cursor({1: 3}), frozenset({1, 2}))
    yield _named(SCAN, SCAN.encode([scan]))
    yield bytes([len(_CALLS)]) + _ENTRY[DIGEST_BYTES:]


def _named(call: TypedCall[..., Any], request: bytes) -> bytes:
    return bytes([_CALLS.index(call)]) + request.removeprefix(SERVICE.digest)


_ENTRY = encode_commits(PublishedCommits(Cursor({0: 1, 7: 2}), (ClockStep(0, 1, 99),)))


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
    Target("matched", "matches of continuous queries", _matched, _matches, weight=2),
    Target("asked", "requests of cycles", _asked, _requests),
    Target("answered", "answers of cycles", _answered, _answers),
    Target("mail", "messages between nodes", _mail, _letters, weight=3),
    Target("internal", "requests of the internal service", _internal, _internals, weight=5),
    Target(
        "segment", "files of commits, as they are read at the start", _segment, _segments, weight=4
    ),
    Target(
        "records", "batches of records, right checksum", _record_batch, _record_batches, weight=3
    ),
)
