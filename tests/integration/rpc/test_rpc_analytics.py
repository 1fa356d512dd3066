"""The exploration service over real sockets: partial answers, cancelled work, refused input."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pyarrow as pa
import pytest

from galileo.client import AsyncClient
from galileo.dht import placement
from galileo.errors import Cancelled, GalileoError, InputError, UnknownDataset
from galileo.graph.metadata_graph import MetadataGraph
from galileo.labels import from_ipc, to_ipc
from galileo.rpc.analytics import _rows
from galileo.wire import codec
from galileo.wire.status import error_of_rpc
from galileo.wire.v1 import analytics_pb2, cluster_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

Make = Callable[..., pa.Table]

REQUESTS: dict[str, Any] = {
    "Explain": analytics_pb2.ExplainRequest(dataset="nam"),
    "Summarise": analytics_pb2.SummariseRequest(dataset="nam", feature="temperature", count=4),
    "Aggregate": analytics_pb2.AggregateRequest(
        dataset="nam", by=[analytics_pb2.GroupKey(cell_bits=10)]
    ),
    "Estimate": analytics_pb2.EstimateRequest(dataset="nam"),
    "Children": analytics_pb2.ChildrenRequest(dataset="nam"),
    "Nearest": analytics_pb2.NearestRequest(dataset="nam", count=1000),
}
STREAMS = ("Aggregate", "Children", "Nearest")


@pytest.fixture
async def filled(company: Any, make_observations: Make) -> Any:
    text = company.schema.to_json()
    await company["a"].cluster.CreateDataset(cluster_pb2.CreateDatasetRequest(schema_json=text))
    request = Bulk(
        storage_pb2.IngestRequest(dataset="nam", producer="p"),
        pa.py_buffer(to_ipc(make_observations(400))),
    )
    assert (await company["a"].storage.Ingest(request)).rows == 400
    return company


async def ask(company: Any, method: str, request: Any = None, *, at: str = "a") -> Any:
    """The reply, or the rows and the tail of a stream."""
    call = getattr(company[at].explore, method)(request or REQUESTS[method])
    if method not in STREAMS:
        return await call
    parts = [part async for part in call]
    kinds = [part.WhichOneof("part") for part in parts]
    assert kinds == ["head", *["rows"] * (len(parts) - 2), "tail"]
    tables = [pa.ipc.open_stream(part.rows).read_all() for part in parts[1:-1]]
    return pa.concat_tables(tables), parts[-1].tail


async def error(call: Awaitable[Any]) -> GalileoError:
    with pytest.raises(grpc.RpcError) as failed:
        await call
    return error_of_rpc(failed.value, asked="the test")


async def test_analytics_at_every_node_cover_the_cluster(
    filled: Any, make_observations: Make
) -> None:
    table = make_observations(400)
    temperatures = table.column("temperature").to_numpy()
    counts, edges = np.histogram(temperatures, 4)
    for name in "abc":
        summary = await ask(filled, "Summarise", at=name)
        assert (summary.observations, list(summary.counts)) == (400, counts.tolist())
        assert list(summary.edges) == edges.tolist()
        assert not summary.missing
        near, tail = await ask(filled, "Nearest", at=name)
        assert sorted(near.column("station").to_pylist()) == sorted(
            table.column("station").to_pylist()
        )
        assert not tail.missing
        children, tail = await ask(filled, "Children", at=name)
        assert sum(children.column("observations").to_pylist()) == 400
        groups, tail = await ask(filled, "Aggregate", at=name)
        assert sum(groups.column("observations").to_pylist()) == 400
        assert not tail.missing
        reply = await ask(filled, "Explain", at=name)
        assert [node.node for node in reply.nodes] == ["a", "b", "c"]
        assert sum(node.scan.found for node in reply.nodes) == 400


async def test_analytics_with_a_stopped_node_are_partial(filled: Any) -> None:
    await filled["b"].server.stop(None)
    theirs = sorted(placement.partitions_by_node(filled.topology)["b"])
    for method in ("Summarise", "Aggregate", "Children", "Nearest"):
        reply = await ask(filled, method)
        tail = reply[1] if method in STREAMS else reply
        assert list(tail.missing) == theirs
    reply = await ask(filled, "Explain")
    outcomes = {node.node: node.WhichOneof("outcome") for node in reply.nodes}
    assert outcomes == {"a": "scan", "b": "error", "c": "scan"}
    assert next(node for node in reply.nodes if node.node == "b").error.kind == "unavailable"


async def test_estimate_at_a_node_without_reports_names_missing_partitions(filled: Any) -> None:
    reply = await ask(filled, "Estimate", at="c")
    owned = placement.partitions_by_node(filled.topology)
    assert (reply.node, list(reply.missing)) == ("c", sorted(owned["a"] | owned["b"]))
    assert 0 < reply.low <= reply.high < 400


@pytest.mark.parametrize("method", REQUESTS)
async def test_analytics_of_an_unknown_dataset_are_refused(filled: Any, method: str) -> None:
    request = type(REQUESTS[method])()
    request.CopyFrom(REQUESTS[method])
    request.dataset = "nan"
    refused = await error(ask(filled, method, request))
    assert type(refused) is UnknownDataset


INVALID: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Explain", {"query": "temp > 1"}, {"property": "temp"}),
    ("Nearest", {"count": 0}, {"parameter": "count"}),
    ("Children", {"prefix_json": "{}"}, {}),
    ("Children", {"limit": 10**6}, {"parameter": "limit"}),
    ("Children", {"after_json": "[7]"}, {"expected": "string"}),
    ("Children", {"prefix_json": "[7]"}, {"level": "geohash"}),
    ("Summarise", {"feature": "station"}, {"feature": "station"}),
    ("Summarise", {"feature": "temperature", "count": 0}, {"parameter": "bins"}),
    ("Estimate", {"quantiles": [0.5]}, {"feature": None}),
    ("Aggregate", {"by": [analytics_pb2.GroupKey()]}, {"parameter": "by"}),
    ("Aggregate", {"by": [analytics_pb2.GroupKey(cell_bits=61)]}, {"parameter": "by"}),
    ("Aggregate", {"by": [analytics_pb2.GroupKey(window_us=2**63)]}, {"parameter": "by"}),
    ("Aggregate", {"by": [analytics_pb2.GroupKey(feature="nan")]}, {"feature": "nan"}),
    (
        "Aggregate",
        {"statistics": [analytics_pb2.GroupStatistics(feature="station", statistics=["mean"])]},
        {"feature": "station"},
    ),
    (
        "Aggregate",
        {"statistics": 2 * [analytics_pb2.GroupStatistics(feature="t", statistics=["min"])]},
        {"parameter": "statistics"},
    ),
]


@pytest.mark.parametrize(("method", "fields", "details"), INVALID)
async def test_analytics_with_an_invalid_request_are_refused(
    filled: Any, method: str, fields: dict[str, Any], details: dict[str, Any]
) -> None:
    refused = await error(ask(filled, method, type(REQUESTS[method])(dataset="nam", **fields)))
    assert isinstance(refused, InputError)
    assert details.items() <= refused.details.items()


@pytest.mark.parametrize("how", ["cancelled", pytest.param("out of time", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("method", "work"),
    [("Summarise", "summarise"), ("Nearest", "rows_by_cell"), ("Aggregate", "group_pieces")],
)
async def test_analytics_cancelled_or_timed_out_stop_at_every_node(
    filled: Any, monkeypatch: pytest.MonkeyPatch, how: str, method: str, work: str
) -> None:
    working, stopped = endless(monkeypatch, work)
    call = getattr(filled["a"].explore, method)(
        REQUESTS[method], timeout=120.0 if how == "cancelled" else 5.0
    )
    waiting = asyncio.ensure_future(call.code())
    await thrice(working)
    if how == "cancelled":
        call.cancel()
    await thrice(stopped)
    ended = "CANCELLED" if how == "cancelled" else "DEADLINE_EXCEEDED"
    assert (await waiting).name == ended


async def test_client_call_cancelled_stops_work_at_every_node(
    filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    working, stopped = endless(monkeypatch, "rows_by_cell")
    async with AsyncClient(filled.topology.by_name["a"].address) as client:
        call = asyncio.create_task(client.nearest("nam", latitude=0.0, longitude=0.0))
        await thrice(working)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await thrice(stopped)


def endless(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> tuple[threading.Semaphore, threading.Semaphore]:
    """Makes a method of graphs go on until it is stopped; both count the nodes that did so."""
    working, stopped = threading.Semaphore(0), threading.Semaphore(0)

    def work(*_: Any, check: Callable[[], None], **__: Any) -> None:
        working.release()
        try:
            while True:
                check()
        except Cancelled:
            stopped.release()
            raise

    def pieces(*_: Any, **__: Any) -> Iterator[None]:
        working.release()
        try:
            while True:
                yield None
        finally:
            stopped.release()

    monkeypatch.setattr(MetadataGraph, method, pieces if method == "group_pieces" else work)
    return working, stopped


async def thrice(semaphore: threading.Semaphore) -> None:
    for _ in "abc":
        assert await asyncio.to_thread(semaphore.acquire, timeout=60)


async def test_rows_of_large_answers_are_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = list[int]()

    def encode(table: pa.Table) -> bytes:
        threads.append(threading.get_ident())
        return to_ipc(table)

    monkeypatch.setattr(codec, "to_ipc", encode)
    table = pa.table({"n": range(codec.INLINE_ROWS_MAX + 1)})
    parts = [from_ipc(part.rows, table.schema) async for part in _rows(table)]
    assert pa.concat_tables(parts).equals(table)
    assert threads
    assert threading.get_ident() not in threads
