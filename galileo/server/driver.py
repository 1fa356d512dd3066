"""Drives the machine of continuous queries in production: events in order, effects in order.

Every event passes one queue and one consumer, so the machine handles one event at a time, and the
effects of the steps are executed in order. Long work (a cycle, a rescan, a change of records) runs
in a task of its own; its result is an event.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, assert_never

from galileo import request_id, spans
from galileo.ccq import events as ccq
from galileo.ccq.machine import Continuous
from galileo.clock import Clock
from galileo.dht import membership
from galileo.dht.membership import (
    Membership,
    MembershipEffect,
    MembershipEvent,
    PeerDied,
    PeerRevived,
    SendHeartbeat,
)
from galileo.errors import Overloaded
from galileo.server.peer_messaging import PeerMessenger
from galileo.wire.context_propagation import Origin, continue_request, outgoing_metadata

TICK_S = 0.05
"""Pause between two ticks."""
IDLE_AFTER_S = 1.0
"""Time after which a node is idle since its last event but ticks and what nodes exchange
regularly."""
IDLE_TICK_S = 0.25
"""Pause between two ticks of an idle node, which an event ends."""
ANNOUNCE_INTERVAL_S = 0.25
"""New commits are announced to nodes that wait for them at once, but at most at this interval;
longer in proportion if these are more than `ANNOUNCED_MAX`."""
ANNOUNCED_MAX = 8
"""Nodes to which commits are announced in each interval."""
EVENTS_WAITING_MAX = 50_000
"""Events that wait; beyond it requests are refused."""
TIMER_RESOLUTION_S = 0.001
"""A timer of the event loop may end earlier by this."""

Answer: TypeAlias = Any
Work: TypeAlias = Callable[[Any], Coroutine[Any, Any, ccq.ContinuousEvent]]

log = logging.getLogger(__name__)

_ROUTINE = ccq.Ticked | ccq.UsageMeasured
"""Events that also happen on an idle node."""


class Driver:
    """Feeds events to the machines of one node and executes their effects.

    Args:
        machine: the node's continuous queries.
        members: its failure detector.
        mail: sends what goes to other nodes.
        clock: wall and monotonic clock.
        work: executes a long effect (`ccq.Task`); returns the resulting event, never raises a
            GalileoError.
        drop_spills: deletes spill files in the background.
        new_commits: called before each tick; returns CommitsObserved events of this node.
        has_readers: whether all nodes wait for commits; else coordinators alone do.
    """

    def __init__(
        self,
        machine: Continuous,
        members: Membership,
        *,
        mail: PeerMessenger,
        clock: Clock,
        work: Work,
        new_commits: Callable[[], Sequence[ccq.ContinuousEvent]],
        drop_spills: Callable[[Sequence[int]], None],
        has_readers: Callable[[], bool],
    ) -> None:
        self.machine = machine
        self.members = members
        self._mail = mail
        self._clock = clock
        self._work = work
        self._has_readers = has_readers
        self._new_commits = new_commits
        self._drop_spills = drop_spills
        self._events: asyncio.Queue[ccq.ContinuousEvent] = asyncio.Queue()
        self._has_news = False
        self._announce_at = float("-inf")
        self._idle_at = float("-inf")
        self._wake = asyncio.Event()
        self._requests = itertools.count(1)
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self._served: dict[int | None, Origin] = {}
        self._late_s: dict[int, float] = {}
        self._stored: dict[int, tuple[str, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cycles: dict[int, asyncio.Task[None]] = {}
        self._deaths: dict[str, asyncio.Event] = {}

    def feed(self, event: ccq.ContinuousEvent) -> None:
        """Queues an event."""
        self._events.put_nowait(event)
        if not isinstance(event, _ROUTINE):
            self._idle_at = self._clock.monotonic() + IDLE_AFTER_S
            self._wake.set()

    def wake(self) -> None:
        """Has the next tick come soon, as after commits of this node."""
        self._wake.set()

    @property
    def events_waiting(self) -> int:
        return self._events.qsize()

    def record_late(self, ccq_id: str, labels: int) -> None:
        """Counts late labels of a CCQ that is coordinated here; see `ccq.stats`."""
        led = self.machine.coordinated.get(ccq_id)
        if labels and led is not None:
            led.counts.record_late(labels)

    def gossip(self, event: MembershipEvent) -> list[MembershipEffect]:
        """Steps the membership of nodes; feeds deaths and revivals to the machine.

        Returns:
            All effects; the peer messenger carries the others out.
        """
        effects = self.members.step(event, self._clock.monotonic())
        self._on_membership(effects)
        return effects

    async def ask(self, make: Callable[[int], ccq.ContinuousEvent], *, timeout_s: float) -> Answer:
        """Feeds the event of a client's request and returns the effect that answers it.

        Raises:
            TimeoutError: there was no answer in time.
            Overloaded: too many events are queued.
        """
        if self._events.qsize() > EVENTS_WAITING_MAX:
            raise Overloaded("the event queue of this node is full; try again", after_s=1.0)
        request = next(self._requests)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request] = functools.partial(_give, future)
        self._served[request] = outgoing_metadata()
        try:
            self.feed(make(request))
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            del self._waiting[request], self._served[request]
            if not future.done() or future.cancelled():
                self.feed(ccq.FetchAbandoned(request))

    async def until_dead(self, node: str) -> None:
        """Waits until a peer counts as dead."""
        if node not in self.members.dead:
            await self._deaths.setdefault(node, asyncio.Event()).wait()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._consume())
                group.create_task(self._tick())
                group.create_task(self._mail.run())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            self._wake.clear()
            now = self._clock.monotonic()
            self.gossip(membership.MembershipTicked())
            self.announce_commits(self._new_commits(), now)
            self.feed(ccq.Ticked(self._clock.wall()))
            if now >= self._idle_at:
                await self._until_woken(self._pause_s(now, IDLE_TICK_S))
            if self._clock.monotonic() < now + TICK_S:
                due = now + self._pause_s(now, TICK_S)
                await asyncio.sleep(max(0.0, due - self._clock.monotonic()))

    async def _until_woken(self, longest_s: float) -> None:
        timer = asyncio.get_running_loop().call_later(longest_s, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    def _pause_s(self, now: float, longest_s: float) -> float:
        """Seconds until the next tick, which is earlier if anything is due before it."""
        due = [self.members.due_at, self.machine.cycle_due_at]
        soon = [at - now for at in due if at is not None and now < at < now + longest_s]
        return max(min(soon, default=longest_s), TIMER_RESOLUTION_S)

    def announce_commits(self, news: Sequence[ccq.ContinuousEvent], now: float) -> None:
        """Feeds events of this node's own commits, and announces them by extra heartbeats.

        These go to nodes that wait for commits: others can wait for the next regular one.
        """
        for event in news:
            self._has_news = True
            self.feed(event)
        if not self._has_news or now < self._announce_at:
            return
        has_readers = self._has_readers()
        waiting = [
            peer for peer in self.members.alive if has_readers or self._mail.coordinates(peer)
        ]
        intervals = max(1.0, len(waiting) / ANNOUNCED_MAX)
        self._has_news = False
        self._announce_at = now + intervals * ANNOUNCE_INTERVAL_S
        for peer in waiting:
            self._mail.send_heartbeat(peer)

    def _on_membership(self, effects: list[membership.MembershipEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendHeartbeat):
                self._mail.send_heartbeat(effect.to)
            if not isinstance(effect, PeerDied | PeerRevived):
                continue
            log.warning("%s: %s", "lost" if isinstance(effect, PeerDied) else "back", effect.node)
            self.feed(effect)
            if isinstance(effect, PeerDied) and effect.node in self._deaths:
                self._deaths.pop(effect.node).set()

    async def _consume(self) -> None:
        while True:
            event = await self._events.get()
            for effect in self._step(event):
                self._carry_out(effect)
            if spans.is_on():
                self._trace(event)
            if not self._events.empty():  # Let other tasks run while the queue is never empty.
                await asyncio.sleep(0)

    def _step(self, event: ccq.ContinuousEvent) -> ccq.Effects:
        now, due_at = self._clock.monotonic(), self.machine.cycle_due_at
        effects = self.machine.step(event, now)
        if spans.is_on():
            for effect in effects:
                if isinstance(effect, ccq.StartCycle):
                    self._late_s[effect.cycle_id] = max(0.0, now - (due_at or now))
        return effects

    def _carry_out(self, effect: ccq.ContinuousEffect) -> None:
        if isinstance(effect, ccq.Reply):  # First, because there are thousands.
            take = self._waiting.get(effect.request)
            if take is not None:
                take(effect)
        elif isinstance(effect, ccq.Task):
            self._start(effect)
        elif isinstance(effect, ccq.DropSpills):
            self._drop_spills(effect.numbers)
        elif isinstance(effect, ccq.AbandonCycle):
            if effect.cycle_id in self._cycles:
                self._cycles[effect.cycle_id].cancel()
        else:
            assert_never(effect)

    def _start(self, effect: ccq.Task) -> None:
        task = asyncio.get_running_loop().create_task(self._do(effect))
        self._keep(task)
        if isinstance(effect, ccq.StartCycle):
            cycle_id = effect.cycle_id
            self._cycles[cycle_id] = task
            task.add_done_callback(lambda _: self._cycles.pop(cycle_id, None))

    async def _do(self, effect: ccq.Task) -> None:
        """Executes long work as a part of its request; a cycle is a request of its own."""
        if isinstance(effect, ccq.StartCycle):
            await self._run_cycle(effect)
            return
        with (
            continue_request(self._served.get(getattr(effect, "request", None), ())),
            spans.child(type(effect).__name__),
        ):
            self.feed(await self._work(effect))

    async def _run_cycle(self, effect: ccq.StartCycle) -> None:
        late_s = self._late_s.pop(effect.cycle_id, 0.0)
        tick = spans.span("tick", waited_s=late_s, ccqs=len(effect.items))
        with request_id.serving(), tick:
            log.debug("cycle %d of %d CCQs", effect.cycle_id, len(effect.items))
            spans.record("due", parent=spans.current(), took_s=late_s)
            answer = await self._work(effect)
            if spans.is_on():
                self._stored[effect.cycle_id] = (spans.current(), self._clock.monotonic())
            self.feed(answer)

    def _trace(self, event: ccq.ContinuousEvent) -> None:
        """Records spans of the last step."""
        now = self._clock.monotonic()
        if isinstance(event, ccq.CycleFinished | ccq.CycleFailed):
            tick, fed_at = self._stored.pop(event.cycle_id, ("", 0.0))
            failure = event.failure.kind if isinstance(event, ccq.CycleFailed) else ""
            if tick:
                spans.record("store", parent=tick, took_s=now - fed_at, error=failure)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the driver failed", exc_info=task.exception())


def _give(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
