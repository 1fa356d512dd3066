"""Codec of match requests and replies: columns as little-endian bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.labels import from_ipc
from galileo.match_batch import MatchBatch, MatchedPartitions, MatchResponse, from_bytes, to_bytes
from galileo.wire.codec import cursor_from_pb, cursor_to_pb, label_chunks
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.status import error_from_pb, error_to_pb

_SEQUENCE = np.dtype("<i8")


def sequences_to_bytes(after: npt.NDArray[np.int64]) -> bytes:
    """Encodes a matrix of sequences by rows."""
    return np.ascontiguousarray(after, dtype=_SEQUENCE).tobytes()


def sequences_from_bytes(data: bytes, *, partitions: int) -> npt.NDArray[np.int64]:
    """Decodes a matrix of sequences; shape (c, partitions).

    Raises:
        InputError: the size is not a multiple of a row.
    """
    row_bytes = _SEQUENCE.itemsize * partitions
    if partitions == 0 or len(data) % row_bytes:
        raise InputError(
            f"expected rows of {partitions} sequences of 8 bytes each, got {len(data)} bytes"
        )
    return np.frombuffer(data, dtype=_SEQUENCE).astype(np.int64).reshape(-1, partitions)


def cursors_from_bytes(data: bytes, *, rows: int) -> npt.NDArray[np.int32]:
    """Decodes the row index of each item.

    Raises:
        InputError: an index is out of range.
    """
    cursors = from_bytes(data)
    if len(cursors) and int(cursors.max()) >= rows:
        raise InputError(f"expected items of {rows} cursors, got one with cursor {cursors.max()}")
    return cursors.astype(np.int32)


def part_to_pb(
    part: MatchedPartitions, *, labels: Sequence[bytes] | None = None
) -> peers_pb2.MatchPart:
    """Encodes a part; `labels` replaces its labels if they are sent separately."""
    return peers_pb2.MatchPart(
        answered=to_bytes(part.items),
        reached=cursor_to_pb(part.reached),
        labels=label_chunks(part.matches.rows) if labels is None else labels,
        items=to_bytes(part.matches.items),
        places=to_bytes(part.matches.places),
        dropped=cursor_to_pb(part.dropped),
    )


def part_from_pb(
    part: peers_pb2.MatchPart, schema: pa.Schema, *, labels: Iterable[bytes] = ()
) -> MatchedPartitions:
    """Decodes a part; `labels` were received before it.

    Raises:
        InputError: the labels have another schema, or the columns differ in length.
    """
    tables = [from_ipc(chunk, schema) for chunk in (*labels, *part.labels)]
    rows = pa.concat_tables(tables) if tables else schema.empty_table()
    matches = MatchBatch(from_bytes(part.items), from_bytes(part.places), rows).check()
    return MatchedPartitions(
        from_bytes(part.answered),
        cursor_from_pb(part.reached),
        matches,
        cursor_from_pb(part.dropped),
    )


def replies_of(answer: MatchResponse) -> Iterator[peers_pb2.MatchReply]:
    """Encodes an answer as messages of bounded size."""
    for part in answer.parts:
        for chunk in label_chunks(part.matches.rows):
            yield peers_pb2.MatchReply(labels=chunk)
        yield peers_pb2.MatchReply(part=part_to_pb(part, labels=()))
    if len(answer.unknown):
        yield peers_pb2.MatchReply(unknown=to_bytes(answer.unknown))
    for items, error in answer.errors:
        failure = peers_pb2.MatchFailure(items=to_bytes(items), error=error_to_pb(error))
        yield peers_pb2.MatchReply(failure=failure)


class MatchReplies:
    """Collects the replies of a stream into an answer.

    Args:
        schema: of its labels.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._labels: list[bytes] = []
        self.answer = MatchResponse()

    def take(self, reply: peers_pb2.MatchReply) -> int:
        """Adds a reply; returns its size in bytes.

        Raises:
            InputError: it is corrupt.
        """
        kind = reply.WhichOneof("reply")
        if kind == "labels":
            self._labels.append(reply.labels)
            return len(reply.labels)
        now = self.answer
        if kind == "part":
            part = part_from_pb(reply.part, self._schema, labels=self._labels)
            self._labels = []
            self.answer = MatchResponse((*now.parts, part), now.unknown, now.errors)
        elif kind == "unknown":
            self.answer = MatchResponse(now.parts, from_bytes(reply.unknown), now.errors)
        elif kind == "failure":
            failure = (from_bytes(reply.failure.items), error_from_pb(reply.failure.error))
            self.answer = MatchResponse(now.parts, now.unknown, (*now.errors, failure))
        return reply.ByteSize()
