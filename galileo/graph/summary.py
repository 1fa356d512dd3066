"""Summaries: statistics of one feature over the matching paths, and counts by cell, without reading
observations.

A path with n observations counts n times, so the statistics are those of the observations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.graph.run_scan import Check, RunScan, never_cancelled, scan_portions
from galileo.model.schema import Feature, Schema
from galileo.query.columns import IntColumn, NumberColumn, rounded_to_float32, take_rows

BINS_MAX = 10_000
"""Bins of one histogram."""

_SCALE = 2.0**-64
"""Scale that keeps sums of the largest doubles finite."""

Numbers = npt.NDArray[np.float64]
Weights = npt.NDArray[np.int64]
_Counted = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]

CELLS_SCHEMA = pa.schema([pa.field("cell", pa.uint64()), pa.field("rows", pa.int64())])
"""Schema of the table that `rows_by_cell` returns."""


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Observations by value.

    Attributes:
        edges: ascending, shape (k + 1,); a bin holds its lower edge, the last one both.
        counts: observations in each bin, shape (k,); those outside all bins are in none.
    """

    edges: Numbers
    counts: Weights


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Statistics of one feature over the paths that match a query.

    Attributes:
        paths: number of matching paths.
        observations: of these paths.
        missing: observations without a value.
        minimum: None where no observation has a value.
        maximum: likewise.
        total: sum of the values of all observations.
        mean: over the observations that have a value; None where none has.
        histogram: if it was requested, and any observation has a value or edges were given.
    """

    paths: int
    observations: int
    missing: int
    minimum: float | None
    maximum: float | None
    total: float
    mean: float | None
    histogram: Histogram | None

    def facts(self) -> dict[str, Any]:
        """All of it in the types of JSON; without a histogram, its edges and counts are None."""
        names = ("paths", "observations", "missing", "minimum", "maximum", "total", "mean")
        facts = {name: getattr(self, name) for name in names}
        edges = counts = None
        if self.histogram is not None:
            edges, counts = self.histogram.edges.tolist(), self.histogram.counts.tolist()
        return {**facts, "edges": edges, "counts": counts}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Summary:
        """The inverse of `facts`."""
        fields = dict(facts)
        edges, counts = fields.pop("edges"), fields.pop("counts")
        histogram = None if edges is None else Histogram(np.array(edges), np.array(counts))
        return cls(**fields, histogram=histogram)


def check_summary(schema: Schema, feature: str, bins: int | Sequence[float] | None) -> Feature:
    """The feature; raises `InputError` unless it is numeric and the bins are valid."""
    numeric = {f.name: f for f in schema.indexed if f.type != "text"}
    if feature not in numeric:
        raise InputError(
            f"expected an indexed feature of dataset {schema.name!r} that has numbers "
            f"({', '.join(numeric) or 'it has none'}), got {feature!r}",
            expected="numeric_feature",
            feature=feature,
        )
    if bins is None:
        return numeric[feature]
    count = bins if isinstance(bins, int) else len(bins) - 1
    if not 1 <= count <= BINS_MAX:
        raise InputError(
            f"expected 1 to {BINS_MAX:,} bins, got {count:,}",
            expected="bin_count",
            parameter="bins",
            bound=BINS_MAX,
        )
    edges = np.arange(2) if isinstance(bins, int) else np.asarray(bins, dtype=np.float64)
    if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
        raise InputError(
            f"expected ascending, finite edges of bins, got {bins!r}", expected="edges"
        )
    return numeric[feature]


def summarise(
    tasks: Sequence[RunScan],
    feature: Feature,
    *,
    bins: int | Sequence[float] | None,
    check: Check = never_cancelled,
) -> Summary:
    """The summary of the matches of `tasks`; a number of bins takes a second pass."""

    def count(values: Numbers | npt.NDArray[np.int64], weights: Weights, edges: Numbers) -> Weights:
        # As in conditions, the edge 4.7 is the 4.7 of 32 bits.
        is_single = feature.type == "float32"
        return _count_bins(values, weights, rounded_to_float32(edges) if is_single else edges)

    moments = _Moments()
    edges = None if bins is None or isinstance(bins, int) else np.asarray(bins, dtype=np.float64)
    counts = None if edges is None else np.zeros(len(edges) - 1, dtype=np.int64)
    for values, weights, paths in _portions(tasks, feature.name, check):
        moments.add(values, weights, paths=paths)
        if edges is not None and counts is not None:
            counts += count(values, weights, edges)
    if isinstance(bins, int) and moments.valued:
        edges = equal_edges(moments.minimum, moments.maximum, bins=bins)
        portions = _portions(tasks, feature.name, check)
        counts = np.sum([count(v, w, edges) for v, w, _ in portions], axis=0)
    histogram = None if edges is None or counts is None else Histogram(edges, counts)
    return moments.summary(histogram)


def exact_numbers(column: NumberColumn) -> Numbers | npt.NDArray[np.int64]:
    """The numbers of a column, in which integers are exact."""
    return column.values if isinstance(column, IntColumn) else column.numbers


def moments(column: NumberColumn, weights: Weights) -> Summary:
    """The summary of paths with the values of a column, weighted by their observations."""
    sums, valid = _Moments(), column.valid
    counted = weights[valid]
    sums.add(exact_numbers(column)[valid], counted, paths=(len(weights), int(weights.sum())))
    return sums.summary(None)


def equal_edges(minimum: float, maximum: float, *, bins: int) -> Numbers:
    """The edges of bins of equal width between two values; fewer where these are too close.

    Raises:
        InputError: the values are not finite.
    """
    if not math.isfinite(maximum - minimum):
        raise InputError(
            f"expected finite values for bins of equal width, got {minimum} to "
            f"{maximum}; give the edges of the bins",
            expected="finite_values",
        )
    wide = 0.5 if minimum == maximum else 0.0
    # NumPy's own function of this refuses values that are too close.
    edges = np.unique(np.linspace(minimum - wide, maximum + wide, bins + 1))
    return edges if len(edges) > 1 else np.unique([minimum, np.nextafter(minimum, 0.0)])


def merge_summaries(summaries: Sequence[Summary]) -> Summary:
    """The summary of the union of disjoint parts.

    Args:
        summaries: with histograms of the same edges, or all without.
    """
    minima = [s.minimum for s in summaries if s.minimum is not None]
    maxima = [s.maximum for s in summaries if s.maximum is not None]
    observations = sum(s.observations for s in summaries)
    missing = sum(s.missing for s in summaries)
    total = _sum([s.total for s in summaries])
    histograms = [s.histogram for s in summaries if s.histogram is not None]
    return Summary(
        paths=sum(s.paths for s in summaries),
        observations=observations,
        missing=missing,
        minimum=min(minima, default=None),
        maximum=max(maxima, default=None),
        total=total,
        mean=total / (observations - missing) if observations > missing else None,
        histogram=_stack_histograms(histograms) if histograms else None,
    )


def _sum(values: Sequence[float]) -> float:
    """The exact sum, rounded once; infinite if it exceeds a double, as in NumPy."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.fsum(value * _SCALE for value in values) / _SCALE
    except ValueError:  # Both infinities are among them.
        return math.nan


