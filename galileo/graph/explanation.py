"""Explanations: what a scan ruled out, what it looked at, and how long each stage took."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from galileo.graph.pieces import Check, found, unchecked
from galileo.graph.runs import Run
from galileo.graph.scan import Task
from galileo.graph.sieve import Condition, Matching, Tally
from galileo.graph.stretches import Rows, size_of

COMMITS = "commits"
"""Stands for the condition that a path is of the commits that were asked for."""


@dataclass(frozen=True, slots=True)
class Step:
    """One condition of the sieve, over all runs.

    Attributes:
        condition: CQL2 JSON, or `COMMITS`.
        tested: paths that it was tested on.
        passed: of them.
    """

    condition: str
    tested: int
    passed: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one scan did.

    Attributes:
        runs: of the graph, the head among them.
        runs_pruned: of them without a commit that was asked for.
        zones: entries of the zone maps of the other runs.
        zones_scanned: that could not be ruled out by their bounds and commits.
        paths: in the graph.
        paths_examined: that no bound and no range of cells ruled out.
        cells_tested: paths whose cell or time was compared, besides the binary search for them.
        steps: conditions, by how many paths they were tested on.
        found: paths that match.
        plan_s: seconds for ruling out and for the order of conditions.
        sift_s: seconds for testing conditions.
        gather_s: seconds for making the result.
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


def explained(
    parts: Sequence[Run],
    plan: Callable[[], list[Task]],
    gather: Callable[[Run, Rows], Any],
    *,
    check: Check = unchecked,
) -> Explanation:
    """Does a scan in its three stages, one after the other.

    Args:
        parts: runs and head of the graph.
        plan: prunes them.
        gather: makes a part of the result.
        check: called between pieces of the work; raises to stop it.
    """
    started, tally = time.perf_counter(), Tally()
    tasks = plan()
    planned = time.perf_counter()
    matching = list(found(tasks, check=check, tally=tally))
    sifted = time.perf_counter()
    for run, rows in matching:
        check()
        gather(run, rows)
    gathered = time.perf_counter()
    placed = (c for c in tally.tested if isinstance(c, Matching) and c.placed)
    return Explanation(
        runs=len(parts),
        runs_pruned=len(parts) - len(tasks),
        zones=sum(t.zones for t in tasks),
        zones_scanned=sum(t.zones_scanned for t in tasks),
        paths=sum(map(len, parts)),
        paths_examined=sum(size_of(t.rows) for t in tasks),
        cells_tested=sum(tally.tested[c] for c in placed),
        steps=_steps(tally),
        found=sum(size_of(rows) for _, rows in matching),
        plan_s=planned - started,
        sift_s=sifted - planned,
        gather_s=gathered - sifted,
    )


def _steps(tally: Tally) -> tuple[Step, ...]:
    tested: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for condition in tally.tested:
        tested[_name(condition)] += tally.tested[condition]
        passed[_name(condition)] += tally.passed[condition]
    return tuple(Step(name, count, passed[name]) for name, count in tested.most_common())


def _name(condition: Condition) -> str:
    return condition.text if isinstance(condition, Matching) else COMMITS
