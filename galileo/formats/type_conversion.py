"""Converts the columns of files to the types of features and to times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError, InvalidObservations
from galileo.model.observations import nan_to_null
from galileo.model.schema import ARROW_TYPES, FeatureType
from galileo.model.times import MICROS, TIME_TYPE, time_column

EPOCH_UNITS_US = {"epoch_s": MICROS, "epoch_ms": MICROS // 1000}
SHOWN_MAX = 40
"""Characters of a value in an error message."""
TIME_PARTS = ("year", "month", "day", "hour", "minute", "second")

_NUMBER = {
    "int": r"^-?[0-9]{1,18}$",
    "float": r"^[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:inf|infinity))$",
    "bool": r"^(?i:true|false)$",
}
_EPOCH = re.compile(r"(epoch_s|epoch_ms)\s*\(\s*(.+?)\s*\)")


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array, with dictionaries and views decoded."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column


def null_sentinels(column: pa.Array, sentinels: Sequence[str]) -> pa.Array:
    """Replaces sentinels with null, whether they are equal as texts or as numbers.

    Numbers are compared in the precision of the column: -999.9 matches the nearest 32-bit float.
    """
    if pa.types.is_decimal(column.type) or column.type == pa.float16():
        column = column.cast(pa.float64() if pa.types.is_decimal(column.type) else pa.float32())
    for sentinel in sentinels:
        mask = _equal(column, sentinel)
        if mask is not None:
            column = pc.if_else(pc.fill_null(mask, False), pa.scalar(None, column.type), column)
    return column


def _equal(column: pa.Array, sentinel: str) -> pa.Array | None:
    """A mask of a sentinel in a column; None if its type cannot have the sentinel."""
    number = float(sentinel) if re.fullmatch(_NUMBER["float"], sentinel) else None
    if is_text(column.type):
        same = pc.equal(column, pa.scalar(sentinel, column.type))
        if number is None:
            return same
        is_number = pc.match_substring_regex(column, _NUMBER["float"])
        numbers = _strip_plus(pc.if_else(is_number, column, pa.scalar(None, column.type)), "float")
        return pc.or_kleene(same, pc.equal(pc.cast(numbers, pa.float64()), number))
    if number is None or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        return None
    if pa.types.is_floating(column.type):
        return pc.equal(column, pa.scalar(number, column.type))
    if not number.is_integer():
        return None
    exact = int(sentinel) if re.fullmatch(r"[-+]?[0-9]+", sentinel) else int(number)
    try:
        return pc.equal(column, pa.scalar(exact, column.type))
    except (OverflowError, pa.ArrowInvalid):  # The column's integers are narrower.
        return None


def guess_type(column: pa.Array) -> FeatureType:
    """The narrowest feature type for all values of a column of texts."""
    texts = column.drop_null()
    kinds: tuple[FeatureType, ...] = ("int", "float", "bool")
    for kind in kinds:
        if len(texts) and pc.all(pc.match_substring_regex(texts, _NUMBER[kind])).as_py():
            return kind
    return "text"


def feature_type(kind: pa.DataType) -> FeatureType | None:
    """The feature type of an Arrow type; None if there is none, as for lists."""
    if pa.types.is_dictionary(kind):
        return feature_type(kind.value_type)
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "float"
    return "text" if is_text(kind) or pa.types.is_temporal(kind) else None


def is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def convert(column: pa.Array, kind: FeatureType, *, name: str, first_row: int) -> pa.Array:
    """Converts a column to the Arrow type of a feature, NaN to null.

    Args:
        column: of any scalar type.
        kind: the feature's type.
        name: of the column, for messages.
        first_row: number of the column's first row within the file, for messages.

    Raises:
        InvalidObservations: a value does not fit; names the first row.
    """
    arrow_type = ARROW_TYPES[kind]
    try:
        if pa.types.is_floating(column.type) and kind != "float":
            column = nan_to_null(column)
        values = (
            column if column.type == arrow_type else pc.cast(_strip_plus(column, kind), arrow_type)
        )
    except pa.ArrowInvalid as error:
        raise _conversion_error(column, kind, name=name, first_row=first_row) from error
    except pa.ArrowNotImplementedError as error:
        raise InvalidObservations(
            f"expected {kind} values in {name!r}, got {column.type}; map another variable",
            column=name,
        ) from error
    if is_text(column.type) and kind == "float":
        _refuse_overflow(column, values, name=name, first_row=first_row)
    return nan_to_null(values)


def _refuse_overflow(texts: pa.Array, values: pa.Array, *, name: str, first_row: int) -> None:
    """Raises InvalidObservations for a number that Arrow reads as infinity."""
    is_inf = pc.is_inf(values)
    if not pc.any(is_inf).as_py():
        return
    row = pc.and_(is_inf, pc.match_substring_regex(texts, "[0-9]")).index(pa.scalar(True)).as_py()
    if row >= 0:
        raise InvalidObservations(
            f"expected numbers that 64-bit floats can hold in {name!r}, got "
            f"{texts[row].as_py()[:SHOWN_MAX]!r} in row {first_row + row}; correct the file",
            row=first_row + row,
            column=name,
        )


def _strip_plus(column: pa.Array, kind: FeatureType) -> pa.Array:
    """Removes plus signs, which Arrow's number parser refuses."""
    if kind not in ("float", "int") or not is_text(column.type):
        return column
    return pc.replace_substring_regex(column, r"^\+", "")


