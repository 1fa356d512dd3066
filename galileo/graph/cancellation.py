"""Scans in portions, which can be cancelled between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from galileo.graph.filter_pipeline import FilterStats
from galileo.graph.row_ranges import Rows
from galileo.graph.run_scan import RunScan
from galileo.graph.sorted_runs import SortedRun

Check: TypeAlias = Callable[[], None]
"""Called between portions of work; raises to cancel it."""


def never_cancelled() -> None:
    """The check of work that is never cancelled."""


def scan_portions(
    tasks: Sequence[RunScan], *, check: Check = never_cancelled, tally: FilterStats | None = None
) -> Iterator[tuple[SortedRun, Rows]]:
    """Matching rows of scans, run by run, in portions that suit gathering."""
    for task in tasks:
        check()
        for rows in task.portions(tally=tally):
            check()
            yield task.run, rows
