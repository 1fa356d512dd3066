from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.dht.topology import (
    BOUNDED,
    NODES_MAX,
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
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(
        ConfigError, match=f"expected host:port as address of node 'a', .*{address}"
    ):
        NodeInfo("a", address)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_is_above_zero(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight above zero for node 'a'"):
        NodeInfo("a", "h:1", weight)


@pytest.mark.parametrize("name", ["", "Node", "a b", "-a", "ü", "x" * 65, "a/b", "../a", 3, None])
@pytest.mark.parametrize("what", ["node", "group", "cluster"])
def test_names_are_plain(what: str, name: Any) -> None:
    makers = {
        "node": lambda: NodeInfo(name, "h:1"),
        "group": lambda: Group(name, (A,)),
        "cluster": lambda: replace(TOPOLOGY, cluster=name),
    }
    with pytest.raises(ConfigError, match=f"expected a {what} name of a-z"):
        makers[what]()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no group": ({"groups": ()}, "at least one group"),
    "a node twice": (
        {"groups": (EAST, Group("west", (NodeInfo("a", "h:9"),)))},
        "each node name once, got a again",
    ),
    "an address twice": (
        {"groups": (EAST, Group("west", (NodeInfo("z", A.address),)))},
        f"each node address once, got {A.address} again",
    ),
    "a group twice": ({"groups": (EAST, Group("east", (C,)))}, "each group name once, got east"),
    "no partition": ({"partitions_per_group": 0}, "expected 1 to 1024 partitions_per_group, got 0"),
    "too many partitions": ({"partitions_per_group": 1025}, "partitions_per_group, got 1025"),
    "another rule": (
        {"placement": "even"},
        'placement to be "bounded" or "rendezvous", got .even.',
    ),
    "no range": ({"ranges": ()}, "ranges that begin at ''"),
    "a late first range": ({"ranges": (("1", 0),)}, "ranges that begin at ''"),
    "unsorted ranges": ({"ranges": (("", 0), ("9", 1), ("5", 0))}, "sorted geohash ranges"),
    "a range twice": ({"ranges": (("", 0), ("9", 1), ("9", 0))}, "sorted geohash ranges"),
    "a foreign group": ({"ranges": (("", 0), ("9", 2))}, "group numbers below 2, got .2."),
    "a negative group": ({"ranges": (("", -1),)}, "group numbers below 2, got .-1."),
    "no geohash": ({"ranges": (("", 0), ("9a", 1))}, "geohash.*'9a'"),
    "upper case": ({"ranges": (("", 0), ("9X", 1))}, "geohash.*'9X'"),
    "too long": ({"ranges": (("", 0), ("9" * 13, 1))}, "at most 12 characters"),
    "an empty first range": ({"ranges": (("", 0), ("0", 1))}, "none is empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused(case: str) -> None:
    changes, complaint = WRONG[case]
    with pytest.raises(ConfigError, match=complaint):
        replace(TOPOLOGY, **changes)


def test_a_group_has_nodes() -> None:
    with pytest.raises(ConfigError, match="at least one node in group 'east'"):
        Group("east", ())


def test_the_number_of_nodes_is_bounded() -> None:
    nodes = tuple(NodeInfo(f"n{number}", f"h{number}:1") for number in range(NODES_MAX + 1))
    Topology("full", (Group("all", nodes[:-1]),), (("", 0),))
    with pytest.raises(ConfigError, match="at most 1024 nodes, got 1025"):
        Topology("overfull", (Group("all", nodes),), (("", 0),))


# --- what it says --------------------------------------------------------------------------------


def test_nodes_are_numbered_group_by_group() -> None:
    assert TOPOLOGY.nodes == (A, B, C)
    assert [TOPOLOGY.ordinals[name] for name in "abc"] == [0, 1, 2]


def test_a_node_keeps_its_ordinal_when_others_come_before_it():
    old = NodeInfo("old", "host-1:7701", ordinal=0)
    new = NodeInfo("new", "host-2:7701", ordinal=1)
    grown = Topology("c", (Group("g", (new, old)),), (("", 0),))
    assert grown.ordinals == {"new": 1, "old": 0}
    assert Topology.from_json(grown.to_json()) == grown


def test_two_nodes_of_one_ordinal_are_refused():
    nodes = (NodeInfo("a", "host-1:7701", ordinal=1), NodeInfo("b", "host-2:7701"))
    with pytest.raises(ConfigError, match="each node ordinal once"):
        Topology("c", (Group("g", nodes),), (("", 0),))
    assert TOPOLOGY.by_name["b"] is B
    assert TOPOLOGY.partitions == range(8)


def test_each_node_has_its_group() -> None:
    assert [TOPOLOGY.group_of(name) for name in "abc"] == [EAST, EAST, WEST]
    with pytest.raises(ConfigError, match=r"node of \['a', 'b', 'c'\], got 'd'"):
        TOPOLOGY.group_of("d")


# --- JSON ----------------------------------------------------------------------------------------


@given(topologies())
def test_json_brings_an_equal_topology_back(topology: Topology) -> None:
    again = Topology.from_json(topology.to_json())
    assert again == topology
    assert hash(again) == hash(topology)
    assert again.to_json() == topology.to_json()


def test_what_is_left_out_has_defaults() -> None:
    raw = {"groups": [{"name": "g", "nodes": [{"name": "a", "address": "h:1"}]}]}
    found = Topology.from_dict(raw)
    assert found == Topology("galileo", (Group("g", (NodeInfo("a", "h:1"),)),), even_ranges(1))
    assert found.partitions_per_group == 4


@pytest.mark.parametrize("raw", [{"groups": []}, {"groups": [], "ranges": [["", 0]]}])
def test_a_mapping_without_groups_is_refused_for_that(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least one group"):
        Topology.from_dict(raw)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"text"', "{}", '{"groups": 3}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a topology"):
        Topology.from_json(text)


@given(st.data())
def test_a_damaged_part_is_refused_or_harmless(data: st.DataObject) -> None:
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
def test_even_ranges_deal_the_32_letters_in_turn(groups: int) -> None:
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
def test_balanced_ranges_share_a_sample_evenly(
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


def test_ranges_of_distinct_cells_differ_by_one_at_most() -> None:
    rng = np.random.default_rng(3)
    cells = rng.choice(np.arange(1, 32**4, dtype=np.uint64), size=1000, replace=False)
    ranges = balanced_ranges(cells, 4, groups=7)
    texts = geohash.to_text(cells, 4).to_pylist()
    counts = np.bincount([group_of(ranges, text) for text in texts])
    assert counts.max() - counts.min() <= 1


def test_a_sample_needs_observations() -> None:
    with pytest.raises(ConfigError, match="at least one observation, got none"):
        balanced_ranges(np.empty(0, dtype=np.uint64), 5, groups=2)


@pytest.mark.parametrize("cells", [[5, 5, 5], [0, 0, 5]])
def test_a_sample_of_one_place_cannot_be_cut(cells: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"spreads over 2 groups.*larger sample"):
        balanced_ranges(np.array(cells, dtype=np.uint64), 5, groups=2)


def test_the_fingerprint_is_of_the_placement_alone():
    def made(address="host-1:7701", partitions=4, name="a", weight=1.0):
        group = Group("g", (NodeInfo(name, address, weight),))
        return Topology("c", (group,), (("", 0),), partitions).fingerprint

    assert made() == made(address="elsewhere:1")
    others = {made(partitions=8), made(name="b"), made(weight=2.0)}
    assert len(others | {made()}) == 4


def test_the_text_of_the_placement_names_the_rule_unless_it_is_the_first_one() -> None:
    """Earlier versions stored the text without a rule, and clients read topologies without one."""
    old = Topology("c", (Group("g", (A, B)),), (("", 0),), 4)
    text = '[[[["a", 1.0, 0], ["b", 1.0, 1]]], [["", 0]], 4]'
    assert old.placement_json == text
    new = replace(old, placement=BOUNDED)
    assert new.placement_json == text[:-1] + ', "bounded"]'
    assert new.fingerprint != old.fingerprint
    assert Topology.from_json(new.to_json()) == new
    raw = json.loads(old.to_json())
    del raw["placement"]
    assert Topology.from_dict(raw) == old


def test_counted_cells_are_cut_as_if_each_observation_were_given() -> None:
    rng = np.random.default_rng(3)
    cells = rng.choice(32**3, 200, replace=False).astype(np.uint64)
    counts = rng.integers(1, 50, 200)
    counted = balanced_ranges(cells, 3, groups=5, counts=counts)
    assert counted == balanced_ranges(np.repeat(cells, counts), 3, groups=5)
