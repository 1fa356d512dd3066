"""Drives the replicated register of a node: durable state, messages, and changes of the topology.

The topology of a cluster without changes is that of the nodes' files. Each change is agreed on by
the voters (`galileo.dht.register`), and reaches the other nodes with the next message of a node
that knows it; a node processes no message of a node with a later topology before it has that.

A voter that comes with another directory than the register names has its seat changed, and is no
voter until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from galileo.clock import Clock
from galileo.dht import register, topology_changes
from galileo.dht.register import Ballot, Entry, Learn, Register, RegisterState
from galileo.dht.topology import NodeInfo, Topology
from galileo.dht.topology_state import TopologyState
from galileo.errors import GalileoError
from galileo.server.register_driver import STATE, RegisterDriver
from galileo.storage.store import Store

TOPOLOGY_KIND, REGISTER = "topology", "register"
MESSAGES = (
    *(register.Prepare, register.Promise, register.Accept, register.Accepted),
    *(register.Reject, register.Learn, register.Learned),
)
RESEAT_RETRY_S = 1.0

TopologyChange: TypeAlias = Callable[[Topology], Topology]
"""One of `galileo.dht.topology_changes`; it returns its argument where nothing is left to do."""

log = logging.getLogger(__name__)


def load_state(store: Store) -> RegisterState | None:
    """The stored state; None before any change of the topology."""
    data = store.load_record(TOPOLOGY_KIND, REGISTER)
    return None if data is None else STATE.decode(data)


def save_state(store: Store, state: RegisterState) -> None:
    store.save_record(TOPOLOGY_KIND, REGISTER, STATE.encode(state))


def joined_state(data: bytes) -> RegisterState:
    """The state of a node that has just been added, from the answer to its request."""
    chosen: Ballot = STATE.decode(data)
    return RegisterState(promised=chosen.number, used=0, accepted=chosen, chosen=chosen)


def topology_of(entry: Entry) -> Topology:
    """The topology of an entry, numbered by it."""
    return replace(Topology.from_json(entry.data), version=entry.version)


class TopologyRegister:
    """The register at one node.

    Args:
        name: of this node.
        live: the topology, which follows the register.
        store: keeps the state.
        clock: monotonic time.
        send: sends a message to a node; it may be lost.
        on_changed: called when `live` has changed.
    """

    def __init__(
        self,
        name: str,
        live: TopologyState,
        *,
        store: Store,
        clock: Clock,
        send: Callable[[str, Any], None],
        on_changed: Callable[[], None],
    ) -> None:
        self._on_changed = on_changed
        self._live = live
        topology = live.current
        self._name, ordinal = name, topology.ordinals[name]
        self._directory = store.identity
        state = load_state(store) or register.first_state(
            topology_changes.first_voters(topology),
            topology.to_json(),
        )
        self._driver = RegisterDriver(
            state,
            machine=lambda state: Register(name, ordinal, state, directory=self._directory),
            save=partial(save_state, store),
            send=send,
            on_chosen=self._adopt,
            clock=clock,
        )
        self._seat_lost = asyncio.Event()
        self._check_seat()

    @property
    def version(self) -> int:
        """Of the topology; 1 is that of the files."""
        return self._driver.chosen.entry.version

    @property
    def encoded(self) -> bytes:
        """The last chosen topology, for a node that may not have it."""
        return STATE.encode(self._driver.chosen)

    async def run(self) -> None:
        """Repeats messages of changes and keeps this node's seat, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._driver.run())
            group.create_task(self._keep_seat())

    async def _keep_seat(self) -> None:
        while True:
            await self._seat_lost.wait()
            try:
                await self.change(lambda topology: topology)
                log.info("this node votes on the topology again, with another directory")
            except GalileoError as error:
                log.warning("this node cannot vote on the topology yet: %s", error)
                await asyncio.sleep(RESEAT_RETRY_S)
            self._check_seat()

    def _check_seat(self) -> None:
        chosen = self._driver.chosen.entry
        if register.reseat(chosen, self._name, self._directory) == chosen:
            self._seat_lost.clear()
        else:
            self._seat_lost.set()

    async def receive(self, sender: str, message: register.RegisterMessage) -> None:
        """Processes a message of another node."""
        await self._driver.receive(sender, message)

    async def learn(self, sender: str, data: bytes) -> None:
        """Adopts a topology that another node has sent, if it is later.

        Raises:
            InputError: the bytes are no topology.
            PartitionReadOnly: the disk refuses.
        """
        await self.receive(sender, Learn(STATE.decode(data)))

    async def change(self, change: TopologyChange) -> Topology:
        """Changes the topology; returns when a majority of the voters has stored the result.

        Raises:
            Unavailable: too few voters answered; the change may be made nevertheless.
            GalileoError: of the change.
        """
        return topology_of(await self._driver.change(partial(self._next, change=change)))

    def _next(self, entry: Entry, *, change: TopologyChange) -> Entry:
        entry = register.reseat(entry, self._name, self._directory)
        topology = topology_of(entry)
        changed = change(topology)
        if changed == topology:  # The data has the number of the entry before, and would differ.
            return entry
        seats = {register.node_of(seat): seat for seat in entry.voters}
        voters = topology_changes.voters(changed, seats.keys())
        voters = tuple(seats.get(name) or _new_seat(changed.by_name[name]) for name in voters)
        return replace(entry, data=changed.to_json(), voters=voters)

    async def _adopt(self, entry: Entry) -> None:
        """Follows a later topology."""
        topology = topology_of(entry)
        self._live.replace_nodes(topology)
        log.info("topology %d: nodes %s", topology.version, ", ".join(topology.by_name))
        self._check_seat()
        self._on_changed()


def _new_seat(node: NodeInfo) -> str:
    """The seat of a node that becomes a voter; any directory counts if its own is not known."""
    return register.seat_of(node.name, node.identity) if node.identity else node.name
