"""Conditions on features: comparisons, membership, patterns and null.

A path and its observations have the same values, so the results agree on both levels. Numbers are
compared as doubles. Texts are tested once per dictionary entry.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.geo.ranges import Ranges
from galileo.query.columns import (
    Columns,
    FeatureColumn,
    FloatColumn,
    IntColumn,
    Mask,
    NumberColumn,
    TextColumn,
)
from galileo.query.predicates import ALWAYS, Leaf, ObservationColumns, Span, negation
from galileo.query.zone_maps import FeatureZones, Zones

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}

_EXACT = 2.0**53
"""Below it every whole number is a double of its own."""

TEXT_COMPARE: dict[str, Callable[..., Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class FeatureLeaf(ABC):
    """A condition on the feature `name`; a missing value makes it true only for `IsNull`."""

    __slots__ = ()
    name: str
    cost: ClassVar[int] = 1

    @property
    def features(self) -> tuple[str, ...]:
        return (self.name,)

    @abstractmethod
    def match(self, column: FeatureColumn) -> Mask:
        """Mask of rows for which the condition is true."""

    @abstractmethod
    def bounds(self, zones: FeatureZones) -> Mask:
        """Mask of zones in which it may be true for a row."""

    @abstractmethod
    def json(self) -> Any: ...

    def may_match_paths(self, columns: Columns) -> Mask:
        return self.match(columns.features[self.name])

    def must_match_paths(self, columns: Columns) -> Mask:
        return self.may_match_paths(columns)

    def matches_rows(self, points: ObservationColumns) -> Mask:
        return self.match(points.features[self.name])

    def may_match_zones(self, zones: Zones) -> Mask:
        known = zones.features.get(self.name)
        return np.ones(len(zones), dtype=np.bool_) if known is None else self.bounds(known)

    def cells(self) -> Ranges | None:
        return None

    def buckets(self) -> Span:
        return ALWAYS

    def _property(self) -> dict[str, Any]:
        return {"property": self.name}


@dataclass(frozen=True, slots=True)
class IsNull(FeatureLeaf):
    name: str
    negated: bool = False

    def match(self, column: FeatureColumn) -> Mask:
        return column.valid if self.negated else ~column.valid

    def bounds(self, zones: FeatureZones) -> Mask:
        return zones.has_value if self.negated else zones.has_null

    def json(self) -> Any:
        return negation({"op": "isNull", "args": [self._property()]}, self.negated)


@dataclass(frozen=True, slots=True)
class BoolIs(FeatureLeaf):
    name: str
    value: bool

    def match(self, column: FeatureColumn) -> Mask:
        numbers = cast(NumberColumn, column).numbers
        mask: Mask = column.valid & (numbers == float(self.value))
        return mask

    def bounds(self, zones: FeatureZones) -> Mask:
        return _number_bounds(zones, "=", float(self.value))

    def json(self) -> Any:
        return {"op": "=", "args": [self._property(), self.value]}


@dataclass(frozen=True, slots=True)
class NumberIs(FeatureLeaf):
    name: str
    operator: str
    value: float

    def match(self, column: FeatureColumn) -> Mask:
        if isinstance(column, IntColumn) and abs(self.value) < _EXACT:
            return _whole_compared(column, self.operator, self.value)
        numbers = cast(NumberColumn, column).numbers
        mask: Mask = COMPARE[self.operator](numbers, self.value)
        # No number is NaN, smaller than it or greater; only "<>" needs to look for it.
        needless = isinstance(column, FloatColumn) and self.operator != "<>"
        return mask if needless else mask & column.valid

    def bounds(self, zones: FeatureZones) -> Mask:
        return _number_bounds(zones, self.operator, self.value)

    def json(self) -> Any:
        return {"op": self.operator, "args": [self._property(), self.value]}


def number_bounds(leaf: Leaf, name: str) -> tuple[float, float]:
    """Closed interval of the numbers for which a condition is true."""
    if isinstance(leaf, BoolIs) and leaf.name == name:
        return float(leaf.value), float(leaf.value)
    if isinstance(leaf, NumberIn) and leaf.name == name and not leaf.negated:
        return leaf.values[0], leaf.values[-1]
    if isinstance(leaf, NumberIs) and leaf.name == name:
        low = -math.inf if leaf.operator in ("<", "<=", "<>") else leaf.value
        high = math.inf if leaf.operator in (">", ">=", "<>") else leaf.value
        return low, high
    return -math.inf, math.inf


@dataclass(frozen=True, slots=True)
class NumberIn(FeatureLeaf):
    """`values` are sorted and distinct."""

    name: str
    values: tuple[float, ...]
    negated: bool = False

    def match(self, column: FeatureColumn) -> Mask:
        listed = self._listed(cast(NumberColumn, column).numbers)
        mask: Mask = column.valid & (listed != self.negated)
        return mask

    def bounds(self, zones: FeatureZones) -> Mask:
        if zones.lo is None or zones.hi is None:
            return zones.has_value
        if self.negated:
            only_listed: Mask = (zones.lo == zones.hi) & self._listed(zones.lo)
            return zones.has_value & ~only_listed
        nearest = np.searchsorted(self.values, zones.lo)
        reached = np.append(self.values, np.nan)[nearest]
        mask: Mask = zones.has_value & (reached <= zones.hi)
        return mask

    def _listed(self, numbers: npt.NDArray[np.float64]) -> Mask:
        values = np.asarray(self.values)
        at = np.minimum(np.searchsorted(values, numbers), len(values) - 1)
        mask: Mask = values[at] == numbers
        return mask

    def json(self) -> Any:
        return negation({"op": "in", "args": [self._property(), [*self.values]]}, self.negated)


class TextLeaf(FeatureLeaf):
    """A condition on texts; `folded` ignores case (CQL2's CASEI)."""

    __slots__ = ()
    folded: bool
    cost: ClassVar[int] = 2

    @abstractmethod
    def judge(self, texts: pa.Array) -> pa.Array:
        """Mask of texts, without null, for which the condition is true."""

    def match(self, column: FeatureColumn) -> Mask:
        column = cast(TextColumn, column)
        texts = casefold(column.dictionary) if self.folded else column.dictionary
        verdicts = np.asarray(self.judge(texts).to_numpy(zero_copy_only=False), dtype=np.bool_)
        mask: Mask = np.append(verdicts, False)[column.codes]
        return mask

    def bounds(self, zones: FeatureZones) -> Mask:
        return zones.has_value

    def _operand(self) -> dict[str, Any]:
        plain = self._property()
        return {"op": "casei", "args": [plain]} if self.folded else plain


@dataclass(frozen=True, slots=True)
class TextIs(TextLeaf):
    """Compares by code points."""

    name: str
    operator: str
    value: str
    folded: bool = False

    def judge(self, texts: pa.Array) -> pa.Array:
        return TEXT_COMPARE[self.operator](texts, pa.scalar(self.value))

    def json(self) -> Any:
        return {"op": self.operator, "args": [self._operand(), self.value]}


@dataclass(frozen=True, slots=True)
class TextIn(TextLeaf):
    """`values` are sorted and distinct."""

    name: str
    values: tuple[str, ...]
    negated: bool = False
    folded: bool = False

    def judge(self, texts: pa.Array) -> pa.Array:
        mask = pc.is_in(texts, value_set=pa.array(self.values, type=pa.string()))
        return pc.invert(mask) if self.negated else mask

    def json(self) -> Any:
        return negation({"op": "in", "args": [self._operand(), [*self.values]]}, self.negated)


@dataclass(frozen=True, slots=True)
class TextLike(TextLeaf):
    """SQL's LIKE: `%` is any text, `_` any one character, a backslash escapes them."""

    name: str
    pattern: str
    negated: bool = False
    folded: bool = False

    def judge(self, texts: pa.Array) -> pa.Array:
        mask = pc.match_substring_regex(texts, like_regex(self.pattern))
        return pc.invert(mask) if self.negated else mask

    def json(self) -> Any:
        return negation({"op": "like", "args": [self._operand(), self.pattern]}, self.negated)


def casefold(texts: pa.Array) -> pa.Array:
    """Texts in the form that CASEI compares: Unicode's full case folding."""
    folded = pc.utf8_lower(texts)
    wide = pc.invert(pc.fill_null(pc.string_is_ascii(texts), True))
    if not wide.true_count:
        return folded
    distinct = texts.filter(wide).dictionary_encode()
    spelled = pa.array([text.casefold() for text in distinct.dictionary.to_pylist()], texts.type)
    return pc.replace_with_mask(folded, wide, spelled.take(distinct.indices))


def like_parts(pattern: str) -> list[tuple[str, bool]]:
    """The characters of a LIKE pattern, each with whether it is a wildcard.

    Raises:
        ValueError: a backslash ends the pattern.
    """
    parts, letters = [], iter(pattern)
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, None)
            if escaped is None:
                raise ValueError(pattern)
            parts.append((escaped, False))
        else:
            parts.append((letter, letter in "%_"))
    return parts


def like_regex(pattern: str) -> str:
    """The RE2 expression of a LIKE pattern."""
    wild = {"%": ".*", "_": "."}
    return r"(?s)\A{}\z".format(
        "".join(
            wild[letter] if wildcard else rf"\x{{{ord(letter):x}}}"
            for letter, wildcard in like_parts(pattern)
        )
    )


def _whole_compared(column: IntColumn, sign: str, value: float) -> Mask:
    """Comparison of integers as doubles, exact also beyond 2**53."""
    whole = math.floor(value)
    if whole != value:
        if sign in ("=", "<>"):
            return column.valid & (sign == "<>")
        sign = "<=" if sign in ("<", "<=") else ">"
    mask: Mask = COMPARE[sign](column.values, np.int64(whole)) & column.valid
    return mask


def _number_bounds(zones: FeatureZones, sign: str, value: float) -> Mask:
    if zones.lo is None or zones.hi is None:
        return zones.has_value
    if sign == "=":
        within: Mask = (zones.lo <= value) & (zones.hi >= value)
    elif sign == "<>":
        within = (zones.lo != value) | (zones.hi != value)
    else:
        within = COMPARE[sign](zones.lo if sign in ("<", "<=") else zones.hi, value)
    return zones.has_value & within
