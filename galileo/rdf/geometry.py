"""Functions of GeoSPARQL that measure and make geometries, for oxigraph to call.

oxigraph itself has the relations (`sfIntersects`, `ehCovers`, `rcc8po` and the like) and what one
geometry says about itself (`envelope`, `centroid`, `asGeoJSON` and more). What is here it lacks.

Geometries are longitude and latitude in degrees on a sphere; their edges are straight in
degrees, as those of cells are. Lengths and areas are exact for cells and for points. Distances
between shapes, and buffers, are taken on a plane that is true at the latitude of the nearest
points: below 1 % off for shapes within a few hundred kilometres of each other.

This file is run within the worker and imports nothing of Galileo. An error makes the value of
the function an error of SPARQL: the solution is dropped by a filter, a variable stays unbound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyoxigraph as ox
import shapely
from shapely import affinity

GEO = "http://www.opengis.net/ont/geosparql#"
GEOF = "http://www.opengis.net/def/function/geosparql/"
OGC_UNIT = "http://www.opengis.net/def/uom/OGC/1.0/"
QUDT_UNIT = "http://qudt.org/vocab/unit/"
CRS84 = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
EPSG4326 = "http://www.opengis.net/def/crs/EPSG/0/4326"

RADIUS_M = 6_371_008.8
PARSED_MAX = 65_536
STEP_DEGREES = 0.25
"""Edges that are no meridians or parallels are measured in pieces of at most this length."""
ROUNDS = 3
TURN = 360.0

METRES = {
    f"{OGC_UNIT}metre": 1.0,
    f"{QUDT_UNIT}M": 1.0,
    f"{QUDT_UNIT}KiloM": 1_000.0,
    f"{QUDT_UNIT}CentiM": 0.01,
    f"{QUDT_UNIT}MilliM": 0.001,
    f"{QUDT_UNIT}MI": 1_609.344,
    f"{QUDT_UNIT}MI_N": 1_852.0,
    f"{QUDT_UNIT}FT": 0.3048,
}
DEGREES = {
    f"{OGC_UNIT}degree": 1.0,
    f"{QUDT_UNIT}DEG": 1.0,
    f"{OGC_UNIT}radian": 180 / math.pi,
    f"{QUDT_UNIT}RAD": 180 / math.pi,
}
SQUARE_METRES = {
    **{iri: metres**2 for iri, metres in METRES.items() if iri.startswith(OGC_UNIT)},
    f"{QUDT_UNIT}M2": 1.0,
    f"{QUDT_UNIT}KiloM2": 1e6,
    f"{QUDT_UNIT}HA": 1e4,
}
KILOMETRES_A_DEGREE = RADIUS_M * math.pi / 180 / 1_000

Shape = Any
"""A shapely geometry; shapely has no type that all functions agree on."""


# --- terms -----------------------------------------------------------------------------------


def shape_of(term: Any) -> Shape:
    """The geometry of a WKT or GeoJSON literal, longitude first; ValueError for other terms."""
    if not isinstance(term, ox.Literal):
        raise ValueError(f"expected a geometry, got {term}")
    return _parsed(term.value, term.datatype.value)


@lru_cache(maxsize=PARSED_MAX)
def _parsed(text: str, datatype: str) -> Shape:
    if datatype == f"{GEO}geoJSONLiteral":
        return shapely.from_geojson(text)
    if datatype != f"{GEO}wktLiteral":
        raise ValueError(f"expected a literal of geo:wktLiteral, got one of {datatype}")
    crs, text = _without_crs(text)
    shape = shapely.from_wkt(text)
    if crs == EPSG4326:  # latitude first
        return shapely.transform(shape, lambda at: at[:, ::-1])
    if crs != CRS84:
        raise ValueError(f"expected {CRS84}, got {crs}")
    return shape


def _without_crs(text: str) -> tuple[str, str]:
    text = text.strip()
    if not text.startswith("<"):
        return CRS84, text
    crs, _, rest = text[1:].partition(">")
    return crs, rest.strip()


def _wkt(shape: Shape) -> ox.Literal:
    text = str(shapely.to_wkt(shape, rounding_precision=-1))
    return ox.Literal(text, datatype=ox.NamedNode(f"{GEO}wktLiteral"))


def _number(term: Any) -> float:
    if not isinstance(term, ox.Literal):
        raise ValueError(f"expected a number, got {term}")
    return float(term.value)


def _unit(units: dict[str, float], term: Any) -> float | None:
    """The factor of a unit among these; None: it is none of them."""
    text = term.value if isinstance(term, ox.NamedNode | ox.Literal) else ""
    return units.get(text)


# --- measures --------------------------------------------------------------------------------


def great_circle_m(from_: Any, to: Any) -> Any:
    """Metres between points given as rows of longitude and latitude."""
    a, b = np.radians(from_), np.radians(to)
    half = np.sin((b - a) / 2) ** 2
    chord = half[..., 1] + np.cos(a[..., 1]) * np.cos(b[..., 1]) * half[..., 0]
    return 2 * RADIUS_M * np.arcsin(np.sqrt(np.clip(chord, 0.0, 1.0)))


def distance_m(one: Shape, other: Shape) -> float:
    """Metres between the nearest points of two shapes, over the antimeridian, too."""
    shifted = (affinity.translate(other, turn) for turn in (0.0, TURN, -TURN))
    return min(_plane_distance_m(one, shape) for shape in shifted)


def _plane_distance_m(one: Shape, other: Shape) -> float:
    near = _nearest(one, other, squeeze=1.0)
    for _ in range(ROUNDS):
        latitude = np.radians(near[:, 1]).mean()
        near = _nearest(one, other, squeeze=max(math.cos(latitude), 1e-6))
    return float(great_circle_m(near[0], near[1]))


def _nearest(one: Shape, other: Shape, *, squeeze: float) -> Any:
    """The nearest points, where a degree of longitude is worth `squeeze` of one of latitude."""
    plane = [shapely.transform(shape, lambda at: at * (squeeze, 1.0)) for shape in (one, other)]
    line = shapely.shortest_line(*plane)
    return shapely.get_coordinates(line) / (squeeze, 1.0)


def area_m2(shape: Shape) -> float:
    """Square metres on the sphere: Lambert's cylinder keeps areas."""
    fine = shapely.segmentize(shape, STEP_DEGREES)

    def onto_cylinder(at: Any) -> Any:
        return np.column_stack([np.radians(at[:, 0]), np.sin(np.radians(at[:, 1]))])

    return float(shapely.area(shapely.transform(fine, onto_cylinder))) * RADIUS_M**2


