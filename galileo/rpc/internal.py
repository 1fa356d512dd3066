"""The internal service: what nodes ask each other, by the codec of `galileo.wire.messages`.

A call is a method here, a row in `galileo.rpc.policy.INTERNAL_POLICIES`, and where its parameters
and its result are values of its own, their dataclasses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Protocol, TypeAlias

import grpc
import grpc.aio
import pyarrow as pa

from galileo.ccq.placement import CcqChange
from galileo.cursor import EMPTY_CURSOR, CommitRange, Cursor
from galileo.cycle import CycleRequest, Matches
from galileo.election.ranking import UsageStatistics
from galileo.errors import ConfigError, GalileoError
from galileo.labels import from_ipc
from galileo.model.deletions import STRETCHES_SCHEMA
from galileo.model.retention import Removed, RetentionOutcome, VersionedRetention
from galileo.model.schema import unknown_dataset
from galileo.model.system_rows import LookUp, OfferRow, Outcome, Position, Row, RowPage
from galileo.node.definitions import DefinitionChange
from galileo.node.peers import (
    NUMBERED_PARTS_SCHEMA,
    PARTS_SCHEMA,
    AnalysisTask,
    BatchLookup,
    ChannelProgress,
    CommitAnswer,
    CommitTask,
    ExecutionsPart,
    ExecutionsTask,
    FoundBatch,
    ReadTask,
    ScanAnswer,
    ScanFailed,
    ScanLabels,
    ScanTask,
    TablePart,
    TableTask,
)
from galileo.node.replication.protocol import (
    Envelope,
    HeldPartitions,
    LogRange,
    RangeDigest,
)
from galileo.node.sampler_rows import SamplerChange
from galileo.node.storage_node import StorageNode
from galileo.node.system_tables import SystemTable
from galileo.offload import offload
from galileo.query import parse_async
from galileo.replication.values import Member
from galileo.rpc.continuous import CcqUpdate, update_parts
from galileo.rpc.error_mapping import Context, streaming, unary
from galileo.rpc.gossip import GossipReply, GossipRequest
from galileo.spark.owners import OWNER, in_messages
from galileo.wire.attachments import AtMost, LongText
from galileo.wire.codec import CHUNK_BYTES_MAX, label_messages, row_messages, table_messages
from galileo.wire.services import INTERNAL_SERVICE
from galileo.wire.typed_service import TypedCall, TypedService, bounded_head
from galileo.wire.zero_copy import stream_of

REPLICATE_HEAD_BYTES_MAX = 1 << 20
"""Bytes of messages of replicas beside their frames."""
GOSSIP_HEAD_BYTES_MAX = 2 << 20
"""Bytes of gossip beside synopses and topology."""
TASK_HEAD_BYTES_MAX = 512 << 10
"""Bytes of a task beside its Arrow streams."""
SCAN_ITEMS_MAX = 256
QUERIES_MAX = 8_192
"""Queries that are registered by one call."""
SCAN_PARTS_MAX = 256
"""Answers to the items of a scan that travel together."""
SCAN_BYTES = 64 << 10
"""Bytes of labels with which they are sent."""
ScanTasks: TypeAlias = Annotated[Sequence[ScanTask], AtMost(SCAN_ITEMS_MAX)]
STEP_BYTES = 64
"""Bytes of an Arrow stream that are decoded in a step of `offload`, if it has small batches."""
CACHE_PART_BYTES = 1 << 20
AnyChange: TypeAlias = DefinitionChange | SamplerChange | CcqChange | OfferRow | LookUp
"""Changes of rows of all system tables."""


@dataclass(frozen=True, slots=True)
class CachedRange:
    """A piece of a handed-off cache.

    Attributes:
        data: labels, encoded by `galileo.ccq.pack_codec`; together with those of the other pieces.
        reached: the end of the labels of all pieces.
        gone: commits up to there that retention dropped before they were evaluated.
    """

    data: pa.Buffer
    reached: Cursor
    gone: tuple[CommitRange, ...]


@dataclass(frozen=True, slots=True)
class ExecutionsPiece:
    """A piece of an `ExecutionsPart`, whose streams may be too large for one message.

    Attributes:
        observations: bytes of the stream, which follow the bytes of the pieces before.
        matches: bytes of the stream of matches, in the same way.
        part: of the last piece; its execution has no observations and matches of its own.
    """

    observations: pa.Buffer
    matches: pa.Buffer
    part: ExecutionsPart | None = None


@dataclass(frozen=True, slots=True)
class FindingsPart:
    """A part of `Findings`.

    Attributes:
        rows: an Arrow stream, which follows those of the parts before; empty without rows.
        facts_json: empty but in the last part.
        reached: as in the findings, in the last part.
    """

    rows: pa.Buffer
    facts_json: LongText = ""
    reached: Cursor = EMPTY_CURSOR


class CoordinatedCcqs(Protocol):
    """What a node knows of continuous queries; `server.continuous` implements it."""

    async def fetch_here(
        self, ccq_id: str, *, token: str, wait_s: float, labels_max: int
    ) -> CcqUpdate: ...

    async def held(
        self, ccq_id: str, *, term: int, after: Cursor, labels_max: int
    ) -> CachedRange | None: ...


class PeerInbox(Protocol):
    """Receives gossip; `server.peer_messaging` implements it."""

    async def receive(self, request: GossipRequest) -> GossipReply: ...


class DrainedNodes(Protocol):
    """Removes nodes from the topology; implemented by `server.cluster_nodes.ClusterNodes`."""

    async def remove_drained(self, name: str) -> None: ...


class Internal:
    """Answers the calls of other nodes.

    Args:
        node: this node.
        usage: measures its load.
        ccqs: continuous queries; None: it answers no calls about them.
        inbox: for gossip; None: it answers none.
        nodes: of the topology; None: it removes none.
    """

    def __init__(
        self,
        node: StorageNode,
        usage: Callable[[], UsageStatistics],
        *,
        ccqs: CoordinatedCcqs | None = None,
        inbox: PeerInbox | None = None,
        nodes: DrainedNodes | None = None,
    ) -> None:
        self._node = node
        self._usage = usage
        self._ccqs = ccqs
        self._inbox = inbox
        self._nodes = nodes

    @bounded_head(GOSSIP_HEAD_BYTES_MAX)
    async def gossip(self, request: GossipRequest) -> GossipReply:
        """Takes a heartbeat or messages about the topology."""
        assert self._inbox is not None, "a node that is asked receives gossip"
        return await self._inbox.receive(request)

    async def replicate(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Takes messages of replicas, and answers beats."""
        return await self._node.replicas.receive(envelopes)

    @bounded_head(REPLICATE_HEAD_BYTES_MAX)
    async def replicate_frames(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Takes messages of replicas that are large, as those with many frames are."""
        return await self.replicate(envelopes)

    async def digests(
        self, member: Member, ranges: Sequence[LogRange]
    ) -> Sequence[RangeDigest | None]:
        """The digest of each range at a directory of this node; None where it does not know it."""
        replicas = self._node.replicas
        if member != replicas.me:
            return [None] * len(ranges)
        return replicas.comparison.digests(ranges)

    async def held_partitions(self) -> HeldPartitions:
        """What this node has of partitions."""
        return self._node.replicas.held()

    async def change_row(self, table: str, change: AnyChange) -> Row:
        """Changes a row of a system table, as the leader of the system partition."""
        return await self._table(table).answer(change)

    async def change_rows(self, table: str, changes: Sequence[AnyChange]) -> Sequence[Outcome]:
        """Changes rows of a system table, as the leader of the system partition."""
        return await self._table(table).answer_all(changes)

    async def rows_after(self, table: str, position: Position, topic: str) -> RowPage:
        """The rows of a topic that were changed after a position, as the leader knows them."""
        return await self._table(table).page(position, topic)

    async def learn_row(self, table: str, row: Row) -> None:
        """Keeps what was just agreed on about a name."""
        await self._table(table).learn_row(row)

    async def known_rows(self, table: str, after: str) -> Sequence[Row]:
        """What this node knows of the names behind one, some of them."""
        return await self._table(table).known_after(after)

    async def known_row(self, table: str, name: str) -> Row:
        """What this node knows of a name."""
        return self._table(table).known_row(name)

    async def usage(self) -> UsageStatistics:
        """The load of this node, for elections."""
        return self._usage()

    def _table(self, key: str) -> SystemTable[Any]:
        table = self._node.system_tables.get(key)
        if table is None:
            raise unknown_dataset(key, sorted(self._node.system_tables))
        return table

    async def own_sampler_archive(self, digest: str) -> pa.Buffer:
        """The archive of a sampler, as far as this node has it."""
        return pa.py_buffer(await self._node.samplers.own_archive(digest))

    async def register_queries(
        self, dataset: str, texts: Annotated[Sequence[LongText], AtMost(QUERIES_MAX)]
    ) -> None:
        """Indexes standing queries, so that `match` knows them by their digests."""
        await self._node.schema(dataset)
        await self._node.matching.register_queries(dataset, texts)

    async def match(self, request: CycleRequest) -> AsyncGenerator[Matches, None]:
        """What is new for the items of a cycle in partitions of this node."""
        request.check()
        await self._node.schema(request.dataset, added=request.schema.added)
        for message in in_messages(await self._node.matching.match(request)):
            yield message

    async def find_sampler_archive(self, digest: str, facts_only: bool) -> pa.Buffer:
        """The archive of a sampler, from whichever node has it; nothing, if it is not wanted.

        Raises:
            UnknownSampler, SamplerRevoked: there is none of that digest.
        """
        await self._node.samplers.facts(digest)
        archive = b"" if facts_only else (await self._node.samplers.archive(digest)).data
        return pa.py_buffer(archive)

    async def drop_generations(self, name: str, generations: int) -> Removed:
        """Drops the first generations of a name at this node."""
        return await self._node.drop(name, generations)

    async def remove_drained(self, name: str) -> None:
        """Removes a node from the topology, which has no partitions and no duties any more."""
        assert self._nodes is not None, "a node that is asked knows the topology"
        await self._nodes.remove_drained(name)

    async def describe_channel(self, channel: str) -> Sequence[ChannelProgress]:
        """How far the partitions of a channel are that this node executes."""
        known = await self._node.stored_schema(channel)
        return channel_progress(self._node, known.key)

    async def apply_retention(self, dataset: str, numbered_json: str) -> RetentionOutcome:
        """Drops what a policy demands to drop, at this node.

        Args:
            dataset: its key.
            numbered_json: the policy as the caller knows it, as of `VersionedRetention`.
        """
        retention = VersionedRetention.from_json(numbered_json)
        return await self._node.apply_own_retention(dataset, retention)

    # --- data ----------------------------------------------------------------------------------

    @bounded_head(TASK_HEAD_BYTES_MAX)
    async def commit(self, task: CommitTask) -> CommitAnswer:
        """Commits rows that belong to partitions of this node."""
        schema = await self._node.stored_schema(task.dataset, added=task.added)
        columns, data = schema.narrowed(task.added).version_schema, task.observations
        columns = STRETCHES_SCHEMA if task.deletes else columns
        rows = await offload(data.size // STEP_BYTES, from_ipc, data, columns)
        return await self._node.ingest.commit(replace(task, observations=rows))

    async def find_batches(self, lookup: BatchLookup) -> Sequence[FoundBatch]:
        """Whether partitions of this node have a batch of an earlier range epoch.

        The node takes no commits of earlier epochs any more.
        """
        schema = await self._node.schema(lookup.dataset)
        return await self._node.ingest.earlier.find(replace(lookup, dataset=schema.key))

    @bounded_head(TASK_HEAD_BYTES_MAX)
    async def scan(self, tasks: ScanTasks) -> AsyncGenerator[Sequence[ScanAnswer], None]:
        """The labels of several queries in partitions of this node."""
        await self._learn_features(tasks)
        answers, size = list[ScanAnswer](), 0
        async with aclosing(self._node.local_scans.scan(tasks)) as scanned:
            async for answer in scanned:
                for part in await _scan_parts(answer):
                    answers.append(part)
                    size += len(part.table) if isinstance(part, ScanLabels) else 0
                    if len(answers) >= SCAN_PARTS_MAX or size >= SCAN_BYTES:
                        yield answers
                        answers, size = [], 0
        if answers:
            yield answers

    @bounded_head(TASK_HEAD_BYTES_MAX)
    async def scan_small(self, tasks: ScanTasks) -> Sequence[tuple[ScanAnswer, ...] | None]:
        """The answers of `scan` to tasks without bound and sampler; None where they are large."""
        await self._learn_features(tasks)
        async with asyncio.TaskGroup() as group:
            scans = list[asyncio.Task[tuple[ScanAnswer, ...] | None]]()
            for task in tasks:
                scans.append(group.create_task(self._scan_small(task)))
                await asyncio.sleep(0)  # It begins, and scans as long as it may in the loop.
        bytes_left, fitting = CHUNK_BYTES_MAX, list[tuple[ScanAnswer, ...] | None]()
        for scan in [one.result() for one in scans]:
            bytes_left -= sum(
                part.table.size for part in scan or () if isinstance(part, ScanLabels)
            )
            fitting.append(scan if bytes_left >= 0 else None)  # Few labels with long texts.
        return fitting

    async def _scan_small(self, task: ScanTask) -> tuple[ScanAnswer, ...] | None:
        try:
            answers = await self._node.local_scans.scan_small(task)
        except GalileoError as error:
            return (ScanFailed(task.item, error),)
        if answers is None:
            return None
        tables = [answer.table for answer in answers if isinstance(answer, ScanLabels)]
        others = [answer for answer in answers if not isinstance(answer, ScanLabels)]
        if not tables:
            return tuple(others)
        labels = stream_of(pa.concat_tables(tables).combine_chunks())
        return (ScanLabels(task.item, labels), *others)

    async def _learn_features(self, tasks: Iterable[ScanTask]) -> None:
        """Learns features that a query may name; errors as `StorageNode.schema`."""
        for dataset, added in {(task.dataset, task.added) for task in tasks if task.added}:
            await self._node.schema(dataset, added=added)

    @bounded_head(TASK_HEAD_BYTES_MAX)
    async def read(self, task: ReadTask, is_numbered: bool) -> AsyncGenerator[pa.Buffer, None]:
        """Observations of partitions of this node as Arrow streams.

        Args:
            task: what to read.
            is_numbered: whether its parts have a column `label`.
        """
        columns = NUMBERED_PARTS_SCHEMA if is_numbered else PARTS_SCHEMA
        async with aclosing(self._read(task, columns)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def observations(
        self, dataset: str, digest: bytes, parts: pa.Buffer, added: int
    ) -> AsyncGenerator[pa.Buffer, None]:
        """The observations of labels that a standing query matched, for a sampler."""
        text = self._node.matching.text(dataset, digest)
        task = ReadTask(dataset, parts, text, added=added)
        async with aclosing(self._read(task, NUMBERED_PARTS_SCHEMA)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _read(self, task: ReadTask, columns: pa.Schema) -> AsyncGenerator[pa.Buffer, None]:
        await self._node.schema(task.dataset, added=task.added)
        parts = await offload(task.parts.size // STEP_BYTES, from_ipc, task.parts, columns)
        async with aclosing(self._node.reading.read_local(replace(task, parts=parts))) as tables:
            async for table in tables:
                for chunk in await row_messages(table):
                    yield chunk

    @bounded_head(TASK_HEAD_BYTES_MAX)
    async def read_table(self, task: TableTask) -> AsyncGenerator[TablePart, None]:
        """Rows of a table in partitions of this node."""
        await self._node.stored_schema(task.table, added=task.added)
        if (keys := task.keys) is not None:
            columns = self._node.catalog.versioned_shard(task.table).schema.key_schema
            keys = await offload(keys.size // STEP_BYTES, from_ipc, keys, columns)
        async with aclosing(self._node.tables.read_local(replace(task, keys=keys))) as parts:
            async for part in parts:
                for chunk in await row_messages(part.rows) or [b""]:
                    yield replace(part, rows=chunk)

    @bounded_head(TASK_HEAD_BYTES_MAX)
    async def analyse(self, task: AnalysisTask) -> AsyncGenerator[FindingsPart, None]:
        """What this node finds about a question in its partitions: rows, and in the end facts."""
        schema = await self._node.narrowed(task.dataset, task.added)
        query = await parse_async(task.query_json, schema)
        findings = await self._node.analytics.local(query, task.question, task.scope)
        rows = [] if findings.table is None else await table_messages(findings.table)
        for chunk in rows[:-1]:
            yield FindingsPart(pa.py_buffer(chunk))
        last = pa.py_buffer(rows[-1] if rows else b"")
        yield FindingsPart(last, json.dumps(findings.facts), findings.reached)

    @bounded_head(TASK_HEAD_BYTES_MAX)
    async def read_executions(self, task: ExecutionsTask) -> AsyncGenerator[ExecutionsPiece, None]:
        """The executions of a channel, in partitions of this node, with matches of a broker."""
        channel = await self._node.stored_schema(task.channel)
        reader = self._node.channel_reader
        async with aclosing(reader.read_local(replace(task, channel=channel.key))) as parts:
            async for part in parts:
                for piece in _executions_pieces(part):
                    yield piece

    async def fetch(
        self, ccq_id: str, token: LongText, wait_s: float, labels_max: int
    ) -> AsyncGenerator[pa.Buffer, None]:
        """An update of a continuous query that this node coordinates, for a client of the caller.

        The parts are those that the client gets, in protobuf.
        """
        assert self._ccqs is not None, "a node that is asked knows continuous queries"
        update = await self._ccqs.fetch_here(
            ccq_id, token=token, wait_s=wait_s, labels_max=labels_max
        )
        for part in update_parts(update):
            yield pa.py_buffer(part.SerializeToString())

    async def handed_off_cache(
        self, ccq_id: str, term: int, after: Cursor, labels_max: int
    ) -> AsyncGenerator[CachedRange, None]:
        """What this node keeps of a continuous query that it coordinated in a term.

        Nothing, if it has none of it any more. It may stop once it has that many labels.
        """
        assert self._ccqs is not None, "a node that is asked keeps caches"
        held = await self._ccqs.held(ccq_id, term=term, after=after, labels_max=labels_max)
        if held is not None:
            for start in range(0, max(held.data.size, 1), CACHE_PART_BYTES):
                size = min(CACHE_PART_BYTES, held.data.size - start)
                yield replace(held, data=held.data.slice(start, size))


def channel_progress(node: StorageNode, channel: str) -> list[ChannelProgress]:
    """How far the partitions of a channel are that a node executes."""
    executor = node.channels
    return [
        ChannelProgress(
            partition,
            node.name,
            one.execution,
            subscriptions=len(one.index),
            index_bytes=one.index.nbytes,
            behind=executor.behind(channel, one),
            executed_at=one.at,
            took_s=one.took_s,
            failure=one.failure,
            cut=one.cut,
        )
        for partition, one in executor.progress(channel).items()
    ]


async def _scan_parts(answer: ScanAnswer) -> list[ScanAnswer]:
    """An answer with its labels as they are sent, in bounded streams."""
    if not isinstance(answer, ScanLabels):
        return [answer]
    return [replace(answer, table=chunk) for chunk in await label_messages(answer.table)]


def _executions_pieces(part: ExecutionsPart) -> Iterator[ExecutionsPiece]:
    execution, nothing = part.execution, pa.py_buffer(b"")
    if execution is not None:
        for start in range(0, len(execution.observations), CHUNK_BYTES_MAX):
            chunk = execution.observations[start : start + CHUNK_BYTES_MAX]
            yield ExecutionsPiece(pa.py_buffer(chunk), nothing)
        for start in range(0, len(execution.matches), CHUNK_BYTES_MAX):
            chunk = execution.matches[start : start + CHUNK_BYTES_MAX]
            yield ExecutionsPiece(nothing, pa.py_buffer(chunk))
        part = replace(part, execution=replace(execution, observations=b"", matches=b""))
    yield ExecutionsPiece(nothing, nothing, part)


PROTOBUF_VERSION = 11
"""Raised with each change of what nodes send one another in protobuf."""
SERVICE = TypedService(INTERNAL_SERVICE, Internal, version=PROTOBUF_VERSION, shared=OWNER)
PROTOCOL = int.from_bytes(SERVICE.digest[:4])
"""Number of the messages between nodes; nodes refuse any other."""


def check_protocol(protocol: int, *, node: str) -> None:
    """Raises ConfigError if another node speaks another protocol."""
    if protocol != PROTOCOL:
        raise ConfigError(
            f"expected a node of protocol {PROTOCOL}, got protocol {protocol} of node {node!r}; "
            "install the same version of Galileo on all nodes",
            node=node,
            expected=PROTOCOL,
        )


def add_internal(
    servicer: object, server: grpc.aio.Server, service: TypedService = SERVICE
) -> None:
    """Has a server answer the internal calls.

    Args:
        servicer: has the methods of `Internal`.
        server: has not started yet.
        service: of which they are.
    """
    handlers = {
        name: _handler(call, getattr(servicer, name)) for name, call in service.calls.items()
    }
    server.add_registered_method_handlers(service.full_name, handlers)


def _handler(
    call: TypedCall[..., Any], method: Callable[..., Any]
) -> grpc.RpcMethodHandler[Any, Any]:
    """Answers a call, whose arguments were decoded, with the method that it names."""

    async def answer(_: None, arguments: Sequence[Any], context: Context) -> bytes:
        return call.encode_answer(await method(*arguments))

    async def parts(
        _: None, arguments: Sequence[Any], context: Context
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(method(*arguments)) as answers:
            async for part in answers:
                yield call.encode_answer(part)

    if call.is_stream:
        return grpc.unary_stream_rpc_method_handler(
            partial(streaming(parts), None), request_deserializer=call.decode
        )
    return grpc.unary_unary_rpc_method_handler(
        partial(unary(answer), None), request_deserializer=call.decode
    )
