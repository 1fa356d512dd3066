"""Arithmetic on features, and comparisons of features with each other.

Arithmetic is done in doubles, as PostgreSQL does it with `double precision`. Where PostgreSQL has
an error (a division by zero, an overflow, a root of a negative number), the result is null, as it
is where an operand is null.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from galileo.errors import QuerySyntaxError, UnknownProperty, UnsupportedQuery
from galileo.geo.ranges import Ranges
from galileo.model.schema import Schema
from galileo.query.columns import (
    Columns,
    FeatureColumn,
    FloatColumn,
    IntColumn,
    Mask,
    NumberColumn,
)
from galileo.query.cql_syntax import NESTING_MAX
from galileo.query.feature_predicates import (
    COMPARE,
    TEXT_COMPARE,
    FeatureLeaf,
    IsNull,
    NumberIn,
    NumberIs,
    casefold,
)
from galileo.query.operands import (
    PropertyRef,
    is_property,
    number,
    property_ref,
    unsupported,
)
from galileo.query.predicates import ALWAYS, ObservationColumns, Span
from galileo.query.zone_maps import FeatureZones, Zones

Floats: TypeAlias = npt.NDArray[np.float64]
Bounds: TypeAlias = tuple[Floats, Floats]
"""Least and greatest values of zones."""


def _div(left: Floats, right: Floats) -> Floats:
    """The quotient without its fraction, towards zero."""
    quotient: Floats = np.rint((left - np.fmod(left, right)) / right)
    return quotient


_OPERATORS: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.float_power,
    "div": _div,
}
OPERATIONS_MAX = 256
"""Operations on one side of a condition."""
_DIVISIONS = ("/", "%", "div")
_RESULT = PropertyRef("the result", None, folded=False)


class Number(ABC):
    """An expression whose values are doubles; NaN is null."""

    __slots__ = ()

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The features that it reads, each once."""

    @abstractmethod
    def values(self, columns: Mapping[str, FeatureColumn]) -> Floats:
        """One for each row, or a single one of a constant."""

    @abstractmethod
    def bounds(self, zones: Zones) -> Bounds:
        """Bounds on its values in each zone that are not null."""

    @abstractmethod
    def json(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class FeatureNumber(Number):
    """The values of a feature."""

    name: str

    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def values(self, columns: Mapping[str, FeatureColumn]) -> Floats:
        column = cast(NumberColumn, columns[self.name])
        if isinstance(column, FloatColumn):
            return column.numbers
        return np.where(column.valid, column.numbers, np.nan)

    def bounds(self, zones: Zones) -> Bounds:
        known = zones.features.get(self.name)
        if known is None or known.lo is None or known.hi is None:
            return _unknown(len(zones))
        return known.lo, known.hi

    def json(self) -> Any:
        return {"property": self.name}


@dataclass(frozen=True, slots=True)
class ConstantNumber(Number):
    value: float

    def names(self) -> tuple[str, ...]:
        return ()

    def values(self, columns: Mapping[str, FeatureColumn]) -> Floats:
        return np.array(self.value)

    def bounds(self, zones: Zones) -> Bounds:
        each = np.full(len(zones), self.value)
        return each, each

    def json(self) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class Arithmetic(Number):
    operator: str
    left: Number
    right: Number

    def names(self) -> tuple[str, ...]:
        return _names(self.left, self.right)

    def values(self, columns: Mapping[str, FeatureColumn]) -> Floats:
        left, right = self.left.values(columns), self.right.values(columns)
        with np.errstate(all="ignore"):
            result = _OPERATORS[self.operator](left, right)
        is_error = ~np.isfinite(result) & np.isfinite(left) & np.isfinite(right)
        if self.operator in _DIVISIONS:
            is_error |= right == 0
        return np.where(is_error, np.nan, result)

    def bounds(self, zones: Zones) -> Bounds:
        """The results at the corners, since rounding keeps the order; else none."""
        lows, highs = zip(self.left.bounds(zones), self.right.bounds(zones), strict=True)
        (left_low, right_low), (left_high, right_high) = lows, highs
        if self.operator not in "+-*/":
            return _unknown(len(zones))
        operate = _OPERATORS[self.operator]
        with np.errstate(all="ignore"):
            corners = [
                operate(left, right)
                for left in (left_low, left_high)
                for right in (right_low, right_high)
            ]
        low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
        is_open = np.isnan(low)  # One corner is no number, so that other values may be any.
        if self.operator == "/":
            is_open |= (right_low <= 0) & (right_high >= 0)
        return np.where(is_open, -np.inf, low), np.where(is_open, np.inf, high)

    def json(self) -> Any:
        return {"op": self.operator, "args": [self.left.json(), self.right.json()]}


def _unknown(count: int) -> Bounds:
    return np.full(count, -np.inf), np.full(count, np.inf)


def _names(*sides: Number) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for side in sides for name in side.names()))


