from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.dht import placement
from galileo.dht.topology import (
    Group,
    NodeInfo,
    Topology,
    balanced_ranges,
    derive_partitions,
    even_ranges,
)
from galileo.geo import geohash, ranges
from galileo.hashing import text64
from galileo.model.schema import Feature, Schema

MASK = 2**64 - 1
HOUR_US = 3_600_000_000
LETTERS = geohash.ALPHABET.decode()

# Pinned: a change of any of these numbers would look for stored blocks in the wrong place.
GOLDEN = Topology(
    "golden",
    (
        Group("g1", (NodeInfo("a", "h:1"), NodeInfo("b", "h:2", 2.0))),
        Group("g2", (NodeInfo("c", "h:3"), NodeInfo("d", "h:4"))),
    ),
    (("", 0), ("9x", 1), ("dr", 0), ("u", 1)),
)
GOLDEN_OWNERS = {0: "b", 1: "b", 2: "b", 3: "a", 4: "c", 5: "d", 6: "c", 7: "d"}
GOLDEN_BLOCKS = [
    ("9xjqb", 0, 7),
    ("9wzzz", HOUR_US, 1),
    ("dr5ru", -HOUR_US, 2),
    ("u4pru", 1_330_581_600_000_000, 5),
    ("00000", 0, 2),
    ("zzzzz", 0, 6),
]


def schema(precision: int = 5, name: str = "nam") -> Schema:
    return Schema(name, [Feature("temperature", "K")], geohash_precision=precision)


def group(name: str, nodes: int, *, weight: float = 1.0) -> Group:
    members = [NodeInfo(f"{name}{n}", f"{name}:{n + 1}", weight) for n in range(nodes)]
    return Group(name, tuple(members))


starts = st.text(LETTERS, min_size=1, max_size=3).filter(lambda text: text.strip("0") != "")


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    groups = tuple(group(f"g{n}", draw(st.integers(1, 3))) for n in range(draw(st.integers(1, 4))))
    cells = {geohash.prefix_range(cut, 12)[0]: cut for cut in draw(st.lists(starts, max_size=8))}
    numbers = st.integers(0, len(groups) - 1)
    cuts = tuple((start, draw(numbers)) for start in ["", *(cells[key] for key in sorted(cells))])
    return Topology("t", groups, cuts, draw(st.integers(1, 9)))


