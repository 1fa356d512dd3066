"""Geometries of requests as well-known text (WKT)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import shapely
from shapely.errors import ShapelyError
from shapely.geometry.base import BaseGeometry

from galileo.errors import InputError
from galileo.geo import regions
from galileo.geo.regions import Floats

Geometry: TypeAlias = BaseGeometry

# GEOS parses collections by recursion, so they do not reach it.
_WKT = re.compile(r"\s*(?P<kind>[A-Z]+)\s*(?P<positions>\([-+.,\dE\s()]*\))\s*", re.IGNORECASE)


def from_wkt(
    text: str,
    kinds: Sequence[str],
    *,
    vertices_max: int,
    to_degrees: Callable[[Floats], Floats] | None = None,
) -> Geometry:
    """A valid geometry in degrees of longitude and latitude.

    Args:
        text: of two-dimensional positions.
        kinds: that are allowed, such as "Polygon".
        vertices_max: how many vertices it may have.
        to_degrees: converts positions, shape (k, 2).

    Raises:
        InputError: it is not one of the kinds, is invalid, or has too many vertices.
    """
    match = _WKT.fullmatch(text)
    kind = {one.upper(): one for one in kinds}.get(match["kind"].upper()) if match else None
    if match is None or kind is None:
        raise InputError(
            f"expected WKT of a {' or '.join(one.upper() for one in kinds)} with two coordinates "
            f"in each position, got {text!r:.100}",
            expected="geometry_type",
        )
    if match["positions"].count(",") >= vertices_max:
        raise InputError(
            f"expected a geometry of at most {vertices_max:,} vertices; simplify it",
            expected="vertices",
            bound=vertices_max,
        )
    with np.errstate(over="ignore", invalid="ignore"):  # `checked` refuses what is not finite.
        try:
            shape = shapely.from_wkt(text)
        except ShapelyError as error:
            raise InputError(
                f"expected WKT of a {kind}: {error}", expected="coordinates"
            ) from error
        if shapely.has_z(shape):
            raise InputError(
                "expected two coordinates in each position, since observations have no height",
                expected="coordinates",
            )
        if to_degrees is not None:
            shape = shapely.transform(shape, to_degrees)
    regions.checked(shape, kind)
    return shape


def coordinates(shape: Geometry) -> Floats:
    """The positions of a geometry, each once, shape (k, 2)."""
    positions: Floats = np.unique(shapely.get_coordinates(shape), axis=0)
    return positions
