"""Converts the columns of files to the types of features and to times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo import arrays
from galileo.errors import InputError, InvalidObservations
from galileo.formats.csv_options import NULL_WORDS, CsvOptions
from galileo.model.observations import is_text, nan_to_null
from galileo.model.schema import ARROW_TYPES, FLOATS, NUMBERS, FeatureType
from galileo.model.times import (
    MICROS,
    TIME_MAX_US,
    TIME_TYPE,
    in_zone,
    local_times,
    time_column,
)

EPOCH_UNITS_US = {"epoch_s": MICROS, "epoch_ms": MICROS // 1000}
SHOWN_MAX = 40
"""Characters of a value in an error message."""
WORDS_MAX = 3
"""Different words in a column of numbers that a message counts."""
TIME_PARTS = ("year", "month", "day", "hour", "minute", "second")
DAY = TIME_PARTS.index("day")
_PART_RANGES = ((1, 10_000), (1, 13), (1, 32), (0, 24), (0, 60), (0, 61))
"""The least value of each part, and the first one that is too large."""

_NUMBER = {
    "int": r"^[-+]?[0-9]+$",
    "float": r"^[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:inf|infinity))$",
    "bool": r"^(?i:true|false|0|1)$",
}
_CODE = r"^[-+]?0[0-9]"
_COMMA_NUMBER = r"^[-+]?[0-9]{1,3}(?:\.?[0-9]{3})*(?:,[0-9]*)?(?:[eE][-+]?[0-9]+)?$"
_EPOCH = re.compile(r"(epoch_s|epoch_ms)\s*\(\s*(.+?)\s*\)")


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array of plain values."""
    values = arrays.plain(column)
    return arrays.one_array(values) if isinstance(values, pa.ChunkedArray) else values


def null_sentinels(column: pa.Array, sentinels: Sequence[str]) -> pa.Array:
    """Replaces sentinels with null, whether they are equal as texts or as numbers.

    Numbers are compared in the precision of the column: -999.9 matches the nearest 32-bit float.
    """
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
    if number is not None and pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
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


def plain_texts(column: pa.Array, csv: CsvOptions, *, is_number: bool = True) -> pa.Array:
    """The texts of a CSV file as numbers, truth values and times are written elsewhere.

    `NULL_WORDS` are null, blanks around a value do not count, and numbers have a decimal point.
    """
    if not is_text(column.type):
        return column
    texts = pc.utf8_trim_whitespace(column)
    if is_number and csv.decimal == ",":
        is_grouped = pc.match_substring_regex(texts, _COMMA_NUMBER)
        points = pc.replace_substring(pc.replace_substring(texts, ".", ""), ",", ".")
        unclear = pc.match_substring_regex(texts, _NUMBER["float"])  # Such as 1.5.
        others = pc.if_else(unclear, pc.binary_join_element_wise(texts, " with a point", ""), texts)
        texts = pc.if_else(is_grouped, points, others)
    is_missing = pc.is_in(texts, value_set=pa.array(NULL_WORDS))
    return pc.if_else(is_missing, pa.scalar(None, texts.type), texts)


class TypeGuess:
    """The narrowest type for all values of a column of texts that comes in pieces.

    Digits that begin with 0, and more digits than 64 bits hold, are texts: they are most often
    codes, which lose something as numbers.
    """

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._words = Counter[str]()
        self._code = ""

    def add(self, texts: pa.Array | pa.ChunkedArray) -> None:
        """Adds the next texts, as `plain_texts` has them."""
        texts = one_array(texts).drop_null()
        if self._code or len(self._words) > WORDS_MAX:
            return
        for kind in ("int", "float", "bool"):
            fits = pc.match_substring_regex(texts, _NUMBER[kind])
            these, texts = texts.filter(fits), texts.filter(pc.invert(fits))
            self._counts[kind] += len(these)
            if kind == "int":
                is_code = pc.match_substring_regex(these, _CODE)
                self._code = these.filter(is_code)[0].as_py() if pc.any(is_code).as_py() else ""
                self._counts["long"] += not self._code and not _fit_int64(these)
        for word in texts.value_counts():
            self._words[word["values"].as_py()] += word["counts"].as_py()
            if len(self._words) > WORDS_MAX:
                return

    @property
    def type(self) -> FeatureType | None:
        """None if there was no value."""
        counts = self._counts
        numbers = counts["int"] + counts["float"]
        if self._words or self._code or (numbers and counts["bool"]):
            return "text"
        if counts["float"] or not numbers:
            return "float" if numbers else "bool" if counts["bool"] else None
        return "text" if counts["long"] else "int"

    @property
    def words(self) -> tuple[str, ...]:
        """The words in a column of numbers, if they are few."""
        numbers = self._counts["int"] + self._counts["float"]
        return tuple(self._words) if numbers and len(self._words) <= WORDS_MAX else ()

    @property
    def reason(self) -> str:
        """Why a column of numbers is text; "" for others."""
        numbers = self._counts["int"] + self._counts["float"]
        if self._code and not self._words:
            return f"values such as {self._code!r} begin with 0"
        if self.type == "text" and self._counts["long"] and not self._words:
            return "some values have more digits than an int holds"
        if not self.words:
            return ""
        total = numbers + self._counts["bool"] + self._words.total()
        words = (
            f"{count:,} {'is' if count == 1 else 'are'} {word!r}"
            for word, count in self._words.most_common()
        )
        return f"{numbers:,} of {total:,} values are numbers, {', '.join(words)}"


