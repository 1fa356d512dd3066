"""Answers as streams over real sockets: readers that are slow, that stop, and that go away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pyarrow as pa
import pytest

from galileo import errors
from galileo.cursor import EMPTY_CURSOR
from galileo.labels import to_ipc
from galileo.node import cluster_scan, local_scan
from galileo.node.peers import ScanAnswer, ScanDone
from galileo.rpc import peers
from galileo.rpc.error_mapping import streaming
from galileo.rpc.peers import DEADLINES_S, SCAN_S, GrpcPeers
from galileo.rpc.query import QueryServicer
from galileo.wire import codec
from galileo.wire.status import error_of_rpc
from galileo.wire.v1 import cluster_pb2, query_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

Make = Callable[..., pa.Table]

ROWS = 60_000
TIMEOUT_S = 60.0
SMALL = "temperature > 309.9"


class ImpatientQueries(QueryServicer):
    """Ends a stream whose reader takes nothing for two seconds."""

    Run = streaming(QueryServicer.Run.__wrapped__, stalled_max_s=2.0)


@pytest.fixture
def limits() -> dict[str, float]:
    """Scans in steps of few labels."""
    return {"STEP_BYTES_MAX": 1 << 17}


async def fill(company: Any, observations: pa.Table) -> None:
    text = company.schema.to_json()
    await company["a"].cluster.CreateDataset(cluster_pb2.CreateDatasetRequest(schema_json=text))
    request = Bulk(
        storage_pb2.IngestRequest(dataset="nam", producer="p"), pa.py_buffer(to_ipc(observations))
    )
    await company["a"].storage.Ingest(request)


@pytest.fixture
async def filled(company: Any, make_observations: Make) -> Any:
    """A company with a dataset of more labels than connections take in that has no reader."""
    await fill(company, make_observations(ROWS, station="s" * 700))
    return company


def ask(company: Any, text: str = "", *, at: str = "a") -> Any:
    return company[at].query.Run(query_pb2.QueryRequest(dataset="nam", query=text))


async def count(company: Any, call: Any) -> int:
    parts = [part async for part in call]
    assert not parts[-1].tail.missing
    labels = [part.labels for part in parts if part.labels]
    return codec.table_of(labels, company.schema.label_schema).num_rows


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The labels of each step that any node made."""
    made: list[int] = []
    step = local_scan._IncrementalScan.step

    def counted(self: Any) -> list[ScanAnswer]:
        answers = step(self)
        made.append(sum(a.table.num_rows for a in answers if isinstance(a, local_scan.ScanLabels)))
        return answers

    monkeypatch.setattr(local_scan._IncrementalScan, "step", counted)
    return made


async def quiet(made: list[int]) -> int:
    """How many labels were made, once nothing more is."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        before = len(made)
        await asyncio.sleep(0.3)
        if len(made) == before:
            return sum(made)
    raise AssertionError("scans go on and on")


def scanning() -> list[str]:
    """The tasks that ask nodes for labels."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name == cluster_scan._Arrivals._put.__qualname__]


@pytest.mark.slow
async def test_stalled_reader_stops_its_scans_only(filled: Any, steps: list[int]) -> None:
    slow = ask(filled)
    first = await slow.read()
    assert first.HasField("head")
    assert first.labels
    made = await quiet(steps)
    assert 0 < made < ROWS
    started = time.monotonic()
    few = [await count(filled, ask(filled, SMALL, at=node)) for node in "abc"]
    assert time.monotonic() - started < TIMEOUT_S, "as if they waited for the slow one"
    assert few[0] == few[1] == few[2] > 0
    assert 0 < await count(filled, ask(filled)) == ROWS
    slow.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"STEP_BYTES_MAX": 1 << 14, "PARTS_WAITING_MAX": 1}], ids=[""])
async def test_cancelled_reader_ends_its_scans(filled: Any, steps: list[int]) -> None:
    call = ask(filled)
    await call.read()
    await call.read()
    assert scanning()
    call.cancel()
    async with asyncio.timeout(TIMEOUT_S):
        while scanning():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.02)
    assert await quiet(steps) < ROWS
    assert not scanning()


