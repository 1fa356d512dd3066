"""The values that the evaluator sends to the tasks of a Spark job, and those that come back.

A job joins the requests of several coordinators. A group has the items (queries) of one dataset in
one request, as columns: a few bytes for each item, and no object. Node requests say which node to
send which queries; request i belongs to task i modulo the number of tasks, so a job has as many
tasks as the session has cores, whatever the number of nodes.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.hashing import DIGEST_BYTES
from galileo.match_batch import Numbers, from_bytes, to_bytes
from galileo.model.schema import Schema
from galileo.query.index.requests import NOT_REQUESTED
from galileo.tracing import NO_TRACING, TracingOptions
from galileo.wire.context_propagation import Origin
from galileo.wire.internal.v1 import evaluator_pb2, peers_pb2
from galileo.wire.match_codec import cursors_from_bytes, sequences_from_bytes
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

RESULT_BYTES_MAX = 32 << 20
FAILED = "the evaluation failed with an internal error; the evaluator's log has it"
"""What the owner of a query learns of an internal error."""
_SCHEMAS_MAX = 1_024
BATCH_ROWS_MAX = 256
BATCH_BYTES_MAX = 4 << 20

ROW_SCHEMA = pa.schema(
    [
        pa.field("group", pa.int32()),
        pa.field("answer", pa.binary()),  # EvaluateAnswer
    ]
)

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The n items of one dataset in one request.

    Attributes:
        dataset: name.
        schema_json: of it.
        partitions: that any item needs, ascending, shape (p,).
        after: sequences for each cursor and partition, `NOT_REQUESTED` where the partition is not
            needed; shape (c, p).
        cursors: for each item its row of `after`, shape (n,).
        digests: of the items' queries, concatenated.
        samplers_json: the samplers of all items.
        samplers: for each item its sampler, from 1 on; 0 for none; shape (n,).
        nodes: addresses, each with the indices of `partitions` that it answers.
        origin: the caller of the request.
        committed: as in `MatchTask`, shape (p,) or None.
    """

    dataset: str
    schema_json: str
    partitions: npt.NDArray[np.int32]
    after: npt.NDArray[np.int64]
    cursors: npt.NDArray[np.int32]
    digests: bytes
    samplers_json: tuple[str, ...]
    samplers: Numbers
    nodes: tuple[tuple[str, Indices], ...]
    origin: Origin = ()
    committed: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.cursors)

    @property
    def schema(self) -> Schema:
        """The schema of the labels."""
        return _schema(self.schema_json)

    def slice(self, start: int, stop: int) -> Group:
        """The items [start, stop)."""
        return replace(
            self,
            cursors=self.cursors[start:stop],
            digests=self.digests[DIGEST_BYTES * start : DIGEST_BYTES * stop],
            samplers=self.samplers[start:stop],
        )

    def items_requesting(self, columns: Indices) -> Numbers:
        """The items that need any of these partitions."""
        requested = (self.after[:, columns] != NOT_REQUESTED).any(axis=1)
        return np.flatnonzero(requested[self.cursors]).astype(np.uint32)

    def digests_of(self, items: Numbers) -> bytes:
        if len(items) == len(self):
            return self.digests
        rows = np.frombuffer(self.digests, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        return rows[items].tobytes()

    def digest_of(self, item: int) -> bytes:
        return self.digests[DIGEST_BYTES * item : DIGEST_BYTES * (item + 1)]


@dataclass(frozen=True, slots=True, eq=False)
class NodeQuery:
    """The items of one group that one node evaluates.

    Attributes:
        group: number of the group.
        columns: indices of the partitions in those of the group.
        items: of the group, ascending.
    """

    group: int
    columns: Indices
    items: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class NodeRequest:
    """All queries for one node."""

    address: str
    queries: tuple[NodeQuery, ...]


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Bounds of one job.

    Attributes:
        scan_timeout_s: for the whole answer of a node.
        sampler_timeout_s: for the sampler of one item.
        result_bytes_max: of the labels that all tasks together return; the next job returns the
            rest.
        keys: credentials with which workers authenticate as nodes.
        tracing: where workers export spans.
    """

    scan_timeout_s: float
    sampler_timeout_s: float
    result_bytes_max: int = RESULT_BYTES_MAX
    keys: TlsFiles = NO_TLS_FILES
    tracing: TracingOptions = NO_TRACING


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One Spark job.

    Attributes:
        number: of the job; rotates the order in which items are served.
        groups: the queries.
        node_requests: which node evaluates which of them.
        tasks: number of tasks.
        limits: of the job.
    """

    number: int
    groups: tuple[Group, ...]
    node_requests: tuple[NodeRequest, ...]
    tasks: int
    limits: JobLimits

    def requests_of_task(self, task: int) -> tuple[NodeRequest, ...]:
        return self.node_requests[task :: self.tasks]


Outcome = evaluator_pb2.EvaluateAnswer
"""The result of one group: parts, unknown digests, failures."""


@dataclass(frozen=True, slots=True, eq=False)
class JobRequest:
    """The groups of one or several requests."""

    groups: tuple[Group, ...] = ()

    def __len__(self) -> int:
        """Number of items."""
        return sum(map(len, self.groups))

    def __add__(self, other: JobRequest) -> JobRequest:
        return JobRequest(self.groups + other.groups)

    def node_requests(self) -> tuple[NodeRequest, ...]:
        """One request for each node, ordered by address."""
        by_address: dict[str, list[NodeQuery]] = defaultdict(list)
        for number, group in enumerate(self.groups):
            for address, columns in group.nodes:
                items = group.items_requesting(columns)
                if len(items):
                    by_address[address].append(NodeQuery(number, columns, items))
        return tuple(
            NodeRequest(address, tuple(by_address[address])) for address in sorted(by_address)
        )

    def halves(self) -> tuple[JobRequest, JobRequest, SplitPoint]:
        """Two requests with half of the items each; needs at least two items."""
        ends = np.cumsum([len(group) for group in self.groups])
        middle = len(self) // 2
        number = int(np.searchsorted(ends, middle, side="right"))
        group = self.groups[number]
        item = middle - int(ends[number] - len(group))
        before, after = self.groups[:number], self.groups[number + 1 :]
        first = (*before, group.slice(0, item)) if item else before
        second = (group.slice(item, len(group)), *after)
        return JobRequest(first), JobRequest(second), SplitPoint(number, item)


@dataclass(frozen=True, slots=True)
class SplitPoint:
    """Where `JobRequest.halves` split: before an item of a group."""

    group: int
    item: int

    def merge(self, first: Sequence[Outcome], second: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of the whole request from those of its halves."""
        if self.item == 0:
            return [*first, *second]
        head, tail = first[-1], shift_items(second[0], self.item)
        head.MergeFrom(tail)
        return [*first, *second[1:]]


def shift_items(outcome: Outcome, by: int) -> Outcome:
    """A copy in which each item has a number that is greater by `by`."""
    return Outcome(
        parts=[
            peers_pb2.MatchPart(
                answered=_shift(part.answered, by),
                reached=part.reached,
                labels=part.labels,
                items=_shift(part.items, by),
                places=part.places,
                dropped=part.dropped,
            )
            for part in outcome.parts
        ],
        unknown=[_shift(items, by) for items in outcome.unknown],
        failures=[
            peers_pb2.MatchFailure(items=_shift(failure.items, by), error=failure.error)
            for failure in outcome.failures
        ],
    )


def _shift(items: bytes, by: int) -> bytes:
    return to_bytes(from_bytes(items) + np.uint32(by))


EMPTY_REQUEST = JobRequest()


def request_from_pb(request: evaluator_pb2.EvaluateRequest, origin: Origin = ()) -> JobRequest:
    """Decodes and checks a request.

    Args:
        request: of a coordinator.
        origin: its caller, which the calls of workers name to the nodes.

    Raises:
        InputError: the columns of the request contradict each other.
    """
    return JobRequest(tuple(_group(group, request.nodes, origin) for group in request.groups))


def _group(
    group: evaluator_pb2.EvaluateGroup,
    nodes: Sequence[evaluator_pb2.NodeAddress],
    origin: Origin,
) -> Group:
    after = sequences_from_bytes(group.after, partitions=len(group.partitions))
    cursors = cursors_from_bytes(group.cursors, rows=len(after))
    samplers = from_bytes(group.samplers)
    if len(group.digests) != DIGEST_BYTES * len(cursors) or len(samplers) != len(cursors):
        raise InputError(
            f"expected a digest and a sampler for each of {len(cursors)} items, got "
            f"{len(group.digests)} bytes of digests and {len(samplers)} samplers"
        )
    if len(samplers) and int(samplers.max()) > len(group.samplers_json):
        raise InputError(
            f"expected items with one of {len(group.samplers_json)} samplers, got one with "
            f"sampler {samplers.max()}"
        )
    committed = sequences_from_bytes(group.committed, partitions=len(group.partitions))
    return Group(
        dataset=group.dataset,
        schema_json=group.schema_json,
        partitions=np.array(group.partitions, dtype=np.int32),
        after=after,
        cursors=cursors,
        digests=group.digests,
        samplers_json=tuple(group.samplers_json),
        samplers=samplers,
        nodes=tuple(_assign_partitions(group.partitions, [*group.replicas, *nodes])),
        origin=origin,
        committed=committed[0] if len(committed) else None,
    )


def _assign_partitions(
    partitions: Sequence[int], nodes: Iterable[evaluator_pb2.NodeAddress]
) -> Iterator[tuple[str, Indices]]:
    """Each partition once, at the first node that has it."""
    indices = {partition: index for index, partition in enumerate(partitions)}
    for node in nodes:
        here = frozenset(node.partitions) & indices.keys()
        assigned = sorted(indices.pop(partition) for partition in here)
        if assigned:
            yield node.address, np.array(assigned, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A part of the outcome of a group; the rows of a group are merged."""

    group: int
    answer: bytes


@functools.lru_cache(_SCHEMAS_MAX)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)


def to_batches(rows: Iterable[TaskRow]) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of at most about `BATCH_ROWS_MAX` rows and `BATCH_BYTES_MAX` bytes."""
    buffer: list[TaskRow] = []
    size = 0
    for row in rows:
        buffer.append(row)
        size += len(row.answer)
        if len(buffer) >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
            yield _batch(buffer)
            buffer, size = [], 0
    if buffer:
        yield _batch(buffer)


def _batch(rows: Sequence[TaskRow]) -> pa.RecordBatch:
    columns = ([row.group for row in rows], [row.answer for row in rows])
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def merge_rows(rows: pa.Table, groups: int) -> list[Outcome]:
    """The outcome of each group from the rows of a job."""
    outcomes = [Outcome() for _ in range(groups)]
    numbers, answers = (rows.column(name) for name in ("group", "answer"))
    for number, answer in zip(numbers.to_pylist(), answers, strict=True):
        outcomes[number].MergeFromString(memoryview(answer.as_buffer()))
    return outcomes
