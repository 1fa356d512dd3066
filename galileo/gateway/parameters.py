"""Parameters of requests: the table of them for the OpenAPI document, and their values."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from starlette.datastructures import QueryParams

from galileo.errors import InputError
from galileo.gateway import crs
from galileo.gateway.crs import Crs, crs_of
from galileo.gateway.tile_matrix_sets import SETS, ZOOM_MAX
from galileo.geo.geohash import PRECISION_MAX
from galileo.interpreter_turns import interpret
from galileo.model.grouping import (
    STATISTICS,
    CellKey,
    FeatureKey,
    WindowKey,
    cell,
    parse_key,
    window,
)
from galileo.model.schema import FLOATS, Feature, Schema, nearest_name
from galileo.model.times import iso, period
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


def _described(text: str, schema: Mapping[str, Any], *, where: str, **more: Any) -> dict[str, Any]:
    return {"in": where, **more, "description": text, "schema": schema}


def _value(
    text: str, kind: str = "string", *, required: bool = False, where: str = "query", **bounds: Any
) -> dict[str, Any]:
    more = {"required": True} if required else {}
    return _described(text, {"type": kind, **bounds}, where=where, **more)


def _in_path(text: str, kind: str = "string", **bounds: Any) -> dict[str, Any]:
    return _value(text, kind, required=True, where="path", **bounds)


def _list(text: str, kind: str = "string", **bounds: Any) -> dict[str, Any]:
    """Values with commas; `minItems` and `maxItems` bound their number, others each of them."""
    of_list = {name: bounds.pop(name) for name in list(bounds) if name.endswith("Items")}
    schema = {"type": "array", "items": {"type": kind, **bounds}, **of_list}
    return _described(text, schema, where="query") | {"style": "form", "explode": False}


def _crs(text: str, *, where: str = "query") -> dict[str, Any]:
    uris = [one.uri for one in crs.ALL]
    return _value(text, format="uri", enum=uris, default=crs.CRS84.uri, where=where)


def _units(parameter: str) -> dict[str, Any]:
    return _value(f"The unit of {parameter}.", required=True, enum=list(UNITS_M))


def _height() -> dict[str, Any]:
    return _value(
        "Has no meaning, since observations have no height; it is taken because EDR demands it."
    )


T = TypeVar("T")
K = TypeVar("K")
Box: TypeAlias = tuple[float, float, float, float]
"""West, south, east and north in degrees."""
Interval: TypeAlias = tuple[int | None, int | None]
"""First and last microsecond; None for an open end."""

TABLE: dict[str, dict[str, Any]] = {
    "collectionId": _in_path("The name of a dataset."),
    "f": _value("The format of the answer; without it, the header Accept decides."),
    "limit": _value(
        "Observations at most. By default a page of GeoJSON has the default, and "
        "other formats have all observations. A page of notifications ends with the execution "
        "that reaches it.",
        "integer",
        minimum=1,
        maximum=LIMIT_MAX,
        default=PAGE_LIMIT,
    ),
    "after": _value("The token of the last page or update: of pages, as their link next has it."),
    "featureId": _in_path("The id of an observation."),
    "bbox": _list(
        "West, south, east and north in degrees; west may be greater than east. "
        "With six numbers the third and the last are ignored.",
        "number",
        minItems=4,
        maxItems=6,
    ),
    "datetime": _value(
        "An instant, a day, a month or a year, or an interval start/end of these "
        "with both ends; '..' is open."
    ),
    "filter": _value("A condition in CQL2."),
    "filter-lang": _value(
        "The language of the filter.", enum=[CQL2_TEXT, CQL2_JSON], default=CQL2_TEXT
    ),
    "filter-crs": _crs("The coordinate reference system of geometries in the filter."),
    "bbox-crs": _crs("The coordinate reference system of bbox."),
    "crs": _crs(
        "The coordinate reference system of geometries in the answer; with coords, "
        "and with the bbox of a cube, also of these."
    ),
    "properties": _list("Columns of the answer; all of them without it."),
    "coords": _value("The geometry of a query, as well-known text (WKT).", required=True),
    "within": _value(
        "The radius about coords.", "number", minimum=0, exclusiveMinimum=True, required=True
    ),
    "within-units": _units("within"),
    "corridor-width": _value(
        "The whole width of a corridor, with coords in its middle.",
        "number",
        minimum=0,
        exclusiveMinimum=True,
        required=True,
    ),
    "width-units": _units("corridor-width"),
    "corridor-height": _height(),
    "height-units": _height(),
    "z": _height(),
    "parameter-name": _list("Features of the answer; all of them without it."),
    "locationId": _in_path("The id of a location: a value of its feature, or a geohash."),
    "query": _value("SELECT, ASK, CONSTRUCT or DESCRIBE.", required=True),
    "ccqId": _in_path("The id of a continuous query."),
    "channelId": _in_path("The name of a channel."),
    "subscriptionId": _in_path("The id of a subscription."),
    "brokerId": _in_path("The name of a broker, as subscriptions have it."),
    "token": _value("The token of the last notifications; without it, all that are kept."),
    "until": _value("A token of the same query, after which nothing is wanted."),
    "wait": _value("Seconds to wait for something new.", "number", minimum=0, maximum=WAIT_MAX_S),
    "tileMatrixSetId": _in_path("The name of a tile matrix set.", enum=list(SETS)),
    "tileMatrix": _in_path("The zoom.", "integer", minimum=0, maximum=ZOOM_MAX),
    "tileRow": _in_path("The row of the tile, from the north.", "integer", minimum=0),
    "tileCol": _in_path("The column of the tile, from the west.", "integer", minimum=0),
    "precision": _value(
        "Characters of the geohashes of cells.",
        "integer",
        minimum=1,
        maximum=PRECISION_MAX,
        required=True,
    ),
    "window": _value("The width of time windows, such as 15m, 1h, 1d, 1w, 1mo or 1y."),
    "by": _value(
        "Of what the newest observations are wanted: cells such as cell:5, or the "
        "values of a feature.",
        required=True,
    ),
    "statistics": _list(
        f"Statistics of features: {', '.join(STATISTICS)} or a percentile, such as "
        "temperature:mean,temperature:p90."
    ),
    "feature": _value("An indexed feature, of which statistics are wanted."),
    "bins": _list("Bins of a histogram of the feature: their number, or their edges.", "number"),
    "quantiles": _list(
        "Shares from 0 to 1, such as 0.5 for the median of the feature.",
        "number",
        minimum=0,
        maximum=1,
    ),
    "Last-Event-ID": _value("As `after` or `token`, and before it.", where="header"),
    "Content-Crs": _crs(
        "The coordinate reference system of positions in a body of GeoJSON.", where="header"
    ),
    "If-Match": _value(
        "Of a keyed dataset, the Galileo-Token of an earlier answer in quotation marks: "
        "observations whose keys have changed since are neither replaced nor deleted (412).",
        where="header",
    ),
    "Idempotency-Key": _value(
        "producer:number, or another text: a repetition stores nothing twice.", where="header"
    ),
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
DELETED_ITEMS = ("filter", "filter-lang", "filter-crs")
"""Those of observations to delete."""
CCQ_LABELS = ("f", "after", "until", "wait")
"""Those of an update of a continuous query."""
CCQ_EVENTS = ("after", "Last-Event-ID")
"""Those of the events of a continuous query."""
NOTIFICATIONS = ("token", "limit", "wait")
"""Those of the notifications of a broker."""
NOTIFICATION_EVENTS = ("token", "Last-Event-ID")
"""Those of their events."""
FILTERS = ("bbox", "datetime", "filter", "filter-lang", "filter-crs")
"""Those of conditions on observations, besides indexed features."""
CELLS = ("f", "precision", "window", "statistics", *FILTERS)
"""Those of groups by cells."""
SERIES = ("f", "window", "statistics", *FILTERS)
"""Those of groups by time."""
LATEST = ("f", "by", *FILTERS)
"""Those of the newest observations."""
TILE = ("f", "statistics", "datetime", "filter", "filter-lang", "filter-crs")
"""Those of a tile."""
SUMMARY = ("f", "feature", "bins", *FILTERS)
"""Those of a summary."""
ESTIMATE = ("f", "feature", "quantiles", *FILTERS)
"""Those of an estimate."""
EXPLAIN = ("f", *FILTERS)
"""Those of an explanation."""


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


async def items_request(parameters: QueryParams, schema: Schema) -> ItemsRequest:
    """The request for observations of a dataset.

    Raises:
        InputError: a parameter is unknown, given twice, or malformed.
    """
    given, query = await filtered(parameters, schema, ITEMS)
    columns = [name for name in given.get("properties", "").split(",") if name]
    place = ["latitude", "longitude", "time"]
    names = [*place, *(name for name in columns if name not in place)] if columns else []
    limit = _limit(given["limit"]) if "limit" in given else None
    return ItemsRequest(query, tuple(names), limit, given.get("after"), crs_of(given, "crs"))


async def filtered(
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
        *([await _filter(given)] if "filter" in given else ()),
    ]
    return given, joined(conditions) if conditions else ""


async def filter_of(parameters: QueryParams) -> Condition | None:
    """The filter of a request that has other parameters, too; None for none."""
    names = ("filter", "filter-lang", "filter-crs")
    named = [(name, value) for name, value in parameters.multi_items() if name in names]
    given = single_values(QueryParams(named), names)
    return await _filter(given) if "filter" in given else None


def single_values(parameters: QueryParams, known: tuple[str, ...]) -> Mapping[str, str]:
    """The value of each parameter. Raises InputError if one is unknown or given twice."""
    values: dict[str, str] = {}
    for name, value in parameters.multi_items():
        if name not in known:
            nearest = nearest_name(name, list(known))
            names = ", ".join(known) or "none"
            hint = f"did you mean {nearest!r}?" if nearest else f"expected {names}"
            raise InputError(f"there is no parameter {name!r}; {hint}", parameter=name)
        if name in values:
            raise InputError(f"expected one parameter {name!r}, got several", parameter=name)
        values[name] = value
    return values


def page_limit(text: str | None) -> int:
    """The value of the parameter `limit` of a page. Raises InputError."""
    return PAGE_LIMIT if text is None else _limit(text)


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


def precision(text: str | None) -> CellKey:
    """The cells of the parameter `precision`. Raises InputError."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 2):
        got = "none" if text is None else repr(text)
        raise InputError(
            f"expected precision as a number of characters from 1 to {PRECISION_MAX}, got {got}",
            parameter="precision",
        )
    return _named("precision", cell, int(text))


