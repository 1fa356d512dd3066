"""A worker: finds the brokers to push to, shares them with other workers, and pushes.

Workers know of each other by a table with a number that each one increases. A worker whose number
has not grown for the time of a lease, by the clock of who looks, counts as dead. Each pair of a
channel and a broker belongs to the living worker that a hash selects (rendezvous hashing). A worker
gives up a pair that is not its own any more, and takes one over when its holder has given it up or
is dead. Two workers that see different ones alive can both push for a pair; the compare-and-set of
its position then stops one of them.

The sign of life, the look at the cluster and each delivery are tasks of their own, and what needs
much processor time is done in threads. A worker that does not reach the cluster stops nothing: its
deliveries send nothing while they cannot read their positions. While partitions of a table cannot
be reached, a look goes on with what it knew of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable

import pyarrow as pa

from galileo.client.async_client import AsyncClient
from galileo.client.stored_rows import reachable_rows
from galileo.clock import Clock, SystemClock
from galileo.errors import DatasetExists, GalileoError, Unavailable, UnknownDataset
from galileo.hashing import text64
from galileo.model.broker import BROKERS, WORKERS, Broker, Sink, stored_broker
from galileo.model.table import Table
from galileo.worker.addresses import AddressPolicy
from galileo.worker.delivery import Pair, PairDelivery
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
        self.name = _fresh_name()
        self.metrics = WorkerMetrics()
        self._looked_at = self._seen_at = -float("inf")
        self.random_state = random.Random()
        self._client = client
        self._clock = clock or SystemClock()
        self._options = options
        self._policy = AddressPolicy(options.allow)
        self._number = 0
        self._beats: dict[str, tuple[int, float]] = {}
        self._known: dict[str, pa.Table] = {}
        self._paused: dict[str, str] = {}
        self._running: dict[Pair, asyncio.Task[None]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether it has seen the cluster within the time of a lease."""
        return self._now() - self._looked_at < LEASE_S

    async def run(self) -> None:
        """Pushes until it is cancelled; then other workers take over at once."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for step in (self._beat, self._look):
                    tasks.create_task(self._repeat(step))
        finally:
            await self._stop(list(self._running))
            with contextlib.suppress(GalileoError, TimeoutError):
                async with asyncio.timeout(LEASE_S / 2):
                    await self._client.delete(WORKERS.name, [self.name])

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            begun = self._now()
            try:
                async with asyncio.timeout(LEASE_S / 2):
                    await step()
            except (GalileoError, TimeoutError) as error:
                reason = str(error) or f"no answer within {LEASE_S / 2:g} s"
                log.warning("the cluster does not answer: %s", reason)
            await asyncio.sleep(max(0.0, begun + LOOK_S - self._now()))

    def is_alive(self, worker: str) -> bool:
        """Whether a worker gave a sign of life within the time of a lease before the last look."""
        _, at = self._beats.get(worker, (0, -float("inf")))
        return self._seen_at - at < LEASE_S

    async def _beat(self) -> None:
        """Gives a sign of life."""
        if self._number == 0:
            with contextlib.suppress(DatasetExists):
                await self._client.create_table(WORKERS)
        try:
            row = {"name": [self.name], "beat": [self._number + 1]}
            await self._client.upsert(WORKERS.name, row)
            self._number += 1
        except Unavailable:
            if self._number == 0:  # Another name is perhaps in a partition that can be reached.
                self.name = _fresh_name()
            raise

    async def _look(self) -> None:
        """Reads who lives and what there is to do, and starts or ends it."""
        begun = self._now()
        await self._note_beats()
        rows, _ = await self._read(BROKERS)
        channels = await self._client.channels()
        revised = [(stored_broker(row), row["revision"]) for row in rows.to_pylist()]
        self._note_paused(broker for broker, _ in revised if broker is not None)
        pairs = [
            Pair(channel, broker, revision)
            for broker, revision in revised
            if broker is not None and not broker.paused
            for channel in channels
            if broker.takes(channel.name)
        ]
        wanted = {pair for pair in pairs if self._owner(pair) == self.name}
        self._looked_at = begun
        ended = [pair for pair, task in self._running.items() if task.done()]
        await self._stop([pair for pair in self._running if pair not in wanted] + ended)
        for pair in sorted(wanted - self._running.keys(), key=lambda pair: pair.name):
            self._running[pair] = asyncio.create_task(self._delivery(pair).run())
        forgotten = [name for name, (_, at) in self._beats.items() if self._seen_at - at > FORGET_S]
        if forgotten:  # At the end, since the rows may be where nothing can be stored.
            await self._client.delete(WORKERS.name, forgotten)

    def _note_paused(self, brokers: Iterable[Broker]) -> None:
        """Logs once why a broker is paused, such as by a definition that cannot be read."""
        paused = {broker.name: broker.paused for broker in brokers if broker.paused}
        for name, reason in paused.items() - self._paused.items():
            log.warning("broker %r is paused: %s", name, reason)
        self._paused = paused

    async def _read(self, table: Table) -> tuple[pa.Table, int]:
        """The rows of a table, and how many of them were read.

        The others are what was known of partitions that cannot be reached.
        """
        known, read = self._known.get(table.name, table.arrow_schema.empty_table()), 0
        with contextlib.suppress(UnknownDataset):
            known, read = await reachable_rows(self._client, table.name, known=known)
            self._known[table.name] = known
        return known, read

    async def _note_beats(self) -> None:
        rows, read = await self._read(WORKERS)
        names, numbers = (rows.column(name).to_pylist() for name in ("name", "beat"))
        seen_at, before = self._now(), self._seen_at
        self._seen_at = seen_at
        for place, (worker, beat) in enumerate(zip(names, numbers, strict=True)):
            known, at = self._beats.get(worker, (None, seen_at))
            if place >= read:  # It may live: time stands still for it.
                at += seen_at - before
            self._beats[worker] = beat, at if beat == known else seen_at
        self._beats = {worker: self._beats[worker] for worker in names}

    def _owner(self, pair: Pair) -> str:
        living = {self.name, *(worker for worker in self._beats if self.is_alive(worker))}
        return max(living, key=lambda worker: text64(pair.name, worker))

    def _delivery(self, pair: Pair) -> PairDelivery:
        return PairDelivery(
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


def _fresh_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
