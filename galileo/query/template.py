"""Queries with parameters, as functions of the parameters' values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, final

from galileo.errors import InputError, QuerySyntaxError
from galileo.geo.circles import distance_m
from galileo.query import cql_syntax
from galileo.query.builder import Condition, Property, geometry_json, literal
from galileo.query.time_predicates import OPEN_END

_MARK = "\u2c60"
"""Stands for the colon of a parameter while the text is parsed; names of features are ASCII."""
_PARAMETERS = re.compile(
    rf"""{cql_syntax.TEXT_LITERAL}|"[^"]*"|(?<![\w.:]):(?P<name>[A-Za-z_][A-Za-z0-9_]*)"""
)
CONDITIONS = ("and", "or", "not")
REGIONS = ("s_intersects", "s_within", "s_disjoint")
DISTANCES = ("dwithin", "s_dwithin")


@final
class Template:
    """A query with parameters; called with their values, it gives the condition.

    A parameter is written `:name`, in the place of a value, a geometry, a distance, the end of an
    interval, or a whole condition. Values are what the condition builders take: numbers, texts,
    bools and times; for a geometry a shapely geometry, WKT, GeoJSON, or west, south, east, north;
    for a distance metres or a text such as "5km"; for the end of an interval also None, an open
    end; within the parentheses of IN also several values; for a condition a query. A value is never
    read as a part of the text, so it may come from anywhere. (Wang, Carey and Tsotras,
    "Subscribing to Big Data at Scale", 2020, section 4.1.4, have such queries as functions.)

    Attributes:
        text: CQL2 text, as given.
        parameters: their names, in the order of the text.

    Args:
        text: CQL2 text with parameters.

    Raises:
        QuerySyntaxError: the text is wrong.

    Example:
        >>> warm_in = galileo.Template("temperature > :least AND S_INTERSECTS(geometry, :area)")
        >>> client.count("weather", warm_in(least=280, area=(-110, 35, -100, 42)))
        3
    """

    __slots__ = ("_tree", "parameters", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InputError(
                f"expected a template as CQL2 text, got {text!r}", expected="query_template"
            )
        if _MARK in text:
            raise InputError(f"expected a template without the character {_MARK!r}")
        names: dict[str, None] = {}

        def marked(token: re.Match[str]) -> str:
            if token["name"] is None:
                return token[0]
            names[token["name"]] = None
            return _MARK + token["name"]

        # As long as before, so that errors point at the right place.
        replaced = _PARAMETERS.sub(marked, text)
        try:
            self._tree = cql_syntax.read(replaced)
        except QuerySyntaxError as error:
            raise QuerySyntaxError(error.message.replace(_MARK, ":"), **error.details) from None
        self.text = text
        self.parameters = tuple(names)

    def __call__(self, **values: Any) -> Condition:
        """The condition with these values of the parameters.

        Raises:
            InputError: a parameter is missing or unknown, or a value does not fit its place.
        """
        if values.keys() != set(self.parameters):
            expected = ", ".join(self.parameters) or "no parameters"
            raise InputError(
                f"expected values of {expected}, got {', '.join(values) or 'none'}",
                expected="parameters",
                parameters=list(self.parameters),
            )
        return Condition(_condition(self._tree, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


def tree_of(template: Template) -> Any:
    """The CQL2 JSON values of a template, in which `parameter_of` finds its parameters."""
    return template._tree


def with_parameters(template: Template, names: Collection[str]) -> Template:
    """The template in which properties of these names are parameters, too, with the same names."""
    wider = Template(template.text)
    wider._tree = _marked(template._tree, names)
    wider.parameters = (*template.parameters, *names)
    return wider


def _marked(tree: Any, names: Collection[str]) -> Any:
    if isinstance(tree, list):
        return [_marked(item, names) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("property") in names:
        return {"property": _MARK + tree["property"]}
    return {key: _marked(item, names) for key, item in tree.items()}


def _condition(tree: Any, values: Mapping[str, Any]) -> Any:
    if (name := parameter_of(tree)) is not None:
        return _given_condition(name, values[name])
    if not isinstance(tree, dict) or "op" not in tree:
        return tree
    op, args = str(tree["op"]).lower(), tree["args"]
    if op in CONDITIONS:
        return {**tree, "args": [_condition(arg, values) for arg in args]}
    if op in REGIONS:
        return {**tree, "args": [_region(arg, values) for arg in args]}
    if op in DISTANCES:
        regions, rest = args[:2], args[2:]
        bound = [_region(arg, values) for arg in regions] + [_distance(arg, values) for arg in rest]
        return {**tree, "args": bound}
    return _operand(tree, values)


def _operand(raw: Any, values: Mapping[str, Any]) -> Any:
    if (name := parameter_of(raw)) is not None:
        return _literal(name, values[name])
    if isinstance(raw, list):
        return [value for operand in raw for value in _listed(operand, values)]
    if not isinstance(raw, dict):
        return raw
    if "interval" in raw:
        return {"interval": [_end(end, values) for end in raw["interval"]]}
    if "bbox" in raw:
        return {"bbox": [_operand(bound, values) for bound in raw["bbox"]]}
    if "op" in raw:
        return {**raw, "args": [_operand(arg, values) for arg in raw["args"]]}
    return raw


def _listed(raw: Any, values: Mapping[str, Any]) -> list[Any]:
    """The values of an operand in the parentheses of IN."""
    name = parameter_of(raw)
    if name is None or isinstance(values[name], str) or not hasattr(values[name], "__iter__"):
        return [_operand(raw, values)]
    return [_literal(name, value) for value in values[name]]


def _end(raw: Any, values: Mapping[str, Any]) -> Any:
    name = parameter_of(raw)
    is_open = name is not None and values[name] is None
    return OPEN_END if is_open else _operand(raw, values)


def _region(raw: Any, values: Mapping[str, Any]) -> Any:
    name = parameter_of(raw)
    return _operand(raw, values) if name is None else geometry_json(values[name])


def _distance(raw: Any, values: Mapping[str, Any]) -> Any:
    name = parameter_of(raw)
    return raw if name is None else distance_m(values[name])


def _literal(name: str, value: Any) -> Any:
    if value is None:
        raise InputError(
            f"expected a value of :{name}, got None; IS NULL finds missing values",
            expected="literal",
            parameter=name,
        )
    return literal(value, about=f":{name}")


def _given_condition(name: str, value: Any) -> Any:
    if isinstance(value, Condition | Property):
        return value.tree
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return cql_syntax.read(value)
    raise InputError(
        f"expected a query as the value of :{name}, which stands where a condition does, got "
        f"{value!r}",
        expected="query",
        parameter=name,
    )


def parameter_of(raw: Any) -> str | None:
    """The parameter that an operand or a condition of `tree_of` is."""
    name = raw.get("property") if isinstance(raw, dict) else None
    return name[1:] if isinstance(name, str) and name.startswith(_MARK) else None
