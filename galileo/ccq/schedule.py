"""The processing cycles of one node: what is due at a tick goes into one job.

A CCQ is planned for the time at which it is due, together with all that are due then, is in a
cycle, or rests because nothing is new in its dataset. Only what is due is looked at, and what rests
is due only after its dataset has news: a CCQ that has nothing to do costs nothing.

What has come to rest is tidied, one CCQ at a time, with the ticks: what cycles left in its cache in
several packs becomes one. So a fetch takes as long as there are labels, however many cycles found
them.
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
    StartCycle,
)
from galileo.ccq.state import Effects, NodeState

RESTING_SLACK = 64
"""Ended CCQs that a dataset's list of resting ones may hold, on top of as many as there are."""
TIDIED_MAX = 64
"""Resting CCQs whose packs are looked at in one tick; most need nothing."""


@dataclass(frozen=True, slots=True)
class _Running:
    items: tuple[CycleItem, ...]
    deadline: float
    started_at: float


class Schedule:
    """See the module. A coordination that ended meanwhile is known by its term."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._running: dict[int, _Running] = {}
        self._count = 0
        self._planned: dict[str, float] = {}
        self._agenda: list[float] = []
        self._due: dict[float, deque[str]] = {}
        self._resting: dict[str, dict[str, None]] = {}
        self._untidy: dict[str, None] = {}
        self._tidying: str | None = None

    @property
    def due_at(self) -> float | None:
        """When the next CCQ is to be looked at, at the earliest; None where all rest."""
        return self._agenda[0] if self._agenda else None

    def wake(self, dataset: str, now: float) -> None:
        """There are new commits in a dataset."""
        for ccq_id in self._resting.pop(dataset, ()):
            led = self._state.coordinated.get(ccq_id)
            if led is not None and led.cycles.is_resting:
                led.cycles.wake(now)
                self._plan(ccq_id)

    def tick(self, now: float) -> Effects:
        return [*self._abandon(now), *self._start(now), *self._tidy()]

    def on_compacted(self, ccq_id: str) -> None:
        """A cache's packs were compacted."""
        if ccq_id == self._tidying:
            self._tidying = None

    def on_finished(self, event: CycleFinished, now: float) -> Effects:
        """Takes the results over, those of abandoned cycles too."""
        running = self._running.pop(event.cycle_id, None)
        self._note_time(running, now)
        for waiting in self._in_flight(event.cycle_id, running):
            waiting.cycles.end(now)
        effects: Effects = []
        for result in event.results:
            led = self._state.coordinated.get(result.ccq_id)
            if led is not None and led.term == result.term:
                effects += led.apply_result(result, now)
        self._plan_all(running)
        return effects

    def on_failed(self, event: CycleFailed, now: float) -> Effects:
        running = self._running.pop(event.cycle_id, None)
        if running is not None:
            self._fail(event.cycle_id, running, now)
        return []

    def check(self) -> None:
        for led in self._state.coordinated.values():
            running = led.cycles.running
            assert running is None or running in self._running, "waits for a cycle that is over"
            is_resting = led.ccq.id in self._resting.get(led.ccq.dataset, ())
            is_planned = led.ccq.id in self._planned or led.ccq.id in self._state.begun
            assert is_planned or is_resting or running is not None, "will never be looked at"

    def _start(self, now: float) -> Effects:
        for begun in self._state.begun:
            self._plan(begun)
        self._state.begun.clear()
        items: list[CycleItem] = []
        while len(items) < self._state.options.cycle_items_max:
            due = self._next_due(now)
            if due is None:
                break
            items += self._look_at(due, now)
        if not items:
            return []
        self._count += 1
        for item in items:
            known = self._state.known_commits(item.ccq.dataset)
            self._state.coordinated[item.ccq.id].cycles.start(self._count, known, now)
        deadline = now + self._state.options.cycle_timeout_s
        self._running[self._count] = _Running(tuple(items), deadline, now)
        return [StartCycle(self._count, tuple(items))]

    def _look_at(self, ccq_id: str, now: float) -> list[CycleItem]:
        """What there is to do for a CCQ that is due; where there is nothing, it rests."""
        led = self._state.coordinated.get(ccq_id)
        if led is None or led.cycles.running is not None:
            return []
        if led.cycles.due_at > now:
            self._plan(ccq_id)  # It was put off since.
            return []
        item = led.cycles.item(self._state.known_commits(led.ccq.dataset), now)
        if item is None:
            self._let_rest(ccq_id, led.ccq.dataset)
            return []
        return [item]

    def _let_rest(self, ccq_id: str, dataset: str) -> None:
        resting = self._resting.setdefault(dataset, {})
        resting[ccq_id] = self._untidy[ccq_id] = None
        led = self._state.coordinated
        if len(resting) > 2 * len(led) + RESTING_SLACK:
            self._resting[dataset] = {one: None for one in resting if one in led}

    def _tidy(self) -> Effects:
        """Has the packs of one that rests put together, where that is worth it."""
        looked_at = list(islice(self._untidy, TIDIED_MAX)) if self._tidying is None else ()
        for ccq_id in looked_at:
            del self._untidy[ccq_id]
            led = self._state.coordinated.get(ccq_id)
            if led is None or not led.cycles.is_resting:
                continue
            crowd = led.cache.compact_at_rest()
            if crowd is not None:
                self._tidying = ccq_id
                return [CompactPacks(led.ccq, led.term, crowd)]
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
        led = self._state.coordinated.get(ccq_id)
        if led is None:
            return
        at = self._planned[ccq_id] = led.cycles.due_at
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
        self._note_time(running, now)
        self._state.counts.cycles_failed += 1
        for led in self._in_flight(cycle_id, running):
            led.cycles.fail(now)
        self._plan_all(running)

    def _note_time(self, running: _Running | None, now: float) -> None:
        if running is not None:
            self._state.counts.cycles.observe(now - running.started_at)

    def _in_flight(self, cycle_id: int, running: _Running | None) -> list[Coordinator]:
        """Those that wait for this cycle; all of its CCQs unless they ended or were re-elected."""
        led = self._state.coordinated
        found = [led.get(item.ccq.id) for item in (running.items if running else ())]
        return [one for one in found if one is not None and one.cycles.running == cycle_id]
