"""The registers of datasets' definitions at one node of a cluster with copies.

`galileo.dht.definitions` decides; this drives one register for each slot, with state on disk, and
keeps their voters: the first living voter founds registers and names other voters, and the next
ones do where that lasts. What is chosen goes into the node's catalog; nodes that do not vote learn
it by heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from galileo.clock import Clock
from galileo.dht import definitions, topology_changes
from galileo.dht.definitions import UNFOUNDED, Change, Definition, Definitions
from galileo.dht.register import (
    Entry,
    Register,
    RegisterMessage,
    RegisterOptions,
    RegisterState,
    node_of,
)
from galileo.errors import GalileoError, InputError, Unavailable
from galileo.node.storage_node import StorageNode
from galileo.server.register_driver import STATE, RegisterDriver
from galileo.storage.store import Store

KIND = "definitions"
REPAIR_S = 0.2
"""Between two looks at voters and what is not founded."""
PATIENCE_S = 5.0
"""Seconds that a voter leaves repairs to each of those before it."""
LEARN_RETRY_S = 1.0
FOUNDING_WAIT_S = 10.0
"""The longest that a change waits until its register is founded."""
OPTIONS = RegisterOptions(ballot_s=3.0, backoff_s=1.0, change_s=10.0)
"""Patient, because all nodes of a new cluster begin at once."""
INBOX_MAX = 256
"""Messages that wait for the disk, of each slot."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DefinitionMessage:
    """A message of one slot's register."""

    slot: int
    message: RegisterMessage


def load_states(store: Store) -> dict[int, RegisterState]:
    """The stored states by slot; none before a slot has sent or received anything."""
    return {int(slot): STATE.decode(data) for slot, data in store.load_records(KIND).items()}


def save_state(store: Store, slot: int, state: RegisterState) -> None:
    store.save_record(KIND, str(slot), STATE.encode(state))


