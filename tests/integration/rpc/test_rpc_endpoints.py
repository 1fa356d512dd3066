"""Large parts of answers, which clients read from their owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from lone_nodes import lead_all_of, leave_all

import galileo
from galileo.dht import placement, topology_changes
from galileo.errors import IncompleteAnswer
from galileo.labels import LabelSet
from galileo.node.storage_node import StorageNode
from galileo.rpc.query import QueryServicer
from galileo.wire import codec
from galileo.wire.v1 import query_pb2

ROWS = 6_000
UNREACHABLE = "127.0.0.1:1"
Make = Callable[..., pa.Table]


@dataclass
class Behaviour:
    """What the nodes do.

    Attributes:
        breaks: nodes whose answers to endpoints break off after one part, once each.
        is_hidden: whether the addresses of endpoints cannot be reached.
        calls: node and request of every call.
    """

    breaks: set[str] = field(default_factory=set)
    is_hidden: bool = False
    calls: list[tuple[str, query_pb2.QueryRequest]] = field(default_factory=list)

    def partitions_read(self) -> dict[str, set[int]]:
        """By node, the partitions that were read from it as endpoints."""
        asked = [(node, set(request.partitions)) for node, request in self.calls]
        return {node: partitions for node, partitions in asked if partitions}


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour()


@pytest.fixture
def query_servicer(behaviour: Behaviour) -> type[QueryServicer]:
    class Servicer(QueryServicer):
        def __init__(self, node: StorageNode) -> None:
            super().__init__(node)
            self._name = node.name

        async def Run(
            self, request: query_pb2.QueryRequest, context: Any
        ) -> AsyncGenerator[query_pb2.QueryPart, None]:
            behaviour.calls.append((self._name, request))
            is_broken = bool(request.partitions) and self._name in behaviour.breaks
            async for part in super().Run(request, context):
                if behaviour.is_hidden:
                    for endpoint in part.tail.endpoints:
                        endpoint.address = UNREACHABLE
                yield part
                if is_broken:
                    behaviour.breaks.discard(self._name)
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the line broke")

    return Servicer


@pytest.fixture
def limits() -> dict[str, float]:
    """A few labels are a large answer."""
    return {"SMALL_BYTES_MAX": 2_000, "LABELS_PER_PART": 100}


@pytest.fixture
async def client(company: Any, make_observations: Make) -> AsyncIterator[galileo.AsyncClient]:
    """Of node a; the dataset has `ROWS` labels."""
    addresses = [company.topology.by_name[name].address for name in "acb"]
    async with galileo.AsyncClient(*addresses) as made:
        await made.create_dataset(company.schema)
        await made.ingest("nam", make_observations(ROWS), producer="p")
        yield made


def identities(labels: LabelSet) -> set[tuple[int, int, int]]:
    columns = labels.partitions, labels.sequences, labels.rows
    return set(zip(*(column.tolist() for column in columns), strict=True))


async def batches_of(client: galileo.AsyncClient) -> tuple[LabelSet, Any]:
    batches = client.query_batches("nam")
    parts = [labels async for labels in batches]
    assert batches.schema is not None
    return LabelSet.concat(batches.schema, parts), batches.end


async def test_query_reads_large_parts_from_their_owners(
    client: galileo.AsyncClient, company: Any, behaviour: Behaviour
) -> None:
    owned = placement.partitions_by_node(company.topology)
    counted: list[int] = []
    labels = await client.query("nam", progress=counted.append)
    assert labels.complete
    assert len(labels) == len(identities(labels)) == sum(counted) == ROWS
    assert set(labels.frontier) == set(company.topology.partitions)
    assert behaviour.partitions_read() == {node: set(owned[node]) for node in "bc"}
    behaviour.calls.clear()
    together, end = await batches_of(client)
    assert identities(together) == identities(labels)
    assert (end.labels, end.frontier, end.missing) == (ROWS, labels.frontier, ())
    assert behaviour.partitions_read() == {node: set(owned[node]) for node in "bc"}


async def test_query_with_small_parts_has_no_endpoints(
    client: galileo.AsyncClient, behaviour: Behaviour
) -> None:
    labels = await client.query("nam", "station = 's-7'")
    assert len(labels) == 1
    assert [node for node, _ in behaviour.calls] == ["a"]


@pytest.mark.slow
async def test_query_with_few_labels_of_long_texts_reads_them_from_their_owner(
    client: galileo.AsyncClient, make_observations: Make, behaviour: Behaviour
) -> None:
    """Together they are too long for one message."""
    table = make_observations(20, station="long" + "x" * (2 << 20))
    hot = table.set_column(3, table.schema.field(3), pa.array([999.0] * table.num_rows))
    await client.ingest("nam", hot, producer="long")
    labels = await client.query("nam", "temperature > 900")
    assert labels.complete
    assert len(labels) == 20
    assert "b" in behaviour.partitions_read()


async def test_query_of_a_client_without_endpoints_gets_everything_from_one_node(
    client: galileo.AsyncClient, company: Any
) -> None:
    whole = await client.query("nam")
    request = query_pb2.QueryRequest(dataset="nam")
    parts = [part async for part in company["a"].query.Run(request)]
    assert not parts[-1].tail.endpoints
    chunks = [part.labels for part in parts if part.labels]
    table = codec.table_of(chunks, company.schema.label_schema)
    assert identities(LabelSet(company.schema, table)) == identities(whole)
    limited = await client.query("nam", limit=ROWS - 1)
    assert len(limited) == ROWS - 1


async def test_query_with_unreachable_endpoints_reads_them_through_another_node(
    client: galileo.AsyncClient, behaviour: Behaviour
) -> None:
    behaviour.is_hidden = True
    for _ in range(2):
        labels = await client.query("nam")
        assert labels.complete
        assert len(identities(labels)) == len(labels) == ROWS
    together, end = await batches_of(client)
    assert end.complete
    assert len(identities(together)) == ROWS


async def test_query_repeats_a_part_whose_owner_is_lost_midway(
    client: galileo.AsyncClient, behaviour: Behaviour
) -> None:
    behaviour.breaks = {"b", "c"}
    counted: list[int] = []
    labels = await client.query("nam", progress=counted.append)
    assert not behaviour.breaks
    assert labels.complete
    assert len(identities(labels)) == len(labels) == sum(counted) == ROWS


async def test_query_batches_of_an_owner_that_is_lost_midway_name_its_partitions(
    client: galileo.AsyncClient, company: Any, behaviour: Behaviour
) -> None:
    whole = await client.query("nam")
    behaviour.breaks = {"b"}
    together, end = await batches_of(client)
    owned = placement.partitions_by_node(company.topology)["b"]
    assert end.missing == tuple(sorted(owned))
    assert owned.isdisjoint(end.frontier)
    kept = {one for one in identities(whole) if one[0] not in owned}
    assert identities(end.known(together)) == kept < identities(together)
    behaviour.breaks = {"b"}
    strict = client.query_batches("nam", require_complete=True)
    with pytest.raises(IncompleteAnswer):
        _ = [labels async for labels in strict]


async def test_query_of_an_owner_that_dies_before_its_part_is_partial(
    client: galileo.AsyncClient, company: Any, behaviour: Behaviour
) -> None:
    """The nodes learn of its death after it was named as an endpoint."""
    stub, request = (
        company["a"].query,
        query_pb2.QueryRequest(dataset="nam", accepts_endpoints=True),
    )
    [*_, tail] = [part.tail async for part in stub.Run(request)]
    named = {tuple(endpoint.partitions) for endpoint in tail.endpoints}
    owned = placement.partitions_by_node(company.topology)["b"]
    assert tuple(sorted(owned)) in named
    company.dead.add("b")
    request = query_pb2.QueryRequest(dataset="nam", partitions=sorted(owned))
    [*_, tail] = [part.tail async for part in stub.Run(request)]
    assert set(tail.missing) == owned


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
async def test_query_during_ingest_has_every_row_stored_before_it(
    client: galileo.AsyncClient, company: Any, make_observations: Make, seed: int
) -> None:
    """By each way to ask, at any node, whatever the nodes know of one another's commits."""
    rng = np.random.default_rng(seed)
    begun, stored = {f"s-{number}" for number in range(ROWS)}, set[str]()
    stored |= begun
    asked = 0

    async def ingest(batch: int) -> None:
        rows = int(rng.integers(1, 60))
        table = make_observations(rows, seed=100 * seed + batch, station=f"n{batch}")
        names = set(table.column("station").to_pylist())
        begun.update(names)
        await client.ingest("nam", table, producer=f"p{batch}")
        stored.update(names)

    async def ingest_all() -> None:
        for batch in range(12):
            await asyncio.gather(*(ingest(3 * batch + number) for number in range(3)))

    async def exchange() -> None:
        owner, node = rng.choice(company.topology.nodes, 2)
        shard = company[owner.name].node.catalog.shard("nam")
        for synopsis in shard.synopses().values():
            change = synopsis.changes_since(None)
            company[node.name].node.view.apply_synopsis(company.schema, change)

    async def ask() -> None:
        nonlocal asked
        text = str(
            rng.choice(["", "station LIKE 'n%'", "station LIKE 's-1%'", "temperature > 400"])
        )
        starts = {"": "", "station LIKE 'n%'": "n", "station LIKE 's-1%'": "s-1"}.get(text, "-")
        before = {name for name in stored if name.startswith(starts)}
        name = str(rng.choice(list("abc")))
        async with galileo.AsyncClient(company.topology.by_name[name].address) as other:
            if rng.random() < 0.5:
                labels = await other.query("nam", text)
            else:
                parts = [one async for one in other.query_batches("nam", text)]
                labels = LabelSet.concat(company.schema, parts)
        names = labels.table.column("station").to_pylist()
        assert len(names) == len(set(names)) == len(labels)
        assert before <= set(names) <= {one for one in begun if one.startswith(starts)}
        asked += 1

    ingesting = asyncio.create_task(ingest_all())
    while not ingesting.done() or asked < 5:
        await exchange()
        await asyncio.gather(ask(), ask())
    await ingesting


async def test_query_of_a_removed_node_is_answered_by_the_others(
    company: Any, make_observations: Make
) -> None:
    """A node that was removed goes on answering until all clients know the others."""
    without = topology_changes.remove_node(company.topology, "a")
    async with galileo.AsyncClient(company.topology.by_name["c"].address) as client:
        await client.create_dataset(company.schema)
        for served in company.members.values():
            served.node.live.replace_nodes(without)
        leave_all(company["a"].node)
        lead_all_of(company["c"].node)
        await client.ingest("nam", make_observations(ROWS), producer="p")
    async with galileo.AsyncClient(company.topology.by_name["a"].address) as client:
        assert len(await client.query("nam")) == ROWS
    async with galileo.AsyncClient(company.topology.by_name["a"].address) as client:
        assert await client.count("nam") == ROWS