def time_window(text: str | None) -> WindowKey:
    """The windows of the parameter `window`. Raises InputError."""
    if text is None:
        raise InputError(
            "expected window as the width of time windows, such as 1h, got none", parameter="window"
        )
    return _named("window", window, text)


def latest_key(text: str | None) -> CellKey | FeatureKey:
    """The cells or the feature of the parameter `by`. Raises InputError."""
    key = None if text is None else _named("by", parse_key, text)
    if not isinstance(key, CellKey | FeatureKey):
        got = "none" if text is None else repr(text)
        raise InputError(
            f"expected by as cells such as cell:5, or as the name of a feature, got {got}",
            parameter="by",
        )
    return key


def statistics(text: str) -> dict[str, list[str]]:
    """The statistics of each feature of the parameter `statistics`; none of an empty one.

    Raises:
        InputError: it is malformed; whether features and statistics exist is not checked.
    """
    named: dict[str, list[str]] = {}
    for part in text.split(",") if text else ():
        feature, colon, statistic = part.rpartition(":")
        if not (feature and colon and statistic):
            raise InputError(
                f"expected statistics such as temperature:mean,temperature:max, got {text[:200]!r}",
                parameter="statistics",
            )
        named.setdefault(feature, []).append(statistic)
    return named


def numbers(name: str, text: str) -> list[float]:
    """The finite numbers of a parameter with commas; none of an empty one. Raises InputError."""
    try:
        values = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise InputError(
            f"expected {name} as numbers, by comma, got {text[:200]!r}", parameter=name
        )
    return values


