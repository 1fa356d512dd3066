"""EXPLAIN of a scan: what it pruned, what it read, and the duration of each stage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from galileo.graph.filter_pipeline import FilterStats, PredicateFilter, RowFilter
from galileo.graph.row_ranges import Rows, count_rows
from galileo.graph.run_scan import Check, RunScan, never_cancelled, scan_portions
from galileo.graph.sorted_runs import SortedRun

COMMITS = "commits"
"""Name of the commit filter among the conditions."""


@dataclass(frozen=True, slots=True)
class Step:
    """One filter of the pipeline, over all runs.

    Attributes:
        condition: CQL2 JSON, or `COMMITS`.
        tested: number of tested paths.
        passed: number of paths that passed.
    """

    condition: str
    tested: int
    passed: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one scan did.

    Attributes:
        runs: of the graph, including the memtable.
        runs_pruned: runs without a requested commit.
        zones: entries of the zone maps of the other runs.
        zones_scanned: zones that their bounds and commits did not exclude.
        paths: in the graph.
        paths_examined: paths that no bound and no range of cells excluded.
        cells_tested: paths whose cell or time was compared, besides the binary search for them.
        steps: conditions, by how many paths they were tested on.
        found: paths that match.
        plan_s: seconds for pruning and ordering conditions.
        sift_s: seconds for testing conditions.
        gather_s: seconds for building the result.
    """

    runs: int
    runs_pruned: int
    zones: int
    zones_scanned: int
    paths: int
    paths_examined: int
    cells_tested: int
    steps: tuple[Step, ...]
    found: int
    plan_s: float
    sift_s: float
    gather_s: float


def build_explanation(
    parts: Sequence[SortedRun],
    plan: Callable[[], list[RunScan]],
    gather: Callable[[SortedRun, Rows], Any],
    *,
    check: Check = never_cancelled,
) -> Explanation:
    """Execute a scan stage by stage, and measure each.

    Args:
        parts: runs and memtable of the graph.
        plan: prunes them.
        gather: builds a part of the result.
        check: called between portions of work; raises to cancel it.
    """
    started, tally = time.perf_counter(), FilterStats()
    tasks = plan()
    planned = time.perf_counter()
    matching = list(scan_portions(tasks, check=check, tally=tally))
    sifted = time.perf_counter()
    for run, rows in matching:
        check()
        gather(run, rows)
    gathered = time.perf_counter()
    placed = (c for c in tally.tested if isinstance(c, PredicateFilter) and c.placed)
    return Explanation(
        runs=len(parts),
        runs_pruned=len(parts) - len(tasks),
        zones=sum(t.zones for t in tasks),
        zones_scanned=sum(t.zones_scanned for t in tasks),
        paths=sum(map(len, parts)),
        paths_examined=sum(count_rows(t.rows) for t in tasks),
        cells_tested=sum(tally.tested[c] for c in placed),
        steps=_steps(tally),
        found=sum(count_rows(rows) for _, rows in matching),
        plan_s=planned - started,
        sift_s=sifted - planned,
        gather_s=gathered - sifted,
    )


def _steps(tally: FilterStats) -> tuple[Step, ...]:
    tested: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for condition in tally.tested:
        tested[_name(condition)] += tally.tested[condition]
        passed[_name(condition)] += tally.passed[condition]
    return tuple(Step(name, count, passed[name]) for name, count in tested.most_common())


def _name(condition: RowFilter) -> str:
    return condition.text if isinstance(condition, PredicateFilter) else COMMITS
