"""Geohash cells as integers, in arrays.

A cell of precision p (characters) is the 5·p-bit number that its base-32 text spells, most
significant character first, so that the order of numbers is the order of texts and every
prefix is one contiguous range. Precisions 1 to 12 fit (60 bits).

Source: G. Niemeyer, geohash.org (2008); bit order longitude first.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pygeohash

from galileo.errors import InputError

PRECISION_MAX = 12
ALPHABET = b"0123456789bcdefghjkmnpqrstuvwxyz"

Cells = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_LETTERS = np.frombuffer(ALPHABET, dtype=np.uint8)
_DIGIT_OF = {chr(letter): digit for digit, letter in enumerate(ALPHABET)}
_DIGITS = np.full(256, 255, dtype=np.uint8)
_DIGITS[_LETTERS] = np.arange(32, dtype=np.uint8)


def encode(latitude: npt.ArrayLike, longitude: npt.ArrayLike, precision: int) -> Cells:
    """Cells of points; latitude in [-90, 90], longitude in [-180, 180], both in degrees.

    The upper edges (90, 180) belong to the last cell. The caller rejects out-of-range values
    (`model.observations` does).
    """
    _check_precision(precision)
    lon_bits, lat_bits = _bits(precision)
    x = _axis_index(np.asarray(longitude, dtype=np.float64), extent=360.0, bits=lon_bits)
    y = _axis_index(np.asarray(latitude, dtype=np.float64), extent=180.0, bits=lat_bits)
    return _interleave(x, y, precision)


def bounds(cells: npt.ArrayLike, precision: int) -> tuple[Floats, Floats, Floats, Floats]:
    """(west, south, east, north) of cells in degrees, exact in double precision."""
    lon_bits, lat_bits = _bits(precision)
    x, y = _deinterleave(np.asarray(cells, dtype=np.uint64), precision)
    width, height = 360.0 / (1 << lon_bits), 180.0 / (1 << lat_bits)
    west = x.astype(np.float64) * width - 180.0
    south = y.astype(np.float64) * height - 90.0
    return west, south, west + width, south + height


def cells_intersecting_bbox(
    west: float, south: float, east: float, north: float, precision: int
) -> Cells:
    """The cells that share a point with a box within ±180 and ±90, and some near it; ascending."""
    return cells_of_grid(*_rows_and_columns(west, south, east, north, precision), precision)


def grid_shape(precision: int) -> tuple[int, int]:
    """The number of columns of cells around the earth, and of rows from pole to pole."""
    lon_bits, lat_bits = _bits(precision)
    return 1 << lon_bits, 1 << lat_bits


def cells_of_grid(columns: tuple[int, int], rows: tuple[int, int], precision: int) -> Cells:
    """The cells of half-open ranges of columns and rows, counted from the south-west; ascending."""
    x, y = np.arange(*columns, dtype=np.uint64), np.arange(*rows, dtype=np.uint64)
    cells = _interleave(np.tile(x, len(y)), np.repeat(y, len(x)), precision)
    cells.sort()
    return cells


def count_cells_intersecting_bbox(
    west: float, south: float, east: float, north: float, precision: int
) -> int:
    """The number of cells of `cells_intersecting_bbox`."""
    columns, rows = _rows_and_columns(west, south, east, north, precision)
    return (columns[1] - columns[0]) * (rows[1] - rows[0])


def to_text(cells: npt.ArrayLike, precision: int) -> pa.StringArray:
    """Geohash texts of cells, as an Arrow string array."""
    values = np.asarray(cells, dtype=np.uint64)
    shifts = np.arange(5 * (precision - 1), -1, -5, dtype=np.uint64)
    letters = _LETTERS[((values[:, None] >> shifts) & np.uint64(31)).astype(np.intp)]
    offsets = np.arange(0, (len(values) + 1) * precision, precision, dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(values), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters))
    )


def from_text(texts: npt.ArrayLike | list[str]) -> Cells:
    """Cells of geohash texts that all have one length.

    Raises:
        InputError: a text has another length or an invalid character.
    """
    items = np.asarray(texts, dtype=np.str_)
    if items.size == 0:
        return np.empty(0, dtype=np.uint64)
    precision = int(np.char.str_len(items).max())
    _check_precision(precision)
    raw = np.char.encode(np.char.ljust(items, precision), "utf-8").astype(f"S{precision}")
    digits = _DIGITS[raw.view(np.uint8).reshape(len(items), precision)]
    if (digits == 255).any():
        bad = str(items[int(np.argmax((digits == 255).any(axis=1)))])
        raise _invalid_geohash(bad, precision)
    shifts = np.arange(5 * (precision - 1), -1, -5, dtype=np.uint64)
    packed: Cells = (digits.astype(np.uint64) << shifts).sum(axis=1, dtype=np.uint64)
    return packed


def _invalid_geohash(text: str, precision: int) -> InputError:
    return InputError(
        f"expected a geohash of {precision} characters from {ALPHABET.decode()}, "
        f"got {text!r}; use lower case, without the letters a, i, l and o",
        expected="geohash",
    )


def cell_from_text(text: str) -> int:
    """The cell of one geohash text; its precision is the text's length.

    Raises:
        InputError: it is too long, or has an invalid character.
    """
    _check_precision(len(text))
    cell = 0
    for letter in text:
        digit = _DIGIT_OF.get(letter)
        if digit is None:
            raise _invalid_geohash(text, len(text))
        cell = cell << 5 | digit
    return cell


def prefix_range(prefix: str, precision: int) -> tuple[int, int]:
    """Half-open range of the cells of `precision` that start with `prefix` (may be empty)."""
    if len(prefix) > precision:
        raise InputError(
            f"expected a prefix of at most {precision} characters, got {prefix!r}",
            expected="geohash_prefix",
            bound=precision,
        )
    start = cell_from_text(prefix) if prefix else 0
    shift = 5 * (precision - len(prefix))
    return start << shift, (start + 1) << shift


def coarsen(cells: npt.ArrayLike, precision: int, coarse: int) -> Cells:
    """Cells of a lower precision that contain the given ones."""
    return np.asarray(cells, dtype=np.uint64) >> np.uint64(5 * (precision - coarse))


def neighbors(text: str) -> dict[str, str | None]:
    """The eight neighbours of a cell by compass point; None beyond a pole.

    East and west wrap over the antimeridian.
    """
    _check_precision(len(text))
    rows = {"n": _step(text, "top"), "": text, "s": _step(text, "bottom")}
    around: dict[str, str | None] = {}
    for name, row in rows.items():
        around[name + "e"] = _step(row, "right") if row else None
        around[name + "w"] = _step(row, "left") if row else None
        if name:
            around[name] = row
    return around


def _step(text: str, direction: str) -> str | None:
    if direction in ("top", "bottom") and _at_pole(text, north=direction == "top"):
        return None
    adjacent: str = pygeohash.get_adjacent(text, direction)
    return adjacent


def _at_pole(text: str, *, north: bool) -> bool:
    box = pygeohash.get_bounding_box(text)
    return bool(box.max_lat == 90.0 if north else box.min_lat == -90.0)


def _check_precision(precision: int) -> None:
    if not 1 <= precision <= PRECISION_MAX:
        raise InputError(
            f"expected a geohash precision from 1 to {PRECISION_MAX}, got {precision}",
            expected="precision",
            bound=PRECISION_MAX,
        )


def _bits(precision: int) -> tuple[int, int]:
    total = 5 * precision
    return (total + 1) // 2, total // 2


def _rows_and_columns(
    west: float, south: float, east: float, north: float, precision: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Half-open ranges of the columns and rows of the grid that intersect a box."""
    lon_bits, lat_bits = _bits(precision)
    columns = _axis_span(west, east, extent=360.0, bits=lon_bits)
    return columns, _axis_span(south, north, extent=180.0, bits=lat_bits)


