"""Coordinate reference systems of requests and answers, and conversions between them.

Observations are stored in degrees of longitude and latitude on WGS 84. EPSG:4326 has the same
numbers with the latitude first. EPSG:3857 (Web Mercator) is a closed form of them: the sphere of
the WGS 84 semi-major axis, projected. The poles have no position in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from starlette.datastructures import Headers

from galileo.errors import InputError
from galileo.geo.regions import Floats

MERCATOR_RADIUS_M = 6_378_137.0
_NORTHING_MAX = 40.0
"""In radii. Beyond it, and long before, the latitude is 90 degrees in double precision."""
_DEPTH_MAX = 200
"""Nesting of a filter; 64 levels of operators and a geometry have less."""

_GEOGRAPHIC = (
    'GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],'
    'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]'
)


@dataclass(frozen=True, slots=True)
class Crs:
    """A coordinate reference system.

    Attributes:
        uri: its identifier.
        kind: of reference system in CoverageJSON.
        wkt: its definition.
        is_latitude_first: whether the first coordinate of a position is the one to the north.
        is_projected: whether coordinates are metres of Web Mercator rather than degrees.
    """

    uri: str
    kind: str
    wkt: str
    is_latitude_first: bool = False
    is_projected: bool = False

    @property
    def code(self) -> str:
        return self.uri.rpartition("/")[2]

    def to_degrees(self, positions: Floats) -> Floats:
        """Longitudes and latitudes, shape (k, 2), of positions in this system."""
        x, y = positions[:, ::-1].T if self.is_latitude_first else positions.T
        if self.is_projected:
            north = np.clip(y / MERCATOR_RADIUS_M, -_NORTHING_MAX, _NORTHING_MAX)
            x, y = np.degrees(x / MERCATOR_RADIUS_M), np.degrees(np.arctan(np.sinh(north)))
        return np.stack([x, y], axis=1)

    def from_degrees(self, longitude: Floats, latitude: Floats) -> tuple[Floats, Floats]:
        """East and north coordinates; infinite to the north for a pole in Web Mercator."""
        if not self.is_projected:
            return longitude, latitude
        north = np.arcsinh(np.tan(np.radians(latitude)))
        north = np.where(np.abs(latitude) == 90, np.copysign(np.inf, latitude), north)
        return np.radians(longitude) * MERCATOR_RADIUS_M, north * MERCATOR_RADIUS_M

    def positions(self, table: pa.Table) -> pa.Table:
        """Observations whose columns longitude and latitude are the coordinates in this order."""
        if self is CRS84:
            return table
        degrees = (table.column(name).to_numpy() for name in ("longitude", "latitude"))
        first, second = self.from_degrees(*degrees)
        if self.is_latitude_first:
            first, second = second, first
        for name, values in (("longitude", first), ("latitude", second)):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(name), pa.array(values))
        return table

    def filter_in_degrees(self, tree: Any) -> Any:
        """A filter as CQL2 JSON values, with its geometries in degrees; edges stay straight there.

        Raises:
            InputError: it is nested too deep, or coordinates are not numbers.
        """
        return tree if self is CRS84 else self._converted(tree, _DEPTH_MAX)

    def _converted(self, tree: Any, depth: int) -> Any:
        if depth == 0:
            raise InputError("expected a filter of fewer levels", parameter="filter")
        if isinstance(tree, list):
            return [self._converted(item, depth - 1) for item in tree]
        if not isinstance(tree, dict):
            return tree
        if isinstance(bounds := tree.get("bbox"), list) and "type" not in tree:
            return {**tree, "bbox": self.box_in_degrees(_numbers(bounds))}
        if "coordinates" in tree:
            return {**tree, "coordinates": self._coordinates(tree["coordinates"], depth - 1)}
        return {name: self._converted(item, depth - 1) for name, item in tree.items()}

    def _coordinates(self, given: Any, depth: int) -> Any:
        if depth == 0 or not isinstance(given, list):
            raise InputError("expected lists of coordinates in the filter", parameter="filter")
        if not given:
            return given
        if not isinstance(given[0], list):
            return self.to_degrees(_positions([given]))[0].tolist()
        if given[0] and not isinstance(given[0][0], list):
            return self.to_degrees(_positions(given)).tolist()
        return [self._coordinates(item, depth - 1) for item in given]

    def box_in_degrees(self, bounds: list[float]) -> list[float]:
        """West, south, east and north of a box of four or six numbers, with heights ignored.

        Raises:
            InputError: it has another number of bounds.
        """
        if len(bounds) not in (4, 6):
            raise InputError(f"expected a box of four numbers, got {len(bounds)}", expected="box")
        half = len(bounds) // 2
        corners = np.array([bounds[:2], bounds[half : half + 2]], dtype=np.float64)
        box: list[float] = self.to_degrees(corners).ravel().tolist()
        return box


def _numbers(values: list[Any]) -> list[float]:
    if not all(isinstance(value, int | float) for value in values):
        raise InputError("expected numbers as the coordinates of a geometry", parameter="filter")
    return values


def _positions(values: list[Any]) -> Floats:
    """Positions of two coordinates; further ones are ignored."""
    if not all(isinstance(item, list) and len(item) in (2, 3) for item in values):
        raise InputError("expected positions of two coordinates", parameter="filter")
    try:
        return np.array([_numbers(item)[:2] for item in values], dtype=np.float64)
    except OverflowError as error:
        raise InputError("expected numbers that a double holds", parameter="filter") from error


CRS84 = Crs(
    "http://www.opengis.net/def/crs/OGC/1.3/CRS84",
    "GeographicCRS",
    f'{_GEOGRAPHIC},AXIS["Longitude",EAST],AXIS["Latitude",NORTH],AUTHORITY["OGC","CRS84"]]',
)
EPSG_4326 = Crs(
    "http://www.opengis.net/def/crs/EPSG/0/4326",
    "GeographicCRS",
    f'{_GEOGRAPHIC},AXIS["Latitude",NORTH],AXIS["Longitude",EAST],AUTHORITY["EPSG","4326"]]',
    is_latitude_first=True,
)
EPSG_3857 = Crs(
    "http://www.opengis.net/def/crs/EPSG/0/3857",
    "ProjectedCRS",
    f'PROJCS["WGS 84 / Pseudo-Mercator",{_GEOGRAPHIC},AUTHORITY["EPSG","4326"]],'
    'PROJECTION["Mercator_1SP"],PARAMETER["central_meridian",0],PARAMETER["scale_factor",1],'
    'PARAMETER["false_easting",0],PARAMETER["false_northing",0],UNIT["metre",1],'
    'AXIS["Easting",EAST],AXIS["Northing",NORTH],AUTHORITY["EPSG","3857"]]',
    is_projected=True,
)
ALL = (CRS84, EPSG_4326, EPSG_3857)
_SHORT = {CRS84: ("crs84", "ogc:crs84"), EPSG_4326: ("epsg:4326",), EPSG_3857: ("epsg:3857",)}
_BY_NAME: dict[str, Crs] = {
    name: crs
    for crs in ALL
    for name in (crs.uri.lower(), *_SHORT[crs], *(f"[{short}]" for short in _SHORT[crs]))
}


def crs_of(given: Mapping[str, str], parameter: str) -> Crs:
    """The system that a parameter names, by its URI or as EPSG:3857; CRS84 without one.

    Raises:
        InputError: another one is named.
    """
    text = given.get(parameter, CRS84.uri)
    crs = _BY_NAME.get(text.lower())
    if crs is None:
        raise InputError(
            f"expected {parameter} as one of {', '.join(one.uri for one in ALL)}, got {text!r}",
            parameter=parameter,
        )
    return crs


def body_crs(headers: Headers) -> Crs:
    """The system of the positions in a body, as its header `Content-Crs` names it; or CRS84.

    Raises:
        InputError: it names another one than those of answers.
    """
    named = ", ".join(headers.getlist("content-crs")).strip()
    name = named[1:-1] if named.startswith("<") and named.endswith(">") else named
    return crs_of({"Content-Crs": name} if named else {}, "Content-Crs")


def content_crs(crs: Crs) -> dict[str, str]:
    """The header that names the system of an answer (OGC API Features, part 2)."""
    return {"Content-Crs": f"<{crs.uri}>"}


def check_columns_crs(crs: Crs, format: str, *, parameter: str = "crs") -> None:
    """Raises InputError for a system that the columns longitude and latitude do not have."""
    if crs is not CRS84:
        raise InputError(
            f"expected geojson with {parameter} {crs.uri}, got {format}, whose columns longitude "
            f"and latitude are degrees; leave out {parameter}",
            parameter=parameter,
        )