class ExpressionLeaf(ABC):
    """A condition on several features, whose values a path and its observations have in common."""

    __slots__ = ()
    cost: ClassVar[int] = 2

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]: ...

    @abstractmethod
    def match(self, columns: Mapping[str, FeatureColumn]) -> Mask:
        """Mask of rows for which the condition is true."""

    @abstractmethod
    def json(self) -> Any: ...

    def may_match_paths(self, columns: Columns) -> Mask:
        return self.match(columns.features)

    def must_match_paths(self, columns: Columns) -> Mask:
        return self.match(columns.features)

    def matches_rows(self, points: ObservationColumns) -> Mask:
        return self.match(points.features)

    def may_match_zones(self, zones: Zones) -> Mask:
        known = [zones.features[name] for name in self.features if name in zones.features]
        have_values: Mask = np.logical_and.reduce([zone.has_value for zone in known])
        return have_values if known else np.ones(len(zones), dtype=np.bool_)

    def cells(self) -> Ranges | None:
        return None

    def buckets(self) -> Span:
        return ALWAYS


@dataclass(frozen=True, slots=True)
class Calculated(ExpressionLeaf):
    """A condition on the result of arithmetic, as of a feature of that name."""

    expression: Number
    condition: FeatureLeaf

    @property
    def features(self) -> tuple[str, ...]:
        return self.expression.names()

    def match(self, columns: Mapping[str, FeatureColumn]) -> Mask:
        return self.condition.match(FloatColumn(self.expression.values(columns)))

    def may_match_zones(self, zones: Zones) -> Mask:
        may_be = np.ones(len(zones), dtype=np.bool_)
        if isinstance(self.condition, IsNull) and not self.condition.negated:
            return may_be
        low, high = self.expression.bounds(zones)
        result = FeatureZones(low, high, may_be, may_be)
        return ExpressionLeaf.may_match_zones(self, zones) & self.condition.bounds(result)

    def json(self) -> Any:
        return _with_operand(self.condition.json(), self.expression.json())


def _with_operand(condition: Any, operand: Any) -> Any:
    """The JSON of a condition about another operand."""
    first, *rest = condition["args"]
    inner = _with_operand(first, operand) if condition["op"] == "not" else operand
    return {**condition, "args": [inner, *rest]}


@dataclass(frozen=True, slots=True)
class NumbersCompared(ExpressionLeaf):
    """A comparison of numbers that both read features; two integers are compared exactly."""

    operator: str
    left: Number
    right: Number

    @property
    def features(self) -> tuple[str, ...]:
        return _names(self.left, self.right)

    def match(self, columns: Mapping[str, FeatureColumn]) -> Mask:
        if isinstance(self.left, FeatureNumber) and isinstance(self.right, FeatureNumber):
            left, right = columns[self.left.name], columns[self.right.name]
            if isinstance(left, IntColumn) and isinstance(right, IntColumn):
                exact: Mask = COMPARE[self.operator](left.values, right.values)
                return exact & left.valid & right.valid
        numbers = self.left.values(columns), self.right.values(columns)
        mask: Mask = COMPARE[self.operator](*numbers)
        return mask & ~np.isnan(numbers[0]) & ~np.isnan(numbers[1])

    def may_match_zones(self, zones: Zones) -> Mask:
        (left_low, left_high), (right_low, right_high) = (
            side.bounds(zones) for side in (self.left, self.right)
        )
        # Bounds of integers are rounded, so that smaller ones may have equal bounds.
        is_left_low, is_left_high = left_low <= right_high, left_high >= right_low
        possible = {"<": is_left_low, "<=": is_left_low, ">": is_left_high, ">=": is_left_high}
        possible["="] = is_left_low & is_left_high
        mask: Mask = ExpressionLeaf.may_match_zones(self, zones)
        return mask & possible.get(self.operator, True)

    def json(self) -> Any:
        return {"op": self.operator, "args": [self.left.json(), self.right.json()]}


@dataclass(frozen=True, slots=True)
class TextsCompared(ExpressionLeaf):
    """A comparison of two text features, by code points; `folded` ignores case."""

    operator: str
    left: str
    right: str
    folded: bool

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.left, self.right)))

    def match(self, columns: Mapping[str, FeatureColumn]) -> Mask:
        texts = [columns[name].to_arrow() for name in (self.left, self.right)]
        left, right = map(casefold, texts) if self.folded else texts
        mask = pc.fill_null(TEXT_COMPARE[self.operator](left, right), False)
        return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)

    def json(self) -> Any:
        args: list[Any] = [{"property": self.left}, {"property": self.right}]
        if self.folded:
            args = [{"op": "casei", "args": [arg]} for arg in args]
        return {"op": self.operator, "args": args}


