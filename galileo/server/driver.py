"""The one driver that runs the machines in production: events in order, effects in order.

Every event passes one queue and one consumer, so a machine never sees two at once, and the
effects of a step are carried out before the next step begins. A durable `SaveRecord` is on
disk before any later effect; what takes long (a cycle, a rescan, packing) runs as a task of its
own and comes back as an event.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeAlias

from galileo.ccq import elsewhere
from galileo.ccq import events as ccq
from galileo.ccq.machine import Continuous
from galileo.ccq.model import Record
from galileo.clock import Clock
from galileo.dht import membership
from galileo.dht.membership import Membership, PeerDied, PeerRevived, SendHeartbeat
from galileo.errors import GalileoError, Overloaded
from galileo.server.mail import TAGGED, MailRoom
from galileo.storage.store import Store

TICK_S = 0.05
NEWS_INTERVAL_S = 0.25
"""Peers are told of new commits at once, and no more often than this."""
EVENTS_WAITING_MAX = 50_000
RECORD_KIND = "ccq"

Answer: TypeAlias = Any
Work: TypeAlias = Callable[[Any], Coroutine[Any, Any, ccq.ContinuousEvent]]

log = logging.getLogger(__name__)

_Long: TypeAlias = (
    ccq.StartCycle
    | ccq.Backfill
    | ccq.ConfirmSequences
    | ccq.GatherPacks
    | elsewhere.SpillPacks
    | elsewhere.LoadPacks
    | elsewhere.AskHolder
)
_ANSWERS = (
    ccq.AnswerSubmit
    | ccq.RefuseSubmit
    | ccq.AnswerFetch
    | ccq.RefuseFetch
    | ccq.RedirectFetch
    | ccq.AnswerCancel
    | ccq.RefuseCancel
    | elsewhere.AnswerHeld
    | elsewhere.RefuseHeld
)


class Driver:
    """Feeds the machines of one node and does what they say.

    Args:
        machine: the node's continuous queries.
        members: its failure detector.
        store: keeps the records.
        clock: both clocks.
        work: carries out what takes long (`_Long`); returns the event that answers, and never
            raises a GalileoError.
        drop_spills: deletes spill files, soon.
        own_news: called before each tick; the SequencesSeen of this node's own commits.
    """

    def __init__(
        self,
        machine: Continuous,
        members: Membership,
        *,
        store: Store,
        clock: Clock,
        work: Work,
        own_news: Callable[[], list[ccq.ContinuousEvent]],
        drop_spills: Callable[[Sequence[int]], None],
    ) -> None:
        self.machine = machine
        self.members = members
        self.mail: MailRoom | None = None
        self._store = store
        self._clock = clock
        self._work = work
        self._own_news = own_news
        self._drop_spills = drop_spills
        self._events: asyncio.Queue[ccq.ContinuousEvent] = asyncio.Queue()
        self._has_news = False
        self._told_at = float("-inf")
        self._requests = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._records: Executor = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._tasks: set[asyncio.Task[None]] = set()
        self._cycles: dict[int, asyncio.Task[None]] = {}
        self._deaths: dict[str, asyncio.Event] = {}

    def feed(self, event: ccq.ContinuousEvent) -> None:
        """Takes an event; it is stepped in its turn."""
        self._events.put_nowait(event)

    def heartbeat_arrived(self, node: str, epoch: int) -> None:
        event = membership.HeartbeatArrived(node, epoch)
        self._on_membership(self.members.step(event, self._clock.monotonic()))

    async def ask(self, make: Callable[[int], ccq.ContinuousEvent], *, timeout_s: float) -> Answer:
        """Feeds a client's request and returns the effect that answers it.

        Raises:
            TimeoutError: no answer came in time.
            Overloaded: too many events wait.
        """
        if self._events.qsize() > EVENTS_WAITING_MAX:
            raise Overloaded("this node has too much to do; try again", after_s=1.0)
        request = next(self._requests)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        try:
            self.feed(make(request))
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            del self._waiting[request]
            if not future.done() or future.cancelled():
                self.feed(ccq.FetchAbandoned(request))

    async def until_dead(self, node: str) -> None:
        """Returns when a peer counts as dead; at once where it does so already."""
        if node not in self.members.dead:
            await self._deaths.setdefault(node, asyncio.Event()).wait()

    async def restore(self) -> None:
        """Feeds the records of earlier lives; comes before anything that can feed an event."""
        loaded = await asyncio.to_thread(self._store.load_records, RECORD_KIND)
        records = tuple(TAGGED.decode(data) for _, data in sorted(loaded.items()))
        self.feed(ccq.Restored(records, self._clock.wall()))

    async def run(self) -> None:
        """Runs until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._consume())
                group.create_task(self._tick())
                if self.mail is not None:
                    group.create_task(self.mail.run())
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._records.shutdown(wait=True)

    async def _tick(self) -> None:
        while True:
            now = self._clock.monotonic()
            self._on_membership(self.members.step(membership.Ticked(), now))
            self.hear_own(self._own_news(), now)
            self.feed(ccq.Ticked(self._clock.wall()))
            await asyncio.sleep(TICK_S)

    def hear_own(self, news: Sequence[ccq.ContinuousEvent], now: float) -> None:
        """Feeds the news of this node's own commits, and tells the peers that there are some.

        They get a heartbeat beside the regular ones, for the commit sequences that it carries.
        """
        for event in news:
            self._has_news = True
            self.feed(event)
        if not self._has_news or now < self._told_at + NEWS_INTERVAL_S or self.mail is None:
            return
        self._has_news, self._told_at = False, now
        for peer in self.members.alive:
            self.mail.send_heartbeat(peer)

    def _on_membership(self, effects: list[membership.MembershipEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendHeartbeat):
                if self.mail is not None:
                    self.mail.send_heartbeat(effect.to)
                continue
            log.warning("%s: %s", "lost" if isinstance(effect, PeerDied) else "back", effect.node)
            if isinstance(effect, PeerDied | PeerRevived):
                self.feed(effect)
            if isinstance(effect, PeerDied) and effect.node in self._deaths:
                self._deaths.pop(effect.node).set()

    async def _consume(self) -> None:
        while True:
            event = await self._events.get()
            for effect in self.machine.step(event, self._clock.monotonic()):
                await self._carry_out(effect)
            if not self._events.empty():  # One that never is would not let anybody else run.
                await asyncio.sleep(0)

    async def _carry_out(self, effect: ccq.ContinuousEffect) -> None:
        if isinstance(effect, ccq.SaveRecord):
            await self._save(effect.record, durable=effect.durable)
        elif isinstance(effect, ccq.PurgeRecord):
            self._records.submit(self._store.delete_record, RECORD_KIND, effect.ccq_id)
        elif isinstance(effect, ccq.Send):
            if self.mail is not None:
                self.mail.send(effect.to, effect.message)
        elif isinstance(effect, _Long):
            self._start(effect)
        elif isinstance(effect, elsewhere.DropSpills):
            self._drop_spills(effect.numbers)
        elif isinstance(effect, ccq.AbandonCycle):
            if effect.cycle_id in self._cycles:
                self._cycles[effect.cycle_id].cancel()
        elif isinstance(effect, _ANSWERS):
            future = self._waiting.get(effect.request)
            if future is not None and not future.done():
                future.set_result(effect)

    async def _save(self, record: Record, *, durable: bool) -> None:
        """Records are written in order by one thread; a durable one is waited for."""
        written: Awaitable[None] = asyncio.get_running_loop().run_in_executor(
            self._records,
            self._store.save_record,
            RECORD_KIND,
            record.ccq.id,
            TAGGED.encode(record),
        )
        if durable:
            await written
        else:
            self._keep(asyncio.ensure_future(_logged(written)))

    def _start(self, effect: _Long) -> None:
        task = asyncio.get_running_loop().create_task(self._do(effect))
        self._keep(task)
        if isinstance(effect, ccq.StartCycle):
            cycle_id = effect.cycle_id
            self._cycles[cycle_id] = task
            task.add_done_callback(lambda _: self._cycles.pop(cycle_id, None))

    async def _do(self, effect: _Long) -> None:
        self.feed(await self._work(effect))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the driver failed", exc_info=task.exception())


async def _logged(written: Awaitable[None]) -> None:
    try:
        await written
    except GalileoError as error:
        log.warning("a record was not written: %s", error)
