"""Which nodes have the copies of a partition, and which directory it begins with."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from expected_errors import raises

from galileo.dht import placement, topology_changes
from galileo.dht.topology import (
    BOUNDED,
    NO_DISK,
    REPLICAS_MAX,
    Group,
    NodeInfo,
    Topology,
    even_ranges,
)
from galileo.errors import ConfigError


def cluster(nodes: int, *, partitions: int = 64, replicas: int = 3) -> Topology:
    infos = tuple(NodeInfo(f"n{number}", f"127.0.0.1:{number + 1}") for number in range(nodes))
    return Topology(
        "test",
        (Group("one", infos),),
        even_ranges(1),
        partitions,
        placement=BOUNDED,
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
    assert {p: ranking[0] for p, ranking in placement.rankings(topology).items()} == owners


def test_rankings_change_little_with_a_further_node() -> None:
    before, after = (placement.rankings(cluster(nodes)) for nodes in (8, 9))
    replaced = sum(len({*before[p][:3]} - {*after[p][:3]}) for p in before)
    assert replaced <= 0.35 * 3 * 64, "the new node has a ninth of all copies"


def test_rankings_leave_out_leaving_nodes() -> None:
    topology = topology_changes.set_leaving(cluster(4), "n2", is_leaving=True)
    assert all("n2" not in ranking for ranking in placement.rankings(topology).values())


def test_identify_names_the_first_directory_for_good() -> None:
    topology = cluster(3)
    for name in ("n0", "n1", "n2"):
        topology = topology_changes.identify(topology, name, f"disk of {name}")
    founding = topology.founding
    assert founding is not None
    assert founding.disks == tuple(f"disk of {owner}" for owner in founding.owners)
    assert topology_changes.identify(topology, "n1", "another disk") is topology
    assert Topology.from_json(topology.to_json()) == topology


def test_remove_node_of_replicas_lets_its_partitions_begin_nowhere_again() -> None:
    topology = topology_changes.identify(cluster(3), "n0", "disk")
    removed = topology_changes.remove_node(topology, "n0")
    assert removed.founding is not None
    assert "disk" not in removed.founding.disks
    assert NO_DISK in removed.founding.disks
    assert "n0" not in removed.founding.owners
    late = topology_changes.identify(removed, "n1", "late disk")
    assert late.founding is not None
    assert late.founding.disks.count(NO_DISK) == removed.founding.disks.count(NO_DISK)


def test_identify_of_one_copy_names_no_directory_for_partitions() -> None:
    topology = topology_changes.identify(cluster(3, replicas=1), "n0", "disk")
    assert topology.founding is not None
    assert topology.founding.disks == ()


@pytest.mark.parametrize("replicas", [0, REPLICAS_MAX + 1])
def test_topology_with_other_numbers_of_replicas_raises(replicas: int) -> None:
    with raises(ConfigError, expected="replicas", bound=REPLICAS_MAX):
        replace(cluster(3), replicas=replicas)