def is_arithmetic(raw: Any) -> bool:
    return isinstance(raw, dict) and str(raw.get("op")).lower() in _OPERATORS


def folded(raw: Any) -> Any:
    """The number of arithmetic without properties; other operands are left as they are.

    Raises:
        UnsupportedQuery: it has no result.
    """
    if not is_arithmetic(raw) or is_property(raw) or not _has_numbers(raw):
        return raw
    value = float(_number(raw, None).values({}))
    if np.isnan(value):
        raise UnsupportedQuery("expected arithmetic with a result, got a division by zero or such")
    return value


def _has_numbers(raw: Any) -> bool:
    """Whether arithmetic is of numbers; of times it is a matter of `datetime_binding`."""
    if not is_arithmetic(raw):
        return isinstance(raw, int | float) and not isinstance(raw, bool)
    return all(map(_has_numbers, raw["args"])) if isinstance(raw.get("args"), list) else False


def compared(op: str, left: Any, right: Any, schema: Schema) -> ExpressionLeaf:
    """A comparison of what has a property with what may have one.

    Raises:
        UnknownProperty: a property that the schema lacks.
        UnsupportedQuery: operands that cannot be compared with each other.
    """
    if not (is_arithmetic(left) or is_arithmetic(right)):
        about, other = property_ref(left, schema), _other(right, schema)
        kinds = [ref.feature.type if ref.feature else None for ref in (about, other)]
        if kinds == ["text", "text"] and about.folded == other.folded:
            return TextsCompared(op, about.name, other.name, about.folded)
        is_comparable = None not in kinds and "text" not in kinds
        if not is_comparable or (kinds.count("bool") not in (0, 2)):
            raise UnsupportedQuery(
                f"expected two features that can be compared with each other, numbers, texts or "
                f"bools, got {about.name!r} and {other.name!r}; a text stands in single quotes"
            )
        if "bool" in kinds and op not in ("=", "<>"):
            raise UnsupportedQuery(f"bool feature {about.name!r} supports = and <>, got {op!r}")
        return NumbersCompared(op, FeatureNumber(about.name), FeatureNumber(other.name))
    expression = _number(left, schema)
    if is_property(right):
        return NumbersCompared(op, expression, _number(right, schema))
    return Calculated(expression, NumberIs(_RESULT.name, op, number(folded(right), _RESULT)))


def _other(raw: Any, schema: Schema) -> PropertyRef:
    try:
        return property_ref(raw, schema)
    except UnknownProperty as error:
        message = f"{error.message}; a text stands in single quotes"
        raise UnknownProperty(message, **error.details) from None


def listed(raw: Any, values: list[Any], schema: Schema, *, negated: bool) -> ExpressionLeaf:
    """That the result of arithmetic is one of some numbers; errors as `compared`."""
    numbers = tuple(sorted({number(folded(value), _RESULT) for value in values}))
    return Calculated(_number(raw, schema), NumberIn(_RESULT.name, numbers, negated))


def null(raw: Any, schema: Schema, *, negated: bool) -> ExpressionLeaf:
    """That arithmetic has no result; errors as `compared`."""
    return Calculated(_number(raw, schema), IsNull(_RESULT.name, negated))


def _number(raw: Any, schema: Schema | None) -> Number:
    expression = _bound(raw, schema, 0)
    if _operations(expression) > OPERATIONS_MAX:
        raise UnsupportedQuery(
            f"expected arithmetic of at most {OPERATIONS_MAX} operations, got more",
            bound=OPERATIONS_MAX,
        )
    return expression


def _operations(expression: Number) -> int:
    if not isinstance(expression, Arithmetic):
        return 0
    return 1 + _operations(expression.left) + _operations(expression.right)


def _bound(raw: Any, schema: Schema | None, depth: int) -> Number:
    if depth > NESTING_MAX:
        raise QuerySyntaxError(
            f"expected at most {NESTING_MAX} levels of nesting in arithmetic, got more",
            bound=NESTING_MAX,
        )
    if is_arithmetic(raw):
        args = raw.get("args")
        if not isinstance(args, list) or len(args) != 2:
            raise unsupported(raw)
        left, right = (_bound(arg, schema, depth + 1) for arg in args)
        return Arithmetic(str(raw["op"]).lower(), left, right)
    if schema is None or not is_property(raw):
        return ConstantNumber(number(raw, _RESULT))
    about = property_ref(raw, schema)
    if about.feature is None or about.feature.type in ("text", "bool"):
        raise UnsupportedQuery(f"expected numbers in arithmetic, got the property {about.name!r}")
    return FeatureNumber(about.name)
