"""Pushes the notifications of one channel to one broker's endpoint.

At least once, in the order of `follow`, with one chunk under way. What is delivered is a function
of the log of executions, and so are the chunks and their keys; a chunk that is delivered again, by
whichever worker, has the key that it had before.

The broker's row in the table of positions says which worker pushes, behind which token, and how
many notifications of executions behind the token are delivered, in whole chunks. Each change of the
row is a conditional write (`galileo.client.row_changes`), and no attempt begins unless the row was
unchanged `CHECK_S` ago. So a worker that another one has replaced, or that was paused, sends
nothing that is old, and cannot move the position. The position is moved after the endpoint has
accepted what lies before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import json
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from galileo.client.async_client import AsyncClient
from galileo.client.ingestion import in_thread
from galileo.client.notification_json import features
from galileo.client.results import Notifications
from galileo.client.row_changes import KnownRow, read_row, replace_row
from galileo.clock import Clock
from galileo.cursor import EMPTY_CURSOR
from galileo.errors import (
    Conflict,
    GalileoError,
    HistoryChanged,
    InvalidObservations,
    UnknownDataset,
)
from galileo.model.broker import BROKERS, Broker, Sink
from galileo.model.channel import BROKER, Channel
from galileo.model.reader import (
    ACKNOWLEDGED,
    FAILED_AT,
    FAILURE,
    GONE,
    POSITIONS,
    PROGRESS,
    RETRY_AT,
    TOKEN,
    WORKER,
    reader_of,
)
from galileo.model.times import MICROS
from galileo.wire.reader_rows import progress_of
from galileo.worker.endpoints import (
    Chunk,
    DeliveryError,
    DisabledError,
    Endpoint,
    RefusedError,
)
from galileo.worker.metrics import ACCEPTED, DEAD, FAILED, WorkerMetrics

ANSWER_BYTES = 4 << 20
"""Bytes of executions that are read for a broker at a time; the last one may be larger."""
WAIT_S = 5.0
"""How long a call for notifications waits for some."""
ACKNOWLEDGE_S = 1.0
"""While there is more to deliver, the position is moved so often."""
IDLE_ACKNOWLEDGE_S = 60.0
"""A token that advances without notifications is stored so often."""
RETRY_MIN_S, RETRY_MAX_S = 0.5, 300.0
"""Longest waits after the first failure of an endpoint, and after many."""
RETRY_AFTER_MAX_S = 3_600.0
"""The longest wait that an endpoint can ask for."""
CHECK_S = 2.0
"""The row of the broker is read again before an attempt if it was read longer ago."""
WAIT_CHECK_S = 5.0
"""While an attempt waits, the row is read so often: a change ends the wait."""
REFUSED_MAX = 100
"""Notifications that an endpoint refuses one after the other before the broker is paused."""
CLAIM_S = 1.0
"""Seconds between two looks at whether a pair is free."""
TAKE_OVER_S = 20.0
"""How long a living worker has to give up a pair that is not its own any more.

Its release may be lost, and it may not know yet. Its next conditional write stops it.
"""
RELEASE_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class TakenError(Exception):
    """Another worker pushes for the broker."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A channel and a broker with a sink; `revision` grows with each change of the broker."""

    channel: Channel
    broker: Broker
    revision: int = 0

    @property
    def sink(self) -> Sink:
        assert self.broker.sink is not None, "brokers without a sink are not pushed to"
        return self.broker.sink

    @property
    def name(self) -> str:
        return f"{self.channel.name}/{self.broker.name}"


