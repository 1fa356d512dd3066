"""A worker: finds the brokers to push to, shares them with other workers, and pushes.

Workers know of each other by a table with a number that each one increases. A worker whose number
has not grown for the time of a lease, by the clock of who looks, counts as dead. Each pair of a
channel and a broker belongs to the living worker that a hash selects (rendezvous hashing). A worker
gives up a pair that is not its own any more, and takes one over when its holder has given it up or
is dead. Two workers that see different ones alive can both push for a pair; the compare-and-set of
its position then stops one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket

from galileo.client.async_client import AsyncClient
from galileo.clock import Clock, SystemClock
from galileo.errors import DatasetExists, GalileoError
from galileo.hashing import text64
from galileo.model.broker import WORKERS, Sink
from galileo.worker.addresses import AddressPolicy
from galileo.worker.delivery import Delivery, Pair
from galileo.worker.endpoints import Endpoint, open_endpoint
from galileo.worker.metrics import WorkerMetrics
from galileo.worker.options import WorkerOptions

LEASE_S = 10.0
"""A worker that has given no sign of life for so long counts as dead."""
LOOK_S = 1.0
"""Seconds between two looks at which brokers, channels and workers there are."""
FORGET_S = 60.0
"""A worker that has been dead for so long is removed from the table."""

log = logging.getLogger(__name__)


class Worker:
    """Pushes for brokers until it is cancelled.

    Args:
        client: of the cluster.
        options: of the worker.
        clock: the time since signs of life.

    Attributes:
        name: of the worker, of host and process.
        metrics: of the worker.
        random_state: chooses how long to wait before another attempt.
    """

    def __init__(
        self, client: AsyncClient, options: WorkerOptions, *, clock: Clock | None = None
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.metrics = WorkerMetrics()
        self._looked_at = -float("inf")
        self.random_state = random.Random()
        self._client = client
        self._clock = clock or SystemClock()
        self._options = options
        self._policy = AddressPolicy(options.allow)
        self._beat = 0
        self._beats: dict[str, tuple[int, float]] = {}
        self._running: dict[Pair, asyncio.Task[None]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether it has seen the cluster within the time of a lease."""
        return self._now() - self._looked_at < LEASE_S

    async def run(self) -> None:
        """Pushes until it is cancelled; then other workers take over at once."""
        try:
            while True:
                begun = self._now()
                try:
                    async with asyncio.timeout(LEASE_S / 2):
                        await self._look()
                except (GalileoError, TimeoutError) as error:
                    log.warning("the cluster does not answer: %s", error or "no answer in time")
                    if self._now() - self._looked_at > LEASE_S / 2:
                        await self._stop(list(self._running))
                await asyncio.sleep(max(0.0, begun + LOOK_S - self._now()))
        finally:
            await self._stop(list(self._running))
            with contextlib.suppress(GalileoError, TimeoutError):
                async with asyncio.timeout(LEASE_S / 2):
                    await self._client.delete(WORKERS.name, [self.name])

    def is_alive(self, worker: str) -> bool:
        """Whether a worker has given a sign of life within the time of a lease."""
        _, at = self._beats.get(worker, (0, -float("inf")))
        return self._now() - at < LEASE_S

    async def _look(self) -> None:
        """Gives a sign of life, reads who lives and what there is to do, and starts or ends it."""
        if self._beat == 0:
            with contextlib.suppress(DatasetExists):
                await self._client.create_table(WORKERS)
        begun = self._now()
        self._beat += 1
        await self._client.upsert(WORKERS.name, {"name": [self.name], "beat": [self._beat]})
        await self._note_beats()
        brokers = await self._client.brokers()
        channels = await self._client.channels()
        wanted = {
            pair
            for broker in brokers
            for channel in channels
            if not broker.paused and broker.takes(channel.name)
            if self._owner(pair := Pair(channel, broker)) == self.name
        }
        self._looked_at = begun
        ended = [pair for pair, task in self._running.items() if task.done()]
        await self._stop([pair for pair in self._running if pair not in wanted] + ended)
        for pair in sorted(wanted - self._running.keys(), key=lambda pair: pair.name):
            self._running[pair] = asyncio.create_task(self._delivery(pair).run())

    async def _note_beats(self) -> None:
        seen_at = self._now()
        stored = await self._client.table(WORKERS.name)
        rows = zip(stored.rows["name"].to_pylist(), stored.rows["beat"].to_pylist(), strict=True)
        beats = dict(rows)
        for worker, beat in beats.items():
            if self._beats.get(worker, (None, 0.0))[0] != beat:
                self._beats[worker] = beat, seen_at
        self._beats = {worker: self._beats[worker] for worker in beats}
        gone = [name for name, (_, at) in self._beats.items() if seen_at - at > FORGET_S]
        if gone:
            await self._client.delete(WORKERS.name, gone)

    def _owner(self, pair: Pair) -> str:
        living = [worker for worker in self._beats if self.is_alive(worker)]
        return max(living, key=lambda worker: text64(pair.name, worker), default="")

    def _delivery(self, pair: Pair) -> Delivery:
        return Delivery(
            self._client,
            pair,
            worker=self.name,
            is_alive=self.is_alive,
            open_endpoint=self.open_endpoint,
            metrics=self.metrics,
            clock=self._clock,
            random_state=self.random_state,
        )

    async def open_endpoint(self, sink: Sink) -> Endpoint:
        """The endpoint of a sink; errors as `galileo.worker.endpoints.open_endpoint`."""
        return await open_endpoint(sink, self._client, self._options, self._policy)

    async def _stop(self, pairs: list[Pair]) -> None:
        """Ends deliveries; those that are being ended already are not interrupted again."""
        tasks = {pair: self._running[pair] for pair in pairs}
        for task in tasks.values():
            if not task.cancelling():
                task.cancel()
        if tasks:
            await asyncio.wait(tasks.values())
        for pair, task in tasks.items():
            del self._running[pair]
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a delivery has ended by an error", exc_info=error)

    def _now(self) -> float:
        return self._clock.monotonic()
