"""Answers and observations as streams, over connections that break."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import weakref
from collections.abc import AsyncIterator, Callable, Iterable

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

import galileo
from galileo.client import LabelBatches, Labels, QueryEnd, queries
from galileo.client.cluster_caller import cluster_caller
from galileo.client.reading import read_batches
from galileo.cursor import Cursor
from galileo.errors import (
    DeadlineExceeded,
    InputError,
    QuerySyntaxError,
    Unavailable,
    UnknownDataset,
)
from galileo.labels import LabelSet
from galileo.model.rows import RowOptions
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.wire.v1 import query_pb2

Fresh = Callable[[str], str]

ROWS = 60_000
IDENTITY = ["partition", "sequence", "row"]
IO_BYTES = 1 << 14
WITHIN_ANSWER_BYTES = 1_600_000
"""An answer takes 2.6 MB, its largest message half of that. So one message has come by then, and
another one has not, whichever node sends its labels first."""
THROUGH_ONE_NODE = 10 * ROWS
"""All labels of an answer with a limit come from the node that is called."""


class Line:
    """A TCP connection between client and node that breaks at a chosen byte.

    Attributes:
        cut_after: bytes of the node after which it breaks; None: it holds.
        may_cut: it holds back what lies behind its break, and breaks once this is set.
        cuts: how often it still breaks; then no connection is accepted.
        silent: whether it says nothing more, instead of breaking.
    """

    def __init__(self, address: str) -> None:
        self._host, port = address.split(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self.cut_after: int | None = None
        self.may_cut = asyncio.Event()
        self.may_cut.set()
        self.cuts = 1
        self.silent = False
        self.address = ""
        self._joins: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Line:
        self._server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._joins:
            task.cancel()
        await asyncio.gather(*self._joins, return_exceptions=True)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._joins.add(task)
        if not self.cuts:
            await _closed(writer)
            return
        there, back = await asyncio.open_connection(self._host, self._port)
        up = asyncio.create_task(self._carry(reader, back, counted=False))
        down = asyncio.create_task(self._carry(there, writer, counted=True))
        # A cancelled task of a server is an error to asyncio in Python 3.11, so it ends in peace.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        for one in (up, down):
            one.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(up, down, return_exceptions=True)
        with contextlib.suppress(asyncio.CancelledError):
            await _closed(writer, back)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        while data := await source.read(IO_BYTES):
            if counted and self.cut_after is not None:
                self.cut_after -= len(data)
                if self.cut_after < 0:
                    if self.silent:
                        await asyncio.Event().wait()
                    await self.may_cut.wait()
                    self.cuts, self.cut_after = self.cuts - 1, None
                    return
            sink.write(data)
            await sink.drain()


async def _closed(*ends: asyncio.StreamWriter) -> None:
    for end in ends:
        end.close()
        with contextlib.suppress(OSError):
            await end.wait_closed()


@pytest.fixture(scope="module")
def stored(client: galileo.Client, fresh_name: Fresh) -> str:
    """A dataset with a label for each observation, in several commits of many partitions."""
    name = fresh_name("streams")
    client.create_dataset(
        Schema(
            name,
            [Feature("number", type="int"), Feature("note", type="text", indexed=False)],
            geohash_precision=3,
        )
    )
    rng = np.random.default_rng(5)
    table = pa.table(
        {
            "latitude": rng.uniform(-80, 80, ROWS),
            "longitude": rng.uniform(-180, 180, ROWS),
            "time": pa.array(np.full(ROWS, 1_393_632_000_000_000)).cast(TIME_TYPE),
            "number": np.arange(ROWS),
            "note": [f"observation number {number}" for number in range(ROWS)],
        }
    )
    client.ingest(name, table, batch_rows=20_000)
    return name


@pytest.fixture
async def line(cluster: galileo.LocalCluster) -> AsyncIterator[Line]:
    async with Line(cluster.addresses[0]) as made:
        yield made


def identities(table: pa.Table) -> list[tuple[int, ...]]:
    return sorted(zip(*(table.column(name).to_pylist() for name in IDENTITY), strict=True))


async def counted(batches: LabelBatches, given: list[int], *, line: Line) -> None:
    """Notes how many labels each batch has; the line may break once there is one."""
    async for labels in batches:
        given += [len(labels)]
        line.may_cut.set()


# --- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "number < 5", "number < 0"])
def test_query_batches_equal_the_query(client: galileo.Client, stored: str, query: str) -> None:
    whole = client.query(stored, query)
    batches = client.query_batches(stored, query)
    assert batches.end is None
    found = list(batches)
    assert batches.end == QueryEnd(len(whole), whole.frontier, ())
    assert batches.end.complete
    assert all(isinstance(one, Labels) and 0 < len(one) <= 32_768 for one in found)
    assert {one.query for one in found} <= {whole.query}
    together = LabelSet.concat(whole.schema, found)
    assert identities(together.table) == identities(whole.table)
    assert list(batches) == []


def test_query_batches_can_be_closed_early(client: galileo.Client, stored: str) -> None:
    with client.query_batches(stored) as batches:
        assert len(next(batches)) > 0
    assert batches.end is None
    assert list(batches) == []


def test_query_batches_of_an_invalid_query_fail_at_the_first(
    client: galileo.Client, stored: str
) -> None:
    with pytest.raises(QuerySyntaxError):
        next(client.query_batches(stored, "number >"))
    with pytest.raises(UnknownDataset):
        next(client.query_batches("nowhere"))


def test_read_of_each_batch_equals_read_of_all(client: galileo.Client, stored: str) -> None:
    query = "number < 30000"
    tables = [
        t for labels in client.query_batches(stored, query) for t in client.read_batches(labels)
    ]
    numbers = pa.concat_tables(tables).column("number").to_pylist()
    assert sorted(numbers) == list(range(30_000))


def test_query_batches_of_a_client_that_was_closed_can_be_dropped(
    cluster: galileo.LocalCluster, stored: str
) -> None:
    one = galileo.connect(*cluster.addresses)
    batches = one.query_batches(stored)
    next(batches)
    one.close()
    with raises(InputError):
        next(batches)
    del batches
    gc.collect()


async def test_query_batches_retry_before_the_first_labels(
    cluster: galileo.LocalCluster, line: Line, stored: str
) -> None:
    line.cut_after = 0
    async with galileo.AsyncClient(line.address, cluster.addresses[1]) as client:
        batches = client.query_batches(stored)
        count = sum([len(labels) async for labels in batches])
    assert line.cuts == 0
    assert count == ROWS
    assert batches.end is not None
    assert batches.end.labels == ROWS


async def test_query_batches_lost_after_labels_are_unavailable(
    cluster: galileo.LocalCluster, line: Line, stored: str
) -> None:
    line.cut_after = WITHIN_ANSWER_BYTES
    line.may_cut.clear()
    async with galileo.AsyncClient(line.address, cluster.addresses[1]) as client:
        batches = client.query_batches(stored, limit=THROUGH_ONE_NODE)
        given: list[int] = []
        with raises(Unavailable) as lost:
            await counted(batches, given, line=line)
        assert lost.value.details["labels"] == sum(given)
        assert 0 < sum(given) < ROWS
        assert batches.end is None
        assert len(await client.query(stored)) == ROWS, "which asks again by itself"


async def test_query_retries_after_a_lost_node(
    cluster: galileo.LocalCluster, line: Line, stored: str
) -> None:
    line.cut_after = 1 << 20
    async with galileo.AsyncClient(line.address, cluster.addresses[1]) as client:
        labels = await client.query(stored, limit=THROUGH_ONE_NODE)
    assert line.cuts == 0
    assert len(set(identities(labels.table))) == len(labels) == ROWS


def test_query_end_known_drops_labels_of_missing_partitions() -> None:
    schema = Schema("nam", [Feature("number", indexed=False)], geohash_precision=3)
    rows = {"cell": 1, "bucket": 0, "row": 0, "rows": 1, "sequence": 2}
    places = [rows | {"partition": partition} for partition in (0, 1, 1, 2)]
    labels = LabelSet(schema, pa.Table.from_pylist(places, schema=schema.label_schema))
    for frontier in (Cursor({0: 2, 1: 2}), Cursor({})):  # A limit leaves the frontier empty.
        end = QueryEnd(4, frontier, (1, 2))
        assert not end.complete
        assert end.known(labels).partitions.tolist() == [0]


# --- observations --------------------------------------------------------------------------------


def read_through(client: galileo.AsyncClient, address: str, *, instead_of: str = "") -> None:
    """Has a client read at an address what it would at that of an owner, or of any owner."""
    find_owners = client._router.owners

    async def owners(partitions: Iterable[int]) -> list[str]:
        found = await find_owners(partitions)
        return [address if instead_of in ("", owner) else owner for owner in found]

    client._router.owners = owners  # type: ignore[method-assign]


async def notes(batches: AsyncIterator[pa.Table]) -> list[str]:
    return [note async for table in batches for note in table.column("note").to_pylist()]


@pytest.mark.parametrize("after", [0, 200_000, 1_500_000])
async def test_read_continues_at_another_node(
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    line: Line,
    stored: str,
    after: int,
) -> None:
    """No row is lost, none comes twice, and all come in the order in which any node sends them."""
    labels = client.query(stored)
    expected = [n for t in client.read_batches(labels) for n in t.column("note").to_pylist()]
    assert len(set(expected)) == len(expected) == ROWS
    async with galileo.AsyncClient(line.address, cluster.addresses[1]) as other:
        await other.status()
        read_through(other, line.address)
        line.cut_after = after
        pieces = read_batches(
            other._router, labels, exact=True, options=RowOptions(), parts_per_read=25_000
        )
        assert await notes(pieces) == expected
    assert line.cuts == 0


@pytest.mark.parametrize("after", [0, 200_000])
async def test_read_of_several_owners_continues_where_one_is_lost(
    cluster: galileo.LocalCluster, line: Line, stored: str, after: int
) -> None:
    async with galileo.AsyncClient(*cluster.addresses) as other:
        labels = await other.query(stored)
        expected = await notes(other.read_batches(labels))
        assert len(set(await other._router.owners(labels.partitions.tolist()))) == 3
        read_through(other, line.address, instead_of=cluster.addresses[0])
        line.cut_after = after
        table = await other.read(labels)
        assert table.column("note").to_pylist() == expected
        assert line.cuts == 0
        assert await notes(other.read_batches(labels)) == expected, "while the owner is avoided"


async def test_read_continues_over_many_breaks(
    client: galileo.Client, line: Line, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the one node that there is; each break comes after some more rows."""
    labels = client.query(stored)
    expected = [n for t in client.read_batches(labels) for n in t.column("note").to_pylist()]
    line.cuts, line.cut_after = 4, 200_000
    async with galileo.AsyncClient(line.address, timeout="5s") as other:
        monkeypatch.setattr(other._caller, "addresses", [line.address])
        monkeypatch.setattr(other._caller, "_discovered_at", math.inf)
        read_through(other, line.address)
        found: list[str] = []
        async for table in other.read_batches(labels):
            found += table.column("note").to_pylist()
            if line.cuts > 1 and line.cut_after is None:
                line.cut_after = 0
    # What the network had taken on already comes before a break; so only the first one is certain.
    assert 1 <= line.cuts < 4
    assert found == expected


