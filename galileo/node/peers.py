"""Calls between nodes: their values and one protocol, which `rpc.peers` implements by gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor, joined_changes
from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.errors import (
    Cancelled,
    GalileoError,
    HistoryChanged,
    PartitionMoved,
    TransientError,
)
from galileo.graph.versions import Choice
from galileo.model.retention import Removed, RetentionOutcome, VersionedRetention
from galileo.model.rows import RowOptions
from galileo.model.schema import Schema, StoredSchema
from galileo.model.system_rows import Outcome, Position, Row, RowChange, RowPage
from galileo.node import query_limits
from galileo.query import Query
from galileo.query.questions import Question
from galileo.samplers import LABEL
from galileo.wire.attachments import AtMost, LongText

PLACES_MAX = 8_192
"""Places of one question for a batch."""
MOVED_PAUSE_S = 0.05
OWNER_CHECK_S = 0.1
"""Pause between two looks at who owns the partitions of a call that is not answered."""

_ALL_ROWS = RowOptions()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommitTask:
    """Normalised rows of one node's partitions, as a part of one producer's numbered batch.

    Attributes:
        range_epoch: of the ranges by which the batch was split.
        first_epoch: the earliest one in which it may have been sent.
        added: how many of the features added to the dataset the rows have.
        brokers: patterns; rows of other brokers may not be replaced. Empty: all may.
        digest: of the whole batch, which is recorded; 0 of a task with rows.
        unchanged_since: as of `Commit`, by partition.
        deletes: whether the rows are of `galileo.model.deletions.STRETCHES_SCHEMA`, and name those
            that are deleted.
    """

    dataset: str
    producer: str
    batch: int
    observations: pa.Table
    range_epoch: int = 1
    first_epoch: int = 1
    added: int = 0
    brokers: tuple[str, ...] = ()
    digest: int = 0
    unchanged_since: Cursor | None = None
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class BatchLookup:
    """A question for a batch of earlier range epochs.

    Attributes:
        range_epoch: of the asker; the asked logs take no commits of earlier ones any more.
        places: earlier range epochs, each with a partition of the asked node.
    """

    dataset: str
    producer: str
    batch: int
    range_epoch: int
    places: Annotated[tuple[tuple[int, int], ...], AtMost(PLACES_MAX)]


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """The sequence of a batch, 0 if it is not there, and the producer's last number, -1 if none."""

    sequence: int
    last: int


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The result of a batch.

    Attributes:
        rows, paths: stored, now or by an earlier attempt.
        duplicate_rows: those of an earlier attempt.
        reached: the commit in each partition.
        forwarded_rows: those of other nodes.
    """

    rows: int
    paths: int
    duplicate_rows: int
    reached: Cursor
    forwarded_rows: int = 0


@dataclass(frozen=True, slots=True)
class PartitionScope:
    """The scope of a request to one node: the commits (after, until] of some of its partitions.

    `until` None means: up to what is committed when the work starts.
    """

    partitions: frozenset[int]
    after: Cursor = EMPTY_CURSOR
    until: Cursor | None = None


@dataclass(frozen=True, slots=True)
class AnalysisTask:
    """A question about what matches a query in some partitions of one node.

    The query may name the first `added` of the features that were added to the dataset.
    """

    dataset: str
    query_json: LongText
    question: Question
    scope: PartitionScope
    added: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """What an analysis finds, at one node or at all of them.

    Attributes:
        facts: in the types of JSON.
        table: rows; None for an analysis without rows.
        reached: up to which commit of each partition they speak.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    table: pa.Table | None = None
    reached: Cursor = EMPTY_CURSOR


@dataclass(frozen=True, slots=True)
class ScanTask:
    """The commits (after, until] of some partitions, seen through one query.

    `until` None means: up to what is committed when the scan starts. With `labels_max` above 0
    the answer may stop before, after a whole commit; `ScanDone.reached` has the frontier. With a
    sampler the labels are its sample. The labels have the first `added` of the features that were
    added to the dataset. Of a keyed dataset they are those of a choice of versions.
    """

    item: int
    dataset: str
    query_json: LongText
    after: Cursor
    until: Cursor | None
    partitions: frozenset[int]
    labels_max: int = 0
    sampler_json: str = ""
    added: int = 0
    choice: str = Choice.CURRENT
    at: Cursor | None = None

    @property
    def needed(self) -> Cursor | None:
        """Up to where a node has to know the commits; None: all that are there."""
        return self.until if self.until is None or self.at is None else self.until.join(self.at)


@dataclass(frozen=True, slots=True)
class ScanLabels:
    item: int
    table: pa.Table


@dataclass(frozen=True, slots=True)
class ScanDone:
    """The end of an item: `reached` has the frontier of the answer in each partition.

    Attributes:
        gone: the partitions in which retention has dropped commits past the task's `after`, and
            up to which commit. Labels up to there may have been sent or not: leave them out.
    """

    item: int
    reached: Cursor
    gone: Cursor = EMPTY_CURSOR


