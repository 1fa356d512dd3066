"""Pushes the notifications of one channel to one broker's endpoint.

At least once, in the order of `follow`, with one chunk under way. What is delivered is a function
of the log of executions, and so are the keys of chunks; a chunk that is delivered again, by
whichever worker, has the key that it had before.

The broker's row in the table of positions says which worker pushes, and behind which token. Each
change of the row is a compare-and-set (`galileo.client.numbered_rows`), so a worker that another
one has replaced can push what it has at hand, and cannot move the position. The position is moved
after the endpoint has accepted what lies before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from galileo.client.async_client import AsyncClient
from galileo.client.notification_json import features
from galileo.client.numbered_rows import REVISION, read_row, replace_row
from galileo.client.results import Notifications
from galileo.clock import Clock
from galileo.errors import BatchConflict, GalileoError, UnknownDataset
from galileo.model.broker import Broker, Sink
from galileo.model.channel import BROKER, FAILURE, TOKEN, WORKER, Channel
from galileo.worker.endpoints import (
    Chunk,
    DeliveryError,
    DisabledError,
    Endpoint,
    RefusedError,
)
from galileo.worker.metrics import ACCEPTED, DEAD, FAILED, WorkerMetrics

ANSWER_BYTES = 4 << 20
"""Of executions that are read for a broker at a time; the last one may be larger."""
WAIT_S = 5.0
"""How long a call for notifications waits for some."""
ACKNOWLEDGE_S = 1.0
"""While there is more to deliver, the position is moved so often."""
IDLE_ACKNOWLEDGE_S = 60.0
"""A token that advances without notifications is stored so often."""
RETRY_MIN_S, RETRY_MAX_S = 0.5, 300.0
"""Longest waits after the first failure of an endpoint, and after many."""
REFUSED_MAX = 100
"""Notifications that an endpoint refuses one after the other before the broker is paused."""
CLAIM_S = 1.0
"""Seconds between two looks at whether a pair is free."""
TAKE_OVER_S = 20.0
"""How long a living worker has to give up a pair that is not its own any more.

Its release may be lost, and it may not know yet. The compare-and-set stops it at its next one.
"""
RELEASE_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class TakenError(Exception):
    """Another worker pushes for the broker."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A channel and a broker with a sink."""

    channel: Channel
    broker: Broker

    @property
    def sink(self) -> Sink:
        assert self.broker.sink is not None, "brokers without a sink are not pushed to"
        return self.broker.sink

    @property
    def name(self) -> str:
        return f"{self.channel.name}/{self.broker.name}"


