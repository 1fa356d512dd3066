"""Binds CQL2 as JSON values to a schema: the predicate tree.

Every name is looked up, every literal is checked against the type that it is compared with, and NOT
is pushed into the leaves, which in SQL's three-valued logic does not change the result.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from galileo.errors import QuerySyntaxError, UnsupportedQuery
from galileo.model.schema import NUMBERS, Schema
from galileo.query import datetime_binding, expressions, spatial_binding, time_predicates
from galileo.query.cql_syntax import NESTING_MAX
from galileo.query.feature_predicates import (
    MIRRORED,
    OPPOSITE,
    BoolIs,
    IsNull,
    NumberIn,
    NumberIs,
    TextIn,
    TextIs,
    TextLike,
    like_parts,
)
from galileo.query.operands import (
    DATETIME,
    GEOHASH,
    PLACE_HINT,
    PropertyRef,
    boolean,
    is_property,
    mismatch,
    number,
    property_ref,
    show_operand,
    text,
    unsupported,
)
from galileo.query.predicates import (
    EVERYTHING,
    NOTHING,
    And,
    Node,
    Or,
    Span,
    conjunction,
    disjunction,
)
from galileo.query.spatial_predicates import InCells
from galileo.query.time_predicates import During

LIST_MAX = 10_000
"""Values of one IN list."""
PATTERN_MAX = 1_000
"""Characters of one LIKE pattern."""

_ARGUMENTS = {"not": 1, "isnull": 1, "between": 3, "in": 2, "like": 2}
_ARGUMENTS |= dict.fromkeys((*OPPOSITE, *spatial_binding.FUNCTIONS, *datetime_binding.FUNCTIONS), 2)


def bind(raw: Any, schema: Schema) -> Node:
    """The predicate tree of CQL2 JSON values.

    Raises:
        QuerySyntaxError: no CQL2 JSON, or nested too deep; `details["path"]` is the place.
        UnknownProperty: a property that the schema lacks.
        UnsupportedQuery: a meaningless condition, such as a text compared with a number.
        InputError: an invalid geometry.
    """
    try:
        return _Binder(schema).node(raw, negated=False, path="$")
    except RecursionError:
        raise _malformed(f"at most {NESTING_MAX} levels of nesting", "more", "$") from None


class _Binder:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def node(self, raw: Any, *, negated: bool, path: str) -> Node:
        if path.count("[") >= NESTING_MAX:
            raise _malformed(f"at most {NESTING_MAX} levels of nesting", "more", path)
        if isinstance(raw, bool):
            return EVERYTHING if raw != negated else NOTHING
        if not isinstance(raw, dict) or not ("op" in raw or "property" in raw):
            if isinstance(raw, dict) and "bbox" in raw:
                raise QuerySyntaxError(f"a BBOX alone is no condition; {PLACE_HINT}", path=path)
            raise _malformed("a condition", show_operand(raw), path)
        if "op" not in raw:
            return self._flag(raw, negated=negated)
        return self._operation(raw, negated=negated, path=path)

    def _operation(self, raw: dict[str, Any], *, negated: bool, path: str) -> Node:
        op, args = str(raw["op"]).lower(), _arguments(raw, path)
        if op == "not":
            return self.node(args[0], negated=not negated, path=f"{path}.args[0]")
        if op in ("and", "or"):
            parts = [
                self.node(arg, negated=negated, path=f"{path}.args[{at}]")
                for at, arg in enumerate(args)
            ]
            return _conjunction(parts) if (op == "and") != negated else _disjunction(parts)
        return self._condition(op, args, raw=raw, negated=negated)

    def _condition(self, op: str, args: list[Any], *, raw: Any, negated: bool) -> Node:
        if op in OPPOSITE:
            return self._compared(op, args, negated=negated)
        if op == "between":
            return self._between(args, negated=negated)
        if op == "in":
            return self._listed(args, negated=negated)
        if op == "like":
            return self._like(args, negated=negated)
        if op == "isnull":
            return self._null(args[0], negated=negated)
        if op in spatial_binding.FUNCTIONS:
            return spatial_binding.bind_relation(op, args, schema=self._schema, negated=negated)
        if op in spatial_binding.DISTANCES:
            return spatial_binding.bind_distance(op, args, schema=self._schema, negated=negated)
        if op in datetime_binding.FUNCTIONS:
            return self._in_time(
                datetime_binding.bind_relation(op, args, self._schema), negated=negated
            )
        raise unsupported(raw)

    def _flag(self, raw: Any, *, negated: bool) -> Node:
        about = property_ref(raw, self._schema)
        if about.feature is None or about.feature.type != "bool":
            raise UnsupportedQuery(
                f"expected a condition, got the property {about.name!r} alone; "
                f"only a bool feature can stand by itself. Compare it with a value"
            )
        return BoolIs(about.name, not negated)

    def _compared(self, op: str, args: list[Any], *, negated: bool) -> Node:
        left, right = args
        if not is_property(left) and is_property(right):
            left, right, op = right, left, MIRRORED[op]
        op = OPPOSITE[op] if negated else op
        if is_property(left) and (is_property(right) or expressions.is_arithmetic(left)):
            return expressions.compared(op, left, right, self._schema)
        about = property_ref(left, self._schema)
        if about.name == DATETIME:
            spans = time_predicates.compared(op, datetime_binding.instant(right, about))
            return self._in_time(spans, negated=False)
        if about.name == GEOHASH:
            return self._in_cells([right], op=op, about=about)
        return _feature_compared(op, right, about=about)

    def _between(self, args: list[Any], *, negated: bool) -> Node:
        above = self._compared(">=", [args[0], args[1]], negated=negated)
        below = self._compared("<=", [args[0], args[2]], negated=negated)
        return _disjunction([above, below]) if negated else _conjunction([above, below])

    def _listed(self, args: list[Any], *, negated: bool) -> Node:
        raw, values = args
        if not isinstance(values, list) or not 1 <= len(values) <= LIST_MAX:
            count = f"{len(values):,}" if isinstance(values, list) else show_operand(values)
            raise UnsupportedQuery(
                f"expected a list of 1 to {LIST_MAX:,} values in IN, got {count}"
            )
        if is_property(raw) and expressions.is_arithmetic(raw):
            return expressions.listed(raw, values, self._schema, negated=negated)
        about = property_ref(raw, self._schema)
        if about.name == DATETIME:
            periods = [datetime_binding.instant(value, about) for value in values]
            return self._in_time([*periods], negated=negated)
        if about.name == GEOHASH:
            return self._in_cells(values, op="<>" if negated else "=", about=about)
        return _feature_listed(values, about=about, negated=negated)

    def _like(self, args: list[Any], *, negated: bool) -> Node:
        about = property_ref(args[0], self._schema)
        pattern = text(args[1], about)
        if len(pattern) > PATTERN_MAX:
            raise UnsupportedQuery(
                f"expected a LIKE pattern of at most {PATTERN_MAX:,} characters, "
                f"got {len(pattern):,}"
            )
        if about.name == GEOHASH:
            return spatial_binding.bind_pattern(pattern, schema=self._schema, negated=negated)
        if about.feature is None or about.feature.type != "text":
            raise UnsupportedQuery(f"LIKE needs geohash or a text feature, got {about.name!r}")
        _check_pattern(pattern)
        return TextLike(about.name, pattern, negated, about.folded)

    def _null(self, raw: Any, *, negated: bool) -> Node:
        if is_property(raw) and expressions.is_arithmetic(raw):
            return expressions.null(raw, self._schema, negated=negated)
        about = property_ref(raw, self._schema)
        if about.feature is None:
            return EVERYTHING if negated else NOTHING
        return IsNull(about.name, negated)

    def _in_time(self, spans: list[Span], *, negated: bool) -> Node:
        allowed = time_predicates.outside(spans) if negated else spans
        return time_predicates.leaf(allowed, self._schema.time_bucket_us)

    def _in_cells(self, values: list[Any], *, op: str, about: PropertyRef) -> Node:
        if op not in ("=", "<>"):
            raise UnsupportedQuery(f"geohash supports =, <>, IN and LIKE '9x%', got {op!r}")
        texts = [text(value, about) for value in values]
        return spatial_binding.bind_equality(texts, schema=self._schema, negated=op == "<>")


def _feature_compared(op: str, raw: Any, *, about: PropertyRef) -> Node:
    kind = about.feature.type if about.feature else None
    if kind in NUMBERS:
        return NumberIs(about.name, op, number(expressions.folded(raw), about))
    if kind == "text":
        return TextIs(about.name, op, text(raw, about), about.folded)
    if kind == "bool" and op in ("=", "<>"):
        return BoolIs(about.name, boolean(raw, about) == (op == "="))
    if kind == "bool":
        raise UnsupportedQuery(f"bool feature {about.name!r} supports = and <>, got {op!r}")
    raise UnsupportedQuery(
        f"{about.name!r} cannot be compared; use S_INTERSECTS, S_WITHIN or S_DISJOINT"
    )


def _feature_listed(values: list[Any], *, about: PropertyRef, negated: bool) -> Node:
    kind = about.feature.type if about.feature else None
    if kind in NUMBERS:
        numbers = tuple(sorted({number(expressions.folded(v), about) for v in values}))
        return NumberIn(about.name, numbers, negated)
    if kind == "text":
        texts = tuple(sorted({text(value, about) for value in values}))
        return TextIn(about.name, texts, negated, about.folded)
    if kind == "bool":
        flags = [BoolIs(about.name, boolean(value, about) != negated) for value in values]
        return conjunction(flags) if negated else disjunction(flags)
    raise mismatch(values, about, "a region in S_INTERSECTS")


def _check_pattern(pattern: str) -> None:
    try:
        like_parts(pattern)
    except ValueError:
        raise UnsupportedQuery(
            f"LIKE pattern {pattern!r} ends in the middle of an escape; "
            "write \\\\ for a backslash, \\% for a percent sign, \\_ for an underscore"
        ) from None


def _conjunction(parts: list[Node]) -> Node:
    """AND, with one condition on time, and one for all excluded cells."""
    node = conjunction(parts)
    if not isinstance(node, And):
        return node
    times = [part for part in node.parts if isinstance(part, During)]
    cells = [part for part in node.parts if isinstance(part, InCells) and part.negated]
    apart = {*times, *cells}
    rest = [part for part in node.parts if part not in apart]
    return conjunction([*rest, *_intersect_times(times), *_intersect_cells(cells)])


def _disjunction(parts: list[Node]) -> Node:
    """OR, with one condition for all included cells."""
    node = disjunction(parts)
    if not isinstance(node, Or):
        return node
    cells = [part for part in node.parts if isinstance(part, InCells) and not part.negated]
    apart = {*cells}
    return disjunction(
        [*(part for part in node.parts if part not in apart), *_intersect_cells(cells)]
    )


def _intersect_times(times: list[During]) -> list[Node]:
    if not times:
        return []
    common = reduce(time_predicates.overlap, [(time.lo, time.hi) for time in times])
    return [time_predicates.leaf([common], times[0].bucket_us)]


def _intersect_cells(cells: list[InCells]) -> list[Node]:
    if not cells:
        return []
    prefixes = {prefix for part in cells for prefix in part.prefixes}
    return [InCells(tuple(sorted(prefixes)), cells[0].precision, cells[0].negated)]


def _arguments(raw: dict[str, Any], path: str) -> list[Any]:
    args = raw.get("args")
    count = _ARGUMENTS.get(str(raw["op"]).lower())
    if not isinstance(args, list):
        raise _malformed("a list of arguments in 'args'", show_operand(args), path)
    if count is not None and len(args) != count:
        raise _malformed(f"{count} arguments of {raw['op']!r}", str(len(args)), path)
    return args


def _malformed(expected: str, got: str, path: str) -> QuerySyntaxError:
    return QuerySyntaxError(f"expected {expected}, got {got} at {path} of the query", path=path)
