"""Keeps the caches of a node within their memory: spills, hands off or drops (decision 0022).

While all caches together are below the capacity (`galileo.ccq.thresholds`) nothing is done, however
unequal they are. Above it, caches over their thresholds, and handed-off caches,

1. drop from memory what files have, too;
2. write their oldest packs into files, if no reader is expected soon;
3. or else are handed off to a node with more memory, which begins where the cache ends;
4. or, if there is none, write their oldest packs into files all the same.

Only above the allowance, if none of that came in time, labels are dropped, the oldest of the
largest cache first. A rescan finds them again: a full cache costs time, never labels.

Spilled packs are loaded shortly before their readers are expected, as far as memory allows, and
whenever a fetch needs them.
"""

from __future__ import annotations

import numpy as np

from galileo.ccq.cache import LabelCache
from galileo.ccq.coordinator import Coordinator
from galileo.ccq.events import DropSpills, Effects, LoadPacks, PacksLoaded, PacksSpilled, SpillPacks
from galileo.ccq.handed_off_cache import HandedOffCache
from galileo.ccq.moves import Moves
from galileo.ccq.state import NodeState
from galileo.ccq.thresholds import MemoryBudget, free_capacity, thresholds

CHECK_S = 0.5
"""Interval of checks of the memory budget, besides after each cycle."""
SPILL_IDLE_S = 60.0
"""Interval of readers from which on a CCQ may be spilled."""
SPILLS_MAX = 4
"""Files that are written at a time."""
SPILL_RETRY_S = 10.0
"""Pause after a failed write of a file."""
LOAD_AHEAD_S = 5.0
"""Time before readers are expected at which packs are loaded."""
HOLDERS_MAX = 4
"""Nodes that may keep ranges of one CCQ, besides its coordinator."""


