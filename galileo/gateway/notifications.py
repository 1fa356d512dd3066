"""Notifications of a channel as JSON, pages and server-sent events, for one broker.

Each reader asks the nodes itself, with the token of the last item that was sent to it, and gives
one answer of theirs away before it asks for the next: a slow reader holds that answer and no more.
The first call of a request can have much to read, so callers take turns for these calls; a call
that waits for something new has no turn.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncGenerator, Sequence

import numpy as np

from galileo.client.async_client import AsyncClient
from galileo.client.notification_json import document
from galileo.client.results import Notifications
from galileo.gateway.formats import Encoders
from galileo.gateway.hub import FETCH_WITHIN_S, FETCHES_MAX, stopping
from galileo.gateway.updates import Event, frame_of
from galileo.shares import SHARE_HOLDER
from galileo.turns import FairTurns

ANSWER_BYTES = 1 << 20
"""Of executions that are read for a broker at a time; the last one may be larger."""
WAIT_S = 5.0
"""How long a call of a reader of events waits; so often nodes check what the reader may do."""
EVENT = "notifications"
"""The name of the event with the notifications of an execution."""


class Waits:
    """Calls for notifications, some of which wait at the nodes; the end of a gateway ends them."""

    def __init__(self) -> None:
        self._is_stopping = False
        self._timeouts: set[asyncio.Timeout] = set()
        self._turns = FairTurns(FETCHES_MAX, what="fetches")

    async def first(
        self, client: AsyncClient, channel: str, broker: str, *, token: str, wait_s: float
    ) -> list[Notifications]:
        """The first call of a request, which needs a turn; if nothing is new, it waits without one.

        Raises:
            Overloaded: the turn did not come in time.
            GalileoError: as `fetch`.
        """
        async with self._turns.acquire(SHARE_HOLDER.get(), within_s=FETCH_WITHIN_S):
            batches = await self.fetch(client, channel, broker, token=token, wait_s=0.0)
        if not wait_s or not all(map(is_empty, batches)):
            return batches
        token = batches[-1].token
        return await self.fetch(client, channel, broker, token=token, wait_s=wait_s)

    async def fetch(
        self, client: AsyncClient, channel: str, broker: str, *, token: str, wait_s: float
    ) -> list[Notifications]:
        """As `AsyncClient.fetch_notifications`. Raises Unavailable when the gateway stops."""
        if self._is_stopping:
            raise stopping()
        try:
            async with asyncio.timeout(None) as timeout:
                self._timeouts.add(timeout)
                try:
                    return await client.fetch_notifications(
                        channel, broker, token=token, wait=wait_s or None, bytes_max=ANSWER_BYTES
                    )
                finally:
                    self._timeouts.discard(timeout)
        except TimeoutError as error:
            raise stopping() from error

    def stop(self) -> None:
        """Ends all of them."""
        self._is_stopping = True
        now = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            timeout.reschedule(now)


class BrokerReader:
    """Reads the notifications of a broker for one HTTP client.

    Args:
        client: of the reader's principal.
        channel: its name.
        broker: whose notifications.
        token: of the last item that the reader has; "" for none.
        waits: of the gateway.
        encoders: of the gateway.
    """

    def __init__(
        self,
        client: AsyncClient,
        channel: str,
        broker: str,
        *,
        token: str,
        waits: Waits,
        encoders: Encoders,
    ) -> None:
        self._names = client, channel, broker
        self._token = token
        self._waits = waits
        self._encoders = encoders

    async def first(self, wait_s: float = 0.0) -> list[Notifications]:
        """What is new for the reader, at least one item; waits for it for so long."""
        return await self._waits.first(*self._names, token=self._token, wait_s=wait_s)

    async def page(self, *, limit: int, wait_s: float) -> tuple[bytes, str]:
        """The next items as a JSON array, and the token behind them.

        Args:
            limit: the item with which there are as many notifications is the last one.
            wait_s: for something new.
        """
        batches = await self.first(wait_s)
        taken = within_limit(batches, limit)
        items = await self._encoders.run(functools.partial(_array, taken, self._token))
        return items, taken[-1].token

    async def events(
        self, first: list[Notifications], *, heartbeat_s: float
    ) -> AsyncGenerator[Event | None, None]:
        """An event of each item; None after `heartbeat_s` without one.

        Where executions had nothing for the broker for so long, an event without data has the
        token behind them: a reader that comes back begins there.

        Args:
            first: the result of the method `first`.
            heartbeat_s: see above.

        Raises:
            GalileoError: the channel was dropped, the reader may not read it any longer, or the
                gateway stops.
        """
        batches = deque(first)
        del first
        while True:
            while batches:
                event = await self._event(batches.popleft())
                self._token = event.after
                yield event if event.before != event.after else None
                del event  # It is not kept while nothing is new.
            batches += await self._waits.fetch(*self._names, token=self._token, wait_s=heartbeat_s)

    async def _event(self, batch: Notifications) -> Event:
        before, after = self._token, batch.token
        if is_empty(batch):
            return Event(before, after, f"id: {after}\n\n".encode())
        data = await self._encoders.run(functools.partial(item_document, batch, after=before))
        return Event(before, after, frame_of(EVENT, data, token=after))


def is_empty(batch: Notifications) -> bool:
    """Whether an item has nothing but its token."""
    return not batch.execution and not batch.gone


def within_limit(batches: Sequence[Notifications], limit: int) -> list[Notifications]:
    """The first items, until they have so many notifications; at least one."""
    counts = np.cumsum([len(batch) for batch in batches])
    return list(batches[: int(np.searchsorted(counts, limit)) + 1])


def _array(batches: Sequence[Notifications], token: str) -> bytes:
    """Items as a JSON array.

    Args:
        batches: the items.
        token: before the first one.
    """
    befores = [token, *(batch.token for batch in batches)]
    return b"[%s]" % b",\n".join(
        item_document(batch, after=before)
        for batch, before in zip(batches, befores, strict=False)
        if not is_empty(batch)
    )


def item_document(batch: Notifications, *, after: str) -> bytes:
    """An item as JSON, with the tokens before and after it."""
    return document(batch, after=after, token=batch.token)
