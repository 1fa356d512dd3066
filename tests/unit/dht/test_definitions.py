"""Changes of agreed definitions, applied several times, as a register does."""

from __future__ import annotations

import pytest
from expected_errors import raises
from galileo.dht.definitions import (
    UNFOUNDED,
    AddFeatures,
    CreateDataset,
    Definition,
    DropDataset,
    SetRetention,
    decode,
    encode,
    keep,
    merge,
    next_entry,
    with_seats,
)

from galileo.dht import definitions
from galileo.dht.register import Entry
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.errors import DatasetExists, InvalidSchema, Unavailable, UnknownDataset
from galileo.model.retention import Retention, VersionedRetention
from galileo.model.schema import Feature, Schema

DEPTH, SPEED = (Schema("x", [Feature(name)]) for name in ("depth", "speed"))
GUST, SITE = Feature("gust"), Feature("site", type="text")
DAY, WEEK = Retention("1d"), Retention("7d")


def test_create_applied_again_changes_nothing() -> None:
    create = CreateDataset(DEPTH, "1")
    created = create({})
    assert created == {"x": Definition(0, DEPTH, "1")}
    assert create(created) is created


@pytest.mark.parametrize(("schema", "same"), [(DEPTH, True), (SPEED, False)])
def test_create_of_a_name_that_another_call_took_is_refused(schema: Schema, same: bool) -> None:
    create = CreateDataset(schema, "1")
    create({})  # It was proposed, and another entry was chosen.
    with raises(DatasetExists, same=same):
        create({"x": Definition(0, DEPTH, "2")})


def test_create_does_not_bring_back_what_was_dropped_meanwhile() -> None:
    create = CreateDataset(DEPTH, "1")
    created = create({})
    dropped = DropDataset("x")(created)
    with pytest.raises(UnknownDataset):
        create(dropped)
    assert CreateDataset(DEPTH, "2")(dropped) == {
        "x": Definition(1, DEPTH.of_generation(1), "2"),
    }


def test_add_features_applied_again_adds_them_once() -> None:
    present = {"x": Definition(0, DEPTH, "1")}
    add = AddFeatures("x", (GUST,))
    wider = add(present)
    assert wider == {"x": Definition(0, DEPTH.with_features([GUST]), "1")}
    assert add(wider) is wider
    more = AddFeatures("x", (SITE,))(wider)
    assert add(more) is more
    with raises(InvalidSchema, expected="free_name", feature="gust"):
        AddFeatures("x", (GUST,))(more)


def test_add_features_overtaken_by_others_adds_them_behind_those() -> None:
    present = {"x": Definition(0, DEPTH, "1")}
    add = AddFeatures("x", (GUST,))
    add(present)  # It was proposed, and another entry was chosen.
    chosen = AddFeatures("x", (SITE,))(present)
    both = add(chosen)
    assert both["x"].schema == DEPTH.with_features([SITE, GUST])
    assert add(both) is both


def test_add_features_to_a_dropped_or_an_unknown_dataset_is_refused() -> None:
    present = {"x": Definition(0, DEPTH, "1")}
    with raises(UnknownDataset, dropped="x"):
        AddFeatures("x", (GUST,))(DropDataset("x")(present))
    with raises(UnknownDataset, dataset="y"):
        AddFeatures("y", (GUST,))(present)


def test_drop_applied_again_leaves_the_next_dataset() -> None:
    drop = DropDataset("x")
    dropped = drop({"x": Definition(0, DEPTH, "1")})
    assert dropped == {"x": Definition(1)}
    again = CreateDataset(SPEED, "2")(dropped)
    assert drop(again) is again
    with raises(UnknownDataset, dropped="x"):
        DropDataset("x")(again)
    with raises(UnknownDataset, dataset="x"):
        DropDataset("x")({})


