"""The processing cycles of one node: all CCQs that are due at a tick share one job.

Each CCQ is either planned for the time at which it is due, or in a cycle, or resting because its
dataset has no new commits. Only due CCQs are visited, and resting ones become due when their
dataset has new commits: an idle CCQ costs nothing.

Caches of resting CCQs are compacted, one at a time: packs of several cycles become one. So a fetch
takes time in proportion to the labels, not to the cycles that found them.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from itertools import islice

from galileo.ccq.coordinator import Coordinator
from galileo.ccq.events import (
    AbandonCycle,
    CompactPacks,
    CycleFailed,
    CycleFinished,
    CycleItem,
    Effects,
    StartCycle,
)
from galileo.ccq.state import NodeState

ITEMS_MAX = 100_000
"""CCQs in one cycle; the others wait for the next tick."""
RESTING_SLACK = 64
"""Ended CCQs that a list of resting ones may hold, on top of as many as there are CCQs."""
COMPACTION_CHECKS_MAX = 64
"""Resting CCQs that are checked for compaction in one tick; most need none."""


@dataclass(frozen=True, slots=True)
class _Running:
    items: tuple[CycleItem, ...]
    deadline: float
    started_at: float


class Schedule:
    """Plans the cycles of one node."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._running: dict[int, _Running] = {}
        self._count = 0
        self._planned: dict[str, float] = {}
        self._agenda: list[float] = []
        self._due: dict[float, deque[str]] = {}
        self._resting: dict[str, dict[str, None]] = {}
        self._may_compact: dict[str, None] = {}
        self._compacting: str | None = None

    @property
    def due_at(self) -> float | None:
        """The earliest time at which a CCQ is due; None if all rest."""
        return self._agenda[0] if self._agenda else None

    def wake(self, dataset: str, now: float) -> None:
        """Plan the resting CCQs of a dataset that has new commits."""
        for ccq_id in self._resting.pop(dataset, ()):
            coordinator = self._state.coordinated.get(ccq_id)
            if coordinator is not None and coordinator.cycles.is_resting:
                coordinator.cycles.wake(now)
                self._plan(ccq_id)

    def tick(self, now: float) -> Effects:
        return [*self._abandon(now), *self._start(now), *self._compact_resting()]

    def on_compacted(self, ccq_id: str) -> None:
        """A requested compaction is done."""
        if ccq_id == self._compacting:
            self._compacting = None

    def on_finished(self, event: CycleFinished, now: float) -> Effects:
        """Apply the results, also those of abandoned cycles."""
        running = self._running.pop(event.cycle_id, None)
        self._record_duration(running, now)
        for waiting in self._in_flight(event.cycle_id, running):
            waiting.cycles.end(now)
        effects: Effects = []
        for result in event.results:
            coordinator = self._state.coordinated.get(result.ccq_id)
            if coordinator is not None and coordinator.term == result.term:
                effects += coordinator.apply_result(result, now)
        self._plan_all(running)
        return effects

    def on_failed(self, event: CycleFailed, now: float) -> Effects:
        running = self._running.pop(event.cycle_id, None)
        if running is not None:
            self._fail(event.cycle_id, running, now)
        return []

    def check(self) -> None:
        for coordinator in self._state.coordinated.values():
            running = coordinator.cycles.running
            assert running is None or running in self._running, "waits for a cycle that is over"
            is_resting = coordinator.ccq.id in self._resting.get(coordinator.ccq.dataset, ())
            is_planned = (
                coordinator.ccq.id in self._planned
                or coordinator.ccq.id in self._state.newly_coordinated
            )
            assert is_planned or is_resting or running is not None, "is neither planned nor resting"

    def _start(self, now: float) -> Effects:
        for ccq_id in self._state.newly_coordinated:
            self._plan(ccq_id)
        self._state.newly_coordinated.clear()
        items: list[CycleItem] = []
        while len(items) < ITEMS_MAX:
            due = self._next_due(now)
            if due is None:
                break
            items += self._next_items(due, now)
        if not items:
            return []
        self._count += 1
        for item in items:
            known = self._state.known_commits(item.ccq.dataset)
            self._state.coordinated[item.ccq.id].cycles.start(self._count, known, now)
        deadline = now + self._state.options.cycle_timeout_s
        self._running[self._count] = _Running(tuple(items), deadline, now)
        return [StartCycle(self._count, tuple(items))]

    def _next_items(self, ccq_id: str, now: float) -> list[CycleItem]:
        """The cycle item of a due CCQ; with nothing to do, it rests."""
        coordinator = self._state.coordinated.get(ccq_id)
        if coordinator is None or coordinator.cycles.running is not None:
            return []
        if coordinator.cycles.due_at > now:
            self._plan(ccq_id)  # It was postponed.
            return []
        item = coordinator.cycles.item(self._state.known_commits(coordinator.ccq.dataset), now)
        if item is None:
            self._rest(ccq_id, coordinator.ccq.dataset)
            return []
        return [item]

    def _rest(self, ccq_id: str, dataset: str) -> None:
        resting = self._resting.setdefault(dataset, {})
        resting[ccq_id] = self._may_compact[ccq_id] = None
        coordinated = self._state.coordinated
        if len(resting) > 2 * len(coordinated) + RESTING_SLACK:
            self._resting[dataset] = {ccq_id: None for ccq_id in resting if ccq_id in coordinated}

    def _compact_resting(self) -> Effects:
        """Compact the cache of one resting CCQ that gains from it."""
        looked_at = (
            list(islice(self._may_compact, COMPACTION_CHECKS_MAX))
            if self._compacting is None
            else ()
        )
        for ccq_id in looked_at:
            del self._may_compact[ccq_id]
            coordinator = self._state.coordinated.get(ccq_id)
            if coordinator is None or not coordinator.cycles.is_resting:
                continue
            labels = coordinator.cache.compact_at_rest()
            if labels is not None:
                self._compacting = ccq_id
                return [CompactPacks(coordinator.ccq, coordinator.term, labels)]
        return []

    def _next_due(self, now: float) -> str | None:
        while self._agenda and self._agenda[0] <= now:
            at = self._agenda[0]
            due = self._due[at]
            while due:
                ccq_id = due.popleft()
                if self._planned.get(ccq_id) == at:
                    del self._planned[ccq_id]
                    return ccq_id
            del self._due[heapq.heappop(self._agenda)]
        return None

    def _plan(self, ccq_id: str) -> None:
        coordinator = self._state.coordinated.get(ccq_id)
        if coordinator is None:
            return
        at = self._planned[ccq_id] = coordinator.cycles.due_at
        due = self._due.get(at)
        if due is None:
            due = self._due[at] = deque()
            heapq.heappush(self._agenda, at)
        due.append(ccq_id)

    def _plan_all(self, running: _Running | None) -> None:
        for item in running.items if running else ():
            self._plan(item.ccq.id)

    def _abandon(self, now: float) -> Effects:
        late = [i for i, running in self._running.items() if running.deadline <= now]
        for cycle_id in late:
            self._fail(cycle_id, self._running.pop(cycle_id), now)
        return [AbandonCycle(cycle_id) for cycle_id in late]

    def _fail(self, cycle_id: int, running: _Running, now: float) -> None:
        self._record_duration(running, now)
        self._state.counts.cycles_failed += 1
        for coordinator in self._in_flight(cycle_id, running):
            coordinator.cycles.fail(now)
        self._plan_all(running)

    def _record_duration(self, running: _Running | None, now: float) -> None:
        if running is not None:
            self._state.counts.cycles.observe(now - running.started_at)

    def _in_flight(self, cycle_id: int, running: _Running | None) -> list[Coordinator]:
        """The coordinators that wait for this cycle: all but those that ended or changed their
        term.
        """
        items = running.items if running else ()
        coordinators = [self._state.coordinated.get(item.ccq.id) for item in items]
        return [
            coordinator
            for coordinator in coordinators
            if coordinator is not None and coordinator.cycles.running == cycle_id
        ]
