"""Keeps the caches of a node within their memory: spills, hands off or drops (decision 0022).

While all caches together have room (`galileo.ccq.thresholds`) nothing is done, however unequal they
are. When there is no room, those over their thresholds, and what this node holds of CCQs that it
gave away,

1. let go of what they have in files as well;
2. write their oldest packs into files, if their readers come seldom (no reader waits for it);
3. or else are given away to a node with more room, which begins where the cache ends;
4. or, where there is none, write their oldest packs into files all the same.

Only over the allowance, where none of that came in time, labels are dropped, the oldest of the
largest cache first. A rescan finds them again: being full costs time, never labels.

What waits in files comes back to memory shortly before its readers are expected, as far as there is
room; and whenever a fetch needs it.
"""

from __future__ import annotations

import numpy as np

from galileo.ccq.cache import LabelCache
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.coordinator_elections import CoordinatorElections
from galileo.ccq.events import DropSpills, LoadPacks, PacksLoaded, PacksSpilled, SpillPacks
from galileo.ccq.handed_off_cache import HandedOffCache
from galileo.ccq.state import Effects, NodeState
from galileo.ccq.thresholds import MemoryBudget, free_capacity, thresholds


class CacheMemory:
    """See the module."""

    def __init__(self, state: NodeState, elections: CoordinatorElections) -> None:
        self._state = state
        self._elections = elections
        self._numbers = 0
        self._spilling: dict[int, LabelCache] = {}
        self._with_files: dict[str, None] = {}
        self._check_at = 0.0
        self._spill_at = 0.0

    # --- events --------------------------------------------------------------------------------

    def tick(self, now: float) -> Effects:
        """Looks ahead, and after caches that are too full, every now and then."""
        if now < self._check_at:
            return []
        self._check_at = now + self._state.options.full_check_s
        return [*self._release_handed_off(now), *self._load_ahead(now), *self.enforce(now)]

    def on_spilled(self, event: PacksSpilled, now: float) -> Effects:
        self._spilling.pop(event.number).apply_spilled(event.number, event.bytes)
        if event.bytes is None:
            self._spill_at = now + self._state.options.spill_retry_s
        return self.enforce(now)

    def on_loaded(self, event: PacksLoaded, now: float) -> Effects:
        """Serves who waits for the file, then looks whether there is still room for it."""
        effects: Effects = []
        led = self._state.coordinated.get(event.ccq_id)
        if led is not None:
            led.cache.apply_loaded(event.number, event.labels)
            effects += led.fetches.on_loaded(now)
        for holding in self._state.handed_off.of(event.ccq_id):
            holding.cache.apply_loaded(event.number, event.labels)
            effects += holding.on_loaded()
        return [*effects, *self.enforce(now)]

    def apply_discarded(self) -> Effects:
        """Has the files deleted that are not needed any more."""
        tally = self._state.cache_usage
        if not tally.discarded:
            return []
        numbers, tally.discarded = tuple(tally.discarded), []
        return [DropSpills(numbers)]

    def enforce(self, now: float) -> Effects:
        """Does what there is to be done when there is no room."""
        whole = free_capacity(self._memory_budget(), weights=self._state.options.weights)
        if not self._is_over(whole):
            return []
        overflowed = self._overflowed(now)
        victims: list[Coordinator | HandedOffCache] = [*self._state.handed_off.all(), *overflowed]
        for one in victims:
            if self._is_over(whole):
                one.cache.unload()
        effects: Effects = []
        for one in victims:
            if self._is_over(whole) and self._may_wait_in_files(one, now):
                effects += self._spill(one, now)
        for led in overflowed:
            if self._is_over(whole) and not self._is_draining_to_files(led, now):
                effects += self._elections.transfer_coordinator(led.ccq.id, now)
        for led in overflowed:
            if self._is_over(whole) and led.ccq.id not in self._elections:
                effects += self._spill(led, now)
        self._drop()
        return effects

    def check(self) -> None:
        for number, cache in self._spilling.items():
            assert number in cache.spilling, f"file {number} is written for no cache"

    # --- inside --------------------------------------------------------------------------------

    def _memory_budget(self) -> MemoryBudget:
        measured, budget = self._state.measured, self._state.options.cache_bytes_max
        if not self._state.is_measured:
            return MemoryBudget(budget, budget)
        memory_bytes = measured.cache_bytes + measured.memory_free_bytes
        return MemoryBudget(budget, memory_bytes, measured.cpu_share)

    def _is_over(self, limit: int) -> bool:
        """Whether the caches take more, without what is on its way to files."""
        if self._state.cache_usage.bytes <= limit:
            return False
        return self._state.cache_usage.bytes - self._spilling_bytes() > limit

    def _spilling_bytes(self) -> int:
        caches = {id(cache): cache for cache in self._spilling.values()}
        return sum(cache.spilling_bytes for cache in caches.values())

    def _overflowed(self, now: float) -> list[Coordinator]:
        """What is over its threshold, most of all first."""
        led = list(self._state.coordinated.values())
        if not led:
            return []
        fetches = [one.fetch_stats.recent_fetch_rate(now) for one in led]
        bounds = thresholds(self._memory_budget(), fetches, weights=self._state.options.weights)
        excess = np.array([one.cache.bytes for one in led]) - bounds
        order = np.argsort(-excess, kind="stable")
        return [led[i] for i in order.tolist() if excess[i] > 0]

    # --- files ---------------------------------------------------------------------------------

    def _may_wait_in_files(self, one: Coordinator | HandedOffCache, now: float) -> bool:
        """Whether no reader is expected to fetch its oldest labels soon."""
        if isinstance(one, HandedOffCache):
            return True
        idle_s, interval_s = self._state.options.spill_idle_s, one.ccq.interval_s
        pause_s = max(interval_s, one.fetch_stats.pause_s or 0.0, now - one.fetch_stats.last_at)
        return pause_s >= idle_s and not self._is_awaited(one, now)

    def _is_awaited(self, led: Coordinator, now: float) -> bool:
        """Whether readers are expected within a moment, and are not late already."""
        awaited_s = led.fetch_stats.next_expected_at(led.ccq.interval_s) - now
        return 0.0 <= awaited_s <= self._state.options.load_ahead_s

    def _spill(self, one: Coordinator | HandedOffCache, now: float) -> Effects:
        options, cache = self._state.options, one.cache
        if len(self._spilling) >= options.spills_max or now < self._spill_at:
            return []
        number = self._numbers + 1
        labels = cache.spill(number)
        if labels is None:
            return []
        if self._state.cache_usage.spilled_bytes + self._spilling_bytes() + labels.size > (
            options.spill_bytes_max
        ):
            cache.apply_spilled(number, None)
            return []
        self._numbers = number
        self._spilling[number] = cache
        self._with_files[one.ccq.id] = None
        return [SpillPacks(number, one.ccq, labels)]

    def _is_draining_to_files(self, led: Coordinator, now: float) -> bool:
        """Whether its cache becomes smaller by itself, as soon as files are written."""
        is_busy = len(self._spilling) >= self._state.options.spills_max
        is_written = any(cache is led.cache for cache in self._spilling.values())
        return self._may_wait_in_files(led, now) and (is_busy or is_written)

    def _load_ahead(self, now: float) -> Effects:
        """Brings back what readers are expected to ask for, the oldest first."""
        effects: Effects = []
        whole = free_capacity(self._memory_budget(), weights=self._state.options.weights)
        for ccq_id in list(self._with_files):
            led = self._state.coordinated.get(ccq_id)
            if led is None or not (led.cache.spilled_bytes or led.cache.spilling):
                del self._with_files[ccq_id]
            elif self._is_awaited(led, now):
                effects += self._load(led, whole)
        return effects

    def _load(self, led: Coordinator, whole: int) -> Effects:
        effects: Effects = []
        left = whole - self._state.cache_usage.bytes
        for spill in led.cache.missing_spills():
            left -= spill.loaded_bytes
            if left < 0:
                break
            if led.cache.load(spill.number):
                effects.append(LoadPacks(spill.number, led.ccq))
        return effects

    # --- holders and the last resort -----------------------------------------------------------

    def _release_handed_off(self, now: float) -> Effects:
        state = self._state
        return [
            effect
            for ccq_id in state.handed_off.ccq_ids()
            for effect in state.handed_off.on_record(ccq_id, state.record_table.get(ccq_id), now)
        ]

    def _drop(self) -> None:
        """Keeps the budget whatever it takes."""
        allowance = self._memory_budget().allowance
        if not self._is_over(allowance):
            return
        caches = [holding.cache for holding in self._state.handed_off.all()]
        caches += [led.cache for led in self._state.coordinated.values()]
        for cache in caches:
            cache.unload()
        while self._is_over(allowance):
            if not max(caches, key=lambda cache: cache.bytes - cache.spilling_bytes).shrink():
                return
