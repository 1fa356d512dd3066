"""Changes of definitions, applied several times and in any order, as the leaders do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import (
    CorruptData,
    DatasetExists,
    GalileoError,
    InputError,
    InvalidSchema,
    QuotaExceeded,
    UnknownDataset,
)
from galileo.model import system_rows
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Feature, Schema, features_to_json
from galileo.model.system_rows import Draft, LookUp, OfferRow, Row, Rows, first_rows
from galileo.node import definitions
from galileo.node.definitions import (
    DEFINITION_ROWS,
    NOTHING,
    AddFeatures,
    CreateDataset,
    Definition,
    DropDataset,
    SetRetention,
    decode,
    encode,
    merged,
)
from galileo.node.peers import RowChange

DEPTH, SPEED = (Schema("x", [Feature(name)]) for name in ("depth", "speed"))
GUST, SITE = Feature("gust"), Feature("site", type="text")
DAY, WEEK = Retention("1d"), Retention("7d")
PRESENT = Definition(0, DEPTH, "1")


def create(schema: Schema = DEPTH, creation: str = "1", **quota: object) -> CreateDataset:
    return CreateDataset(schema.name, schema.to_json(), creation, **quota)  # type: ignore[arg-type]


def add(*features: Feature, dataset: str = "x") -> AddFeatures:
    return AddFeatures(dataset, features_to_json(features))


def retain(policy: Retention, dataset: str = "x") -> SetRetention:
    return SetRetention(dataset, policy.to_json())


def apply(change: RowChange, present: Definition) -> Definition:
    """What a definition is after one more attempt of a change that has begun."""
    before = Rows(DEFINITION_ROWS)
    if present != NOTHING:
        before.put(change.name, present, 1)
    draft = Draft(before)
    change.apply(draft)
    return draft[change.name]


def carry_out(change: RowChange, present: Definition) -> Definition:
    return apply(change.begun(present), present)


# --- single changes ------------------------------------------------------------------------------


def test_create_applied_again_changes_nothing() -> None:
    begun = create().begun(NOTHING)
    assert apply(begun, NOTHING) == PRESENT
    assert apply(begun, PRESENT) == PRESENT


@pytest.mark.parametrize(("schema", "same"), [(DEPTH, True), (SPEED, False)])
def test_create_of_a_name_that_another_call_took_is_refused(schema: Schema, same: bool) -> None:
    other, begun = Definition(0, DEPTH, "2"), create(schema).begun(NOTHING)
    with raises(DatasetExists, same=same):
        apply(begun, other)
    with raises(DatasetExists, same=same):
        create(schema).begun(other)


def test_create_does_not_bring_back_what_was_dropped_meanwhile() -> None:
    begun = create().begun(NOTHING)
    dropped = carry_out(DropDataset("x"), apply(begun, NOTHING))
    with raises(UnknownDataset, dropped="x"):
        apply(begun, dropped)
    again = Definition(1, DEPTH.of_generation(1), "2")
    assert carry_out(create(creation="2"), dropped) == again
    with raises(UnknownDataset, dropped="x"):
        apply(begun, again)


def test_add_features_applied_again_adds_them_once() -> None:
    begun = add(GUST).begun(PRESENT)
    wider = apply(begun, PRESENT)
    assert wider == replace(PRESENT, schema=DEPTH.with_features([GUST]))
    assert apply(begun, wider) == wider
    more = carry_out(add(SITE), wider)
    assert apply(begun, more) == more
    with raises(InvalidSchema, expected="free_name", feature="gust"):
        add(GUST).begun(more)


def test_add_features_overtaken_by_others_adds_them_behind_those() -> None:
    begun = add(GUST).begun(PRESENT)
    other = carry_out(add(SITE), PRESENT)
    both = apply(begun, other)
    assert both.schema == DEPTH.with_features([SITE, GUST])
    with raises(InvalidSchema, expected="free_name", feature="gust"):
        add(GUST).begun(both)


def test_add_features_to_a_dropped_or_an_unknown_dataset_is_refused() -> None:
    with raises(UnknownDataset, dropped="x"):
        add(GUST).begun(carry_out(DropDataset("x"), PRESENT))
    with raises(UnknownDataset, dataset="y"):
        add(GUST, dataset="y").begun(NOTHING)


def test_drop_applied_again_leaves_the_next_dataset() -> None:
    begun = DropDataset("x").begun(PRESENT)
    dropped = apply(begun, PRESENT)
    assert dropped == Definition(1)
    again = carry_out(create(SPEED, "2"), dropped)
    assert apply(begun, again) == again
    with raises(UnknownDataset, dropped="x"):
        DropDataset("x").begun(again)
    with raises(UnknownDataset, dataset="x"):
        DropDataset("x").begun(NOTHING)


def test_set_retention_overtaken_by_another_is_not_set_again() -> None:
    first = retain(DAY).begun(PRESENT)
    set_once = apply(first, PRESENT)
    assert set_once.retention == VersionedRetention(1, DAY)
    second = carry_out(retain(WEEK), set_once)
    assert second.retention == VersionedRetention(2, WEEK)
    assert apply(first, second) == second
    other = carry_out(retain(WEEK), PRESENT)
    assert apply(first, other) == other, "it came before the call that set the same version"
    with raises(UnknownDataset, dropped="x"):
        apply(first, carry_out(DropDataset("x"), second))


def test_look_up_changes_nothing() -> None:
    assert carry_out(LookUp("x"), PRESENT) == PRESENT
    assert carry_out(LookUp("x"), NOTHING) == NOTHING


def test_key_of_a_later_generation_than_is_known_is_unknown() -> None:
    for change in (DropDataset("x@1"), add(GUST, dataset="x@1"), retain(DAY, "x@1")):
        with raises(UnknownDataset, dataset="x"):
            change.begun(PRESENT)


# --- room and quotas -----------------------------------------------------------------------------


def _of(*present: Definition, names: Sequence[str] = ("x", "y", "z")) -> Rows[Definition]:
    known = Rows(DEFINITION_ROWS)
    for number, (name, definition) in enumerate(zip(names, present, strict=False), start=1):
        known.put(name, definition, number)
    return known


def named(name: str, creation: str = "n", **quota: object) -> CreateDataset:
    return replace(create(Schema(name, [GUST]), creation, **quota), generation=0)


def test_names_of_a_cluster_are_bounded_dropped_ones_included(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(definitions, "NAMES_MAX", 2)
    draft = Draft(_of(PRESENT))
    named("y").apply(draft)
    with raises(InputError, bound=2):
        named("z").apply(draft)
    DropDataset("y").apply(draft)
    with raises(InputError, bound=2):
        named("z").apply(draft)
    replace(named("y", "again"), generation=1).apply(draft)
    named("x", PRESENT.creation).apply(draft)  # A repeated call needs no room.
    assert len(draft) == 2


def test_quota_of_a_principal_counts_names_dropped_ones_included() -> None:
    quota = {"creator": "ann", "names_max": 2}
    draft = Draft(_of(Definition(0, DEPTH, "1", "ann")))
    named("y", **quota).apply(draft)
    assert draft.total("ann") == 2
    with raises(QuotaExceeded, quota="datasets_max", bound=2):
        named("z", **quota).apply(draft)
    named("z", creator="bob", names_max=1).apply(draft)
    DropDataset("y").apply(draft)
    with raises(QuotaExceeded, quota="datasets_max", bound=2):
        named("v", **quota).apply(draft)
    replace(named("y", "again", **quota), generation=1).apply(draft)
    assert (draft.total("ann"), draft.total("bob")) == (2, 1)


def test_name_that_another_principal_creates_again_counts_as_its_own() -> None:
    draft = Draft(_of(Definition(1, creator="ann")))
    replace(named("x", creator="bob", names_max=1), generation=1).apply(draft)
    assert (draft.total("ann"), draft.total("bob")) == (0, 1)
    named("y", creator="ann", names_max=1).apply(draft)
    assert draft.total("ann") == 1


# --- random histories ----------------------------------------------------------------------------


def random_change(chance: random.Random, number: int, known: Definition) -> RowChange:
    """A change of a client that has seen some state of the name."""
    key = f"x@{known.generations}" if known.generations else "x"
    if known.schema is None:
        return create(chance.choice([DEPTH, SPEED]), str(number))
    return chance.choice(
        [
            create(DEPTH, str(number)),
            add(Feature(chance.choice("abcd")), dataset=key),
            DropDataset(key),
            retain(chance.choice([DAY, WEEK]), key),
        ]
    )


def states(seed: int, steps: int = 12) -> list[Definition]:
    """All states of a name in a history of changes, of which some are repeated or late."""
    chance, history = random.Random(seed), [NOTHING]
    begun = list[RowChange]()
    for number in range(steps):
        present = history[-1]
        try:
            begun.append(random_change(chance, number, chance.choice(history)).begun(present))
        except GalileoError:
            continue
        for attempt in chance.sample(begun, k=min(len(begun), 3)):
            try:
                history.append(apply(attempt, history[-1]))
            except GalileoError:
                continue
    return history


def as_known(definition: Definition) -> Definition:
    """What a node keeps on its disk."""
    return replace(definition, creation="", creator="")


@given(st.integers(0, 1 << 30))
def test_states_only_grow_and_merge_into_the_later_one_in_any_order(seed: int) -> None:
    history = states(seed)
    for earlier, later in itertools.combinations(history, 2):
        assert merged(earlier, later) == merged(later, earlier) == later
    known = [as_known(one) for one in history]
    random.Random(seed).shuffle(known)
    result = NOTHING
    for one in known:
        result = merged(result, one)
    assert result == as_known(history[-1])
    assert all(decode(encode(one)) == one for one in history)


@given(st.integers(0, 1 << 30))
def test_change_repeated_after_any_others_has_its_effect_at_most_once(seed: int) -> None:
    """Right after it, a repetition changes nothing; later, it takes back nothing that came then."""
    chance, present = random.Random(seed), NOTHING
    done = list[tuple[RowChange, Definition]]()
    for number in range(12):
        try:
            change = random_change(chance, number, present).begun(present)
            after = apply(change, present)
        except GalileoError:
            continue
        assert apply(change, after) == after
        done.append((change, after))
        present = after
        for earlier, _ in done:
            try:
                again = apply(earlier, present)
            except GalileoError:
                continue
            assert again == present, f"{earlier} had its effect twice"


@given(st.integers(0, 1 << 30))
def test_offers_bring_a_leader_that_lost_states_to_the_last_one(seed: int) -> None:
    history, chance = states(seed), random.Random(seed)
    present = chance.choice(history)
    for one in chance.sample(history, k=len(history)):
        present = carry_out(OfferRow("x", encode(as_known(one))), present)
    assert as_known(present) == as_known(history[-1])


def test_merge_takes_features_and_policy_from_different_sides() -> None:
    wide = replace(PRESENT, schema=DEPTH.with_features([GUST]))
    late = replace(PRESENT, retention=VersionedRetention(1, DAY))
    both = replace(wide, retention=late.retention)
    assert merged(wide, late) == merged(late, wide) == both


# --- rows and pages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", ["", "{}", "[]", encode(PRESENT).replace("[1,", "[2,", 1), '[1, "x", 0, 0, 0, 0]']
)
def test_row_that_is_no_definition_is_corrupt(data: str) -> None:
    with pytest.raises(CorruptData):
        decode(data)


@given(
    st.lists(st.tuples(st.sampled_from("abcdefg"), st.booleans()), max_size=30),
    st.sampled_from([0, 99]),
    st.data(),
)
def test_changes_after_a_position_are_those_of_a_list(
    puts: list[tuple[str, bool]], slack: int, data: st.DataObject
) -> None:
    known, last, sequence = Rows(DEFINITION_ROWS, slack=slack), dict[str, int](), 1
    for name, is_next in puts:
        sequence += is_next
        is_deleted = name == "g" and name in last
        known.put(name, NOTHING if is_deleted else PRESENT, sequence)
        last[name] = sequence
        if is_deleted:
            del last[name]
    position = data.draw(
        st.tuples(st.integers(0, sequence + 1), st.sampled_from(["", *"adg", "~"]))
    )
    expected = sorted((at, name) for name, at in last.items() if (at, name) > position)
    assert [*known.after(*position)] == expected


def test_page_has_at_least_one_row_and_no_more_bytes_than_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [Row(name, "1234") for name in "abc"]
    for size, count in ((1, 1), (7, 1), (8, 2), (12, 3)):
        monkeypatch.setattr(system_rows, "PAGE_BYTES_MAX", size)
        assert first_rows(rows) == rows[:count]
    assert first_rows([]) == []
