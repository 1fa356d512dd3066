"""Binds conditions on `geometry` and `geohash`."""

from __future__ import annotations

import json
import math
from typing import Any

import shapely

from galileo.errors import InputError, UnsupportedQuery
from galileo.geo import geohash, regions
from galileo.geo.circles import HALFWAY_M, Circle
from galileo.geo.patterns import ANY, Pattern
from galileo.geo.regions import Region
from galileo.model.schema import Schema
from galileo.query.operands import GEOMETRY, is_property, property_ref, show_operand
from galileo.query.predicates import EVERYTHING, NOTHING, Node
from galileo.query.spatial_predicates import InCells, InPattern, InRegion, WithinDistance

FUNCTIONS = ("s_intersects", "s_within", "s_disjoint")
DISTANCES = ("dwithin", "s_dwithin")

_DISTANCE_FORM = "DWITHIN(geometry, POINT(-105 40), 50000)"


def bind_relation(function: str, args: list[Any], *, schema: Schema, negated: bool) -> Node:
    """A spatial function of `geometry` and a literal geometry.

    Raises:
        UnsupportedQuery: other operands.
        InputError: an invalid geometry.
    """
    left, right = args
    if not is_property(left) and is_property(right) and function != "s_within":
        left, right = right, left
    about = property_ref(left, schema)
    if about.name != GEOMETRY:
        raise UnsupportedQuery(
            f"{function.upper()} expects the property geometry, got {about.name!r}"
        )
    region, source = _region(right)
    return InRegion(
        source=source,
        region=region,
        precision=schema.geohash_precision,
        interior=function == "s_within",
        negated=negated != (function == "s_disjoint"),
    )


def bind_distance(function: str, args: list[Any], *, schema: Schema, negated: bool) -> Node:
    """A condition on the great-circle distance of `geometry` from a literal point, in metres.

    Raises:
        UnsupportedQuery: other operands, or a geometry that is not a point.
        InputError: an invalid point.
    """
    if len(args) != 3:
        raise UnsupportedQuery(
            f"expected 3 arguments of {function.upper()}, the distance in metres and without a "
            f"unit, got {len(args)}; write {_DISTANCE_FORM}"
        )
    left, right, distance = args
    if not is_property(left) and is_property(right):
        left, right = right, left
    about = property_ref(left, schema)
    if about.name != GEOMETRY:
        raise UnsupportedQuery(
            f"{function.upper()} expects the property geometry, got {about.name!r}"
        )
    longitude, latitude = _centre(right)
    circle = Circle(latitude=latitude, longitude=longitude, radius_m=_metres(distance))
    return WithinDistance(circle, schema.geohash_precision, negated)


def _centre(raw: Any) -> tuple[float, float]:
    """Longitude in [-180, 180] and latitude of a literal point."""
    region, _ = _region(raw)
    kind = raw.get("type", "BBOX")
    if kind != "Point":
        raise UnsupportedQuery(
            f"only the distance from a POINT is supported, got a {kind}; write {_DISTANCE_FORM}, "
            "or S_INTERSECTS with a larger region"
        )
    longitude, latitude = shapely.get_coordinates(region.shape)[0].tolist()
    turns = 360.0 * ((longitude > 180) - (longitude < -180))
    return longitude - turns + 0.0, latitude + 0.0


def _metres(raw: Any) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool) and 0 <= raw < math.inf:
        return float(min(raw, HALFWAY_M))
    raise UnsupportedQuery(
        f"expected a distance as a number of metres, at least 0, got {show_operand(raw)}; "
        f"write {_DISTANCE_FORM}"
    )


def _region(raw: Any) -> tuple[Region, str]:
    """The region of a literal, and its JSON text."""
    if isinstance(raw, dict) and isinstance(raw.get("bbox"), list):
        region = regions.from_box(raw["bbox"])
        return region, json.dumps({"bbox": [float(bound) for bound in raw["bbox"]]})
    if isinstance(raw, dict) and "type" in raw:
        region = regions.from_geojson(raw)
        return region, shapely.to_geojson(region.shape)
    if isinstance(raw, dict) and str(raw.get("op")).lower() in _WKT:
        raise UnsupportedQuery(f"expected numbers as the coordinates of {raw['op']}")
    raise UnsupportedQuery(
        f"expected a geometry such as POLYGON((...)) or BBOX(w, s, e, n), got {show_operand(raw)}"
    )


_WKT = frozenset(kind.lower() for kind in regions.KINDS) | {"bbox"}


def bind_pattern(pattern: str, *, schema: Schema, negated: bool) -> Node:
    """`geohash LIKE pattern`: characters and `_`, then `%`, or a whole cell.

    Raises:
        UnsupportedQuery: another pattern.
        InputError: no geohash.
    """
    stem = pattern.rstrip("%")
    if any(letter in "%\\" for letter in stem):
        raise UnsupportedQuery(
            f"expected a pattern such as '9x%' or '9x_b%' in geohash LIKE, got {pattern!r}; "
            "% can stand at its end only"
        )
    if ANY not in stem and stem == pattern:
        return bind_equality([pattern], schema=schema, negated=negated)
    if stem == pattern:
        _check_whole([pattern], schema)
    _check_length(stem)
    stem = stem.rstrip(ANY)
    if not stem:
        return NOTHING if negated else EVERYTHING
    if ANY in stem:
        return InPattern(Pattern(stem), schema.geohash_precision, negated)
    return _cells([stem], schema=schema, negated=negated)


def bind_equality(texts: list[str], *, schema: Schema, negated: bool) -> Node:
    """The cell is one of the named ones, which must be whole cells or parts of cells.

    Raises:
        UnsupportedQuery: a text is shorter than the schema's cells.
        InputError: no geohash.
    """
    _check_whole(texts, schema)
    return _cells(texts, schema=schema, negated=negated)


def _check_whole(texts: list[str], schema: Schema) -> None:
    short = [text for text in texts if len(text) < schema.geohash_precision]
    if short:
        raise UnsupportedQuery(
            f"expected a geohash of at least {schema.geohash_precision} characters, as the cells "
            f"of dataset {schema.name!r} have, got {short[0]!r}; "
            f"write geohash LIKE '{short[0]}%' for all cells in it"
        )


def _check_length(stem: str) -> None:
    if len(stem) > geohash.PRECISION_MAX:
        raise InputError(
            f"expected at most {geohash.PRECISION_MAX} characters before % in geohash LIKE, "
            f"got {len(stem)}"
        )


def _cells(texts: list[str], *, schema: Schema, negated: bool) -> Node:
    for text in set(texts):
        geohash.cell_from_text(text)
    return InCells(tuple(sorted(set(texts))), schema.geohash_precision, negated)