def length_m(shape: Shape) -> float:
    """Metres along all lines, or along all rings of polygons."""
    lines = shapely.boundary(shape) if shapely.get_dimensions(shape) == 2 else shape
    total = 0.0
    for part in shapely.get_parts(shapely.segmentize(lines, STEP_DEGREES)):
        at = shapely.get_coordinates(part)
        total += float(great_circle_m(at[:-1], at[1:]).sum())
    return total


def buffer_m(shape: Shape, metres: float) -> Shape:
    """What lies within some metres of a shape."""
    latitude = math.radians(shapely.centroid(shape).y)
    squeeze = max(math.cos(latitude), 1e-6)
    plane = shapely.transform(shape, lambda at: at * (squeeze, 1.0))
    wide = shapely.buffer(plane, metres / 1_000 / KILOMETRES_A_DEGREE)
    return shapely.transform(wide, lambda at: at / (squeeze, 1.0))


# --- the functions ---------------------------------------------------------------------------


def _distance(one: Any, other: Any, unit: Any = None) -> ox.Literal:
    a, b = shape_of(one), shape_of(other)
    if unit is not None and (degrees := _unit(DEGREES, unit)):
        return ox.Literal(float(shapely.distance(a, b)) / degrees)
    return ox.Literal(distance_m(a, b) / _metres(METRES, unit))


def _area(shape: Any, unit: Any = None) -> ox.Literal:
    return ox.Literal(area_m2(shape_of(shape)) / _metres(SQUARE_METRES, unit))


def _length(shape: Any, unit: Any = None) -> ox.Literal:
    return ox.Literal(length_m(shape_of(shape)) / _metres(METRES, unit))


def _buffer(shape: Any, radius: Any, unit: Any = None) -> ox.Literal:
    plain, wide = shape_of(shape), _number(radius)
    if unit is not None and (degrees := _unit(DEGREES, unit)):
        return _wkt(shapely.buffer(plain, wide * degrees))
    return _wkt(buffer_m(plain, wide * _metres(METRES, unit)))


def _metres(units: dict[str, float], unit: Any) -> float:
    factor = 1.0 if unit is None else _unit(units, unit)
    if factor is None:
        raise ValueError(f"expected a unit of {sorted(units)}, got {unit}")
    return factor


def _relate(one: Any, other: Any, pattern: Any) -> ox.Literal:
    holds = shapely.relate_pattern(shape_of(one), shape_of(other), pattern.value)
    return ox.Literal(bool(holds))


def _geometry_n(shape: Any, number: Any) -> ox.Literal:
    """Counted from 1, as GeoSPARQL does."""
    parts = shapely.get_parts(shape_of(shape))
    at = int(number.value)
    if not 1 <= at <= len(parts):
        raise ValueError(f"expected a number from 1 to {len(parts)}, got {at}")
    return _wkt(parts[at - 1])


def _making(make: Callable[..., Shape]) -> Callable[..., ox.Literal]:
    return lambda *terms: _wkt(make(*map(shape_of, terms)))


def _bound(at: int) -> Callable[[Any], ox.Literal]:
    return lambda term: ox.Literal(float(shapely.bounds(shape_of(term))[at]))


_BY_NAME: dict[str, Callable[..., Any]] = {
    "distance": _distance,
    "metricDistance": lambda one, other: _distance(one, other),
    "area": _area,
    "metricArea": lambda shape: _area(shape),
    "length": _length,
    "metricLength": lambda shape: _length(shape),
    "perimeter": _length,
    "metricPerimeter": lambda shape: _length(shape),
    "buffer": _buffer,
    "metricBuffer": lambda shape, radius: _buffer(shape, radius),
    "intersection": _making(shapely.intersection),
    "union": _making(shapely.union),
    "difference": _making(shapely.difference),
    "symDifference": _making(shapely.symmetric_difference),
    "boundary": _making(shapely.boundary),
    "relate": _relate,
    "geometryN": _geometry_n,
    "numGeometries": lambda shape: ox.Literal(int(shapely.get_num_geometries(shape_of(shape)))),
    "minX": _bound(0),
    "minY": _bound(1),
    "maxX": _bound(2),
    "maxY": _bound(3),
}
FUNCTIONS = {ox.NamedNode(GEOF + name): function for name, function in _BY_NAME.items()}
"""By the name that queries call them."""
