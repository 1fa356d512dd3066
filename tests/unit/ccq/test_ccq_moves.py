"""These events, hence these instructions: nodes that replace dead ones, drains and transfers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ccq_driver import CCQ, Driver, only, path

from galileo.ccq import moves
from galileo.ccq.events import (
    ChangeRecords,
    DrainRequested,
    ElectNodes,
    MembersChanged,
    NodesElected,
    RecordsChanged,
)
from galileo.ccq.model import Holder, Record
from galileo.ccq.placement import MoveCcq
from galileo.ccq.records import CCQ_ROWS, decode
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht.membership import PeerDied, PeerRevived
from galileo.election.election import Candidacy
from galileo.model.system_rows import Draft, Rows

FIVE = ("a", "b", "c", "d", "e")
RECORD = Record(CCQ, 1, ("a", "b", "c"))


def sought(effects: list) -> list[Candidacy]:
    return [candidacy for one in only(effects, ElectNodes) for candidacy in one.candidacies]


def moved(effects: list) -> list[Record]:
    made = [change for one in only(effects, ChangeRecords) for change in one.changes]
    return [decode(change.data) for change in made if isinstance(change, MoveCcq)]


def leading(**options) -> Driver:
    """Node a of five, which runs q with the standbys b and c."""
    driver = Driver(nodes=FIVE, **options)
    driver.learn(RECORD)
    assert (sought(driver.tick(0.1)), driver.machine.coordinated.keys()) == ([], {"q"})
    return driver


def test_dead_standby_is_replaced_after_a_while():
    driver = leading()
    driver.feed(PeerDied("b"), now=1.0)
    assert [sought(driver.tick(now)) for now in (1.0, 6.0, 10.9)] == [[], [], []]
    (candidacy,) = sought(driver.tick(16.0))
    assert (candidacy.key, candidacy.count) == ("q", 1)
    assert {*candidacy.excluded} == {"a", "b", "c"}
    (record,) = moved(driver.feed(NodesElected({"q": ("d",)})))
    assert (record.revision, record.nodes) == (2, ("a", "c", "d"))
    assert sought(driver.tick(17.0)) == [], "the change is under way"
    driver.feed(RecordsChanged(("q",), (record,)))
    assert sought(driver.tick(60.0)) == []


def test_standby_that_comes_back_in_time_stays():
    driver = leading()
    driver.feed(PeerDied("b"), now=1.0)
    driver.tick(1.0)
    driver.feed(PeerRevived("b"), now=5.0)
    assert [sought(driver.tick(float(now))) for now in range(5, 40)] == [[]] * 35


def test_acting_standby_replaces_the_dead_coordinator():
    driver = Driver("b", nodes=FIVE)
    driver.learn(RECORD)
    driver.feed(PeerDied("a"), now=1.0)
    assert "q" in driver.machine.coordinated
    assert sought(driver.tick(1.0)) == []
    assert [one.count for one in sought(driver.tick(16.0))] == [1]
    (record,) = moved(driver.feed(NodesElected({"q": ("e",)})))
    assert record.nodes == ("b", "c", "e")


def test_standby_leaves_moves_to_the_coordinator():
    driver = Driver("b", nodes=FIVE)
    driver.learn(RECORD)
    driver.feed(PeerDied("c"))
    assert sought(driver.tick(100.0)) == []


def test_removed_node_is_replaced_at_once():
    driver = leading()
    driver.feed(MembersChanged((("a", "b", "d", "e"),)), now=1.0)
    (candidacy,) = sought(driver.tick(1.0))
    assert (candidacy.count, {*candidacy.excluded}) == (1, {"a", "b", "c"})


def test_removed_node_without_another_one_leaves_the_record():
    driver = Driver()
    driver.lead()
    driver.tick(0.1)
    driver.feed(MembersChanged((("a", "b"),)), now=1.0)
    (record,) = moved(driver.tick(1.0))
    assert record.nodes == ("a", "b")


def test_record_with_fewer_nodes_than_there_could_be_gets_some(monkeypatch):
    monkeypatch.setattr(moves, "REPAIR_RETRY_S", 5.0)
    driver = Driver(nodes=FIVE)
    driver.learn(Record(CCQ, 4, ("a",)))
    (candidacy,) = sought(driver.tick(0.1))
    assert candidacy.count == 2
    assert moved(driver.feed(NodesElected({"q": ()}))) == []
    assert [sought(driver.tick(now)) for now in (0.2, 4.9)] == [[], []]
    assert [one.key for one in sought(driver.tick(5.2))] == ["q"], "no node answered before"
    (record,) = moved(driver.feed(NodesElected({"q": ("d", "c")})))
    assert record.nodes == ("a", "d", "c")


def test_cluster_that_grows_gives_standbys_to_records_that_lack_some():
    driver = Driver(nodes=("a",))
    driver.lead()
    assert driver.tick(0.1) == []
    driver.feed(MembersChanged((("a", "b"), ("c", "d"))), now=1.0)
    (candidacy,) = sought(driver.tick(1.0))
    assert (candidacy.count, candidacy.excluded) == (2, ("a", "a"))
    (record,) = moved(driver.feed(NodesElected({"q": ("c", "b")})))
    assert (record.revision, record.nodes) == (2, ("a", "c", "b"))


def test_node_that_restarts_while_another_is_replaced_stays():
    driver = leading()
    driver.feed(PeerDied("b"), now=1.0)
    driver.feed(MembersChanged((("a", "b", "d", "e"),)), now=2.0)
    assert [one.count for one in sought(driver.tick(2.0))] == [1]
    (record,) = moved(driver.feed(NodesElected({"q": ("d",)})))
    assert record.nodes == ("a", "b", "d")


def test_draining_node_leaves_no_record_without_a_node_that_lives():
    driver = Driver()
    driver.lead()
    driver.tick(0.1)
    driver.feed(PeerDied("b"), now=1.0)
    driver.feed(PeerDied("c"), now=1.0)
    driver.feed(DrainRequested(), now=2.0)
    moves = [move for now in range(2, 80) for move in moved(driver.tick(float(now)))]
    assert moves == []
    driver.feed(PeerRevived("c"), now=80.0)
    (record,) = moved(driver.tick(80.0))
    assert record.nodes == ("c",)


def test_of_two_movers_of_one_revision_the_first_counts():
    rows, records = Rows(CCQ_ROWS), []
    rows.put("q", RECORD, 1)
    drivers = {name: Driver(name, nodes=FIVE) for name in "ab"}
    for (name, driver), elected in zip(drivers.items(), "de", strict=True):
        driver.learn(RECORD)
        driver.feed(DrainRequested() if name == "b" else MembersChanged((("a", "b", "d", "e"),)))
        driver.tick(1.0)
        (effect,) = driver.feed(NodesElected({"q": (elected,)}))
        draft = Draft(rows)
        effect.changes[0].apply(draft)
        records += draft.changed.values()
        rows.put("q", draft["q"], 2)
        driver.feed(RecordsChanged(("q",), (draft["q"],)))
    assert [record.nodes for record in records] == [("a", "b", "d")]
    assert [one.key for one in sought(drivers["b"].tick(1.1))] == ["q"], "it drains still"


def test_failed_change_is_tried_again():
    driver = leading()
    driver.feed(MembersChanged((("a", "b", "d", "e"),)), now=1.0)
    assert sought(driver.tick(1.0))
    assert moved(driver.feed(NodesElected({"q": ("d",)})))
    driver.feed(RecordsChanged(("q",)), now=2.0)
    late = [now for now in range(2, 10) if sought(driver.tick(float(now)))]
    assert late == [7]


def test_answer_to_a_save_does_not_end_an_election():
    driver = leading()
    driver.feed(DrainRequested(), now=1.0)
    assert sought(driver.tick(1.0))
    driver.feed(RecordsChanged(("q",), (replace(RECORD, retrieved=Cursor({0: 1})),)))
    (record,) = moved(driver.feed(NodesElected({"q": ("e",)})))
    assert record.nodes == ("b", "c", "e")


def test_move_that_the_leader_refuses_is_tried_again():
    driver = leading()
    driver.feed(DrainRequested(), now=1.0)
    assert sought(driver.tick(1.0))
    assert moved(driver.feed(NodesElected({"q": ("e",)})))
    driver.feed(RecordsChanged(("q",), (replace(RECORD, revision=2),)), now=2.0)
    late = [now for now in range(2, 10) if sought(driver.tick(float(now)))]
    assert late == [7]


def test_nodes_that_are_elected_too_late_are_not_named(monkeypatch):
    monkeypatch.setattr(moves, "CHANGE_TIMEOUT_S", 5.0)
    driver = leading()
    driver.feed(MembersChanged((("a", "b", "d"),)), now=1.0)
    assert sought(driver.tick(1.0))
    driver.feed(MembersChanged((FIVE,)), now=2.0)
    assert sought(driver.tick(6.0)) == []
    assert moved(driver.feed(NodesElected({"q": ("d",)}))) == []


def test_move_that_others_made_is_looked_at_again():
    driver = leading()
    driver.learn(replace(RECORD, revision=2, nodes=("a", "b")))
    assert [one.count for one in sought(driver.tick(1.0))] == [1]


def test_move_without_an_answer_is_tried_again():
    driver = leading()
    driver.feed(MembersChanged((("a", "b", "d", "e"),)), now=1.0)
    assert len(sought(driver.tick(1.0))) == 1
    late = [now for now in range(2, 60) if sought(driver.tick(float(now)))]
    assert late == [21, 41]


def test_draining_coordinator_leaves_as_holder():
    driver = leading()
    driver.cycle([path(0, 1)], {0: 1}, now=1.0)
    driver.feed(DrainRequested(), now=2.0)
    (candidacy,) = sought(driver.tick(2.0))
    assert (candidacy.count, "a" in candidacy.excluded) == (1, True)
    (record,) = moved(driver.feed(NodesElected({"q": ("e",)})))
    assert record.nodes == ("b", "c", "e")
    assert record.holders == (Holder("a", 1, EMPTY_CURSOR, Cursor({0: 1})),)
    driver.feed(RecordsChanged(("q",), (record,)))
    assert driver.machine.coordinated == {}
    assert driver.machine.cached_bytes > 0


def test_draining_standby_leaves_too():
    driver = Driver("b", nodes=FIVE)
    driver.learn(RECORD)
    driver.feed(DrainRequested(), now=1.0)
    assert len(sought(driver.tick(1.0))) == 1
    (record,) = moved(driver.feed(NodesElected({"q": ("d",)})))
    assert (record.nodes, record.holders) == (("a", "c", "d"), ())


def test_draining_node_leaves_records_that_it_learns_later():
    driver = Driver(nodes=FIVE)
    driver.feed(DrainRequested())
    assert sought(driver.tick(1.0)) == []
    driver.learn(RECORD)
    assert [one.key for one in sought(driver.tick(1.1))] == ["q"]


def test_draining_node_alone_keeps_its_queries():
    driver = Driver(nodes=("a",))
    driver.lead()
    driver.feed(DrainRequested(), now=1.0)
    assert moved(driver.tick(1.0)) == []
    assert list(driver.machine.coordinated) == ["q"]


@pytest.mark.parametrize("elected", [(), ("d",)])
def test_move_of_a_query_that_ended_meanwhile_is_given_up(elected: tuple[str, ...]):
    driver = leading()
    driver.feed(MembersChanged((("a", "b", "d", "e"),)), now=1.0)
    assert sought(driver.tick(1.0))
    driver.learn(replace(RECORD, ended="cancelled", ended_at=5.0))
    assert moved(driver.feed(NodesElected({"q": elected}))) == []
    assert "q" not in driver.machine._moves


def test_many_queries_are_looked_at_in_turns(monkeypatch):
    monkeypatch.setattr(moves, "REPAIRED_MAX", 2)
    driver = Driver(nodes=FIVE)
    driver.learn(*(Record(replace(CCQ, id=f"q{i}"), 1, ("a",)) for i in range(5)))
    counts = [len(sought(driver.tick(now))) for now in (0.1, 0.2, 0.3, 0.4)]
    assert counts == [2, 2, 1, 0]
