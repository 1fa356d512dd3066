"""Parameters of requests: the table of them for the OpenAPI document, and their values."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from galileo.errors import InputError
from galileo.gateway import crs
from galileo.gateway.crs import Crs, crs_of
from galileo.model.schema import Feature, Schema, nearest_name
from galileo.model.times import iso, micros
from galileo.query.builder import Condition, within
from galileo.query.cql_syntax import read

LIMIT_MAX = 10_000
"""A larger limit counts as this one, as OGC API Features demands."""
PAGE_LIMIT = 1_000
"""Observations of a page by default."""
WAIT_MAX_S = 60
CQL2_TEXT, CQL2_JSON = "cql2-text", "cql2-json"
UNITS_M = {"m": 1.0, "km": 1000.0, "mi": 1609.344, "nmi": 1852.0}
"""Metres of the units of distances."""
_OPEN = ("", "..")
_CRS = {
    "type": "string",
    "format": "uri",
    "enum": [one.uri for one in crs.ALL],
    "default": crs.CRS84.uri,
}


def _units(parameter: str) -> dict[str, Any]:
    return {
        "in": "query",
        "required": True,
        "description": f"The unit of {parameter}.",
        "schema": {"type": "string", "enum": list(UNITS_M)},
    }


def _height() -> dict[str, Any]:
    text = "Has no meaning, since observations have no height; it is taken because EDR demands it."
    return {"in": "query", "description": text, "schema": {"type": "string"}}


TABLE: dict[str, dict[str, Any]] = {
    "collectionId": {
        "in": "path",
        "required": True,
        "description": "The name of a dataset.",
        "schema": {"type": "string"},
    },
    "f": {
        "in": "query",
        "description": "The format of the answer; without it, the header Accept decides.",
        "schema": {"type": "string"},
    },
    "limit": {
        "in": "query",
        "description": "Observations at most. By default a page of GeoJSON has the default, and "
        "other formats have all observations.",
        "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": PAGE_LIMIT},
    },
    "after": {
        "in": "query",
        "description": "The token of the last page or update: of pages, as their link next has it.",
        "schema": {"type": "string"},
    },
    "featureId": {
        "in": "path",
        "required": True,
        "description": "The id of an observation.",
        "schema": {"type": "string"},
    },
    "bbox": {
        "in": "query",
        "description": "West, south, east and north in degrees; west may be greater than east. "
        "With six numbers the third and the last are ignored.",
        "schema": {
            "type": "array",
            "items": {"type": "number"},
            "minItems": 4,
            "maxItems": 6,
        },
        "style": "form",
        "explode": False,
    },
    "datetime": {
        "in": "query",
        "description": "An instant, or an interval start/end with both ends; '..' is open.",
        "schema": {"type": "string"},
    },
    "filter": {
        "in": "query",
        "description": "A condition in CQL2.",
        "schema": {"type": "string"},
    },
    "filter-lang": {
        "in": "query",
        "description": "The language of the filter.",
        "schema": {"type": "string", "enum": [CQL2_TEXT, CQL2_JSON], "default": CQL2_TEXT},
    },
    "filter-crs": {
        "in": "query",
        "description": "The coordinate reference system of geometries in the filter.",
        "schema": _CRS,
    },
    "bbox-crs": {
        "in": "query",
        "description": "The coordinate reference system of bbox.",
        "schema": _CRS,
    },
    "crs": {
        "in": "query",
        "description": "The coordinate reference system of geometries in the answer; with coords, "
        "and with the bbox of a cube, also of these.",
        "schema": _CRS,
    },
    "properties": {
        "in": "query",
        "description": "Columns of the answer; all of them without it.",
        "schema": {"type": "array", "items": {"type": "string"}},
        "style": "form",
        "explode": False,
    },
    "coords": {
        "in": "query",
        "required": True,
        "description": "The geometry of a query, as well-known text (WKT).",
        "schema": {"type": "string"},
    },
    "within": {
        "in": "query",
        "required": True,
        "description": "The radius about coords.",
        "schema": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    },
    "within-units": _units("within"),
    "corridor-width": {
        "in": "query",
        "required": True,
        "description": "The whole width of a corridor, with coords in its middle.",
        "schema": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    },
    "width-units": _units("corridor-width"),
    "corridor-height": _height(),
    "height-units": _height(),
    "z": _height(),
    "parameter-name": {
        "in": "query",
        "description": "Features of the answer; all of them without it.",
        "schema": {"type": "array", "items": {"type": "string"}},
        "style": "form",
        "explode": False,
    },
    "locationId": {
        "in": "path",
        "required": True,
        "description": "The id of a location: a value of its feature, or a geohash.",
        "schema": {"type": "string"},
    },
    "query": {
        "in": "query",
        "required": True,
        "description": "SELECT, ASK, CONSTRUCT or DESCRIBE.",
        "schema": {"type": "string"},
    },
    "ccqId": {
        "in": "path",
        "required": True,
        "description": "The id of a continuous query.",
        "schema": {"type": "string"},
    },
    "until": {
        "in": "query",
        "description": "A token of the same query, after which nothing is wanted.",
        "schema": {"type": "string"},
    },
    "wait": {
        "in": "query",
        "description": "Seconds to wait for something new.",
        "schema": {"type": "number", "minimum": 0, "maximum": WAIT_MAX_S},
    },
    "Last-Event-ID": {
        "in": "header",
        "description": "As `after`, and before it.",
        "schema": {"type": "string"},
    },
}
"""As OpenAPI describes them, by name; features are parameters, too."""

ITEMS = (
    "f",
    "limit",
    "after",
    "bbox",
    "datetime",
    "filter",
    "filter-lang",
    "filter-crs",
    "properties",
    "bbox-crs",
    "crs",
)
"""Those of observations."""
CCQ_LABELS = ("f", "after", "until", "wait")
"""Those of an update of a continuous query."""
CCQ_EVENTS = ("after", "Last-Event-ID")
"""Those of the events of a continuous query."""


@dataclass(frozen=True, slots=True)
class ItemsRequest:
    """Which observations are asked for.

    Attributes:
        query: a condition, or "" for all.
        columns: of the answer; empty for all.
        limit: None if none is given.
        after: the token of a page; None for the first.
        crs: of geometries in the answer.
    """

    query: Condition | str
    columns: tuple[str, ...]
    limit: int | None
    after: str | None
    crs: Crs


def items_request(parameters: QueryParams, schema: Schema) -> ItemsRequest:
    """The request for observations of a dataset.

    Raises:
        InputError: a parameter is unknown, given twice, or malformed.
    """
    given, query = filtered(parameters, schema, ITEMS)
    columns = [name for name in given.get("properties", "").split(",") if name]
    place = ["latitude", "longitude", "time"]
    names = [*place, *(name for name in columns if name not in place)] if columns else []
    limit = _limit(given["limit"]) if "limit" in given else None
    return ItemsRequest(query, tuple(names), limit, given.get("after"), crs_of(given, "crs"))


def filtered(
    parameters: QueryParams, schema: Schema, known: tuple[str, ...]
) -> tuple[Mapping[str, str], Condition | str]:
    """The values of known parameters, and the condition of those that filter, "" for none.

    Besides the known ones, indexed features with other names are parameters.

    Raises:
        InputError: a parameter is unknown, given twice, or malformed.
    """
    features = {feature.name: feature for feature in schema.indexed if feature.name not in known}
    given = single_values(parameters, (*known, *features))
    conditions = [
        *bbox_conditions(given, crs_of(given, "bbox-crs")),
        *datetime_conditions(given),
        *(_equal(features[name], value) for name, value in given.items() if name in features),
        *([_filter(given)] if "filter" in given else ()),
    ]
    return given, joined(conditions) if conditions else ""


def filter_of(parameters: QueryParams) -> Condition | None:
    """The filter of a request that has other parameters, too; None for none."""
    names = ("filter", "filter-lang", "filter-crs")
    named = [(name, value) for name, value in parameters.multi_items() if name in names]
    given = single_values(QueryParams(named), names)
    return _filter(given) if "filter" in given else None


def single_values(parameters: QueryParams, known: tuple[str, ...]) -> Mapping[str, str]:
    """The value of each parameter. Raises InputError if one is unknown or given twice."""
    values: dict[str, str] = {}
    for name, value in parameters.multi_items():
        if name not in known:
            nearest = nearest_name(name, list(known))
            hint = f"did you mean {nearest!r}?" if nearest else f"expected {', '.join(known)}"
            raise InputError(f"there is no parameter {name!r}; {hint}", parameter=name)
        if name in values:
            raise InputError(f"expected one parameter {name!r}, got several", parameter=name)
        values[name] = value
    return values


def wait_s(text: str) -> float:
    """The seconds of the parameter `wait`; 0 for an empty one. Raises InputError."""
    try:
        wait_s = float(text or 0)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= WAIT_MAX_S:
        raise InputError(
            f"expected wait as seconds from 0 to {WAIT_MAX_S}, got {text!r}", parameter="wait"
        )
    return wait_s


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 18 and int(text) > 0):
        raise InputError(f"expected a limit of 1 or more, got {text!r}", parameter="limit")
    return min(int(text), LIMIT_MAX)


def joined(conditions: Sequence[Condition]) -> Condition:
    """Conditions joined by AND; what all observations match if there are none."""
    return functools.reduce(operator.and_, conditions) if conditions else Condition(True)


def bbox_conditions(given: Mapping[str, str], system: Crs) -> list[Condition]:
    """The condition of the parameter `bbox` in a coordinate reference system, if it is given.

    Raises:
        InputError: it is no box of four or six numbers.
    """
    if "bbox" not in given:
        return []
    try:
        return [within(system.box_in_degrees([float(bound) for bound in given["bbox"].split(",")]))]
    except (ValueError, InputError) as error:
        order = "south,west,north,east" if system.is_latitude_first else "west,south,east,north"
        raise InputError(
            f"expected bbox as {order} in {system.uri}, got {given['bbox']!r:.200}",
            parameter="bbox",
        ) from error


def datetime_conditions(given: Mapping[str, str]) -> list[Condition]:
    """The condition of the parameter `datetime`, if it is given. Raises InputError."""
    return [_datetime(given["datetime"])] if "datetime" in given else []


def _datetime(text: str) -> Condition:
    start, slash, end = text.partition("/")
    if not slash:
        return _compared("=", start)
    bounds = [_compared(op, at) for op, at in ((">=", start), ("<=", end)) if at not in _OPEN]
    return joined(bounds)


def _compared(op: str, text: str) -> Condition:
    try:
        timestamp = iso(micros(text))
    except InputError as error:
        raise InputError(
            f"expected datetime as an instant such as 2014-03-01T06:00:00Z, or an interval "
            f"start/end, got {text!r}: {error.message}",
            parameter="datetime",
        ) from error
    return Condition({"op": op, "args": [{"property": "datetime"}, {"timestamp": timestamp}]})


def _filter(given: Mapping[str, str]) -> Condition:
    language = given.get("filter-lang", CQL2_TEXT)
    text = given["filter"]
    if language not in (CQL2_TEXT, CQL2_JSON):
        raise InputError(
            f"expected filter-lang as {CQL2_TEXT} or {CQL2_JSON}, got {language!r}",
            parameter="filter-lang",
        )
    return Condition(crs_of(given, "filter-crs").filter_in_degrees(read(text)))


def _equal(feature: Feature, text: str) -> Condition:
    try:
        value = _VALUES[feature.type](text)
    except (ValueError, KeyError) as error:
        raise InputError(
            f"expected {feature.name} as a value of type {feature.type}, got {text!r}",
            parameter=feature.name,
        ) from error
    return Condition({"op": "=", "args": [{"property": feature.name}, value]})


_VALUES: dict[str, Any] = {
    "float": float,
    "int": int,
    "text": str,
    "bool": {"true": True, "false": False}.__getitem__,
}
