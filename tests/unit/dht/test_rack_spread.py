"""Copies lie in as many racks as there are, every node has its share, and few of them move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from expected_errors import raises
from hypothesis import example, given
from hypothesis import strategies as st

from galileo.dht import placement, topology_changes
from galileo.dht.rack_spread import copy_shares, in_rounds, rack_spread
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.errors import ConfigError, InputError
from galileo.hashing import text64

PARTITIONS = 64
RANKINGS_WITHOUT_RACKS = 7275243676295440197
"""A change of this number would copy the data of clusters that exist."""


def cluster(
    racks: Sequence[int],
    *,
    partitions: int = PARTITIONS,
    replicas: int = 3,
    weights: Sequence[float] = (1.0,),
    stem: str = "n",
) -> Topology:
    """A group with so many nodes in each rack."""
    nodes = [
        NodeInfo(f"{stem}{rack}-{n}", f"r{rack}:{n + 1}", rack=f"r{rack}")
        for rack, size in enumerate(racks)
        for n in range(size)
    ]
    weighted = [replace(one, weight=weights[n % len(weights)]) for n, one in enumerate(nodes)]
    return in_one_group(weighted, partitions=partitions, replicas=replicas)


def in_one_group(nodes: Sequence[NodeInfo], *, partitions: int, replicas: int) -> Topology:
    groups = (Group("one", tuple(nodes)),)
    return Topology("test", groups, even_ranges(1), partitions, replicas=replicas)


def without_racks(topology: Topology) -> Topology:
    nodes = [replace(node, rack="") for node in topology.nodes]
    return in_one_group(nodes, partitions=topology.partitions_per_group, replicas=topology.replicas)


def rankings_of(topology: Topology) -> dict[int, tuple[str, ...]]:
    """The ranking of each partition of data."""
    rankings = placement.rankings(topology)
    return {p: rankings[p] for p in topology.partitions}


def members(topology: Topology) -> dict[int, tuple[str, ...]]:
    """The nodes that should have the copies of each partition."""
    return {p: ranking[: topology.replicas] for p, ranking in rankings_of(topology).items()}


def racks_of(topology: Topology, nodes: Sequence[str]) -> list[int]:
    """How many of the nodes are in each rack that has one, sorted."""
    return sorted(Counter(topology.fault_domains[node] for node in nodes).values())


def copies_by_node(topology: Topology) -> Counter[str]:
    return Counter(node for nodes in members(topology).values() for node in nodes)


def dumb_members(topology: Topology) -> dict[int, list[str]]:
    """The nodes that score highest for a partition, each time of a rack with the fewest copies."""
    chosen: dict[int, list[str]] = {}
    for partition in topology.partitions:
        left = sorted(topology.by_name, key=lambda name: text64("dumb", partition, name))
        chosen[partition] = []
        while left and len(chosen[partition]) < topology.replicas:
            used = Counter(topology.fault_domains[node] for node in chosen[partition])
            best = min(left, key=lambda node: used[topology.fault_domains[node]])
            chosen[partition].append(best)
            left.remove(best)
    return chosen


def dumb_rounds(topology: Topology) -> tuple[dict[str, int], dict[str, int]]:
    """The least and the most copies of a partition in each rack."""
    counts = [
        Counter(topology.fault_domains[node] for node in nodes)
        for nodes in dumb_members(topology).values()
    ]
    racks = set(topology.fault_domains.values())
    return (
        {rack: min(count[rack] for count in counts) for rack in racks},
        {rack: max(count[rack] for count in counts) for rack in racks},
    )


@st.composite
def racked(draw: st.DrawFn) -> Topology:
    racks = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    weights = draw(st.sampled_from([(1.0,), (1.0, 2.0, 0.5)]))
    partitions = draw(st.sampled_from([4, 16, 64]))
    stem = draw(st.sampled_from("abcdefgh"))
    replicas = draw(st.integers(1, 5))
    return cluster(racks, partitions=partitions, replicas=replicas, weights=weights, stem=stem)


@given(racked())
def test_rankings_put_copies_into_as_many_racks_as_a_dumb_placement(topology: Topology) -> None:
    dumb = dumb_members(topology)
    for partition, nodes in members(topology).items():
        assert len(set(nodes)) == len(nodes) == len(dumb[partition])
        assert racks_of(topology, nodes) == racks_of(topology, dumb[partition])


@given(racked())
def test_rankings_give_each_node_its_share_of_leaders_and_copies(topology: Topology) -> None:
    partitions, nodes = topology.partitions_per_group, topology.nodes
    shares = copy_shares(nodes, min(topology.replicas, len(nodes)))
    copies = copies_by_node(topology)
    above = 3 if topology.replicas <= 3 else 6
    assert all(copies[name] <= partitions * share + above for name, share in shares.items())
    leaders = Counter(ranking[0] for ranking in rankings_of(topology).values())
    weights = sum(node.weight for node in nodes)
    assert all(leaders[n.name] < partitions * n.weight / weights + 1 for n in nodes)


@example(cluster((2, 5)))
@example(cluster((1, 8, 10), replicas=4))
@given(racked())
def test_copy_shares_are_as_even_as_racks_allow(topology: Topology) -> None:
    copies = min(topology.replicas, len(topology.nodes))
    shares = copy_shares(topology.nodes, copies)
    assert sum(shares.values()) == copies
    rack_of, weights = topology.fault_domains, {n.name: n.weight for n in topology.nodes}
    by_rack: Counter[str] = Counter()
    for name, share in shares.items():
        by_rack[rack_of[name]] += share  # type: ignore[assignment]
    full = replace(topology, partitions_per_group=256)
    least, most = dumb_rounds(full)
    assert all(0 <= share <= 1 for share in shares.values())
    assert all(least[rack] <= by_rack[rack] <= most[rack] for rack in most)
    for more in shares:
        for less in shares:
            if shares[more] / Fraction(weights[more]) > shares[less] / Fraction(weights[less]):
                is_same = rack_of[more] == rack_of[less]
                cannot_give = by_rack[rack_of[more]] == least[rack_of[more]] and not is_same
                cannot_take = by_rack[rack_of[less]] == most[rack_of[less]] and not is_same
                assert cannot_give or cannot_take or shares[less] == 1


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("racks", [(2, 2, 2), (4, 4, 4), (2, 2, 2, 2), (8, 8, 8, 8)])
def test_rankings_of_equal_racks_are_even(racks: Sequence[int], replicas: int) -> None:
    topology = cluster(racks, replicas=replicas)
    even = PARTITIONS * replicas / sum(racks)
    assert all(abs(count - even) <= 1 for count in copies_by_node(topology).values())


def test_rankings_of_unequal_racks_are_even_within_racks() -> None:
    copies = copies_by_node(cluster((1, 2, 4), replicas=3))
    assert copies["n0-0"] == PARTITIONS, "each partition has a copy in each of three racks"
    assert [copies[f"n1-{n}"] for n in range(2)] == [PARTITIONS / 2] * 2
    assert [copies[f"n2-{n}"] for n in range(4)] == [PARTITIONS / 4] * 4


@given(racked())
def test_rankings_begin_with_the_owners_of_a_new_cluster_in_racks(topology: Topology) -> None:
    leaders = {p: ranking[0] for p, ranking in rankings_of(topology).items()}
    assert leaders == placement.owners(topology)


def dumb_voters(topology: Topology, former: Sequence[str]) -> set[str]:
    """One node after the other: of a rack with the fewest voters, a former voter, the oldest."""
    count = len(topology.nodes) - (len(topology.nodes) + 1) % 2
    chosen: list[NodeInfo] = []
    while len(chosen) < min(5, count):
        met = Counter(node.fault_domain for node in chosen)
        chosen.append(
            min(
                (node for node in topology.nodes if node not in chosen),
                key=lambda node: (
                    met[node.fault_domain],
                    node.name not in former,
                    topology.ordinals[node.name],
                ),
            )
        )
    return {node.name for node in chosen}


@given(racked(), st.data())
def test_voters_are_in_as_many_racks_as_a_dumb_choice(
    topology: Topology, data: st.DataObject
) -> None:
    former = data.draw(st.lists(st.sampled_from(sorted(topology.by_name)), unique=True, max_size=5))

    voters = topology_changes.voters(topology, former)

    assert set(voters) == dumb_voters(topology, former)
    assert topology_changes.voters(topology, voters) == voters, "none changes without a reason"


@given(racked())
def test_first_voters_are_those_of_files_without_racks(topology: Topology) -> None:
    assert topology_changes.first_voters(topology) == topology_changes.voters(
        without_racks(topology)
    )


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("rack", ["r0", "another"])
@pytest.mark.parametrize("racks", [(3, 3, 3), (3, 3, 3, 3)])
def test_rankings_in_racks_change_little_with_a_further_node(
    racks: Sequence[int], rack: str, replicas: int
) -> None:
    topology = cluster(racks, replicas=replicas)
    new = NodeInfo("new", "new:1", rack=rack)
    grown = in_one_group([*topology.nodes, new], partitions=PARTITIONS, replicas=replicas)
    before, after = members(topology), members(grown)
    copied = sum(len({*after[p]} - {*before[p]}) for p in before)
    assert copied <= 0.3 * replicas * PARTITIONS, "the new node has about a tenth of all copies"


def test_rankings_without_shared_racks_are_those_without_racks() -> None:
    alone = in_one_group(
        [NodeInfo(f"n{n}", f"h:{n + 1}") for n in range(7)], partitions=PARTITIONS, replicas=3
    )
    assert text64(repr(sorted(rankings_of(alone).items()))) == RANKINGS_WITHOUT_RACKS
    named = [replace(node, rack=f"r{n}") for n, node in enumerate(alone.nodes)]
    racked = in_one_group(named, partitions=PARTITIONS, replicas=3)
    assert rankings_of(racked) == rankings_of(alone)


def test_topology_with_racks_round_trips_and_has_the_same_fingerprint() -> None:
    racked = cluster((2, 1))
    assert Topology.from_json(racked.to_json()) == racked
    assert racked.fingerprint == without_racks(racked).fingerprint
    assert racked.placement_json == without_racks(racked).placement_json


def test_set_rack_changes_rankings_and_no_owner() -> None:
    topology = cluster((2, 1, 1), replicas=2)
    changed = topology_changes.set_rack(topology, "n0-1", "r1")
    assert changed.by_name["n0-1"].rack == "r1"
    assert placement.owners(changed) == placement.owners(topology)
    assert rankings_of(changed) != rankings_of(topology)
    assert all(len(racks_of(changed, nodes)) == 2 for nodes in members(changed).values())
    assert topology_changes.set_rack(changed, "n0-1", "r1") is changed
    with raises(InputError, node="x"):
        topology_changes.set_rack(changed, "x", "r1")
    with raises(ConfigError, expected="name", name="rack"):
        topology_changes.set_rack(changed, "n0-1", "Rack 1")


def test_in_rounds_replaces_lost_nodes_by_those_of_other_racks() -> None:
    racks = {"a": "x", "b": "y", "c": "x", "d": "z", "e": "y"}
    assert in_rounds("acbed", racks) == ["a", "b", "d", "c", "e"]
    alone = {name: name for name in racks}
    assert in_rounds("acbed", alone) == list("acbed")


@pytest.mark.parametrize(
    ("racks", "replicas", "expected"),
    [
        ((2, 2, 2), 3, (3, 3, 1.0)),
        ((2, 2), 3, (2, 3, 1.0)),
        ((1, 3, 3), 3, (3, 3, 7 / 3)),
        ((1, 1), 3, (2, 2, 1.0)),
        ((1, 2, 3, 3), 3, (4, 3, 1.0)),
    ],
)
def test_rack_spread_counts_racks_and_finds_the_busiest_node(
    racks: Sequence[int], replicas: int, expected: tuple[int, int, float]
) -> None:
    [group] = cluster(racks).groups
    spread = rack_spread(group, replicas=replicas)
    assert spread is not None
    assert (spread.racks, spread.copies) == expected[:2]
    assert spread.relative_copies == pytest.approx(expected[2])


def test_rack_spread_without_copies_or_racks_is_none() -> None:
    topology = cluster((2, 2))
    assert rack_spread(topology.groups[0], replicas=1) is None
    assert rack_spread(without_racks(topology).groups[0], replicas=3) is None
