"""Who is looked at when: what has nothing to do is not looked at at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ccq_driver import CCQ, Driver, only, path
from simulator.logs import to_labels, to_paths

from galileo.ccq import cache as cache_module
from galileo.ccq import machine, schedule, state
from galileo.ccq.cycles import Cycles
from galileo.ccq.events import (
    ChangeRecords,
    CommitsObserved,
    CompactPacks,
    CycleFailed,
    CycleFinished,
    CycleResult,
    FetchRequested,
    PacksCompacted,
    StartCycle,
)
from galileo.ccq.schedule import COMPACTION_CHECKS_MAX, RESTING_SLACK
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Failure
from galileo.packing import Compression

FAILURE = Failure("unavailable", "spark")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The CCQs that were looked at, in turn."""
    seen: list[str] = []
    look = Cycles.item

    def item(self, known, now):
        seen.append(self.ccq.id)
        return look(self, known, now)

    monkeypatch.setattr(Cycles, "item", item)
    return seen


def test_schedule_idle_ccqs_are_checked_once(looks: list[str]) -> None:
    driver = Driver(nodes=("a", "b"))
    for number in range(20):
        driver.lead(replace(CCQ, id=f"q{number}"))
    for now in range(1, 30):
        assert driver.tick(float(now)) == []
    assert looks == [f"q{number}" for number in range(20)]


def test_schedule_news_of_dataset_wakes_its_ccqs_at_interval(looks: list[str]) -> None:
    driver = Driver()
    driver.lead()
    driver.lead(replace(CCQ, id="r", dataset="other"))
    driver.tick(1.0)
    looks.clear()
    driver.feed(CommitsObserved("d", Cursor({0: 1})), now=7.3)
    assert driver.tick(7.9) == []
    (start,) = driver.tick(8.0)
    assert [item.ccq.id for item in start.items] == ["q"]
    assert looks == ["q"]


def test_schedule_known_commits_wake_none(looks: list[str]) -> None:
    driver = Driver()
    driver.lead()
    driver.cycle([], {0: 4}, now=1.0)
    driver.tick(2.0)
    looks.clear()
    driver.feed(CommitsObserved("d", Cursor({0: 3})))
    driver.tick(9.0)
    assert looks == []


def test_fetch_frontier_age_grows_with_news_only() -> None:
    driver = Driver()
    driver.lead()
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    driver.tick(2.0)
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR), now=50.0)
    assert answer.frontier_age_s == 0.0
    driver.feed(CommitsObserved("d", Cursor({0: 2})), now=60.0)
    (answer,) = driver.feed(FetchRequested(2, "q", EMPTY_CURSOR), now=60.4)
    assert answer.frontier_age_s == pytest.approx(0.4)


def test_schedule_failed_cycle_is_retried_without_ended_ccq() -> None:
    driver = Driver(nodes=("a",))
    driver.lead()
    driver.lead(replace(CCQ, id="r"))
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    (start,) = only(driver.tick(1.0), StartCycle)
    driver.feed(CycleFailed(start.cycle_id, FAILURE))
    driver.cancel("r")
    (again,) = only(driver.tick(1.5), StartCycle)
    assert [item.ccq.id for item in again.items] == ["q"]


def test_schedule_beyond_cycle_items_max_comes_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "ITEMS_MAX", 2)
    driver = Driver()
    for number in range(5):
        driver.lead(replace(CCQ, id=f"q{number}"))
    driver.feed(CommitsObserved("d", Cursor({0: 1})))
    found = [only(driver.tick(now), StartCycle)[0].items for now in (1.0, 1.05, 1.1)]
    assert [[item.ccq.id for item in items] for items in found] == [
        ["q0", "q1"],
        ["q2", "q3"],
        ["q4"],
    ]
    assert driver.tick(1.15) == []


def test_schedule_ended_ccqs_are_removed() -> None:
    driver = Driver(nodes=("a",))
    for number in range(2 * RESTING_SLACK):
        driver.lead(replace(CCQ, id=f"q{number}"))
        driver.tick(float(number + 1))
        driver.cancel(f"q{number}")
    assert len(driver.machine._schedule._resting["d"]) <= RESTING_SLACK + 2


def test_machine_cycle_due_at_follows_schedule() -> None:
    driver = Driver()
    assert driver.machine.cycle_due_at is None
    driver.lead()
    driver.tick(1.0)
    assert driver.machine.cycle_due_at is None, "it rests"
    driver.feed(CommitsObserved("d", Cursor({0: 1})), now=1.3)
    assert driver.machine.cycle_due_at == 2.0
    driver.tick(2.0)
    assert driver.machine.cycle_due_at is None, "its cycle is under way"


# --- many small chunks ---------------------------------------------------------------------------