def _named(name: str, function: Callable[[T], K], value: T) -> K:
    """The result of a function, whose InputError names a parameter."""
    try:
        return function(value)
    except InputError as error:
        raise InputError(error.message, **{**error.details, "parameter": name}) from error


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 18 and int(text) > 0):
        raise InputError(f"expected a limit of 1 or more, got {text!r}", parameter="limit")
    return min(int(text), LIMIT_MAX)


def joined(conditions: Sequence[Condition]) -> Condition:
    """Conditions joined by AND; what all observations match if there are none."""
    return functools.reduce(operator.and_, conditions) if conditions else Condition(True)


def bbox_conditions(given: Mapping[str, str], system: Crs) -> list[Condition]:
    """The condition of the parameter `bbox`, if it is given; errors as `bbox`."""
    bounds = bbox(given, system)
    return [] if bounds is None else [within(bounds)]


def bbox(given: Mapping[str, str], system: Crs) -> Box | None:
    """The parameter `bbox` in a coordinate reference system; None if it is not given.

    Raises:
        InputError: it is no box of four or six numbers.
    """
    if "bbox" not in given:
        return None
    try:
        west, south, east, north = system.box_in_degrees(
            [float(x) for x in given["bbox"].split(",")]
        )
        within((west, south, east, north))
    except (ValueError, InputError) as error:
        order = "south,west,north,east" if system.is_latitude_first else "west,south,east,north"
        raise InputError(
            f"expected bbox as {order} in {system.uri}, got {given['bbox']!r:.200}",
            parameter="bbox",
        ) from error
    return west, south, east, north


