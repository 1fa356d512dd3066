"""When the loss of a directory with the only copies can be accepted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from expected_errors import raises

from galileo.dht import placement, topology_changes
from galileo.dht.topology import SYSTEM, Group, Move, NodeInfo, Topology, even_ranges
from galileo.dht.topology_state import TopologyState
from galileo.errors import InputError, Unavailable
from galileo.node.replication.protocol import HeldPartitions
from galileo.server import cluster_nodes
from galileo.server.cluster_nodes import ClusterNodes

NODES = tuple(NodeInfo(name, f"127.0.0.1:{port}") for port, name in enumerate("abc", start=1))
FILES = Topology("t", (Group("g", NODES),), even_ranges(1), 6)
OWNED = placement.partitions_by_node(FILES)


@dataclass
class Node:
    """As much of a node as is asked."""

    name: str
    live: TopologyState
    replicas: Any

    @property
    def topology(self) -> Topology:
        return self.live.current


NOTHING = HeldPartitions(frozenset(), frozenset())


class Asked:
    """Node a, which is asked, and what it knows of the others.

    Attributes:
        held: what each node says that it has.
    """

    def __init__(self) -> None:
        topology = FILES
        for name, owned in OWNED.items():
            founded = owned | {SYSTEM} if name == "a" else owned
            topology = topology_changes.identify(topology, name, f"{name}-1", founded)
        self.live = TopologyState(topology)
        self.identities = {name: f"{name}-1" for name in "abc"}
        self.alive = set("abc")
        self.held = dict.fromkeys("abc", NOTHING)
        node: Any = Node("a", self.live, SimpleNamespace(held=lambda: self.held["a"]))
        mail: Any = SimpleNamespace(
            identity_of=lambda name: self.identities[name] if name in self.alive else "",
            broadcast_heartbeat=lambda: None,
        )
        anything: Any = None
        self.nodes = ClusterNodes(
            node,
            SimpleNamespace(change=self.change),  # type: ignore[arg-type]
            peers=SimpleNamespace(held_partitions=self.held_partitions),  # type: ignore[arg-type]
            mail=mail,
            drain=anything,
            coordinated=anything,
            is_alive=self.alive.__contains__,
            on_removed=anything,
        )

    async def change(self, change: Callable[[Topology], Topology]) -> None:
        self.live.replace_nodes(replace(change(self.live.current), moved=()))

    async def held_partitions(self, name: str) -> HeldPartitions:
        if name not in self.alive:
            raise Unavailable(f"node {name} is away", node=name)
        return self.held[name]

    def lead(self, *names: str) -> None:
        """These nodes lead what they own, alone; a leads the system partition."""
        for name in names:
            self.lead_more(name, OWNED[name] | {SYSTEM} if name == "a" else OWNED[name])

    def lead_more(self, name: str, partitions: Collection[int]) -> None:
        """A node leads some partitions, and the others have heard of it."""
        number = max((move.number for move in self.live.current.moved), default=8) + 1
        self.live.adopt([Move(p, number, name) for p in partitions])
        one = self.held[name]
        self.held[name] = HeldPartitions(one.voting.union(partitions), one.led.union(partitions))

    def vote(self, name: str, partitions: Collection[int]) -> None:
        """A node is a voter of some partitions, and leads none of them."""
        one = self.held[name]
        self.held[name] = replace(one, voting=one.voting.union(partitions))

    def lose(self, name: str) -> None:
        """A node runs with another directory than before."""
        self.identities[name], self.held[name] = f"{name}-2", NOTHING


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr(cluster_nodes, "SILENT_S", 0.0)
    return Asked()


async def test_partitions_of_a_lost_directory_are_forgotten(asked: Asked) -> None:
    asked.lead("a", "b", "c")
    asked.lose("c")
    assert await asked.nodes.forget("c") == sorted(OWNED["c"])
    assert topology_changes.unfounded(asked.live.current, FILES.partitions) == OWNED["c"]
    assert asked.live.current.by_name["c"].identity == ""


async def test_only_copies_are_forgotten_also_where_there_are_to_be_more(asked: Asked) -> None:
    """The directory is lost before its partitions get their second copies."""
    asked.lead("a", "b", "c")
    await asked.change(lambda topology: topology_changes.set_replicas(topology, 2))
    copied = min(OWNED["c"])
    asked.vote("b", {copied})
    asked.lose("c")
    assert await asked.nodes.forget("c") == sorted(OWNED["c"] - {copied})


async def test_copies_are_not_forgotten_where_there_is_to_be_one(asked: Asked) -> None:
    """The cluster had three copies when the directory was lost, and its sets are large still."""
    asked.lead("a", "b", "c")
    asked.vote("b", OWNED["c"])
    asked.lose("c")
    before = asked.live.current
    with raises(InputError, node="c"):
        await asked.nodes.forget("c")
    assert asked.live.current == before


async def test_what_a_node_has_in_its_present_directory_is_not_forgotten(asked: Asked) -> None:
    """It lost a directory while there were copies; then it got them, and is their only member."""
    asked.lead("a", "b", "c")
    asked.lose("c")
    asked.lead("c")
    with raises(InputError, node="c"):
        await asked.nodes.forget("c")


async def test_partition_that_has_moved_is_not_forgotten(asked: Asked) -> None:
    """Also if the node that has it now has not led it before the node that is asked started."""
    moved = min(OWNED["c"])
    asked.lead("a", "b", "c")
    asked.lead_more("b", {moved})
    asked.lose("c")
    assert await asked.nodes.forget("c") == sorted(OWNED["c"] - {moved})


async def test_nothing_is_forgotten_while_a_node_is_silent_that_may_have_it(asked: Asked) -> None:
    asked.lead("a", "c")
    asked.lose("c")
    asked.alive.remove("b")
    before = asked.live.current
    with raises(Unavailable, nodes=["b"]):
        await asked.nodes.forget("c")
    assert asked.live.current == before


async def test_node_that_has_its_directory_or_is_away_is_not_forgotten(asked: Asked) -> None:
    with raises(InputError, node="c"):
        await asked.nodes.forget("c")
    asked.alive.remove("c")
    with raises(Unavailable, node="c"):
        await asked.nodes.forget("c")


@pytest.mark.parametrize("copies", [1, 2])
async def test_lost_node_is_removed_only_if_others_lead_all_that_it_had(
    asked: Asked, copies: int
) -> None:
    """Whatever the number of copies that there should be: sets may be larger or smaller."""
    await asked.change(lambda topology: topology_changes.set_replicas(topology, copies))
    asked.lead("a", "b", "c")
    asked.alive.remove("c")
    with raises(InputError, node="c", partitions=sorted(OWNED["c"])):
        await asked.nodes.remove_lost("c")
    asked.lead_more("b", OWNED["c"])
    asked.alive.remove("b")
    with raises(Unavailable, nodes=["b"]):
        await asked.nodes.remove_lost("c")
    asked.alive.add("b")
    await asked.nodes.remove_lost("c")
    assert [node.name for node in asked.live.current.nodes] == ["a", "b"]


async def test_lost_node_without_which_a_copy_has_no_majority_is_not_removed(asked: Asked) -> None:
    asked.lead("a", "b")
    shared = min(OWNED["c"])
    asked.lead_more("b", OWNED["c"] - {shared})
    asked.vote("b", {shared})
    asked.alive.remove("c")
    with raises(InputError, node="c", partitions=[shared]):
        await asked.nodes.remove_lost("c")
