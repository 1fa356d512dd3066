"""How many batches are under way, with a router that the test has answer."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa
import pytest

from galileo.client.ingestion import (
    BATCHES_IN_FLIGHT_MAX,
    BATCHES_IN_FLIGHT_MIN,
    BYTES_IN_FLIGHT_MAX,
    Sending,
    send_all,
)
from galileo.errors import GalileoError, Unavailable
from galileo.formats import Mapping
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.wire.v1 import storage_pb2

SCHEMA = Schema("s", [Feature("t")])
ROW_BYTES = 32
TIMEOUT_S = 300.0


class SlowRouter:
    """Takes batches and answers them one by one, only when nothing more comes."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.most = 0
        self.calls = 0
        self._fails_at = fails_at

    async def ingest(
        self, schema: Schema, table: pa.Table, *, producer: str, batch: int, **_: bool
    ) -> list[storage_pb2.IngestReply]:
        self.calls += 1
        mine = self.calls
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(answered)
        self.most = max(self.most, len(self.waiting))
        await answered
        if mine == self._fails_at:
            raise Unavailable("no node could be reached")
        return [storage_pb2.IngestReply(rows=1, paths=1)]

    async def answer(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            if self.waiting:
                self.waiting.pop(0).set_result(None)


def table(rows: int) -> pa.Table:
    numbers = np.zeros(rows)
    columns = [pa.array(numbers), pa.array(numbers), times_from_micros(np.zeros(rows, np.int64))]
    return pa.table([*columns, pa.array(numbers)], schema=SCHEMA.observation_schema)


async def sent(router: SlowRouter, rows: int, *, batch_rows: int) -> int:
    """How many batches were acknowledged."""
    answering = asyncio.ensure_future(router.answer())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            receipt = await send_all(
                router,  # type: ignore[arg-type]
                Sending(SCHEMA, "p", batch_rows=batch_rows),
                data=table(rows),
                progress=None,
            )
    finally:
        answering.cancel()
    return receipt.batches


async def test_ingest_sends_small_batches_concurrently() -> None:
    router = SlowRouter()
    assert await sent(router, 400, batch_rows=4) == 100
    assert router.most == BATCHES_IN_FLIGHT_MAX


@pytest.mark.parametrize(("share", "most"), [(2, 2), (4, 4), (8, 8)])
async def test_ingest_bounds_the_bytes_in_flight(share: int, most: int) -> None:
    rows = BYTES_IN_FLIGHT_MAX // share // ROW_BYTES
    router = SlowRouter()
    assert await sent(router, 12 * rows, batch_rows=rows) == 12
    assert router.most == most


async def test_ingest_sends_the_largest_batches_two_at_a_time() -> None:
    rows = 2 * BYTES_IN_FLIGHT_MAX // ROW_BYTES
    router = SlowRouter()
    assert await sent(router, 3 * rows, batch_rows=rows) == 3
    assert router.most == BATCHES_IN_FLIGHT_MIN


async def test_ingest_failure_cancels_batches_in_flight() -> None:
    router = SlowRouter(fails_at=3)
    with pytest.raises(Unavailable):
        await sent(router, 400, batch_rows=4)
    assert router.calls < 100
    assert all(future.done() for future in router.waiting)


async def test_ingest_failure_names_the_producer() -> None:
    with pytest.raises(Unavailable) as caught:
        await sent(SlowRouter(fails_at=3), 400, batch_rows=4)
    assert caught.value.details["producer"] == "p"


@pytest.mark.parametrize(
    ("columns", "mapping"),
    [
        ("i AS t, 1 AS other, 1.0 AS latitude, 2.0 AS longitude, DATE '2014-03-01' AS time", ""),
        ("i AS t, 100.0 AS latitude, 2.0 AS longitude, DATE '2014-03-01' AS time", ""),
        ("i AS t", "t=t"),
        ("i AS u, 1.0 AS latitude, 2.0 AS longitude, DATE '2014-03-01' AS time", "t=v"),
        ("'x' AS t, 1.0 AS latitude, 2.0 AS longitude, DATE '2014-03-01' AS time", "t=t"),
    ],
)
def test_duckdb_relation_that_is_refused_leaves_its_connection_free(
    columns: str, mapping: str
) -> None:
    connection = pytest.importorskip("duckdb").connect()
    relation = connection.sql(f"SELECT {columns} FROM range(300_000) AS rows(i)")
    sending = Sending(SCHEMA, None, mapping=Mapping.parse(mapping.split()))
    with pytest.raises(GalileoError) as refused:
        asyncio.run(send_all(SlowRouter(), sending, data=relation, progress=None))  # type: ignore[arg-type]
    assert connection.execute("SELECT 2").fetchall() == [(2,)]
    assert refused.value.message
