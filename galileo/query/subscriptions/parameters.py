"""Where the parameters of a template stand, and thereby the types of their values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import shapely

from galileo.errors import InputError
from galileo.geo.geohash import PRECISION_MAX
from galileo.model.channel import BROKER, ID
from galileo.model.schema import DELETED, FEATURE_NAME, Schema
from galileo.model.table import ColumnType
from galileo.query.operands import DATETIME, GEOHASH
from galileo.query.template import CONDITIONS, DISTANCES, REGIONS, Template, parameter_of, tree_of

PARAMETERS_MAX = 32
"""Parameters of one template."""


@dataclass(frozen=True, slots=True, eq=False)
class ParameterPlace:
    """A kind of place in which a parameter can stand.

    Attributes:
        type: of the values that fit.
        sample: a value that fits.
    """

    type: ColumnType
    sample: Any


CONDITION = ParameterPlace("text", "true")
REGION = ParameterPlace("geometry", shapely.Point(0, 0))
CENTRE = ParameterPlace("geometry", shapely.Point(0, 0))
DISTANCE = ParameterPlace("float", 0.0)
NUMBER = ParameterPlace("float", 1.0)
SINGLE = ParameterPlace("float", 1.0)
"""A number that is compared with a float32 feature, and rounded as its values are."""
TEXT = ParameterPlace("text", "0" * PRECISION_MAX)
"""The sample is a geohash, too."""
NAME = ParameterPlace("text", "me")
"""Of a broker; it is never empty."""
FLAG = ParameterPlace("bool", True)
SOUTH, NORTH = ParameterPlace("float", -90.0), ParameterPlace("float", 90.0)
TIME = ParameterPlace("time", dt.datetime(2000, 1, 1, tzinfo=dt.UTC))
START = ParameterPlace("time", dt.datetime(1, 1, 1, tzinfo=dt.UTC))
END = ParameterPlace("time", dt.datetime(9999, 12, 31, tzinfo=dt.UTC))

KEYS = {
    "int": ParameterPlace("int", 0),
    "text": ParameterPlace("text", ""),
    "time": ParameterPlace("time", dt.datetime(2000, 1, 1, tzinfo=dt.UTC)),
}
"""Of parameters that are keys of rows, by their types."""

_PLACES = {"float": NUMBER, "float32": SINGLE, "int": NUMBER, "text": TEXT, "bool": FLAG}
_SPECIAL = {DATETIME: TIME, "time": TIME, GEOHASH: TEXT}


def places_of(template: Template, schema: Schema) -> dict[str, frozenset[ParameterPlace]]:
    """The places of each parameter, in the order of the text.

    Raises:
        InputError: a parameter stands in places for different types.
    """
    places: dict[str, set[ParameterPlace]] = {name: set() for name in template.parameters}
    for name, place in _in_condition(tree_of(template), schema):
        places[name].add(place)
    for name, several in places.items():
        types = sorted({place.type for place in several})
        if len(types) > 1:
            raise InputError(
                f"expected one type for each parameter, got :{name} where {' and '.join(types)} "
                "are expected; give the places parameters of their own",
                expected="parameter_type",
                parameter=name,
            )
    return {name: frozenset(several) for name, several in places.items()}


def property_names(tree: Any) -> Iterator[str]:
    """The names of the properties in CQL2 JSON values, parameters left out."""
    if isinstance(tree, list):
        for item in tree:
            yield from property_names(item)
    elif isinstance(tree, dict):
        if "property" in tree and parameter_of(tree) is None:
            yield str(tree["property"])
        for item in tree.values():
            yield from property_names(item)


def check_names(names: Collection[str]) -> None:
    """Raises InputError if there is no parameter, or too many, or one whose name it cannot have."""
    if not 1 <= len(names) <= PARAMETERS_MAX:
        raise InputError(
            f"expected a query with 1 to {PARAMETERS_MAX} parameters, such as "
            f"temperature > :threshold, got {len(names)}",
            expected="parameters",
            bound=PARAMETERS_MAX,
        )
    for name in names:
        if name in (ID, BROKER, DELETED):
            raise InputError(
                f"the parameter name {name!r} is taken by a column of subscriptions; use another",
                expected="free_name",
                parameter=name,
            )
        if not FEATURE_NAME.fullmatch(name):
            raise InputError(
                f"expected a parameter name of at most 64 characters, got {name!r}",
                expected="parameter_name",
                parameter=name,
            )


def _in_condition(tree: Any, schema: Schema) -> Iterator[tuple[str, ParameterPlace]]:
    if (name := parameter_of(tree)) is not None:
        yield name, CONDITION
    elif isinstance(tree, dict) and "op" in tree:
        op, args = str(tree["op"]).lower(), tree["args"]
        if op in CONDITIONS:
            for arg in args:
                yield from _in_condition(arg, schema)
        elif op in REGIONS:
            yield from _in_operand(args, REGION)
        elif op in DISTANCES:
            yield from _in_operand(args[:2], CENTRE)
            yield from _in_operand(args[2:], DISTANCE)
        else:
            yield from _in_operand(args, _place_beside(args, schema))


def _in_operand(raw: Any, place: ParameterPlace) -> Iterator[tuple[str, ParameterPlace]]:
    if (name := parameter_of(raw)) is not None:
        yield name, place
    elif isinstance(raw, list):
        for item in raw:
            yield from _in_operand(item, place)
    elif isinstance(raw, dict):
        for key, item in raw.items():
            for inner, part in _in_parts(key, item, place):
                yield from _in_operand(part, inner)


def _in_parts(key: str, item: Any, place: ParameterPlace) -> list[tuple[ParameterPlace, Any]]:
    """The parts of an operand, each with the place that it is."""
    if key == "interval":
        return list(zip((START, END), item, strict=False))
    if key == "bbox":
        south, north = 1, len(item) // 2 + 1
        kinds = {south: SOUTH, north: NORTH}
        return [(kinds.get(number, NUMBER), part) for number, part in enumerate(item)]
    return [(place, item)]


def _place_beside(args: list[Any], schema: Schema) -> ParameterPlace:
    """The place of what is compared with a property; of none, errors follow when it is bound."""
    for name in property_names(args):
        feature = schema.feature(name)
        if name in _SPECIAL:
            return _SPECIAL[name]
        if feature is not None:
            return _PLACES[feature.type]
    return NUMBER
