"""Codec of values and protobuf messages that several services share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from galileo.cursor import CommitRange, Cursor
from galileo.errors import InputError
from galileo.labels import from_ipc, to_ipc
from galileo.model.windows import STATES, ClockStep, WindowChanges
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.v1 import common_pb2, continuous_pb2

KeptRows: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Starts and counts of row ranges, ascending and non-negative."""

LABELS_PER_MESSAGE = 32_768
ROWS_PER_MESSAGE = 65_536
CHUNK_BYTES_MAX = 16 << 20


def cursor_to_pb(cursor: Cursor) -> common_pb2.Cursor:
    return common_pb2.Cursor(partitions=list(cursor), sequences=list(cursor.values()))


def cursor_from_pb(value: common_pb2.Cursor) -> Cursor:
    """Raises InputError if the lists differ in length."""
    if len(value.partitions) != len(value.sequences):
        raise InputError(
            f"expected as many sequences as partitions in a cursor, got "
            f"{len(value.sequences)} and {len(value.partitions)}"
        )
    return Cursor(dict(zip(value.partitions, value.sequences, strict=True)))


def stretches_to_pb(stretches: Iterable[CommitRange]) -> list[common_pb2.SequenceRange]:
    return [
        common_pb2.SequenceRange(partition=one.partition, first=one.first, last=one.last)
        for one in stretches
    ]


def stretches_from_pb(values: Iterable[common_pb2.SequenceRange]) -> tuple[CommitRange, ...]:
    return tuple(CommitRange(one.partition, one.first, one.last) for one in values)


def event_clock_to_pb(steps: Sequence[ClockStep]) -> peers_pb2.EventClock:
    return peers_pb2.EventClock(
        partitions=[one.partition for one in steps],
        sequences=[one.sequence for one in steps],
        buckets_us=[one.bucket_us for one in steps],
    )


def event_clock_from_pb(value: peers_pb2.EventClock) -> tuple[ClockStep, ...]:
    """Raises InputError if the lists differ in length."""
    columns = (value.partitions, value.sequences, value.buckets_us)
    if len({len(column) for column in columns}) != 1:
        raise InputError(
            f"expected steps of an event clock in three lists of one length, got "
            f"{[len(column) for column in columns]}"
        )
    return tuple(ClockStep(*one) for one in zip(*columns, strict=True))


def windows_to_pb(changes: WindowChanges) -> continuous_pb2.Windows:
    return continuous_pb2.Windows(
        clock_us=changes.clock_us,
        size_us=changes.size_us,
        starts=changes.starts.astype("<i8").tobytes(),
        labels=changes.labels.astype("<i8").tobytes(),
        states=changes.states.tobytes(),
    )


def windows_from_pb(value: continuous_pb2.Windows) -> WindowChanges:
    """Raises InputError if the lists differ in length, or a state is unknown."""
    states = np.frombuffer(value.states, dtype=np.uint8)
    if {len(value.starts), len(value.labels)} != {8 * len(states)} or (states >= len(STATES)).any():
        raise InputError(
            f"expected the starts, labels and states of windows, got {len(value.starts)}, "
            f"{len(value.labels)} and {len(states)} bytes"
        )
    starts, labels = (np.frombuffer(one, dtype="<i8") for one in (value.starts, value.labels))
    clock_us = value.clock_us if value.HasField("clock_us") else None
    return WindowChanges(clock_us, value.size_us, starts, labels, states)


def table_chunks(table: pa.Table, rows_max: int) -> Iterator[bytes]:
    """A table as IPC streams of at most `rows_max` rows; none for an empty table.

    Wide rows make shorter streams: only a single row exceeds `CHUNK_BYTES_MAX`.
    """
    for piece in table_pieces(table, rows_max):
        yield to_ipc(piece.combine_chunks())


def table_pieces(table: pa.Table, rows_max: int) -> Iterator[pa.Table]:
    """The slices of a table that `table_chunks` encodes; not copied."""
    for start in range(0, table.num_rows, rows_max):
        yield from _bounded(table.slice(start, rows_max))


def _bounded(table: pa.Table) -> Iterator[pa.Table]:
    if table.num_rows > 1 and table.nbytes > CHUNK_BYTES_MAX:
        middle = table.num_rows // 2
        yield from _bounded(table.slice(0, middle))
        yield from _bounded(table.slice(middle))
    else:
        yield table


def label_chunks(table: pa.Table) -> Iterator[bytes]:
    return table_chunks(table, LABELS_PER_MESSAGE)


def kept_rows(table: pa.Table, rows: KeptRows | None) -> pa.Table:
    """Row ranges of a table, in order and not copied; all rows if `ranges` is None.

    Raises:
        InputError: a range is not within the table.
    """
    if rows is None:
        return table
    starts, counts = rows
    if len(starts) != len(counts) or any(
        start + count > table.num_rows for start, count in zip(starts, counts, strict=True)
    ):
        raise InputError(
            f"expected first rows and row counts within {table.num_rows} labels, "
            f"got {list(starts)[:5]} … and {list(counts)[:5]} …"
        )
    slices = [table.slice(*place) for place in zip(starts, counts, strict=True)]
    return pa.concat_tables(slices) if slices else table.slice(0, 0)


def table_of(chunks: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    """The table of `table_chunks`.

    Raises:
        InputError: a chunk is no stream of this schema.
    """
    tables = [from_ipc(chunk, schema) for chunk in chunks]
    return pa.concat_tables(tables) if tables else schema.empty_table()
