from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.dht.topology import (
    NODES_MAX,
    PARTITIONS_MAX,
    PARTITIONS_PER_GROUP_MAX,
    Group,
    NodeInfo,
    Topology,
    balanced_ranges,
    even_ranges,
)
from galileo.errors import ConfigError
from galileo.geo import geohash

A, B, C = (NodeInfo(name, f"127.0.0.1:{port}") for port, name in enumerate("abc", start=7701))
EAST, WEST = Group("east", (A, B)), Group("west", (C,))
TOPOLOGY = Topology("galileo", (EAST, WEST), (("", 0), ("9x", 1)))

names = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,10}", fullmatch=True)
weights = st.floats(0.01, 100)
letters = geohash.ALPHABET.decode()


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    count = sum(sizes)
    node_names = draw(st.lists(names, min_size=count, max_size=count, unique=True))
    nodes = [
        NodeInfo(name, f"host-{number}:{7701 + number}", draw(weights))
        for number, name in enumerate(node_names)
    ]
    stops = np.cumsum(sizes).tolist()
    groups = [
        Group(f"g{number}", tuple(nodes[stop - size : stop]))
        for number, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    ]
    cuts = draw(st.sets(st.text(letters, min_size=1, max_size=12).filter(lambda t: t.strip("0"))))
    cells = {geohash.prefix_range(cut, 12)[0]: cut for cut in sorted(cuts)}
    starts = ["", *sorted(cells.values())]
    numbers = st.integers(0, len(groups) - 1)
    return Topology(
        draw(names),
        tuple(groups),
        tuple((start, draw(numbers)) for start in starts),
        draw(st.integers(1, PARTITIONS_PER_GROUP_MAX)),
        draw(st.integers(1, 2**60)),
    )


# --- validation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["localhost", ":7701", "host:", "host:0", "host:65536", "h:x", "h:²"]
)
def test_node_info_invalid_address_raises(address: str) -> None:
    with raises(ConfigError, expected="address", node="a"):
        NodeInfo("a", address)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_node_info_invalid_weight_raises(weight: float) -> None:
    with raises(ConfigError, expected="weight", node="a"):
        NodeInfo("a", "h:1", weight)


@pytest.mark.parametrize("name", ["", "Node", "a b", "-a", "ü", "x" * 65, "a/b", "../a", 3, None])
@pytest.mark.parametrize("what", ["node", "group", "cluster"])
def test_topology_invalid_name_raises(what: str, name: Any) -> None:
    makers = {
        "node": lambda: NodeInfo(name, "h:1"),
        "group": lambda: Group(name, (A,)),
        "cluster": lambda: replace(TOPOLOGY, cluster=name),
    }
    with raises(ConfigError, expected="name", name=what):
        makers[what]()


