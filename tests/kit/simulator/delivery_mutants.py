"""Known-wrong deliveries, each of which the world of deliveries must convict."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import fields
from typing import Any

from galileo.client.results import Notifications
from galileo.client.row_changes import read_row, replace_row
from galileo.model.reader import POSITIONS
from galileo.worker.delivery import PairDelivery
from galileo.worker.endpoints import Chunk, DeliveryError, RefusedError


class StoresPositionFirst(PairDelivery):
    """At most once: a crash in between loses notifications."""

    async def _deliver_execution(self, batch: Notifications) -> None:
        await self._store(token=batch.token, failure="")
        await super()._deliver_execution(batch)


class IgnoresOthers(PairDelivery):
    """Without compare-and-set, a worker that was replaced moves the position back."""

    async def _store(self, **changes: Any) -> None:
        row = await read_row(self._client, POSITIONS, self._reader)
        self._row = await replace_row(self._client, POSITIONS, row, **changes)

    async def _check_position(self, age_max_s: float) -> None:
        pass


class CountsFromEachChunk(PairDelivery):
    """Two chunks of an execution have the same keys."""

    def _chunk(self, batch: Notifications, start: int, stop: int) -> Chunk:
        return dataclasses.replace(super()._chunk(batch, start, stop), offset=0)


class _NamedByBegin(Chunk):
    @property
    def key(self) -> str:
        return self.key_of(0)


class NamesHalvesAsTheWhole(PairDelivery):
    """The first half of a refused chunk has the key of the whole."""

    def _chunk(self, batch: Notifications, start: int, stop: int) -> Chunk:
        chunk = super()._chunk(batch, start, stop)
        return _NamedByBegin(**{one.name: getattr(chunk, one.name) for one in fields(chunk)})


class TakesFailuresForSuccess(PairDelivery):
    """What the endpoint has not accepted is lost."""

    async def _attempt(self, chunk: Chunk) -> DeliveryError | None:
        error = await super()._attempt(chunk)
        return error if isinstance(error, RefusedError) else None


class BuriesWholeChunks(PairDelivery):
    """What is in a chunk with poison is lost with it."""

    async def _attempt(self, chunk: Chunk) -> DeliveryError | None:
        error = await super()._attempt(chunk)
        return RefusedError(error.reason, [0]) if isinstance(error, RefusedError) else error


class GivesUp(PairDelivery):
    """An endpoint that is away for long gets dead letters in place of notifications."""

    def _is_over(self, attempts: int, failing_since: float) -> bool:
        return attempts >= 3


class SendsChunksTogether(PairDelivery):
    """Chunks overtake each other."""

    async def _deliver_execution(self, batch: Notifications) -> None:
        size = (await self._connect()).pairs_max or len(batch)
        await asyncio.gather(
            *(
                self._deliver(batch, start, min(start + size, len(batch)))
                for start in range(0, len(batch), size)
            )
        )


class WaitsForEver(PairDelivery):
    """A living worker whose release was lost keeps a pair that it does not push for."""

    async def _claim(self) -> None:
        self._holder = "", 0.0
        await super()._claim()


class ForgetsProgress(PairDelivery):
    """Who takes over within an execution begins it again."""

    async def _claim(self) -> None:
        await super()._claim()
        self._progress = {}


class ReportsChunksEarly(PairDelivery):
    """The position is past a chunk before it is accepted."""

    async def _deliver(
        self, batch: Notifications, start: int, stop: int, **since: float | None
    ) -> None:
        self._progress[batch.partition] = batch.execution, stop
        await super()._deliver(batch, start, stop, **since)


DELIVERY_MUTANTS: dict[str, type[PairDelivery]] = {
    "position-before-acceptance": StoresPositionFirst,
    "fence-ignored": IgnoresOthers,
    "keys-of-chunks": CountsFromEachChunk,
    "failure-is-success": TakesFailuresForSuccess,
    "poison-with-its-chunk": BuriesWholeChunks,
    "retries-end": GivesUp,
    "chunks-together": SendsChunksTogether,
    "lost-release": WaitsForEver,
    "keys-of-halves": NamesHalvesAsTheWhole,
    "progress-forgotten": ForgetsProgress,
    "progress-before-acceptance": ReportsChunksEarly,
}
