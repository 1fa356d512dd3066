"""The way of rows from the owners of their partitions to a reader, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.client.reading import FEW_PARTS, read_parts
from galileo.client.routing import Router
from galileo.cursor import LostPosition, history_changed, lost_positions
from galileo.errors import DataExpired, HistoryChanged
from galileo.labels import from_ipc, to_ipc
from galileo.wire.caller import BackoffClock, Caller, CallOptions
from galileo.wire.v1 import storage_pb2

COLUMNS = pa.schema([("partition", pa.int32()), ("row", pa.int32())])
OWNERS = {partition: f"node-{partition // 2 % 3}:1" for partition in range(24)}
"""Each node owns neighbours, and each several times."""


def parts_of(partitions: Iterable[int], *, rows: int = 3) -> pa.Table:
    places = [{"partition": p, "row": row} for p in partitions for row in range(rows)]
    return pa.Table.from_pylist(places, schema=COLUMNS)


@dataclass
class Nodes:
    """Nodes that answer with the parts that they are asked for, as a caller.

    Attributes:
        errors: that an address answers with.
        asked: the parts of each call, by the address.
        open: streams that are read at the moment.
        open_max: the most at a time.
        sent: tables that readers have taken from streams.
    """

    errors: dict[str, Exception] = field(default_factory=dict)
    asked: list[tuple[str, storage_pb2.ReadRequest]] = field(default_factory=list)
    open_now: int = 0
    open_max: int = 0
    sent: int = 0
    options: CallOptions = field(default_factory=CallOptions)

    clock = BackoffClock()
    resume = Caller.resume
    backoff = Caller.backoff

    async def open(
        self, attempt: Callable[[Any], Any], first: Any, *, owner: str
    ) -> tuple[Any, Any]:
        stream = attempt(_Node(self, owner))
        try:
            return stream, await stream.read()
        except Exception:
            self.open_now -= 1
            raise

    async def while_live(self, address: str, work: Awaitable[Any]) -> Any:
        return await work


@dataclass
class _Node:
    nodes: Nodes
    address: str

    def stream(self, service: Any, method: str, request: Any, *, part_s: float) -> _Stream:
        assert method == "Read"
        self.nodes.asked.append((self.address, request))
        rows = from_ipc(request.parts, COLUMNS)
        return _Stream(self.nodes, self.address, rows.slice(0, request.limit or None))


class _Stream:
    """One row in each part of the answer."""

    def __init__(self, nodes: Nodes, address: str, rows: pa.Table) -> None:
        self.nodes, self.address, self.rows, self.at = nodes, address, rows, 0
        nodes.open_now += 1
        nodes.open_max = max(nodes.open_max, nodes.open_now)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.nodes.open_now -= 1

    async def read(self) -> Any:
        await asyncio.sleep(0)
        if self.address in self.nodes.errors:
            raise self.nodes.errors[self.address]
        row = self.rows.slice(self.at, 1)
        self.at += 1
        self.nodes.sent += row.num_rows
        return storage_pb2.ReadPart(observations=to_ipc(row)) if row.num_rows else None


def router_of(nodes: Any) -> Router:
    router = Router(nodes)

    async def owners(partitions: Iterable[int]) -> list[str]:
        return [OWNERS[partition] for partition in partitions]

    router.owners = owners  # type: ignore[method-assign]
    return router


def reading(nodes: Nodes, parts: pa.Table, **options: Any) -> Any:
    request = storage_pb2.ReadRequest(dataset="nam")
    if (limit := options.pop("limit", None)) is not None:
        request.limit = limit
    return read_parts(router_of(nodes), request, parts, columns=COLUMNS, **options)


@pytest.mark.parametrize("at_once", [1, 2, 8])
@pytest.mark.parametrize("parts_per_read", [2, 100])
async def test_read_parts_asks_owners_and_keeps_the_order(
    at_once: int, parts_per_read: int
) -> None:
    nodes, parts = Nodes(), parts_of([0, 1, 2, 3, 5, 6, 7, 11, 12, 23])
    tables = [
        t async for t in reading(nodes, parts, at_once=at_once, parts_per_read=parts_per_read)
    ]
    assert pa.concat_tables(tables) == parts
    for address, request in nodes.asked:
        asked = from_ipc(request.parts, COLUMNS).column("partition").to_pylist()
        assert {OWNERS[partition] for partition in asked} == {address}
        assert len(asked) <= parts_per_read
    if parts_per_read == 100:
        shares = [0, 2, 5, 6, 11, 12, 23]
        assert [address for address, _ in nodes.asked] == [OWNERS[p] for p in shares]
    assert nodes.open_max == min(at_once, 7)


async def test_read_parts_of_nothing_asks_no_node() -> None:
    nodes = Nodes()
    assert [t async for t in reading(nodes, parts_of([]))] == []
    assert nodes.asked == []


async def test_read_parts_one_by_one_reads_nothing_ahead() -> None:
    nodes = Nodes()
    tables = reading(nodes, parts_of(range(12), rows=100), at_once=1)
    await anext(tables)
    for _ in range(2_000):
        await asyncio.sleep(0)
    assert nodes.sent == 1
    await tables.aclose()
    assert nodes.open_now == 0


@pytest.mark.parametrize("parts_of_each", [2, FEW_PARTS])
async def test_read_parts_of_few_rows_with_copies_asks_one_node(
    parts_of_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Router, "has_copies", True)
    nodes, parts = Nodes(), parts_of([2, 4, 6], rows=parts_of_each)
    tables = reading(nodes, parts)
    await anext(tables)
    await tables.aclose()
    is_few = parts.num_rows <= FEW_PARTS
    assert nodes.asked[0][0] == OWNERS[2]
    assert from_ipc(nodes.asked[0][1].parts, COLUMNS).num_rows == (6 if is_few else parts_of_each)


@pytest.mark.parametrize("limit", [0, 4])
async def test_read_parts_with_a_limit_asks_one_node_for_all(limit: int) -> None:
    nodes, parts = Nodes(), parts_of([2, 4, 6])
    tables = reading(nodes, parts, limit=limit, parts_per_read=5)
    async for table in tables:
        assert table.num_rows == 1
    assert {address for address, _ in nodes.asked} <= {OWNERS[2]}
    asked = [request.limit for _, request in nodes.asked]
    assert asked == ([] if limit == 0 else [4])


@pytest.mark.parametrize("at_once", [1, 8])
async def test_read_parts_of_lost_commits_names_those_of_all_owners(at_once: int) -> None:
    lost = [LostPosition(2, 9, 5, 100), LostPosition(4, 8, 0, 0)]
    nodes = Nodes({OWNERS[one.partition]: history_changed("nam", [one]) for one in lost})
    tables, read = reading(nodes, parts_of([0, 2, 4, 6], rows=20), at_once=at_once), []

    async def read_all() -> None:
        async for table in tables:
            read.extend(table.column("partition").to_pylist())

    with pytest.raises(HistoryChanged) as raised:
        await read_all()
    assert lost_positions(raised.value) == lost
    assert read == [0] * 20


async def test_read_parts_ends_with_the_error_of_an_owner() -> None:
    nodes = Nodes({OWNERS[2]: DataExpired("dropped", partitions=[2])})
    with raises(DataExpired, partitions=[2]):
        [t async for t in reading(nodes, parts_of([0, 2, 4]))]
    assert nodes.open_now == 0
