"""These events, hence these instructions: records, standbys, progress, ends, dropped datasets."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from ccq_driver import CCQ, IDLE, WALL, Driver, only, path

from galileo.ccq import machine, moves, state
from galileo.ccq.events import (
    ChangeRecords,
    CommitsObserved,
    CycleFinished,
    CycleResult,
    DatasetDropped,
    DrainRequested,
    ElectNodes,
    FetchRequested,
    MembersChanged,
    NodesElected,
    RecordsChanged,
    RecordsLearned,
    RedirectFetch,
    RefuseFetch,
    StartCycle,
    Ticked,
)
from galileo.ccq.model import HOLD_PARTS, Holder, Record
from galileo.ccq.placement import EndCcq, SaveProgress, moved_to
from galileo.ccq.records import CCQ_ROWS, NOTHING, decode, encode
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.model.system_rows import Draft, Rows

FIVE = ("a", "b", "c", "d", "e")
RECORD = Record(CCQ, 1, ("b", "a", "c"))
"""Its standby is the node of the driver."""


def changes(effects: list) -> list:
    return [change for one in only(effects, ChangeRecords) for change in one.changes]


def leads(driver: Driver) -> bool:
    return "q" in driver.machine.coordinated


def fetch(driver: Driver, at: Cursor = EMPTY_CURSOR, *, wait: float | None = None) -> list:
    return driver.feed(FetchRequested(1, "q", at, wait_until=wait))


# --- who runs a query --------------------------------------------------------------------------


def test_coordinator_is_the_first_node_of_a_record():
    driver = Driver()
    assert driver.lead() == []
    assert leads(driver)
    assert driver.machine.usage == replace(IDLE, ccq_count=1)
    standby = Driver()
    assert standby.learn(RECORD) == []
    assert not leads(standby)
    assert fetch(standby) == [RedirectFetch(1, "b")]


def test_standby_goes_on_when_the_coordinator_dies_and_stops_when_it_comes_back():
    driver = Driver()
    driver.learn(replace(RECORD, retrieved=Cursor({0: 4})))
    driver.feed(CommitsObserved("d", Cursor({0: 6, 1: 2})))
    assert driver.feed(PeerDied("b")) == []
    assert leads(driver)
    (start,) = driver.tick(1.0)
    item = start.items[0]
    assert (item.after, item.partitions) == (Cursor({0: 4}), (0, 1))
    assert fetch(driver, Cursor({0: 6, 1: 2}), wait=9.0) == []
    assert driver.feed(PeerRevived("b")) == [RedirectFetch(1, "b")]
    assert not leads(driver)


def test_second_standby_goes_on_when_all_before_it_are_dead():
    driver = Driver("c")
    driver.learn(RECORD)
    driver.feed(PeerDied("b"))
    assert not leads(driver)
    assert fetch(driver) == [RedirectFetch(1, "a")]
    driver.feed(PeerDied("a"))
    assert leads(driver)


def test_standby_goes_on_when_the_coordinator_is_removed():
    driver = Driver()
    driver.learn(RECORD)
    driver.feed(MembersChanged((("a", "c"),)))
    assert leads(driver)


def test_coordinator_that_a_later_revision_names_again_keeps_its_cache_and_fetches():
    driver = Driver()
    driver.lead()
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    before = driver.machine.coordinated["q"]
    assert fetch(driver, Cursor({0: 1}), wait=9.0) == []
    assert driver.learn(Record(CCQ, 2, ("a", "d"))) == []
    assert driver.machine.coordinated["q"] is before
    assert driver.machine.usage.cache_bytes == before.cache.bytes
    (answer,) = driver.cycle([path(0, 2)], {0: 2}, now=2.0)
    assert (answer.request, answer.cursor) == (1, Cursor({0: 2}))


def test_acting_standby_that_is_named_first_goes_on():
    driver = Driver()
    driver.learn(RECORD)
    driver.feed(PeerDied("b"))
    before = driver.machine.coordinated["q"]
    driver.learn(Record(CCQ, 2, ("a", "c", "d")))
    driver.feed(PeerRevived("b"))
    assert driver.machine.coordinated["q"] is before


def test_record_of_later_revision_deposes_and_redirects_fetches():
    driver = Driver()
    driver.lead()
    assert fetch(driver, wait=9.0) == []
    assert driver.learn(Record(CCQ, 2, ("c", "a"))) == [RedirectFetch(1, "c")]
    assert driver.machine.coordinated == {}
    assert fetch(driver) == [RedirectFetch(1, "c")]
    driver.learn(Record(CCQ, 1, ("a", "b", "c")))
    assert not leads(driver), "an older record changes nothing"


def test_record_that_names_other_nodes_is_forgotten():
    driver = Driver()
    driver.lead()
    driver.learn(Record(CCQ, 2, ("b", "c")))
    assert driver.machine.records == ()
    (refused,) = fetch(driver)
    assert refused.failure.kind == "unavailable", "only the leader may say that there is none"


def test_coordinator_that_the_record_names_as_holder_only_keeps_its_cache():
    driver = Driver()
    driver.lead()
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    term = driver.machine.coordinated["q"].term
    holder = Holder("a", term, EMPTY_CURSOR, Cursor({0: 1}))
    driver.learn(Record(CCQ, 2, ("b", "c"), holders=(holder,)))
    assert not leads(driver)
    assert driver.machine.cached_bytes > 0
    driver.learn(Record(CCQ, 2, ("b", "c")))
    assert (driver.machine.records, driver.machine.cached_bytes) == ((), 0)


def test_each_beginning_has_a_term_of_its_own():
    driver, terms = Driver(), []
    for revision in (1, 3, 5):
        driver.lead(revision=revision)
        terms.append(driver.machine.coordinated["q"].term)
        driver.learn(Record(CCQ, revision + 1, ("b", "a")))
    assert len({*terms}) == 3


def test_coordinator_takes_over_what_another_one_saved():
    driver = Driver()
    driver.lead()
    driver.learn(Record(CCQ, 1, ("a", "b", "c"), Cursor({0: 3})))
    assert driver.machine.coordinated["q"].retrieved == Cursor({0: 3})


# --- what the leader hears -----------------------------------------------------------------------


def saving(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A coordinator whose client has retrieved a commit since the last save."""
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 2.0)
    driver = Driver()
    driver.lead()
    driver.cycle([path(0, 1)], {0: 1}, now=2.0)
    fetch(driver, Cursor({0: 1}))
    assert changes(driver.tick(3.9)) == []
    return driver


