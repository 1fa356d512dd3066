"""Requests of OGC API Environmental Data Retrieval (EDR): which observations they ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from galileo.errors import InputError
from galileo.gateway import coverage_json, parameters
from galileo.gateway.crs import Crs, check_columns_crs, crs_of
from galileo.gateway.formats import MEDIA_TYPES, preferred
from galileo.gateway.parameters import UNITS_M
from galileo.geo import wkt
from galileo.geo.circles import HALFWAY_M
from galileo.geo.corridors import Corridor
from galileo.geo.regions import Floats
from galileo.model.schema import Feature, Schema, nearest_name
from galileo.query.builder import Condition, near, within

COVERAGE_JSON = "coveragejson"
FORMATS = {COVERAGE_JSON: coverage_json.MEDIA_TYPE, **MEDIA_TYPES}
"""Of answers, by their names; upper and lower case do not matter in `f`."""
TEXT_FORMATS = (COVERAGE_JSON, "geojson")
"""Those in which positions can have another coordinate reference system."""
POSITION_M = 50_000.0
"""Greatest distance of the place that answers a position."""
TRAJECTORY_M = 10_000.0
"""Greatest distance of places from a trajectory."""
POSITIONS_MAX = 20
"""Points of a position; each is a search."""
POLYGON_VERTICES_MAX = 10_000
LINE_VERTICES_MAX = 1_000

_COMMON = ("datetime", "parameter-name", "parameter_names", "crs", "f")
# Heights are taken where EDR 1.1 demands them, and have no meaning.
_OWN = {
    "position": ("coords",),
    "area": ("coords",),
    "cube": ("bbox", "z"),
    "radius": ("coords", "within", "within-units"),
    "trajectory": ("coords",),
    "corridor": ("coords", "corridor-width", "width-units", "corridor-height", "height-units"),
    "location": (),
}
QUERIES = tuple(kind for kind in _OWN if kind != "location")
PARAMETERS = {
    kind: (*own, *(name for name in _COMMON if name != "parameter_names"))
    for kind, own in _OWN.items()
}
"""Those of each query; clients of OWSLib write `parameter_names`."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The places nearest to some points: longitudes and latitudes in degrees, shape (k, 2)."""

    points: Floats


@dataclass(frozen=True, slots=True)
class EdrSelection:
    """The observations that match a condition, and that lie in a corridor if there is one."""

    condition: Condition
    corridor: Corridor | None = None


@dataclass(frozen=True, slots=True)
class EdrRequest:
    """Which observations are asked for, and how they are answered.

    Attributes:
        where: their places; None for all.
        conditions: further ones.
        features: that are the parameters of the answer.
        crs: of positions in the answer.
        format: of `FORMATS`.
    """

    where: Positions | EdrSelection | None
    conditions: tuple[Condition, ...]
    features: tuple[Feature, ...]
    crs: Crs
    format: str

    def condition(self, *more: Condition) -> Condition:
        """All conditions, joined."""
        return parameters.joined((*more, *self.conditions))


def edr_request(kind: str, query: QueryParams, schema: Schema, accept: str) -> EdrRequest:
    """The request of a kind of query, or "location" for the observations of a location.

    Raises:
        InputError: a parameter is missing, unknown, given twice, or malformed.
    """
    known = (*_OWN[kind], *_COMMON)
    if "z" in query and "z" not in known:
        raise InputError("observations have no height; leave out z", parameter="z")
    given = parameters.single_values(query, known)
    crs = crs_of(given, "crs")
    format = preferred(given["f"].lower() if "f" in given else None, accept, FORMATS)
    if format not in TEXT_FORMATS:
        check_columns_crs(crs, format)
    return EdrRequest(
        where=_WHERE[kind](given, crs) if kind in _WHERE else None,
        conditions=tuple(parameters.datetime_conditions(given)),
        features=features_of(given, schema),
        crs=crs,
        format=format,
    )