def _axis_span(low: float, high: float, *, extent: float, bits: int) -> tuple[int, int]:
    """The cells along one axis that share a point with [low, high], with a margin for rounding."""
    count = 1 << bits
    first = math.floor((low - _NEAR + extent / 2) * count / extent)
    last = math.floor((high + _NEAR + extent / 2) * count / extent)
    return min(max(first, 0), count - 1), min(max(last, 0), count - 1) + 1


_NEAR = 1e-9
"""Degrees, 0.1 mm: far above the rounding error."""


def _axis_index(values: Floats, *, extent: float, bits: int) -> Cells:
    """Cell number along one axis, exactly as by repeated bisection.

    Scaling can round across the edge of a cell; the edges are exact doubles, so one comparison on
    either side corrects it.
    """
    count = 1 << bits
    step = extent / count
    index = np.clip(np.floor((values + extent / 2) / step), 0, count - 1)
    index -= values < index * step - extent / 2
    index += values >= (index + 1) * step - extent / 2
    clipped: Cells = np.clip(index, 0, count - 1).astype(np.uint64)
    return clipped


def _interleave(x: Cells, y: Cells, precision: int) -> Cells:
    """Interleave the bits; longitude has the most significant one, so the parity of 5·precision
    decides.
    """
    if precision % 2:
        return _spread(x) | (_spread(y) << np.uint64(1))
    return (_spread(x) << np.uint64(1)) | _spread(y)


def _deinterleave(cells: Cells, precision: int) -> tuple[Cells, Cells]:
    low, high = _gather(cells), _gather(cells >> np.uint64(1))
    return (low, high) if precision % 2 else (high, low)


_MASKS = [
    (16, 0x0000FFFF0000FFFF),
    (8, 0x00FF00FF00FF00FF),
    (4, 0x0F0F0F0F0F0F0F0F),
    (2, 0x3333333333333333),
    (1, 0x5555555555555555),
]


def _spread(values: Cells) -> Cells:
    """Moves bit i to bit 2·i."""
    for shift, mask in _MASKS:
        values = (values | (values << np.uint64(shift))) & np.uint64(mask)
    return values


def _gather(values: Cells) -> Cells:
    """Moves bit 2·i to bit i, dropping the odd ones."""
    values = values & np.uint64(0x5555555555555555)
    shifts = [1, 2, 4, 8, 16]
    masks = [*[m for _, m in reversed(_MASKS)][1:], 0x00000000FFFFFFFF]
    for shift, mask in zip(shifts, masks, strict=True):
        values = (values | (values >> np.uint64(shift))) & np.uint64(mask)
    return values