def test_set_retention_overtaken_by_another_is_not_set_again() -> None:
    present = {"x": Definition(0, DEPTH, "1")}
    first, second = SetRetention("x", DAY), SetRetention("x", WEEK)
    both = second(first(present))
    assert both["x"].retention == VersionedRetention(2, WEEK)
    assert first(both) is both
    lost = SetRetention("x", DAY)
    lost(present)  # Another entry with this version was chosen.
    other = SetRetention("x", WEEK)(present)
    assert lost(other) is other
    with raises(UnknownDataset, dropped="x"):
        first(DropDataset("x")(both))


def test_merge_keeps_what_is_later_in_any_order() -> None:
    policy = VersionedRetention(3, DAY)
    states = [
        Definition(0, DEPTH, "1"),
        Definition(0, DEPTH, "1", VersionedRetention(2, WEEK)),
        Definition(0, DEPTH.with_features([GUST]), "1", VersionedRetention(2, WEEK)),
        Definition(0, DEPTH.with_features([GUST, SITE]), "1", VersionedRetention(2, WEEK)),
        Definition(1),
        Definition(1, SPEED.of_generation(1), "", policy),
    ]
    for later, one in enumerate(states):
        for earlier in states[: later + 1]:
            assert merge({"x": one}, {"x": earlier}) == {"x": one}
            assert merge({"x": earlier}, {"x": one}) == {"x": one}
    assert decode(encode({"x": states[-1]})) == {"x": states[-1]}


def test_entry_that_is_not_founded_decides_nothing() -> None:
    entry = Entry(1, ("a@",), ("a@",), UNFOUNDED)
    known = {"x": Definition(0, DEPTH)}
    with pytest.raises(Unavailable):
        next_entry(entry, keep, known=known)
    founded = next_entry(entry, keep, known=known, is_founding=True)
    assert decode(founded.data) == known
    assert next_entry(founded, keep, known=known) is founded
    empty = next_entry(entry, keep, known={}, is_founding=True)
    assert empty.data != UNFOUNDED


def test_seats_follow_directories_that_are_known() -> None:
    nodes = tuple(NodeInfo(name, f"h:{n}") for n, name in enumerate("abcd", start=1))
    topology = Topology("t", (Group("g", nodes),), even_ranges(1), 4, replicas=3)
    entry = Entry(2, ("a@1", "b@1", "d@1"), ("a@1",), "{}")
    directories = {"a": "2", "b": "", "c": "9", "d": "1"}
    seated = with_seats(entry, topology, lambda name: directories[name])
    assert seated.voters == ("a@2", "b@1", "d@1")
    leaving = tuple(NodeInfo(n.name, n.address, leaving=n.name == "d") for n in nodes)
    without = Topology("t", (Group("g", leaving),), even_ranges(1), 4, replicas=3)
    assert with_seats(entry, without, directories.__getitem__).voters == ("a@2", "b@1", "c@9")
    directories["c"] = ""
    assert with_seats(entry, without, directories.__getitem__).voters == ("a@2", "b@1", "d@1")


def test_two_nodes_vote_both() -> None:
    nodes = tuple(NodeInfo(name, f"h:{n}") for n, name in enumerate("abc", start=1))
    names = {
        count: len(definitions.topology_changes.definition_voters(_of(nodes[:count])))
        for count in (1, 2, 3)
    }
    assert names == {1: 1, 2: 2, 3: 3}


def _of(nodes: tuple[NodeInfo, ...]) -> Topology:
    return Topology("t", (Group("g", nodes),), even_ranges(1), 4, replicas=2)


def test_merge_takes_features_and_policy_from_different_sides() -> None:
    wide = Definition(0, DEPTH.with_features([GUST]), "1")
    late = Definition(0, DEPTH, "1", VersionedRetention(1, DAY))
    both = Definition(0, wide.schema, "1", late.retention)
    assert merge({"x": wide}, {"x": late}) == merge({"x": late}, {"x": wide}) == {"x": both}
