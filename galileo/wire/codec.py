"""Between values and protobuf messages, where several services need it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from galileo.cursor import Cursor, Stretch
from galileo.errors import InputError
from galileo.labels import from_ipc, to_ipc
from galileo.wire.pb import common_pb2

LABELS_PER_MESSAGE = 32_768
ROWS_PER_MESSAGE = 65_536
CHUNK_BYTES_MAX = 16 << 20


def cursor_to_pb(cursor: Cursor) -> common_pb2.CursorValue:
    return common_pb2.CursorValue(partitions=list(cursor), sequences=list(cursor.values()))


def cursor_from_pb(value: common_pb2.CursorValue) -> Cursor:
    """Raises InputError where the two lists do not pair up."""
    if len(value.partitions) != len(value.sequences):
        raise InputError(
            f"expected as many sequences as partitions in a cursor, got "
            f"{len(value.sequences)} and {len(value.partitions)}"
        )
    return Cursor(dict(zip(value.partitions, value.sequences, strict=True)))


def stretches_to_pb(stretches: Iterable[Stretch]) -> list[common_pb2.StretchValue]:
    return [
        common_pb2.StretchValue(partition=one.partition, first=one.first, last=one.last)
        for one in stretches
    ]


def stretches_from_pb(values: Iterable[common_pb2.StretchValue]) -> tuple[Stretch, ...]:
    return tuple(Stretch(one.partition, one.first, one.last) for one in values)


def table_chunks(table: pa.Table, rows_max: int) -> Iterator[bytes]:
    """A table as IPC streams of at most `rows_max` rows; none for an empty table.

    Wide rows make shorter streams: only a single row exceeds `CHUNK_BYTES_MAX`.
    """
    for start in range(0, table.num_rows, rows_max):
        yield from _bounded(table.slice(start, rows_max))


def _bounded(table: pa.Table) -> Iterator[bytes]:
    if table.num_rows > 1 and table.nbytes > CHUNK_BYTES_MAX:
        middle = table.num_rows // 2
        yield from _bounded(table.slice(0, middle))
        yield from _bounded(table.slice(middle))
    else:
        yield to_ipc(table.combine_chunks())


def label_chunks(table: pa.Table) -> Iterator[bytes]:
    return table_chunks(table, LABELS_PER_MESSAGE)


def table_of(chunks: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    """The table that `table_chunks` took apart.

    Raises:
        InputError: a chunk is no stream of this schema.
    """
    tables = [from_ipc(chunk, schema) for chunk in chunks]
    return pa.concat_tables(tables) if tables else schema.empty_table()
