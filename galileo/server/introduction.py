"""Records in the topology the directory of a node, and the rack that its file names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from galileo.clock import Clock
from galileo.dht import topology_changes
from galileo.errors import GalileoError
from galileo.node.storage_node import StorageNode
from galileo.server.peer_messaging import PeerMessenger
from galileo.server.topology_register import TopologyRegister

IDENTIFY_RETRY_S = 0.2
FOUNDING_WAIT_S = 10.0
"""The longest that a node of a new cluster waits for the others before it founds partitions."""

log = logging.getLogger(__name__)


class Introduction:
    """Keeps the entry of a node in the topology as its directory and its file say.

    A command may have the partitions of this node begin anew (`topology_changes.found_anew`).

    Args:
        node: is introduced.
        register: of the topology.
        mail: hears the other nodes.
        rack: that the file of the node names; "" for none.
        clock: monotonic time.
    """

    def __init__(
        self,
        node: StorageNode,
        register: TopologyRegister,
        *,
        mail: PeerMessenger,
        rack: str,
        clock: Clock,
    ) -> None:
        self._node = node
        self._register = register
        self._mail = mail
        self._rack = rack
        self._clock = clock
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Has the entry be looked at again, as after a change of the topology."""
        self._changed.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        if self._node.replicas.restored:
            await self._hear_others(self._mail.has_told_moves)
            self._node.replicas.lead_restored()
        while True:
            self._changed.clear()
            await self._identify()
            await self._record_rack()
            await self._changed.wait()

    async def _record_rack(self) -> None:
        name, rack = self._node.name, self._rack
        while rack and name in (topology := self._node.topology).by_name:
            if topology.founding is not None and topology.by_name[name].rack == rack:
                return
            try:
                await self._register.change(
                    partial(topology_changes.set_rack, name=name, rack=rack)
                )
            except GalileoError as error:
                log.info("cannot record the rack of this node yet: %s", error)
                await asyncio.sleep(IDENTIFY_RETRY_S)

    async def _identify(self) -> None:
        """Records with which directory this node has begun, if it founds partitions.

        A node on an empty directory takes part in the register by its file. The others may know
        that it has founded its partitions before, so it hears them first.
        """
        if self._node.topology.founding is None:
            await self._hear_others(self._mail.has_answered)
        name, identity = self._node.name, self._node.store.identity
        while True:
            topology, owned = self._node.topology, self._node.replicas.may_found
            node = topology.by_name.get(name)
            if node is None or node.identity not in ("", identity):
                return
            if node.identity and not topology_changes.unfounded(topology, owned):
                return
            try:
                await self._register.change(
                    partial(topology_changes.identify, name=name, identity=identity, owned=owned)
                )
            except GalileoError as error:
                log.info("cannot record the identity of this node yet: %s", error)
                await asyncio.sleep(IDENTIFY_RETRY_S)

    async def _hear_others(self, is_heard: Callable[[str], bool]) -> None:
        """Returns when all other nodes have been heard, or may be down."""
        deadline = self._clock.monotonic() + FOUNDING_WAIT_S
        while self._clock.monotonic() < deadline:
            others = [one.name for one in self._node.topology.nodes if one.name != self._node.name]
            silent = [name for name in others if not is_heard(name)]
            if not silent:
                return
            for name in silent:
                self._mail.send_heartbeat(name)
            await asyncio.sleep(IDENTIFY_RETRY_S)
