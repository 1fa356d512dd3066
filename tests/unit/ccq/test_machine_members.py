"""The machine of continuous queries when nodes are added and removed."""

from __future__ import annotations

from galileo.ccq.events import ContinuousEffect, FetchRequested, RefuseFetch
from galileo.ccq.machine import Continuous
from galileo.ccq.model import Ccq, Record
from galileo.ccq.options import ContinuousOptions
from galileo.cursor import EMPTY_CURSOR
from galileo.election.elections import CoordinatorElections
from galileo.election.events import MembersChanged, MessageArrived, RecordsLoaded, Send, Ticked
from galileo.election.messages import Poll, RecordNotFound, RecordRequest, RecordUpdate

WALL = 1_700_000_000.0


def machine() -> Continuous:
    made = Continuous("a", ContinuousOptions(ordinal=0, groups=(("a", "b"), ("c",))))
    made.step(RecordsLoaded((), WALL), 0.0)
    return made


def record(coordinator: str) -> Record:
    ccq = Ccq(id="q", dataset="d", query="", interval_s=1.0, expires_at=WALL + 1e6)
    return Record(ccq, term=4097, coordinator=coordinator, retrieved=EMPTY_CURSOR)


def sent(effects: list[ContinuousEffect], kind: type) -> list[str]:
    return [one.to for one in effects if isinstance(one, Send) and isinstance(one.message, kind)]


def ticks(made: Continuous, *, until: float) -> list[ContinuousEffect]:
    effects: list[ContinuousEffect] = []
    for number in range(1, int(until * 10)):
        effects += made.step(Ticked(WALL + number / 10), number / 10)
        made.check()
    return effects


def test_machine_coordinator_removed_starts_an_election() -> None:
    made = machine()
    made.step(MessageArrived("c", RecordUpdate((record("c"),))), 0.1)
    assert sent(ticks(made, until=10.0), Poll) == []
    made.step(MembersChanged((("a", "b"),)), 10.0)
    assert sent(ticks(made, until=30.0), Poll) == ["b"]


def test_machine_unknown_query_asks_a_node_that_has_joined() -> None:
    made = machine()
    made.step(MembersChanged((("a", "b", "n"), ("c",))), 0.1)
    fetch = FetchRequested(1, "q", EMPTY_CURSOR, None, 10, None)
    assert sent(made.step(fetch, 0.2), RecordRequest) == ["b", "n"], "the replicas"
    assert made.step(MessageArrived("b", RecordNotFound(("q",))), 0.3) == []
    others = made.step(MessageArrived("n", RecordNotFound(("q",))), 0.3)
    assert sent(others, RecordRequest) == ["c"]
    answers = made.step(MessageArrived("c", RecordNotFound(("q",))), 0.3)
    assert isinstance(answers[0], RefuseFetch)
    assert answers[0].failure.kind == "unknown_ccq"


def test_copy_of_a_removed_node_does_not_count_for_a_submission() -> None:
    made = machine()
    made.step(MembersChanged((("a", "b", "n"), ("c", "m"))), 0.1)
    elections = CoordinatorElections(made.state)
    others = elections.left_to_copy(record("a"), {"a"})
    assert elections.left_to_copy(record("a"), {"a", *others[:2]}) == []
    kept, removed = others[:2]

    remaining = tuple(node for node in ("a", "b", "n", "c", "m") if node != removed)
    made.step(MembersChanged((remaining,)), 0.2)

    left = elections.left_to_copy(record("a"), {"a", kept, removed})
    assert len(left) == 1
    assert left[0] not in {"a", kept, removed}