def features_of(given: Mapping[str, str], schema: Schema) -> tuple[Feature, ...]:
    """The features that `parameter-name` lists; all of them without it. Raises InputError."""
    text = given.get("parameter-name", given.get("parameter_names"))
    if text is None:
        return schema.features
    names = dict.fromkeys(name for name in text.split(",") if name)
    known = {feature.name: feature for feature in schema.features}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None or not names:
        close = nearest_name(unknown or "", list(known))
        hint = f"did you mean {close!r}?" if close else f"expected some of {', '.join(known):.400}"
        raise InputError(
            f"there is no parameter {unknown or ''!r}; {hint}", parameter="parameter-name"
        )
    return tuple(known[name] for name in names)


def location_feature(schema: Schema) -> str:
    """The feature whose values are the locations of a dataset; "" if its cells are.

    It is the only indexed text feature. If there are several, none of them says more than another
    what a location is.
    """
    texts = [feature.name for feature in schema.indexed if feature.type == "text"]
    return texts[0] if len(texts) == 1 else ""


def _position(given: Mapping[str, str], crs: Crs) -> Positions:
    return Positions(_points(given, crs, ("Point", "MultiPoint"), POSITIONS_MAX))


def _area(given: Mapping[str, str], crs: Crs) -> EdrSelection:
    kinds = ("Polygon", "MultiPolygon")
    return EdrSelection(within(_geometry(given, crs, kinds, POLYGON_VERTICES_MAX)))


def _cube(given: Mapping[str, str], crs: Crs) -> EdrSelection:
    _required(given, "bbox")
    [condition] = parameters.bbox_conditions(given, crs)
    return EdrSelection(condition)


def _radius(given: Mapping[str, str], crs: Crs) -> EdrSelection:
    [[longitude, latitude]] = _points(given, crs, ("Point",), 1).tolist()
    return EdrSelection(near(latitude, longitude, _distance_m(given, "within", "within-units")))


def _trajectory(given: Mapping[str, str], crs: Crs) -> EdrSelection:
    return _beside(given, crs, TRAJECTORY_M)


def _corridor(given: Mapping[str, str], crs: Crs) -> EdrSelection:
    return _beside(given, crs, _distance_m(given, "corridor-width", "width-units") / 2)


_WHERE: dict[str, Callable[[Mapping[str, str], Crs], Positions | EdrSelection]] = {
    "position": _position,
    "area": _area,
    "cube": _cube,
    "radius": _radius,
    "trajectory": _trajectory,
    "corridor": _corridor,
}


def _beside(given: Mapping[str, str], crs: Crs, radius_m: float) -> EdrSelection:
    path = _geometry(given, crs, ("LineString", "MultiLineString"), LINE_VERTICES_MAX)
    try:
        corridor = Corridor.along(path, radius_m)
    except InputError as error:
        raise InputError(error.message, parameter="coords") from error
    return EdrSelection(within(corridor.cover), corridor)


def _points(given: Mapping[str, str], crs: Crs, kinds: tuple[str, ...], points_max: int) -> Floats:
    """Longitudes from -180 to 180 and latitudes, each point once."""
    shape = _geometry(given, crs, kinds, points_max)
    points = wkt.coordinates(shape)
    points[:, 0] -= 360 * ((points[:, 0] > 180).astype(float) - (points[:, 0] < -180))
    return points


def _geometry(
    given: Mapping[str, str], crs: Crs, kinds: tuple[str, ...], vertices_max: int
) -> wkt.Geometry:
    text = _required(given, "coords")
    try:
        return wkt.from_wkt(text, kinds, vertices_max=vertices_max, to_degrees=crs.to_degrees)
    except InputError as error:
        raise InputError(error.message, parameter="coords") from error


def _distance_m(given: Mapping[str, str], parameter: str, units: str) -> float:
    unit = _required(given, units).lower()
    if unit not in UNITS_M:
        raise InputError(
            f"expected {units} as one of {', '.join(UNITS_M)}, got {given[units]!r}",
            parameter=units,
        )
    text = _required(given, parameter)
    try:
        distance_m = float(text) * UNITS_M[unit]
    except ValueError:
        distance_m = math.nan
    if not 0 < distance_m < math.inf:
        raise InputError(
            f"expected {parameter} as a distance above 0, got {text!r}", parameter=parameter
        )
    return min(distance_m, 2 * HALFWAY_M)


def _required(given: Mapping[str, str], parameter: str) -> str:
    if parameter not in given:
        raise InputError(f"expected the parameter {parameter}, got none", parameter=parameter)
    return given[parameter]
