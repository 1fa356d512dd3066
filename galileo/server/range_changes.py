"""Cuts the geohash ranges of the groups anew while the cluster works.

Theory of operation. The register announces the ranges; every node then plans its queries with them,
too. When each node has stored a topology with them, the register activates them, and rows go where
they say. A node that is down delays the activation and nothing else. Who asked may crash at any
moment: announced ranges change no answer, and the same request goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from galileo.dht import topology_changes
from galileo.dht.topology import RangeMap, Topology
from galileo.errors import GalileoError, InputError, Unavailable
from galileo.node.storage_node import StorageNode
from galileo.rpc.peers import GrpcPeers
from galileo.server.peer_messaging import PeerMessenger
from galileo.server.topology_register import TopologyRegister

PAUSE_S = 0.1


class RangeChanges:
    """Changes of the ranges that this node was asked for."""

    def __init__(
        self,
        node: StorageNode,
        *,
        register: TopologyRegister,
        peers: GrpcPeers,
        mail: PeerMessenger,
    ) -> None:
        self._node = node
        self._register = register
        self._peers = peers
        self._mail = mail

    async def change(
        self, ranges: Sequence[tuple[str, str]]
    ) -> AsyncGenerator[tuple[str, ...], None]:
        """Cuts the ranges anew; yields the nodes that do not know them yet, until there is none.

        Giving the generator up leaves the ranges announced.

        Args:
            ranges: the geohash where each begins, ascending, and the name of its group.

        Raises:
            InputError: there is no such group, others are announced, or these were taken back.
            ConfigError: they are no ranges.
            Unavailable: too few voters of the register answer.
        """
        wanted = numbered_ranges(self._node.topology, ranges)
        propose = partial(topology_changes.propose_ranges, ranges=wanted)
        topology = await self._register.change(propose)
        while not topology_changes.is_current(topology, wanted):
            self._mail.broadcast_heartbeat()
            async for waiting in self._waiting(topology):
                yield waiting
            try:
                topology = await self._register.change(
                    partial(
                        topology_changes.activate_ranges,
                        ranges=wanted,
                        known_version=topology.version,
                    )
                )
            except Unavailable:
                await asyncio.sleep(PAUSE_S)
                topology = await self._register.change(propose)
        self._mail.broadcast_heartbeat()

    async def undo(self) -> None:
        """Takes announced ranges back. Errors as `change`."""
        await self._register.change(topology_changes.withdraw_ranges)
        self._mail.broadcast_heartbeat()

    async def _waiting(self, topology: Topology) -> AsyncGenerator[tuple[str, ...], None]:
        """The nodes that do not have a topology yet, until all have it."""
        waiting = [
            node.name
            for node in topology.nodes
            if node.name != self._node.name and not topology_changes.is_expected(node)
        ]
        while waiting:
            known = await asyncio.gather(*map(self._version_at, waiting))
            versions = zip(waiting, known, strict=True)
            waiting = [node for node, version in versions if version < topology.version]
            if waiting:
                yield tuple(waiting)
                await asyncio.sleep(PAUSE_S)
                self._mail.broadcast_heartbeat()

    async def _version_at(self, node: str) -> int:
        """The version of the topology that a node has stored; 0 if it does not answer."""
        try:
            reply = await self._peers.status(node)
        except GalileoError:
            return 0
        return reply.nodes[0].topology_version


def numbered_ranges(topology: Topology, ranges: Sequence[tuple[str, str]]) -> RangeMap:
    """Ranges with the numbers of their groups.

    Raises:
        InputError: there is no such group.
    """
    numbers = {group.name: number for number, group in enumerate(topology.groups)}
    unknown = sorted({group for _, group in ranges} - numbers.keys())
    if unknown:
        raise InputError(
            f"group {unknown[0]!r} does not exist; groups: {', '.join(numbers)}", group=unknown[0]
        )
    return tuple((geohash, numbers[group]) for geohash, group in ranges)