async def test_read_ends_after_its_timeout(
    client: galileo.Client, line: Line, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = client.query(stored)
    async with galileo.AsyncClient(line.address, timeout="300ms") as other:
        monkeypatch.setattr(other._caller, "_discovered_at", math.inf)
        await other.status()
        read_through(other, line.address)
        line.cut_after = 1_500_000
        with pytest.raises(Unavailable):
            await notes(other.read_batches(labels))
    assert line.cuts == 0


async def test_query_batches_of_a_silent_node_are_unavailable(
    line: Line, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "PART_S", 2.0)
    line.cut_after, line.silent = WITHIN_ANSWER_BYTES, True
    async with galileo.AsyncClient(line.address, timeout="500ms") as client:
        batches = client.query_batches(stored, limit=THROUGH_ONE_NODE)
        await anext(batches)
        with raises(Unavailable) as lost:
            _ = [labels async for labels in batches]
    # The ping of gRPC may notice first.
    cause = lost.value.__cause__
    assert isinstance(cause, DeadlineExceeded) or "ping timeout" in str(cause)


def test_query_batches_dropped_are_freed_at_once() -> None:
    """Else their answer goes on at the nodes for as long as the collector has nothing to do."""

    async def never() -> query_pb2.QueryRequest:
        raise AssertionError("nothing is asked for")

    gc.disable()
    try:
        batches = LabelBatches(cluster_caller(["127.0.0.1:1"]), never)
        dropped = weakref.ref(batches)
        del batches
        assert dropped() is None
    finally:
        gc.enable()