def splitmix(value: int) -> int:
    z = (value + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def dumb_group(topology: Topology, text: str) -> int:
    """By comparing texts, without numbers."""
    padded = text.ljust(12, "0")
    return [number for start, number in topology.ranges if start.ljust(12, "0") <= padded][-1]


def dumb_partition(topology: Topology, dataset: str, text: str, bucket: int) -> int:
    cell = geohash.cell_from_text(text)
    hashed = splitmix(splitmix(cell ^ text64("block", dataset)) ^ (bucket & MASK))
    count = topology.partitions_per_group
    return dumb_group(topology, text) * count + hashed % count


# --- blocks --------------------------------------------------------------------------------------


@given(topologies(), st.integers(1, 12), st.data())
def test_partitions_from_cells_random_blocks_equals_scalar_version(
    topology: Topology, precision: int, data: st.DataObject
) -> None:
    cells = st.integers(0, 32**precision - 1)
    buckets = st.integers(-(2**62), 2**62)
    blocks = data.draw(st.lists(st.tuples(cells, buckets), min_size=1, max_size=30))
    cell = np.array([one for one, _ in blocks], dtype=np.uint64)
    bucket = np.array([one for _, one in blocks], dtype=np.int64)
    placed = placement.partitions_from_cells(topology, schema(precision), cell, bucket)
    assert placed.dtype == np.int32
    texts = geohash.to_text(cell, precision).to_pylist()
    assert placed.tolist() == [
        dumb_partition(topology, "nam", text, when)
        for text, when in zip(texts, bucket.tolist(), strict=True)
    ]


def test_partitions_from_cells_golden_blocks_stay_in_place() -> None:
    cells = geohash.from_text([text for text, _, _ in GOLDEN_BLOCKS])
    buckets = np.array([bucket for _, bucket, _ in GOLDEN_BLOCKS])
    placed = placement.partitions_from_cells(GOLDEN, schema(), cells, buckets)
    assert placed.tolist() == [partition for _, _, partition in GOLDEN_BLOCKS]


def test_partitions_from_cells_one_cell_spreads_over_its_group() -> None:
    buckets = np.arange(8_000, dtype=np.int64) * HOUR_US
    cells = np.full(len(buckets), geohash.cell_from_text("9xjqb"), dtype=np.uint64)
    counts = np.bincount(
        placement.partitions_from_cells(GOLDEN, schema(), cells, buckets), minlength=8
    )
    assert counts[:4].tolist() == [0, 0, 0, 0]
    # 2,000 a partition; six standard deviations of a fair draw.
    assert abs(counts[4:] - 2_000).max() < 6 * (8_000 * 0.25 * 0.75) ** 0.5


def test_partitions_from_cells_two_datasets_differ() -> None:
    buckets = np.arange(1_000, dtype=np.int64) * HOUR_US
    cells = np.full(len(buckets), geohash.cell_from_text("9xjqb"), dtype=np.uint64)
    here = placement.partitions_from_cells(GOLDEN, schema(name="nam"), cells, buckets)
    there = placement.partitions_from_cells(GOLDEN, schema(name="gfs"), cells, buckets)
    assert 150 < (here == there).sum() < 350


# --- candidates ----------------------------------------------------------------------------------


@st.composite
def cell_ranges(draw: st.DrawFn, precision: int) -> ranges.Ranges:
    edges = st.integers(0, 32**precision)
    pairs = draw(st.lists(st.tuples(edges, edges), max_size=5))
    return ranges.normalise([min(pair) for pair in pairs], [max(pair) for pair in pairs])


@given(topologies(), st.sampled_from([1, 2]), st.data())
def test_candidates_random_ranges_equals_groups_of_their_cells(
    topology: Topology, precision: int, data: st.DataObject
) -> None:
    asked = data.draw(cell_ranges(precision))
    bounds = zip(*(edge.tolist() for edge in asked), strict=True)
    cells = np.array([cell for low, high in bounds for cell in range(low, high)], dtype=np.uint64)
    texts = geohash.to_text(cells, precision).to_pylist() if len(cells) else []
    count = topology.partitions_per_group
    needed = {
        partition
        for number in {dumb_group(topology, text) for text in texts}
        for partition in range(number * count, (number + 1) * count)
    }
    found = placement.candidates(topology, schema(precision), asked)
    assert found >= needed
    if all(len(start) <= precision for start, _ in topology.ranges):
        assert found == needed


@given(topologies(), st.integers(1, 12), st.data())
def test_candidates_random_blocks_include_their_partitions(
    topology: Topology, precision: int, data: st.DataObject
) -> None:
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, 32**precision - 1)] * 2)))
    asked = ranges.normalise([low], [high + 1])
    cells = data.draw(st.lists(st.integers(low, high), min_size=1, max_size=20))
    placed = placement.partitions_from_cells(
        topology,
        schema(precision),
        np.array(cells, dtype=np.uint64),
        np.arange(len(cells), dtype=np.int64),
    )
    assert set(placed.tolist()) <= placement.candidates(topology, schema(precision), asked)


