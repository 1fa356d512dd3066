"""Packing of label columns: narrow differences, dictionaries, and LZ4 where it is asked for.

Every column becomes unsigned 64-bit numbers (integers and times as they are, floats by their
bits, texts and repetitive columns as codes into a dictionary), and those become differences to
their minimum in the narrowest type that holds them. `unpack(pack(table))` equals the table bit
for bit, NaN payloads and signed zeros included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lz4.frame
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import DataDamaged

Numbers = npt.NDArray[np.uint64]
_WIDTHS = (np.uint8, np.uint16, np.uint32)
_DICTIONARY_SHARE = 4
"""A dictionary pays where values repeat at least so often on average."""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Bytes in memory, possibly compressed; `size` is their plain length."""

    data: bytes
    size: int
    compressed: bool

    @staticmethod
    def of(data: bytes, *, compressed: bool) -> _Bytes:
        packed = lz4.frame.compress(data) if compressed else data
        smaller = compressed and len(packed) < len(data)
        return _Bytes(packed if smaller else data, len(data), smaller)

    def plain(self) -> bytes:
        if not self.compressed:
            return self.data
        plain: bytes = lz4.frame.LZ4FrameDecompressor().decompress(self.data, self.size)
        if len(plain) != self.size:
            raise DataDamaged(
                f"expected a cache column of {self.size} bytes, got {len(plain)}; "
                "the memory of this node is damaged"
            )
        return plain


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers as differences to `low`, in a narrow type."""

    codes: _Bytes
    low: int
    dtype: str

    @staticmethod
    def of(numbers: Numbers, *, compressed: bool) -> _Numbers:
        low = numbers.min() if len(numbers) else np.uint64(0)
        codes = numbers - low
        span = int(codes.max()) if len(codes) else 0
        dtype: Any = next((w for w in _WIDTHS if span <= np.iinfo(w).max), np.uint64)
        data = _Bytes.of(codes.astype(dtype).tobytes(), compressed=compressed)
        return _Numbers(data, int(low), np.dtype(dtype).str)

    def numbers(self) -> Numbers:
        codes = np.frombuffer(self.codes.plain(), dtype=self.dtype).astype(np.uint64)
        return codes + np.uint64(self.low)

    @property
    def bytes(self) -> int:
        return len(self.codes.data)


@dataclass(frozen=True, slots=True)
class _Column:
    type: pa.DataType
    codes: _Numbers
    dictionary: _Numbers | pa.Array | None
    valid: _Bytes | None

    @property
    def bytes(self) -> int:
        own = 0 if self.dictionary is None else _size(self.dictionary)
        return self.codes.bytes + own + (len(self.valid.data) if self.valid else 0)


@dataclass(frozen=True, slots=True)
class PackedTable:
    """A table in little memory; `bytes` is what its columns take."""

    schema: pa.Schema
    rows: int
    columns: tuple[_Column, ...]
    bytes: int


def pack(table: pa.Table, *, compressed: bool) -> PackedTable:
    """The table, packed; columns are int32, int64, uint64, float64, bool, string or timestamp."""
    columns = tuple(_pack_column(column, compressed=compressed) for column in table.columns)
    size = sum(column.bytes for column in columns)
    return PackedTable(table.schema, table.num_rows, columns, size)


def unpack(packed: PackedTable) -> pa.Table:
    arrays = [_unpack_column(column, rows=packed.rows) for column in packed.columns]
    return pa.table(arrays, schema=packed.schema)


def _size(dictionary: _Numbers | pa.Array) -> int:
    return dictionary.bytes if isinstance(dictionary, _Numbers) else int(dictionary.nbytes)


def _pack_column(chunked: pa.ChunkedArray, *, compressed: bool) -> _Column:
    column = chunked.combine_chunks()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    valid = None
    if column.null_count:
        bits = np.packbits(column.is_valid().to_numpy(zero_copy_only=False))
        valid = _Bytes.of(bits.tobytes(), compressed=compressed)
    numbers, dictionary = _as_numbers(column)
    if dictionary is None:
        numbers, dictionary = _repetitive(numbers, compressed=compressed)
    return _Column(column.type, _Numbers.of(numbers, compressed=compressed), dictionary, valid)


def _as_numbers(column: pa.Array) -> tuple[Numbers, pa.Array | None]:
    """The column's values as numbers, with a dictionary of texts where they are codes."""
    kind = column.type
    if pa.types.is_string(kind):
        coded = column.dictionary_encode()
        return coded.indices.fill_null(0).to_numpy().astype(np.uint64), coded.dictionary
    if pa.types.is_boolean(kind):
        return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64), None
    if pa.types.is_floating(kind):
        return column.fill_null(0.0).to_numpy().view(np.uint64), None
    if pa.types.is_uint64(kind):
        return column.fill_null(0).to_numpy(), None
    return column.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64), None


def _repetitive(numbers: Numbers, *, compressed: bool) -> tuple[Numbers, _Numbers | None]:
    """Codes into the distinct values, where these are few and their range is wide."""
    if len(numbers) == 0 or int(numbers.max() - numbers.min()) <= np.iinfo(np.uint16).max:
        return numbers, None
    distinct, codes = np.unique(numbers, return_inverse=True)
    if len(distinct) * _DICTIONARY_SHARE > len(numbers):
        return numbers, None
    return codes.astype(np.uint64), _Numbers.of(distinct, compressed=compressed)


def _unpack_column(column: _Column, *, rows: int) -> pa.Array:
    numbers = column.codes.numbers()
    mask = None
    if column.valid is not None:
        bits = np.frombuffer(column.valid.plain(), dtype=np.uint8)
        mask = ~np.unpackbits(bits, count=rows).astype(np.bool_)
    if isinstance(column.dictionary, pa.Array):
        codes = pa.array(numbers.astype(np.int32), mask=mask)
        return column.dictionary.take(codes)
    if column.dictionary is not None:
        numbers = column.dictionary.numbers()[numbers]
    return _from_numbers(numbers, column.type, mask)


def _from_numbers(
    numbers: Numbers, kind: pa.DataType, mask: npt.NDArray[np.bool_] | None
) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(numbers.astype(np.bool_), mask=mask)
    if pa.types.is_floating(kind):
        return pa.array(numbers.view(np.float64), mask=mask, from_pandas=False)
    if pa.types.is_uint64(kind):
        return pa.array(numbers, mask=mask)
    return pa.array(numbers.view(np.int64), mask=mask).cast(kind)
