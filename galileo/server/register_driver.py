"""Drives one replicated register of a node: its durable state, its messages, and its changes."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable

from galileo.clock import Clock
from galileo.dht.register import (
    Ballot,
    Change,
    ChangeFinished,
    ChangeRequested,
    Entry,
    EntryChosen,
    Register,
    RegisterEvent,
    RegisterMessage,
    RegisterMessageArrived,
    RegisterState,
    RegisterTicked,
    SaveState,
    SendTo,
)
from galileo.errors import GalileoError
from galileo.wire.tagged_json import TaggedJson

log = logging.getLogger(__name__)

STATE = TaggedJson([RegisterState, Ballot, Entry])
TICK_S = 0.05


class RegisterDriver:
    """One register.

    Args:
        state: as stored, or the first one.
        machine: makes the register that goes on with a state.
        save: stores a state durably; called in a thread.
        send: sends a message to a node; it may be lost.
        on_chosen: called with each later entry that is known to be chosen.
        clock: monotonic time.
    """

    def __init__(
        self,
        state: RegisterState,
        *,
        machine: Callable[[RegisterState], Register],
        save: Callable[[RegisterState], None],
        send: Callable[[str, RegisterMessage], None],
        on_chosen: Callable[[Entry], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._make = machine
        self._machine = machine(state)
        self._save = save
        self._send = send
        self._on_chosen = on_chosen
        self._clock = clock
        self._requests = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Entry]] = {}
        self._stepping = asyncio.Lock()
        self._steps: set[asyncio.Task[None]] = set()
        self._has_begun = asyncio.Event()

    @property
    def chosen(self) -> Ballot:
        """The last entry that this node knows to be chosen, with its ballot."""
        return self._machine.state.chosen

    async def run(self) -> None:
        """Repeats messages of changes, until it is cancelled."""
        while True:
            await self._has_begun.wait()
            await asyncio.sleep(TICK_S)
            if not self._machine.is_busy:
                self._has_begun.clear()
                continue
            try:
                await self._step(RegisterTicked())
            except GalileoError as error:
                log.error("a change of %s failed: %s", self._machine.what, error)

    async def receive(self, sender: str, message: RegisterMessage) -> None:
        """Processes a message of another node.

        Raises:
            PartitionReadOnly: the disk refuses.
        """
        await self._step(RegisterMessageArrived(sender, message))

    async def change(self, change: Change, *, advisors: Iterable[str] = ()) -> Entry:
        """Changes the value; returns when a majority of the voters has stored the result.

        Args:
            change: of the chosen entry.
            advisors: nodes that may know of a later entry than the voters that this node knows.

        Raises:
            Unavailable: too few voters answered; the change may be made nevertheless.
            GalileoError: of the change.
        """
        number = next(self._requests)
        future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._has_begun.set()
            await self._step(ChangeRequested(number, change, tuple(advisors)))
            return await future
        finally:
            del self._waiting[number]

    async def _step(self, event: RegisterEvent) -> None:
        """Takes a step to its end, even if the caller is cancelled.

        What the machine has promised must be durable before the next step sends it.
        """
        step = asyncio.create_task(self._carry_out(event))
        self._steps.add(step)
        step.add_done_callback(self._end_step)
        await asyncio.shield(step)

    def _end_step(self, step: asyncio.Task[None]) -> None:
        self._steps.discard(step)
        if not step.cancelled():
            step.exception()  # A caller that was cancelled does not ask for it.

    async def _carry_out(self, event: RegisterEvent) -> None:
        async with self._stepping:
            durable = self._machine.state
            for effect in self._machine.step(event, self._clock.monotonic()):
                if isinstance(effect, SaveState):
                    try:
                        await asyncio.to_thread(self._save, effect.state)
                    except GalileoError as error:
                        self._restart(durable, error)
                        raise
                    durable = effect.state
                elif isinstance(effect, SendTo):
                    self._send(effect.to, effect.message)
                elif isinstance(effect, EntryChosen):
                    await self._on_chosen(effect.entry)
                else:
                    self._finish(effect)

    def _restart(self, state: RegisterState, error: GalileoError) -> None:
        """Begins again with what is durable, as after a crash."""
        self._machine = self._make(state)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def _finish(self, effect: ChangeFinished) -> None:
        future = self._waiting.get(effect.request)
        if future is None or future.done():
            return
        if isinstance(effect.outcome, GalileoError):
            future.set_exception(effect.outcome)
        else:
            future.set_result(effect.outcome)
