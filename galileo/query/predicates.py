"""The predicate tree: leaves under AND and OR, with NOT pushed into the leaves.

SQL's logic has three values, and a row matches only if the whole is true. Without NOT above them,
AND and OR keep "true" separate from "not true", so two values per leaf are enough: the result of a
leaf is whether it is true, and its negation is another leaf, for which null is not true either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.geo.ranges import Ranges
from galileo.query.columns import Columns, FeatureColumn, Mask
from galileo.query.zone_maps import Zones

Span: TypeAlias = tuple[int | None, int | None]
"""Half-open [lo, hi) in microseconds; None is open."""

ALWAYS: Span = (None, None)


@dataclass(frozen=True, slots=True, eq=False)
class ObservationColumns:
    """The columns of observations that a query reads.

    Attributes:
        latitude: degrees, shape (k,).
        longitude: degrees in [-180, 180].
        time: microseconds.
        features: those that the query names, each of length k.
    """

    latitude: npt.NDArray[np.float64]
    longitude: npt.NDArray[np.float64]
    time: npt.NDArray[np.int64]
    features: Mapping[str, FeatureColumn]

    def __len__(self) -> int:
        return len(self.time)

    def take(self, rows: Any) -> ObservationColumns:
        """The rows of an index array, a mask or a slice."""
        taken = {name: column.take(rows) for name, column in self.features.items()}
        return ObservationColumns(self.latitude[rows], self.longitude[rows], self.time[rows], taken)


class Leaf(Protocol):
    """One condition, bound to a schema; equal leaves have equal results."""

    @property
    def cost(self) -> int:
        """Relative cost of a row, for the order of evaluation."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """The features that it reads; none: it reads the place or the time."""
        ...

    def may_match_paths(self, columns: Columns) -> Mask:
        """Mask of paths that may hold an observation for which the condition is true."""
        ...

    def must_match_paths(self, columns: Columns) -> Mask:
        """Mask of paths that certainly hold only observations for which it is true."""
        ...

    def matches_rows(self, points: ObservationColumns) -> Mask:
        """Mask of observations for which the condition is true."""
        ...

    def may_match_zones(self, zones: Zones) -> Mask:
        """Mask of zones that may hold a path of `may_match_paths`."""
        ...

    def cells(self) -> Ranges | None:
        """Ranges of cells outside of which `may_match_paths` is false; None: no limit."""
        ...

    def buckets(self) -> Span:
        """Starts of buckets outside of which `may_match_paths` is false."""
        ...

    def json(self) -> Any:
        """CQL2 JSON that binds to an equal leaf."""
        ...


@dataclass(frozen=True, slots=True)
class And:
    """AND; true when it has no parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """OR; false when it has no parts."""

    parts: tuple[Node, ...]


Node: TypeAlias = "And | Or | Leaf"

EVERYTHING = And(())
NOTHING = Or(())


def conjunction(parts: Iterable[Node]) -> Node:
    """AND, flat, without repeated parts and constants."""
    flat = dict.fromkeys(
        item for part in parts for item in (part.parts if isinstance(part, And) else (part,))
    )
    if NOTHING in flat:
        return NOTHING
    return next(iter(flat)) if len(flat) == 1 else And(tuple(flat))


def disjunction(parts: Iterable[Node]) -> Node:
    """OR, flat, without repeated parts and constants."""
    flat = dict.fromkeys(
        item for part in parts for item in (part.parts if isinstance(part, Or) else (part,))
    )
    if EVERYTHING in flat:
        return EVERYTHING
    return next(iter(flat)) if len(flat) == 1 else Or(tuple(flat))


def leaves(node: Node) -> list[Leaf]:
    if isinstance(node, And | Or):
        return [leaf for part in node.parts for leaf in leaves(part)]
    return [node]


def negation(condition: dict[str, Any], negated: bool) -> dict[str, Any]:
    """The CQL2 JSON of a condition, under NOT if it is negated."""
    return {"op": "not", "args": [condition]} if negated else condition