def test_retrieved_cursor_is_saved_from_time_to_time(monkeypatch):
    driver = saving(monkeypatch)
    record = Record(CCQ, 1, ("a", "b", "c"), Cursor({0: 1}), fetched_at=WALL + 4.0)
    assert changes(driver.tick(4.0)) == [SaveProgress("q", encode(record))]
    driver.feed(RecordsChanged(("q",), (record,)))
    assert changes(driver.tick(6.0)) == []


def test_fetches_that_bring_nothing_are_noted_once_in_a_part_of_the_hold(monkeypatch):
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 0.0)
    monkeypatch.setattr(state, "SAVE_AFTER_S", 0.0)
    driver = Driver()
    driver.lead(replace(CCQ, hold_s=10.0 * HOLD_PARTS))
    noted = []
    for now in range(0, 50, 3):
        fetch(driver, Cursor())
        for change in changes(driver.tick(float(now))):
            record = decode(change.data)
            noted.append(record.fetched_at - WALL)
            driver.feed(RecordsChanged(("q",), (record,)))
    assert noted == [0.0, 12.0, 24.0, 36.0, 48.0]
    driver.tick(99.0)
    assert driver.machine.state.records["q"].fetched_at == WALL + 48.0, "no reader has fetched"


def test_progress_that_the_leader_has_not_confirmed_is_saved_again(monkeypatch):
    driver = saving(monkeypatch)
    saved = changes(driver.tick(4.0))
    driver.feed(RecordsChanged(("q",)))
    assert changes(driver.tick(6.0)) == saved


def test_progress_that_the_leader_is_learned_to_know_is_not_saved_again(monkeypatch):
    driver = saving(monkeypatch)
    assert len(changes(driver.tick(4.0))) == 1
    driver.feed(RecordsChanged(("q",)))
    driver.learn(*driver.machine.records)
    assert changes(driver.tick(6.0)) == []


def test_progress_of_a_coordinator_that_stops_is_saved(monkeypatch):
    driver = saving(monkeypatch)
    stopped = Record(CCQ, 2, ("b", "a"))
    driver.learn(stopped)
    retrieved = replace(stopped, retrieved=Cursor({0: 1}))
    assert changes(driver.tick(4.0)) == [SaveProgress("q", encode(retrieved))]


