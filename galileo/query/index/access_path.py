"""Access paths: candidates of queries without spatial conditions, by their most selective
condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from galileo.query.index.bound_columns import BoundColumns, PathRows
from galileo.query.index.prefixes import CandidateRanges, Places, Slots

FEW = 8
"""Queries below which rows are not sorted for a condition."""


@dataclass(frozen=True, slots=True, eq=False)
class _AccessPath:
    """For some of the queries the range of rows, in an order, that one condition leaves."""

    order: Places | None
    members: Places
    start: Places
    stop: Places


def candidates_by_access_path(
    slots: Slots, constants: BoundColumns, rows: PathRows
) -> Iterator[tuple[CandidateRanges, Places | None]]:
    """The rows that may match each query, as ranges of an order of rows.

    Args:
        slots: of the queries.
        constants: of all queries.
        rows: of the batch.
    """
    if len(slots) == 0:
        return
    ways = list(_access_paths(slots, constants, rows))
    best = np.zeros(len(slots), dtype=np.intp)
    fewest = ways[0].stop - ways[0].start
    for number, way in enumerate(ways[1:], start=1):
        counts = way.stop - way.start
        better = counts < fewest[way.members]
        best[way.members[better]] = number
        fewest[way.members[better]] = counts[better]
    for number, way in enumerate(ways):
        taken = best[way.members] == number
        yield (
            CandidateRanges(slots[way.members[taken]], way.start[taken], way.stop[taken]),
            way.order,
        )


def _access_paths(slots: Slots, constants: BoundColumns, rows: PathRows) -> Iterator[_AccessPath]:
    """The access path of all rows, then those of conditions."""
    everyone = np.arange(len(slots))
    yield _AccessPath(None, everyone, np.zeros_like(everyone), np.full_like(everyone, len(rows)))
    if len(slots) < FEW:
        return
    first, last = constants.first[slots], constants.last[slots]
    yield _access_path(rows.columns.bucket, first, last, members=everyone)
    for name, column in constants.numbers.items():
        members = np.flatnonzero(column.bound[slots])
        if len(members) >= FEW:
            named = slots[members]
            yield _access_path(
                rows.numbers(name), column.lo[named], column.hi[named], members=members
            )
    for key, texts in constants.texts.items():
        codes = texts.wanted[slots]
        members = np.flatnonzero(codes >= 0)
        if len(members) >= FEW:
            yield _access_path(
                rows.texts(key, texts), codes[members], codes[members], members=members
            )


def _access_path(
    values: npt.NDArray[np.generic],
    lo: npt.NDArray[np.generic],
    hi: npt.NDArray[np.generic],
    *,
    members: Places,
) -> _AccessPath:
    """By the values in closed intervals; NaN is sorted last, outside of all intervals."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    start = np.searchsorted(ordered, lo, side="left")
    stop = np.searchsorted(ordered, hi, side="right")
    return _AccessPath(order, members, start, np.maximum(start, stop))
