"""Which nodes have the copies of a partition, and which directory it begins with."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from expected_errors import raises

from galileo.dht import placement, topology_changes
from galileo.dht.topology import (
    NO_DISK,
    REPLICAS_MAX,
    Group,
    Move,
    NodeInfo,
    Topology,
    even_ranges,
)
from galileo.errors import ConfigError, InputError


def cluster(nodes: int, *, partitions: int = 64, replicas: int = 3) -> Topology:
    infos = tuple(NodeInfo(f"n{number}", f"127.0.0.1:{number + 1}") for number in range(nodes))
    return Topology(
        "test",
        (Group("one", infos),),
        even_ranges(1),
        partitions,
        replicas=replicas,
    )


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8, 16])
def test_rankings_give_each_node_its_share_of_each_rank(nodes: int) -> None:
    rankings = placement.rankings(cluster(nodes))
    assert all(len(set(ranking)) == len(ranking) == nodes for ranking in rankings.values())
    for rank in range(min(3, nodes)):
        loads = Counter(ranking[rank] for ranking in rankings.values())
        assert max(loads.values()) <= 1.25 * 64 / nodes + 1


@pytest.mark.parametrize("nodes", [3, 5, 8])
def test_rankings_begin_with_the_owners_of_a_new_cluster(nodes: int) -> None:
    topology = cluster(nodes)
    owners = placement.owners(topology)
    rankings = placement.rankings(topology)
    assert {p: rankings[p][0] for p in topology.partitions} == owners


def test_rankings_change_little_with_a_further_node() -> None:
    before, after = (placement.rankings(cluster(nodes)) for nodes in (8, 9))
    replaced = sum(len({*before[p][:3]} - {*after[p][:3]}) for p in before)
    assert replaced <= 0.35 * 3 * 64, "the new node has a ninth of all copies"


def test_rankings_leave_out_leaving_nodes() -> None:
    topology = topology_changes.set_leaving(cluster(4), "n2", is_leaving=True)
    assert all("n2" not in ranking for ranking in placement.rankings(topology).values())


def identify(topology: Topology, name: str, disk: str) -> Topology:
    owned = placement.partitions_by_node(topology)[name]
    return topology_changes.identify(topology, name, disk, owned)


def test_identify_names_the_first_directory_for_good() -> None:
    topology = cluster(3)
    for name in ("n0", "n1", "n2"):
        topology = identify(topology, name, f"disk of {name}")
    founding = topology.founding
    assert founding is not None
    assert founding.disks == tuple(f"disk of {owner}" for owner in founding.owners)
    assert identify(topology, "n1", "another disk") is topology
    assert Topology.from_json(topology.to_json()) == topology


def test_remove_node_of_replicas_lets_its_partitions_begin_nowhere_again() -> None:
    topology = identify(cluster(3), "n0", "disk")
    removed = topology_changes.remove_node(topology, "n0")
    assert removed.founding is not None
    assert "disk" not in removed.founding.disks
    assert NO_DISK in removed.founding.disks
    assert "n0" not in removed.founding.owners
    late = identify(removed, "n1", "late disk")
    assert late.founding is not None
    assert late.founding.disks.count(NO_DISK) == removed.founding.disks.count(NO_DISK)


def test_identify_of_another_directory_founds_nothing() -> None:
    """The first one was lost before its partitions began anywhere; others may have their copies."""
    topology = topology_changes.identify(cluster(3), "n1", "disk", ())
    owned = placement.partitions_by_node(topology)["n1"]
    assert topology_changes.unfounded(topology, owned) == frozenset(owned) != frozenset()
    assert identify(topology, "n1", "another disk") is topology
    assert identify(topology, "n1", "disk") is not topology


def test_remove_node_to_which_partitions_moved_when_there_was_one_copy() -> None:
    one = topology_changes.pin(cluster(3, replicas=1))
    moves = tuple(Move(partition, 1, f"n{partition % 3}") for partition in range(6))
    topology = topology_changes.set_replicas(replace(one, moved=moves), 2)
    for name, owned in placement.partitions_by_node(topology).items():
        topology = topology_changes.identify(topology, name, f"disk of {name}", owned)
    removed = topology_changes.remove_node(topology, "n1")
    assert "n1" not in removed.by_name
    assert "n1" not in placement.owners(removed).values()
    assert {move.node for move in removed.moved} == {"n0", "n2"}


def test_set_replicas_of_one_copy_keeps_where_its_partitions_began() -> None:
    one = cluster(3, replicas=1)
    for name in one.by_name:
        one = identify(one, name, f"disk of {name}")
    assert one.founding is not None
    assert one.founding.disks == tuple(f"disk of {name}" for name in one.founding.owners)
    topology = topology_changes.set_replicas(one, 3)
    assert topology == replace(one, replicas=3)


def test_set_replicas_of_copies_changes_the_number_alone() -> None:
    topology = identify(cluster(3, replicas=2), "n0", "disk")
    assert topology_changes.set_replicas(topology, 3) == replace(topology, replicas=3)
    assert topology_changes.set_replicas(topology, 2) is topology
    assert topology_changes.set_replicas(topology, 1) == replace(topology, replicas=1)


def test_set_replicas_to_one_keeps_the_leaders() -> None:
    """So the copies that go are those of the other members, and no partition moves."""
    three = placement.rankings(cluster(5))
    one = placement.rankings(topology_changes.set_replicas(cluster(5), 1))
    assert {p: ranking[0] for p, ranking in one.items()} == {p: r[0] for p, r in three.items()}


@pytest.mark.parametrize("count", [0, REPLICAS_MAX + 1])
def test_set_replicas_to_other_numbers_raises(count: int) -> None:
    with raises(InputError, parameter="replicas"):
        topology_changes.set_replicas(cluster(3), count)


def test_set_replicas_of_ranges_cut_anew_keeps_all_ranges() -> None:
    topology = cluster(3, replicas=1)
    cut = replace(topology, former_ranges=(topology.ranges,), pending_ranges=topology.ranges)
    copied = topology_changes.set_replicas(cut, 3)
    assert copied.readable_ranges == cut.readable_ranges
    assert copied.replicas == 3


@pytest.mark.parametrize("replicas", [0, REPLICAS_MAX + 1])
def test_topology_with_other_numbers_of_replicas_raises(replicas: int) -> None:
    with raises(ConfigError, expected="replicas", bound=REPLICAS_MAX):
        replace(cluster(3), replicas=replicas)