def test_cache_many_small_chunks_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "CHUNKS_COMPACTED", 3)
    driver = Driver()
    driver.lead()
    effects: list = []
    for sequence in (1, 2, 3):
        effects = driver.cycle([path(0, sequence)], {0: sequence}, now=float(sequence))
    (gather,) = only(effects, CompactPacks)
    assert to_paths(gather.labels) == [path(0, 1), path(0, 2), path(0, 3)]
    effects = driver.cycle([path(0, 4)], {0: 4}, now=4.0)
    assert only(effects, CompactPacks) == []
    driver.feed(PacksCompacted("q", gather.term, gather.labels.compact(Compression.NONE)))
    cache = driver.machine.coordinated["q"].cache
    assert [len(chunk.packed) for chunk in cache._chunks] == [3, 1]
    (answer,) = driver.feed(FetchRequested(1, "q", EMPTY_CURSOR))
    assert to_paths(answer.labels) == [path(0, sequence) for sequence in (1, 2, 3, 4)]


def test_cache_compaction_acknowledged_meanwhile_stays_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_module, "CHUNKS_COMPACTED", 3)
    driver = Driver()
    driver.lead()
    for sequence in (1, 2, 3):
        effects = driver.cycle([path(0, sequence)], {0: sequence}, now=float(sequence))
    (gather,) = only(effects, CompactPacks)
    driver.feed(FetchRequested(1, "q", Cursor({0: 2})))
    together = gather.labels.compact(Compression.NONE)
    driver.feed(PacksCompacted("q", gather.term + 1, together))
    driver.feed(PacksCompacted("q", gather.term, together))
    cache = driver.machine.coordinated["q"].cache
    assert [len(chunk.packed) for chunk in cache._chunks] == [1]
    driver.feed(PacksCompacted("q", gather.term, together))
    assert len(cache) == 1


def test_cache_compaction_failed_keeps_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "CHUNKS_COMPACTED", 2)
    driver = Driver()
    driver.lead()
    for sequence in (1, 2):
        effects = driver.cycle([path(0, sequence)], {0: sequence}, now=float(sequence))
    (gather,) = only(effects, CompactPacks)
    driver.feed(PacksCompacted("q", gather.term, None))
    assert len(driver.machine.coordinated["q"].cache._chunks) == 2


def test_cache_at_rest_is_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "LABELS_FEW", 1)
    driver = Driver()
    driver.lead()
    for sequence in (1, 2):
        effects = driver.cycle([path(0, sequence)], {0: sequence}, now=float(sequence))
        assert only(effects, CompactPacks) == []
    (gather,) = driver.tick(3.0)
    assert to_paths(gather.labels) == [path(0, 1), path(0, 2)]
    assert only(driver.tick(4.0), CompactPacks) == []
    driver.feed(PacksCompacted("q", gather.term, gather.labels.compact(Compression.NONE)))
    cache = driver.machine.coordinated["q"].cache
    assert [chunk.labels for chunk in cache._chunks] == [2]
    assert driver.tick(5.0) == []


def test_cache_compaction_at_rest_is_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "LABELS_FEW", 1)
    driver = Driver()
    for name in ("q", "r", "s"):
        driver.lead(replace(CCQ, id=name))
    for sequence in (1, 2):
        driver.feed(CommitsObserved("d", Cursor({0: sequence})))
        (start,) = only(driver.tick(float(sequence)), StartCycle)
        found = [
            CycleResult(
                item.ccq.id,
                item.term,
                item.after,
                to_labels([path(0, sequence)]),
                Cursor({0: sequence}),
            )
            for item in start.items
        ]
        driver.feed(CycleFinished(start.cycle_id, tuple(found)))
    (first,) = driver.tick(3.0)
    assert (first.ccq.id, driver.tick(3.1)) == ("q", [])
    together = first.labels.compact(Compression.NONE)
    driver.feed(PacksCompacted("q", first.term, together))
    (second,) = driver.tick(3.2)
    assert second.ccq.id == "r"
    driver.cancel("r")
    driver.feed(CommitsObserved("d", Cursor({0: 3})))
    driver.feed(PacksCompacted("r", second.term, None))
    assert driver.tick(3.3) == [], "it rests no more"


def test_cache_at_rest_few_labels_are_not_compacted() -> None:
    driver = Driver()
    for number in range(2 * COMPACTION_CHECKS_MAX + 1):
        driver.lead(replace(CCQ, id=f"q{number}"))
    left = []
    for now in (1.0, 1.1, 1.2):
        assert driver.tick(now) == []
        left.append(len(driver.machine._schedule._may_compact))
    assert left == [COMPACTION_CHECKS_MAX + 1, 1, 0]


def test_retrieved_cursors_are_saved_in_turns_of_saved_max(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 1.0)
    monkeypatch.setattr(state, "SAVED_MAX", 2)
    driver = Driver()
    for number in range(5):
        driver.lead(replace(CCQ, id=f"q{number}"))
    known = Cursor({0: 1})
    driver.feed(CommitsObserved("d", known))
    for number in range(5):
        driver.feed(FetchRequested(number, f"q{number}", known), now=9.0)
    saved = [
        [c.name for one in only(driver.tick(now), ChangeRecords) for c in one.changes]
        for now in (10.0, 11.0, 12.0, 13.0)
    ]
    assert saved == [["q0", "q1"], ["q2", "q3"], ["q4"], []]
