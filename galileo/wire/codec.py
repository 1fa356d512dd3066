"""Codec of values and protobuf messages that several services share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from galileo.cursor import CommitRange, Cursor, PageStart
from galileo.errors import GalileoError, InputError, Unavailable
from galileo.labels import from_ipc, to_ipc
from galileo.model.grouping import CellKey, FeatureKey, Grouping, Key, WindowKey, check_counts
from galileo.model.retention import HeldBack, Removed, RetentionReport
from galileo.model.schema import Schema
from galileo.model.versions import PartitionVersion
from galileo.model.windows import STATES, WindowChanges
from galileo.wire.v1 import (
    analytics_pb2,
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


def number_to_pb(value: float | None) -> analytics_pb2.Number | None:
    """A number, exact if it is whole; None stays None."""
    if value is None:
        return None
    if isinstance(value, int):
        return analytics_pb2.Number(whole=value)
    return analytics_pb2.Number(real=value)


def number_from_pb(value: analytics_pb2.Number) -> float | None:
    """A number; None if the message has none."""
    return {"whole": value.whole, "real": value.real}.get(value.WhichOneof("number") or "")


def grouping_to_pb(grouping: Grouping) -> analytics_pb2.AggregateRequest:
    """A request with the keys and statistics of a grouping."""
    return analytics_pb2.AggregateRequest(
        by=[key_to_pb(key) for key in grouping.keys],
        statistics=[
            analytics_pb2.GroupStatistics(feature=name, statistics=statistics)
            for name, statistics in grouping.statistics
        ],
    )


def grouping_from_pb(request: analytics_pb2.AggregateRequest) -> Grouping:
    """The grouping of a request; `Grouping.check` says whether a dataset has it.

    Raises:
        InputError: a key is empty, a feature is named twice, or there are too many.
    """
    check_counts(keys=len(request.by), features=len(request.statistics))
    named = [one.feature for one in request.statistics]
    if len(set(named)) < len(named):
        raise InputError(
            f"expected statistics of each feature once, got those of {', '.join(named)}",
            parameter="statistics",
        )
    return Grouping(
        tuple(key_from_pb(key) for key in request.by),
        tuple((one.feature, tuple(one.statistics)) for one in request.statistics),
    )


def key_to_pb(key: Key) -> analytics_pb2.GroupKey:
    if isinstance(key, CellKey):
        return analytics_pb2.GroupKey(cell_bits=key.bits)
    if isinstance(key, WindowKey):
        return analytics_pb2.GroupKey(window_us=key.width_us)
    return analytics_pb2.GroupKey(feature=key.name)


def key_from_pb(key: analytics_pb2.GroupKey) -> Key:
    match key.WhichOneof("key"):
        case "cell_bits":
            return CellKey(key.cell_bits)
        case "window_us":
            return WindowKey(key.window_us)
        case "feature":
            return FeatureKey(key.feature)
    raise InputError("expected a cell, a window or a feature as key, got none", parameter="by")


def versions_to_pb(
    versions: Mapping[int, PartitionVersion], schema: Schema
) -> analytics_pb2.VersionReply:
    reply = analytics_pb2.VersionReply(schema_json=schema.to_json())
    for partition, version in sorted(versions.items()):
        reply.partitions.add(
            partition=partition, epoch=version.epoch, dropped=version.dropped, last=version.last
        )
    return reply


def versions_from_pb(reply: analytics_pb2.VersionReply) -> dict[int, PartitionVersion]:
    return {
        value.partition: PartitionVersion(value.epoch, value.dropped, value.last)
        for value in reply.partitions
    }


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
        states=changes.states.tobytes(),
    )


def windows_from_pb(value: continuous_pb2.Windows) -> WindowChanges:
    """Raises InputError if the lists differ in length, or a state is unknown."""
    states = np.frombuffer(value.states, dtype=np.uint8)
    if {len(value.starts), len(value.labels)} != {8 * len(states)} or (states >= len(STATES)).any():
        raise InputError(
            f"expected the starts, labels and states of windows, got {len(value.starts)}, "
            f"{len(value.labels)} and {len(states)} bytes",
            expected="same_lengths",
            name="windows",
        )
    starts, labels = (np.frombuffer(column, dtype="<i8") for column in (value.starts, value.labels))
    clock_us = value.clock_us if value.HasField("clock_us") else None
    return WindowChanges(clock_us, value.size_us, starts, labels, states)


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


def report_to_pb(node: str, report: RetentionReport) -> cluster_pb2.RetentionReport:
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


def removed_from_pb(reply: cluster_pb2.DropDatasetReply) -> dict[str, Removed | GalileoError]:
    return {
        dropped.node: Unavailable(dropped.failure)
        if dropped.failure
        else Removed(dropped.rows, dropped.bytes)
        for dropped in reply.nodes
    }
