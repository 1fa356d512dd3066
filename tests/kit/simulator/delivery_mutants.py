"""Known-wrong deliveries, each of which the world of deliveries must convict."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from galileo.client.numbered_rows import read_row, replace_row
from galileo.client.results import Notifications
from galileo.worker.delivery import Delivery
from galileo.worker.endpoints import Chunk, DeliveryError, Endpoint, RefusedError


class StoresPositionFirst(Delivery):
    """At most once: a crash in between loses notifications."""

    async def _deliver_execution(self, endpoint: Endpoint, batch: Notifications) -> None:
        await self._store(token=batch.token, failure="")
        await super()._deliver_execution(endpoint, batch)


class IgnoresOthers(Delivery):
    """Without compare-and-set, a worker that was replaced moves the position back."""

    async def _store(self, **changes: Any) -> None:
        row = await read_row(self._client, self._positions, self._pair.broker.name)
        self._row = await replace_row(self._client, self._positions, row, **changes)


class _Changed:
    """An endpoint that a mutant wraps."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.pairs_max = endpoint.pairs_max

    async def deliver(self, chunk: Chunk) -> None:
        await self._endpoint.deliver(chunk)

    async def close(self) -> None:
        await self._endpoint.close()


class _Renamed(_Changed):
    async def deliver(self, chunk: Chunk) -> None:
        shifted = dataclasses.replace(chunk, offset=0)
        await self._endpoint.deliver(shifted)


class CountsFromEachChunk(Delivery):
    """Two chunks of an execution have the same keys."""

    async def _opened(self) -> Endpoint:
        return _Renamed(await super()._opened())


class _Believed(_Changed):
    async def deliver(self, chunk: Chunk) -> None:
        try:
            await self._endpoint.deliver(chunk)
        except RefusedError:
            raise
        except DeliveryError:
            return


class TakesFailuresForSuccess(Delivery):
    """What the endpoint has not accepted is lost."""

    async def _opened(self) -> Endpoint:
        return _Believed(await super()._opened())


class BuriesWholeChunks(Delivery):
    """What is in a chunk with poison is lost with it."""

    async def _deliver(
        self, endpoint: Endpoint, batch: Notifications, start: int, stop: int
    ) -> None:
        if stop - start == 1:
            await super()._deliver(endpoint, batch, start, stop)
            return
        chunk = self._chunk(batch, start, stop)
        try:
            await endpoint.deliver(chunk)
        except RefusedError as error:
            await self._bury(chunk, error.reason)
        except DeliveryError:
            await super()._deliver(endpoint, batch, start, stop)


class GivesUp(Delivery):
    """An endpoint that is away for long gets dead letters in place of notifications."""

    async def _wait_after(self, error: DeliveryError, attempt: int) -> None:
        if attempt >= 2:
            raise RefusedError(error.reason)
        await super()._wait_after(error, attempt)

    async def _deliver(
        self, endpoint: Endpoint, batch: Notifications, start: int, stop: int
    ) -> None:
        try:
            await super()._deliver(endpoint, batch, start, stop)
        except RefusedError as error:
            chunk = self._chunk(batch, start, stop)
            await self._bury(chunk, error.reason)


class SendsChunksTogether(Delivery):
    """Chunks overtake each other."""

    async def _deliver_execution(self, endpoint: Endpoint, batch: Notifications) -> None:
        size = endpoint.pairs_max or len(batch)
        await asyncio.gather(
            *(
                self._deliver(endpoint, batch, start, min(start + size, len(batch)))
                for start in range(0, len(batch), size)
            )
        )


class WaitsForEver(Delivery):
    """A living worker whose release was lost keeps a pair that it does not push for."""

    async def _claim(self) -> None:
        self._holder = "", 0.0
        await super()._claim()


DELIVERY_MUTANTS: dict[str, type[Delivery]] = {
    "position-before-acceptance": StoresPositionFirst,
    "fence-ignored": IgnoresOthers,
    "keys-of-chunks": CountsFromEachChunk,
    "failure-is-success": TakesFailuresForSuccess,
    "poison-with-its-chunk": BuriesWholeChunks,
    "retries-end": GivesUp,
    "chunks-together": SendsChunksTogether,
    "lost-release": WaitsForEver,
}
