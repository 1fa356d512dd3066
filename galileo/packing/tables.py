"""Tables of labels as bytes: in memory, and on the wire.

    magic, version | checksum | flags | rows | columns | plain size | body

The body is one column after the other, compressed with LZ4 if that was requested and saves space;
or an Arrow IPC stream. `unpack` of `pack` equals the table bit for bit, including NaN payloads and
signed zeros. The bytes may come from another process: a CRC-32C and every length in them are
checked.
"""

from __future__ import annotations

from enum import StrEnum

import google_crc32c
import lz4.block
import numpy as np
import pyarrow as pa

from galileo.arrays import one_array
from galileo.errors import InputError
from galileo.packing.arrow_streams import read_stream
from galileo.packing.bits import Numbers
from galileo.packing.columns import decode_column, encode_column, from_numbers, to_numbers
from galileo.packing.integers import decode_numbers, encode_numbers
from galileo.packing.streams import ByteReader, ByteWriter, corrupt

FORMAT_VERSION = 2
ROWS_MAX = 65_536
"""Most rows of one packed table."""
UNCOMPRESSED_BYTES_MAX = 64 << 20

_MAGIC = b"GL"
_CHECKSUM_BYTES = 4
_LZ4, _ARROW_STREAM = 1, 2


class Compression(StrEnum):
    """How tables are packed.

    Values are those of stored records. Callers and the wire name the compression of a cache by
    `text`; STREAM is for messages alone.
    """

    NONE = ""
    """Encoded column by column: about a tenth of Arrow."""
    LZ4 = "lz4"
    """As NONE, then compressed with LZ4 if that saves space."""
    STREAM = "stream"
    """An Arrow IPC stream: large, but packing it takes next to no time."""

    @staticmethod
    def parse(text: str) -> Compression:
        """The compression of a cache, of its `text`; "" is "none".

        Raises:
            InputError: there is no such compression of a cache.
        """
        if text not in ("", *_TEXTS):
            raise InputError(f"expected the compression 'none' or 'lz4', got {text!r}")
        return _TEXTS[text] if text else Compression.NONE

    @property
    def text(self) -> str:
        return self.value or "none"

    @property
    def for_reply(self) -> Compression:
        """For labels of such a cache that are packed anew while a reader waits for them."""
        return Compression.STREAM if self is Compression.NONE else self


_TEXTS = {"none": Compression.NONE, "lz4": Compression.LZ4}


def pack(table: pa.Table, compression: Compression) -> bytes:
    """Packs a table of at most `ROWS_MAX` rows.

    Its columns are of int32, int64, uint64, float64, float32, bool, string or timestamp, in any
    order.
    Labels in commit order are smallest.
    """
    if table.num_rows > ROWS_MAX:
        raise ValueError(f"expected at most {ROWS_MAX} rows, got {table.num_rows}")
    if compression is Compression.STREAM:
        body = _stream(table)
        return _add_header(table, body, flags=_ARROW_STREAM, plain_size=len(body))
    columns = _body(table)
    if compression is Compression.LZ4:
        smaller = lz4.block.compress(columns, store_size=False)
        if len(smaller) < len(columns):
            return _add_header(table, smaller, flags=_LZ4, plain_size=len(columns))
    return _add_header(table, columns, flags=0, plain_size=len(columns))


