"""The changes that the leader of the system partition applies to records."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from ccq_driver import CCQ, WALL
from expected_errors import raises

from galileo.ccq import placement
from galileo.ccq.model import Holder, Record
from galileo.ccq.placement import (
    CcqChange,
    EndCcq,
    ForgetCcq,
    Lost,
    MoveCcq,
    PlaceCcq,
    SaveProgress,
    due_change,
    excess_ends,
    move,
    moved_to,
)
from galileo.ccq.records import ALL, CCQ_ROWS, NOTHING, encode, owned
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import (
    CcqCancelled,
    GalileoError,
    InputError,
    Overloaded,
    QuotaExceeded,
    UnknownCcq,
)
from galileo.model.system_rows import Draft, Rows

RECORD = Record(CCQ, 1, ("a", "b", "c"))
ENDED = replace(RECORD, ended="cancelled", ended_at=WALL)


class Table:
    """The rows of a leader; each change is a commit."""

    def __init__(self, *records: Record) -> None:
        self.rows = Rows(CCQ_ROWS)
        self.sequence = 0
        for record in records:
            self.put(record.id, record)

    def put(self, name: str, record: Record) -> None:
        self.sequence += 1
        self.rows.put(name, record, self.sequence)

    def make(self, change: CcqChange) -> Record:
        draft = Draft(self.rows)
        change.begun(self.rows[change.name]).apply(draft)
        for name, record in draft.changed.items():
            self.put(name, record)
        return self.rows[change.name]


def place(ccq: str = "q", *, owner: str = "", total: int = 10, owned: int = 10) -> PlaceCcq:
    record = replace(RECORD, ccq=replace(CCQ, id=ccq, owner=owner))
    return PlaceCcq(ccq, encode(record), total, owned)


# --- placing -----------------------------------------------------------------------------------


def test_place_adds_a_record_once() -> None:
    table = Table()
    assert table.make(place()) == RECORD
    later = replace(RECORD, nodes=("d",), ccq=replace(CCQ, expires_at=WALL + 5.0, added=1))
    assert table.make(PlaceCcq("q", encode(later), 10, 10)) == RECORD
    assert table.sequence == 1


def test_place_another_query_under_a_taken_id_is_refused() -> None:
    table = Table(RECORD)
    other = replace(RECORD, ccq=replace(CCQ, query="other"))
    with raises(InputError):
        table.make(PlaceCcq("q", encode(other), 10, 10))


def test_place_what_has_ended_is_refused_until_it_is_forgotten() -> None:
    table = Table(ENDED)
    with pytest.raises(CcqCancelled):
        table.make(place())
    table.make(ForgetCcq("q"))
    assert table.make(place()) == RECORD


def test_place_counts_those_that_live() -> None:
    table = Table()
    for name in "xyz":
        table.make(place(name, total=3))
    with raises(Overloaded, after_s=60.0):
        table.make(place("q", total=3))
    assert table.make(place("x", total=3)).id == "x", "it is there"
    table.make(EndCcq("x", "cancelled", WALL))
    assert table.make(place("q", total=3)).id == "q"


def test_place_bounds_each_owner() -> None:
    table = Table()
    for name in "xy":
        table.make(place(name, owner="ann", owned=2))
    with raises(QuotaExceeded, quota="ccqs_max", bound=2):
        table.make(place("z", owner="ann", owned=2))
    assert table.make(place("z", owner="bob", owned=2)).id == "z"
    table.make(EndCcq("x", "expired", WALL))
    assert table.make(place("u", owner="ann", owned=2)).id == "u"


def test_place_leaves_half_of_what_is_free_to_other_owners() -> None:
    table = Table()
    for number in range(5):
        table.make(place(f"x{number}", owner="ann", total=10))
    with pytest.raises(QuotaExceeded):
        table.make(place("x5", owner="ann", total=10))
    for number in range(5):
        table.make(place(f"y{number}", total=10))


# --- other changes -----------------------------------------------------------------------------


def test_end_is_final_and_may_be_repeated() -> None:
    table = Table(RECORD)
    assert table.make(EndCcq("q", "cancelled", WALL)) == ENDED
    assert table.make(EndCcq("q", "expired", WALL + 9.0)) == ENDED
    with pytest.raises(UnknownCcq):
        table.make(EndCcq("x", "cancelled", WALL))


def test_move_counts_for_the_revision_that_it_began_with() -> None:
    table = Table(RECORD)
    first, second = (move(moved_to(RECORD, nodes)) for nodes in (("d",), ("e",)))
    assert table.make(first).nodes == ("d",)
    assert table.make(first).revision == 2
    assert table.make(second).nodes == ("d",)


def test_move_keeps_what_was_saved_meanwhile() -> None:
    holder = Holder("a", 1, EMPTY_CURSOR, Cursor({0: 9}))
    moved = move(moved_to(RECORD, ("d",), holders=(holder,)))
    table = Table(replace(RECORD, retrieved=Cursor({0: 3})))
    assert table.make(moved) == Record(CCQ, 2, ("d",), Cursor({0: 3}), holders=(holder,))


def test_move_of_what_has_ended_or_is_unknown_changes_nothing() -> None:
    assert Table(ENDED).make(move(moved_to(RECORD, ("d",)))) == ENDED
    assert Table().make(move(moved_to(RECORD, ("d",)))) == NOTHING


def test_progress_is_joined_and_of_the_same_revision_removes_holders() -> None:
    holders = tuple(Holder("b", n, EMPTY_CURSOR, Cursor({0: 9})) for n in (1, 2))
    table = Table(replace(RECORD, retrieved=Cursor({0: 3}), holders=holders))
    known = replace(RECORD, retrieved=Cursor({1: 2}), holders=holders[1:])
    saved = table.make(SaveProgress("q", encode(known)))
    assert (saved.retrieved, saved.holders) == (Cursor({0: 3, 1: 2}), holders[1:])


def test_progress_of_an_older_revision_leaves_nodes_and_holders() -> None:
    holder = Holder("a", 1, EMPTY_CURSOR, Cursor({0: 9}))
    present = replace(RECORD, revision=2, nodes=("d",), holders=(holder,))
    table = Table(present)
    saved = table.make(SaveProgress("q", encode(replace(RECORD, retrieved=Cursor({0: 3})))))
    assert saved == replace(present, retrieved=Cursor({0: 3}))


def test_progress_of_a_revision_that_was_lost_changes_nothing() -> None:
    later = replace(RECORD, revision=2, retrieved=Cursor({0: 3}))
    assert Table(RECORD).make(SaveProgress("q", encode(later))) == RECORD
    assert Table().make(SaveProgress("q", encode(later))) == NOTHING


def test_forget_removes_ends_only() -> None:
    table = Table(RECORD)
    assert table.make(ForgetCcq("q")) == RECORD
    table.make(EndCcq("q", "cancelled", WALL))
    assert table.make(ForgetCcq("q")) == NOTHING
    assert "q" not in table.rows
    assert table.make(ForgetCcq("q")) == NOTHING


# --- random changes --------------------------------------------------------------------------

TOTAL, OWNED = 5, 2


def joined(one: Record, other: Record) -> Cursor:
    both = {*one.retrieved, *other.retrieved}
    return Cursor({p: max(one.retrieved[p], other.retrieved[p]) for p in both})


def change_dumbly(known: dict[str, Record], change: CcqChange) -> str:
    """The rules once more, over a dict; returns the kind of the error."""
    present = known.get(change.name)
    sent = CCQ_ROWS.value(getattr(change, "data", ""))
    alive = [one.ccq.owner for one in known.values() if not one.ended]
    match change:
        case PlaceCcq() if present is None:
            free, owner = TOTAL - len(alive), sent.ccq.owner
            if free <= 0:
                return "overloaded"
            if alive.count(owner) >= (min(OWNED, free) if owner else OWNED):
                return "quota_exceeded"
            known[change.name] = sent
        case PlaceCcq():
            if present.ended:
                return f"ccq_{present.ended}"
            if present.ccq.query != sent.ccq.query:
                return "invalid_input"
        case EndCcq(name, ending, at):
            if present is None:
                return "unknown_ccq"
            if not present.ended:
                known[name] = replace(present, ended=ending, ended_at=at, holders=())
        case MoveCcq(name) if present and not present.ended:
            if present.revision == sent.revision - 1:
                known[name] = replace(sent, retrieved=joined(present, sent))
        case SaveProgress(name) if present and present.revision >= sent.revision:
            is_same = present.revision == sent.revision
            kept = [one for one in present.holders if not is_same or one in sent.holders]
            known[name] = replace(present, retrieved=joined(present, sent), holders=(*kept,))
        case ForgetCcq(name) if present and present.ended:
            del known[name]
    return ""


def random_change(random: Random, name: str, known: Record) -> CcqChange:
    """A change by a sender that knows this record."""
    if known == NOTHING or random.random() < 0.1:
        query = random.choice(["", "", "", "other"])
        ccq = replace(CCQ, id=name, query=query, owner={"p": "", "q": ""}.get(name, "ann"))
        return PlaceCcq(name, encode(Record(ccq, 1, ("a", "b"))), TOTAL, OWNED)
    until = Cursor({random.randrange(2): random.randint(1, 9)})
    nodes = (*random.sample("abcd", random.randint(1, 3)),)
    holder = Holder(nodes[0], random.randrange(3), EMPTY_CURSOR, until)
    kept = (*(one for one in known.holders if random.random() < 0.7),)
    saved = replace(known, retrieved=known.retrieved.join(until), holders=kept)
    return random.choice(
        [
            move(moved_to(known, nodes, holders=(holder,) * random.randrange(2))),
            SaveProgress(name, encode(replace(saved, ended=None))),
            EndCcq(name, random.choice(["cancelled", "expired"]), WALL + random.random()),
            ForgetCcq(name),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_of_several_senders_agree_with_dumb_rules(seed: int) -> None:
    """Changes arrive late, in any order and repeatedly; a commit has several."""
    random, table, known = Random(seed), Table(), dict[str, Record]()
    senders = [dict[str, Record]() for _ in range(3)]
    mail, outcomes = list[CcqChange](), Counter[str]()
    draft = Draft(table.rows)
    for number in range(600):
        sender, name = random.choice(senders), random.choice("pqrstuvw")
        if random.random() < 0.5:
            sender[name] = table.rows[name]
        mail = [*mail[-20:], random_change(random, name, sender.get(name, NOTHING))]
        change, kind = random.choice(mail), ""
        expected = change_dumbly(known, change)
        try:
            change.begun(draft[change.name]).apply(draft)
        except GalileoError as error:
            kind = error.kind
        outcomes[kind] += 1
        assert (kind, draft[change.name]) == (expected, known.get(change.name, NOTHING))
        if isinstance(change, ForgetCcq):  # A day later, nothing of it is under way.
            mail = [one for one in mail if one.name != change.name]
            senders = [{n: one[n] for n in one if n != change.name} for one in senders]
        alive = Counter(one.ccq.owner for one in known.values() if not one.ended)
        assert draft.total(ALL) == alive.total() <= TOTAL
        assert {owner: draft.total(owned(owner)) for owner in ("", "ann")} == {
            owner: alive[owner] for owner in ("", "ann")
        }
        if number % random.randint(1, 9) == 0:
            for changed, record in draft.changed.items():
                table.put(changed, record)
            draft = Draft(table.rows)
            assert {one: table.rows[one] for one in table.rows} == known
    assert {"", "invalid_input", "quota_exceeded", "ccq_cancelled"} <= outcomes.keys()


# --- the sweep -----------------------------------------------------------------------------------

EXPIRES = CCQ.expires_at
LONG_AGO = EXPIRES + placement.FORGOTTEN_S + 1.0
LASTING = replace(ENDED, ccq=replace(CCQ, expires_at=WALL + 1e9))


@pytest.mark.parametrize(
    ("record", "gone", "wall", "due"),
    [
        (RECORD, "", WALL, None),
        (RECORD, "ab", WALL, None),
        (RECORD, "abc", WALL, Lost(RECORD)),
        (RECORD, "", EXPIRES + 1.0, None),
        (RECORD, "abc", LONG_AGO, EndCcq("q", "expired", LONG_AGO)),
        (RECORD, "", LONG_AGO, EndCcq("q", "expired", LONG_AGO)),
        (ENDED, "abc", EXPIRES + 1.0, None),
        (ENDED, "", LONG_AGO, ForgetCcq("q")),
        (LASTING, "", WALL + placement.ENDED_S, None),
        (LASTING, "", WALL + placement.ENDED_S + 1.0, ForgetCcq("q")),
    ],
)
def test_leader_does_what_is_due(
    record: Record, gone: str, wall: float, due: CcqChange | Lost | None
) -> None:
    assert due_change(record, is_gone=lambda node: node in gone, wall=wall) == due


def test_oldest_of_too_many_ends_are_removed_but_none_of_lately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "ENDED_MAX", 2)
    now = WALL + placement.EXPIRED_S
    ends = [(WALL - 1.0, "c"), (WALL - 3.0, "a"), (now, "e"), (WALL - 2.0, "b"), (now, "d")]
    assert excess_ends(ends, wall=now) == ["a", "b", "c"]
    assert excess_ends(ends[2:], wall=now) == ["b"]
    assert excess_ends(ends[:2], wall=now) == []
    assert excess_ends([*ends, (now, "f"), (now, "g")], wall=now) == ["a", "b", "c"]


def test_moved_record_has_the_next_revision_and_all_holders() -> None:
    first, second = (Holder("a", n, EMPTY_CURSOR, Cursor({0: 9})) for n in (1, 2))
    moved = moved_to(replace(RECORD, holders=(first,)), ("d",), holders=(second,))
    assert moved == replace(RECORD, revision=2, nodes=("d",), holders=(first, second))
    assert move(moved) == MoveCcq("q", encode(moved))
