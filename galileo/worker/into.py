"""Stores notifications as rows of a dataset or table of the same cluster, each once."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.client.async_client import AsyncClient
from galileo.client.ingestion import in_thread
from galileo.errors import BatchConflict, GalileoError, InputError, UnknownDataset
from galileo.hashing import digest
from galileo.model.broker import Into
from galileo.model.channel import pairs_of
from galileo.model.observations import normalise
from galileo.model.table import versions_of
from galileo.worker.endpoints import Chunk, DeliveryError, DisabledError, RefusedError

BATCHES_OF_EXECUTION_MAX = 1 << 20


class IntoEndpoint:
    """A dataset or table.

    Its rows are batches of a producer that stands for channel, broker and partition. Their numbers
    follow from the execution, so what is delivered again is recognised. Rows of a table are stored
    again once someone has moved the position: the table may have lost them.

    Args:
        sink: which one.
        client: of the cluster.
    """

    pairs_max = 0

    def __init__(self, sink: Into, client: AsyncClient) -> None:
        self._target = sink.target
        self._client = client

    async def deliver(self, chunk: Chunk) -> None:
        batch, producer = chunk.notifications, chunk.stream
        store: Callable[..., Awaitable[Any]] = self._client.ingest
        try:
            tables = {table.name: table for table in await self._client.tables()}
            if self._target in tables:
                table, store = tables[self._target], self._client.upsert
                columns, check = [name for name, _ in table.columns], partial(versions_of, table)
                rows = await in_thread(batch.to_arrow)
                producer += f"/{chunk.acknowledged}"
            else:
                schema = await self._client.schema(self._target)
                columns, check = schema.observation_schema.names, partial(normalise, schema)
                rows = batch.observations
            rows = rows.select([name for name in columns if name in rows.column_names])
            check(rows.slice(0, 0))
            refused = await in_thread(_refused, rows, check)
            fitting = rows.filter(pa.array(~np.isin(np.arange(rows.num_rows), [*refused])))
            if fitting.num_rows:
                number = batch.execution * BATCHES_OF_EXECUTION_MAX
                name = f"into-{digest(producer).hex()}"
                # A conflict: it was stored before the target had the features that it has now.
                with contextlib.suppress(BatchConflict):
                    await store(self._target, fitting, producer=name, first_batch=number)
        except (InputError, UnknownDataset) as error:
            raise DisabledError(error.message) from error
        except GalileoError as error:
            raise DeliveryError(error.message, error.details.get("after_s") or 0.0) from error
        if refused:
            numbers = (
                np.arange(len(batch)) if self._target in tables else pairs_of(batch.matches)[1]
            )
            of_pairs = np.flatnonzero(np.isin(numbers, [*refused])).tolist()
            raise RefusedError(next(iter(refused.values())), of_pairs)

    async def close(self) -> None:
        """Does nothing: the client belongs to the worker."""


def _refused(rows: pa.Table, check: Callable[[pa.Table], Any]) -> dict[int, str]:
    """The numbers of the rows that `check` refuses, and why; in a thread."""
    refused, pending = dict[int, str](), [(0, rows.num_rows)]
    while pending:
        start, stop = pending.pop()
        try:
            check(rows.slice(start, stop - start))
        except InputError as error:
            middle = (start + stop) // 2
            if stop - start == 1:
                refused[start] = error.message
            else:
                pending += [(middle, stop), (start, middle)]
    return refused
