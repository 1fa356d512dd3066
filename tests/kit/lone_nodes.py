"""Storage nodes that are alone in the replica sets of their partitions, without messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from galileo.dht import placement, topology_changes
from galileo.dht.topology import SYSTEM, Topology
from galileo.errors import CorruptData, GalileoError, Unavailable
from galileo.node.replication.log_writer import WriteReport
from galileo.node.replication.protocol import Envelope, LogRange, RangeDigest
from galileo.node.shard import Shard
from galileo.node.storage_node import StorageNode
from galileo.replication.values import Member
from galileo.storage.commits import Commit, Committed, FrameGroup
from galileo.storage.store import Store


class NoLine:
    """Reaches no other node."""

    async def send(self, node: str, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        raise Unavailable(f"node {node} is away", node=node)

    async def digests(self, member: Member, ranges: Sequence[LogRange]) -> list[RangeDigest | None]:
        raise Unavailable(f"node {member.node} is away", node=member.node)


def founded(topology: Topology, name: str, store: Store) -> Topology:
    """The topology, by which the partitions that a node owns begin in its store."""
    owned = placement.partitions_by_node(topology)[name] | {SYSTEM}
    return topology_changes.identify(topology, name, store.identity, owned)


def lone_node(name: str, topology: Topology, *, store: Store, **options: Any) -> StorageNode:
    """A node that leads its partitions, alone in their sets; called in an event loop."""
    node = StorageNode(name, founded(topology, name, store), store=store, **options)
    node.connect_replicas(NoLine(), identity_of=lambda _: "", is_alive=lambda _: False)
    return node


def lead_all_of(node: StorageNode) -> None:
    """Has a node lead all partitions that it owns by its topology, and found those it did not."""
    owned = placement.partitions_by_node(node.topology)[node.name]
    lost, taken = node.topology.by_name[node.name].identity, owned - node.replicas.led
    anew = topology_changes.found_anew(node.topology, node.name, taken, lost=lost, now=1.8e9)
    identified = topology_changes.identify(anew, node.name, node.store.identity, owned)
    node.live.replace_nodes(identified)
    node.replicas._found()
    node.replicas._elect_alone()


def leave_all(node: StorageNode) -> None:
    """Has a node lead nothing any more, as one that has left all replica sets."""
    node.replicas.led = node.replicas.lone = node.replicas.alone = frozenset()
    node.replicas.terms = {}


class Everything(frozenset[int]):
    """The set of all partitions."""

    def __contains__(self, partition: object) -> bool:
        return True


class AllTerms(dict[int, int]):
    """Term 1 of each partition."""

    def __missing__(self, partition: int) -> int:
        return 1

    def __contains__(self, partition: object) -> bool:
        return True


class LoneOwner:
    """The machines of a node that is alone in the sets of all partitions, for a catalog.

    Attributes:
        reports: what a writer has reported, which is errors alone.
    """

    terms: Mapping[int, int] = AllTerms()
    alone: frozenset[int] = Everything()

    def __init__(self) -> None:
        self.reports: list[WriteReport] = []
        with contextlib.suppress(RuntimeError):
            self.loop = asyncio.get_running_loop()

    def holds_lease(self, partition: int) -> bool:
        return True

    def follows(self, partition: int) -> bool:
        return True

    def is_lost(self, partition: int) -> bool:
        return False

    def begin(self, dataset: str, groups: Mapping[int, FrameGroup]) -> frozenset[int]:
        raise AssertionError("a writer that is alone asks no machine")

    def has_others(self, partition: int) -> bool:
        return False

    def on_damage(self, dataset: str, partition: int, error: CorruptData) -> None:
        raise AssertionError("there is no other copy")

    def on_written(self, reports: Sequence[WriteReport]) -> None:
        self.reports += reports


def commit_alone(
    shard: Shard, commits: Mapping[int, Sequence[Commit]], **options: Any
) -> dict[int, list[Committed | GalileoError]]:
    """Commits to partitions of a shard in whose sets its node is alone."""
    return shard.commit(commits, terms=dict.fromkeys(commits, 1), **options)
