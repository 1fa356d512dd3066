"""Codec of values and protobuf messages that several services share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from galileo.cursor import CommitRange, Cursor, PageStart
from galileo.errors import GalileoError, InputError
from galileo.labels import from_ipc, to_ipc
from galileo.model.retention import HeldBack, Removed, RetentionOutcome
from galileo.model.windows import STATES, WindowChanges
from galileo.wire.v1 import (
    cluster_pb2,
    common_pb2,
    continuous_pb2,
    storage_pb2,
)
from galileo.wire.zero_copy import stream_of

KeptRows: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Starts and counts of row ranges, ascending and non-negative."""

LABELS_PER_MESSAGE = 32_768
ROWS_PER_MESSAGE = 65_536
CHUNK_BYTES_MAX = 16 << 20
STREAM_BYTES_MAX = 1 << 20
"""Of one of the streams of an answer that a slow reader may take. It is encoded by one copy."""
CHUNK_ROWS_MIN = 32_768
"""Smaller chunks are combined, because readers handle many small batches slowly."""
INLINE_ROWS_MAX = 2_048
"""Rows up to which encoding is faster than a switch to a thread."""


def cursor_to_pb(cursor: Cursor) -> common_pb2.Cursor:
    return common_pb2.Cursor(partitions=list(cursor), sequences=list(cursor.values()))


def cursor_from_pb(value: common_pb2.Cursor) -> Cursor:
    """Raises InputError if the lists differ in length."""
    if len(value.partitions) != len(value.sequences):
        raise InputError(
            f"expected as many sequences as partitions in a cursor, got "
            f"{len(value.sequences)} and {len(value.partitions)}",
            expected="same_lengths",
            name="cursor",
        )
    return Cursor(dict(zip(value.partitions, value.sequences, strict=True)))


def page_start_to_pb(start: PageStart) -> storage_pb2.PageStart:
    return storage_pb2.PageStart(
        frontier=cursor_to_pb(start.frontier),
        dropped=cursor_to_pb(start.dropped),
        partition=start.partition,
        sequence=start.sequence,
        row=start.row,
    )


def page_start_from_pb(value: storage_pb2.PageStart) -> PageStart:
    """Raises InputError if a cursor is none."""
    return PageStart(
        cursor_from_pb(value.frontier),
        cursor_from_pb(value.dropped),
        value.partition,
        value.sequence,
        value.row,
    )


def commit_ranges_to_pb(ranges: Iterable[CommitRange]) -> list[common_pb2.SequenceRange]:
    return [
        common_pb2.SequenceRange(
            partition=dropped.partition, first=dropped.first, last=dropped.last
        )
        for dropped in ranges
    ]


def commit_ranges_from_pb(values: Iterable[common_pb2.SequenceRange]) -> tuple[CommitRange, ...]:
    return tuple(CommitRange(dropped.partition, dropped.first, dropped.last) for dropped in values)


def windows_to_pb(changes: WindowChanges) -> continuous_pb2.Windows:
    return continuous_pb2.Windows(
        clock_us=changes.clock_us,
        size_us=changes.size_us,
        starts=changes.starts.astype("<i8").tobytes(),
        labels=changes.labels.astype("<i8").tobytes(),
        withdrawn=changes.withdrawn.astype("<i8").tobytes(),
        states=changes.states.tobytes(),
    )


def windows_from_pb(value: continuous_pb2.Windows) -> WindowChanges:
    """Raises InputError if the lists differ in length, or a state is unknown."""
    states = np.frombuffer(value.states, dtype=np.uint8)
    columns = (value.starts, value.labels, value.withdrawn)
    if {*map(len, columns)} != {8 * len(states)} or (states >= len(STATES)).any():
        raise InputError(
            "expected the starts, labels, withdrawn labels and states of windows, got "
            f"{', '.join(str(len(column)) for column in columns)} and {len(states)} bytes",
            expected="same_lengths",
            name="windows",
        )
    starts, labels, withdrawn = (np.frombuffer(column, dtype="<i8") for column in columns)
    clock_us = value.clock_us if value.HasField("clock_us") else None
    return WindowChanges(clock_us, value.size_us, starts, labels, withdrawn, states)