def test_older_record_of_the_leader_has_progress_saved_again(monkeypatch):
    driver = saving(monkeypatch)
    saved = changes(driver.tick(4.0))
    driver.learn(Record(CCQ, 1, ("a", "b", "c")))
    assert changes(driver.tick(6.0)) == saved


def test_progress_of_a_query_that_the_leader_has_ended_is_not_saved(monkeypatch):
    driver = saving(monkeypatch)
    driver.learn(Record(CCQ, 1, ("a", "b", "c"), ended="cancelled", ended_at=WALL))
    assert changes(driver.tick(4.0)) == []


def test_progress_is_saved_in_pages_after_a_while_the_longest_waiting_first(monkeypatch):
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 0.5)
    monkeypatch.setattr(state, "SAVE_AFTER_S", 2.0)
    monkeypatch.setattr(state, "SAVED_MAX", 2)
    driver = Driver()
    for name in "pqrs":
        driver.lead(replace(CCQ, id=name))
    driver.feed(CommitsObserved("d", Cursor({0: 2})))
    saved = {}
    for half in range(2, 9):
        names = {2: "r", 3: "sqp", 4: "r"}.get(half, "")
        for name in names:
            driver.feed(FetchRequested(ord(name), name, Cursor({0: half // 2})))
        made = [change.name for change in changes(driver.tick(half / 2))]
        saved |= {half / 2: "".join(made)} if made else {}
    assert saved == {3.0: "r", 3.5: "sq", 4.0: "p"}


def test_progress_of_a_query_that_the_leader_does_not_know_is_kept(monkeypatch):
    driver = saving(monkeypatch)
    saved = changes(driver.tick(4.0))
    driver.feed(RecordsChanged(("q",), unknown=("q",)))
    assert leads(driver)
    assert changes(driver.tick(6.0)) == saved


# --- ends ----------------------------------------------------------------------------------------


def test_expired_ccq_is_ended_told_and_forgotten_later(monkeypatch):
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 1.0)
    monkeypatch.setattr(state, "TOMBSTONE_S", 10.0)
    driver = Driver()
    driver.lead(replace(CCQ, expires_at=WALL + 5.0))
    fetch(driver, wait=50.0)
    effects = driver.tick(5.0)
    assert [e.failure.kind for e in only(effects, RefuseFetch)] == ["ccq_expired"]
    assert changes(effects) == [EndCcq("q", "expired", WALL + 5.0)]
    driver.feed(RecordsChanged(("q",), driver.machine.records))
    assert changes(driver.tick(14.9)) == []
    assert len(driver.machine.records) == 1
    driver.tick(15.0)
    assert driver.machine.records == ()


def test_end_is_sent_until_the_leader_has_confirmed_it(monkeypatch):
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 1.0)
    monkeypatch.setattr(state, "SAVE_AFTER_S", 2.0)
    driver = Driver()
    driver.lead(replace(CCQ, expires_at=WALL + 5.0))
    sent = changes(driver.tick(5.0))
    assert sent == [EndCcq("q", "expired", WALL + 5.0)], "at once"
    driver.feed(RecordsChanged(("q",)))
    assert changes(driver.tick(6.0)) == sent
    driver.lead(replace(CCQ, expires_at=WALL + 5.0))
    assert changes(driver.tick(7.0)) == sent, "a node that follows was behind"
    driver.feed(RecordsChanged(("q",), driver.machine.records))
    assert changes(driver.tick(8.0)) == []


def test_query_that_was_forgotten_and_learned_again_expires_once(monkeypatch):
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 1.0)
    driver = Driver()
    ccq = replace(CCQ, expires_at=WALL + 5.0)
    for revision in (1, 3):
        driver.lead(ccq, revision=revision)
        driver.learn(Record(ccq, revision + 1, ("b", "c")))
    driver.lead(ccq, revision=5)
    assert changes(driver.tick(5.0)) == [EndCcq("q", "expired", WALL + 5.0)]
    assert [record.ended for record in driver.machine.records] == ["expired"]


def test_end_of_a_query_that_the_leader_does_not_know_is_forgotten(monkeypatch):
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 1.0)
    driver = Driver()
    driver.lead(replace(CCQ, expires_at=WALL + 5.0))
    assert changes(driver.tick(5.0))
    driver.feed(RecordsChanged(("q",), unknown=("q",)))
    assert driver.machine.records == ()


