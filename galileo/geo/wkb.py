"""Well-known binary (WKB) of untrusted origin, parsed in arrays.

WKB (OGC 06-103r4, section 8) has many forms: both byte orders, heights and measures, by the flags
of PostGIS or the numbers of ISO. GEOS reads them all; but it parses parts of parts by recursion,
and thousands of them, nine bytes each, end the process. So they do not reach it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import shapely
from shapely.errors import ShapelyError

from galileo.errors import InputError
from galileo.geo.regions import KINDS, VERTICES_MAX, Mask

BYTES_MAX = 64 * VERTICES_MAX
"""Bytes of a geometry in any form; one of `VERTICES_MAX` vertices has fewer."""
ITEMS_MAX = 2 * VERTICES_MAX
"""Vertices, rings and parts of a geometry together; there can be many that are empty."""
FLAT_BYTES_MAX = 900
"""A shorter geometry has at most a hundred parts within each other."""

_POINT, _LINE, _POLYGON = 1, 2, 3
_HAS_Z, _HAS_M, _HAS_SRID, _KIND = 0x8000_0000, 0x4000_0000, 0x2000_0000, 0xFFFF
_HEADER_BYTES = 13
_SRIDS = (0, 4326)
_POLYGON_TYPES = (shapely.GeometryType.POLYGON, shapely.GeometryType.MULTIPOLYGON)

Objects: TypeAlias = npt.NDArray[np.object_]
"""Values of Python; None for null."""
Shapes: TypeAlias = npt.NDArray[np.object_]
"""Geometries of shapely; None for null."""
Sizes: TypeAlias = npt.NDArray[np.int64]
"""In bytes; 0 for null."""


class WkbColumn:
    """A column of WKB in any form.

    Args:
        column: of the type binary or large_binary.

    Attributes:
        is_there: mask of the rows with a geometry.
        sizes: bytes of each.
        orders: the byte order of each: 0 is big-endian, 1 little-endian.
        words: the kind of each with its flags.
        kinds: of each: 1 is a point.
        counts: of its vertices, rings or parts; something else of a point.
    """

    def __init__(self, column: pa.Array) -> None:
        self._column = column
        self.is_there: Mask = np.asarray(column.is_valid())
        self.sizes = sizes_of(column)
        heads = _first_bytes(column, _HEADER_BYTES)
        self.orders = heads[:, 0]
        self.words = self._numbers(heads[:, 1:5])
        self.kinds = (self.words & _KIND) % 1000
        has_srid = (self.words & _HAS_SRID).astype(np.bool_)
        self.counts = self._numbers(np.where(has_srid[:, np.newaxis], heads[:, 9:], heads[:, 5:9]))

    def _numbers(self, fields: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
        """Numbers of four bytes each, in the order of their geometry."""
        four = np.ascontiguousarray(fields)
        little, big = four.view("<u4")[:, 0], four.view(">u4")[:, 0]
        numbers: npt.NDArray[np.uint32] = np.where(self.orders == 1, little, big)
        return numbers

    def parse(self) -> Shapes:
        """The shapes.

        Raises:
            InputError: a geometry is malformed, too large or of another kind than `regions.KINDS`;
                `details["row"]` is its row.
        """
        check_sizes(self.sizes)
        kinds = self.kinds
        is_known = (self.orders <= 1) & (kinds >= _POINT) & (kinds <= len(KINDS))
        refuse(self.is_there & ~is_known, self._unknown_kind, "geometry_type")
        refuse(self.is_there & (kinds > _POINT) & (self.counts > ITEMS_MAX), too_many, "vertices")
        objects: Objects = self._column.to_numpy(zero_copy_only=False)
        is_deep = self.is_there & (kinds > _POLYGON) & (self.sizes > FLAT_BYTES_MAX)
        for row in np.flatnonzero(is_deep).tolist():
            is_deep[row] = not _has_flat_parts(objects[row])
        refuse(
            is_deep,
            lambda _: f"expected parts without parts, with at most {ITEMS_MAX:,} rings together",
            "coordinates",
        )
        shapes: Shapes = shapely.from_wkb(objects, on_invalid="ignore")
        check_parsed(shapes, objects, shapely.from_wkb)
        srids = shapely.get_srid(shapes)
        refuse(
            self.is_there & ~np.isin(srids, _SRIDS),
            lambda row: f"expected longitudes and latitudes (SRID 4326), got SRID {srids[row]}",
            "crs",
        )
        return shapes

    def _unknown_kind(self, row: int) -> str:
        head = self._column[row].as_py()[:16].hex(" ")
        return (
            f"expected WKB of a {', '.join(KINDS)}, got bytes that begin with {head or 'nothing'}"
        )

    def is_canonical(self, shapes: Shapes) -> bool:
        """Whether `encode` certainly gives the same bytes; False where a geometry has parts.

        Args:
            shapes: as of `parse`.
        """
        rings = 1 + shapely.get_num_interior_rings(shapes)
        counts = np.select(
            [self.words == _LINE, self.words == _POLYGON], [4, 4 + 4 * rings], default=0
        )
        sizes = 5 + counts + 16 * shapely.get_num_coordinates(shapes)
        has_no_parts = (self.orders == 1) & (self.words >= _POINT) & (self.words <= _POLYGON)
        return bool((~self.is_there | (has_no_parts & (self.sizes == sizes))).all())


def encode(shapes: Shapes) -> pa.Array:
    """Canonical WKB: little-endian, of two coordinates; null stays null."""
    encoded = shapely.to_wkb(shapes, byte_order=1, output_dimension=2, include_srid=False)
    return pa.array(encoded, pa.binary())


def refuse(is_wrong: Mask, message: Callable[[int], str], expected: str) -> None:
    """Raises InputError about the first row of a mask, if there is one."""
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise InputError(message(row), expected=expected, row=row)


def check_items(shapes: Shapes, canonical: pa.Array) -> None:
    """Raises InputError about the first geometry of more than `ITEMS_MAX` items.

    Args:
        shapes: of points, lines and polygons, or several of these.
        canonical: their WKB, as of `encode`.
    """
    vertices, parts = shapely.get_num_coordinates(shapes), shapely.get_num_geometries(shapes)
    of_polygons = np.isin(shapely.get_type_id(shapes), _POLYGON_TYPES)
    has_parts = shapely.get_type_id(shapes) == shapely.GeometryType.MULTIPOLYGON
    rings = (sizes_of(canonical) - 9 - 9 * parts * has_parts - 16 * vertices) // 4
    refuse(vertices + parts + rings * of_polygons > ITEMS_MAX, too_many, "vertices")


def _first_bytes(column: pa.Array, count: int) -> npt.NDArray[np.uint8]:
    """The first bytes of each value, zeros where it ends before; shape (k, count)."""
    zeros = pa.scalar(bytes(count), column.type)
    heads = pc.binary_slice(column, 0, count).fill_null(pa.scalar(b"", column.type))
    padded = pc.binary_join_element_wise(heads, zeros, pa.scalar(b"", column.type))
    _, packed = pc.binary_slice(padded, 0, count).cast(pa.binary(count)).buffers()
    return np.frombuffer(packed, np.uint8).reshape(-1, count)


def too_many(_: int = 0) -> str:
    """The message about a geometry with more than `VERTICES_MAX` vertices or `ITEMS_MAX` items."""
    return f"expected a geometry of at most {VERTICES_MAX:,} vertices; simplify it"


def sizes_of(column: pa.Array) -> Sizes:
    """The size of each value of a column of bytes or texts."""
    return np.asarray(pc.binary_length(column).fill_null(0), dtype=np.int64)


def check_sizes(sizes: Sizes) -> None:
    """Raises InputError about the first geometry that is too large to be parsed."""
    refuse(sizes > BYTES_MAX, too_many, "vertices")


def check_parsed(shapes: Shapes, objects: Objects, parse: Callable[[Any], Any]) -> None:
    """Raises InputError about the first object that `parse` could not parse to a shape."""

    def message(row: int) -> str:
        try:
            parse(objects[row])
        except (ShapelyError, ValueError, NotImplementedError) as error:
            return f"expected a geometry that can be parsed: {str(error).strip().rstrip('.')}"
        raise AssertionError("what fails in an array fails alone")

    refuse(shapely.is_missing(shapes) & ~shapely.is_missing(objects), message, "coordinates")


def _has_flat_parts(wkb: bytes) -> bool:
    """Whether all parts of a geometry are points, lines or polygons, and no more than `ITEMS_MAX`.

    False if its bytes end early. GEOS would parse parts of parts, whatever it says of them then.
    """
    try:
        _, order, _, at = _header(wkb, 0)
        (items,) = struct.unpack_from(order, wkb, at)
        at += 4
        for _ in range(items):
            kind, order, vertex_bytes, at = _header(wkb, at)
            if kind == _POINT:
                at += vertex_bytes
            elif kind == _LINE:
                at = _skip_vertices(wkb, order, vertex_bytes, at)
            elif kind == _POLYGON:
                (rings,) = struct.unpack_from(order, wkb, at)
                at, items = at + 4, items + rings
                if items > ITEMS_MAX:
                    return False
                for _ in range(rings):
                    at = _skip_vertices(wkb, order, vertex_bytes, at)
            else:
                return False
    except struct.error:
        return False
    return at <= len(wkb)


def _header(wkb: bytes, at: int) -> tuple[int, str, int, int]:
    """The kind, the format of counts, the bytes of a vertex and the end of a header, as GEOS reads
    it.
    """
    byte_order = wkb[at : at + 1]
    if byte_order not in (b"\0", b"\1"):
        raise struct.error("no byte order")
    order = "<I" if byte_order == b"\1" else ">I"
    (word,) = struct.unpack_from(order, wkb, at + 1)
    iso, kind = divmod(word & _KIND, 1000)
    has_z, has_m = bool(word & _HAS_Z) or iso in (1, 3), bool(word & _HAS_M) or iso in (2, 3)
    return kind, order, 8 * (2 + has_z + has_m), at + (9 if word & _HAS_SRID else 5)


def _skip_vertices(wkb: bytes, order: str, vertex_bytes: int, at: int) -> int:
    (vertices,) = struct.unpack_from(order, wkb, at)
    return at + 4 + int(vertices) * vertex_bytes
