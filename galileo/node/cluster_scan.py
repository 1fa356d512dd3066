"""Scans of the whole cluster: one answer from the partitions of all nodes that may hold a match."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import pyarrow as pa

from galileo import spans
from galileo.cursor import EMPTY_CURSOR, Cursor, joined_changes
from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.errors import (
    Cancelled,
    GalileoError,
    HistoryChanged,
    IncompleteAnswer,
    NotOwner,
    PartitionMoved,
    TransientError,
    UnknownDataset,
    listed,
)
from galileo.graph.versions import Choice
from galileo.node import query_limits, sampling
from galileo.node.cluster_view import ClusterView
from galileo.node.local_scan import LocalScans, split_table
from galileo.node.peers import (
    OWNER_CHECK_S,
    PartitionScope,
    Peers,
    RetryWhileMoving,
    ScanAnswer,
    ScanDone,
    ScanLabels,
    ScanTask,
    as_moved,
    retry_timeout_s,
    while_owned,
)
from galileo.node.sampler_store import SamplerStore
from galileo.offload import offload
from galileo.query import Query
from galileo.samplers import SamplerSpec

ENTRIES_MIN = 1_000
"""Entries of synopses that a condition tests in the time that it takes to begin."""
TESTS_PER_STEP = 4_000
"""Characters of a query times entries of synopses that are tested in a step of `offload`."""

_NOTHING = "false"
"""A query that matches nothing."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """How far an answer goes: a frontier for each partition, and the partitions not reached.

    Attributes:
        gone: the commits up to which retention has dropped requested data; labels up to there
            do not count. One-shot queries answer from what is stored and may ignore it.
        left: nodes with large answers, and their partitions, which the reader has to ask for.
    """

    frontier: Cursor
    missing: frozenset[int]
    gone: Cursor = EMPTY_CURSOR
    left: tuple[tuple[str, frozenset[int]], ...] = ()


class LargeAnswers(Enum):
    """What happens with the answer of another node that is not small.

    Attributes:
        PASS_ON: it goes through this node.
        EXPECTED: likewise; small answers are not tried first.
        LEAVE: the reader asks the node itself (`ScanEnd.left`).
    """

    PASS_ON = "pass_on"
    EXPECTED = "expected"
    LEAVE = "leave"


class _Left:
    """In place of a large answer that is left to the reader."""


UNREACHABLE_ERRORS = (TransientError, NotOwner, Cancelled, UnknownDataset)
"""Errors that make a node's partitions missing: it is away, busy, or does not know the dataset yet.
Any other error of a node is the answer's error, never a silent gap."""

_Part: TypeAlias = pa.Table | ScanEnd | Exception
_Answer: TypeAlias = AsyncGenerator[pa.Table | ScanEnd, None]


