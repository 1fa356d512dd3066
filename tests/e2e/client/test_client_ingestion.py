"""How many batches are under way, with a router that the test has answer."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from galileo.client.ingestion import (
    BATCHES_IN_FLIGHT_MAX,
    BATCHES_IN_FLIGHT_MIN,
    BYTES_IN_FLIGHT_MAX,
    Sending,
    _Sent,
    send_all,
)
from galileo.errors import GalileoError, Unavailable
from galileo.formats import Mapping
from galileo.model.paths import cells_from_table
from galileo.model.schema import Feature, Schema
from galileo.model.times import column_micros, times_from_micros
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


async def sent(
    router: SlowRouter, rows: pa.Table, *, batch_rows: int, schema: Schema = SCHEMA
) -> int:
    """How many batches were acknowledged."""
    answering = asyncio.ensure_future(router.answer())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            receipt = await send_all(
                router,  # type: ignore[arg-type]
                Sending(schema, "p", batch_rows=batch_rows),
                data=rows,
                progress=None,
            )
    finally:
        answering.cancel()
    return receipt.batches


async def test_ingest_sends_small_batches_concurrently() -> None:
    router = SlowRouter()
    assert await sent(router, table(400), batch_rows=4) == 100
    assert router.most == BATCHES_IN_FLIGHT_MAX


@pytest.mark.parametrize(("share", "most"), [(2, 2), (4, 4), (8, 8)])
async def test_ingest_bounds_the_bytes_in_flight(share: int, most: int) -> None:
    rows = BYTES_IN_FLIGHT_MAX // share // ROW_BYTES
    router = SlowRouter()
    assert await sent(router, table(12 * rows), batch_rows=rows) == 12
    assert router.most == most


async def test_ingest_sends_the_largest_batches_two_at_a_time() -> None:
    rows = 2 * BYTES_IN_FLIGHT_MAX // ROW_BYTES
    router = SlowRouter()
    assert await sent(router, table(3 * rows), batch_rows=rows) == 3
    assert router.most == BATCHES_IN_FLIGHT_MIN


KEYED = Schema("k", [Feature("station", type="int")], key="station", geohash_precision=2)
BATCHES = 100


class KeyedRouter(SlowRouter):
    """Counts how often a batch comes while one with a key in common is under way."""

    def __init__(self) -> None:
        super().__init__()
        self._under_way: list[set[tuple[int, int, int]]] = []
        self.overlaps = 0

    async def ingest(
        self, schema: Schema, table: pa.Table, **options: Any
    ) -> list[storage_pb2.IngestReply]:
        hours = column_micros(table.column("time")) // KEYED.time_bucket_us
        cells = cells_from_table(schema, table)
        keys = set(zip(cells.tolist(), hours.tolist(), table["station"].to_pylist(), strict=True))
        self.overlaps += sum(not keys.isdisjoint(others) for others in self._under_way)
        self._under_way.append(keys)
        try:
            return await super().ingest(schema, table, **options)
        finally:
            self._under_way.remove(keys)


def keyed_rows(latitudes: Any, hours: Any, stations: Any) -> pa.Table:
    zeros = np.zeros(len(stations))
    times = times_from_micros(hours * KEYED.time_bucket_us + stations % 7)
    columns = [pa.array(latitudes + zeros), pa.array(zeros), times, pa.array(stations)]
    return pa.table(columns, schema=KEYED.observation_schema)


@pytest.mark.parametrize("seed", range(6))
async def test_ingest_sends_batches_with_a_common_key_one_after_the_other(seed: int) -> None:
    chance, count = np.random.default_rng(seed), 4 * BATCHES
    rows = keyed_rows(
        chance.choice([10.0, 50.0], count),
        np.sort(chance.integers(-8, 8, count)),
        chance.integers(0, 20, count),
    )
    router = KeyedRouter()
    assert await sent(router, rows, batch_rows=4, schema=KEYED) == BATCHES
    assert not router.overlaps


async def test_ingest_sends_batches_of_different_hours_together() -> None:
    numbers = np.arange(4 * BATCHES)
    router, rows = KeyedRouter(), keyed_rows(10.0, numbers // 4, numbers % 4)
    assert await sent(router, rows, batch_rows=4, schema=KEYED) == BATCHES
    assert router.most == BATCHES_IN_FLIGHT_MAX


@pytest.mark.parametrize(("first", "shares"), [(0, True), (3, True), (4, False)])
def test_batches_of_one_hour_share_keys_where_stations_are_the_same(
    first: int, shares: bool
) -> None:
    batches = [
        _Sent.of(KEYED, keyed_rows(10.0, np.zeros(4, np.int64), start + np.arange(4)))
        for start in (0, first)
    ]
    assert batches[0].shares_keys(KEYED, batches[1:]) == shares


async def test_ingest_failure_cancels_batches_in_flight() -> None:
    router = SlowRouter(fails_at=3)
    with pytest.raises(Unavailable):
        await sent(router, table(400), batch_rows=4)
    assert router.calls < 100
    assert all(future.done() for future in router.waiting)


async def test_ingest_failure_names_the_producer() -> None:
    with pytest.raises(Unavailable) as caught:
        await sent(SlowRouter(fails_at=3), table(400), batch_rows=4)
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