class Delivery:
    """Pushes for one pair until it is cancelled.

    Args:
        client: of the cluster.
        pair: the channel and the broker.
        worker: the name of this worker.
        is_alive: whether a worker with a name gives signs of life.
        open_endpoint: opens the endpoint.
        metrics: of the worker.
        clock: of the worker.
        random_state: chooses how long to wait before the next attempt.
    """

    def __init__(
        self,
        client: AsyncClient,
        pair: Pair,
        *,
        worker: str,
        is_alive: Callable[[str], bool],
        open_endpoint: Callable[[Sink], Awaitable[Endpoint]],
        metrics: WorkerMetrics,
        clock: Clock,
        random_state: random.Random,
    ) -> None:
        self._client = client
        self._pair = pair
        self._worker = worker
        self._is_alive = is_alive
        self._open_endpoint = open_endpoint
        self._metrics = metrics
        self._clock = clock
        self._random = random_state
        self._positions = pair.channel.positions
        self._dead_letters = pair.channel.dead_letters
        self._row: dict[str, Any] = {}
        self._may_hold = False  # A change that was interrupted may be stored.
        self._token = ""
        self._name = pair.name
        self._refused = 0
        self._holder = "", 0.0

    async def run(self) -> None:
        """Pushes until it is cancelled, or the broker is paused or its channel dropped."""
        try:
            while True:
                try:
                    await self._push()
                except TakenError:
                    await asyncio.sleep(CLAIM_S)
                except BatchConflict:
                    log.info("%s: the position was moved", self._name)
                except DisabledError as error:
                    await self._pause(error.reason)
                    return
                except UnknownDataset:
                    return
                except GalileoError as error:
                    log.warning("%s: %s", self._name, error)
                    await asyncio.sleep(CLAIM_S)
        finally:
            self._metrics.end(self._pair.channel.name, self._pair.broker.name)
            await self._release()

    async def _push(self) -> None:
        """Takes the pair over, and pushes.

        Raises:
            TakenError, BatchConflict: another worker has it, or someone has moved the position.
            DisabledError: the endpoint accepts nothing until someone changes something.
            GalileoError: the cluster does not answer.
        """
        await self._claim()
        endpoint = await self._opened()
        try:
            await self._follow(endpoint)
        finally:
            await endpoint.close()

    async def _claim(self) -> None:
        row = await read_row(self._client, self._positions, self._pair.broker.name)
        holder = row.get(WORKER) or ""
        if holder not in ("", self._worker) and self._is_alive(holder):
            if holder != self._holder[0]:
                self._holder = holder, self._now()
            if self._now() - self._holder[1] < TAKE_OVER_S:
                self._may_hold = False
                raise TakenError
        self._row, self._token, self._may_hold = row, row.get(TOKEN) or "", True
        if holder != self._worker:
            await self._store(worker=self._worker)
            log.info("%s: pushing", self._name)

    async def _opened(self) -> Endpoint:
        attempt = 0
        while True:
            try:
                return await self._open_endpoint(self._pair.sink)
            except DisabledError:
                raise
            except DeliveryError as error:
                await self._wait_after(error, attempt)
                attempt += 1
            except GalileoError as error:  # Of the secret, the address or a missing library.
                raise DisabledError(error.message) from error

    async def _follow(self, endpoint: Endpoint) -> None:
        channel, broker = self._pair.channel.name, self._pair.broker.name
        moved_at = self._now()
        while True:
            batches = await self._client.fetch_notifications(
                channel, broker, token=self._token, wait=WAIT_S, bytes_max=ANSWER_BYTES
            )
            delivered = False
            for batch in batches:
                if batch.gone:
                    log.warning("%s: results were deleted before they were delivered", self._name)
                if len(batch):
                    await self._deliver_execution(endpoint, batch)
                    delivered = True
                self._token = batch.token
                if delivered and self._now() - moved_at > ACKNOWLEDGE_S:
                    await self._store(token=self._token, failure="")
                    moved_at, delivered = self._now(), False
            if not any(map(len, batches)):
                await self._check_position()
            idle_s = self._now() - moved_at
            if delivered or (idle_s > IDLE_ACKNOWLEDGE_S and self._token != self._row.get(TOKEN)):
                await self._store(token=self._token, failure="")
                moved_at = self._now()

    async def _deliver_execution(self, endpoint: Endpoint, batch: Notifications) -> None:
        size = endpoint.pairs_max or len(batch)
        for start in range(0, len(batch), size):
            await self._deliver(endpoint, batch, start, min(start + size, len(batch)))

    async def _deliver(
        self, endpoint: Endpoint, batch: Notifications, start: int, stop: int
    ) -> None:
        """Delivers the notifications from `start` to `stop` of an execution.

        What is refused is halved until one notification is left, which becomes a dead letter.
        """
        chunk = self._chunk(batch, start, stop)
        attempt = 0
        while True:
            begun = self._now()
            try:
                await endpoint.deliver(chunk)
            except DisabledError:
                raise
            except RefusedError as error:
                if stop - start == 1:
                    await self._bury(chunk, error.reason)
                    return
                middle = (start + stop) // 2
                await self._deliver(endpoint, batch, start, middle)
                await self._deliver(endpoint, batch, middle, stop)
                return
            except DeliveryError as error:
                await self._wait_after(error, attempt)
                attempt += 1
            else:
                self._refused = 0
                self._count(ACCEPTED, stop - start, took_s=self._now() - begun)
                return

    def _chunk(self, batch: Notifications, start: int, stop: int) -> Chunk:
        """The notifications from `start` to `stop` of an execution."""
        channel, broker = self._pair.channel, self._pair.broker.name
        is_whole = start == 0 and stop == len(batch)
        return Chunk(
            channel=channel.name,
            dataset=channel.dataset,
            broker=broker,
            stream=f"{channel.key}/{broker}/{batch.partition}",
            offset=start,
            notifications=batch if is_whole else batch.slice(start, stop),
        )

    async def _wait_after(self, error: DeliveryError, attempt: int) -> None:
        """Waits before the next attempt, and stores the first failure, which `deliveries` shows."""
        self._count(FAILED, 0)
        if not self._row.get(FAILURE):
            log.warning("%s: %s", self._name, error.reason)
            await self._store(token=self._token, failure=error.reason)
        bound_s = min(RETRY_MAX_S, RETRY_MIN_S * 2 ** min(attempt, 20))
        await asyncio.sleep(max(error.after_s, self._random.uniform(0.0, bound_s)))

    async def _bury(self, chunk: Chunk, reason: str) -> None:
        """Stores a notification that the endpoint refuses as a dead letter.

        Raises:
            DisabledError: it has refused many one after the other.
        """
        self._refused += 1
        if self._refused > REFUSED_MAX:
            raise DisabledError(f"the endpoint has refused {REFUSED_MAX} notifications: {reason}")
        letter = {
            "id": chunk.key,
            BROKER: chunk.broker,
            "subscription": chunk.notifications.subscriptions()[0].as_py(),
            "reason": reason,
            "at": dt.datetime.fromtimestamp(self._clock.wall(), dt.UTC),
            "notification": features(chunk.notifications)[0].as_py(),
        }
        rows = pa.Table.from_pylist([letter], schema=self._dead_letters.arrow_schema)
        await self._client.upsert(self._dead_letters.name, rows)
        self._count(DEAD, 1)
        log.warning("%s: %s is a dead letter: %s", self._name, chunk.key, reason)

    async def _store(self, **changes: Any) -> None:
        """Changes the row of the broker.

        Raises:
            BatchConflict: someone else has changed it.
        """
        self._row = await replace_row(self._client, self._positions, self._row, **changes)

    async def _check_position(self) -> None:
        """Raises BatchConflict if someone else has changed the row, say to deliver once more."""
        row = await read_row(self._client, self._positions, self._pair.broker.name)
        if row[REVISION] != self._row[REVISION]:
            raise BatchConflict("the position was moved")

    async def _pause(self, reason: str) -> None:
        log.warning("broker %s is paused: %s", self._pair.broker.name, reason)
        await self._client.pause_broker(self._pair.broker.name, reason)

    async def _release(self) -> None:
        """Lets another worker take the pair over at once, behind what is delivered."""
        if not self._may_hold:
            return
        with contextlib.suppress(GalileoError, TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                try:
                    await self._store(token=self._token, worker="")
                except BatchConflict:  # Perhaps with the change that the end has interrupted.
                    self._row = await read_row(self._client, self._positions, self._row[BROKER])
                    if self._row.get(WORKER) == self._worker:
                        await self._store(worker="")

    def _now(self) -> float:
        return self._clock.monotonic()

    def _count(self, outcome: str, notifications: int, *, took_s: float | None = None) -> None:
        self._metrics.count(
            self._pair.channel.name,
            self._pair.broker.name,
            outcome,
            notifications=notifications,
            took_s=took_s,
        )
