"""What a node hears of the topology: the same news give the same map, in any order."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.dht import placement
from galileo.dht.topology import Group, Move, NodeInfo, Topology, even_ranges
from galileo.dht.topology_state import TopologyState
from galileo.errors import ConfigError

A, B, C, D = (NodeInfo(name, f"h:{port}") for port, name in enumerate("abcd", start=1))
TOPOLOGY = Topology("t", (Group("west", (A, B)), Group("east", (C, D))), even_ranges(2), 4)


@st.composite
def histories(draw: st.DrawFn) -> list[Move]:
    """Moves of some partitions, each given away by its owner."""
    moves = []
    for partition in draw(st.sets(st.integers(0, 7))):
        members = "ab" if partition < 4 else "cd"
        nodes = draw(st.lists(st.sampled_from(members), min_size=1, max_size=4))
        moves += [Move(partition, number, node) for number, node in enumerate(nodes, start=1)]
    return moves


@given(moves=histories(), seed=st.integers(0, 99), times=st.integers(1, 3))
def test_topology_state_adopt_in_any_order_gives_same_owners(
    moves: list[Move], seed: int, times: int
) -> None:
    expected = dict(placement.owners(TOPOLOGY))
    for move in moves:
        expected[move.partition] = move.node
    shuffled = moves * times
    Random(seed).shuffle(shuffled)
    live = TopologyState(TOPOLOGY)
    for start in range(0, len(shuffled), 2):
        live.adopt(shuffled[start : start + 2])
    assert placement.owners(live.current) == expected
    for node in "abcd":
        assert live.partitions(node) == {p for p, owner in expected.items() if owner == node}
    assert live.moves(moves) == []
    assert placement.owners(Topology.from_json(live.current.to_json())) == expected
    assert live.current.fingerprint == TOPOLOGY.fingerprint, "nodes agree while the news travel"


def test_topology_state_adopt_known_moves_keeps_topology() -> None:
    """Each gossip repeats the moves, and what follows from a topology is computed once for it."""
    live = TopologyState(TOPOLOGY)
    live.adopt([Move(0, 2, "b"), Move(1, 1, "a")])
    adopted = live.current
    live.adopt([Move(0, 2, "b"), Move(0, 1, "a")])
    assert live.current is adopted


def test_topology_state_replace_nodes_keeps_later_moves_and_addresses() -> None:
    live = TopologyState(TOPOLOGY)
    live.adopt([Move(0, 2, "b"), Move(1, 3, "a"), Move(4, 1, "d")])
    assert live.relocate("a", "elsewhere:1", epoch=1)
    registered = (Move(0, 1, "a"), Move(1, 4, "b"))
    without_d = replace(TOPOLOGY.groups[1], nodes=(C,))
    groups = (TOPOLOGY.groups[0], without_d)
    live.replace_nodes(replace(TOPOLOGY, version=2, groups=groups, moved=registered))
    assert live.current.moved == (Move(0, 2, "b"), Move(1, 4, "b"))
    assert live.current.by_name["a"].address == "elsewhere:1"


def test_topology_state_replace_nodes_keeps_what_was_confirmed_and_what_it_began_with() -> None:
    moved = TopologyState(TOPOLOGY)
    moved.relocate("a", "elsewhere:1", epoch=0)
    live = TopologyState(moved.current)
    assert not live.relocate("b", TOPOLOGY.by_name["b"].address, epoch=5), "as it is"
    others = TopologyState(replace(TOPOLOGY, version=2))
    others.relocate("b", "earlier:1", epoch=1)
    live.replace_nodes(others.current)
    assert live.current.by_name["a"].address == "elsewhere:1"
    assert live.current.by_name["b"].address == TOPOLOGY.by_name["b"].address
    assert live.relocate("a", "later:1", epoch=1)


def test_topology_state_adopt_move_to_unknown_node_is_ignored() -> None:
    live = TopologyState(TOPOLOGY)
    live.adopt([Move(0, 1, "z")])
    assert live.current == TOPOLOGY


def test_topology_with_a_leader_of_no_node_or_partition_raises() -> None:
    with raises(ConfigError, expected="node_of_group", partition=0, node="z"):
        replace(TOPOLOGY, moved=(Move(0, 1, "z"),))
    with raises(ConfigError, expected="node_of_group", partition=0, node="c"):
        replace(TOPOLOGY, moved=(Move(0, 1, "c"),))
    with raises(ConfigError, expected="partition", partition=8):
        replace(TOPOLOGY, moved=(Move(8, 1, "c"),))


def test_topology_state_relocate_keeps_address_of_latest_epoch() -> None:
    live = TopologyState(TOPOLOGY)
    assert live.relocate("b", "h:22", epoch=5)
    assert not live.relocate("b", "h:22", epoch=5)
    assert not live.relocate("b", "h:2", epoch=4), "a late word of an earlier life"
    assert not live.relocate("b", "nonsense", epoch=6)
    assert not live.relocate("b", "h:3", epoch=6), "another node's address"
    assert not live.relocate("z", "h:9", epoch=6)
    assert live.current.by_name["b"].address == "h:22"
    assert live.relocate("b", "h:2", epoch=7)
    assert live.current == TOPOLOGY


def test_topology_joined_node_owns_nothing() -> None:
    new = NodeInfo("n", "h:9", ordinal=4, joined=True)
    grown = replace(TOPOLOGY, groups=(Group("west", (A, new, B)), TOPOLOGY.groups[1]))
    assert grown.placement_json == TOPOLOGY.placement_json
    assert placement.owners(grown) == placement.owners(TOPOLOGY)
    assert {name: grown.ordinals[name] for name in "abcd"} == dict(TOPOLOGY.ordinals)
    assert placement.partitions_by_node(grown)["n"] == frozenset()
    assert Topology.from_json(grown.to_json()) == grown


def test_topology_joined_node_without_ordinal_or_founder_raises() -> None:
    with raises(ConfigError, expected="ordinal", node="n"):
        NodeInfo("n", "h:9", joined=True)
    alone = Group("west", (NodeInfo("n", "h:9", ordinal=4, joined=True),))
    with raises(ConfigError, expected="initial_node", group="west"):
        replace(TOPOLOGY, groups=(alone, TOPOLOGY.groups[1]))