def _conversion_error(
    column: pa.Array, kind: str, *, name: str, first_row: int
) -> InvalidObservations:
    if is_text(column.type):
        fits = pc.match_substring_regex(column, _NUMBER[kind])
    else:
        values = column.to_numpy(zero_copy_only=False).astype(np.float64)
        fits = pa.array((values == np.trunc(values)) | np.isnan(values))
    row = fits.index(pa.scalar(False)).as_py()
    shown = repr(column[row].as_py()) if row >= 0 else "one that does not fit 64 bits"
    place = f" in row {first_row + row}" if row >= 0 else ""
    return InvalidObservations(
        f"expected {kind} values in {name!r}, got {shown}{place}; "
        "correct the file, or give the feature another type",
        row=first_row + max(row, 0),
        column=name,
    )


# --- times -----------------------------------------------------------------------------------


def time_columns(source: str) -> tuple[str, ...]:
    """The columns of a mapping's `time`."""
    epoch = _EPOCH.fullmatch(source)
    if epoch:
        return (epoch[2],)
    return tuple(part.strip() for part in source.split(","))


def times(columns: Sequence[pa.Array], source: str, *, first_row: int) -> pa.Array:
    """Times from the columns of `time_columns(source)`; null where a part is null.

    Raises:
        InvalidObservations: a value is not a time.
    """
    epoch = _EPOCH.fullmatch(source)
    try:
        if epoch:
            return _from_epoch(columns[0], EPOCH_UNITS_US[epoch[1]], name=epoch[2], row=first_row)
        if len(columns) > 1:
            return _from_parts(columns, time_columns(source), first_row=first_row)
        return one_array(time_column(columns[0]))
    except InvalidObservations:
        raise
    except (InputError, pa.ArrowInvalid) as error:
        row = error.details.get("row") if isinstance(error, InputError) else None
        raise InvalidObservations(
            f"{source!r} has no times in the rows from {first_row}: {error}; for numbers map "
            f"time=epoch_s({source}) or epoch_ms({source})",
            expected="times",
            column=source,
            **({} if row is None else {"row": first_row + row}),
        ) from error


def _from_epoch(column: pa.Array, unit_us: int, *, name: str, row: int) -> pa.Array:
    if pa.types.is_integer(column.type):
        return pc.cast(pc.multiply(pc.cast(column, pa.int64()), unit_us), TIME_TYPE)
    numbers = convert(column, "float", name=name, first_row=row)
    micros = pc.round(pc.multiply(numbers, float(unit_us)))
    return pc.cast(pc.cast(micros, pa.int64()), TIME_TYPE)


def _from_parts(columns: Sequence[pa.Array], names: Sequence[str], *, first_row: int) -> pa.Array:
    if not 3 <= len(columns) <= len(TIME_PARTS):
        raise InvalidObservations(
            f"expected time columns for {', '.join(TIME_PARTS)} in this order, at least the "
            f"first three, got {', '.join(names)}",
            expected="time_parts",
        )
    parts = [
        convert(column, "float", name=name, first_row=first_row)
        for column, name in zip(columns, names, strict=True)
    ]
    known = np.logical_and.reduce(
        [part.is_valid().to_numpy(zero_copy_only=False) for part in parts]
    )
    lowest = (1970.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    filled = [
        np.where(known, part.to_numpy(zero_copy_only=False), low)
        for part, low in zip(parts, lowest, strict=False)
    ]
    filled += [np.zeros(len(known))] * (len(TIME_PARTS) - len(filled))
    return pa.array(_calendar(filled, first_row=first_row), mask=~known).cast(TIME_TYPE)


def _calendar(parts: list[npt.NDArray[np.float64]], *, first_row: int) -> npt.NDArray[np.int64]:
    """Microseconds of year, month, day, hour, minute, second."""
    year, month, day = (part.astype(np.int64) for part in parts[:3])
    first = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    date = first.astype("datetime64[D]") + (day - 1)
    hour, minute, second = parts[3:]
    clock_s = hour * 3600 + minute * 60 + second
    wrong = (month < 1) | (month > 12) | (day < 1) | (date.astype("datetime64[M]") != first)
    wrong |= (clock_s < 0) | (hour > 23) | (minute >= 60) | (second >= 61)
    if wrong.any():
        row = int(np.argmax(wrong))
        values: Any = [float(part[row]) for part in parts]
        raise InvalidObservations(
            f"expected year, month, day, hour, minute and second of a time in row "
            f"{first_row + row}, got {', '.join(f'{value:g}' for value in values)}",
            row=first_row + row,
            expected="time_parts",
        )
    midnight = date.astype("datetime64[us]").astype(np.int64)
    return midnight + np.round(clock_s * MICROS).astype(np.int64)