@dataclass(frozen=True, slots=True)
class ScanFailed:
    item: int
    error: GalileoError


ScanAnswer = ScanLabels | ScanDone | ScanFailed


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Row ranges of commits: columns partition, sequence, row, rows (`PARTS_SCHEMA`).

    With a further column `label` (`NUMBERED_PARTS_SCHEMA`) the observations have a column of this
    name with the range of each; such a task has no options. The observations have the first
    `added` of the features that were added to the dataset.
    """

    dataset: str
    parts: pa.Table
    query_json: LongText
    options: RowOptions = _ALL_ROWS
    added: int = 0

    @classmethod
    def of(cls, query: Query, parts: pa.Table, options: RowOptions = _ALL_ROWS) -> ReadTask:
        """The rows of parts that match a query, with the features of its schema."""
        schema = query.schema
        return cls(schema.key, parts, query.to_json(), options, schema.added)

    @property
    def is_numbered(self) -> bool:
        return LABEL in self.parts.column_names


PARTS_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("rows", pa.int32(), nullable=False),
    ]
)
NUMBERED_PARTS_SCHEMA = PARTS_SCHEMA.append(pa.field(LABEL, pa.int32(), nullable=False))


@dataclass(frozen=True, slots=True)
class TableTask:
    """The rows of a table or keyed dataset at a cursor, or the keys that changed between two.

    Attributes:
        table: its key.
        keys: of `key_schema`; None for all keys.
        after: None for the rows that are there; else the keys with a version past it, deleted ones
            included.
        until: the commits that count; None for all that are committed.
        partitions: that are asked; none for all.
        added: how many of the features added to a keyed dataset the rows have.
    """

    table: str
    keys: pa.Table | None = None
    after: Cursor | None = None
    until: Cursor | None = None
    partitions: frozenset[int] = frozenset()
    added: int = 0


@dataclass(frozen=True, slots=True)
class TablePart:
    """Some rows of `Table.observation_schema`.

    Attributes:
        reached: partitions in which the answer goes up to a commit.
    """

    rows: pa.Table
    reached: Cursor


@dataclass(frozen=True, slots=True)
class ExecutionsTask:
    """The executions of a channel after a cursor in which a broker has matches.

    Attributes:
        channel: its key.
        broker: `NO_BROKER` for the last execution of each partition, whatever the cursor; the rows
            with their cuts come in place of observations.
        after: commits of the channel's log.
        partitions: that are asked; none for all.
    """

    channel: str
    broker: str
    after: Cursor
    partitions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Execution:
    """The share of a broker in an execution.

    Attributes:
        partition: of the subscriptions.
        number: of the execution in this partition.
        observations: an Arrow IPC stream of `Channel.delivered_schema`.
        matches: another one, of `MATCHES_SCHEMA`.
    """

    partition: int
    number: int
    observations: bytes
    matches: bytes


@dataclass(frozen=True, slots=True)
class ChannelProgress:
    """How far the executions of a channel are in one partition of its subscriptions.

    Attributes:
        partition: its number.
        node: that executes it.
        execution: the number of the last one.
        subscriptions: how many it has.
        index_bytes: memory of their index.
        behind: commits of the dataset that are not matched yet, as far as the node has heard.
        executed_at: seconds since 1970; 0: not since this node leads the partition.
        took_s: how long the last execution took.
        failure: why the last attempt failed; "" if it did not.
        cut: the commits of the dataset that are matched.
    """

    partition: int
    node: str
    execution: int
    subscriptions: int
    index_bytes: int
    behind: int
    executed_at: float
    took_s: float
    failure: str
    cut: Cursor


@dataclass(frozen=True, slots=True)
class ExecutionsPart:
    """A part of an answer.

    Attributes:
        reached: the partition up to which commit the answer goes with this part.
        execution: None where the broker has no matches.
        gone: up to which commit retention has dropped executions that were asked for.
    """

    reached: Cursor
    execution: Execution | None = None
    gone: Cursor = EMPTY_CURSOR


"""A change of a row of a system table."""


class Peers(Protocol):
    """Calls to another node by name; each raises `Unavailable` where it cannot be reached.

    Closing a stream ends it at the other node, too.
    """

    async def commit(self, node: str, task: CommitTask) -> CommitAnswer: ...

    async def find_batches(self, node: str, lookup: BatchLookup) -> Sequence[FoundBatch]: ...

    def scan_small(self, node: str, task: ScanTask) -> Awaitable[Sequence[ScanAnswer] | None]: ...

    def scan(self, node: str, tasks: Sequence[ScanTask]) -> AsyncGenerator[ScanAnswer, None]: ...

    def read(self, node: str, task: ReadTask, schema: Schema) -> AsyncGenerator[pa.Table, None]: ...

    def read_table(
        self, node: str, task: TableTask, table: StoredSchema
    ) -> AsyncGenerator[TablePart, None]: ...

    def read_executions(
        self, node: str, task: ExecutionsTask
    ) -> AsyncGenerator[ExecutionsPart, None]: ...

    async def analyse(self, node: str, task: AnalysisTask) -> Findings: ...

    async def change_row(self, node: str, table: str, change: RowChange) -> Row: ...

    async def change_rows(
        self, node: str, table: str, changes: Sequence[RowChange]
    ) -> Sequence[Outcome]: ...

    async def rows_after(
        self, node: str, table: str, position: Position, topic: str
    ) -> RowPage: ...

    async def learn_row(self, node: str, table: str, row: Row) -> None: ...

    async def known_rows(self, node: str, table: str, after: str) -> Sequence[Row]: ...

    async def known_row(self, node: str, table: str, name: str) -> Row: ...

    async def own_sampler_archive(self, node: str, digest: str) -> pa.Buffer: ...

    async def drop_generations(self, node: str, name: str, generations: int) -> Removed: ...

    async def apply_retention(
        self, node: str, dataset: str, retention: VersionedRetention
    ) -> RetentionOutcome: ...


def as_moved(
    error: GalileoError, live: TopologyState, partitions: Iterable[int] = ()
) -> PartitionMoved | None:
    """The error by which a call of an owner is repeated at the next one; None if it is not.

    If a node of replicated partitions cannot be reached, others elect a leader in its place.
    """
    if isinstance(error, PartitionMoved):
        return error
    if live.current.has_copies(partitions) and isinstance(error, TransientError | Cancelled):
        return PartitionMoved(f"another replica takes over: {error.message}", **error.details)
    return None


async def while_owned(
    call: Coroutine[Any, Any, T], live: TopologyState, node: str, partitions: Iterable[int]
) -> T:
    """The result of a call of the owner of partitions; ends it if another node leads one of them.

    Raises:
        PartitionMoved: another node does.
        GalileoError: of the call.
    """
    asked = tuple(partitions)
    if not live.current.has_copies(asked):
        return await call
    task = asyncio.create_task(call)
    try:
        while not (await asyncio.wait([task], timeout=OWNER_CHECK_S))[0]:
            owners = placement.all_owners(live.current)
            if any(owners[partition] != node for partition in asked):
                raise PartitionMoved("another replica has taken over", after_s=0.0)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def retry_timeout_s(live: TopologyState, partitions: Iterable[int] = ()) -> float:
    """For how long the owners of partitions are looked for."""
    if live.current.has_copies(partitions):
        return query_limits.FAILOVER_RETRY_S
    return query_limits.MOVED_RETRY_S


class RetryWhileMoving:
    """Retries one call while a partition move, or another leader, propagates to all nodes."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline: float | None = None

    async def after(self, error: PartitionMoved) -> None:
        """Waits for `MOVED_PAUSE_S`.

        Raises:
            PartitionMoved: the error, `timeout_s` after the first one.
        """
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._timeout_s
        if now > self._deadline:
            raise error
        await asyncio.sleep(MOVED_PAUSE_S)


