"""The parts of a template's conjunction: those without parameters, and simple ones with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from galileo.model.schema import Schema
from galileo.query.binding import bind
from galileo.query.expressions import is_arithmetic
from galileo.query.feature_predicates import COMPARE, MIRRORED
from galileo.query.operands import DATETIME, is_property, property_ref
from galileo.query.spatial_predicates import WithinDistance
from galileo.query.template import DISTANCES, parameter_of

_OTHER = {"and": "or", "or": "and"}


@dataclass(frozen=True, slots=True)
class ParameterComparison:
    """A feature or the time, compared with a parameter.

    Attributes:
        name: of the feature, or `DATETIME`.
        operator: one of `COMPARE`; the property stands on its left.
        parameter: its name.
        folded: whether texts are compared without regard to case.
    """

    name: str
    operator: str
    parameter: str
    folded: bool = False


@dataclass(frozen=True, slots=True)
class InArea:
    """The place lies in the region of a parameter; `interior` leaves the edge out."""

    parameter: str
    interior: bool


@dataclass(frozen=True, slots=True)
class InCircle:
    """The place lies within a distance of a point.

    Attributes:
        centre: a parameter, or longitude and latitude of a constant.
        radius: a parameter, or metres.
    """

    centre: str | tuple[float, float]
    radius: str | float


SimplePart: TypeAlias = ParameterComparison | InArea | InCircle


def constant_part(tree: Any, *, negated: bool = False) -> Any:
    """The strongest condition without parameters that follows from a template, as CQL2 JSON."""
    if not has_parameter(tree):
        return {"op": "not", "args": [tree]} if negated else tree
    op = str(tree["op"]).lower() if "op" in tree else ""
    if op == "not":
        return constant_part(tree["args"][0], negated=not negated)
    if op == "between":
        return constant_part(_compared_twice(tree), negated=negated)
    if op in _OTHER:
        parts = [constant_part(arg, negated=negated) for arg in tree["args"]]
        return {"op": _OTHER[op] if negated else op, "args": parts}
    return True


def simple_parts(tree: Any, schema: Schema) -> tuple[SimplePart, ...] | None:
    """The parts with parameters of a conjunction, each once; None if one of them is not simple."""
    parts = [_simple_part(part, schema) for part in _conjuncts(tree) if has_parameter(part)]
    known = dict.fromkeys(part for part in parts if part is not None)
    return None if None in parts else tuple(known)


def has_parameter(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(map(has_parameter, tree))
    if not isinstance(tree, dict):
        return False
    return parameter_of(tree) is not None or any(map(has_parameter, tree.values()))


def _conjuncts(tree: Any) -> Iterator[Any]:
    op = str(tree["op"]).lower() if isinstance(tree, dict) and "op" in tree else ""
    if op == "between" and has_parameter(tree):
        yield from _conjuncts(_compared_twice(tree))
    elif op == "and":
        for arg in tree["args"]:
            yield from _conjuncts(arg)
    else:
        yield tree


def _compared_twice(between: Any) -> Any:
    value, low, high = between["args"]
    parts = [{"op": ">=", "args": [value, low]}, {"op": "<=", "args": [value, high]}]
    return {"op": "and", "args": parts}


def _simple_part(tree: Any, schema: Schema) -> SimplePart | None:
    op = str(tree["op"]).lower() if "op" in tree else ""
    if op in COMPARE:
        return _comparison(op, tree["args"], schema)
    if op in ("s_intersects", "s_within"):
        names = [name for arg in tree["args"] if (name := parameter_of(arg))]
        return InArea(names[0], interior=op == "s_within") if names else None
    if op in DISTANCES:
        return _in_circle(tree, schema)
    return None


def _comparison(op: str, args: list[Any], schema: Schema) -> ParameterComparison | None:
    left, right = args
    if has_parameter(left):
        left, right, op = right, left, MIRRORED[op]
    if is_arithmetic(left):
        return None
    about = property_ref(left, schema)
    if about.folded and isinstance(right, dict) and right.get("op") == "casei":
        right = right["args"][0]
    elif about.folded:
        return None
    parameter = parameter_of(right)
    if parameter is None or (about.feature is None and about.name != DATETIME):
        return None
    return ParameterComparison(about.name, op, parameter, about.folded)


def _in_circle(tree: Any, schema: Schema) -> InCircle | None:
    left, right, radius = tree["args"]
    centre = left if not is_property(left) or parameter_of(left) else right
    given = {"type": "Point", "coordinates": [0.0, 0.0]} if parameter_of(centre) else centre
    metres = 0.0 if parameter_of(radius) else radius
    bound = bind({"op": "dwithin", "args": [{"property": "geometry"}, given, metres]}, schema)
    assert isinstance(bound, WithinDistance), "a distance is one leaf"
    circle = bound.circle
    return InCircle(
        parameter_of(centre) or (circle.longitude, circle.latitude),
        parameter_of(radius) or circle.radius_m,
    )
