"""Rows of system tables: topics, deletion, pages, drafts and outcomes of changes."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pyarrow as pa
import pytest

from galileo.errors import InputError, QuotaExceeded, Unavailable
from galileo.model import system_rows
from galileo.model.system import SAMPLERS
from galileo.model.system_rows import (
    CALL_CHANGES_MAX,
    Draft,
    Listing,
    LookUp,
    OfferRow,
    Outcome,
    Position,
    Row,
    RowKind,
    RowPage,
    Rows,
    first_changes,
)

Value = frozenset[str]
NOTHING: Value = frozenset()
KIND: RowKind[Value] = RowKind(
    SAMPLERS,
    NOTHING,
    encode=lambda value: " ".join(sorted(value)),
    decode=lambda data: frozenset(data.split()),
    merged=lambda one, other: one | other,
    totals=lambda value: {"words": len(value)},
    changes_max=10,
    topics=lambda value: value,
)
"""Sets of words, each of which is a topic."""


def words(text: str) -> Value:
    return frozenset(text.split())


def table(**values: str) -> Rows[Value]:
    rows = Rows(KIND)
    for sequence, (name, text) in enumerate(values.items(), 1):
        rows.put(name, words(text), sequence)
    return rows


def random_value(random: Random) -> Value:
    return frozenset(random.sample("abcd", random.randrange(4)))


# --- rows ----------------------------------------------------------------------------------------


def test_rows_that_are_deleted_are_gone_and_not_counted() -> None:
    rows = table(x="a b", y="c")
    assert rows.totals["words"] == 3
    rows.put("x", NOTHING, 3)
    assert ([*rows], len(rows), "x" in rows, rows["x"]) == (["y"], 1, False, NOTHING)
    assert rows.totals["words"] == 1
    assert [*rows.after(0, "")] == [(2, "y")]
    assert not rows.is_of("x", "a")
    rows.put("x", words("b"), 4)
    assert rows.is_of("x", "b")
    assert not rows.is_of("x", "a"), "it is another row"


def test_row_keeps_the_topics_that_it_once_had() -> None:
    rows = table(x="a b")
    rows.put("x", words("b c"), 2)
    assert [rows.is_of("x", topic) for topic in ("a", "b", "c", "d")] == [True, True, True, False]
    assert rows.is_of("x", ""), "the topic of all rows"


def test_rows_of_a_kind_without_topics_are_of_none() -> None:
    plain = RowKind(SAMPLERS, NOTHING, KIND.encode, KIND.decode, KIND.merged, KIND.totals, 10)
    rows = Rows(plain)
    rows.put("x", words("a"), 1)
    assert (rows.is_of("x", ""), rows.is_of("x", "a")) == (True, False)


def test_row_without_a_value_has_no_data() -> None:
    assert KIND.row("x", NOTHING) == Row("x", "")
    assert KIND.value("") == KIND.value(None) == NOTHING
    assert KIND.values([Row("x", "a b"), Row("y", "")]) == {"x": words("a b"), "y": NOTHING}


# --- pages ---------------------------------------------------------------------------------------


def follow(rows: Rows[Value], after: Position, topic: str, *, until: int, term: int = 1) -> RowPage:
    return rows.page(after, topic, until=until, term=term)


def test_page_tells_of_a_row_that_has_left_the_topic() -> None:
    rows = table(x="a")
    rows.put("x", words("b"), 2)
    page = follow(rows, Position(1, "~", 1), "a", until=2)
    assert page.rows == (Row("x", "b"),)


def test_page_for_a_position_of_another_leader_begins_at_the_first_row() -> None:
    page = follow(table(x="a", y="a"), Position(2, "~", 1), "a", until=2, term=2)
    assert (len(page.rows), page.is_anew, page.reached.term) == (2, True, 2)


def test_pages_of_random_changes_equal_a_dumb_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_rows, "PAGE_BYTES_MAX", 8)
    for seed in range(20):
        random, rows = Random(seed), Rows(KIND, slack=seed % 4)
        last, once = dict[str, int](), dict[str, Value]()
        positions = {topic: Position(term=1) for topic in ("", "a", "b")}
        for sequence in range(1, 20):
            for name in random.sample("uvwxyz", random.randint(1, 4)):
                value = random_value(random)
                rows.put(name, value, sequence)
                last[name] = sequence
                once[name] = once.get(name, NOTHING) | value if value else NOTHING
            topic = random.choice([*positions])
            after, read = positions[topic], list[Row]()
            wanted = [
                (at, name)
                for name, at in last.items()
                if at > after.sequence and rows[name] and (not topic or topic in once[name])
            ]
            is_last = False
            while not is_last:
                page = follow(rows, after, topic, until=sequence)
                read += page.rows
                after, is_last = page.reached, page.is_last
            assert read == [KIND.row(name, rows[name]) for _, name in sorted(wanted)]
            assert after == Position(sequence, "~", 1)
            positions[topic] = after


# --- drafts --------------------------------------------------------------------------------------


def test_draft_counts_its_changes_and_leaves_the_rows_alone() -> None:
    rows = table(x="a b", y="c")
    draft = Draft(rows)
    draft.put("x", words("a"))
    draft.put("z", words("d e"), attachment=pa.py_buffer(b"1"))
    draft.put("y", words("c"))
    assert draft.total("words") == 4
    assert draft.changed == {"x": words("a"), "z": words("d e")}
    assert [*draft.attached] == ["z"]
    draft.put("x", NOTHING)
    assert (draft["x"], draft.total("words"), rows["x"]) == (NOTHING, 3, words("a b"))


def test_draft_of_random_changes_counts_as_a_dumb_one() -> None:
    random, rows, present = Random(5), Rows(KIND), dict[str, Value]()
    for sequence in range(1, 200):
        draft = Draft(rows)
        for _ in range(random.randrange(6)):
            name, value = random.choice("uvwxyz"), random_value(random)
            is_added = random.random() < 0.5
            (draft.add if is_added else draft.put)(name, value)
            present[name] = value | present.get(name, NOTHING) if is_added else value
            assert draft[name] == present[name]
        alive = {name: value for name, value in present.items() if value}
        assert draft.total("words") == sum(map(len, alive.values()))
        assert len(draft) == len(alive)
        total = draft.total("words")
        for name, value in draft.changed.items():
            rows.put(name, value, sequence)
        assert {name: rows[name] for name in rows} == alive
        assert (len(rows), rows.totals["words"]) == (len(alive), total)


def test_changes_of_one_call_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [OfferRow(str(number), "12345") for number in range(1_000)]
    assert first_changes(changes) == changes[:CALL_CHANGES_MAX]
    monkeypatch.setattr(system_rows, "PAGE_BYTES_MAX", 12)
    assert first_changes(changes) == changes[:2]
    assert len(first_changes([OfferRow("a", "x" * 99), LookUp("b"), *changes])) == 1
    assert first_changes([LookUp("b")] * 3) == [LookUp("b")] * 3


def test_offer_adds_what_the_leader_lacks() -> None:
    rows = table(x="a")
    draft = Draft(rows)
    offer = OfferRow("x", "b")
    assert offer.begun(rows["x"]) is offer
    offer.apply(draft)
    LookUp("y").begun(NOTHING).apply(draft)
    assert draft.changed == {"x": words("a b")}


def test_listing_offers_what_was_not_heard() -> None:
    listing = Listing(KIND, {"x": words("a b"), "y": words("a")})
    own = {"x": words("a"), "y": words("a c"), "z": words("d")}
    assert listing.missing(own) == [OfferRow("y", "a c"), OfferRow("z", "d")]


# --- outcomes ------------------------------------------------------------------------------------


@dataclass
class _Opaque:
    """A detail that no message has."""


def test_outcome_of_a_change_is_its_row() -> None:
    outcome = Outcome.of(Row("x", "a b"))
    assert (outcome.data, outcome.error) == ("a b", None)


@pytest.mark.parametrize(
    "error",
    [
        QuotaExceeded("too many", quota="ccqs_max", bound=3),
        Unavailable("no node leads", after_s=0.5),
        InputError("expected a record"),
    ],
)
def test_outcome_of_a_change_that_was_not_made_is_its_error(error: InputError) -> None:
    came = Outcome.of(error).error
    assert type(came) is type(error)
    assert (came.message, came.details) == (error.message, error.details)


def test_outcome_leaves_out_details_that_have_no_text() -> None:
    came = Outcome.of(InputError("wrong", what=_Opaque(), line=3)).error
    assert came is not None
    assert came.details == {"line": 3}