WRONG: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "no group": ({"groups": ()}, {"expected": "group"}),
    "a node twice": (
        {"groups": (EAST, Group("west", (NodeInfo("a", "h:9"),)))},
        {"expected": "unique", "name": "node name"},
    ),
    "an address twice": (
        {"groups": (EAST, Group("west", (NodeInfo("z", A.address),)))},
        {"expected": "unique", "name": "node address"},
    ),
    "a group twice": (
        {"groups": (EAST, Group("east", (C,)))},
        {"expected": "unique", "name": "group name"},
    ),
    "no partition": ({"partitions_per_group": 0}, {"expected": "partitions_per_group"}),
    "too many partitions": ({"partitions_per_group": 1025}, {"expected": "partitions_per_group"}),
    "no range": ({"ranges": ()}, {"expected": "sorted_ranges"}),
    "a late first range": ({"ranges": (("1", 0),)}, {"expected": "sorted_ranges"}),
    "unsorted ranges": ({"ranges": (("", 0), ("9", 1), ("5", 0))}, {"expected": "sorted_ranges"}),
    "a range twice": ({"ranges": (("", 0), ("9", 1), ("9", 0))}, {"expected": "sorted_ranges"}),
    "a foreign group": ({"ranges": (("", 0), ("9", 2))}, {"expected": "group_number"}),
    "a negative group": ({"ranges": (("", -1),)}, {"expected": "group_number"}),
    "no geohash": ({"ranges": (("", 0), ("9a", 1))}, {"expected": "geohash_ranges"}),
    "upper case": ({"ranges": (("", 0), ("9X", 1))}, {"expected": "geohash_ranges"}),
    "too long": ({"ranges": (("", 0), ("9" * 13, 1))}, {"expected": "geohash_ranges"}),
    "an empty first range": ({"ranges": (("", 0), ("0", 1))}, {"expected": "distinct_ranges"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_topology_invalid_part_raises(case: str) -> None:
    changes, details = WRONG[case]
    with raises(ConfigError, **details):
        replace(TOPOLOGY, **changes)


def test_group_no_nodes_raises() -> None:
    with raises(ConfigError, expected="node", group="east"):
        Group("east", ())


def test_topology_too_many_nodes_raises() -> None:
    nodes = tuple(NodeInfo(f"n{number}", f"h{number}:1") for number in range(NODES_MAX + 1))
    Topology("full", (Group("all", nodes[:-1]),), (("", 0),))
    with raises(ConfigError, expected="nodes", bound=1024):
        Topology("overfull", (Group("all", nodes),), (("", 0),))


# --- what it says --------------------------------------------------------------------------------


def test_topology_ordinals_follow_groups() -> None:
    assert TOPOLOGY.nodes == (A, B, C)
    assert [TOPOLOGY.ordinals[name] for name in "abc"] == [0, 1, 2]
    assert TOPOLOGY.by_name["b"] is B
    assert TOPOLOGY.partitions == range(8)


def test_topology_given_ordinal_is_kept():
    old = NodeInfo("old", "host-1:7701", ordinal=0)
    new = NodeInfo("new", "host-2:7701", ordinal=1)
    grown = Topology("c", (Group("g", (new, old)),), (("", 0),))
    assert grown.ordinals == {"new": 1, "old": 0}
    assert Topology.from_json(grown.to_json()) == grown


def test_topology_duplicate_ordinal_raises():
    nodes = (NodeInfo("a", "host-1:7701", ordinal=1), NodeInfo("b", "host-2:7701"))
    with raises(ConfigError, expected="unique", name="node ordinal"):
        Topology("c", (Group("g", nodes),), (("", 0),))


def test_topology_group_of_unknown_node_raises() -> None:
    assert [TOPOLOGY.group_of(name) for name in "abc"] == [EAST, EAST, WEST]
    with raises(ConfigError, expected="known_node", node="d"):
        TOPOLOGY.group_of("d")


# --- JSON ----------------------------------------------------------------------------------------


@given(topologies())
def test_topology_json_round_trip_is_equal(topology: Topology) -> None:
    again = Topology.from_json(topology.to_json())
    assert again == topology
    assert hash(again) == hash(topology)
    assert again.to_json() == topology.to_json()


def test_topology_from_dict_missing_keys_have_defaults() -> None:
    raw = {"groups": [{"name": "g", "nodes": [{"name": "a", "address": "h:1"}]}]}
    found = Topology.from_dict(raw)
    groups = (Group("g", (NodeInfo("a", "h:1"),)),)
    assert found == Topology("galileo", groups, even_ranges(1))
    assert found.partitions_per_group == 4


@pytest.mark.parametrize("raw", [{"groups": []}, {"groups": [], "ranges": [["", 0]]}])
def test_topology_from_dict_no_groups_raises(raw: dict[str, Any]) -> None:
    with raises(ConfigError, expected="group"):
        Topology.from_dict(raw)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[(text, "json") for text in ("", "{")],
        *[(text, "topology") for text in ("[]", "3", "null", '"text"', "{}", '{"groups": 3}')],
    ],
)
def test_topology_from_json_other_text_raises(text: str, expected: str) -> None:
    with raises(ConfigError, expected=expected):
        Topology.from_json(text)


@given(st.data())
def test_topology_from_dict_random_damage_raises_or_round_trips(data: st.DataObject) -> None:
    """Whatever stands in place of one value, it is a topology or a `ConfigError`."""
    raw = json.loads(TOPOLOGY.to_json())
    holders: list[Any] = [raw, raw["groups"], raw["groups"][0], raw["groups"][0]["nodes"][0]]
    holders += [raw["groups"][0]["nodes"], raw["ranges"], raw["ranges"][1]]
    holder = data.draw(st.sampled_from(holders))
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(), scalars)
    holder[data.draw(st.sampled_from(keys))] = data.draw(values)
    try:
        found = Topology.from_dict(raw)
    except ConfigError:
        return
    assert Topology.from_json(found.to_json()) == found