def _stack_histograms(histograms: Sequence[Histogram]) -> Histogram:
    counts: Weights = np.stack([histogram.counts for histogram in histograms]).sum(axis=0)
    return Histogram(histograms[0].edges, counts)


@dataclass(slots=True)
class _Moments:
    paths: int = 0
    observations: int = 0
    valued: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    totals: list[float] = field(default_factory=list)

    def add(
        self, values: Numbers | npt.NDArray[np.int64], weights: Weights, *, paths: tuple[int, int]
    ) -> None:
        """Add values with their weights, and (paths, observations) including missing values."""
        self.paths += paths[0]
        self.observations += paths[1]
        if len(values):
            self.valued += int(weights.sum())
            self.minimum = min(self.minimum, values.min().item())
            self.maximum = max(self.maximum, values.max().item())
            with np.errstate(over="ignore", invalid="ignore"):
                self.totals.append(float(np.sum(values.astype(np.float64) * weights)))

    def summary(self, histogram: Histogram | None) -> Summary:
        total, some = _sum(self.totals), self.valued > 0
        return Summary(
            paths=self.paths,
            observations=self.observations,
            missing=self.observations - self.valued,
            minimum=self.minimum if some else None,
            maximum=self.maximum if some else None,
            total=total,
            mean=total / self.valued if some else None,
            histogram=histogram,
        )


def _portions(
    tasks: Sequence[RunScan], feature: str, check: Check
) -> Iterator[tuple[Numbers | npt.NDArray[np.int64], Weights, tuple[int, int]]]:
    """Valid values, their weights, and (paths, observations) of each portion."""
    for run, rows in scan_portions(tasks, check=check):
        column = cast(NumberColumn, run.paths.columns.features[feature].take(rows))
        weights = take_rows(run.paths.rows, rows).astype(np.int64)
        valid = column.valid
        whole = (len(column), int(weights.sum()))
        yield exact_numbers(column)[valid], weights[valid], whole


def _count_bins(
    values: Numbers | npt.NDArray[np.int64], weights: Weights, edges: Numbers
) -> Weights:
    at = np.searchsorted(edges, values, side="right")
    at[values == edges[-1]] = len(edges) - 1
    counts = np.bincount(at, weights=weights, minlength=len(edges) + 1)
    return counts[1 : len(edges)].astype(np.int64)


def rows_by_cell(tasks: Sequence[RunScan], *, check: Check = never_cancelled) -> pa.Table:
    """Observations of the matching paths by cell, ascending."""
    portions: list[_Counted] = []
    for run, rows in scan_portions(tasks, check=check):
        columns = run.paths.columns
        portions.append(
            _count_by_cell(take_rows(columns.cell, rows), take_rows(run.paths.rows, rows))
        )
    cells = np.concatenate([np.empty(0, np.uint64), *(cells for cells, _ in portions)])
    counts = np.concatenate([np.empty(0, np.int64), *(counts for _, counts in portions)])
    return pa.table(list(_count_by_cell(cells, counts)), schema=CELLS_SCHEMA)


def _count_by_cell(cells: npt.NDArray[np.uint64], rows: npt.NDArray[np.integer]) -> _Counted:
    order = np.argsort(cells, kind="stable")
    ordered = cells[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]) != 0)
    if len(starts) == 0:
        return ordered, rows.astype(np.int64)
    return ordered[starts], np.add.reduceat(rows[order].astype(np.int64), starts)