@given(st.lists(topologies(), min_size=2, max_size=4), st.integers(1, 6), st.data())
def test_earlier_partitions_random_maps_are_those_of_the_topology_then(
    drawn: list[Topology], precision: int, data: st.DataObject
) -> None:
    groups = max((one.groups for one in drawn), key=len)
    count = drawn[0].partitions_per_group
    then = [
        replace(drawn[0], groups=groups, moved=(), partitions_per_group=count, ranges=one.ranges)
        for one in drawn
    ]
    maps = [one.ranges for one in drawn]
    now = replace(then[-2], former_ranges=tuple(maps[:-2]), pending_ranges=maps[-1])
    cells = np.array(
        data.draw(st.lists(st.integers(0, 32**precision - 1), min_size=1, max_size=20)),
        dtype=np.uint64,
    )
    buckets = np.arange(len(cells), dtype=np.int64)
    at = [placement.partitions_from_cells(one, schema(precision), cells, buckets) for one in then]
    for position, cell in enumerate(cells.tolist()):
        asked = ranges.normalise([cell], [cell + 1])
        candidates = placement.candidates(now, schema(precision), asked)
        assert {int(placed[position]) for placed in at} <= candidates
        assert candidates <= placement.readable_partitions(now)
        for epoch in range(1, now.range_epoch):
            [earlier] = placement.earlier_partitions(
                now,
                schema(precision),
                cells[position : position + 1],
                partition=int(at[-2][position]),
                epoch=epoch,
            )
            assert earlier == at[epoch - 1][position]


def test_candidates_no_ranges_is_empty_and_none_is_all() -> None:
    assert placement.candidates(GOLDEN, schema(), ranges.none()) == frozenset()
    assert placement.candidates(GOLDEN, schema(), None) == frozenset(range(8))


def test_candidates_whole_earth_is_all() -> None:
    for precision in range(1, 13):
        world = ranges.normalise([0], [32**precision])
        found = placement.candidates(GOLDEN, schema(precision), world)
        assert found == frozenset(range(8)), f"precision {precision}"


# --- nodes ---------------------------------------------------------------------------------------


def test_owners_golden_topology_stay_in_place() -> None:
    assert placement.owners(GOLDEN) == GOLDEN_OWNERS
    assert {p: placement.owner(GOLDEN, p) for p in GOLDEN.partitions} == GOLDEN_OWNERS