def table_chunks(table: pa.Table, rows_max: int) -> Iterator[bytes]:
    """A table as IPC streams of at most `rows_max` rows; none for an empty table.

    Wide rows make shorter streams: only a single row exceeds `CHUNK_BYTES_MAX`.
    """
    for piece in table_pieces(table, rows_max):
        yield to_ipc(piece.combine_chunks())


def table_pieces(
    table: pa.Table, rows_max: int, *, bytes_max: int = CHUNK_BYTES_MAX
) -> Iterator[pa.Table]:
    """Slices of a table, not copied; only a single row is larger than `bytes_max`."""
    for start in range(0, table.num_rows, rows_max):
        yield from _bounded(table.slice(start, rows_max), bytes_max)


def _bounded(table: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    if table.num_rows > 1 and table.nbytes > bytes_max:
        middle = table.num_rows // 2
        yield from _bounded(table.slice(0, middle), bytes_max)
        yield from _bounded(table.slice(middle), bytes_max)
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
            f"got {list(starts)[:5]} … and {list(counts)[:5]} …",
            bound=table.num_rows,
        )
    slices = [table.slice(*place) for place in zip(starts, counts, strict=True)]
    return pa.concat_tables(slices) if slices else table.slice(0, 0)


def table_of(chunks: Iterable[bytes | pa.Buffer], schema: pa.Schema) -> pa.Table:
    """The table of `table_chunks`.

    Raises:
        InputError: a chunk is no stream of this schema.
    """
    tables = [from_ipc(chunk, schema) for chunk in chunks]
    return pa.concat_tables(tables) if tables else schema.empty_table()


async def label_messages(table: pa.Table) -> list[bytes]:
    """Labels as Arrow IPC streams, each for one message."""
    return await _messages(table, LABELS_PER_MESSAGE)


async def row_messages(table: pa.Table) -> list[bytes]:
    """Observations as Arrow IPC streams, each for one message."""
    return await _messages(table, ROWS_PER_MESSAGE)


async def table_messages(table: pa.Table) -> list[bytes]:
    """As `row_messages`; at least one, which has the columns."""
    return await row_messages(table) if table.num_rows else [to_ipc(table)]


async def row_streams(table: pa.Table) -> AsyncGenerator[pa.Buffer, None]:
    """Observations as Arrow IPC streams, each for one `Bulk`; those of large chunks keep them.

    A stream is made when the one before is taken, so that an answer whose reader waits holds one of
    about `STREAM_BYTES_MAX`, here and in the reader.
    """
    if table.num_columns and table.num_rows < CHUNK_ROWS_MIN * table.column(0).num_chunks:
        is_small = table.num_rows <= INLINE_ROWS_MAX
        table = (
            table.combine_chunks() if is_small else await asyncio.to_thread(table.combine_chunks)
        )
    for piece in table_pieces(table, ROWS_PER_MESSAGE, bytes_max=STREAM_BYTES_MAX):
        yield stream_of(piece)


async def _messages(table: pa.Table, rows_max: int) -> list[bytes]:
    if table.num_rows <= INLINE_ROWS_MAX:
        # In one piece, since the size of many small ones takes long to find.
        return list(table_chunks(table.combine_chunks(), rows_max))
    return await asyncio.to_thread(lambda: list(table_chunks(table, rows_max)))


def held_to_pb(held: Sequence[HeldBack]) -> list[cluster_pb2.RetentionHold]:
    return [
        cluster_pb2.RetentionHold(
            partition=one.partition, bytes=one.bytes, readers=one.readers, since_us=one.since_us
        )
        for one in held
    ]


def report_to_pb(node: str, report: RetentionOutcome) -> cluster_pb2.RetentionReport:
    return cluster_pb2.RetentionReport(
        node=node,
        files=report.files,
        commits=report.commits,
        bytes=report.bytes,
        held=held_to_pb(report.held),
        failures=report.failures,
    )


def removed_to_pb(
    removed: Mapping[str, Removed | GalileoError], *, ccqs: int = 0
) -> cluster_pb2.DropDatasetReply:
    nodes = [
        cluster_pb2.DroppedAtNode(node=node, failure=dropped.message)
        if isinstance(dropped, GalileoError)
        else cluster_pb2.DroppedAtNode(node=node, rows=dropped.rows, bytes=dropped.bytes)
        for node, dropped in sorted(removed.items())
    ]
    return cluster_pb2.DropDatasetReply(nodes=nodes, ccqs=ccqs)