@pytest.mark.slow
@pytest.mark.parametrize("query_servicer", [ImpatientQueries])
async def test_stalled_reader_is_cancelled_after_stalled_max(
    filled: Any, steps: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    call = ask(filled)
    await call.read()
    deadline = time.monotonic() + TIMEOUT_S
    while "whose reader received nothing for 2 s" not in caplog.text or scanning():
        assert time.monotonic() < deadline, caplog.text
        await asyncio.sleep(0.02)
    assert await count(filled, ask(filled, SMALL)) > 0, "the node goes on"
    call.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"STEP_BYTES_MAX": 1 << 17, "ANSWERS_MAX": 2}], ids=[""])
async def test_queries_above_answers_max_are_overloaded(filled: Any) -> None:
    slow = [ask(filled) for _ in range(2)]
    for call in slow:
        await call.read()
        await call.read()
    with pytest.raises(grpc.RpcError) as refused:
        await ask(filled, SMALL).read()
    error = error_of_rpc(refused.value, asked="a")
    assert isinstance(error, errors.Overloaded)
    assert error.details["after_s"] > 0
    slow[0].cancel()
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            assert await count(filled, ask(filled, SMALL)) > 0
            break
        except grpc.RpcError:
            await asyncio.sleep(0.02)
    else:
        raise AssertionError("a reader that went away still counts")
    slow[1].cancel()


def limit_parts_of_peers(monkeypatch: pytest.MonkeyPatch, within_s: float) -> None:
    """Sets the time to the next part of the streams between nodes."""
    monkeypatch.setattr(peers, "SCAN_S", within_s)
    scans = {name: within_s for name, known_s in DEADLINES_S.items() if known_s == SCAN_S}
    monkeypatch.setattr(peers, "DEADLINES_S", {**DEADLINES_S, **scans})


@pytest.mark.slow
async def test_query_with_a_silent_peer_is_partial(
    company: Any, make_observations: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions are missing then; others' labels have come."""
    await fill(company, make_observations(ROWS))
    blocked = asyncio.Event()

    async def silent(tasks: Any) -> AsyncIterator[ScanAnswer]:
        await blocked.wait()
        yield ScanDone(0, EMPTY_CURSOR)

    limit_parts_of_peers(monkeypatch, 0.3)
    monkeypatch.setattr(company["b"].node.local_scans, "scan", silent)
    parts = [part async for part in ask(company)]
    assert parts[-1].tail.missing
    assert any(part.labels for part in parts)
    blocked.set()


async def test_query_with_a_peer_that_is_declared_dead_amid_its_answer_is_partial(
    company: Any, make_observations: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query does not wait for the connection to break."""
    await fill(company, make_observations(ROWS))
    blocked, scan = asyncio.Event(), company["b"].node.local_scans.scan

    async def silent_midway(tasks: Any) -> AsyncIterator[ScanAnswer]:
        async for answer in scan(tasks):
            yield answer
            company.dead.add("b")
            await blocked.wait()

    monkeypatch.setattr(peers, "DEAD_CHECK_S", 0.05)
    monkeypatch.setattr(company["b"].node.local_scans, "scan", silent_midway)
    parts = [part async for part in ask(company)]
    assert parts[-1].tail.missing
    assert any(part.labels for part in parts)
    blocked.set()


@pytest.mark.slow
async def test_query_with_a_slow_reader_is_complete(
    filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that a peer has for its next part is not used up by our own reader."""
    limit_parts_of_peers(monkeypatch, 3.0)
    assert isinstance(filled["a"].peers, GrpcPeers)
    call = ask(filled)
    part = await call.read()
    labels = [part.labels]
    await asyncio.sleep(4.5)
    while not part.HasField("tail"):
        part = await call.read()
        labels += [part.labels] if part.labels else []
    assert not part.tail.missing
    table = codec.table_of(labels, filled.schema.label_schema)
    identity = ["partition", "sequence", "row"]
    assert len(np.unique(np.column_stack([table.column(n) for n in identity]), axis=0)) == ROWS