@given(topologies())
def test_owners_random_topology_stay_in_their_group(topology: Topology) -> None:
    owned = placement.partitions_by_node(topology)
    assert set(owned) == set(topology.by_name)
    assert sorted(p for partitions in owned.values() for p in partitions) == list(
        topology.partitions
    )
    for node, partitions in owned.items():
        number = topology.groups.index(topology.group_of(node))
        assert {p // topology.partitions_per_group for p in partitions} <= {number}


@given(topologies(), st.randoms())
def test_owners_shuffled_nodes_are_the_same(topology: Topology, rng: Random) -> None:
    shuffled = tuple(
        Group(one.name, tuple(rng.sample(one.nodes, len(one.nodes)))) for one in topology.groups
    )
    again = replace(topology, groups=shuffled)
    assert placement.owners(again) == placement.owners(topology)


def one_group(*nodes: NodeInfo) -> Topology:
    return Topology("t", (Group("g", nodes),), even_ranges(1), 1024)


# --- bounded loads -------------------------------------------------------------------------------

weights = st.sampled_from([0.1, 0.5, 1.0, 1.0, 1.0, 2.0, 7.3])


@st.composite
def bounded(draw: st.DrawFn) -> Topology:
    """One group of weighted nodes, some of which joined later."""
    count = draw(st.integers(1, 12))
    nodes = [NodeInfo(f"n{n}", f"h:{n + 1}", draw(weights)) for n in range(count)]
    later = [
        NodeInfo(f"m{n}", f"k:{n + 1}", draw(weights), ordinal=100 + n, joined=True)
        for n in range(draw(st.integers(0, 2)))
    ]
    groups = (group("other", 1), Group("g", (*nodes, *later)))
    return Topology("t", groups, even_ranges(2), draw(st.integers(1, 80)))


def shares(nodes: tuple[NodeInfo, ...], partitions: int) -> dict[str, Fraction]:
    weight = sum(Fraction(node.weight) for node in nodes)
    return {node.name: partitions * Fraction(node.weight) / weight for node in nodes}


def dumb_bounded(nodes: tuple[NodeInfo, ...], partitions: range) -> dict[int, str]:
    """Pairs of partition and node by descending score, while both are free."""
    wanted = shares(nodes, len(partitions))
    free = {name: int(share) for name, share in wanted.items()}
    order = sorted(free, key=lambda name: (free[name] - wanted[name], text64("quota", name)))
    for name in order[: len(partitions) - sum(free.values())]:
        free[name] += 1
    pairs = sorted(
        (
            (splitmix(splitmix(partition) ^ text64("node", node.name)) | 1, partition, node.name)
            for partition in partitions
            for node in nodes
        ),
        reverse=True,
    )
    placed: dict[int, str] = {}
    for _, partition, name in pairs:
        if partition not in placed and free[name]:
            placed[partition] = name
            free[name] -= 1
    return placed


@given(bounded())
def test_owners_bounded_random_topology_equals_greedy_loop(topology: Topology) -> None:
    count = topology.partitions_per_group
    found = placement.owners(topology)
    expected = dumb_bounded(topology.groups[1].founders, range(count, 2 * count))
    assert {p: found[p] for p in range(count, 2 * count)} == expected


@given(bounded())
def test_owners_bounded_random_topology_give_rounded_share(topology: Topology) -> None:
    owned = placement.partitions_by_node(topology)
    for name, wanted in shares(topology.groups[1].founders, topology.partitions_per_group).items():
        assert int(wanted) <= len(owned[name]) <= -int(-wanted // 1)


@pytest.mark.parametrize(("nodes", "partitions"), [(3, 64), (7, 64), (15, 64), (31, 128)])
def test_owners_bounded_added_node_moves_few_partitions(nodes: int, partitions: int) -> None:
    """Drawn anew, at most four times as many as must move; plain rendezvous moves these."""
    names = [NodeInfo(f"node-{n}", f"h:{n + 1}") for n in range(nodes + 1)]
    fewer, more = (
        placement.owners(replace(one_group(*some), partitions_per_group=count))
        for some, count in ((names[:-1], partitions), (names, partitions))
    )
    moved = sum(fewer[p] != more[p] for p in fewer)
    assert partitions // (nodes + 1) <= moved <= 4 * -(-partitions // (nodes + 1))


# --- balance -------------------------------------------------------------------------------------

# The rows of a region as large as the United States, in cells of four characters.
_random = np.random.default_rng(1)
REGION, ROWS_OF_CELL = np.unique(
    geohash.encode(_random.uniform(25, 50, 100_000), _random.uniform(-125, -67, 100_000), 4),
    return_counts=True,
)


def busiest(nodes: int, groups: int) -> float:
    """The rows of the busiest node over the mean, with ranges cut for the region."""
    members = [NodeInfo(f"node-{n + 1}", f"h:{n + 1}") for n in range(nodes)]
    topology = Topology(
        "t",
        tuple(Group(f"g{n}", tuple(members[n::groups])) for n in range(groups)),
        balanced_ranges(REGION, 4, groups=groups, counts=ROWS_OF_CELL),
        derive_partitions(nodes // groups),
    )
    rows = placement.rows_by_group(topology, REGION, ROWS_OF_CELL, precision=4)
    assert sum(rows) == ROWS_OF_CELL.sum()
    return max(placement.relative_loads(topology, rows).values())


@pytest.mark.parametrize(("nodes", "groups"), [(3, 1), (8, 1), (8, 2), (16, 1), (32, 8), (64, 4)])
def test_owners_of_derived_partitions_keep_loads_below_1_1(nodes: int, groups: int) -> None:
    assert busiest(nodes, groups) < 1.1


def test_relative_loads_are_relative_to_weights() -> None:
    heavy, light = NodeInfo("a", "h:1", 3.0), NodeInfo("b", "h:2")
    topology = Topology("t", (Group("g", (heavy, light)),), even_ranges(1), 8)
    assert placement.relative_loads(topology) == {"a": 1.0, "b": 1.0}
    uneven = Topology("t", (group("g", 2), group("k", 1)), even_ranges(2), 4)
    assert placement.relative_loads(uneven)["k0"] == 1.5
    assert placement.relative_loads(uneven, [0, 0]) == {"g0": 0.0, "g1": 0.0, "k0": 0.0}


def test_derive_partitions_node_counts_give_known_numbers() -> None:
    assert [derive_partitions(n) for n in (1, 2, 3, 8, 64, 1024)] == [4, 4, 6, 16, 128, 1024]
