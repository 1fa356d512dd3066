"""What many modules do with arrays: plain columns, columns in one piece, batches, repeated rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError, reason_of

BATCH_BYTES_MAX = 32 << 20
"""Arrow bytes of a batch; batches with many columns or long texts have fewer rows."""


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; it copies nothing where there is one chunk."""
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that `plain` gives a column."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        elif pa.types.is_string_view(kind):
            return pa.string()
        elif pa.types.is_binary_view(kind):
            return pa.binary()
        elif isinstance(kind, pa.ListViewType | pa.LargeListViewType):
            return pa.large_list(kind.value_type)
        elif pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
            return pa.decimal128(38, kind.scale)
        else:
            return pa.float32() if kind == pa.float16() else kind


def plain(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The values of a column without an encoding or a type that few functions of Arrow know.

    These are extension types, dictionaries, runs of equal values, views, half floats and small
    decimals. Texts that an encoding stores once for many rows can take much more memory than before
    (`model.observations.text_bytes`).

    Raises:
        InputError: Arrow cannot convert the column.
    """
    kind = plain_type(values.type)
    if kind == values.type:
        return values
    try:
        if isinstance(values, pa.ChunkedArray):
            return pa.chunked_array([plain(chunk) for chunk in values.chunks], kind)
        return _plain(values, kind)
    except pa.ArrowException as error:
        raise InputError(f"{values.type} cannot be converted: {reason_of(error)}") from error


def _plain(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        return plain(values.storage)
    if isinstance(values, pa.DictionaryArray):
        return plain(values.dictionary).take(values.indices)
    if isinstance(values, pa.RunEndEncodedArray):
        return plain(values.values).take(pa.array(run_of_rows(values)))
    if isinstance(values, pa.ListViewArray | pa.LargeListViewArray):  # A cast damages them.
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        ends = np.cumsum(lengths.to_numpy(), dtype=np.int64)
        return pa.LargeListArray.from_arrays(
            np.concatenate([[0], ends]), values.flatten(), mask=values.is_null()
        )
    return values.cast(kind)


def cast(values: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """As Arrow's cast, but 1e16 is held by floats, which Arrow denies, and 7 is no truth value.

    Numbers are rounded to the nearest 32-bit float; one that is finite stays so, or is refused.
    """
    if kind == pa.float32() and values.type != kind:
        wide = cast(values, pa.float64())
        narrow = wide.cast(kind)
        overflown = pc.and_(pc.is_inf(narrow), pc.is_finite(wide))
        if pc.any(overflown).as_py():
            number = pc.filter(wide, overflown)[0].as_py()
            raise pa.ArrowInvalid(f"{number} is more than 32-bit floats hold")
        return narrow
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if pa.types.is_boolean(kind) and is_number:
        numbers = np.asarray(pc.fill_null(values, 0))
        if not np.isin(numbers, (0, 1)).all():
            raise pa.ArrowInvalid("expected 0 or 1")
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        is_float = pa.types.is_integer(values.type) and pa.types.is_floating(kind)
        if not is_float or not held_by_floats(values).all():
            raise
        return values.cast(kind, safe=False)


def held_by_floats(values: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of integers that have at most the 53 significant bits of a float; true for null."""
    size = np.abs(np.asarray(pc.fill_null(values, 0))).astype(np.uint64)
    lowest_bit = size & (~size + np.uint64(1))
    held: npt.NDArray[np.bool_] = size // np.maximum(lowest_bit, 1) <= 1 << 53
    return held


def rebatch(tables: Iterator[pa.Table], *, rows_max: int) -> Iterator[pa.Table]:
    """The rows in tables of `rows_max`; of fewer if they exceed `BATCH_BYTES_MAX`."""
    buffer: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        buffer.append(table)
        rows += table.num_rows
        size += table.nbytes
        if rows < rows_max and size < BATCH_BYTES_MAX:
            continue
        joined = pa.concat_tables(buffer)
        whole = rows if size >= BATCH_BYTES_MAX else rows - rows % rows_max
        for start in range(0, whole, rows_max):
            yield from _concat(joined.slice(start, min(rows_max, whole - start)))
        buffer, rows = [joined.slice(whole)], rows - whole
        size = buffer[0].nbytes
    if rows:
        yield from _concat(pa.concat_tables(buffer))


def _concat(table: pa.Table) -> Iterator[pa.Table]:
    return (piece.combine_chunks() for piece in split_by_bytes(table))


def split_by_bytes(table: pa.Table) -> Iterator[pa.Table]:
    """Splits a table in halves until each has at most `BATCH_BYTES_MAX` or one row."""
    if table.num_rows <= 1 or table.nbytes <= BATCH_BYTES_MAX:
        yield table
        return
    half = table.num_rows // 2
    yield from split_by_bytes(table.slice(0, half))
    yield from split_by_bytes(table.slice(half))


def run_of_rows(values: pa.RunEndEncodedArray) -> npt.NDArray[np.int64]:
    """The number of the run of each row."""
    rows = np.arange(values.offset, values.offset + len(values))
    return np.searchsorted(values.run_ends.to_numpy(), rows, side="right")


def within(counts: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """The concatenation of `arange(count)`."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: npt.NDArray[np.int64] = np.arange(total) - np.repeat(ends - counts, counts)
    return numbers