class PairDelivery:
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
        self._reader = reader_of(pair.channel, pair.broker.name)
        self._dead_letters = pair.channel.dead_letters
        self._row = KnownRow({}, EMPTY_CURSOR, is_stored=False)
        self._checked_at = 0.0
        self._may_hold = False  # A change that was interrupted may be stored.
        self._is_new = True
        self._token, self._progress = "", dict[int, tuple[int, int]]()
        self._begun_at = self._moved_at = 0.0
        self._endpoint: Endpoint | None = None
        self._name = pair.name
        self._names = pair.channel.name, pair.broker.name
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
                except Conflict:
                    log.info("%s: the position was moved", self._name)
                except (DisabledError, UnknownDataset):
                    return
                except GalileoError as error:
                    log.warning("%s: %s", self._name, error)
                    await asyncio.sleep(CLAIM_S)
        finally:
            self._metrics.end(*self._names)
            await self._release()

    async def _push(self) -> None:
        """Takes the pair over, and pushes.

        Raises:
            TakenError, Conflict: another worker has it, or someone has moved the position.
            DisabledError: the endpoint accepts nothing, and the broker is paused.
            GalileoError: the cluster does not answer.
        """
        await self._claim()
        try:
            await self._follow()
        except DisabledError as error:
            await self._pause(error.reason)
            raise
        finally:
            await self._close()

    async def _claim(self) -> None:
        begun = self._now()
        row = await read_row(self._client, POSITIONS, self._reader)
        holder = row[WORKER] or ""
        if holder not in ("", self._worker) and self._is_alive(holder):
            if holder != self._holder[0]:
                self._holder = holder, self._now()
            if self._now() - self._holder[1] < TAKE_OVER_S:
                self._may_hold = False
                raise TakenError
        self._holder = "", 0.0
        self._row, self._checked_at, self._may_hold = row, begun, True
        self._token, self._begun_at = row[TOKEN] or "", begun
        try:
            self._progress = progress_of(row[PROGRESS])
        except InvalidObservations as error:  # What is delivered of executions comes once more.
            log.warning("%s: %s", self._name, error)
            self._progress = {}
        if holder != self._worker or self._is_new:
            await self._store(worker=self._worker, failure="", failed_at=None, retry_at=None)
            log.info("%s: pushing", self._name)
        self._is_new = False

    async def _connect(self) -> Endpoint:
        """The endpoint; opens it if it is not open."""
        attempts = 0
        while self._endpoint is None:
            try:
                self._endpoint = await self._open_endpoint(self._pair.sink)
            except DisabledError:
                raise
            except DeliveryError as error:
                await self._wait_after(error, attempts)
                attempts += 1
            except GalileoError as error:  # Of the secret, the address or a missing library.
                raise DisabledError(error.message) from error
        return self._endpoint

    async def _close(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.close()

    async def _follow(self) -> None:
        self._moved_at = self._now()
        await self._connect()
        while True:
            try:
                batches = await self._client.fetch_notifications(
                    *self._names, token=self._token, wait=WAIT_S, bytes_max=ANSWER_BYTES
                )
            except HistoryChanged as error:  # What the endpoint has got stays delivered.
                log.warning("%s: %s", self._name, error.message)
                self._token, self._progress = error.details["token"], {}
                await self._store_position()
                await asyncio.sleep(CLAIM_S)
                continue
            is_news = False
            for batch in batches:
                if batch.gone:
                    await self._report_gone(batch)
                if len(batch):
                    await self._deliver_execution(batch)
                    is_news = True
                self._token = batch.token
                if batch.execution or batch.gone:
                    self._progress.pop(batch.partition, None)
            if is_news:
                await self._move(after_s=0.0)
            elif self._token != self._row[TOKEN]:
                await self._move(after_s=IDLE_ACKNOWLEDGE_S)
            await self._check_position(WAIT_S)

    async def _report_gone(self, batch: Notifications) -> None:
        """Tells the endpoint which executions are deleted, and counts them.

        A broker that begins does not get what was deleted before.
        """
        is_beginning = not self._row[TOKEN] and self._now() - self._begun_at < self._kept_s
        gone = [one for one in batch.gone if one.first > 1 or not is_beginning]
        if not gone:
            return
        count = sum(one.commits for one in gone)
        log.warning("%s: %d executions were deleted before delivery: %s", self._name, count, gone)
        await self._deliver(dataclasses.replace(batch, gone=tuple(gone)), 0, 0)
        self._metrics.count_gone(*self._names, count)
        self._token = batch.token  # It has no notifications besides.
        await self._store_position(gone=(self._row[GONE] or 0) + count)

    @property
    def _kept_s(self) -> float:
        return (self._pair.channel.keep_us + self._pair.broker.hold_us) / MICROS

    async def _deliver_execution(self, batch: Notifications) -> None:
        """Delivers an execution chunk by chunk, behind those that are delivered already."""
        size = (await self._connect()).pairs_max or len(batch)
        execution, done = self._progress.get(batch.partition, (0, 0))
        for start in range(done if execution == batch.execution else 0, len(batch), size):
            stop = min(start + size, len(batch))
            await self._deliver(batch, start, stop)
            self._progress[batch.partition] = batch.execution, stop
            await self._move(after_s=ACKNOWLEDGE_S)

    async def _deliver(
        self,
        batch: Notifications,
        start: int,
        stop: int,
        *,
        failing_since: float | None = None,
    ) -> None:
        """Delivers the notifications from `start` to `stop` of an execution.

        What is refused, or has failed for too long by the broker's bounds, is halved until one
        notification is left, which becomes a dead letter.
        """
        chunk = await in_thread(self._chunk, batch, start, stop)
        refused, attempts = await self._attempt(chunk), 1
        while type(refused) is DeliveryError:
            failing_since = self._now() if failing_since is None else failing_since
            if self._is_over(attempts, failing_since):
                refused = RefusedError(f"{refused.reason} (attempt {attempts})")
                break
            await self._wait_after(refused, attempts - 1)
            refused, attempts = await self._attempt(chunk), attempts + 1
        if not isinstance(refused, RefusedError) or start == stop:
            return
        if refused.numbers or stop - start == 1:
            for number in refused.numbers or [0]:
                place = start + number
                letter = await in_thread(self._chunk, batch, place, place + 1)
                await self._bury(letter, refused.reason)
            return
        middle = (start + stop) // 2
        await self._deliver(batch, start, middle, failing_since=failing_since)
        await self._deliver(batch, middle, stop, failing_since=failing_since)

    async def _attempt(self, chunk: Chunk) -> DeliveryError | None:
        """Sends a chunk once; why it is not accepted.

        Raises:
            DisabledError, GalileoError: as of `_push`.
        """
        endpoint = await self._connect()
        await self._check_position(CHECK_S)
        begun, size = self._now(), len(chunk.notifications)
        try:
            await endpoint.deliver(chunk)
        except DisabledError:
            raise
        except RefusedError as error:
            accepted = size - len(error.numbers) if error.numbers else 0
            if accepted > 0:
                self._refused = 0
                self._count(ACCEPTED, accepted, took_s=self._now() - begun)
            return error
        except DeliveryError as error:
            await self._close()
            return error
        self._refused = 0
        self._count(ACCEPTED, size, took_s=self._now() - begun)
        return None

    def _is_over(self, attempts: int, failing_since: float) -> bool:
        """Whether the bounds of the broker end the attempts."""
        broker = self._pair.broker
        failing_us = (self._now() - failing_since) * MICROS
        return (broker.attempts_max is not None and attempts >= broker.attempts_max) or (
            broker.age_max_us is not None and failing_us >= broker.age_max_us
        )

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
            acknowledged=self._row[ACKNOWLEDGED] or 0,
        )

    async def _wait_after(self, error: DeliveryError, attempts: int) -> None:
        """Waits before the next attempt; stores why and until when, which `deliveries` shows.

        Raises:
            Conflict: someone else has changed the row; the next attempt comes at once.
        """
        self._count(FAILED, 0)
        if self._row[FAILURE] != error.reason:
            log.warning("%s: %s", self._name, error.reason)
        bound_s = min(RETRY_MAX_S, RETRY_MIN_S * 2 ** min(attempts, 20))
        wait_s = max(min(error.after_s, RETRY_AFTER_MAX_S), self._random.uniform(0.0, bound_s))
        until, at = self._now() + wait_s, self._time()
        failure = {
            FAILURE: error.reason,
            FAILED_AT: at,
            RETRY_AT: at + dt.timedelta(seconds=wait_s),
        }
        await self._store_position(**failure)
        while (left_s := until - self._now()) > 0:
            await asyncio.sleep(min(left_s, WAIT_CHECK_S))
            await self._check_position(WAIT_CHECK_S)

    async def _bury(self, chunk: Chunk, reason: str) -> None:
        """Stores a notification that the endpoint refuses as a dead letter.

        Raises:
            DisabledError: it has refused many one after the other.
        """
        self._refused += 1
        if self._refused > REFUSED_MAX:
            raise DisabledError(f"the endpoint has refused {REFUSED_MAX} notifications: {reason}")
        key = chunk.key_of(0)
        letter = {
            "id": key,
            BROKER: chunk.broker,
            "subscription": chunk.notifications.subscriptions()[0].as_py(),
            "reason": reason,
            "at": self._time(),
            "notification": features(chunk.notifications)[0].as_py(),
        }
        rows = pa.Table.from_pylist([letter], schema=self._dead_letters.arrow_schema)
        await self._client.upsert(self._dead_letters.name, rows)
        self._count(DEAD, 1)
        log.warning("%s: %s is a dead letter: %s", self._name, key, reason)

    async def _move(self, *, after_s: float) -> None:
        """Moves the position to what is accepted, if it was not moved for so long."""
        if self._now() - self._moved_at >= after_s:
            await self._store_position(failure="", failed_at=None, retry_at=None)

    async def _store_position(self, **changes: Any) -> None:
        """Stores what is accepted, and changes the row besides; errors as `_store`."""
        await self._store(token=self._token, progress=json.dumps(self._progress), **changes)
        self._moved_at = self._now()

    async def _store(self, **changes: Any) -> None:
        """Changes the row of the broker.

        Raises:
            Conflict: someone else has changed it.
        """
        begun = self._now()
        self._row = await replace_row(self._client, POSITIONS, self._row, **changes)
        self._checked_at = begun

    async def _check_position(self, age_max_s: float) -> None:
        """Reads the row again, unless it was unchanged within `age_max_s`.

        Raises:
            Conflict: someone else has changed it, say to deliver once more.
        """
        begun = self._now()
        if begun - self._checked_at < age_max_s:
            return
        row = await read_row(self._client, POSITIONS, self._reader)
        if row.is_changed(self._row):
            raise Conflict("the position was moved")
        self._row, self._checked_at = row, begun

    async def _pause(self, reason: str) -> None:
        """Pauses the broker, unless it was changed, paused or dropped since this delivery began."""
        row = await read_row(self._client, BROKERS, self._pair.broker.name)
        if row["revision"] != self._pair.revision:  # The worker's next look sees what it is now.
            return
        try:
            changes = {"paused": reason, "revision": row["revision"] + 1}
            await replace_row(self._client, BROKERS, row, **changes)
        except Conflict:
            return
        log.warning("broker %s is paused: %s", self._pair.broker.name, reason)
        with contextlib.suppress(GalileoError):
            await self._store_position(failure=reason, failed_at=self._time(), retry_at=None)

    async def _release(self) -> None:
        """Lets another worker take the pair over at once, behind what is delivered."""
        if not self._may_hold:
            return
        with contextlib.suppress(GalileoError, TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                try:
                    await self._store_position(worker="")
                except Conflict:  # Perhaps with the change that the end has interrupted.
                    self._row = await read_row(self._client, POSITIONS, self._reader)
                    if self._row[WORKER] == self._worker:
                        await self._store(worker="")

    def _time(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._clock.wall(), dt.UTC)

    def _now(self) -> float:
        return self._clock.monotonic()

    def _count(self, outcome: str, notifications: int, *, took_s: float | None = None) -> None:
        self._metrics.count(*self._names, outcome, notifications=notifications, took_s=took_s)
