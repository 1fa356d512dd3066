"""Vector tiles against a decoder in a loop, and the cells of tiles."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import galileo
from galileo.gateway.tile_matrix_sets import CELLS_MAX, PREFIXES_MAX, SETS, ZOOM_MAX, Tile
from galileo.gateway.vector_tiles import encode
from galileo.geo import geohash
from galileo.query import parse

Message = dict[int, list[Any]]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Message:
    """The fields of a message of Protocol Buffers by number."""
    found: Message = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value: Any
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        else:
            assert key & 7 == 2
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
            assert len(value) == size
        found.setdefault(key >> 3, []).append(value)
    return found


def numbers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


def signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def value_of(data: bytes) -> Any:
    [(number, [value])] = fields(data).items()
    readers: dict[int, Any] = {1: bytes.decode, 3: float, 6: signed, 7: bool}
    return readers[number](value)


def decoded(data: bytes) -> list[tuple[dict[str, Any], tuple[int, int, int, int]]]:
    """Attributes and rectangle of each feature."""
    [layer] = (fields(layer) for layer in fields(data)[3])
    assert (layer[15], layer[1], layer[5]) == ([2], [b"air"], [4096])
    keys, values = [key.decode() for key in layer[3]], [value_of(value) for value in layer[4]]
    return [(attributes(one, keys, values), rectangle(one)) for one in map(fields, layer[2])]


def attributes(feature: Message, keys: list[str], values: list[Any]) -> dict[str, Any]:
    tags = numbers(feature[2][0])
    return {keys[k]: values[v] for k, v in zip(tags[::2], tags[1::2], strict=True)}


def rectangle(feature: Message) -> tuple[int, int, int, int]:
    assert feature[3] == [3]
    move, x, y, lines, *rest, close = numbers(feature[4][0])
    assert (move, lines, close) == (9, 26, 15)
    moves = [(signed(a), signed(b)) for a, b in zip(rest[::2], rest[1::2], strict=True)]
    corners = [(signed(x), signed(y))]
    for across, down in moves:
        corners.append((corners[-1][0] + across, corners[-1][1] + down))
    area = sum(
        x0 * y1 - x1 * y0
        for (x0, y0), (x1, y1) in zip(corners, [*corners[1:], corners[0]], strict=True)
    )
    assert area > 0, "the specification's order of an exterior ring"
    left, right = min(x for x, _ in corners), max(x for x, _ in corners)
    top, bottom = min(y for _, y in corners), max(y for _, y in corners)
    assert {(left, top), (right, top), (right, bottom), (left, bottom)} == set(corners)
    return left, top, right, bottom


@pytest.mark.parametrize("seed", range(10))
def test_encoded_tile_is_what_a_loop_decodes(seed: int) -> None:
    rng, rows = np.random.default_rng(seed), 1 + 300 * seed
    left, top = rng.integers(-64, 4000, (2, rows))
    boxes = left, top, left + rng.integers(1, 160, rows), top + rng.integers(1, 160, rows)
    holes = rng.random((4, rows)) < 0.2
    wide = [2**53, -(2**53), 0, -1, 63, 64, -64, -65]
    columns = {
        "cell": geohash.to_text(rng.integers(0, 32**7, rows, dtype=np.uint64), 7),
        "observations": pa.array(rng.integers(0, 300, rows)),
        "mean": pa.array(np.round(rng.normal(size=rows), 1), mask=holes[0]),
        "max": pa.array(rng.choice([1.5, np.inf, -np.inf, np.nan, 0.0], rows), mask=holes[1]),
        "wet": pa.array(rng.random(rows) < 0.5, mask=holes[2]),
        "wide": pa.array(rng.choice(wide, rows), mask=holes[3]),
        "large": pa.array(rng.choice([2**63 - 1, -(2**63)], rows)),
        "nothing": pa.nulls(rows, pa.float64()),
    }
    found = decoded(encode("air", columns, boxes))
    assert [box for _, box in found] == list(zip(*(b.tolist() for b in boxes), strict=True))
    expected = pa.table(columns).to_pylist()
    for (row, _), whole in zip(found, expected, strict=True):
        kept = {
            name: value
            for name, value in whole.items()
            if value is not None and not (isinstance(value, float) and not np.isfinite(value))
        }
        kept["large"] = float(kept["large"])
        assert row == kept
        assert all(type(row[name]) is type(kept[name]) for name in row)


def test_tile_without_cells_is_empty() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    columns = {"cell": pa.array([], pa.string()), "observations": pa.array([], pa.int64())}
    assert encode("air", columns, (nothing, nothing, nothing, nothing)) == b""


def random_tiles(seed: int, count: int) -> list[Tile]:
    choice = random.Random(seed)
    zooms = [choice.randint(0, ZOOM_MAX) for _ in range(count)]
    return [
        Tile(tiles, zoom, choice.randrange(1 << zoom), choice.randrange(tiles.columns << zoom))
        for zoom in zooms
        for tiles in SETS.values()
    ]


def test_tiles_have_at_most_so_many_cells_which_their_condition_holds() -> None:
    schema = galileo.Schema("air", [galileo.Feature("t")], geohash_precision=12)
    corners = [
        Tile(tiles, zoom, row, column)
        for tiles in SETS.values()
        for zoom in (*range(6), 7, 12, ZOOM_MAX)
        for row in {0, (1 << zoom) // 2, (1 << zoom) - 1}
        for column in {0, (tiles.columns << zoom) - 1}
    ]
    for tile in [*random_tiles(1, 30), *corners]:
        across, down = tile.grid(tile.precision)
        cells = geohash.cells_of_grid(across, down, tile.precision)
        assert 0 < len(cells) <= CELLS_MAX
        assert tile.has_cells(cells).all()
        condition = tile.condition()
        if condition is None:
            continue
        query = parse(str(condition), schema)
        assert len(query.tree.prefixes) <= PREFIXES_MAX  # type: ignore[union-attr]
        west, south, east, north = geohash.bounds(cells, tile.precision)
        table = pa.table(
            {
                "latitude": (south + north) / 2,
                "longitude": (west + east) / 2,
                "time": pa.array(np.zeros(len(cells), dtype=np.int64), pa.timestamp("us", "UTC")),
            }
        )
        assert query.match_observations(table).all()


def test_cells_beyond_a_tile_are_not_of_it() -> None:
    for tile in random_tiles(2, 200):
        (first, last), (low, high) = tile.grid(tile.precision)
        columns, rows = geohash.grid_shape(tile.precision)
        around = geohash.cells_of_grid(
            (max(first - 1, 0), min(last + 1, columns)),
            (max(low - 1, 0), min(high + 1, rows)),
            tile.precision,
        )
        left, top, right, bottom = tile.rectangles(around)
        shown = tile.has_cells(around)
        beyond = (right <= 0) | (left >= 4096) | (bottom <= 0) | (top >= 4096)
        within = (right > 1) & (left < 4095) & (bottom > 1) & (top < 4095)
        assert not (shown & beyond & ~near(tile, around)).any()
        assert shown[within].all()


def near(tile: Tile, cells: Any) -> Any:
    """Cells of which less than a half unit lies in the tile, which rounding puts outside."""
    left, top, right, bottom = tile.rectangles(cells)
    return (right == 0) | (left == 4096) | (bottom == 0) | (top == 4096)