def test_standby_leaves_the_end_of_an_expired_ccq_to_its_coordinator(monkeypatch):
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 1.0)
    driver = Driver()
    driver.learn(replace(RECORD, ccq=replace(CCQ, expires_at=WALL + 5.0)))
    assert changes(driver.tick(5.0)) == []
    assert changes(driver.tick(34.0)) == []
    driver.feed(PeerDied("b"))
    assert changes(driver.tick(35.0)) == [EndCcq("q", "expired", WALL + 35.0)]


def test_learned_end_is_kept_for_fetches():
    driver = Driver()
    driver.lead()
    ended = replace(driver.machine.records[0], ended="cancelled", ended_at=WALL)
    fetch(driver, wait=9.0)
    (refused,) = driver.learn(ended)
    assert refused.failure.kind == "ccq_cancelled"
    assert fetch(driver) == [refused]
    driver.lead()
    assert not leads(driver), "what has ended does not live again"


def test_wall_clock_jump_ends_no_ccq():
    driver = Driver()
    driver.lead()
    driver.feed(Ticked(WALL + 1e9), now=1.0)
    assert list(driver.machine.coordinated) == ["q"]


def test_fetch_without_a_living_node_is_unavailable():
    driver = Driver()
    holder = Holder("a", 9, EMPTY_CURSOR, Cursor({0: 4}))
    driver.learn(Record(CCQ, 2, ("b",), holders=(holder,)))
    driver.feed(PeerDied("b"))
    (refused,) = fetch(driver)
    assert refused.failure.kind == "unavailable"


# --- dropped datasets ----------------------------------------------------------------------------


def test_dropped_dataset_ends_its_ccqs_only(monkeypatch):
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 1.0)
    driver = Driver()
    driver.lead()
    driver.lead(replace(CCQ, id="other", dataset="d2"))
    fetch(driver, wait=50.0)
    effects = driver.feed(DatasetDropped("d", 1))
    assert [e.failure.kind for e in only(effects, RefuseFetch)] == ["ccq_dropped"]
    assert list(driver.machine.coordinated) == ["other"]
    assert driver.feed(DatasetDropped("d", 1)) == []
    assert changes(driver.tick(1.0)) == [EndCcq("q", "dropped", WALL)]
    (refused,) = fetch(driver)
    assert refused.failure.kind == "ccq_dropped"
    assert "dataset 'd' was dropped" in refused.failure.message


def test_dropped_dataset_late_record_is_ended(monkeypatch):
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 1.0)
    driver = Driver()
    driver.feed(DatasetDropped("d", 1))
    driver.lead()
    driver.learn(replace(RECORD, ccq=replace(CCQ, id="r")))
    assert {one.ended for one in driver.machine.records} == {"dropped"}
    assert [change.name for change in changes(driver.tick(1.0))] == ["q", "r"]
    driver.feed(CommitsObserved("d", Cursor({0: 3})))
    assert driver.machine.state.known == {}


def test_dropped_dataset_created_again_is_another():
    driver = Driver()
    driver.feed(DatasetDropped("d", 1))
    driver.lead(replace(CCQ, id="new", dataset="d@1"))
    driver.feed(CommitsObserved("d@1", Cursor({0: 3})))
    assert list(driver.machine.coordinated) == ["new"]
    driver.feed(DatasetDropped("d", 2))
    assert (list(driver.machine.coordinated), driver.machine.state.known) == ([], {})


def test_drained_node_says_so():
    driver = Driver()
    driver.feed(DrainRequested())
    assert driver.machine.usage.is_draining
    driver.feed(DrainRequested(is_on=False))
    assert not driver.machine.usage.is_draining


# --- random events -------------------------------------------------------------------------------


