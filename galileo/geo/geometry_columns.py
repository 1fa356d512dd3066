"""Columns of geometries, each of which a query takes as a literal.

They are stored as WKB in one form (`wkb.encode`) and given in many. A geometry is accepted if
`regions.from_geojson` accepts it, which reads the literals of queries. What most geometries are is
tested in arrays; `from_geojson` itself judges all others, and says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely
from shapely import GeometryType

from galileo.arrays import plain
from galileo.errors import InputError
from galileo.geo import regions, wkb
from galileo.geo.regions import KINDS, LATITUDE_MAX, LONGITUDE_MAX, VERTICES_MAX, Mask
from galileo.geo.wkb import Objects, Shapes, WkbColumn

PIECE_ROWS = 65_536
PIECE_BYTES = 1 << 20
"""Bytes that are parsed together; in memory, empty rings take ninety times as many."""
WKT_DECIMALS = 30
"""GEOS rounds numbers to so many; it writes no more digits than a number needs."""

# GEOS parses collections by recursion, so they do not reach it.
_WKT = (
    rf"(?i)^\s*(?:{'|'.join(KINDS)})\s*(?:ZM?|M)?\s*"
    r"(?:EMPTY|\((?:[-+.,\dE\s()]|EMPTY)*\))\s*$"
)
_JSON_OBJECT = r"^\s*\{"
_BOX_NUMBERS = 4
_KIND_IDS = [GeometryType[kind.upper()] for kind in KINDS]
_WITHOUT_EMPTY_PARTS = (GeometryType.MULTIPOINT, GeometryType.MULTILINESTRING)


def to_stored(values: pa.ChunkedArray, *, is_sent: bool = False) -> pa.ChunkedArray:
    """The geometries of a column as they are stored; null stays null.

    Args:
        values: WKB (binary), WKT or GeoJSON geometries (text), or boxes (lists of west, south,
            east, north); extension types of these, too.
        is_sent: a client has sent them, which has called this function: they are WKB, and whether
            they are valid is not checked again. That may take time quadratic in the vertices: 40 s
            for a comb of 40,000, where others take some milliseconds.

    Raises:
        InputError: a geometry is malformed, empty, invalid, out of range or too large, which
            `details["row"]` names, or the type of the column has no geometries.
    """
    if is_sent and values.type != pa.binary():
        raise InputError(f"expected WKB, got {values.type} values", expected="column_type")
    pieces: list[pa.Array] = []
    row = 0
    for chunk in values.chunks:
        for piece in _pieces(_plain(chunk)):
            try:
                # What is not finite is refused, and raises flags of the processor before.
                with np.errstate(all="ignore"):
                    pieces.append(_stored(piece, is_sent=is_sent))
            except InputError as error:
                if "row" in error.details:
                    error.details["row"] += row
                raise
            row += len(piece)
    return pa.chunked_array(pieces, pa.binary())


def to_shapes(stored: pa.Array | pa.ChunkedArray) -> Shapes:
    """The shapes of a stored column."""
    if isinstance(stored, pa.ChunkedArray):
        objects = stored.to_numpy()
    else:
        objects = stored.to_numpy(zero_copy_only=False)
    shapes: Shapes = shapely.from_wkb(objects)
    return shapes


def to_wkt(stored: pa.Array | pa.ChunkedArray, *, decimals: int = WKT_DECIMALS) -> pa.Array:
    """The WKT of a stored column, with all digits unless there are to be fewer decimals."""
    texts = shapely.to_wkt(to_shapes(stored), rounding_precision=decimals)
    return pa.array(texts, pa.string())


def to_geojson(stored: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The GeoJSON of a stored column, with all digits."""
    return pa.array(shapely.to_geojson(to_shapes(stored)), pa.string())


def _plain(chunk: pa.Array) -> pa.Array:
    """The values of a chunk, without extension, dictionary, runs and views."""
    chunk = plain(chunk)
    kind = chunk.type
    if pa.types.is_fixed_size_binary(kind):
        return chunk.cast(pa.large_binary())
    if pa.types.is_fixed_size_list(kind):
        return chunk.cast(pa.list_(kind.value_type))
    return chunk


def _pieces(chunk: pa.Array) -> Iterator[pa.Array]:
    """Parts of a chunk that are small enough to be parsed at once."""
    is_large = len(chunk) > PIECE_ROWS or chunk.nbytes > PIECE_BYTES
    if is_large and len(chunk) > 1:
        half = len(chunk) // 2
        yield from _pieces(chunk.slice(0, half))
        yield from _pieces(chunk.slice(half))
    else:
        yield chunk


