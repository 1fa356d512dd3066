"""Tile matrix sets: how the earth is cut into tiles, and the cells that a tile shows.

Source: OGC Two Dimensional Tile Matrix Set and Tile Set Metadata 2.0 (17-083r4), annex D.

A tile shows whole geohash cells, so that a cell at an edge is the same in both tiles. The cells of
all tiles of a zoom have one precision.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.gateway.vector_tiles import EXTENT, Rectangles
from galileo.geo import geohash
from galileo.geo.geohash import Cells
from galileo.query.builder import Condition

ZOOM_MAX = 24
CELLS_MAX = 4_096
"""Cells of a tile."""
PREFIXES_MAX = 64
"""Geohash prefixes in the query for a tile."""
BUFFER = 64
"""Part of a cell beyond the edge of a tile that is drawn, in coordinates of the tile."""
_TILE_PIXELS = 256
_LATITUDE_MAX = 89.999
"""Mercator has no poles."""

Floats: TypeAlias = npt.NDArray[np.float64]
Span: TypeAlias = tuple[int, int]
"""A half-open range of columns or rows of geohash cells, from the south-west."""


@dataclass(frozen=True, slots=True)
class TileMatrixSet:
    """A tile matrix set over the whole earth, whose matrices double with each zoom.

    Attributes:
        id: its name.
        title: for people.
        crs: its coordinate reference system.
        axes: names of the axes.
        scale_set: its well-known scale set.
        columns: of the matrix of zoom 0.
        scale: denominator of zoom 0.
        cell_size: of a pixel of zoom 0, in units of the reference system.
        origin: of all matrices, their upper left corner.
        below: of latitudes: how far below the upper edge, as a part of a tile of zoom 0.
        latitude: the inverse of `below`.
    """

    id: str
    title: str
    crs: str
    axes: tuple[str, str]
    scale_set: str
    columns: int
    scale: float
    cell_size: float
    origin: tuple[float, float]
    below: Callable[[Floats], Floats]
    latitude: Callable[[float], float]

    @property
    def uri(self) -> str:
        return f"http://www.opengis.net/def/tilematrixset/OGC/1.0/{self.id}"

    def document(self, links: list[dict[str, str]]) -> dict[str, Any]:
        """Its definition."""
        return {
            "id": self.id,
            "title": self.title,
            "uri": self.uri,
            "crs": self.crs,
            "orderedAxes": list(self.axes),
            "wellKnownScaleSet": self.scale_set,
            "tileMatrices": [self._matrix(zoom) for zoom in range(ZOOM_MAX + 1)],
            "links": links,
        }

    def _matrix(self, zoom: int) -> dict[str, Any]:
        return {
            "id": str(zoom),
            "scaleDenominator": self.scale / 2**zoom,
            "cellSize": self.cell_size / 2**zoom,
            "cornerOfOrigin": "topLeft",
            "pointOfOrigin": list(self.origin),
            "tileWidth": _TILE_PIXELS,
            "tileHeight": _TILE_PIXELS,
            "matrixWidth": self.columns << zoom,
            "matrixHeight": 1 << zoom,
        }

    def has(self, zoom: int, row: int, column: int) -> bool:
        """Whether there is a tile."""
        return 0 <= zoom <= ZOOM_MAX and 0 <= row < 1 << zoom and 0 <= column < self.columns << zoom

    def precision(self, zoom: int) -> int:
        """The characters of the geohashes of the cells: the most with `CELLS_MAX` in any tile."""
        return _precision(self, zoom)


@functools.lru_cache(maxsize=128)
def _precision(tiles: TileMatrixSet, zoom: int) -> int:
    precision = 1
    while precision < geohash.PRECISION_MAX and _cells_max(tiles, zoom, precision + 1) <= CELLS_MAX:
        precision += 1
    return precision


def _cells_max(tiles: TileMatrixSet, zoom: int, precision: int) -> int:
    """The most cells of a tile: of one at the equator, and a row more, as edges may cut cells."""
    columns, rows = geohash.grid_shape(precision)
    across = math.ceil(columns / (tiles.columns << zoom))
    height = tiles.latitude(0.5 - 0.5**zoom) if zoom else 180
    down = min(math.ceil(height / (180 / rows)) + 1, rows)
    return across * down


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of a set.

    Attributes:
        tiles: the set.
        zoom: identifier of the matrix.
        row: from above.
        column: from the left.
    """

    tiles: TileMatrixSet
    zoom: int
    row: int
    column: int

    @property
    def precision(self) -> int:
        """Of its cells."""
        return self.tiles.precision(self.zoom)

    def grid(self, precision: int) -> tuple[Span, Span]:
        """The columns and rows of cells of which some part lies in the tile."""
        columns, rows = geohash.grid_shape(precision)
        width = columns / (self.tiles.columns << self.zoom)
        north, south = (
            (self.tiles.latitude(row / 2**self.zoom) + 90) / 180 * rows
            for row in (self.row, self.row + 1)
        )
        across = math.floor(self.column * width), math.ceil((self.column + 1) * width)
        return across, (max(math.floor(south), 0), min(math.ceil(north), rows))

    def has_cells(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Mask of the cells of the tile's precision that it shows."""
        (first, last), (low, high) = self.grid(self.precision)
        columns, rows = geohash.grid_shape(self.precision)
        west, south, _, _ = geohash.bounds(cells, self.precision)
        x, y = (west + 180) / (360 / columns), (south + 90) / (180 / rows)
        mask: npt.NDArray[np.bool_] = (first <= x) & (x < last) & (low <= y) & (y < high)
        return mask

    def condition(self) -> Condition | None:
        """A condition that all observations of its cells meet, and few others; None: no condition.

        It names cells that are larger than the tile's, so that they are few. A condition on whole
        cells, unlike one on a box, is decided without reading the observations at its edge.
        """
        for precision in range(self.precision, 0, -1):
            across, down = self.grid(precision)
            if (across[1] - across[0]) * (down[1] - down[0]) <= PREFIXES_MAX:
                break
        else:
            return None
        cells = geohash.cells_of_grid(across, down, precision)
        if len(cells) == 32**precision:
            return None
        likes = [
            {"op": "like", "args": [{"property": "geohash"}, f"{prefix}%"]}
            for prefix in geohash.to_text(cells, precision).to_pylist()
        ]
        return Condition(likes[0] if len(likes) == 1 else {"op": "or", "args": likes})

    def rectangles(self, cells: Cells) -> Rectangles:
        """The cells in coordinates of the tile, cut off beyond its buffer."""
        west, south, east, north = geohash.bounds(cells, self.precision)
        left, right = (
            (bound + 180) / 360 * (self.tiles.columns << self.zoom) - self.column
            for bound in (west, east)
        )
        top, bottom = (
            self.tiles.below(np.clip(bound, -_LATITUDE_MAX, _LATITUDE_MAX)) * 2**self.zoom
            - self.row
            for bound in (north, south)
        )
        clipped = [
            np.clip(np.rint(EXTENT * bound), -BUFFER, EXTENT + BUFFER).astype(np.int64)
            for bound in (left, top, right, bottom)
        ]
        return clipped[0], clipped[1], clipped[2], clipped[3]


def _mercator_below(latitude: Floats) -> Floats:
    y: Floats = 0.5 - np.arcsinh(np.tan(np.radians(latitude))) / (2 * np.pi)
    return y


def _mercator_latitude(below: float) -> float:
    return math.degrees(math.atan(math.sinh(math.pi * (1 - 2 * below))))


def _plate_below(latitude: Floats) -> Floats:
    y: Floats = (90 - latitude) / 180
    return y


def _plate_latitude(below: float) -> float:
    return 90 - 180 * below


WEB_MERCATOR = TileMatrixSet(
    id="WebMercatorQuad",
    title="Google Maps Compatible for the World",
    crs="http://www.opengis.net/def/crs/EPSG/0/3857",
    axes=("X", "Y"),
    scale_set="http://www.opengis.net/def/wkss/OGC/1.0/GoogleMapsCompatible",
    columns=1,
    scale=559082264.028717,
    cell_size=156543.033928041,
    origin=(-20037508.342789244, 20037508.342789244),
    below=_mercator_below,
    latitude=_mercator_latitude,
)
WORLD_CRS84 = TileMatrixSet(
    id="WorldCRS84Quad",
    title="CRS84 for the World",
    crs="http://www.opengis.net/def/crs/OGC/1.3/CRS84",
    axes=("Lon", "Lat"),
    scale_set="http://www.opengis.net/def/wkss/OGC/1.0/GoogleCRS84Quad",
    columns=2,
    scale=279541132.014358,
    cell_size=0.703125,
    origin=(-180.0, 90.0),
    below=_plate_below,
    latitude=_plate_latitude,
)
SETS = {tiles.id: tiles for tiles in (WEB_MERCATOR, WORLD_CRS84)}
"""By their ids."""
