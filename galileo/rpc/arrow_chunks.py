"""Arrow tables as chunks of messages; large ones are encoded in a thread."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from galileo.wire.codec import LABELS_PER_MESSAGE, ROWS_PER_MESSAGE, table_chunks, table_pieces
from galileo.wire.zero_copy import stream_of

CHUNK_ROWS_MIN = 32_768
"""Smaller chunks are combined, because readers handle many small batches slowly."""
INLINE_ROWS_MAX = 2_048
"""Rows up to which encoding is faster than a switch to a thread."""


async def label_messages(table: pa.Table) -> list[bytes]:
    """Labels as Arrow IPC streams, each for one message."""
    return await _messages(table, LABELS_PER_MESSAGE)


async def row_messages(table: pa.Table) -> list[bytes]:
    """Observations as Arrow IPC streams, each for one message."""
    return await _messages(table, ROWS_PER_MESSAGE)


async def row_streams(table: pa.Table) -> list[pa.Buffer]:
    """Observations as Arrow IPC streams, each for one `Bulk`; those of large chunks keep them."""
    if table.num_rows <= INLINE_ROWS_MAX:
        return _row_streams(table)
    return await asyncio.to_thread(_row_streams, table)


def _row_streams(table: pa.Table) -> list[pa.Buffer]:
    if table.num_columns and table.num_rows < CHUNK_ROWS_MIN * table.column(0).num_chunks:
        table = table.combine_chunks()
    return [stream_of(piece) for piece in table_pieces(table, ROWS_PER_MESSAGE)]


async def _messages(table: pa.Table, rows_max: int) -> list[bytes]:
    if table.num_rows <= INLINE_ROWS_MAX:
        return list(table_chunks(table, rows_max))
    return await asyncio.to_thread(lambda: list(table_chunks(table, rows_max)))
