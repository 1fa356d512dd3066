"""The services of a node over real sockets: what is sent, what is refused, what is partial."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pyarrow as pa
import pytest
import shapely

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement, topology_changes
from galileo.dht.topology import SYSTEM, Move
from galileo.errors import (
    ConfigError,
    DatasetExists,
    GalileoError,
    InputError,
    InvalidObservations,
    Unavailable,
    UnknownDataset,
)
from galileo.labels import to_ipc
from galileo.model.channel import Channel
from galileo.model.schema import FEATURES_MAX, Feature, Schema, StoredSchema
from galileo.model.system import DATASETS
from galileo.model.system_rows import PAGE_BYTES_MAX
from galileo.model.table import Table
from galileo.node.channel_cuts import ChannelCuts
from galileo.node.definitions import BYTES_MAX, CreateDataset
from galileo.node.peers import PARTS_SCHEMA, CommitTask
from galileo.query import Query
from galileo.query import query as parsing
from galileo.rpc.internal import PROTOCOL
from galileo.rpc.storage import SCAN_ITEMS_MAX
from galileo.wire import codec
from galileo.wire.codec import CHUNK_BYTES_MAX
from galileo.wire.status import error_of_rpc
from galileo.wire.v1 import analytics_pb2, cluster_pb2, common_pb2, query_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

Make = Callable[..., pa.Table]


async def create(company: Any, at: str = "a", schema: StoredSchema | None = None) -> None:
    text = (schema or company.schema).to_json()
    await company[at].cluster.CreateDataset(cluster_pb2.CreateDatasetRequest(schema_json=text))


async def ingest(company: Any, data: pa.Table | bytes, *, at: str = "a", batch: int = 0) -> Any:
    packed = data if isinstance(data, bytes) else to_ipc(data)
    request = Bulk(
        storage_pb2.IngestRequest(dataset="nam", producer="p", batch=batch), pa.py_buffer(packed)
    )
    return await company[at].storage.Ingest(request)


async def ask(company: Any, query: str = "", *, at: str = "a") -> tuple[pa.Table, Any]:
    call = company[at].query.Run(query_pb2.QueryRequest(dataset="nam", query=query))
    parts = [part async for part in call]
    assert [part.HasField("head") for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.HasField("tail") for part in parts] == [False] * (len(parts) - 1) + [True]
    labels = [part.labels for part in parts if part.labels]
    return codec.table_of(labels, company.schema.label_schema), parts[-1].tail


async def error(call: Awaitable[Any]) -> GalileoError:
    with pytest.raises(grpc.RpcError) as failed:
        await call
    return error_of_rpc(failed.value, asked="the test")


async def stream_error(call: Any) -> GalileoError:
    async def drained() -> None:
        async for _ in call:
            pass

    return await error(drained())


# --- datasets ------------------------------------------------------------------------------------


async def test_create_dataset_at_any_node_is_listed_at_all(company: Any) -> None:
    await create(company, "b")
    for name in "abc":
        listed = await company[name].cluster.ListDatasets(cluster_pb2.ListDatasetsRequest())
        assert list(listed.schemas_json) == [company.schema.to_json()]


async def test_create_dataset_refused_by_the_leader_keeps_its_error(company: Any) -> None:
    await create(company)
    for name in "abc":
        refused = await error(create(company, name))
        assert type(refused) is DatasetExists
        assert refused.details["same"] is True


async def test_create_dataset_with_an_invalid_schema_is_refused(company: Any) -> None:
    request = cluster_pb2.CreateDatasetRequest(schema_json="{}")
    refused = await error(company["a"].cluster.CreateDataset(request))
    assert refused.kind == "invalid_schema"


@pytest.fixture
async def late(company: Any) -> Schema:
    """A dataset that c has not heard of, because the others held it dead."""
    schema = Schema("late", company.schema.features, geohash_precision=2, time_bucket="1d")
    company.dead.add("c")
    await create(company, "b", schema)
    company.dead.clear()
    assert schema.name not in company["c"].node.catalog.names
    return schema


async def test_ingest_for_a_node_that_missed_the_dataset_is_stored(
    company: Any, late: Schema, make_observations: Make
) -> None:
    request = Bulk(
        storage_pb2.IngestRequest(dataset=late.name, producer="p"),
        pa.py_buffer(to_ipc(make_observations(300))),
    )
    assert (await company["a"].storage.Ingest(request)).rows == 300
    assert company["c"].node.catalog.schema(late.name) == late


async def test_query_at_a_node_that_missed_the_dataset_is_complete(
    company: Any, late: Schema, make_observations: Make
) -> None:
    request = query_pb2.QueryRequest(dataset=late.name)
    parts = [part async for part in company["c"].query.Run(request)]
    assert parts[0].head.schema_json == late.to_json()
    assert not parts[-1].tail.missing


async def test_ingest_at_a_node_that_missed_the_dataset_is_stored(
    company: Any, late: Schema, make_observations: Make
) -> None:
    request = Bulk(
        storage_pb2.IngestRequest(dataset=late.name, producer="p"),
        pa.py_buffer(to_ipc(make_observations(300))),
    )
    assert (await company["c"].storage.Ingest(request)).rows == 300


async def test_query_of_an_unknown_dataset_names_the_nearest(company: Any) -> None:
    await create(company)
    request = query_pb2.QueryRequest(dataset="nan")
    for name in "abc":
        refused = await stream_error(company[name].query.Run(request))
        assert type(refused) is UnknownDataset
        assert refused.details["nearest"] == "nam"


async def test_node_of_another_protocol_is_not_added(company: Any) -> None:
    request = cluster_pb2.AddNodeRequest(
        name="d", address="127.0.0.1:9", identity="i", protocol=PROTOCOL + 1
    )
    refused = await error(company["a"].cluster.AddNode(request))
    assert type(refused) is ConfigError
    assert (refused.details["node"], refused.details["expected"]) == ("d", PROTOCOL)


# --- observations --------------------------------------------------------------------------------


async def test_read_returns_ingested_rows_from_every_node(
    company: Any, make_observations: Make
) -> None:
    await create(company)
    table = make_observations(500)
    reply = await ingest(company, table)
    assert (reply.rows, reply.duplicate_rows) == (500, 0)
    labels, tail = await ask(company, at="b")
    assert labels.num_rows == reply.paths
    assert codec.cursor_from_pb(tail.frontier) == codec.cursor_from_pb(reply.reached)
    parts = to_ipc(labels.select(PARTS_SCHEMA.names))
    request = storage_pb2.ReadRequest(dataset="nam", parts=parts)
    chunks = [part.observations async for part in company["c"].storage.Read(request)]
    back = codec.table_of(chunks, company.schema.observation_schema)
    assert back.sort_by("station").equals(table.sort_by("station"))


def with_wrong_offsets(table: pa.Table) -> bytes:
    """An IPC stream that reads without complaint, whose texts lie outside of their buffer."""
    good = to_ipc(table.slice(0, 2).combine_chunks())
    offsets, wrong = np.array([[0, 3, 6], [0, 2**30, 6]], dtype=np.int32)
    assert good.count(offsets.tobytes()) == 1
    return good.replace(offsets.tobytes(), wrong.tobytes())


@pytest.mark.parametrize("case", ["rubbish", "nothing", "cut short", "wrong offsets"])
async def test_ingest_of_invalid_arrow_bytes_is_refused(
    company: Any, make_observations: Make, case: str
) -> None:
    await create(company)
    good = to_ipc(make_observations(10))
    bad = {
        "rubbish": b"\x01" * 100,
        "nothing": b"",
        "cut short": good[: len(good) // 2],
        "wrong offsets": with_wrong_offsets(make_observations(10)),
    }
    refused = await error(ingest(company, bad[case]))
    assert type(refused) is InvalidObservations
    assert (await ask(company))[0].num_rows == 0
    assert (await ingest(company, good)).rows == 10


def rows_of_sites(*places: bytes) -> pa.Table:
    return pa.table({"id": [str(number) for number in range(len(places))], "place": places})


@pytest.mark.parametrize(
    "hostile",
    [
        struct.pack("<BII", 1, 6, 1) * 200_000,
        struct.pack("<BII", 1, 4, 1) * 200_000 + shapely.Point(1, 2).wkb,
        struct.pack("<BII", 1, 3, 2**32 - 1),
        struct.pack("<BII", 1, 3, 1_000_000) + bytes(4_000_000),
        shapely.Point(1, 91).wkb,
        shapely.GeometryCollection([shapely.Point(1, 2)]).wkb,
        b"POINT (1 2)",
        b"",
    ],
    ids=lambda hostile: hostile[:12].hex() or "nothing",
)
async def test_ingest_of_hostile_geometries_is_refused(company: Any, hostile: bytes) -> None:
    await create(company, schema=Table("nam", {"id": "text", "place": "geometry"}, key="id"))
    good = shapely.Point(1, 2).wkb
    refused = await error(ingest(company, rows_of_sites(good, hostile)))
    assert type(refused) is InvalidObservations
    assert (refused.details["column"], refused.details["row"]) == ("place", 1)
    assert (await ingest(company, rows_of_sites(good))).rows == 1


async def test_commit_of_another_schema_is_refused(company: Any, make_observations: Make) -> None:
    await create(company)
    for data in (to_ipc(make_observations(5).drop_columns(["station"])), b"rubbish"):
        task = CommitTask("nam", "p", 0, pa.py_buffer(data))
        with pytest.raises(InputError):
            await company["b"].peers.commit("a", task)


async def test_ingest_with_a_dead_owner_is_unavailable(
    company: Any, make_observations: Make
) -> None:
    await create(company)
    company.dead.add("b")
    refused = await error(ingest(company, make_observations(300)))
    assert type(refused) is Unavailable
    assert refused.details.items() >= {"node": "b", "after_s": 1.0}.items()
    company.dead.clear()
    assert (await ingest(company, make_observations(300))).rows == 300
    assert (await ask(company))[0].column("rows").to_numpy().sum() == 300


async def test_query_with_a_stopped_node_is_partial(company: Any, make_observations: Make) -> None:
    await create(company)
    await ingest(company, make_observations(300))
    whole, _ = await ask(company)
    await company["b"].server.stop(None)
    partial, tail = await ask(company)
    theirs = placement.partitions_by_node(company.topology)["b"]
    assert set(tail.missing) == theirs
    assert set(tail.frontier.partitions).isdisjoint(theirs)
    kept = ~np.isin(whole.column("partition").to_numpy(), list(theirs))
    assert partial.num_rows == kept.sum()


@pytest.mark.slow
async def test_query_of_wide_rows_returns_bounded_messages(
    company: Any, make_observations: Make
) -> None:
    await create(company)
    table = make_observations(50, station="x" * 1_000_000)
    await ingest(company, table)
    call = company["a"].query.Run(query_pb2.QueryRequest(dataset="nam"))
    sizes = [len(part.labels) async for part in call if part.labels]
    assert len(sizes) > 3
    assert max(sizes) < CHUNK_BYTES_MAX + 2_000_000
    labels, _ = await ask(company)
    assert sorted(labels.column("station").to_pylist()) == sorted(
        table.column("station").to_pylist()
    )


# --- scans ---------------------------------------------------------------------------------------


async def test_scan_above_items_max_is_refused(company: Any) -> None:
    items = [storage_pb2.ScanItem()] * (SCAN_ITEMS_MAX + 1)
    refused = await stream_error(company["a"].storage.Scan(storage_pb2.ScanRequest(items=items)))
    assert isinstance(refused, InputError)
    assert refused.details["bound"] == SCAN_ITEMS_MAX


async def test_scan_items_fail_separately(company: Any, make_observations: Make) -> None:
    await create(company)
    await ingest(company, make_observations(300))
    mine = sorted(placement.partitions_by_node(company.topology)["a"])
    items = [
        storage_pb2.ScanItem(item=1, dataset="nam", query_json="true", partitions=mine),
        storage_pb2.ScanItem(item=2, dataset="nan", query_json="true", partitions=mine),
        storage_pb2.ScanItem(item=3, dataset="nam", query_json="{", partitions=mine),
    ]
    call = company["a"].storage.Scan(storage_pb2.ScanRequest(items=items))
    parts = [part async for reply in call for part in reply.parts]
    last = {part.item: part for part in parts}
    assert last[1].WhichOneof("part") == "reached"
    assert {2: last[2].error.kind, 3: last[3].error.kind} == {
        2: "unknown_dataset",
        3: "query_syntax",
    }
    assert [part.item for part in parts if part.labels]


async def test_scan_with_an_unpaired_cursor_is_refused(company: Any) -> None:
    await create(company)
    after = common_pb2.Cursor(partitions=[1], sequences=[])
    request = storage_pb2.ScanRequest(items=[storage_pb2.ScanItem(dataset="nam", after=after)])
    refused = await stream_error(company["a"].storage.Scan(request))
    assert isinstance(refused, InputError)


# --- the cluster ---------------------------------------------------------------------------------


async def test_status_names_unreachable_nodes(company: Any) -> None:
    company.dead.add("b")
    reply = await company["a"].cluster.Status(cluster_pb2.StatusRequest())
    assert {node.name: node.state for node in reply.nodes} == {
        "a": "up",
        "b": "unreachable",
        "c": "up",
    }
    east = next(node for node in reply.nodes if node.name == "b")
    assert (east.group, east.address) == ("east", company.topology.by_name["b"].address)


async def test_status_of_a_node_that_is_removed_meanwhile_is_unreachable(company: Any) -> None:
    pinned = topology_changes.pin(company.topology)
    moved = tuple(Move(p, 1, "a") for p in sorted(placement.partitions_by_node(pinned)["c"]))
    without = topology_changes.remove_node(replace(pinned, moved=moved), "c")

    class Removing(set[str]):
        """Nodes that are dead; the first look removes one of them."""

        def __contains__(self, name: object) -> bool:
            company["a"].node.live.replace_nodes(without)
            return super().__contains__(name)

    company.dead = Removing({"c"})
    reply = await company["a"].cluster.Status(cluster_pb2.StatusRequest())
    assert {node.name: node.state for node in reply.nodes} == {
        "a": "up",
        "b": "up",
        "c": "unreachable",
    }


async def test_topology_is_served_by_every_node(company: Any) -> None:
    for served in company.members.values():
        reply = await served.cluster.Topology(cluster_pb2.TopologyRequest())
        assert reply.topology_json == served.node.topology.to_json()


async def test_owner_of_a_table_learns_what_channels_compare_with(
    company: Any, make_observations: Make
) -> None:
    await create(company)
    table = Table("limits", {"name": "text", "least": "float"}, "name")
    await create(company, schema=table)
    lookup = {"limits": ":name"}
    template = "temperature > limits.least"
    await create(company, schema=Channel("hot", "nam", template, lookup=lookup, new="either"))
    nodes = [company[name].node for name in "abc"]
    subscribed = {"id": ["s"], "broker": ["me"], "name": ["x"], "deleted": [False]}
    stored = {"name": ["x"], "least": [0.0], "deleted": [False]}
    for name, rows in (("hot.subscriptions", subscribed), ("limits", stored)):
        schema = nodes[1].catalog.table_shard(name).schema.observation_schema
        await nodes[1].ingest.ingest(name, pa.table(rows, schema=schema), producer="p", batch=0)
    loop, observed = asyncio.get_running_loop(), make_observations(9)
    cuts = [ChannelCuts(node.catalog, node.channel_reader, loop=loop) for node in nodes]
    partitions = nodes[0].catalog.channel_shard("hot").schema.partitions
    known = nodes[0].catalog.table_shard("limits").schema
    for one in cuts:
        assert await one.compared(known) == [EMPTY_CURSOR] * partitions
    reached = (await nodes[0].ingest.ingest("nam", observed, producer="p", batch=0)).reached
    for node in nodes:
        node.view.update_sequences("nam", reached)
        await node.channels.execute("hot")
    rows = Cursor.joined(node.catalog.shards["limits"].own_published().sequences for node in nodes)
    assert rows
    for one in cuts:
        assert await one.compared(known) == [rows] * partitions
    await company["c"].server.stop(None)
    assert await cuts[0].compared(known) == [EMPTY_CURSOR]


async def test_long_queries_are_parsed_off_the_event_loop(
    company: Any, make_observations: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of a hostile polygon takes seconds, in which a node would look dead."""
    await create(company)
    await ingest(company, make_observations(200))
    read, threads = parsing._parse, set[int]()

    def noted(source: str, schema: Schema) -> Query:
        threads.add(threading.get_ident())
        return read(source, schema)

    monkeypatch.setattr(parsing, "_parse", noted)
    top = ", ".join(f"{-120 + number / 50} {40 + number % 2}" for number in range(1_000))
    star = f"S_INTERSECTS(geometry, POLYGON(({top}, -100 30, -120 40)))"
    await ask(company, star)
    node = company["a"]
    await node.explore.Analyse(
        analytics_pb2.AnalyseRequest(dataset="nam", query=star, explain=analytics_pb2.Explain())
    ).read()
    select = storage_pb2.SelectRequest(dataset="nam", query=star, count_only=True)
    [counted] = [part async for part in node.storage.Select(select)]
    assert counted.head.rows >= 0
    parts = to_ipc(PARTS_SCHEMA.empty_table())
    request = storage_pb2.ReadRequest(dataset="nam", parts=parts, query_json=star)
    assert [part.observations async for part in node.storage.Read(request)] == []
    assert threads
    assert threading.get_ident() not in threads


