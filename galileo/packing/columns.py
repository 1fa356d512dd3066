"""Arrow columns as columns of 64-bit numbers, and back, bit for bit.

Integers, times and booleans are numbers already. Texts become codes into the list of distinct
texts. Most floats are decimals: 290.5 is 2905 tenths. If nearly all values of a column are
multiples of a power of ten, the multiples are written, and the exceptions (NaN, -0.0, thirds)
separately; other columns by the bits of their floats, in half as many bits if all are
single-precision values. A missing value repeats the value before it.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.packing.bits import Numbers
from galileo.packing.integers import checked_codes, decode_numbers, encode_numbers
from galileo.packing.streams import ByteReader, ByteWriter, corrupt

DECIMALS_MAX = 6
SAMPLE = 64
EXCEPTIONS_SHARE = 16
"""A column may have one exception among so many and still be written as decimals."""

_WHOLE_MAX = 2.0**52
_TEXT_BYTES_MAX = 1 << 30
_CHUNK_BYTES = 1 << 26

Mask = npt.NDArray[np.bool_]


class _FloatEncoding(enum.IntEnum):
    DECIMAL = 0
    SINGLE = 1
    DOUBLE = 2


_LAST_FLOAT_ENCODING = int(max(_FloatEncoding))


def encode_column(writer: ByteWriter, column: pa.Array) -> None:
    """Append a column of int32, int64, uint64, float64, float32, bool, string or timestamps."""
    writer.write_number(int(column.null_count > 0))
    if column.null_count:
        encode_numbers(writer, column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint64))
        column = _fill_nulls(column)
    kind = column.type
    if pa.types.is_string(kind):
        _encode_texts(writer, column)
    elif pa.types.is_floating(kind):
        _encode_floats(writer, column.to_numpy().astype(np.float64, copy=False))
    elif pa.types.is_boolean(kind):
        encode_numbers(writer, column.to_numpy(zero_copy_only=False).astype(np.uint64))
    else:
        encode_numbers(writer, to_numbers(column))


def decode_column(reader: ByteReader, kind: pa.DataType, *, count: int) -> pa.Array:
    """The inverse of `encode_column`."""
    missing = None
    if reader.read_number(most=1):
        missing = decode_numbers(reader, count=count) == 0
    if pa.types.is_string(kind):
        return _decode_texts(reader, count=count, missing=missing)
    if pa.types.is_floating(kind):
        floats = _decode_floats(reader, count).astype(kind.to_pandas_dtype(), copy=False)
        return pa.array(floats, mask=missing, from_pandas=False)
    numbers = decode_numbers(reader, count=count)
    if pa.types.is_boolean(kind):
        return pa.array(numbers.astype(np.bool_), mask=missing)
    return from_numbers(numbers, kind, missing=missing)


def to_numbers(column: pa.Array) -> Numbers:
    """A column without missing values of int32, int64, uint64 or timestamps."""
    if pa.types.is_uint64(column.type):
        numbers: Numbers = column.to_numpy()
    elif pa.types.is_int32(column.type):
        numbers = column.to_numpy().astype(np.int64).view(np.uint64)
    else:
        numbers = column.view(pa.int64()).to_numpy().view(np.uint64)
    return numbers


def from_numbers(numbers: Numbers, kind: pa.DataType, *, missing: Mask | None = None) -> pa.Array:
    """The inverse of `to_numbers`, without missing values."""
    if pa.types.is_uint64(kind):
        return pa.array(numbers, mask=missing)
    signed = numbers.view(np.int64)
    if pa.types.is_int32(kind):
        return pa.array(signed.astype(np.int32), mask=missing)
    return pa.array(signed, mask=missing).view(kind)


def _fill_nulls(column: pa.Array) -> pa.Array:
    """Replace missing values by the one before them, so that neighbours stay similar."""
    filled = pc.fill_null_forward(column)
    if filled.null_count:
        first = filled.drop_null()[:1]
        filled = filled.fill_null(first[0] if len(first) else _zero(column.type))
    return filled


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.scalar("", kind) if pa.types.is_string(kind) else pa.scalar(0, pa.int64()).cast(kind)


# --- texts ------------------------------------------------------------------------------------


def _encode_texts(writer: ByteWriter, column: pa.Array) -> None:
    coded = column.dictionary_encode()
    distinct = [text.encode() for text in coded.dictionary.to_pylist()]
    writer.write_number(len(distinct))
    encode_numbers(writer, np.array([len(text) for text in distinct], dtype=np.uint64))
    writer.write(b"".join(distinct))
    encode_numbers(writer, coded.indices.to_numpy().astype(np.uint64))


def _decode_texts(reader: ByteReader, *, count: int, missing: Mask | None) -> pa.Array:
    distinct = reader.read_number(most=count)
    lengths = decode_numbers(reader, count=distinct)
    if distinct and int(lengths.max()) > _TEXT_BYTES_MAX // distinct:
        raise corrupt("texts of less than 1 GiB", f"one of {lengths.max()} bytes")
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    data = reader.read(int(ends[-1]))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    texts = pa.Array.from_buffers(pa.string(), distinct, buffers)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise corrupt("texts in UTF-8", str(error)) from error
    codes = checked_codes(decode_numbers(reader, count=count), count=distinct)
    total = int(lengths[codes].sum()) if distinct else 0
    if total > _TEXT_BYTES_MAX:
        raise corrupt("texts of less than 1 GiB", f"{total} bytes")
    return _take_in_chunks(
        texts, pa.array(codes, mask=missing), mean_bytes=len(data) // max(distinct, 1) + 1
    )


def _take_in_chunks(texts: pa.Array, codes: pa.Array, *, mean_bytes: int) -> pa.Array:
    """The texts with these codes, in chunks if some of them are long.

    Arrow allocates for the mean length of the texts before it reads them.
    """
    step = max(_CHUNK_BYTES // mean_bytes, 1)
    if len(codes) <= step:
        return texts.take(codes)
    return pa.concat_arrays(
        [texts.take(codes.slice(start, step)) for start in range(0, len(codes), step)]
    )


# --- floats -----------------------------------------------------------------------------------


def _encode_floats(writer: ByteWriter, values: npt.NDArray[np.float64]) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        decimals = _choose_decimals(values)
        if decimals is not None and _encode_decimals(writer, values, decimals):
            return
        singles = values.astype(np.float32)
        is_single = np.array_equal(_bits(singles.astype(np.float64)), _bits(values))
    if is_single:
        writer.write_number(_FloatEncoding.SINGLE)
        encode_numbers(writer, _bits(singles).astype(np.uint64))
    else:
        writer.write_number(_FloatEncoding.DOUBLE)
        encode_numbers(writer, _bits(values))


def _decode_floats(reader: ByteReader, count: int) -> npt.NDArray[np.float64]:
    way = reader.read_number(most=_LAST_FLOAT_ENCODING)
    if way == _FloatEncoding.DECIMAL:
        return _decode_decimals(reader, count)
    numbers = decode_numbers(reader, count=count)
    if way == _FloatEncoding.DOUBLE:
        return numbers.view(np.float64)
    with np.errstate(invalid="ignore"):
        return numbers.astype(np.uint32).view(np.float32).astype(np.float64)


def _choose_decimals(values: npt.NDArray[np.float64]) -> int | None:
    """Number of decimals of nearly all values of a sample; None if there are too many."""
    sample = values[:: max(1, len(values) // SAMPLE)]
    for decimals in range(DECIMALS_MAX + 1):
        if len(
            _find_exceptions(sample, _to_whole_units(sample, decimals), decimals)
        ) * EXCEPTIONS_SHARE <= len(sample):
            return decimals
    return None


def _to_whole_units(values: npt.NDArray[np.float64], decimals: int) -> npt.NDArray[np.float64]:
    """The values in units of the last decimal; 0 where that does not fit an integer."""
    whole = np.rint(values * 10.0**decimals)
    whole[~(np.abs(whole) < _WHOLE_MAX)] = 0.0
    return whole


def _find_exceptions(
    values: npt.NDArray[np.float64], whole: npt.NDArray[np.float64], decimals: int
) -> npt.NDArray[np.intp]:
    """Positions where the whole numbers do not restore the values bit for bit."""
    # Through integers as when they are read, where -0.0 is 0.
    back = whole.astype(np.int64) / 10.0**decimals
    return np.flatnonzero(_bits(back) != _bits(values))


def _encode_decimals(writer: ByteWriter, values: npt.NDArray[np.float64], decimals: int) -> bool:
    whole = _to_whole_units(values, decimals)
    odd = _find_exceptions(values, whole, decimals)
    if len(odd) * EXCEPTIONS_SHARE > len(values):
        return False
    writer.write_number(_FloatEncoding.DECIMAL)
    writer.write_number(decimals)
    encode_numbers(writer, whole.astype(np.int64).view(np.uint64))
    writer.write_number(len(odd))
    encode_numbers(writer, odd.astype(np.uint64))
    encode_numbers(writer, _bits(values[odd]))
    return True


def _decode_decimals(reader: ByteReader, count: int) -> npt.NDArray[np.float64]:
    decimals = reader.read_number(most=DECIMALS_MAX)
    values = decode_numbers(reader, count=count).view(np.int64) / 10.0**decimals
    odd = reader.read_number(most=count)
    places = checked_codes(decode_numbers(reader, count=odd), count=count)
    values[places] = decode_numbers(reader, count=odd).view(np.float64)
    return values


def _bits(values: npt.NDArray[np.floating]) -> npt.NDArray[np.unsignedinteger]:
    return values.view(np.uint64 if values.dtype == np.float64 else np.uint32)
