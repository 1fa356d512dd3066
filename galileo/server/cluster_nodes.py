"""Nodes that are added to the cluster and removed from it.

Theory of operation. A node is added by one change of the register. A node that is removed carries
that out itself. It records durably that it is leaving, so that it goes on after a crash. It has the
register mark it, whereupon no partition is moved to it and it is given no CCQ; waits until leaders
have replaced it in all replica sets; hands off its CCQs; and asks another node to have the register
remove it. Until the last step the removal can be undone; the node then gets its share of
the partitions again.

A node that is gone for good cannot do so. If others lead all that it may have had, the register
removes it at once; leaders then make copies elsewhere. A node that has lost its directory with the
only copies does not serve them as empty, until a command accepts the loss (`forget`). Both ask the
other nodes what they have: the number of copies that there should be says nothing about the sets.

At each step the disk of this node or the register says what comes next, so whatever crashes, the
removal goes on when the node is back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection
from functools import partial

from galileo.dht import placement, topology_changes
from galileo.dht.topology import SYSTEM, NodeInfo, partition_name
from galileo.errors import NAMED_MAX, GalileoError, InputError, Unavailable, listed
from galileo.node.replication.protocol import HeldPartitions
from galileo.node.replication.replicas import Replicas
from galileo.node.storage_node import StorageNode
from galileo.rpc.peers import GrpcPeers
from galileo.server.peer_messaging import PeerMessenger
from galileo.server.topology_register import TOPOLOGY_KIND, TopologyRegister
from galileo.wire.v1 import cluster_pb2

LEAVING = "leaving"
PAUSE_S = 1.0
DRAIN_S = 30.0
PROGRESS_S = 0.2
SILENT_S = 5.0
"""A node that was lost a moment ago is still taken for alive."""

log = logging.getLogger(__name__)


class ClusterNodes:
    """Adds nodes to the cluster, and removes this one.

    Args:
        node: this node.
        register: of the topology.
        peers: the other nodes.
        mail: sends them heartbeats.
        drain: hands off CCQs, or ends that.
        coordinated: counts the CCQs that this node coordinates.
        is_alive: whether another node is heard from.
        on_removed: called when this node was removed.
    """

    def __init__(
        self,
        node: StorageNode,
        register: TopologyRegister,
        *,
        peers: GrpcPeers,
        mail: PeerMessenger,
        drain: Callable[[bool], None],
        coordinated: Callable[[], int],
        is_alive: Callable[[str], bool],
        on_removed: Callable[[], None],
    ) -> None:
        self._node = node
        self._register = register
        self._peers = peers
        self._mail = mail
        self._drain = drain
        self._coordinated = coordinated
        self._is_alive = is_alive
        self._on_removed = on_removed
        self._progress = _progress("move")
        self._failure: GalileoError | None = None
        self._to = ""
        self._running: asyncio.Task[None] | None = None

    async def add(self, node: NodeInfo, *, group: str, is_new_group: bool) -> bytes:
        """Adds another node to the topology, which is returned as tagged JSON.

        Raises:
            InputError: its name or address is taken, or the group does not exist, or is not new.
            Unavailable: too few voters of the register answer.
        """
        await self._register.change(
            partial(topology_changes.add_node, node=node, group=group, is_new_group=is_new_group)
        )
        self._mail.broadcast_heartbeat()
        return self._register.encoded

    async def remove_drained(self, name: str) -> None:
        """Removes another node from the topology, which is in no replica set any more.

        Raises:
            Unavailable: too few voters of the register answer.
        """
        await self._register.change(lambda topology: topology_changes.remove_node(topology, name))
        self._mail.broadcast_heartbeat()

    async def remove_lost(self, name: str) -> None:
        """Removes another node that is gone for good, of whose partitions others have copies.

        Raises:
            InputError: there is no such node, it is alive, the only one of its group, or no other
                node leads a partition of which it may have a copy.
            Unavailable: a node that may lead such a partition does not answer, or too few voters
                of the register do.
        """
        topology_changes.known_node(self._node.topology, name)
        deadline = time.monotonic() + SILENT_S
        while self._is_alive(name):
            if time.monotonic() > deadline:
                raise InputError(
                    f"expected a node that is gone for good, got {name!r}, which is heard from",
                    remedy="node_alive",
                    node=name,
                )
            await asyncio.sleep(PROGRESS_S)
        # Other members may still elect the leaders that take over from it.
        while needed := await self._unled_without(name):
            if time.monotonic() > deadline:
                raise InputError(
                    f"no other node can lead partitions "
                    f"{listed(sorted(needed), text_of=partition_name)} without node "
                    f"{name!r}; start it again, or a node of this name with what is left of its "
                    "directory or with an empty one, whose loss galileo node forget accepts, or "
                    "galileo recover where another node has a copy",
                    node=name,
                    partitions=sorted(needed)[:NAMED_MAX],
                )
            await asyncio.sleep(PROGRESS_S)
        await self.remove_drained(name)

    async def _unled_without(self, name: str) -> frozenset[int]:
        """The partitions that a node may have a copy of, and that no other node leads for sure.

        Raises:
            Unavailable: a node that may lead some of them does not answer.
        """
        held = await self._held()
        others = {node: one for node, one in held.items() if node != name}
        voting = frozenset[int]().union(*(one.voting for one in others.values()))
        led = frozenset[int]().union(*(one.led for one in others.values()))
        silent = self._silent(held)
        unled = frozenset(
            partition
            for partition, owner in self._last_leaders(name).items()
            if partition not in led and (partition in voting or owner == name or owner in silent)
        )
        self._check_answers(name, unled, held)
        return unled

    async def _lost_with(self, name: str) -> frozenset[int]:
        """The partitions of which the lost directory of a node had the only copy.

        The number of copies that there should be does not say so: sets of several members are
        left after it was reduced, and sets of one after it was raised.

        Raises:
            Unavailable: a node that may have a copy of some of them does not answer.
        """
        held = await self._held()
        voting = frozenset[int]().union(*(one.voting for one in held.values()))
        lost = frozenset(
            partition
            for partition, owner in self._last_leaders(name).items()
            if partition not in voting and owner == name
        )
        self._check_answers(name, lost, held)
        return lost

    async def _held(self) -> dict[str, HeldPartitions]:
        """What each node that answers has of partitions, by its name."""
        names = [node.name for node in self._node.topology.nodes if node.name != self._node.name]
        asked = [name for name in names if self._is_alive(name)]
        answers = await asyncio.gather(
            *(self._peers.held_partitions(name) for name in asked), return_exceptions=True
        )
        held = {self._node.name: self._node.replicas.held()}
        for name, answer in zip(asked, answers, strict=True):
            if isinstance(answer, HeldPartitions):
                held[name] = answer
            elif not isinstance(answer, GalileoError):
                raise answer
        return held

    def _last_leaders(self, name: str) -> dict[int, str]:
        """Who has led each partition of a node's group, and the system partition, as last heard.

        One of which no leader was heard counts as the node's own, if it has begun anywhere.
        """
        topology, live = self._node.topology, self._node.live
        number = topology.groups.index(topology.group_of(name))
        partitions = [*placement.partitions_of_group(topology, number), SYSTEM]
        moves = {p: live.move_of(p) for p in partitions}
        unfounded = topology_changes.unfounded(topology, partitions)
        return {
            p: name if move is None else move.node
            for p, move in moves.items()
            if p not in unfounded or move is not None
        }

    def _silent(self, held: Collection[str]) -> list[str]:
        """The nodes that do not answer; those that have not joined yet have nothing."""
        nodes = self._node.topology.nodes
        return [n.name for n in nodes if n.name not in held and not topology_changes.is_expected(n)]

    def _check_answers(self, name: str, partitions: Collection[int], held: Collection[str]) -> None:
        """Raises Unavailable if a node does not answer that may have copies of some partitions."""
        topology = self._node.topology
        nodes = topology.nodes if SYSTEM in partitions else topology.group_of(name).nodes
        may_have = {node.name for node in nodes if node.name != name}
        silent = [node for node in self._silent(held) if node in may_have]
        if partitions and silent:
            raise Unavailable(
                f"whether {', '.join(silent)} has partitions of node {name!r} is not known while "
                "it does not answer; start it first",
                nodes=silent,
                after_s=PAUSE_S,
            )

    async def set_replicas(self, count: int) -> None:
        """Changes the number of copies of each partition.

        Raises:
            InputError: as of `topology_changes.set_replicas`.
            Unavailable: too few voters of the register answer.
        """
        await self._register.change(lambda topology: topology_changes.set_replicas(topology, count))
        self._mail.broadcast_heartbeat()

    async def move(self, partition: int, to: str) -> AsyncGenerator[str, None]:
        """Has a node of its group lead a partition; yields the stage until it does.

        Giving the generator up does not end the move.

        Raises:
            InputError: as of `topology_changes.pin_partitions`.
            Unavailable: the node does not answer, or too few voters of the register do.
        """
        await self._pin([partition], to)
        while placement.owner(self._node.topology, partition) != to:
            if to != self._node.name and not self._is_alive(to):
                raise Unavailable(
                    f"node {to!r} does not answer; partition {partition} moves there when it does",
                    node=to,
                    partition=partition,
                    after_s=PAUSE_S,
                )
            yield "copy"
            await asyncio.sleep(PROGRESS_S)
        yield "done"

    async def _pin(self, partitions: Collection[int], to: str) -> None:
        await self._register.change(
            lambda topology: topology_changes.pin_partitions(topology, partitions, to)
        )
        self._mail.broadcast_heartbeat()

    async def forget(self, name: str) -> list[int]:
        """Accepts that a node has lost its directory; the node then serves its partitions, empty.

        Returns:
            The partitions.

        Raises:
            InputError: there is no such node, it has its directory, or others have copies.
            Unavailable: it does not run, another node that may have a copy does not, or too few
                voters of the register answer.
        """
        topology = self._node.topology
        known, identity = topology_changes.known_node(topology, name), self._mail.identity_of(name)
        if not identity or (name != self._node.name and not self._is_alive(name)):
            raise Unavailable(
                f"node {name!r} does not answer; start it with an empty directory first",
                node=name,
                after_s=PAUSE_S,
            )
        if identity == known.identity:
            raise InputError(
                f"expected a node that has lost its directory, got {name!r}, which has it",
                node=name,
            )
        lost = await self._lost_with(name)
        if not lost:
            raise InputError(
                f"expected a node whose lost directory had the only copy of a partition, got "
                f"{name!r}; other nodes have copies of all its partitions, and it gets its own "
                "again by itself, or galileo recover goes on with theirs if a majority is lost",
                node=name,
            )
        await self._register.change(
            partial(
                topology_changes.found_anew,
                name=name,
                partitions=lost,
                lost=known.identity,
                now=time.time(),
            )
        )
        self._mail.broadcast_heartbeat()
        return sorted(lost - {SYSTEM})

    def resume(self) -> None:
        """Goes on with a removal that was begun before a restart."""
        data = self._node.store.load_record(TOPOLOGY_KIND, LEAVING)
        if data is not None:
            record = json.loads(data)
            self._begin(str(record["to"]))

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def start(self, *, to: str = "") -> None:
        """Begins to remove the node, or goes on with other nodes as receivers.

        Args:
            to: the node that takes the partitions; empty: those of the group, by their shares.

        Raises:
            InputError: the node is the last of its group, or `to` cannot take its partitions.
            Unavailable: too few voters of the register answer.
        """
        name, topology = self._node.name, self._node.topology
        if to:
            topology_changes.check_receiver(topology, to, of=name)
        topology_changes.set_leaving(topology, name, is_leaving=True)
        if self._is_running and to == self._to:
            return
        await self.close()
        await self._save(to)
        self._begin(to)

    async def undo(self) -> None:
        """Ends a removal; the node gets its share of the partitions again. Errors as `start`."""
        await self.close()
        self._running = None
        name = self._node.name
        await self._register.change(
            lambda topology: topology_changes.set_leaving(topology, name, is_leaving=False)
        )
        await asyncio.to_thread(self._node.store.delete_record, TOPOLOGY_KIND, LEAVING)
        self._node.removal_failure = ""
        self._drain(False)

    async def progress(self) -> AsyncGenerator[cluster_pb2.RemoveNodeProgress, None]:
        """How far the removal is, until it is done; giving the generator up does not end it.

        Raises:
            GalileoError: it cannot go on; it tries again later by itself.
        """
        shown: cluster_pb2.RemoveNodeProgress | None = None
        while self._is_running:
            if self._failure is not None:
                raise self._failure
            if self._progress != shown:
                shown = self._progress
                yield shown
            await asyncio.sleep(PROGRESS_S)
        yield _progress("done")

    @property
    def _is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    async def _save(self, to: str) -> None:
        data = json.dumps({"to": to}).encode()
        await asyncio.to_thread(self._node.store.save_record, TOPOLOGY_KIND, LEAVING, data)

    def _begin(self, to: str) -> None:
        self._failure, self._to = None, to
        self._progress = _progress("move", left=len(self._node.partitions))
        self._running = asyncio.create_task(self._run(to))

    async def _run(self, to: str) -> None:
        while True:
            try:
                await self._leave(to)
                return
            except GalileoError as error:
                log.warning("the removal of this node waits: %s", error)
                self._failure, self._node.removal_failure = error, error.message
            await asyncio.sleep(PAUSE_S)

    async def _leave(self, to: str) -> None:
        name, self._failure = self._node.name, None
        await self._register.change(
            lambda topology: topology_changes.set_leaving(topology, name, is_leaving=True)
        )
        self._mail.broadcast_heartbeat()
        self._drain(True)
        if to:
            await self._pin(self._node.partitions, to)
        await self._leave_sets(self._node.replicas)
        await self._hand_off()
        successor = topology_changes.successor(self._node.topology, name)
        await self._peers.remove_drained(successor, name)
        self._on_removed()

    async def _leave_sets(self, replicas: Replicas) -> None:
        """Waits until leaders have replaced this node in all replica sets."""
        while left := replicas.member_of:
            self._progress = _progress("move", partition=left[0], left=len(left))
            await asyncio.sleep(PROGRESS_S)

    async def _hand_off(self) -> None:
        """Waits for other coordinators; the rest is taken over when this node is gone."""
        self._progress = _progress("drain")
        deadline = time.monotonic() + DRAIN_S
        while self._coordinated() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(PROGRESS_S)


def _progress(stage: str, *, partition: int = 0, left: int = 0) -> cluster_pb2.RemoveNodeProgress:
    """How far a removal is; `left` counts the partitions that are still to be moved."""
    return cluster_pb2.RemoveNodeProgress(stage=stage, partition=partition, left=left)
