"""The system tables that clients read and write, in clusters with one copy of their data."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from replica_nodes import TOPOLOGY, World, until, voters

from galileo.dht import placement
from galileo.dht.topology import SYSTEM
from galileo.errors import TransientError
from galileo.model.broker import BROKERS
from galileo.model.reader import POSITIONS
from galileo.model.table import Table
from galileo.node.peers import TableTask
from galileo.node.storage_node import StorageNode

NOW = dt.datetime(2026, 5, 2, tzinfo=dt.UTC)
READER, BROKER = "reader/nam/nightly", "broker/hot/mail"
T = TypeVar("T")


class OneCopy(World):
    """Three nodes with one copy of data."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 0, topology=replace(TOPOLOGY, replicas=1))
        self.is_calm, self._stored = True, 0

    def nodes(self) -> list[StorageNode]:
        return [host.node for host in self.hosts.values()]

    async def eventually(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a call that a client repeats while another leader is looked for."""
        results: list[T] = []

        async def attempt() -> None:
            try:
                results.append(await call())
            except TransientError:
                await until(self, lambda: self.leader() in self.hosts)

        while not results:
            await attempt()
        return results[0]

    def leader(self) -> str:
        return placement.owner(self.nodes()[0].topology, SYSTEM)

    async def store(self, node: StorageNode, table: Table, **row: Any) -> None:
        rows = pa.Table.from_pylist([row], schema=table.arrow_schema)
        self._stored += 1
        batch = self._stored

        async def attempt() -> None:
            await node.ingest.ingest(table.key, rows, producer="p", batch=batch)

        await self.eventually(attempt)

    async def rows(
        self, node: StorageNode, table: Table, keys: list[str] | None = None
    ) -> pa.Table:
        asked = None if keys is None else pa.table([keys], schema=table.key_schema)

        async def attempt() -> pa.Table:
            parts = [part.rows async for part in node.tables.read(TableTask(table.key, keys=asked))]
            return pa.concat_tables(parts)

        return await self.eventually(attempt)


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    made = OneCopy(tmp_path)
    await made.begin()
    yield made
    await made.close()


async def test_brokers_and_positions_outlive_any_one_node_where_data_has_one_copy(
    world: OneCopy,
) -> None:
    await until(world, lambda: len(voters(world).get(SYSTEM, ())) == 3)
    lost = world.leader()
    for number, node in enumerate(world.nodes(), start=1):
        await world.store(node, BROKERS, name="mail", paused=str(number))
        await world.store(node, POSITIONS, reader=BROKER, token="")
        await world.store(node, POSITIONS, reader=READER, hold_us=number, stored_at=NOW)
    await world.crash(lost, is_lost=True)
    assert len(world.nodes()) == 2
    for number, node in enumerate(world.nodes(), start=4):
        for other in world.nodes():
            [row] = (await world.rows(other, POSITIONS, [READER])).to_pylist()
            assert row["hold_us"] == number - 1
            assert {*(await world.rows(other, POSITIONS))["reader"].to_pylist()} == {READER, BROKER}
            [broker] = (await world.rows(other, BROKERS)).to_pylist()
            assert broker["paused"] == str(number - 1)
        await world.store(node, BROKERS, name="mail", paused=str(number))
        await world.store(node, POSITIONS, reader=BROKER, token="")
        await world.store(node, POSITIONS, reader=READER, hold_us=number, stored_at=NOW)