class ClusterScans:
    """Answers a query from all partitions that could hold a match."""

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        local: LocalScans,
        peers: Peers,
        view: ClusterView,
        samplers: SamplerStore,
        retry_max_s: float = math.inf,
    ) -> None:
        self._retry_max_s = retry_max_s
        self._name = name
        self._topology = topology
        self._local = local
        self._samplers = samplers
        self._peers = peers
        self._view = view

    def candidates(self, query: Query) -> frozenset[int]:
        """The partitions that placement allows to hold a match."""
        return placement.candidates(self._topology.current, query.schema, query.cell_ranges())

    async def scope(self, query: Query) -> PartitionScope:
        """The partitions that can hold a match, and the commits up to which they hold none."""
        candidates = self.candidates(query)
        return PartitionScope(candidates, after=await self._pruned_until(query, candidates))

    async def _pruned_until(self, query: Query, candidates: frozenset[int]) -> Cursor:
        entries = ENTRIES_MIN + self._view.graph(query.schema).entries
        steps = len(query.to_json()) * entries // TESTS_PER_STEP
        return await offload(steps, self._view.pruned_until, query, candidates)

    async def sampled(self, query: Query, spec: SamplerSpec) -> _Answer:
        """The labels of `run`, sampled at the nodes that store them, and merged here if necessary.

        Raises:
            UnknownSampler: the sampler is not installed at this or another node.
            NotPermitted, SandboxUnavailable, SamplerRevoked: an uploaded sampler cannot run.
            InputError: the sampler rejects its options, or they do not fit the dataset.
            SamplerFailed: the sampler raised, or returned no mask.
            MessageTooLarge: the samples of the nodes are too large to merge.
        """
        chosen = await self._samplers.load(spec, owner=query.schema.key)
        last = sampling.merging_at_last(query.schema, chosen, spec)
        async with aclosing(self.run(query, sampler=spec)) as parts:
            async for part in parts:
                if last is None:
                    yield part
                elif isinstance(part, ScanEnd):
                    labels = await asyncio.to_thread(last.result, until=part.frontier)
                    for table in split_table(labels.table, query_limits.LABELS_PER_PART):
                        yield table
                    yield part
                else:
                    last.add(part)

    async def run(
        self,
        query: Query,
        *,
        sampler: SamplerSpec | None = None,
        partitions: frozenset[int] | None = None,
        large: LargeAnswers = LargeAnswers.PASS_ON,
    ) -> AsyncGenerator[pa.Table | ScanEnd, None]:
        """The matching labels of all commits at the time of the call, in parts, then a `ScanEnd`.

        Of all partitions, or of some.

        Where the feature graph excludes a match up to some commit, only later commits are scanned.
        The partitions of an unreachable node are missing; labels that it had already sent lie past
        the frontier of the `ScanEnd`, and the caller drops them by `LabelSet.until`.
        """
        candidates = self.candidates(query)
        if partitions is not None:
            candidates &= partitions
        # Blocks are hashed over their group: place and time exclude hardly any of its partitions.
        pruned = await self._pruned_until(query, candidates) if query.features else EMPTY_CURSOR
        answer = self.between(
            query, partitions=candidates, after=pruned, until=None, sampler=sampler, large=large
        )
        async with aclosing(answer) as parts:
            async for part in parts:
                if isinstance(part, ScanEnd):
                    yield ScanEnd(part.frontier.join(pruned), part.missing, left=part.left)
                else:
                    yield part

    async def limited(self, query: Query, answer: _Answer, labels_max: int) -> _Answer:
        """The first `labels_max` labels of an answer, then its `ScanEnd`.

        Reaching the bound ends the scans of all nodes. The `ScanEnd` then has an empty frontier,
        and names the partitions of all unreachable nodes.
        """
        async with aclosing(answer) as parts:
            async for part in parts:
                if isinstance(part, ScanEnd):
                    yield part
                    return
                if part.num_rows > labels_max:
                    if labels_max:
                        yield part.slice(0, labels_max)
                    break
                labels_max -= part.num_rows
                yield part
        yield ScanEnd(EMPTY_CURSOR, await self.unreachable(query, self.candidates(query)))

    async def unreachable(self, query: Query, partitions: frozenset[int]) -> frozenset[int]:
        """The partitions whose nodes cannot be reached; scans none of their commits."""
        missing = frozenset[int]()
        async with aclosing(
            self.between(query, partitions=partitions, after=EMPTY_CURSOR, until=EMPTY_CURSOR)
        ) as parts:
            async for part in parts:
                if isinstance(part, ScanEnd):
                    missing |= part.missing
        return missing

    async def check_history(self, dataset: str, *cursors: Cursor) -> None:
        """Raises HistoryChanged with all positions of cursors that are lost at any node.

        A scan that fails names those of one node.
        """
        changes = list[HistoryChanged]()
        for cursor in cursors:
            whole = ScanTask(0, dataset, _NOTHING, EMPTY_CURSOR, cursor, frozenset(cursor))
            for node, share in self._shares(whole).items():
                try:
                    async for _ in self._answer(node, share, LargeAnswers.PASS_ON):
                        pass
                except HistoryChanged as error:
                    changes.append(error)
        if changes:
            raise joined_changes(changes)

    async def between(
        self,
        query: Query,
        *,
        partitions: frozenset[int],
        after: Cursor,
        until: Cursor | None,
        labels_max: int = 0,
        sampler: SamplerSpec | None = None,
        large: LargeAnswers = LargeAnswers.PASS_ON,
        choice: Choice = Choice.CURRENT,
        at: Cursor | None = None,
    ) -> AsyncGenerator[pa.Table | ScanEnd, None]:
        """The labels of the commits (after, until] of some partitions, then their `ScanEnd`.

        With `labels_max` above 0 each node may stop when it has its part of so many: one in
        proportion to its partitions, doubled, since labels are not spread evenly. A sampler runs at
        the nodes; samples of different nodes are not merged. `choice` and `at` are those of
        versions of a keyed dataset.
        """
        whole = ScanTask(
            0,
            query.schema.key,
            query.to_json(),
            after,
            until,
            partitions,
            labels_max,
            added=query.schema.added,
            choice=choice,
            at=at,
        )
        if sampler is not None:
            whole = dataclasses.replace(whole, sampler_json=sampler.to_json())
        shares = self._shares(whole)
        if list(shares) == [self._name]:
            # A small answer is one part and its end: tasks and a queue would only cost time.
            answer = self._answer(self._name, whole, large)
            for _ in range(2):
                part = await anext(answer)
                yield part
                if isinstance(part, ScanEnd):
                    return
            merged = self._merged({}, large, answer)
        else:
            merged = self._merged(shares, large)
        async with aclosing(merged) as parts:
            async for part in parts:
                yield part

    async def _merged(
        self, shares: dict[str, ScanTask], large: LargeAnswers, *begun: _Answer
    ) -> _Answer:
        """The labels of several nodes as they arrive, then one `ScanEnd` for all.

        Most answers are small. Such an answer costs its call, and no task.

        Args:
            shares: the tasks of nodes that are asked now.
            large: what happens with large answers.
            begun: further answers.
        """
        arrivals = _Arrivals(query_limits.PARTS_WAITING_MAX)
        ends: list[ScanEnd] = []
        span = spans.begun("merge", nodes=len(shares))
        try:
            for answer in begun:
                arrivals.follow(answer)
            for node, share in shares.items():
                if _may_be_small(share, large):
                    arrivals.expect(node, self._scan_small(node, share))
                else:
                    arrivals.follow(self._answer(node, share, large))
            if self._topology.current.is_replicated:
                arrivals.watch(self._until_moved(shares, arrivals))
            while len(ends) < len(shares) + len(begun):
                arrived = await arrivals.next()
                if isinstance(arrived, _SmallCall):
                    task = shares[arrived.node]
                    parts = self._small_parts(arrived, task, large=large, arrivals=arrivals)
                elif isinstance(arrived, Exception):
                    raise arrived
                else:
                    parts = [arrived]
                for part in parts:
                    if isinstance(part, ScanEnd):
                        ends.append(part)
                    else:
                        yield part
        finally:
            await arrivals.close()
            if span is not None:
                span.end()
        yield _merge_ends(ends)

    def _scan_small(self, node: str, task: ScanTask) -> Awaitable[Sequence[ScanAnswer] | None]:
        if node == self._name:
            return self._local.scan_small(task)
        return self._peers.scan_small(node, task)

    def _small_parts(
        self, called: _SmallCall, task: ScanTask, *, large: LargeAnswers, arrivals: _Arrivals
    ) -> list[pa.Table | ScanEnd]:
        """The parts of a small answer. Those of another one follow, and there are none yet."""
        node = called.node
        try:
            answers = called.result()
        except UNREACHABLE_ERRORS as error:
            moved = as_moved(error, self._topology)
            if moved is None:
                return [_unreached(node, task, error)]
            arrivals.follow(self._answer(node, task, large, moved=moved))
            return []
        if answers is not None:
            return [_part_of(answer) for answer in answers]
        if large is LargeAnswers.LEAVE and node != self._name:
            return [_left(node, task)]
        arrivals.follow(self._answer(node, task, LargeAnswers.EXPECTED))
        return []

    async def _until_moved(self, shares: dict[str, ScanTask], arrivals: _Arrivals) -> None:
        """Ends the calls of nodes that do not lead all of their partitions any more."""
        while True:
            await asyncio.sleep(OWNER_CHECK_S)
            owners = placement.owners(self._topology.current)
            for node in arrivals.expected:
                asked = shares[node].partitions
                if node != self._name and any(owners[partition] != node for partition in asked):
                    arrivals.cancel(node)

    def _shares(self, task: ScanTask) -> dict[str, ScanTask]:
        """The task for each node: what this one has of a named range, else what a node owns."""
        by_node = placement.partitions_by_node(self._topology.current)
        here = frozenset[int]() if task.until is None else self._local.readable(task)
        shares = {node: owned & task.partitions - here for node, owned in by_node.items()}
        shares[self._name] = shares.get(self._name, frozenset()) | here
        return {
            node: dataclasses.replace(
                task,
                partitions=share,
                after=at_partitions(task.after, share),
                labels_max=_part_of_bound(task, share),
            )
            for node, share in shares.items()
            if share
        }

    async def _answer(
        self,
        node: str,
        task: ScanTask,
        large: LargeAnswers,
        *,
        moved: PartitionMoved | None = None,
    ) -> _Answer:
        """One node's labels, then their `ScanEnd`; raises the errors of this side.

        Partitions that have moved meanwhile are scanned at their new nodes. With `moved`, the node
        was asked already and refused for this reason.
        """
        retry = RetryWhileMoving(min(self._retry_max_s, retry_timeout_s(self._topology)))
        tasks, ends = [(node, task)], list[ScanEnd]()
        while tasks:
            node, share = tasks.pop()
            refused, moved = moved, None
            try:
                if refused is not None:
                    raise refused
                async with aclosing(self._scan_node(node, share, large)) as parts:
                    async for part in parts:
                        if isinstance(part, ScanEnd):
                            ends.append(part)
                        else:
                            yield part
            except PartitionMoved as error:
                try:
                    await retry.after(error)
                except PartitionMoved:
                    ends.append(ScanEnd(EMPTY_CURSOR, share.partitions))
                else:
                    tasks += self._shares(share).items()
        yield _merge_ends(ends)

    async def _scan_node(self, node: str, task: ScanTask, large: LargeAnswers) -> _Answer:
        """The labels and the end of one scan at one node.

        Raises:
            PartitionMoved: the node does not have all partitions, or another one takes over, and it
                has sent no labels.
        """
        end, is_begun = ScanEnd(EMPTY_CURSOR, task.partitions), False
        try:
            async with aclosing(self._scan_answers(node, task, large)) as answers:
                while True:
                    following = anext(answers, None)
                    answer = await (
                        following
                        if is_begun or node == self._name
                        else while_owned(following, self._topology, node, task.partitions)
                    )
                    if answer is None:
                        break
                    if isinstance(answer, ScanLabels):
                        is_begun = True
                        yield answer.table
                    elif isinstance(answer, ScanDone):
                        end = ScanEnd(answer.reached, frozenset(), answer.gone)
                    elif isinstance(answer, _Left):
                        end = _left(node, task)
                    else:
                        raise answer.error
        except UNREACHABLE_ERRORS as error:
            moved = None if is_begun else as_moved(error, self._topology)
            if moved is not None:
                raise moved from error
            _unreached(node, task, error)
        yield end

    async def _scan_answers(
        self, node: str, task: ScanTask, large: LargeAnswers
    ) -> AsyncGenerator[ScanAnswer | _Left, None]:
        """The answers of one node: one call where they are small, else a stream."""
        is_here = node == self._name
        if _may_be_small(task, large):
            small = await self._scan_small(node, task)
            if small is not None:
                for answer in small:
                    yield answer
                return
            if large is LargeAnswers.LEAVE and not is_here:
                yield _Left()
                return
        scan = self._local.scan([task]) if is_here else self._peers.scan(node, [task])
        async with aclosing(scan) as answers:
            async for answer in answers:
                yield answer


