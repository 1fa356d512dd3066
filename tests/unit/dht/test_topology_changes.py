"""Changes of the topology: random histories of nodes that come and go."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from expected_errors import raises
from parameters import keep_quick

from galileo.dht import placement, topology_changes
from galileo.dht.topology import NO_DISK, SYSTEM, Group, Move, NodeInfo, Topology, even_ranges
from galileo.errors import InputError, Unavailable
from galileo.model.forks import BEGIN_S

A, B, C, D = (NodeInfo(name, f"h:{port}") for port, name in enumerate("abcd", start=1))
GROUPS = (Group("west", (A, B)), Group("east", (C, D)))
FIRST = Topology("t", GROUPS, even_ranges(2), 8)
NEW = NodeInfo("n", "h:9", identity="1f")


def with_leaders(topology: Topology) -> Topology:
    """When the first node of each ranking leads."""
    terms = {move.partition: move.number for move in topology.moved}
    first = {p: nodes[0] for p, nodes in placement.rankings(topology).items()}
    moves = tuple(Move(p, terms.get(p, 0) + 1, node) for p, node in sorted(first.items()))
    return replace(topology, moved=moves)


def test_add_node_first_change_moves_nothing_and_keeps_the_fingerprint() -> None:
    grown = topology_changes.add_node(FIRST, NEW, group="west")
    assert placement.owners(grown) == placement.owners(FIRST)
    assert grown.fingerprint == FIRST.fingerprint
    assert grown.ordinals == {**FIRST.ordinals, "n": 4}
    assert Topology.from_json(grown.to_json()) == grown
    assert topology_changes.add_node(grown, NEW, group="west") is grown


@pytest.mark.parametrize(
    ("node", "group", "details"),
    [
        (replace(NEW, name="a"), "", {"node": "a"}),
        (replace(NEW, address="h:1"), "", {"node": "a", "address": "h:1"}),
        (NEW, "north", {"group": "north"}),
    ],
)
def test_add_node_taken_or_unknown_names_raise_input_error(
    node: NodeInfo, group: str, details: dict[str, str]
) -> None:
    with raises(InputError, **details):
        topology_changes.add_node(FIRST, node, group=group)


def test_add_node_announced_takes_the_identity_of_the_node_that_joins() -> None:
    announced = topology_changes.add_node(FIRST, replace(NEW, identity=""))
    assert "n" not in topology_changes.voters(announced)
    joined = topology_changes.add_node(announced, NEW)
    assert joined.by_name["n"].identity == "1f"
    assert joined.ordinals["n"] == 4


def test_pinned_partition_is_led_by_its_node_and_others_stay() -> None:
    before = placement.rankings(FIRST)
    to = before[3][1]
    pinned = topology_changes.pin_partitions(FIRST, [3], to)
    assert placement.rankings(pinned)[3] == (to, before[3][0])
    assert {p: r for p, r in placement.rankings(pinned).items() if p != 3} == {
        p: r for p, r in before.items() if p != 3
    }
    assert topology_changes.pin_partitions(pinned, [3], to) is pinned
    assert Topology.from_json(pinned.to_json()) == pinned
    back = topology_changes.pin_partitions(pinned, [3], before[3][0])
    assert placement.rankings(back)[3] == before[3]


def test_pin_to_a_node_that_cannot_lead_the_partition_is_refused() -> None:
    with raises(InputError, partition=3, group="east"):
        topology_changes.pin_partitions(FIRST, [3], "c")
    with raises(InputError, node="z"):
        topology_changes.pin_partitions(FIRST, [3], "z")
    leaving = topology_changes.set_leaving(FIRST, "a", is_leaving=True)
    with raises(InputError, node="a"):
        topology_changes.pin_partitions(leaving, [3], "a")


def test_pin_to_a_node_that_is_removed_goes_with_it() -> None:
    owners = placement.owners(FIRST)
    of_b = [p for p in range(8) if owners[p] == "b"]
    pinned = topology_changes.pin_partitions(FIRST, of_b, "a")
    leaving = topology_changes.set_leaving(pinned, "a", is_leaving=True)
    assert {r[0] for p, r in placement.rankings(leaving).items() if p < 8} == {"b"}
    removed = topology_changes.remove_node(with_leaders(leaving), "a")
    assert removed.pins == ()


def test_partitions_of_a_lost_directory_begin_anew_in_the_next_one() -> None:
    owned, history = placement.partitions_by_node(FIRST)["a"], int(1.8e9) - BEGIN_S
    first = topology_changes.identify(FIRST, "a", "d1", owned)
    again = topology_changes.identify(first, "a", "d2", owned)
    assert again is first, "another directory founds nothing by itself"
    forgotten = topology_changes.found_anew(first, "a", owned, lost="d1", now=1.8e9)
    assert topology_changes.unfounded(forgotten, owned) == owned
    anew = topology_changes.identify(forgotten, "a", "d2", owned)
    assert anew.founding is not None
    assert {anew.founding.disks[p] for p in owned} == {"d2"}
    assert anew.by_name["a"].identity == "d2"
    assert topology_changes.found_anew(anew, "a", owned, lost="d1", now=1.8e9) is anew, "it is done"
    assert anew.founding.histories == tuple((p, history) for p in sorted(owned))
    assert Topology.from_json(anew.to_json()) == anew
    twice = topology_changes.found_anew(anew, "a", [min(owned)], lost="d2", now=1.8e9)
    assert twice.founding is not None
    later = {**dict.fromkeys(owned, history), min(owned): history + 1}
    assert dict(twice.founding.histories) == later, "within the same second"


def test_first_directory_founds_the_system_partition_until_it_is_lost() -> None:
    topology = FIRST
    for name in "bac":
        owned = placement.partitions_by_node(topology)[name] | {SYSTEM}
        topology = topology_changes.identify(topology, name, f"disk of {name}", owned)
    assert topology.founding is not None
    assert topology.founding.system == "disk of b"
    assert SYSTEM not in placement.owners(topology)
    assert Topology.from_json(topology.to_json()) == topology
    forgotten = topology_changes.found_anew(topology, "b", [SYSTEM], lost="disk of b", now=1.8e9)
    assert topology_changes.unfounded(forgotten, [SYSTEM]) == {SYSTEM}
    anew = topology_changes.identify(forgotten, "b", "next disk of b", [SYSTEM])
    assert anew.founding is not None
    assert anew.founding.system == "next disk of b"
    assert anew.founding.disks == topology.founding.disks


def test_system_partition_of_a_founder_that_is_removed_begins_nowhere_again() -> None:
    topology = topology_changes.identify(FIRST, "a", "disk", [SYSTEM])
    leaving = topology_changes.set_leaving(topology, "a", is_leaving=True)
    removed = topology_changes.remove_node(with_leaders(leaving), "a")
    late = topology_changes.identify(removed, "b", "late disk", [SYSTEM])
    assert late.founding is not None
    assert late.founding.system == NO_DISK


@pytest.mark.parametrize(
    ("nodes", "replicas", "copies"),
    [(1, 1, 1), (2, 1, 1), (2, 2, 2), (3, 1, 3), (4, 3, 3), (5, 2, 5), (9, 3, 5)],
)
def test_copies_of_the_system_partition(nodes: int, replicas: int, copies: int) -> None:
    members = tuple(NodeInfo(f"n{n}", f"h:{n}") for n in range(1, nodes + 1))
    topology = Topology("t", (Group("g", members),), even_ranges(1), 4, replicas=replicas)
    assert topology_changes.system_copies(topology) == copies
    assert len(placement.rankings(topology)[SYSTEM]) == nodes


def test_copies_of_the_system_partition_are_at_the_oldest_nodes_of_any_group_that_stay() -> None:
    ranking = placement.rankings(topology_changes.add_node(FIRST, NEW))[SYSTEM]
    assert ranking == (*FIRST.by_name, "n")
    leaving = topology_changes.set_leaving(FIRST, "a", is_leaving=True)
    assert placement.rankings(leaving)[SYSTEM] == tuple(n for n in FIRST.by_name if n != "a")


def test_remove_node_last_of_its_group_raises_input_error() -> None:
    alone = with_leaders(topology_changes.set_leaving(FIRST, "a", is_leaving=True))
    alone = topology_changes.remove_node(alone, "a")
    with raises(InputError, node="b"):
        topology_changes.set_leaving(alone, "b", is_leaving=True)


NEW_MAP = (("", 1), ("9", 0))


def changed(topology: Topology, **kwargs: object) -> Topology:
    """The topology, one version later."""
    return replace(topology, version=topology.version + 1, **kwargs)  # type: ignore[arg-type]


def test_add_node_new_group_has_partitions_and_no_ranges() -> None:
    grown = topology_changes.add_node(FIRST, NEW, group="north", is_new_group=True)
    assert [group.name for group in grown.groups] == ["west", "east", "north"]
    assert placement.partitions_by_node(grown)["n"] == frozenset(range(16, 24))
    assert placement.readable_partitions(grown) == frozenset(range(16))
    before = placement.owners(FIRST)
    assert {p: placement.owner(grown, p) for p in before} == before
    assert grown.fingerprint == FIRST.fingerprint
    with raises(InputError, group="west"):
        topology_changes.add_node(FIRST, NEW, group="west", is_new_group=True)


def test_ranges_proposed_and_activated_begin_an_epoch() -> None:
    proposed = changed(topology_changes.propose_ranges(FIRST, NEW_MAP))
    assert (proposed.ranges, proposed.range_epoch) == (FIRST.ranges, 1)
    assert topology_changes.propose_ranges(proposed, NEW_MAP) is proposed
    version = proposed.version
    active = topology_changes.activate_ranges(proposed, NEW_MAP, known_version=version)
    assert (active.ranges, active.range_epoch) == (NEW_MAP, 2)
    assert active.readable_ranges == (FIRST.ranges, NEW_MAP)
    assert topology_changes.activate_ranges(active, NEW_MAP, known_version=0) is active
    assert topology_changes.propose_ranges(active, NEW_MAP) is active
    assert Topology.from_json(active.to_json()) == active
    assert active.fingerprint == FIRST.fingerprint


def test_ranges_activated_with_an_older_known_version_is_unavailable() -> None:
    proposed = changed(topology_changes.propose_ranges(FIRST, NEW_MAP))
    later = changed(topology_changes.add_node(proposed, NEW, group="west"))
    with raises(Unavailable):
        topology_changes.activate_ranges(later, NEW_MAP, known_version=proposed.version)


def test_ranges_withdrawn_are_not_activated() -> None:
    proposed = changed(topology_changes.propose_ranges(FIRST, NEW_MAP))
    with raises(InputError, expected="no_pending_ranges"):
        topology_changes.propose_ranges(proposed, (("", 0),))
    withdrawn = changed(topology_changes.withdraw_ranges(proposed))
    assert withdrawn.readable_ranges == FIRST.readable_ranges
    with raises(InputError, expected="pending_ranges"):
        topology_changes.activate_ranges(withdrawn, NEW_MAP, known_version=withdrawn.version)


def test_ranges_of_a_group_whose_first_node_has_not_joined_raise_input_error() -> None:
    announced = replace(NEW, identity="")
    grown = topology_changes.add_node(FIRST, announced, group="north", is_new_group=True)
    with raises(InputError, node="n"):
        topology_changes.propose_ranges(grown, (("", 0), ("9", 2)))
    joined = topology_changes.add_node(grown, NEW, group="north")
    topology_changes.propose_ranges(joined, (("", 0), ("9", 2)))


@pytest.mark.parametrize("seed", keep_quick(range(40), *range(10)))
def test_topology_random_history_keeps_blocks_and_ordinals(seed: int) -> None:
    """Each partition has one owner of its group, shares are even, and no ordinal comes again."""
    random, topology, used = Random(seed), FIRST, set(FIRST.ordinals.values())
    for number in range(25):
        names = list(topology.by_name)
        if random.random() < 0.55:
            node = NodeInfo(f"n{number}", f"h:{100 + number}", identity=str(number))
            topology = topology_changes.add_node(topology, node)
            ordinal = topology.ordinals[node.name]
            assert ordinal not in used
            used.add(ordinal)
        else:
            name = random.choice(names)
            if len(topology.group_of(name).nodes) == 1:
                continue
            topology = topology_changes.set_leaving(topology, name, is_leaving=True)
            topology = with_leaders(topology)
            topology = topology_changes.remove_node(topology, name)
            assert topology_changes.remove_node(topology, name) is topology
        if random.random() < 0.5:
            topology = with_leaders(topology)
        topology = Topology.from_json(topology.to_json())
        verify(topology)


def verify(topology: Topology) -> None:
    owners = placement.owners(topology)
    assert set(owners) == set(FIRST.partitions)
    for number, group in enumerate(topology.groups):
        names = {node.name for node in group.nodes}
        own = [owners[p] for p in range(number * 8, number * 8 + 8)]
        assert set(own) <= names
        wanted = placement.rankings(topology)
        counts = Counter(wanted[p][0] for p in range(number * 8, number * 8 + 8))
        assert max(counts.values()) <= -(-8 // len(names))
    voters = topology_changes.voters(topology)
    assert len(voters) % 2 == 1
    assert len(voters) == min(5, len(topology.nodes) - (len(topology.nodes) + 1) % 2)