def _fit_int64(digits: pa.Array) -> bool:
    try:
        pc.cast(_strip_plus(digits, "int"), pa.int64())
    except pa.ArrowInvalid:
        return False
    return True


def feature_type(kind: pa.DataType) -> FeatureType | None:
    """The feature type of an Arrow type; None if there is none, as for lists."""
    kind = arrays.plain_type(kind)
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "float32" if kind == pa.float32() else "float"
    is_instant = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind)
    return "text" if is_text(kind) or is_instant else None


def convert(column: pa.Array, kind: FeatureType, *, name: str) -> pa.Array:
    """Converts a column to the Arrow type of a feature, NaN to null.

    Args:
        column: of any scalar type.
        kind: the feature's type.
        name: of the column, for messages.

    Raises:
        InvalidObservations: a value does not fit; names the first row.
    """
    arrow_type = ARROW_TYPES[kind]
    try:
        if pa.types.is_floating(column.type) and kind not in FLOATS:
            column = nan_to_null(column)
        is_other = feature_type(column.type) is None and not pa.types.is_null(column.type)
        if is_other or (pa.types.is_temporal(column.type) and kind != "text"):
            raise pa.ArrowNotImplementedError("Arrow parses bytes, and takes times for numbers")
        values = (
            column
            if column.type == arrow_type
            else arrays.cast(_strip_plus(column, kind), arrow_type)
        )
    except pa.ArrowInvalid as error:
        raise _conversion_error(column, kind, name=name) from error
    except pa.ArrowNotImplementedError as error:
        raise InvalidObservations(
            f"expected {kind} values in {name!r}, got {column.type}; map another variable",
            column=name,
        ) from error
    if is_text(column.type) and kind in FLOATS:
        _refuse_overflow(column, values, name=name)
    return nan_to_null(values)


def _refuse_overflow(texts: pa.Array, values: pa.Array, *, name: str) -> None:
    """Raises InvalidObservations for a number that Arrow reads as infinity."""
    is_inf = pc.is_inf(values)
    if not pc.any(is_inf).as_py():
        return
    row = pc.and_(is_inf, pc.match_substring_regex(texts, "[0-9]")).index(pa.scalar(True)).as_py()
    if row >= 0:
        raise InvalidObservations(
            f"expected numbers that 64-bit floats can hold in {name!r}, got "
            f"{texts[row].as_py()[:SHOWN_MAX]!r} in row {row}; correct the file",
            row=row,
            column=name,
        )


def _strip_plus(column: pa.Array, kind: FeatureType) -> pa.Array:
    """Removes plus signs, which Arrow's number parser refuses."""
    if kind not in NUMBERS or not is_text(column.type):
        return column
    return pc.replace_substring_regex(column, r"^\+", "")


def _conversion_error(column: pa.Array, kind: str, *, name: str) -> InvalidObservations:
    if is_text(column.type):
        fits = pc.match_substring_regex(column, _NUMBER["float" if kind in FLOATS else kind])
    elif pa.types.is_integer(column.type) and kind in FLOATS:
        fits = pa.array(arrays.held_by_floats(column))
    elif kind in FLOATS:
        fits = pa.array(np.ones(len(column), dtype=np.bool_))
    else:
        values = np.asarray(pc.fill_null(column, 0)).astype(np.float64)
        is_number = (values == np.trunc(values)) & (np.abs(values) < 2.0**63)
        fits = pa.array(np.isin(values, (0, 1)) if kind == "bool" else is_number)
    row = fits.index(pa.scalar(False)).as_py()
    if row < 0 and kind == "float32":
        wide = arrays.cast(_strip_plus(column, "float"), pa.float64())
        row = pc.and_(pc.is_inf(wide.cast(pa.float32())), pc.is_finite(wide)).index(True).as_py()
    elif row < 0:  # All are digits; some are more than 64 bits hold.
        fitting = [-(1 << 63) <= int(number or 0) < 1 << 63 for number in column.to_pylist()]
        row = fitting.index(False)
    return InvalidObservations(
        f"expected {kind} values in {name!r}, got {column[row].as_py()!r} in row {row}; "
        "correct the file, or give the feature another type",
        row=row,
        column=name,
    )


# --- times -----------------------------------------------------------------------------------


def time_columns(source: str) -> tuple[str, ...]:
    """The columns of a mapping's `time`."""
    epoch = _EPOCH.fullmatch(source)
    if epoch:
        return (epoch[2],)
    return tuple(part.strip() for part in source.split(","))