class CacheMemory:
    """Enforces the memory budget of all caches of one node."""

    def __init__(self, state: NodeState, moves: Moves) -> None:
        self._state = state
        self._moves = moves
        self._numbers = 0
        self._spilling: dict[int, LabelCache] = {}
        self._with_files: dict[str, None] = {}
        self._check_at = 0.0
        self._spill_at = 0.0

    # --- events --------------------------------------------------------------------------------

    def tick(self, now: float) -> Effects:
        """Every `CHECK_S`: load packs ahead of readers, then enforce the budget."""
        if now < self._check_at:
            return []
        self._check_at = now + CHECK_S
        return [*self._release_handed_off(now), *self._load_ahead(now), *self.enforce(now)]

    def on_spilled(self, event: PacksSpilled, now: float) -> Effects:
        self._spilling.pop(event.number).apply_spilled(event.number, event.bytes)
        if event.bytes is None:
            self._spill_at = now + SPILL_RETRY_S
        return self.enforce(now)

    def on_loaded(self, event: PacksLoaded, now: float) -> Effects:
        """Serve the fetches that wait for the file, then enforce the budget."""
        effects: Effects = []
        coordinator = self._state.coordinated.get(event.ccq_id)
        if coordinator is not None:
            coordinator.cache.apply_loaded(event.number, event.labels)
            effects += coordinator.fetches.on_loaded(now)
        for handed_off in self._state.handed_off.of(event.ccq_id):
            handed_off.cache.apply_loaded(event.number, event.labels)
            effects += handed_off.on_loaded()
        return [*effects, *self.enforce(now)]

    def apply_discarded(self) -> Effects:
        """Delete the files of dropped packs."""
        usage = self._state.cache_usage
        if not usage.discarded:
            return []
        numbers, usage.discarded = tuple(usage.discarded), []
        return [DropSpills(numbers)]

    def enforce(self, now: float) -> Effects:
        """Free memory if the caches are above the capacity."""
        whole = free_capacity(self._memory_budget())
        if not self._is_over(whole):
            return []
        overflowed = self._overflowed(now)
        victims: list[Coordinator | HandedOffCache] = [*self._state.handed_off.all(), *overflowed]
        for victim in victims:
            if self._is_over(whole):
                victim.cache.unload()
        effects: Effects = []
        for victim in victims:
            if self._is_over(whole) and self._may_spill(victim, now):
                effects += self._spill(victim, now)
        for coordinator in overflowed:
            is_spilling = self._is_spilling(coordinator, now)
            is_full = len(coordinator.fetches.holders) >= HOLDERS_MAX
            if self._is_over(whole) and not is_spilling and not is_full:
                effects += self._moves.transfer(coordinator.ccq.id, now)
        for coordinator in overflowed:
            if self._is_over(whole) and coordinator.ccq.id not in self._moves:
                effects += self._spill(coordinator, now)
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
        """Whether the caches take more than `limit`, without packs that are being written."""
        if self._state.cache_usage.bytes <= limit:
            return False
        return self._state.cache_usage.bytes - self._spilling_bytes() > limit

    def _spilling_bytes(self) -> int:
        caches = {id(cache): cache for cache in self._spilling.values()}
        return sum(cache.spilling_bytes for cache in caches.values())

    def _overflowed(self, now: float) -> list[Coordinator]:
        """Coordinators whose cache is over its threshold, the largest excess first."""
        coordinators = list(self._state.coordinated.values())
        if not coordinators:
            return []
        fetches = [coordinator.fetch_stats.recent_fetch_rate(now) for coordinator in coordinators]
        bounds = thresholds(self._memory_budget(), fetches)
        excess = np.array([coordinator.cache.bytes for coordinator in coordinators]) - bounds
        order = np.argsort(-excess, kind="stable")
        return [coordinators[i] for i in order.tolist() if excess[i] > 0]

    # --- files ---------------------------------------------------------------------------------

    def _may_spill(self, cached: Coordinator | HandedOffCache, now: float) -> bool:
        """Whether no reader is expected to fetch its oldest labels soon."""
        if isinstance(cached, HandedOffCache):
            return True
        interval_s = cached.ccq.interval_s
        pause_s = max(
            interval_s, cached.fetch_stats.pause_s or 0.0, now - cached.fetch_stats.last_at
        )
        return pause_s >= SPILL_IDLE_S and not self._is_expected_soon(cached, now)

    def _is_expected_soon(self, coordinator: Coordinator, now: float) -> bool:
        """Whether readers are expected within `LOAD_AHEAD_S` and are not overdue."""
        awaited_s = coordinator.fetch_stats.next_expected_at(coordinator.ccq.interval_s) - now
        return 0.0 <= awaited_s <= LOAD_AHEAD_S

    def _spill(self, cached: Coordinator | HandedOffCache, now: float) -> Effects:
        cache = cached.cache
        if len(self._spilling) >= SPILLS_MAX or now < self._spill_at:
            return []
        number = self._numbers + 1
        labels = cache.spill(number)
        if labels is None:
            return []
        if self._state.cache_usage.spilled_bytes + self._spilling_bytes() + labels.size > (
            self._state.options.spill_bytes_max
        ):
            cache.apply_spilled(number, None)
            return []
        self._numbers = number
        self._spilling[number] = cache
        self._with_files[cached.ccq.id] = None
        return [SpillPacks(number, cached.ccq, labels)]

    def _is_spilling(self, coordinator: Coordinator, now: float) -> bool:
        """Whether its cache shrinks without further action, once files are written."""
        is_busy = len(self._spilling) >= SPILLS_MAX
        is_written = any(cache is coordinator.cache for cache in self._spilling.values())
        return self._may_spill(coordinator, now) and (is_busy or is_written)

    def _load_ahead(self, now: float) -> Effects:
        """Load the packs that readers are expected to fetch, the oldest first."""
        effects: Effects = []
        whole = free_capacity(self._memory_budget())
        for ccq_id in list(self._with_files):
            coordinator = self._state.coordinated.get(ccq_id)
            if coordinator is None or not (
                coordinator.cache.spilled_bytes or coordinator.cache.spilling
            ):
                del self._with_files[ccq_id]
            elif self._is_expected_soon(coordinator, now):
                effects += self._load(coordinator, whole)
        return effects

    def _load(self, coordinator: Coordinator, whole: int) -> Effects:
        effects: Effects = []
        left = whole - self._state.cache_usage.bytes
        for spill in coordinator.cache.missing_spills():
            left -= spill.loaded_bytes
            if left < 0:
                break
            if coordinator.cache.load(spill.number):
                effects.append(LoadPacks(spill.number, coordinator.ccq))
        return effects

    # --- handed-off caches and drops -----------------------------------------------------------

    def _release_handed_off(self, now: float) -> Effects:
        state = self._state
        return [
            effect
            for ccq_id in state.handed_off.ccq_ids()
            for effect in state.handed_off.on_record(ccq_id, state.records.get(ccq_id), now)
        ]

    def _drop(self) -> None:
        """Drop labels until the caches are within the allowance."""
        allowance = self._memory_budget().allowance
        if not self._is_over(allowance):
            return
        caches = [handed_off.cache for handed_off in self._state.handed_off.all()]
        caches += [coordinator.cache for coordinator in self._state.coordinated.values()]
        for cache in caches:
            cache.unload()
        while self._is_over(allowance):
            if not max(caches, key=lambda cache: cache.bytes - cache.spilling_bytes).shrink():
                return
