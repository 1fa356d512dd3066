"""What travels between the evaluator and the tasks of one job, and back.

A tick joins the requests of several coordinators. A group is the items of one dataset in one
request, in columns, so that an item costs a few bytes on its way and no object. Shares say which
node to ask about which groups; share i belongs to task i modulo the number of tasks, so a job has
as many tasks as the session has cores, however many nodes there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.matches import Numbers, from_bytes, to_bytes
from galileo.query.index.query_digest import DIGEST_BYTES
from galileo.query.index.requests import NOT_REQUESTED
from galileo.tracing import NO_TRACING, TracingOptions
from galileo.wire.context_propagation import Origin
from galileo.wire.internal.v1 import evaluator_pb2, peers_pb2
from galileo.wire.match_codec import cursors_from_bytes, sequences_from_bytes
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

RESULT_BYTES_MAX = 32 << 20
BATCH_ROWS_MAX = 256
BATCH_BYTES_MAX = 4 << 20

ROW_SCHEMA = pa.schema(
    [
        pa.field("group", pa.int32()),
        pa.field("answer", pa.binary()),  # EvaluateAnswer
    ]
)

Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The n items of one dataset in one request.

    Attributes:
        dataset: name.
        schema_json: of it.
        partitions: that any item is asked about, ascending, shape (p,).
        after: sequences for each cursor and partition, `NOT_REQUESTED` where it is not asked about;
            shape (c, p).
        cursors: for each item its row of `after`, shape (n,).
        digests: of the items' queries, one behind the other.
        samplers_json: that any item has.
        samplers: for each item its sampler, from 1 on; 0 for none; shape (n,).
        nodes: addresses, each with the places in `partitions` that it is asked about.
        origin: whose request it is.
    """

    dataset: str
    schema_json: str
    partitions: npt.NDArray[np.int32]
    after: npt.NDArray[np.int64]
    cursors: npt.NDArray[np.int32]
    digests: bytes
    samplers_json: tuple[str, ...]
    samplers: Numbers
    nodes: tuple[tuple[str, Places], ...]
    origin: Origin = ()

    def __len__(self) -> int:
        return len(self.cursors)

    def part(self, start: int, stop: int) -> Group:
        """The items from the `start`-th up to the `stop`-th."""
        return replace(
            self,
            cursors=self.cursors[start:stop],
            digests=self.digests[DIGEST_BYTES * start : DIGEST_BYTES * stop],
            samplers=self.samplers[start:stop],
        )

    def asking(self, columns: Places) -> Numbers:
        """The items that are asked about any of these partitions."""
        asked = (self.after[:, columns] != NOT_REQUESTED).any(axis=1)
        return np.flatnonzero(asked[self.cursors]).astype(np.uint32)

    def digests_of(self, items: Numbers) -> bytes:
        if len(items) == len(self):
            return self.digests
        rows = np.frombuffer(self.digests, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        return rows[items].tobytes()

    def digest_of(self, item: int) -> bytes:
        return self.digests[DIGEST_BYTES * item : DIGEST_BYTES * (item + 1)]


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """What one node is asked about one group.

    Attributes:
        group: number of the group.
        columns: places of the partitions in those of the group.
        items: of the group, ascending.
    """

    group: int
    columns: Places
    items: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What one node is asked."""

    address: str
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class TickLimits:
    """Bounds of one job.

    Attributes:
        scan_timeout_s: for a node's whole answer.
        sampler_timeout_s: for one item's sampler.
        result_bytes_max: of labels that all tasks together return; what is left over comes
            with the next tick.
        keys: the files with which workers prove to nodes that they are one.
        tracing: where workers tell their spans.
    """

    scan_timeout_s: float
    sampler_timeout_s: float
    result_bytes_max: int = RESULT_BYTES_MAX
    keys: TlsFiles = NO_TLS_FILES
    tracing: TracingOptions = NO_TRACING


@dataclass(frozen=True, slots=True, eq=False)
class Tick:
    """One job.

    Attributes:
        number: of the job; turns the order in which items are served.
        groups: the queries.
        shares: which node answers which of them.
        tasks: of the job.
        limits: of the job.
    """

    number: int
    groups: tuple[Group, ...]
    shares: tuple[Share, ...]
    tasks: int
    limits: TickLimits

    def shares_of(self, task: int) -> tuple[Share, ...]:
        return self.shares[task :: self.tasks]


Outcome = evaluator_pb2.EvaluateAnswer
"""What became of one group."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The groups of one or several requests."""

    groups: tuple[Group, ...] = ()

    def __len__(self) -> int:
        """Number of items."""
        return sum(map(len, self.groups))

    def __add__(self, other: Work) -> Work:
        return Work(self.groups + other.groups)

    def shares(self) -> tuple[Share, ...]:
        by_address: dict[str, list[Ask]] = defaultdict(list)
        for number, group in enumerate(self.groups):
            for address, columns in group.nodes:
                items = group.asking(columns)
                if len(items):
                    by_address[address].append(Ask(number, columns, items))
        return tuple(Share(address, tuple(by_address[address])) for address in sorted(by_address))

    def halves(self) -> tuple[Work, Work, Seam]:
        """The work in two, each with half of the items; at least two of them."""
        ends = np.cumsum([len(group) for group in self.groups])
        middle = len(self) // 2
        number = int(np.searchsorted(ends, middle, side="right"))
        cut = middle - int(ends[number] - len(self.groups[number]))
        before, cloven, after = self.groups[:number], self.groups[number], self.groups[number + 1 :]
        first = (*before, cloven.part(0, cut)) if cut else before
        second = (cloven.part(cut, len(cloven)), *after)
        return Work(first), Work(second), Seam(number, cut)


@dataclass(frozen=True, slots=True)
class Seam:
    """Where work was cut: before the `cut`-th item of the group `number`."""

    number: int
    cut: int

    def joined(self, first: Sequence[Outcome], second: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of the whole, of those of its halves."""
        if self.cut == 0:
            return [*first, *second]
        head, tail = first[-1], shifted(second[0], self.cut)
        head.MergeFrom(tail)
        return [*first, *second[1:]]


def shifted(outcome: Outcome, by: int) -> Outcome:
    """The same about items that are numbered from `by` on."""
    return Outcome(
        parts=[
            peers_pb2.MatchPart(
                answered=_shifted(part.answered, by),
                reached=part.reached,
                labels=part.labels,
                items=_shifted(part.items, by),
                places=part.places,
                dropped=part.dropped,
            )
            for part in outcome.parts
        ],
        unknown=[_shifted(items, by) for items in outcome.unknown],
        failures=[
            peers_pb2.MatchFailure(items=_shifted(one.items, by), error=one.error)
            for one in outcome.failures
        ],
    )


def _shifted(items: bytes, by: int) -> bytes:
    return to_bytes(from_bytes(items) + np.uint32(by))


NOTHING = Work()


def work_of(request: evaluator_pb2.EvaluateRequest, origin: Origin = ()) -> Work:
    """The work that a request asks for.

    Args:
        request: whose columns are checked.
        origin: of the request; what workers ask nodes for it says that it comes from there.

    Raises:
        InputError: its columns do not fit each other.
    """
    nodes = [(node.address, frozenset(node.partitions)) for node in request.nodes]
    return Work(tuple(_group(group, nodes, origin) for group in request.groups))


def _group(
    group: evaluator_pb2.EvaluateGroup,
    nodes: Sequence[tuple[str, frozenset[int]]],
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
    return Group(
        dataset=group.dataset,
        schema_json=group.schema_json,
        partitions=np.array(group.partitions, dtype=np.int32),
        after=after,
        cursors=cursors,
        digests=group.digests,
        samplers_json=tuple(group.samplers_json),
        samplers=samplers,
        nodes=tuple(_asked(group.partitions, nodes)),
        origin=origin,
    )


def _asked(
    partitions: Sequence[int], nodes: Sequence[tuple[str, frozenset[int]]]
) -> Iterator[tuple[str, Places]]:
    """Each partition is asked once, at the first node that is said to hold it."""
    places = {partition: place for place, partition in enumerate(partitions)}
    for address, held in nodes:
        some = sorted(places.pop(partition) for partition in held & places.keys())
        if some:
            yield address, np.array(some, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Row:
    """Some of what became of a group; what several rows say adds up."""

    group: int
    answer: bytes


def packed(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows in few batches, as they pass through Spark."""
    held: list[Row] = []
    size = 0
    for one in rows:
        held.append(one)
        size += len(one.answer)
        if len(held) >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
            yield _batch(held)
            held, size = [], 0
    if held:
        yield _batch(held)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = ([row.group for row in rows], [row.answer for row in rows])
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def outcomes_of(rows: pa.Table, groups: int) -> list[Outcome]:
    """What the rows of a job say about each of its groups."""
    found = [Outcome() for _ in range(groups)]
    numbers, answers = (rows.column(name) for name in ("group", "answer"))
    for number, answer in zip(numbers.to_pylist(), answers, strict=True):
        found[number].MergeFromString(memoryview(answer.as_buffer()))
    return found