def _stream(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def _add_header(table: pa.Table, body: bytes | memoryview, *, flags: int, plain_size: int) -> bytes:
    writer = ByteWriter()
    for number in (flags, table.num_rows, table.num_columns, plain_size):
        writer.write_number(number)
    writer.write(body)
    content = writer.bytes()
    head = _MAGIC + bytes([FORMAT_VERSION])
    checksum: bytes = google_crc32c.value(content).to_bytes(_CHECKSUM_BYTES, "little")
    return head + checksum + content


def unpack(data: bytes | memoryview, schema: pa.Schema) -> pa.Table:
    """The inverse of `pack`.

    Args:
        data: of `pack`.
        schema: of the table.

    Raises:
        InputError: it is of another format version or has other columns.
        CorruptData: its checksum or a length in it is wrong.
    """
    reader = ByteReader(_verify_checksum(data))
    flags, rows = reader.read_number(most=_ARROW_STREAM), reader.read_number(most=ROWS_MAX)
    columns, size = reader.read_number(), reader.read_number(most=UNCOMPRESSED_BYTES_MAX)
    if columns != len(schema):
        raise InputError(
            f"expected packed labels of {len(schema)} columns, got {columns}", expected="columns"
        )
    if flags == _ARROW_STREAM:
        table = _from_stream(reader.read_rest(), schema, rows)
    else:
        body = ByteReader(
            _decompress(reader.read_rest(), size) if flags == _LZ4 else reader.read_rest()
        )
        table = pa.table(_columns(body, schema, rows), schema=schema)
        if not body.is_at_end:
            raise corrupt("nothing behind the last column", "more")
    for field, column in zip(schema, table.columns, strict=True):
        if column.null_count and not field.nullable:
            raise InputError(
                f"expected a value in every row of {field.name!r}, got a null",
                expected="no_nulls",
                column=field.name,
            )
    return table


def _from_stream(body: memoryview, schema: pa.Schema, rows: int) -> pa.Table:
    try:
        table = read_stream(body)
        table.validate(full=True)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise corrupt("an Arrow IPC stream", str(error)) from error
    if table.num_rows != rows or not table.schema.equals(schema):
        raise InputError(
            f"expected {rows} packed labels of {schema.names}, "
            f"got {table.num_rows} of {table.schema.names}",
            expected="labels_of_schema",
        )
    return table


def _verify_checksum(data: bytes | memoryview) -> memoryview:
    view = memoryview(data)
    start = len(_MAGIC) + 1
    if len(view) < start + _CHECKSUM_BYTES or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise corrupt("packed labels", f"{len(view)} other bytes")
    if view[len(_MAGIC)] != FORMAT_VERSION:
        raise InputError(
            f"expected labels packed by format {FORMAT_VERSION}, got format {view[len(_MAGIC)]}; "
            "use the same version of Galileo on both sides",
            expected="format_version",
        )
    content = view[start + _CHECKSUM_BYTES :]
    stored = int.from_bytes(view[start : start + _CHECKSUM_BYTES], "little")
    if google_crc32c.value(bytes(content)) != stored:
        raise corrupt("the checksum that was written with them", "another")
    return content


def _decompress(data: memoryview, size: int) -> bytes:
    try:
        plain: bytes = lz4.block.decompress(data, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise corrupt("an LZ4 block", str(error)) from error
    if len(plain) != size:
        raise corrupt(f"{size} bytes in an LZ4 block", str(len(plain)))
    return plain


def _body(table: pa.Table) -> bytes:
    writer = ByteWriter()
    for name in table.column_names:
        column = one_array(table.column(name))
        if _follows_rows(table.schema, name):
            counts = to_numbers(one_array(table.column("rows")))
            encode_numbers(writer, _without_counts(to_numbers(column), counts))
        else:
            encode_column(writer, column)
    return writer.bytes()


def _columns(body: ByteReader, schema: pa.Schema, rows: int) -> list[pa.Array]:
    arrays: list[pa.Array] = []
    gaps = None
    for field in schema:
        if _follows_rows(schema, field.name):
            gaps = decode_numbers(body, count=rows)
            arrays.append(None)
        else:
            arrays.append(decode_column(body, field.type, count=rows))
    if gaps is not None:
        counted = arrays[schema.get_field_index("rows")]
        if counted.null_count:
            raise corrupt("rows of every label", f"{counted.null_count} nulls")
        counts = to_numbers(counted)
        place = schema.get_field_index("row")
        arrays[place] = from_numbers(_with_counts(gaps, counts), schema.field(place).type)
    return arrays


def _follows_rows(schema: pa.Schema, name: str) -> bool:
    """Whether a column is the first row of each path, which follows from those before it."""
    if name != "row":
        return False
    fields = [schema.field(name) for name in ("row", "rows") if schema.get_field_index(name) >= 0]
    return len(fields) == len(("row", "rows")) and all(
        pa.types.is_int32(field.type) and not field.nullable for field in fields
    )


def _without_counts(firsts: Numbers, counts: Numbers) -> Numbers:
    """Subtract the end of the path before from each first row: 0 without a gap."""
    ends = firsts + counts
    gaps = firsts.copy()
    gaps[1:] -= ends[:-1]
    return gaps


def _with_counts(gaps: Numbers, counts: Numbers) -> Numbers:
    steps = gaps.copy()
    steps[1:] += counts[:-1]
    return np.cumsum(steps, dtype=np.uint64)