Task = TypeVar("Task")


class Share(NamedTuple, Generic[Task]):
    """What one node is asked.

    Attributes:
        partitions: of the task.
    """

    node: str
    partitions: frozenset[int]
    task: Task


async def read_from_owners(
    task: Task,
    *,
    split: Callable[[Task], Awaitable[list[Share[Task]]]],
    read_local: Callable[[Task], AsyncGenerator[T, None]],
    read: Callable[[str, Task], AsyncGenerator[T, None]],
    name: str,
    live: TopologyState,
    timeout_s: float,
    is_partial: bool = False,
) -> AsyncGenerator[T, None]:
    """The answers of the owners of a task's partitions, one after the other.

    An owner that has not begun to answer, and is none any more, is asked no longer; its share is
    split again. Where commits of the reader were lost, the other owners begin to answer, too, so
    that the error names all partitions.

    Args:
        task: of all partitions.
        split: makes the shares of a task, or of a share.
        read_local: answers a share of this node.
        read: has another node answer one.
        name: of this node.
        live: its topology.
        timeout_s: for how long owners are looked for.
        is_partial: whether shares of owners that cannot be reached are left out.

    Raises:
        GalileoError: of an owner.
    """
    patience, changes = RetryWhileMoving(timeout_s), list[HistoryChanged]()
    shares = await split(task)
    while shares:
        node, partitions, share = shares.pop(0)
        is_here, is_begun = node == name, False
        stream = read_local(share) if is_here else read(node, share)
        try:
            async with aclosing(stream) as parts:
                while True:
                    following = anext(parts, None)
                    part = await (
                        following
                        if is_here or is_begun
                        else while_owned(following, live, node, partitions)
                    )
                    if part is None:
                        break
                    is_begun = True
                    if changes:
                        break
                    yield part
        except HistoryChanged as error:
            changes.append(error)
        except GalileoError as error:
            moved = None if is_begun else as_moved(error, live, partitions)
            if moved is None and is_partial and not is_begun and isinstance(error, TransientError):
                continue
            if moved is None:
                raise
            await patience.after(moved)
            shares = [*await split(share), *shares]
        else:
            patience = RetryWhileMoving(timeout_s)
    if changes:
        raise joined_changes(changes)