# --- ranges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 3, 31, 32])
def test_even_ranges_any_group_count_deals_letters_in_turn(groups: int) -> None:
    ranges = even_ranges(groups)
    assert [start or "0" for start, _ in ranges] == list(letters)
    counts = np.bincount([group for _, group in ranges], minlength=groups)
    assert counts.max() - counts.min() <= 1


def group_of(ranges: tuple[tuple[str, int], ...], text: str) -> int:
    return next(group for start, group in reversed(ranges) if start <= text)


@given(
    st.integers(1, 6),
    st.integers(2, 5),
    st.lists(st.integers(0, 32**2 - 1), min_size=1, max_size=60),
)
def test_balanced_ranges_random_sample_is_shared_evenly(
    groups: int, precision: int, cells: list[int]
) -> None:
    """No group gets more than its share, but for the repetitions of one cell."""
    sample = np.array(cells, dtype=np.uint64)
    try:
        ranges = balanced_ranges(sample, precision, groups=groups)
    except ConfigError:
        repeated = np.unique(sample, return_counts=True)[1].max()
        assert repeated >= len(cells) // groups
        return
    assert [group for _, group in ranges] == list(range(groups))
    assert all(len(start) == precision for start, _ in ranges[1:])
    texts = geohash.to_text(sample, precision).to_pylist()
    counts = np.bincount([group_of(ranges, text) for text in texts], minlength=groups)
    repeated = max(texts.count(text) for text in texts)
    assert counts.max() - len(cells) / groups < repeated + 1
    nodes = [NodeInfo(f"n{number}", f"h:{number + 1}") for number in range(groups)]
    Topology("t", tuple(Group(node.name, (node,)) for node in nodes), ranges)


def test_balanced_ranges_distinct_cells_differ_by_one() -> None:
    rng = np.random.default_rng(3)
    cells = rng.choice(np.arange(1, 32**4, dtype=np.uint64), size=1000, replace=False)
    ranges = balanced_ranges(cells, 4, groups=7)
    texts = geohash.to_text(cells, 4).to_pylist()
    counts = np.bincount([group_of(ranges, text) for text in texts])
    assert counts.max() - counts.min() <= 1


def test_balanced_ranges_empty_sample_raises() -> None:
    with raises(ConfigError, expected="observations"):
        balanced_ranges(np.empty(0, dtype=np.uint64), 5, groups=2)


@pytest.mark.parametrize("cells", [[5, 5, 5], [0, 0, 5]])
def test_balanced_ranges_sample_of_one_cell_raises(cells: list[int]) -> None:
    with raises(ConfigError, expected="larger_sample"):
        balanced_ranges(np.array(cells, dtype=np.uint64), 5, groups=2)


def test_topology_fingerprint_ignores_addresses():
    def made(address="host-1:7701", partitions=4, name="a", weight=1.0):
        group = Group("g", (NodeInfo(name, address, weight),))
        return Topology("c", (group,), (("", 0),), partitions).fingerprint

    assert made() == made(address="elsewhere:1")
    others = {made(partitions=8), made(name="b"), made(weight=2.0)}
    assert len(others | {made()}) == 4


def test_topology_placement_json_has_pinned_text() -> None:
    """A change of the text is a change of what nodes have stored."""
    topology = Topology("c", (Group("g", (A, B)),), (("", 0),), 4)
    assert topology.placement_json == '[[[["a", 1.0, 0], ["b", 1.0, 1]]], [["", 0]], 4]'


def test_balanced_ranges_counts_equal_repeated_cells() -> None:
    rng = np.random.default_rng(3)
    cells = rng.choice(32**3, 200, replace=False).astype(np.uint64)
    counts = rng.integers(1, 50, 200)
    counted = balanced_ranges(cells, 3, groups=5, counts=counts)
    assert counted == balanced_ranges(np.repeat(cells, counts), 3, groups=5)


def test_topology_with_too_many_partitions_is_refused() -> None:
    def topology(groups: int) -> Topology:
        named = tuple(
            Group(f"g{number}", (NodeInfo(f"n{number}", f"host:{number + 1}"),))
            for number in range(groups)
        )
        return Topology("c", named, (("", 0),), partitions_per_group=1_024)

    assert len(topology(16).partitions) == PARTITIONS_MAX
    with raises(ConfigError, expected="partitions", bound=PARTITIONS_MAX):
        topology(17)
