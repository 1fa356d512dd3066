"""The evaluator of a simulated node: cycles and rescans that are slow, wrong, late or lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from galileo.ccq.events import (
    Backfill,
    BackfillFailed,
    BackfillFinished,
    ContinuousEvent,
    CycleFailed,
    CycleFinished,
    CycleItem,
    CycleResult,
    StartCycle,
)
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Failure
from simulator.logs import Log, Path, scan, to_labels
from simulator.loop import Loop

CYCLE_MEAN_S = 0.08
FAILURE = Failure("unavailable", "the job failed")

Known = Callable[[str], Cursor]
"""The commits of a dataset that the node knows."""
Labour = Callable[[StartCycle], float]
"""Seconds of work of storage nodes for a cycle."""


def no_labour(effect: StartCycle) -> float:
    """Scans take no time."""
    return 0.0


class Readable(Protocol):
    """The log of a partition as some node reads it that is reachable from here.

    Any replica may answer that has published `committed`, a commit that is known to be committed.
    """

    def __call__(self, partition: int, committed: int) -> Log | None: ...


class Evaluate(Protocol):
    """Evaluates one item; variants replace it."""

    def __call__(self, item: CycleItem, logs: dict[int, Log], *, wall: float) -> CycleResult: ...


@dataclass(slots=True)
class Trouble:
    """Probabilities of faults of one job; `spoils`: of one spill file."""

    fails: float = 0.0
    is_lost: float = 0.0
    is_slow: float = 0.0
    falls_short: float = 0.0
    spoils: float = 0.0


NO_TROUBLE = Trouble()
USUAL_TROUBLE = Trouble(fails=0.01, is_lost=0.01, is_slow=0.06, falls_short=0.1, spoils=0.1)


class Evaluator:
    """Runs cycles and rescans. `answer` drops results of an earlier run of the node."""

    def __init__(
        self,
        loop: Loop,
        *,
        readable: Readable,
        known: Known,
        evaluate: Evaluate,
        conceals: bool = False,
        labour: Labour = no_labour,
    ) -> None:
        self._conceals = conceals
        self._labour = labour
        self._loop = loop
        self._readable = readable
        self._known = known
        self._evaluate = evaluate

    def cycle(
        self,
        effect: StartCycle,
        *,
        trouble: Trouble,
        wall: float,
        answer: Callable[[ContinuousEvent], None],
    ) -> None:
        loop = self._loop
        if loop.chance(trouble.is_lost):
            loop.counters["cycles lost"] += 1
            return

        # Before the answers: the node chooses replicas when the cycle begins.
        known = {item.ccq.dataset: self._known(item.ccq.dataset) for item in effect.items}

        def look() -> None:
            results = tuple(
                self._result(item, wall, trouble, known=known[item.ccq.dataset])
                for item in effect.items
            )
            done = CycleFinished(effect.cycle_id, results)
            loop.after(loop.delay(CYCLE_MEAN_S / 2), lambda: answer(done))

        slow_s = loop.random.uniform(0.5, 4.0) if loop.chance(trouble.is_slow) else 0.0
        if loop.chance(trouble.fails):
            loop.counters["cycles failed"] += 1
            loop.after(loop.delay(0.05), lambda: answer(CycleFailed(effect.cycle_id, FAILURE)))
        else:
            labour_s = self._labour(effect)
            loop.after(loop.delay(CYCLE_MEAN_S / 2) + slow_s + labour_s, look)

    def backfill(
        self, effect: Backfill, *, trouble: Trouble, answer: Callable[[ContinuousEvent], None]
    ) -> None:
        loop = self._loop
        if loop.chance(trouble.is_lost):
            return
        if loop.chance(trouble.fails):
            loop.after(0.05, lambda: answer(BackfillFailed(effect.request, FAILURE)))
            return
        delay_s = loop.delay(CYCLE_MEAN_S)
        loop.after(delay_s, lambda: answer(self._rescan(effect)))

    def _result(
        self, item: CycleItem, wall: float, trouble: Trouble, *, known: Cursor
    ) -> CycleResult:
        """Evaluate the reachable partitions; some answer with less than they have."""
        logs = {}
        for partition in item.partitions:
            least = item.after[partition]
            log = self._readable(partition, max(least, known[partition]))
            if log is None:
                continue
            end = log.end
            if end > least and self._loop.chance(trouble.falls_short):
                end = self._loop.random.randint(least, end)
            logs[partition] = Log(partition, log.commits[:end], dropped=min(log.dropped, end))
        found = self._evaluate(item, logs, wall=wall)
        return replace(found, gone=EMPTY_CURSOR) if self._conceals else found

    def _rescan(self, effect: Backfill) -> BackfillFinished:
        paths: list[Path] = []
        reached, missing, gone = {}, [], {}
        for partition, until in effect.until.items():
            log = self._readable(partition, until)
            if log is None:
                missing.append(partition)
                continue
            reached[partition] = effect.after[partition]
            bound = min(until, log.dropped)
            if bound > reached[partition] and not self._conceals:
                gone[partition] = bound
            reached[partition] = max(bound, reached[partition])
            end = min(until, log.end)
            while reached[partition] < end and len(paths) < effect.labels_max:
                at = reached[partition]
                paths += scan(effect.ccq, log, after=at, until=at + 1)
                reached[partition] = at + 1
        self._loop.counters["backfills"] += 1
        found = to_labels(paths)
        ranges = Cursor(reached), tuple(missing), Cursor(gone)
        return BackfillFinished(effect.request, found, *ranges)


def by_sequence(item: CycleItem, logs: dict[int, Log], *, wall: float) -> CycleResult:
    """The production behaviour: all commits past the cursor; deleted ones are reported."""
    paths: list[Path] = []
    reached, gone = {}, {}
    for partition, log in logs.items():
        after = max(item.after[partition], log.dropped)
        paths += scan(item.ccq, log, after=after, until=log.end)
        reached[partition] = max(log.end, item.after[partition])
        if log.dropped > item.after[partition]:
            gone[partition] = log.dropped
    return CycleResult(
        *(item.ccq.id, item.term, item.after, to_labels(paths), Cursor(reached)), gone=Cursor(gone)
    )
