"""One watch of a continuous query for all of its readers at a gateway.

A *hub* watches a query and makes each update an event once. An event has the token before and after
it. A reader has the token of the last event that was sent to it, and nothing else. Its next step
(`next_step`) is a function of that token and of the hub's newest events:

- an event that begins at its token is its next one;
- a reader at the hub's token waits;
- a reader behind all events fetches what lies between its token and the hub's, itself;
- a reader ahead of the hub, which it can be after a fetch, waits until the hub has passed it.

So a reader never gets a label twice or misses one, whenever it joins, however slow it is, and
wherever it was before: each step begins exactly where the last one ended. The hub has no queue for
readers; one that was slower than the events that are kept fetches.

A fetch is cut at the hub's token, so that the reader has that token and takes events from there on.
The token of a query with windows has more than a position, and where labels are withdrawn, what
counts at a cursor is no part of what counts at a later one. So readers are sent all that they
fetched of these, and fetch again until they are at the hub's token.

An update of a keyed dataset that is too large for an event cannot be asked for later, because what
it has may be replaced by then. The reader's stream ends with a link. The reader takes what counts
now, with its token, and opens another stream there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from galileo.client.results import Update
from galileo.errors import (
    GalileoError,
    HistoryChanged,
    InputError,
    NotPermitted,
    Overloaded,
    Unavailable,
    UnknownCcq,
)
from galileo.gateway.shared_calls import SharedCalls
from galileo.gateway.updates import (
    EVENT_LABELS_MAX,
    Event,
    cut,
    event_of,
    is_divisible,
    position,
    withdraws,
)
from galileo.shares import SHARE_HOLDER
from galileo.turns import FairTurns

KEPT_BYTES_MAX = 4 << 20
"""Total size of the events that a hub keeps; the newest may be larger."""
ALL_KEPT_BYTES_MAX = 64 << 20
"""Of all hubs of a gateway, which have equal shares."""
HUBS_MAX = 1_024
"""Queries that a gateway watches at a time."""
FETCHES_MAX = 4
"""Fetches of readers of a gateway at a time."""
FETCH_WITHIN_S = 60.0
"""Longest wait of a fetch for its turn."""
CHECK_INTERVAL_S = 60.0
"""How often a hub checks whether its readers may still read."""

log = logging.getLogger(__name__)


class QueryClient(Protocol):
    """What a hub and its readers need of `AsyncClient`."""

    async def fetch(self, ccq: str, *, token: str = "", labels_max: int = 0) -> Update: ...

    def watch(self, ccq: str, *, token: str = "", labels_max: int = 0) -> AsyncIterator[Update]: ...


@dataclass(frozen=True, slots=True)
class SharedUpdate:
    """The answer to a fetch of a reader, which others that asked the same share.

    Attributes:
        update: what is new after the reader's token.
        event: of the update; None if it leads nowhere.
    """

    update: Update
    event: Event | None


class ReaderStep(Enum):
    """What a reader without a next event does."""

    WAIT = "wait"
    FETCH = "fetch"


class EventLog:
    """The newest events of a query, each beginning where the last ended.

    Args:
        ccq_id: of the query.
        token: at which the first event begins.
        bytes_max: total size of the events; the newest may be larger.
    """

    def __init__(self, ccq_id: str, token: str, *, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.token = token
        self._ccq_id = ccq_id
        self._position = position(token, ccq_id)
        self._events: OrderedDict[str, Event] = OrderedDict()
        self._bytes_max = bytes_max
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def append(self, event: Event) -> None:
        """Appends an event that begins at `token`, and drops the oldest ones over the bound."""
        assert event.before == self.token, "events are a chain"
        if event.after == event.before:
            return
        self._events[event.before] = event
        self._bytes += len(event.frame)
        self.token, self._position = event.after, position(event.after, self._ccq_id)
        self.limit(self._bytes_max)

    def limit(self, bytes_max: int) -> None:
        """Changes the bound, and drops the oldest events over it."""
        self._bytes_max = bytes_max
        while self._bytes > bytes_max and len(self._events) > 1:
            _, dropped = self._events.popitem(last=False)
            self._bytes -= len(dropped.frame)

    def next_step(self, token: str) -> Event | ReaderStep:
        """The next step of a reader with a token."""
        event = self._events.get(token)
        if event is not None:
            return event
        is_behind = token != self.token and self._position.covers(position(token, self._ccq_id))
        return ReaderStep.FETCH if is_behind else ReaderStep.WAIT


class Hub:
    """The watch of one query; belongs to one event loop.

    Args:
        ccq_id: of the query.
        client: of a reader that may read it.
        token: where the watch begins.
        check_interval_s: see `CHECK_INTERVAL_S`.
    """

    def __init__(
        self,
        ccq_id: str,
        *,
        client: QueryClient,
        token: str,
        check_interval_s: float = CHECK_INTERVAL_S,
    ) -> None:
        self.log = EventLog(ccq_id, token)
        self.readers: Counter[QueryClient] = Counter()
        self.failure: GalileoError | None = None
        self._ccq_id = ccq_id
        self._check_interval_s = check_interval_s
        self._refusals: dict[QueryClient, GalileoError] = {}
        self._changed = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._follow(client)),
            asyncio.create_task(self._check_readers()),
        ]

    async def close(self) -> None:
        """Ends the watch."""
        self.fail(stopping())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self, client: QueryClient) -> None:
        """Raises the error that ends the streams of a client's readers, if there is one."""
        for error in (self._refusals.get(client), self.failure):
            if error is not None:
                raise error

    async def changed(self, timeout_s: float) -> bool:
        """Waits for an event or a failure. Returns False after the timeout."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def fail(self, error: GalileoError) -> None:
        """Ends the streams of all readers."""
        self.failure = self.failure or error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _follow(self, client: QueryClient) -> None:
        """Makes events of updates, until the query ends or the client may read it no longer."""
        token = self.log.token
        try:
            watched = client.watch(self._ccq_id, token=token, labels_max=EVENT_LABELS_MAX)
            async with aclosing(watched) as updates:  # type: ignore[type-var]
                async for update in updates:
                    self.log.append(event_of(self.log.token, update, ccq_id=self._ccq_id))
                    self._wake()
            self.fail(Unavailable("the watch ended", after_s=0.1))
        except HistoryChanged as error:  # Each reader comes back with a token of its own.
            log.info("the watch of %s begins again: %s", self._ccq_id, error.message)
            self.fail(Unavailable("the watch of the query ended; come back", after_s=0.1))
        except InputError as error:
            # It may be this client's alone; the other readers find out when they come back.
            self._refusals[client] = error
            self.fail(Unavailable("the watch of the query ended; come back", after_s=0.1))
        except GalileoError as error:
            self.fail(error)
        except Exception:
            log.exception("the watch of %s failed", self._ccq_id)
            self.fail(Unavailable("the watch of the query failed; try again", after_s=1.0))

    async def _check_readers(self) -> None:
        """Checks again and again whether the clients of readers may read the query."""
        while True:
            await asyncio.sleep(self._check_interval_s)
            for client in list(self.readers):
                try:
                    await client.fetch(self._ccq_id, token=self.log.token, labels_max=1)
                except (NotPermitted, UnknownCcq) as error:
                    self._refusals[client] = error
                    self._wake()
                except GalileoError as error:  # Of the watch too, if it concerns all.
                    log.info("cannot check readers of %s: %s", self._ccq_id, error.message)


class Hubs:
    """The hubs of a gateway; belongs to one event loop.

    Args:
        check_interval_s: see `CHECK_INTERVAL_S`.
        kept_bytes_max: see `KEPT_BYTES_MAX`.

    Attributes:
        is_stopping: whether the streams of all readers end.
    """

    def __init__(
        self,
        *,
        check_interval_s: float = CHECK_INTERVAL_S,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self.is_stopping = False
        self._fetches = FairTurns(FETCHES_MAX, what="fetches")
        self._fetching = SharedCalls[tuple[QueryClient, str, str, str], SharedUpdate]()
        self._check_interval_s = check_interval_s
        self._kept_bytes_max = kept_bytes_max
        self._hubs: dict[str, Hub] = {}

    def __len__(self) -> int:
        return len(self._hubs)

    @property
    def readers(self) -> int:
        """The number of readers."""
        return sum(hub.readers.total() for hub in self._hubs.values())

    @contextlib.asynccontextmanager
    async def joined(self, ccq_id: str, *, client: QueryClient, token: str) -> AsyncIterator[Hub]:
        """The hub of a query, for the block; the first reader starts it, the last ends it.

        Args:
            ccq_id: of the query.
            client: of the reader, which may read the query.
            token: of the reader.
        """
        hub = self._hubs.get(ccq_id)
        if hub is None or hub.failure is not None:
            hub = self._start(ccq_id, client=client, token=token)
        hub.readers[client] += 1
        try:
            yield hub
        finally:
            hub.readers[client] -= 1
            if not hub.readers[client]:
                del hub.readers[client]
            if not hub.readers:
                if self._hubs.get(ccq_id) is hub:
                    del self._hubs[ccq_id]
                    self._share_memory()
                await hub.close()

    async def fetch(
        self, ccq_id: str, *, client: QueryClient, token: str, until: str = ""
    ) -> SharedUpdate:
        """What is new after a token; one fetch for all of a client's readers that ask at a time.

        When a gateway ends, its readers come to another one together, with the same token.

        Args:
            ccq_id: of the query.
            client: of the readers.
            token: of the readers.
            until: a token that the answer has to reach; a fetch that began before it was known does
                not count.

        Raises:
            GalileoError: as `AsyncClient.fetch`.
        """
        return await self._fetching.call(
            (client, ccq_id, token, until),
            lambda: self._fetch(ccq_id, client=client, token=token),
        )

    async def _fetch(self, ccq_id: str, *, client: QueryClient, token: str) -> SharedUpdate:
        async with self._fetches.acquire(SHARE_HOLDER.get(), within_s=FETCH_WITHIN_S):
            update = await client.fetch(ccq_id, token=token, labels_max=EVENT_LABELS_MAX)
        is_news = update.token != token
        return SharedUpdate(update, event_of(token, update, ccq_id=ccq_id) if is_news else None)

    def _start(self, ccq_id: str, *, client: QueryClient, token: str) -> Hub:
        if self.is_stopping:
            raise stopping()
        if ccq_id not in self._hubs and len(self._hubs) >= HUBS_MAX:
            raise Overloaded(
                f"expected readers of at most {HUBS_MAX:,} continuous queries at a gateway; read "
                "at another one",
                bound=HUBS_MAX,
            )
        interval_s = self._check_interval_s
        hub = Hub(ccq_id, client=client, token=token, check_interval_s=interval_s)
        self._hubs[ccq_id] = hub
        self._share_memory()
        return hub

    def _share_memory(self) -> None:
        share = min(self._kept_bytes_max, ALL_KEPT_BYTES_MAX // max(1, len(self._hubs)))
        for hub in self._hubs.values():
            hub.log.limit(share)

    def stop(self) -> None:
        """Ends the streams of all readers, which come back at another gateway."""
        self.is_stopping = True
        for hub in self._hubs.values():
            hub.fail(stopping())


class QueryReader:
    """Reads a query for one HTTP client.

    Args:
        hubs: of the gateway.
        client: of the reader's principal.
        ccq_id: of the query.
        token: of the last event that the reader has; "" for none.

    Attributes:
        ccq_id: of the query.
        token: of the last event that was given.
    """

    def __init__(self, hubs: Hubs, client: QueryClient, ccq_id: str, *, token: str) -> None:
        self.ccq_id = ccq_id
        self.token = token
        self._hubs = hubs
        self._client = client

    async def fetch(self, until: str = "") -> SharedUpdate:
        """What is new for the reader; fails if it may not read the query. See `Hubs.fetch`."""
        return await self._hubs.fetch(
            self.ccq_id, client=self._client, token=self.token, until=until
        )

    async def events(
        self, first: SharedUpdate, *, heartbeat_s: float
    ) -> AsyncGenerator[Event | None, None]:
        """All events, each once, up to one that `is_last`; None after `heartbeat_s` without one.

        Args:
            first: the result of `fetch`.
            heartbeat_s: see above.

        Raises:
            GalileoError: the query has ended, the reader may not read it any longer, or the
                gateway stops.
        """
        answers = [first]  # None is kept while its event is sent, nor for as long as the reader.
        del first
        while answers:
            event, has_more = answers[0].event, answers.pop().update.more
            if event is not None:
                self.token = event.before if event.is_last else event.after
                yield event
                if event.is_last:
                    return
                if has_more:
                    answers.append(await self.fetch())
        del event
        joined = self._hubs.joined(self.ccq_id, client=self._client, token=self.token)
        async with joined as hub:
            async for event_or_none in self._from_hub(hub, heartbeat_s):
                if event_or_none is not None and not event_or_none.is_last:
                    self.token = event_or_none.after
                yield event_or_none
                if event_or_none is not None and event_or_none.is_last:
                    return

    async def _from_hub(self, hub: Hub, heartbeat_s: float) -> AsyncGenerator[Event | None, None]:
        fetched_until = ""  # Another fetch is worthwhile once the hub has moved.
        while True:
            hub.check(self._client)
            step = hub.log.next_step(self.token)
            if isinstance(step, Event):
                yield step
            elif step is ReaderStep.FETCH and hub.log.token != fetched_until:
                until = hub.log.token
                event, is_complete = await self._between(until)
                fetched_until = until if is_complete else ""
                if event is not None:
                    yield event
            elif not await hub.changed(heartbeat_s):
                fetched_until = ""  # A partition that was missing may be back.
                yield None

    async def _between(self, until: str) -> tuple[Event | None, bool]:
        """An event of what follows the reader's token, and whether nothing more is there now."""
        fetched = await self.fetch(until)
        event, has_more = fetched.event, fetched.update.more
        ends = (self.token, fetched.update.token)
        if not withdraws(fetched.update) and all(is_divisible(t, self.ccq_id) for t in ends):
            update = cut(fetched.update, until, ccq_id=self.ccq_id)
            has_moved = update.token != self.token
            event = event_of(self.token, update, ccq_id=self.ccq_id) if has_moved else None
        return event, not (has_more and event is not None)


def stopping() -> Unavailable:
    """The error of readers of a gateway that stops."""
    return Unavailable("the gateway stops; continue at another one", after_s=0.1)