def times(columns: Sequence[pa.Array], source: str, *, csv: CsvOptions | None = None) -> pa.Array:
    """Times from the columns of `time_columns(source)`; null where a part is null.

    Args:
        columns: texts, numbers or times.
        source: the mapping's `time`.
        csv: how times are written, if they come from a CSV file.

    Raises:
        InvalidObservations: a value is not a time.
    """
    epoch = _EPOCH.fullmatch(source)
    try:
        if csv is not None:
            columns = [
                plain_texts(c, csv, is_number=bool(epoch) or len(columns) > 1) for c in columns
            ]
        if epoch:
            return _from_epoch(columns[0], EPOCH_UNITS_US[epoch[1]], name=epoch[2])
        if len(columns) > 1:
            parts = _from_parts(columns, time_columns(source))
            return in_zone(parts, csv.time_zone) if csv and csv.time_zone else parts
        if csv is not None and is_text(columns[0].type):
            return local_times(columns[0], format=csv.time_format, zone=csv.time_zone)
        return one_array(time_column(columns[0]))
    except InvalidObservations:
        raise
    except (InputError, pa.ArrowInvalid) as error:
        row = error.details.get("row") if isinstance(error, InputError) else None
        words, place = str(error).replace(f" in row {row}", ""), "some row"
        if row is not None:
            place = f"row {row}"
        raise InvalidObservations(
            f"{source!r} has no time in {place}: {words}",
            remedy="csv_times epoch" if csv is not None and is_text(columns[0].type) else "epoch",
            expected="times",
            column=source,
            **({} if row is None else {"row": row}),
        ) from error


def _from_epoch(column: pa.Array, unit_us: int, *, name: str) -> pa.Array:
    is_exact = pa.types.is_integer(column.type)
    numbers = column if is_exact else convert(column, "float", name=name)
    limit = TIME_MAX_US // unit_us + 1
    outside = pc.fill_null(
        pc.greater(pc.abs(pc.cast(numbers, pa.float64(), safe=False)), limit), False
    )
    if pc.any(outside).as_py():
        wrong = outside.index(pa.scalar(True)).as_py()
        raise InvalidObservations(
            f"expected numbers of times of the years 1 to 9999 in {name!r}, got "
            f"{column[wrong].as_py()} in row {wrong}",
            remedy="missing_value",
            number=str(column[wrong].as_py()),
            row=wrong,
            column=name,
        )
    whole = numbers if is_exact else pc.floor(numbers)
    micros = pc.multiply(pc.cast(whole, pa.int64()), unit_us)
    if not is_exact:
        rest = pc.round(pc.multiply(pc.subtract(numbers, whole), float(unit_us)))
        micros = pc.add(micros, pc.cast(rest, pa.int64()))
    return pc.cast(micros, TIME_TYPE)


def _from_parts(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.Array:
    if not 3 <= len(columns) <= len(TIME_PARTS):
        raise InvalidObservations(
            f"expected time columns for {', '.join(TIME_PARTS)} in this order, at least the "
            f"first three, got {', '.join(names)}",
            expected="time_parts",
        )
    parts = np.zeros((len(TIME_PARTS), len(columns[0])))
    for part, column, name in zip(parts, columns, names, strict=False):
        part[:] = convert(column, "float", name=name).to_numpy(zero_copy_only=False)
    known = ~np.isnan(parts).any(axis=0)
    parts[:, ~known] = [[1970.0], [1.0], [1.0], [0.0], [0.0], [0.0]]
    return pa.array(_calendar(parts), mask=~known).cast(TIME_TYPE)


def _calendar(parts: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Microseconds of year, month, day, hour, minute, second.

    A day, an hour or a minute may have a fraction where all parts after it are 0.
    """
    low, end = np.array(_PART_RANGES).T[..., np.newaxis]
    wrong = ((parts < low) | (parts >= end)).any(axis=0)
    for place, part in enumerate(parts[:-1]):
        is_followed = np.any([later != 0 for later in parts[max(place, DAY) + 1 :]], axis=0)
        wrong |= (part != np.floor(part)) & (is_followed | (place < DAY))
    whole = [np.where(wrong, 1.0, np.floor(part)).astype(np.int64) for part in parts[:3]]
    first = ((whole[0] - 1970) * 12 + whole[1] - 1).astype("datetime64[M]")
    date = first.astype("datetime64[D]") + (whole[2] - 1)
    wrong |= date.astype("datetime64[M]") != first
    if wrong.any():
        row = int(np.argmax(wrong))
        values: Any = [float(part[row]) for part in parts]
        raise InvalidObservations(
            f"expected year, month, day, hour, minute and second of a time in row {row}, "
            f"got {', '.join(f'{value:g}' for value in values)}",
            row=row,
            expected="time_parts",
        )
    days, hours, minutes, seconds = (parts[DAY] - whole[DAY], *parts[DAY + 1 :])
    clock_s = days * 86_400 + hours * 3600 + minutes * 60 + seconds
    midnight = date.astype("datetime64[us]").astype(np.int64)
    micros: npt.NDArray[np.int64] = midnight + np.round(clock_s * MICROS).astype(np.int64)
    return micros
