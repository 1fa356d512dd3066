"""Stores notifications as rows of a dataset or table of the same cluster, each once."""

from __future__ import annotations

import pyarrow as pa

from galileo.client.async_client import AsyncClient
from galileo.errors import GalileoError, InputError, UnknownDataset
from galileo.hashing import digest
from galileo.model.broker import Into
from galileo.worker.endpoints import Chunk, DeliveryError, DisabledError

BATCHES_OF_EXECUTION_MAX = 1 << 20


class IntoEndpoint:
    """A dataset or table.

    Its rows are batches of a producer that stands for channel, broker and partition. Their numbers
    follow from the execution, so what is delivered again is recognised.

    Args:
        sink: which one.
        client: of the cluster.
    """

    pairs_max = 0

    def __init__(self, sink: Into, client: AsyncClient) -> None:
        self._target = sink.target
        self._client = client

    async def deliver(self, chunk: Chunk) -> None:
        producer = f"into-{digest(chunk.stream).hex()}"
        number = chunk.notifications.execution * BATCHES_OF_EXECUTION_MAX
        try:
            tables = {table.name: table for table in await self._client.tables()}
            if self._target in tables:
                columns = [name for name, _ in tables[self._target].columns]
                rows = _chosen(chunk.notifications.to_arrow(), columns)
                store = self._client.upsert
            else:
                schema = await self._client.schema(self._target)
                rows = _chosen(chunk.notifications.observations, schema.observation_schema.names)
                store = self._client.ingest  # type: ignore[assignment]
            await store(self._target, rows, producer=producer, first_batch=number)
        except (InputError, UnknownDataset) as error:
            raise DisabledError(error.message) from error
        except GalileoError as error:
            raise DeliveryError(error.message, error.details.get("after_s") or 0.0) from error

    async def close(self) -> None:
        """Does nothing: the client belongs to the worker."""


def _chosen(rows: pa.Table, columns: list[str]) -> pa.Table:
    return rows.select([name for name in columns if name in rows.column_names])
