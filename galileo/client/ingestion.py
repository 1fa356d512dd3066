"""How the client sends observations: numbered batches, a few of them under way at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import pandas as pd
import pyarrow as pa

from galileo.client.decode import TIMEOUT_S
from galileo.client.results import Receipt
from galileo.client.transport import Transport
from galileo.cursor import ORIGIN
from galileo.errors import GalileoError, InputError, InvalidObservations
from galileo.formats.source import within_bytes
from galileo.model.observations import Observations, normalise
from galileo.model.schema import Schema
from galileo.wire.bulk import Bulk, BulkStub, stream_of
from galileo.wire.codec import cursor_from_pb
from galileo.wire.pb import storage_pb2

BATCH_ROWS = 65_536
BATCHES_IN_FLIGHT_MIN = 2
BATCHES_IN_FLIGHT_MAX = 32
BYTES_IN_FLIGHT_MAX = 16 << 20
"""Of observations in Arrow, sent and not yet acknowledged; two batches may be under way anyway."""

Progress = Callable[[int], None]
Batches = Observations | Iterable[Observations] | AsyncIterator[Observations]
_Running: TypeAlias = dict[asyncio.Task[storage_pb2.IngestReply], int]
"""What is under way, with its bytes."""


async def send_all(
    transport: Transport,
    schema: Schema,
    *,
    data: Batches,
    producer: str,
    batch_rows: int,
    patience_s: float,
    progress: Progress | None,
) -> Receipt:
    """Sends everything and returns when all of it is durable; see `AsyncClient.ingest`."""
    replies: list[storage_pb2.IngestReply] = []
    running: _Running = {}
    try:
        number = 0
        async with aclosing(_batches(schema, data, batch_rows)) as tables:
            async for table in tables:
                head = storage_pb2.IngestRequest(
                    dataset=schema.name, producer=producer, batch=number
                )
                number += 1
                request = Bulk(head, stream_of(table))
                size = request.observations.size
                while _is_full(running, size):
                    replies += await _some(running, progress)
                task = asyncio.create_task(_send(transport, request, patience_s=patience_s))
                running[task] = size
        while running:
            replies += await _some(running, progress)
    except GalileoError as error:  # Under another name, what is stored by now would come twice.
        error.details.setdefault("producer", producer)
        raise
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return _receipt(producer, replies)


async def _send(
    transport: Transport, request: Bulk[storage_pb2.IngestRequest], *, patience_s: float
) -> storage_pb2.IngestReply:
    return await transport.call(
        lambda channel: BulkStub(channel).Ingest(request, timeout=TIMEOUT_S),
        patience_s=patience_s,
    )


def _receipt(producer: str, replies: list[storage_pb2.IngestReply]) -> Receipt:
    reached = ORIGIN
    for reply in replies:
        reached = reached.join(cursor_from_pb(reply.reached))
    return Receipt(
        rows=sum(reply.rows for reply in replies),
        paths=sum(reply.paths for reply in replies),
        batches=len(replies),
        duplicate_rows=sum(reply.duplicate_rows for reply in replies),
        reached=reached,
        producer=producer,
    )


async def _batches(
    schema: Schema, data: Batches, batch_rows: int
) -> AsyncGenerator[pa.Table, None]:
    if not isinstance(batch_rows, int | np.integer) or batch_rows < 1:
        raise InputError(f"expected batch_rows, a whole number of at least 1, got {batch_rows!r}")
    async with aclosing(_each(data)) as tables:
        async for given in tables:
            if not isinstance(given, Observations):
                raise _no_table(given)
            table = normalise(schema, given)
            for start in range(0, table.num_rows, batch_rows):
                for batch in within_bytes(table.slice(start, batch_rows)):
                    yield batch


async def _each(data: Batches) -> AsyncGenerator[Observations, None]:
    if isinstance(data, Observations):
        yield data
    elif isinstance(data, AsyncIterator):
        async for given in data:
            yield given
    elif is_stream(data):
        for given in data:
            yield given
            await asyncio.sleep(0)  # What was made of it is sent while the next one is awaited.
    else:
        raise _no_table(data)


def is_stream(data: Any) -> TypeGuard[Iterable[Observations]]:
    """Whether going through it could give tables, rather than letters, names or values."""
    is_one_thing = isinstance(data, Observations | str | bytes | os.PathLike | Mapping | pd.Series)
    return isinstance(data, Iterable) and not is_one_thing and not hasattr(data, "to_dataframe")


def _no_table(given: object) -> InvalidObservations:
    advice = ""
    if isinstance(given, str | os.PathLike):
        advice = "; files are read by `galileo ingest`, or by galileo.formats.open_source"
    elif hasattr(given, "to_dataframe"):
        advice = "; make it one by .to_dataframe().reset_index()"
    elif isinstance(given, Mapping | pd.Series | np.record):
        advice = "; make it one by pandas.DataFrame(...)"
    return InvalidObservations(
        "expected an Arrow table, batch or reader, a pandas DataFrame, or an iterable of them, "
        f"got {type(given).__name__}{advice}"
    )


def _is_full(running: _Running, size: int) -> bool:
    """Whether a batch of `size` bytes has to wait for one that is under way."""
    if len(running) < BATCHES_IN_FLIGHT_MIN:
        return False
    many = len(running) >= BATCHES_IN_FLIGHT_MAX
    return many or sum(running.values()) + size > BYTES_IN_FLIGHT_MAX


async def _some(running: _Running, progress: Progress | None) -> list[storage_pb2.IngestReply]:
    """Waits for at least one batch and takes those that are done out of `running`."""
    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    replies = [task.result() for task in done]
    for task in done:
        del running[task]
    if progress is not None:
        for reply in replies:
            progress(int(reply.rows))
    return replies