class Cluster:
    """A machine of the node a, the rows of the leader, and what the two have not answered yet."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rows = Rows(CCQ_ROWS)
        self.driver = Driver(nodes=FIVE)
        self.versions = list[Record]()
        self.names = [*"qrstu"]
        self.asked = list[Any]()

    def feed(self, event: Any) -> None:
        tasks = (ElectNodes, ChangeRecords, StartCycle)
        self.asked += [one for one in self.driver.feed(event) if isinstance(one, tasks)]

    def tick(self, seconds: float) -> None:
        self.driver.now += seconds
        self.feed(Ticked(WALL + self.driver.now))

    def put(self, record: Record) -> None:
        """A commit of the leader."""
        self.rows.put(record.id, record, len(self.versions) + 1)
        self.versions.append(record)

    def change(self) -> None:
        """Another node changes a record, or a client submits one."""
        random, number = self.random, self.random.randrange(5)
        name, nodes = self.names[number], (*random.sample(FIVE, random.randint(1, 3)),)
        present = self.rows[name]
        if present == NOTHING:
            expires_at = WALL + self.driver.now + random.choice([10.0, 1000.0])
            self.put(Record(replace(CCQ, id=name, expires_at=expires_at), 1, nodes))
        elif present.ended is not None:
            self.names[number] += "'"
        else:
            retrieved = present.retrieved.join(Cursor({0: random.randrange(4)}))
            ended = replace(present, ended="cancelled", ended_at=WALL, holders=())
            moved = [replace(moved_to(present, nodes), retrieved=retrieved)] * 8
            self.put(random.choice([*moved, replace(present, retrieved=retrieved), ended]))

    def answer(self, effect: Any, *, may_fail: bool) -> None:
        fails = may_fail and self.random.random() < 0.3
        match effect:
            case ElectNodes(candidacies):
                chosen = {
                    one.key: tuple(sorted({*FIVE} - {*one.excluded})[: one.count])
                    for one in candidacies
                }
                self.feed(NodesElected(dict.fromkeys(chosen, ()) if fails else chosen))
            case ChangeRecords(changes) if fails:
                self.feed(RecordsChanged(tuple(change.name for change in changes)))
            case ChangeRecords(changes):
                draft = Draft(self.rows)
                for change in changes:
                    change.apply(draft)
                for record in draft.changed.values():
                    self.put(record)
                names = tuple(change.name for change in changes)
                self.feed(RecordsChanged(names, tuple(self.rows[name] for name in names)))
            case StartCycle(cycle_id, items):
                until = Cursor({0: self.random.randrange(5)})
                results = [CycleResult(i.ccq.id, i.term, i.after, None, until) for i in items]
                self.feed(CycleFinished(cycle_id, () if fails else tuple(results)))

    def disturb(self) -> None:
        random, node = self.random, self.random.choice("bcde")
        old = random.choice(self.versions[-20:])
        events = [
            PeerDied(node),
            PeerRevived(node),
            MembersChanged((FIVE,)),
            MembersChanged((tuple(one for one in FIVE if one != node),)),
            DrainRequested(is_on=random.random() < 0.2),
            CommitsObserved("d", Cursor({0: random.randrange(5)})),
            FetchRequested(random.randrange(10**9), old.id, old.retrieved, self.driver.now + 2.0),
            *[RecordsLearned((old,))] * 4,
        ]
        self.feed(random.choice(events))


@pytest.mark.parametrize("seed", range(5))
def test_random_events_end_with_what_the_leader_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records come late, in any order and repeatedly; the driver checks each step."""
    monkeypatch.setattr(machine, "SAVE_INTERVAL_S", 0.5)
    monkeypatch.setattr(state, "TOMBSTONE_S", 15.0)
    monkeypatch.setattr(moves, "CHANGE_TIMEOUT_S", 4.0)
    monkeypatch.setattr(moves, "REPAIR_AFTER_S", 2.0)
    monkeypatch.setattr(moves, "REPAIR_RETRY_S", 3.0)
    cluster = Cluster(seed)
    for _ in range(300):
        cluster.change()
        for _ in range(cluster.random.randrange(4)):
            cluster.disturb()
        for _ in range(cluster.random.randrange(4)):
            if cluster.asked:
                asked = cluster.asked.pop(cluster.random.randrange(len(cluster.asked)))
                cluster.answer(asked, may_fail=True)
        cluster.tick(0.3)
    for event in (MembersChanged((FIVE,)), DrainRequested(is_on=False), *map(PeerRevived, "bcde")):
        cluster.feed(event)
    newest = [cluster.rows[name] for name in cluster.rows]
    cluster.feed(RecordsLearned(tuple(newest)))
    for _ in range(100):
        while cluster.asked:
            cluster.answer(cluster.asked.pop(0), may_fail=False)
        cluster.tick(0.5)
    records = {record.id: record for record in cluster.driver.machine.records}
    alive = {name: cluster.rows[name] for name in cluster.rows if not cluster.rows[name].ended}
    mine = {name: record for name, record in alive.items() if "a" in record.participants}
    assert {name: one for name, one in records.items() if not one.ended} == mine
    leads = {name for name, record in mine.items() if record.nodes[0] == "a"}
    assert cluster.driver.machine.coordinated.keys() == leads
    assert all(len(mine[name].nodes) == 3 for name in leads), "all nodes live"
    assert not cluster.driver.machine.state.dirty
