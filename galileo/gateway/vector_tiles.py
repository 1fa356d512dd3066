"""Vector tiles, encoded by columns.

Source: Mapbox Vector Tile Specification 2.1 (github.com/mapbox/vector-tile-spec), whose messages
are Protocol Buffers. Everything in a feature is a varint or a byte below 128, which is the varint
of itself. A feature is therefore a row of numbers, and a layer is a matrix of them that becomes
bytes at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

EXTENT = 4096
"""Width and height of a tile in its own coordinates, which go right and down."""
MEDIA_TYPE = "application/vnd.mapbox-vector-tile"

Ints: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.uint64]
Rectangles: TypeAlias = tuple[Ints, Ints, Ints, Ints]
"""Left, top, right and bottom, in coordinates of a tile."""

_LAYERS, _NAME, _FEATURES, _KEYS, _VALUES = 0x1A, 0x0A, 0x12, 0x1A, 0x22
_LAYER_EXTENT, _LAYER_VERSION, _VERSION = 0x28, 0x78, 2
_TAGS, _TYPE, _POLYGON, _GEOMETRY = 0x12, 0x18, 3, 0x22
_TEXT, _DOUBLE, _SINT, _BOOL = 0x0A, 0x19, 0x30, 0x38
_EXACT_MAX = 1 << 53
_MOVE_TO, _LINE_TO_3, _CLOSE_PATH = 1 << 3 | 1, 3 << 3 | 2, 1 << 3 | 7


def encode(layer: str, columns: Mapping[str, pa.Array], rectangles: Rectangles) -> bytes:
    """A tile with one layer of rectangles; no bytes for no rectangle, as the specification asks.

    Args:
        layer: its name.
        columns: attributes. Texts are ASCII, all of one length; other columns have numbers or
            bools, of which null and not finite ones are left out. A column with an integer beyond
            2**53 is one of doubles.
        rectangles: as many as each column has values.
    """
    if len(rectangles[0]) == 0:
        return b""
    values, numbers = _values(list(columns.values()))
    parts = [
        bytes([_LAYER_VERSION, _VERSION]),
        _sized(_NAME, layer.encode()),
        _features(numbers, rectangles),
        *(_sized(_KEYS, name.encode()) for name in columns),
        values,
        bytes([_LAYER_EXTENT]) + _varint(EXTENT),
    ]
    return _sized(_LAYERS, b"".join(parts))


def _features(numbers: Sequence[Ints], rectangles: Rectangles) -> bytes:
    """The features: their attributes by number, -1 for none, and their geometries."""
    left, top, right, bottom = rectangles
    count, zero = len(left), np.zeros_like(left)
    tags = np.empty((count, 2 * len(numbers)), dtype=np.int64)
    for key, column in enumerate(numbers):
        tags[:, 2 * key] = np.where(column < 0, -1, key)
        tags[:, 2 * key + 1] = column
    width, height = right - left, bottom - top
    commands = (_MOVE_TO, (left, top), _LINE_TO_3, (width, zero, zero, height, -width, zero))
    geometry = np.empty((count, 11), dtype=np.int64)
    geometry[:, [0, 3, 10]] = [_MOVE_TO, _LINE_TO_3, _CLOSE_PATH]
    geometry[:, [1, 2]] = np.stack([_zigzag(moved) for moved in commands[1]], axis=1)
    geometry[:, 4:10] = np.stack([_zigzag(moved) for moved in commands[3]], axis=1)
    tag_bytes = (_lengths(tags) * (tags >= 0)).sum(axis=1)
    geometry_bytes = _lengths(geometry).sum(axis=1)
    size = 1 + _lengths(tag_bytes) + tag_bytes + 2 + 1 + _lengths(geometry_bytes) + geometry_bytes
    rows = [
        *(_FEATURES, size, _TAGS, tag_bytes, *tags.T),
        *(_TYPE, _POLYGON, _GEOMETRY, geometry_bytes, *geometry.T),
    ]
    return _rows(rows, count)


def _values(columns: Sequence[pa.Array]) -> tuple[bytes, list[Ints]]:
    """The distinct values of a layer, and the number of the value in each row of each column."""
    columns = [_exact_in_doubles(column) for column in columns]
    encoded, numbers, start = list[bytes](), dict[int, Ints](), 0
    for kind in (
        pa.types.is_string,
        pa.types.is_floating,
        pa.types.is_integer,
        pa.types.is_boolean,
    ):
        alike = [at for at, column in enumerate(columns) if kind(column.type)]
        if not alike:
            continue
        together = pa.concat_arrays([columns[at] for at in alike])
        values = together.dictionary_encode()
        codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        if kind is pa.types.is_floating:
            finite = np.isfinite(together.fill_null(np.nan).to_numpy(zero_copy_only=False))
            codes = np.where(finite, codes, -1)
        codes = np.where(codes < 0, -1, codes + start)
        numbers.update(zip(alike, np.split(codes, len(alike)), strict=True))
        encoded.append(_encoded_values(values.dictionary))
        start += len(values.dictionary)
    return b"".join(encoded), [numbers[at] for at in range(len(columns))]


def _exact_in_doubles(column: pa.Array) -> pa.Array:
    """A column of integers as doubles where clients, which read doubles, round some anyway."""
    if not pa.types.is_integer(column.type):
        return column
    extremes = pc.min_max(column)
    is_exact = all(abs(extremes[end].as_py() or 0) <= _EXACT_MAX for end in ("min", "max"))
    return column if is_exact else column.cast(pa.float64(), safe=False)


def _encoded_values(values: pa.Array) -> bytes:
    count = len(values)
    if pa.types.is_string(values.type):
        letters = np.frombuffer(b"".join(values.cast(pa.binary()).to_pylist()), dtype=np.uint8)
        texts = letters.reshape(count, -1)
        length = texts.shape[1]
        return _rows([_VALUES, 2 + length, _TEXT, length, *texts.T], count)
    if pa.types.is_floating(values.type):
        rows = np.empty((count, 11), dtype=np.uint8)
        rows[:, :3] = [_VALUES, 9, _DOUBLE]
        rows[:, 3:] = values.to_numpy().astype("<f8").view(np.uint8).reshape(count, 8)
        return rows.tobytes()
    if pa.types.is_boolean(values.type):
        flags = values.to_numpy(zero_copy_only=False).astype(np.int64)
        return _rows([_VALUES, 2, _BOOL, flags], count)
    numbers = _zigzag(values.to_numpy().astype(np.int64))
    return _rows([_VALUES, 1 + _lengths(numbers), _SINT, numbers], count)


def _rows(slots: Sequence[int | npt.NDArray[np.integer]], count: int) -> bytes:
    """Rows of varints: a slot is one number of all rows, or one of each; negative ones are none."""
    matrix = np.empty((count, len(slots)), dtype=np.int64)
    for number, slot in enumerate(slots):
        matrix[:, number] = slot
    return _varints(matrix.ravel())


def _varints(numbers: Ints) -> bytes:
    """Base-128 varints of numbers; none of those below zero."""
    lengths = np.where(numbers < 0, 0, _lengths(numbers))
    places = np.arange(int(lengths.max(initial=1)))
    groups = (numbers[:, None] >> (7 * places)) & 0x7F
    groups |= (places < lengths[:, None] - 1) << 7
    return groups.astype(np.uint8)[places < lengths[:, None]].tobytes()


def _lengths(numbers: Ints) -> Ints:
    """The bytes of the varint of each number."""
    lengths, bound = np.ones_like(numbers), 1 << 7
    while bound < 1 << 63 and (larger := numbers >= bound).any():
        lengths += larger
        bound <<= 7
    return lengths


def _zigzag(numbers: Ints) -> Ints:
    """Small numbers for small magnitudes; of 63 bits."""
    return (numbers << 1) ^ (numbers >> 63)


def _varint(number: int) -> bytes:
    return _varints(np.array([number]))


def _sized(key: int, message: bytes) -> bytes:
    return bytes([key]) + _varint(len(message)) + message
