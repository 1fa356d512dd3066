"""The filter pipeline: filters that a path must all pass, applied chunk by chunk of a run.

The condition with the best selectivity for its cost comes first, by a sample of the rows; the
others test only the remaining rows. The columns of a chunk fit the second-level cache of the
processor.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from galileo.graph.columns import Paths, StringDictionary
from galileo.graph.row_ranges import Positions, Rows, count_rows, select_rows, slice_rows
from galileo.query.columns import Columns, Mask, TextColumn, take_rows
from galileo.query.expressions import TextsCompared
from galileo.query.feature_predicates import TextLeaf
from galileo.query.predicates import And, Leaf, Node, leaves
from galileo.query.visitors import json_value, verdicts

CHUNK_PATHS = 1 << 17
"""Paths that are tested together: a megabyte of a column."""
SAMPLE_PATHS = 512
"""Paths of a sample for the order of conditions; taken from at least `CHUNK_PATHS`."""
PORTION_PATHS = 1 << 17
"""Paths that are gathered together, if as many match."""
GATHER_BELOW_SHARE = 4
"""Remaining rows are gathered for the next condition if they are fewer than one in so many."""

_UNREAD_CELLS = np.broadcast_to(np.uint64(0), 1 << 40)
_UNREAD_BUCKETS = np.broadcast_to(np.int64(0), 1 << 40)
"""Stand in for columns that a condition does not read; they take no memory."""


class LeafEvaluator:
    """Tests one leaf on paths, for one scan.

    The result for each text of the graph is computed once, after the leaf was tested on as many
    paths as there are texts.
    """

    __slots__ = ("_asked", "_texts", "_verdicts")

    def __init__(self, texts: StringDictionary) -> None:
        self._texts = texts
        self._asked: dict[Leaf, int] = {}
        self._verdicts: dict[Leaf, Mask] = {}

    def __call__(self, leaf: Leaf, columns: Columns) -> Mask:
        if isinstance(leaf, TextsCompared):
            return leaf.may_match_paths(self._texts.bind(columns))
        if not isinstance(leaf, TextLeaf):
            return leaf.may_match_paths(columns)
        column = cast(TextColumn, columns.features[leaf.name])
        known = self._verdicts.get(leaf)
        if known is not None:
            return known.take(column.codes)
        asked = self._asked[leaf] = self._asked.get(leaf, 0) + len(column)
        if asked < len(self._texts):
            return leaf.match(self._texts.bound(column))
        # Codes of nulls are -1 and meet the last verdict.
        known = self._verdicts[leaf] = np.append(leaf.match(self._texts.column()), False)
        return known.take(column.codes)


class RowFilter(Protocol):
    """A condition that a path must pass; equal filters have equal results."""

    @property
    def weight(self) -> int:
        """Relative cost of testing a path."""
        ...

    def mask(self, paths: Paths, rows: Rows) -> Mask:
        """Which of the rows pass."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PredicateFilter:
    """A predicate on cell, bucket and features.

    Attributes:
        node: of the query's tree.
        judge: of its leaves.
        features: that it reads.
        placed: whether it reads cells or buckets.
    """

    node: Node
    judge: LeafEvaluator
    features: tuple[str, ...]
    placed: bool

    @classmethod
    def of(cls, node: Node, judge: LeafEvaluator) -> PredicateFilter:
        named = [leaf.features for leaf in leaves(node)]
        features = tuple(dict.fromkeys(itertools.chain(*named)))
        return cls(node, judge, features, () in named)

    @property
    def text(self) -> str:
        """As CQL2 JSON."""
        return json.dumps(json_value(self.node), separators=(",", ":"), ensure_ascii=False)

    @property
    def weight(self) -> int:
        return sum(1 + leaf.cost for leaf in leaves(self.node))

    def mask(self, paths: Paths, rows: Rows) -> Mask:
        return verdicts(self.node, self._read(paths.columns, rows), self.judge)

    def _read(self, columns: Columns, rows: Rows) -> Columns:
        features = {name: columns.features[name].take(rows) for name in self.features}
        if self.placed:
            return Columns(take_rows(columns.cell, rows), take_rows(columns.bucket, rows), features)
        count = count_rows(rows)
        return Columns(_UNREAD_CELLS[:count], _UNREAD_BUCKETS[:count], features)


@dataclass(frozen=True, slots=True, eq=False)
class CommitFilter:
    """Passes the paths of the commits that are true in the mask."""

    commits: Mask

    @property
    def weight(self) -> int:
        return 2

    def mask(self, paths: Paths, rows: Rows) -> Mask:
        return self.commits.take(take_rows(paths.commit, rows))


def row_filters(node: Node, judge: LeafEvaluator) -> tuple[PredicateFilter, ...]:
    """The conjuncts of the tree as filters."""
    parts = node.parts if isinstance(node, And) else (node,)
    return tuple(PredicateFilter.of(part, judge) for part in parts)


class FilterStats:
    """Counts, for each condition, the paths that it was tested on and those that passed."""

    __slots__ = ("passed", "tested")

    def __init__(self) -> None:
        self.tested: dict[RowFilter, int] = {}
        self.passed: dict[RowFilter, int] = {}

    def record(self, condition: RowFilter, mask: Mask) -> None:
        self.tested[condition] = self.tested.get(condition, 0) + len(mask)
        self.passed[condition] = self.passed.get(condition, 0) + int(np.count_nonzero(mask))


@dataclass(frozen=True, slots=True, eq=False)
class FilterPipeline:
    """Conditions in the order in which they are applied to paths of one run."""

    paths: Paths
    filters: Sequence[RowFilter]

    @classmethod
    def of(cls, paths: Paths, conditions: Sequence[RowFilter], *, rows: Rows) -> FilterPipeline:
        """Order the filters by selectivity and cost on a sample of `rows`."""
        if len(conditions) < 2:
            return cls(paths, conditions)
        if count_rows(rows) < CHUNK_PATHS:
            return cls(paths, sorted(conditions, key=lambda each: each.weight))
        chosen = sample(rows, SAMPLE_PATHS)

        def rank(condition: RowFilter) -> float:
            ruled_out = 1.0 - float(np.mean(condition.mask(paths, chosen)))
            return condition.weight / max(ruled_out, 0.5 / SAMPLE_PATHS)

        return cls(paths, sorted(conditions, key=rank))

    def apply(self, rows: Rows, *, tally: FilterStats | None = None) -> Rows:
        """The rows that pass; pass a chunk at most."""
        mask: Mask | None = None
        for condition in self.filters:
            if mask is not None and np.count_nonzero(mask) * GATHER_BELOW_SHARE < len(mask):
                rows, mask = select_rows(rows, mask), None
            if mask is None and count_rows(rows) == 0:
                return rows
            verdicts = condition.mask(self.paths, rows)
            if tally is not None:
                tally.record(condition, verdicts)
            mask = verdicts if mask is None else mask & verdicts
        return rows if mask is None or mask.all() else select_rows(rows, mask)


def chunks(rows: Rows, size: int) -> Iterator[Rows]:
    """The rows in pieces of at most `size`."""
    for start in range(0, count_rows(rows), size):
        yield slice_rows(rows, start, start + size)


def sample(rows: Rows, count: int) -> Positions:
    """So many of at least as many rows, spread evenly over them."""
    at: npt.NDArray[np.intp] = np.linspace(0, count_rows(rows) - 1, count).astype(np.intp)
    return at + rows.start if isinstance(rows, slice) else rows[at]