def described(text: str, unit: str = "") -> list[Feature]:
    return [Feature(f"f{number}", unit, description=text) for number in range(FEATURES_MAX)]


async def test_large_definition_reaches_all_nodes_at_once(company: Any) -> None:
    """Its texts are longer within the row of the system table than in the call."""
    schema = Schema("large", described('"' * 1_000))
    await create(company, "b", schema)
    for name in "abc":
        assert company[name].node.catalog.names == ["large"]


async def test_definition_beyond_its_bound_is_refused(company: Any) -> None:
    schema = Schema("large", described("\U0001f30a" * 900, unit="\U0001f30a" * 64))
    text = json.dumps(schema.to_dict(), ensure_ascii=False)
    request = cluster_pb2.CreateDatasetRequest(schema_json=text)
    refused = await error(company["b"].cluster.CreateDataset(request))
    assert isinstance(refused, InputError)
    assert refused.details["bound"] == BYTES_MAX


async def test_definitions_of_many_bytes_are_stored_by_several_commits(company: Any) -> None:
    names = [f"large-{number}" for number in range(6)]
    features = described("u" * 1_000)
    leader = company["a"].node
    texts = [Schema(name, features).to_json() for name in names]
    changes = [
        CreateDataset(name, text, "id", generation=0)
        for name, text in zip(names, texts, strict=True)
    ]
    await asyncio.gather(*(leader.system.carry_out(change) for change in changes))
    assert (await leader.system.look_up(names[-1])).schema == Schema(names[-1], features)
    journal = leader.catalog.shards[DATASETS.key].journals[SYSTEM]
    commits = [journal.read(number) for number in range(1, journal.last_sequence + 1)]
    assert sum(commit.num_rows for commit in commits) == len(names)
    assert max(commit.nbytes for commit in commits) < 2 * PAGE_BYTES_MAX