class DefinitionRegisters:
    """Implements `node.storage_node.AgreedDefinitions`.

    Args:
        node: whose catalog gets what is chosen.
        send: sends a message to a node; it may be lost.
        directory_of: the random name of a node's directory, "" where it is not known.
        is_alive: whether a node is heard from.
        clock: monotonic time.
        options: of the registers.
    """

    def __init__(
        self,
        node: StorageNode,
        *,
        send: Callable[[str, DefinitionMessage], None],
        directory_of: Callable[[str], str],
        is_alive: Callable[[str], bool],
        clock: Clock,
        options: RegisterOptions = OPTIONS,
    ) -> None:
        self._node = node
        self._send = send
        self._directory_of = directory_of
        self._is_alive = is_alive
        self._clock = clock
        self._options = options
        self._broken_since: float | None = None
        self._news: set[int] = set(range(definitions.SLOTS))  # A crash may have come between.
        self._has_news = asyncio.Event()
        self._has_news.set()
        self._inboxes: list[asyncio.Queue[tuple[str, RegisterMessage]]] = [
            asyncio.Queue(INBOX_MAX) for _ in range(definitions.SLOTS)
        ]
        states = load_states(node.store)
        self._drivers = [self._driver(slot, states.get(slot)) for slot in range(definitions.SLOTS)]

    def _driver(self, slot: int, state: RegisterState | None) -> RegisterDriver:
        node, topology = self._node, self._node.topology
        return RegisterDriver(
            state or definitions.first_register(topology),
            machine=partial(
                Register,
                node.name,
                topology.ordinals[node.name],
                directory=node.store.identity,
                options=self._options,
                what="the definition of the dataset",
            ),
            save=partial(save_state, node.store, slot),
            send=partial(self._send_of, slot),
            on_chosen=partial(self._on_chosen, slot),
            clock=self._clock,
        )

    def _send_of(self, slot: int, to: str, message: RegisterMessage) -> None:
        """Sends nothing to nodes that are away: values would pile up for them."""
        if self._is_alive(to):
            self._send(to, DefinitionMessage(slot, message))

    async def run(self) -> None:
        """Repeats messages and keeps the voters, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for slot, driver in enumerate(self._drivers):
                group.create_task(driver.run())
                group.create_task(self._process(slot))
            group.create_task(self._learn_chosen())
            group.create_task(self._repair_all())

    def receive(self, sender: str, message: DefinitionMessage) -> None:
        """Takes a message of another node; its heartbeats do not wait for the disk.

        Raises:
            InputError: there is no such slot.
        """
        if not 0 <= message.slot < definitions.SLOTS:
            raise InputError(
                f"expected a slot below {definitions.SLOTS}, got {message.slot}; run compatible "
                "versions of Galileo on all nodes",
                bound=definitions.SLOTS,
            )
        inbox = self._inboxes[message.slot]
        if inbox.full():
            inbox.get_nowait()  # Messages may be lost.
        inbox.put_nowait((sender, message.message))

    async def _process(self, slot: int) -> None:
        while True:
            sender, message = await self._inboxes[slot].get()
            try:
                await self._drivers[slot].receive(sender, message)
            except GalileoError as error:
                log.error("cannot process a message about datasets: %s", error)

    def voters(self, name: str) -> list[str]:
        """The nodes that store the definition of a name, as far as this one knows."""
        chosen = self._drivers[definitions.slot_of(name)].chosen
        return list(map(node_of, chosen.entry.voters))

    def agreed(self, slot: int) -> Definitions:
        """What this node knows to be agreed on."""
        return definitions.decode(self._drivers[slot].chosen.entry.data)

    async def change(self, name: str, change: Change) -> Definition:
        """Changes the definition of a name; see `AgreedDefinitions`."""
        slot = definitions.slot_of(name)
        deadline = self._clock.monotonic() + FOUNDING_WAIT_S
        while self._expects_value(slot) and self._clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(REPAIR_S)
        while True:
            try:
                entry = await self._change(slot, partial(self._next, slot, change))
                return definitions.decode(entry.data).get(name, definitions.NOTHING)
            except Unavailable:
                is_founded = self._drivers[slot].chosen.entry.data != UNFOUNDED
                if is_founded or self._clock.monotonic() > deadline:
                    raise
                await asyncio.sleep(REPAIR_S)

    def _expects_value(self, slot: int) -> bool:
        """Whether this node votes and will hear what is founded, or was before it lost its disk."""
        is_founded = self._drivers[slot].chosen.entry.data != UNFOUNDED
        return not is_founded and self._rank(slot) < inf

    async def _change(self, slot: int, change: Callable[[Entry], Entry]) -> Entry:
        """Changes a register; all voters that this node knows of may have been replaced."""
        advisors = topology_changes.definition_voters(self._node.topology)
        return await self._drivers[slot].change(change, advisors=advisors)

    def _next(self, slot: int, change: Change, entry: Entry) -> Entry:
        return definitions.next_entry(entry, change, known=self._node.catalog.definitions(slot))

    async def _on_chosen(self, slot: int, entry: Entry) -> None:
        self._news.add(slot)
        self._has_news.set()

    async def _learn_chosen(self) -> None:
        """Stores what is chosen in the catalog; a drop takes long, and no register waits for it."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            while self._news:
                slot = self._news.pop()
                try:
                    await self._node.learn_definitions(self.agreed(slot))
                except GalileoError as error:
                    log.info("cannot store definitions of datasets yet: %s", error)
                    self._news.add(slot)
                    await asyncio.sleep(LEARN_RETRY_S)

    # --- voters ------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Has other nodes vote in place of this one, which is being removed.

        Raises:
            Unavailable: too few voters answer, or those that should vote are not known yet.
        """
        for slot, driver in enumerate(self._drivers):
            await self._repair(slot)
            if self._node.name in map(node_of, driver.chosen.entry.voters):
                raise Unavailable("other nodes do not vote on datasets yet", after_s=1.0)

    async def _repair_all(self) -> None:
        while True:
            await asyncio.sleep(REPAIR_S)
            repairs = map(self._repair, self._due())
            outcomes = await asyncio.gather(*repairs, return_exceptions=True)
            failures = [one for one in outcomes if isinstance(one, BaseException)]
            for failure in failures:
                if not isinstance(failure, GalileoError):
                    raise failure
            if failures:
                log.info("definitions of datasets cannot be brought up to date: %s", failures[0])

    def _due(self) -> list[int]:
        """The slots that this node should repair now."""
        topology, now = self._node.topology, self._clock.monotonic()
        if not topology.is_replicated or self._node.name not in topology.by_name:
            return []
        broken = [
            slot
            for slot, driver in enumerate(self._drivers)
            if definitions.needs_repair(driver.chosen.entry, topology, self._directory_of)
        ]
        if not broken:
            self._broken_since = None
            return []
        since = self._broken_since = now if self._broken_since is None else self._broken_since
        return [slot for slot in broken if now >= since + PATIENCE_S * self._rank(slot)]

    def _rank(self, slot: int) -> float:
        """How many living voters of a slot come before this node; infinite if it has no vote."""
        known = map(node_of, self._drivers[slot].chosen.entry.voters)
        voters = topology_changes.definition_voters(self._node.topology, list(known))
        living = [name for name in voters if name == self._node.name or self._is_alive(name)]
        return living.index(self._node.name) if self._node.name in living else inf

    async def _repair(self, slot: int) -> None:
        """Founds a register if it is not, and names the voters that it should have.

        Raises:
            Unavailable: too few voters answer, or not all nodes where it is not founded.
        """
        driver = self._drivers[slot]
        try:
            await self._change(slot, partial(self._keep, slot, is_founding=False))
        except Unavailable:
            if driver.chosen.entry.data != UNFOUNDED:
                raise
            await self._node.learn_everything(slot)
            await self._change(slot, partial(self._keep, slot, is_founding=True))

    def _keep(self, slot: int, entry: Entry, *, is_founding: bool) -> Entry:
        known: Definitions = self._node.catalog.definitions(slot)
        kept = definitions.next_entry(entry, definitions.keep, known=known, is_founding=is_founding)
        return definitions.with_seats(kept, self._node.topology, self._directory_of)
