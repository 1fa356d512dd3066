"""When the loss of a directory with the only copies can be accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from expected_errors import raises

from galileo.dht import placement, topology_changes
from galileo.dht.topology import Group, Move, NodeInfo, Topology, even_ranges
from galileo.dht.topology_state import TopologyState
from galileo.errors import InputError, Unavailable
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

    @property
    def topology(self) -> Topology:
        return self.live.current


class Asked:
    """Node a, which is asked, and what it knows of the others."""

    def __init__(self) -> None:
        topology = FILES
        for name, owned in OWNED.items():
            topology = topology_changes.identify(topology, name, f"{name}-1", owned)
        self.live = TopologyState(topology)
        self.identities = {name: f"{name}-1" for name in "abc"}
        self.alive = set("abc")
        node: Any = Node("a", self.live)
        mail: Any = SimpleNamespace(
            has_answered=self.alive.__contains__,
            identity_of=lambda name: self.identities[name] if name in self.alive else "",
            broadcast_heartbeat=lambda: None,
        )
        anything: Any = None
        self.nodes = ClusterNodes(
            node,
            SimpleNamespace(change=self.change),  # type: ignore[arg-type]
            peers=anything,
            mail=mail,
            drain=anything,
            coordinated=anything,
            is_alive=self.alive.__contains__,
            on_removed=anything,
        )

    async def change(self, change: Callable[[Topology], Topology]) -> None:
        self.live.replace_nodes(replace(change(self.live.current), moved=()))

    def lead(self, *names: str) -> None:
        """These nodes have said that they lead what they own."""
        self.live.adopt([Move(p, 9, name) for name in names for p in OWNED[name]])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr(cluster_nodes, "SILENT_S", 0.0)
    return Asked()


async def test_partitions_of_a_lost_directory_are_forgotten(asked: Asked) -> None:
    asked.lead("a", "b", "c")
    asked.identities["c"] = "c-2"
    assert await asked.nodes.forget("c") == sorted(OWNED["c"])
    assert topology_changes.unfounded(asked.live.current, FILES.partitions) == OWNED["c"]
    assert asked.live.current.by_name["c"].identity == ""


async def test_partition_that_has_moved_is_not_forgotten(asked: Asked) -> None:
    """Also if the node that has it now has not led it before the node that is asked started."""
    moved = min(OWNED["c"])
    asked.lead("a", "b", "c")
    asked.live.adopt([Move(moved, 10, "b")])
    asked.identities["c"] = "c-2"
    assert await asked.nodes.forget("c") == sorted(OWNED["c"] - {moved})


async def test_nothing_is_forgotten_while_a_node_is_silent_that_may_have_it(asked: Asked) -> None:
    asked.lead("a", "c")
    asked.identities["c"] = "c-2"
    asked.alive.remove("b")
    before = asked.live.current
    with raises(Unavailable, nodes=["b"]):
        await asked.nodes.forget("c")
    assert asked.live.current == before


async def test_node_that_has_its_directory_or_is_away_or_has_copies_is_not_forgotten(
    asked: Asked,
) -> None:
    with raises(InputError, node="c"):
        await asked.nodes.forget("c")
    asked.alive.remove("c")
    with raises(Unavailable, node="c"):
        await asked.nodes.forget("c")
    await asked.change(lambda topology: topology_changes.set_replicas(topology, 2))
    with raises(InputError, node="c"):
        await asked.nodes.forget("c")


async def test_lost_node_is_removed_only_if_others_lead_all_that_it_had(asked: Asked) -> None:
    asked.lead("a", "b")
    asked.alive.remove("c")
    with raises(InputError, node="c"):
        await asked.nodes.remove_lost("c")
    asked.live.adopt([Move(p, 10, "b") for p in OWNED["c"]])
    asked.alive.remove("b")
    with raises(Unavailable, nodes=["b"]):
        await asked.nodes.remove_lost("c")
    asked.alive.add("b")
    await asked.nodes.remove_lost("c")
    assert [node.name for node in asked.live.current.nodes] == ["a", "b"]