def datetime_conditions(given: Mapping[str, str]) -> list[Condition]:
    """The condition of the parameter `datetime`, if it is given; errors as `interval`."""
    span = interval(given)
    if span is None:
        return []
    first, last = span
    if first is not None and first == last:
        return [_compared("=", first)]
    bounds = [_compared(op, at) for op, at in ((">=", first), ("<=", last)) if at is not None]
    return [joined(bounds)]


def interval(given: Mapping[str, str]) -> Interval | None:
    """The first and the last microsecond of the parameter `datetime`; None if it is not given.

    A year, a month and a day are whole, also at the ends of an interval. Raises InputError.
    """
    if "datetime" not in given:
        return None
    text = given["datetime"]
    start, slash, end = text.partition("/")
    first = None if slash and start in _OPEN else _period(start, text)[0]
    last = None if slash and end in _OPEN else _period(end if slash else start, text)[1]
    if first is not None and last is not None and first > last:
        raise InputError(
            f"expected datetime with its start before its end, got {text!r:.200}",
            parameter="datetime",
        )
    return first, last


def _period(text: str, whole: str) -> tuple[int, int]:
    """The times of an end of the value of `datetime`."""
    try:
        if "/" in text:
            raise InputError("it has more than two ends")
        return period(text)
    except InputError as error:
        hint = "; write '+' as %2B in a URL" if " " in text.strip() else ""
        raise InputError(
            "expected datetime as an instant such as 2014-03-01T06:00:00Z, as a day, a month or a "
            f"year, or as an interval start/end of these, got {whole!r:.200}: {error.message:.200}"
            f"{hint}",
            parameter="datetime",
        ) from error


def _compared(op: str, at: int) -> Condition:
    return Condition({"op": op, "args": [{"property": "datetime"}, {"timestamp": iso(at)}]})


async def _filter(given: Mapping[str, str]) -> Condition:
    language = given.get("filter-lang", CQL2_TEXT)
    text = given["filter"]
    if language not in (CQL2_TEXT, CQL2_JSON):
        raise InputError(
            f"expected filter-lang as {CQL2_TEXT} or {CQL2_JSON}, got {language!r}",
            parameter="filter-lang",
        )
    crs = crs_of(given, "filter-crs")
    return await interpret(len(text), lambda: Condition(crs.filter_in_degrees(read(text))))


def _equal(feature: Feature, text: str) -> Condition:
    try:
        is_meaning = text in feature.flags.values()
        value = text if is_meaning else _VALUES[feature.type](text)
    except (ValueError, KeyError) as error:
        raise InputError(
            f"expected {feature.name} as a value of type {feature.type}, got {text!r}",
            parameter=feature.name,
        ) from error
    return Condition({"op": "=", "args": [{"property": feature.name}, value]})


_VALUES: dict[str, Any] = {
    **dict.fromkeys(FLOATS, float),
    "int": int,
    "text": str,
    "bool": {"true": True, "false": False}.__getitem__,
}
