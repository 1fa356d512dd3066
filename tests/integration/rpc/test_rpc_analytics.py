"""The exploration service over real sockets: partial answers, cancelled work, refused input."""

from __future__ import annotations

import asyncio
import json
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
from galileo.model.grouping import CellKey, FeatureKey, Grouping, WindowKey
from galileo.query import questions
from galileo.query.questions import Question
from galileo.wire import codec
from galileo.wire.questions import question_to_pb
from galileo.wire.status import error_of_rpc
from galileo.wire.v1 import analytics_pb2, cluster_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

Make = Callable[..., pa.Table]

QUESTIONS: dict[str, Question] = {
    "Explain": questions.Explain(),
    "Summarise": questions.Summarise("temperature", bins=4),
    "Aggregate": questions.Aggregate(Grouping((CellKey(10),))),
    "Children": questions.ListChildren(),
    "Nearest": questions.FindNearest(0.0, 0.0, 1000, None),
}


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


def request_of(question: Question, *, dataset: str = "nam", query: str = "") -> Any:
    request = question_to_pb(question)
    request.dataset, request.query = dataset, query
    return request


async def ask(company: Any, request: Any, *, at: str = "a") -> tuple[Any, Any]:
    """The rows of an answer and its tail, or those of one with a name."""
    if isinstance(request, str):
        request = request_of(QUESTIONS[request])
    parts = [part async for part in company[at].explore.Analyse(request)]
    assert [bool(part.tail_json) for part in parts] == [*[False] * (len(parts) - 1), True]
    tables = [pa.ipc.open_stream(part.rows).read_all() for part in parts if part.rows]
    return pa.concat_tables(tables) if tables else None, json.loads(parts[-1].tail_json)


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
        _, tail = await ask(filled, "Summarise", at=name)
        summary = tail["facts"]
        assert (summary["observations"], summary["counts"]) == (400, counts.tolist())
        assert summary["edges"] == edges.tolist()
        assert not tail["missing"]
        near, tail = await ask(filled, "Nearest", at=name)
        assert sorted(near.column("station").to_pylist()) == sorted(
            table.column("station").to_pylist()
        )
        assert not tail["missing"]
        children, _ = await ask(filled, "Children", at=name)
        assert sum(children.column("observations").to_pylist()) == 400
        groups, tail = await ask(filled, "Aggregate", at=name)
        assert sum(groups.column("observations").to_pylist()) == 400
        assert not tail["missing"]
        _, tail = await ask(filled, "Explain", at=name)
        nodes = tail["facts"]["nodes"]
        assert [node["node"] for node in nodes] == ["a", "b", "c"]
        assert sum(node["scan"]["found"] for node in nodes) == 400


async def test_analytics_with_a_stopped_node_are_partial(filled: Any) -> None:
    await filled["b"].server.stop(None)
    theirs = sorted(placement.partitions_by_node(filled.topology)["b"])
    for name in QUESTIONS:
        _, tail = await ask(filled, name)
        assert tail["missing"] == theirs
    nodes = {node.pop("node"): node for node in tail_nodes(await ask(filled, "Explain"))}
    assert {name: "scan" in node for name, node in nodes.items()} == {
        "a": True,
        "b": False,
        "c": True,
    }
    assert nodes["b"]["error"].endswith("[unavailable]")


def tail_nodes(answer: tuple[Any, Any]) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = answer[1]["facts"]["nodes"]
    return nodes


async def test_estimate_at_a_node_without_reports_names_missing_partitions(filled: Any) -> None:
    reply = await filled["c"].explore.Estimate(analytics_pb2.EstimateRequest(dataset="nam"))
    owned = placement.partitions_by_node(filled.topology)
    assert (reply.node, list(reply.missing)) == ("c", sorted(owned["a"] | owned["b"]))
    assert 0 < reply.low <= reply.high < 400


@pytest.mark.parametrize("name", QUESTIONS)
async def test_analytics_of_an_unknown_dataset_are_refused(filled: Any, name: str) -> None:
    refused = await error(ask(filled, request_of(QUESTIONS[name], dataset="nan")))
    assert type(refused) is UnknownDataset


async def test_estimate_of_an_unknown_dataset_or_feature_is_refused(filled: Any) -> None:
    estimate = filled["a"].explore.Estimate
    refused = await error(estimate(analytics_pb2.EstimateRequest(dataset="nan")))
    assert type(refused) is UnknownDataset
    without = analytics_pb2.EstimateRequest(dataset="nam", quantiles=[0.5])
    refused = await error(estimate(without))
    assert isinstance(refused, InputError)
    assert refused.details["feature"] is None


EMPTY_KEY = analytics_pb2.Aggregate(by=[analytics_pb2.GroupKey()])
INVALID: list[tuple[Any, dict[str, Any]]] = [
    (request_of(questions.Explain(), query="temp > 1"), {"property": "temp"}),
    (request_of(questions.FindNearest(0.0, 0.0, 0, None)), {"parameter": "count"}),
    (request_of(questions.ListChildren(prefix_json="{}")), {}),
    (request_of(questions.ListChildren(limit=10**6)), {"parameter": "limit"}),
    (request_of(questions.ListChildren(after_json="[7]")), {"expected": "string"}),
    (request_of(questions.ListChildren(prefix_json="[7]")), {"level": "geohash"}),
    (request_of(questions.ListChildren(), query="temperature > 1"), {"parameter": "query"}),
    (request_of(questions.Summarise("station")), {"feature": "station"}),
    (request_of(questions.Summarise("temperature", bins=0)), {"parameter": "bins"}),
    (analytics_pb2.AnalyseRequest(dataset="nam"), {"parameter": "question"}),
    (analytics_pb2.AnalyseRequest(dataset="nam", aggregate=EMPTY_KEY), {"parameter": "by"}),
    (request_of(questions.Aggregate(Grouping((CellKey(61),)))), {"parameter": "by"}),
    (request_of(questions.Aggregate(Grouping((WindowKey(2**63),)))), {"parameter": "by"}),
    (request_of(questions.Aggregate(Grouping((FeatureKey("nan"),)))), {"feature": "nan"}),
    (
        request_of(questions.Aggregate(Grouping((), (("station", ("mean",)),)))),
        {"feature": "station"},
    ),
    (
        request_of(questions.Aggregate(Grouping((), 2 * (("t", ("min",)),)))),
        {"parameter": "statistics"},
    ),
]


@pytest.mark.parametrize(("request_", "details"), INVALID)
async def test_analytics_with_an_invalid_request_are_refused(
    filled: Any, request_: Any, details: dict[str, Any]
) -> None:
    refused = await error(ask(filled, request_))
    assert isinstance(refused, InputError)
    assert details.items() <= refused.details.items()


@pytest.mark.parametrize("how", ["cancelled", pytest.param("out of time", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "work"),
    [("Summarise", "summarise"), ("Nearest", "rows_by_cell"), ("Aggregate", "group_pieces")],
)
async def test_analytics_cancelled_or_timed_out_stop_at_every_node(
    filled: Any, monkeypatch: pytest.MonkeyPatch, how: str, name: str, work: str
) -> None:
    working, stopped = endless(monkeypatch, work)
    call = filled["a"].explore.Analyse(
        request_of(QUESTIONS[name]), timeout=120.0 if how == "cancelled" else 5.0
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
    parts = [from_ipc(rows, table.schema) for rows in await codec.table_messages(table)]
    assert pa.concat_tables(parts).equals(table)
    assert threads
    assert threading.get_ident() not in threads