def _stored(piece: pa.Array, *, is_sent: bool) -> pa.Array:
    """The geometries of a piece as they are stored; errors as `to_stored`."""
    kind = piece.type
    if pa.types.is_null(kind):
        return piece.cast(pa.binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        column = WkbColumn(piece)
        shapes = column.parse()
        is_canonical = column.is_canonical(shapes)
        stored = piece.cast(pa.binary()) if is_canonical else wkb.encode(shapes)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        shapes = _from_texts(piece)
        stored = wkb.encode(shapes)
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_number(kind.value_type):
        shapes = _from_boxes(piece)
        stored = wkb.encode(shapes)
    else:
        raise InputError(
            f"expected WKB, WKT, or boxes of west, south, east, north, got {kind} values",
            expected="column_type",
        )
    wkb.check_items(shapes, stored)
    has_changed = _judge_doubtful(shapes, is_sent=is_sent)
    return wkb.encode(shapes) if has_changed else stored


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _from_texts(piece: pa.Array) -> Shapes:
    """The shapes of WKT and GeoJSON."""
    wkb.check_sizes(wkb.sizes_of(piece))
    is_json = _matches(piece, _JSON_OBJECT)
    wkb.refuse(
        np.asarray(piece.is_valid()) & ~is_json & ~_matches(piece, _WKT),
        lambda row: (
            f"expected WKT of a {', '.join(map(str.upper, KINDS))}, or GeoJSON, got "
            f"{piece[row].as_py()!r:.100}"
        ),
        "geometry_type",
    )
    texts: Objects = piece.to_numpy(zero_copy_only=False)
    texts[is_json] = None
    shapes: Shapes = shapely.from_wkt(texts, on_invalid="ignore")
    wkb.check_parsed(shapes, texts, shapely.from_wkt)
    for row in np.flatnonzero(is_json).tolist():
        shapes[row] = _of_row(row, _from_geojson, piece[row].as_py())
    return shapes


def _matches(texts: pa.Array, pattern: str) -> Mask:
    return np.asarray(pc.match_substring_regex(texts, pattern).fill_null(False))


def _from_geojson(text: str) -> shapely.Geometry:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"expected GeoJSON, got {text!r:.100}: {error}", expected="geojson"
        ) from error
    return regions.shape_from_geojson(raw)


def _from_boxes(piece: pa.Array) -> Shapes:
    """The shapes of lists of west, south, east and north."""
    lengths = np.asarray(pc.list_value_length(piece).fill_null(0), dtype=np.int64)
    numbers = piece.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False)
    starts = np.cumsum(lengths) - lengths
    shapes: Shapes = np.full(len(piece), None, dtype=object)
    boxes = np.flatnonzero(lengths == _BOX_NUMBERS)
    bounds = numbers[starts[boxes, None] + np.arange(_BOX_NUMBERS)].T
    west, south, east, north = bounds
    is_plain = _is_in_range(bounds) & (west < east) & (south < north)
    shapes[boxes[is_plain]] = shapely.box(*bounds[:, is_plain])
    others = np.asarray(piece.is_valid()) & shapely.is_missing(shapes)
    for row in np.flatnonzero(others).tolist():
        shapes[row] = _of_row(row, box_shape, piece[row].as_py())
    return shapes


def box_shape(bounds: list[float]) -> shapely.Geometry:
    """The shape of a box, as a geometry may have it; errors as `regions.from_box`.

    One across the antimeridian can end east of `LONGITUDE_MAX`; it is moved by a turn.
    """
    shape = regions.from_box(bounds).shape
    if shapely.bounds(shape)[2] <= LONGITUDE_MAX:
        return shape
    return shapely.transform(shape, lambda positions: positions - np.array([360.0, 0.0]))


def _judge_doubtful(shapes: Shapes, *, is_sent: bool) -> bool:
    """Replaces shapes by those that queries make of them, unless they are certainly the same.

    Returns:
        Whether there were any.

    Raises:
        InputError: queries refuse one; or a client has not replaced one that it has sent.
    """
    accepted = _is_certainly_placed(shapes)
    if not is_sent:
        accepted &= _is_valid(shapes)
    rows = np.flatnonzero(~accepted & ~shapely.is_missing(shapes)).tolist()
    for row in rows:
        shapes[row] = _of_row(row, _judged, shapes[row])
        if is_sent:
            raise InputError("expected a geometry without empty parts", expected="parts", row=row)
    return bool(rows)


def _is_certainly_placed(shapes: Shapes) -> Mask:
    """Mask of shapes that queries take as they are, if they are valid; they take others, too."""
    kinds, vertices = shapely.get_type_id(shapes), shapely.get_num_coordinates(shapes)
    placed: Mask = np.isin(kinds, _KIND_IDS) & _is_in_range(shapely.bounds(shapes).T)
    placed &= vertices <= VERTICES_MAX
    positions, rows = shapely.get_coordinates(shapes, return_index=True)
    placed[rows[~np.isfinite(positions).all(axis=1)]] = False
    of_parts = np.flatnonzero(np.isin(kinds, _WITHOUT_EMPTY_PARTS))
    parts, places = shapely.get_parts(shapes[of_parts], return_index=True)
    placed[of_parts[places[shapely.is_empty(parts)]]] = False
    return placed


def _is_valid(shapes: Shapes) -> Mask:
    """Mask of valid shapes, whatever their heights are."""
    valid: Mask = shapely.is_valid(shapes)
    others = np.flatnonzero(~valid)
    valid[others] = shapely.is_valid(shapely.force_2d(shapes[others]))
    return valid


def _judged(shape: shapely.Geometry) -> shapely.Geometry:
    """The shape that a query makes of one; errors as `regions.from_geojson`."""
    return regions.from_geojson(_drawn(shape)).shape


def _drawn(shape: shapely.Geometry) -> dict[str, Any]:
    """GeoJSON of a shape. Raises InputError if it has numbers that JSON has not."""
    if not np.isfinite(shapely.get_coordinates(shape)).all():
        raise InputError("expected finite coordinates", expected="finite_coordinates")
    drawn: dict[str, Any] = json.loads(shapely.to_geojson(shapely.force_2d(shape)))
    return drawn


def _is_in_range(bounds: Any) -> Mask:
    """Mask of the west, south, east and north that geometries may have; not of NaN."""
    west, south, east, north = bounds
    is_within: Mask = (west >= -LONGITUDE_MAX) & (east <= LONGITUDE_MAX)
    is_within &= (south >= -LATITUDE_MAX) & (north <= LATITUDE_MAX)
    return is_within


def _of_row(row: int, convert: Callable[[Any], Any], value: Any) -> Any:
    """The conversion of one value; its error names the row."""
    try:
        return convert(value)
    except InputError as error:
        error.details["row"] = row
        raise