@dataclass(frozen=True, slots=True)
class _SmallCall:
    """A call for a small answer that has ended."""

    node: str
    call: asyncio.Future[Sequence[ScanAnswer] | None]

    def result(self) -> Sequence[ScanAnswer] | None:
        """The answer. Raises the error of the call; PartitionMoved where it was cancelled."""
        if self.call.cancelled():
            raise PartitionMoved("another replica has taken over", after_s=0.0)
        return self.call.result()


class _Arrivals:
    """What several nodes answer, in the order of its arrival.

    Args:
        waiting_max: parts of streams that wait for the reader; the streams behind them wait, too.
    """

    def __init__(self, waiting_max: int) -> None:
        self._queue: asyncio.Queue[_Part | _SmallCall] = asyncio.Queue()
        self._room = asyncio.Semaphore(waiting_max)
        self._calls: dict[str, asyncio.Future[Sequence[ScanAnswer] | None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def expected(self) -> list[str]:
        """The nodes whose small answers have not been taken."""
        return list(self._calls)

    def expect(self, node: str, call: Awaitable[Sequence[ScanAnswer] | None]) -> None:
        """Has the end of a call arrive."""
        self._calls[node] = future = asyncio.ensure_future(call)
        future.add_done_callback(lambda call: self._queue.put_nowait(_SmallCall(node, call)))

    def cancel(self, node: str) -> None:
        """Ends a call."""
        self._calls[node].cancel()

    def follow(self, answer: _Answer) -> None:
        """Has the parts of a stream arrive, or its error."""
        self.watch(self._put(answer))

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a task until `close`."""
        self._tasks.append(asyncio.create_task(work))

    async def next(self) -> _Part | _SmallCall:
        arrived = await self._queue.get()
        if isinstance(arrived, _SmallCall):
            del self._calls[arrived.node]
        else:
            self._room.release()
        return arrived

    async def close(self) -> None:
        running: list[asyncio.Future[Any]] = [*self._calls.values(), *self._tasks]
        for one in running:
            one.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)

    async def _put(self, answer: _Answer) -> None:
        try:
            async with aclosing(answer) as parts:
                async for part in parts:
                    await self._room.acquire()
                    self._queue.put_nowait(part)
        except Exception as error:
            await self._room.acquire()
            self._queue.put_nowait(error)


def incomplete_answer(missing: frozenset[int]) -> IncompleteAnswer:
    return IncompleteAnswer(
        f"partitions {listed(sorted(missing))} are missing, because their nodes are unreachable; "
        "try again when they are back",
        missing=sorted(missing),
    )


def at_partitions(cursor: Cursor, partitions: frozenset[int]) -> Cursor:
    """A cursor at some partitions: a message need not have the others."""
    return cursor and Cursor({partition: cursor[partition] for partition in partitions})


def _part_of_bound(task: ScanTask, partitions: frozenset[int]) -> int:
    """How many labels of some partitions are wanted: what is beyond the bound is made in vain."""
    part = -(-2 * task.labels_max * len(partitions) // len(task.partitions))
    return min(part, task.labels_max)


def _may_be_small(task: ScanTask, large: LargeAnswers) -> bool:
    """Whether a node is asked for a small answer first."""
    return not (task.labels_max or task.sampler_json) and large is not LargeAnswers.EXPECTED


def _part_of(answer: ScanAnswer) -> pa.Table | ScanEnd:
    if isinstance(answer, ScanLabels):
        return answer.table
    if isinstance(answer, ScanDone):
        return ScanEnd(answer.reached, frozenset(), answer.gone)
    raise answer.error


def _left(node: str, task: ScanTask) -> ScanEnd:
    """The end of a large answer that is left to the reader."""
    return ScanEnd(EMPTY_CURSOR, frozenset(), left=((node, task.partitions),))


def _unreached(node: str, task: ScanTask, error: GalileoError) -> ScanEnd:
    """The end of an answer that did not come."""
    log.warning("node %s did not answer a scan: %s", node, error)
    return ScanEnd(EMPTY_CURSOR, task.partitions)


def _merge_ends(ends: Sequence[ScanEnd]) -> ScanEnd:
    return ScanEnd(
        Cursor.joined(end.frontier for end in ends),
        frozenset[int]().union(*(end.missing for end in ends)),
        Cursor.joined(end.gone for end in ends),
        tuple(left for end in ends for left in end.left),
    )
