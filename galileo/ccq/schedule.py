"""The processing cycles of one node: what is due at a tick goes into one job."""

from __future__ import annotations

from dataclasses import dataclass

from galileo.ccq.coordination import Coordination
from galileo.ccq.events import (
    AbandonCycle,
    CycleFailed,
    CycleFinished,
    CycleItem,
    StartCycle,
)
from galileo.ccq.state import Effects, NodeState


@dataclass(frozen=True, slots=True)
class _Running:
    items: tuple[CycleItem, ...]
    deadline: float


class Schedule:
    """See the module. A coordination that ended meanwhile is known by its term."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._running: dict[int, _Running] = {}
        self._count = 0

    def tick(self, now: float) -> Effects:
        return [*self._abandon(now), *self._start(now)]

    def on_finished(self, event: CycleFinished, now: float) -> Effects:
        """Takes the results over, those of abandoned cycles too."""
        running = self._running.pop(event.cycle_id, None)
        for waiting in self._in_flight(event.cycle_id, running):
            waiting.cycles.running = None
        effects: Effects = []
        for result in event.results:
            led = self._state.led.get(result.ccq_id)
            if led is not None and led.term == result.term:
                effects += led.take_over(result, now)
        self._keep_to_budget()
        return effects

    def on_failed(self, event: CycleFailed, now: float) -> Effects:
        running = self._running.pop(event.cycle_id, None)
        if running is not None:
            self._fail(event.cycle_id, running, now)
        return []

    def check(self) -> None:
        for led in self._state.led.values():
            running = led.cycles.running
            assert running is None or running in self._running, "waits for a cycle that is over"

    def _start(self, now: float) -> Effects:
        items = []
        for led in self._state.led.values():
            item = led.cycles.item(self._state.known_of(led.ccq.dataset), now)
            if item is not None:
                items.append(item)
            if len(items) == self._state.options.cycle_items_max:
                break
        if not items:
            return []
        self._count += 1
        for item in items:
            known = self._state.known_of(item.ccq.dataset)
            self._state.led[item.ccq.id].cycles.start(self._count, known, now)
        deadline = now + self._state.options.cycle_timeout_s
        self._running[self._count] = _Running(tuple(items), deadline)
        return [StartCycle(self._count, tuple(items))]

    def _abandon(self, now: float) -> Effects:
        late = [i for i, running in self._running.items() if running.deadline <= now]
        for cycle_id in late:
            self._fail(cycle_id, self._running.pop(cycle_id), now)
        return [AbandonCycle(cycle_id) for cycle_id in late]

    def _fail(self, cycle_id: int, running: _Running, now: float) -> None:
        for led in self._in_flight(cycle_id, running):
            led.cycles.fail(now)

    def _in_flight(self, cycle_id: int, running: _Running | None) -> list[Coordination]:
        """Those that wait for this cycle; all of its CCQs unless they ended or were re-elected."""
        led = self._state.led
        found = [led.get(item.ccq.id) for item in (running.items if running else ())]
        return [one for one in found if one is not None and one.cycles.running == cycle_id]

    def _keep_to_budget(self) -> None:
        """Drops the oldest labels of the largest cache; a rescan finds them again."""
        caches = [led.cache for led in self._state.led.values()]
        while sum(cache.bytes for cache in caches) > self._state.options.cache_bytes_max:
            if not max(caches, key=lambda cache: cache.bytes).shrink():
                return
