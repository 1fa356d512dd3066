"""Continuous queries for clients: submit, fetch, cancel and list."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from galileo.ccq import events as ccq
from galileo.ccq.dropped_ranges import within
from galileo.ccq.model import CcqDefinition, Record, dropped_failure, end_reason
from galileo.ccq.pack_codec import to_bytes
from galileo.ccq.records import NODES_MAX
from galileo.clock import Clock
from galileo.config import LimitsSection
from galileo.cursor import EMPTY_CURSOR, Cursor, lost_positions
from galileo.dht import placement
from galileo.election.election import Candidacy
from galileo.errors import (
    DeadlineExceeded,
    GalileoError,
    HistoryChanged,
    InputError,
    InvalidToken,
    Overloaded,
    Unavailable,
    UnknownDataset,
)
from galileo.grouped_calls import GroupedCalls
from galileo.labels import LabelSet
from galileo.model.reader import reader_hold_us
from galileo.model.schema import Schema
from galileo.model.times import MICROS, duration_text
from galileo.model.windows import WindowChanges, WindowProgress, advance_windows
from galileo.node.cluster_scan import ScanEnd
from galileo.node.storage_node import StorageNode
from galileo.offload import offload
from galileo.optional_imports import require
from galileo.packing import Compression
from galileo.packs import pack_labels
from galileo.query import Query, parse_async
from galileo.rpc.continuous import CcqDescription, CcqUpdate, Submission, Submitted
from galileo.rpc.internal import CachedRange
from galileo.rpc.peers import GrpcPeers
from galileo.rpc.quotas import check_times, check_vertices
from galileo.server.ccq_records import CcqRecords
from galileo.server.driver import Driver
from galileo.server.effect_executor import EffectExecutor, gathered
from galileo.server.fetch_response import apply_windows, check_progress, pieces_of
from galileo.server.resets import newest_snapshot, next_part
from galileo.server.withdrawals import Withdrawals, withdrawals
from galileo.wire import token as tokens
from galileo.wire.v1 import continuous_pb2

T = TypeVar("T")

ANSWER_TIMEOUT_S = 30.0
SCAN_WAIT_S = 0.5
"""After it the election of a group begins without those whose scans a dead node may hold up."""
GROUP_WAIT_S = 1.0
"""The longest that submissions wait for those before, which a dead node may hold up."""
GROUP_MAX = 64
"""Submissions of one group; their initial results are in memory at the same time."""
LATE_MAX = 1_000
"""Submissions of one election after scans that took long."""
MOVING_RETRY_S = 0.2
"""Delay of a retry while a CCQ changes its coordinator."""
# For the first estimate of a CCQ's cache: as much as it has found so far may come again.
BYTES_PER_LABEL = 16
RECORDS_FREE_BYTES = 16 << 20
"""Free disk space that is required to accept a continuous query."""

_CCQ_ID = re.compile(r"[a-z0-9_.-]{1,64}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Initial:
    labels: LabelSet
    tail: ScanEnd


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A CCQ after its initial scan, for the election of its nodes.

    Attributes:
        bounds: how many CCQs may live in the cluster, and of its owner.
    """

    candidacy: Candidacy
    record: Record
    bounds: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Started:
    """A submission; `scanning` waits for `begin`, which its group sets."""

    query: Query
    made: CcqDefinition
    owned_max: int
    begin: asyncio.Event
    scanning: asyncio.Task[_Initial]

    @property
    def has_result(self) -> bool:
        task = self.scanning
        return task.done() and not task.cancelled() and task.exception() is None


class ContinuousQueries:
    """Implements `rpc.continuous.CcqApi` with the driver and the node.

    Args:
        warm: called when a CCQ is submitted, so that Spark is warm before its first cycle.
    """

    def __init__(
        self,
        node: StorageNode,
        driver: Driver,
        *,
        records: CcqRecords,
        work: EffectExecutor,
        peers: GrpcPeers,
        clock: Clock,
        limits: LimitsSection,
        warm: Callable[[], None],
    ) -> None:
        self._node = node
        self._driver = driver
        self._records = records
        self._work = work
        self._peers = peers
        self._clock = clock
        self._limits = limits
        self._warm = warm
        self._has_spark = False
        self._groups = GroupedCalls(self._submit_group, wait_s=GROUP_WAIT_S, items_max=GROUP_MAX)
        self._late = GroupedCalls(self._elect_group, wait_s=GROUP_WAIT_S, items_max=LATE_MAX)

    # --- submit ------------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> Submitted:
        """Evaluates a query once, elects its nodes, and has its record added.

        Raises:
            InputError: the query or its sampler is wrong, or a limit is exceeded.
            TransientError: no node could accept it.
        """
        schema = await self._node.named(submission.dataset)
        query = await self._node.bind(submission.query, schema, asked_once=False)
        made = self._checked(submission, query)
        if made.sampler is not None:
            await self._work.load(made.sampler, dataset=made.dataset)
        self._warm()
        initial, record = await self._scan_and_elect(query, made, submission.quotas.ccqs_max)
        if isinstance(record, GalileoError):
            raise record
        progress, windows = self._first_windows(made, initial)
        token = self._token(made, schema, initial.tail.frontier, progress)
        return Submitted(self._records.describe(record), initial.labels, token, windows)

    async def _scan_and_elect(
        self, query: Query, made: CcqDefinition, owned_max: int
    ) -> tuple[_Initial, Record | GalileoError]:
        """The initial result, and the record after the election.

        The scan is a part of its own request, as its trace and log say.
        """
        begin = asyncio.Event()

        async def scan() -> _Initial:
            await begin.wait()
            return await self._initial(query, made)

        scanning = asyncio.create_task(scan())
        try:
            started = _Started(query, made, owned_max, begin, scanning)
            outcome = await self._groups.call(started)
            initial = await scanning
            if outcome is None:
                outcome = await self._late.call(self._candidacy(started))
            return initial, outcome
        finally:
            scanning.cancel()

    async def _submit_group(
        self, group: tuple[_Started, ...]
    ) -> Sequence[Record | GalileoError | None]:
        """Scans for all submissions of a group at the same time, then elects their nodes.

        Returns:
            The outcomes; None where the scan takes long, or has failed.
        """
        for one in group:
            one.begin.set()
        await asyncio.wait([one.scanning for one in group], timeout=SCAN_WAIT_S)
        scanned = [number for number, one in enumerate(group) if one.has_result]
        items = tuple(self._candidacy(group[number]) for number in scanned)
        outcomes: list[Record | GalileoError | None] = [None] * len(group)
        if items:
            for number, outcome in zip(scanned, await self._elect_group(items), strict=True):
                outcomes[number] = outcome
        return outcomes

    def _candidacy(self, started: _Started) -> _Candidate:
        initial, made = started.scanning.result(), started.made
        candidacy = Candidacy(
            made.id,
            count=NODES_MAX,
            need_bytes=BYTES_PER_LABEL * len(initial.labels),
            nearby=self._candidates(started.query),
        )
        record = Record(made, retrieved=initial.tail.frontier, fetched_at=self._clock.wall())
        return _Candidate(candidacy, record, (self._limits.ccqs_max, started.owned_max))

    async def _elect_group(self, items: tuple[_Candidate, ...]) -> Sequence[Record | GalileoError]:
        """Elects the nodes of CCQs that were submitted at about the same time."""
        return await self._records.place(
            [one.candidacy for one in items],
            [one.record for one in items],
            bounds=[one.bounds for one in items],
        )

    def _first_windows(
        self, made: CcqDefinition, initial: _Initial
    ) -> tuple[WindowProgress, WindowChanges | None]:
        if made.window is None:
            return WindowProgress(), None
        clock_us = self._clock_us(made, initial.tail.frontier)
        buckets = initial.labels.buckets
        return advance_windows(
            made.window, WindowProgress(), buckets=buckets, clock_us=clock_us, more=False
        )

    def _clock_us(self, made: CcqDefinition, cursor: Cursor) -> int | None:
        """The event clock of a query at a cursor; None while none is known."""
        return self._driver.machine.state.clock_of(made.dataset).at(cursor)

    def _checked(self, submission: Submission, query: Query) -> CcqDefinition:
        if not self._has_spark:  # Looking for it takes as long as the rest of the checks.
            require("spark", purpose=f"a continuous query at node {self._node.name}")
            self._has_spark = True
        limits = self._limits
        if not _CCQ_ID.fullmatch(submission.ccq_id):
            raise InputError(
                f"expected a CCQ id of a-z, 0-9, '_', '.', '-', got {submission.ccq_id!r}"
            )
        if not limits.interval_min_s <= submission.interval_s < float("inf"):
            raise InputError(
                f"expected an update interval of at least {duration_text(limits.interval_min_s)}, "
                f"got {duration_text(submission.interval_s)}"
            )
        if not submission.interval_s <= submission.expiration_s:
            raise InputError(
                "expected an expiration of at least the update interval, got an interval of "
                f"{duration_text(submission.interval_s)} and an expiration of "
                f"{duration_text(submission.expiration_s)}; choose a shorter interval or a later "
                "expiration"
            )
        if submission.expiration_s > limits.expiration_max_s:
            raise InputError(
                f"expected an expiration of at most {duration_text(limits.expiration_max_s)}, got "
                f"{duration_text(submission.expiration_s)}"
            )
        check_times(submission.interval_s, submission.expiration_s, submission.quotas)
        check_vertices(query, submission.quotas)
        free_bytes = self._node.store.free_bytes()
        if free_bytes < RECORDS_FREE_BYTES:
            raise Overloaded(
                f"expected {RECORDS_FREE_BYTES:,} bytes of free disk for records of continuous "
                f"queries, got {free_bytes:,} at node {self._node.name}; make room there",
                after_s=60.0,
                node=self._node.name,
            )
        return CcqDefinition(
            id=submission.ccq_id,
            dataset=query.schema.key,
            query=query.to_json(),
            interval_s=submission.interval_s,
            expires_at=self._clock.wall() + submission.expiration_s,
            sampler=submission.sampler,
            compression=submission.compression,
            window=submission.window,
            owner=submission.owner,
            added=query.schema.added,
            hold_s=reader_hold_us(submission.hold_s) / MICROS,
        )

    async def _initial(self, query: Query, made: CcqDefinition) -> _Initial:
        found, tail = await gathered(query, self._node.scans.run(query))
        sampled = await self._work.sample(found, made.sampler, query=query)
        labels = sampled.answering(frontier=tail.frontier, missing=tail.missing, query=made.query)
        return _Initial(labels, tail)

    def _candidates(self, query: Query) -> tuple[str, ...]:
        owners = placement.owners(self._node.topology)
        return tuple(sorted({owners[p] for p in self._node.scans.candidates(query)}))

    # --- fetch -------------------------------------------------------------------------------

    async def fetch(
        self,
        ccq_id: str,
        *,
        token: str,
        wait_s: float,
        labels_max: int,
    ) -> CcqUpdate | list[continuous_pb2.FetchPart]:
        """The labels since the token, from this node or from the coordinator."""
        position = await _read_token(token, ccq_id)
        record = await self._records.find(ccq_id)
        coordinator = self._coordinator(record)
        if coordinator == self._node.name:
            return await self._fetch(record, position, wait_s=wait_s, labels_max=labels_max)
        return await self._forward(
            coordinator, ccq_id, token=token, wait_s=wait_s, labels_max=labels_max
        )

    async def fetch_here(
        self, ccq_id: str, *, token: str, wait_s: float, labels_max: int
    ) -> CcqUpdate:
        """The labels since the token, if this node coordinates the CCQ, as another one believes.

        Raises:
            Unavailable: it does not, also as the leader knows, which may have heard first.
        """
        position = await _read_token(token, ccq_id)
        record = await self._records.find(ccq_id)
        if record.ended is None and record.acting(self._is_gone) != self._node.name:
            record = await self._records.look_up(ccq_id)
        if self._coordinator(record) != self._node.name:
            raise _moving(ccq_id)
        return await self._fetch(record, position, wait_s=wait_s, labels_max=labels_max)

    def _coordinator(self, record: Record) -> str:
        """The node that answers the fetches of a CCQ. Raises the reason if there is none."""
        if record.ended is not None:  # The machine knows no records of other nodes.
            raise end_reason(record).to_error()
        self._check_not_revoked(record)
        coordinator = record.acting(self._is_gone)
        if not coordinator:
            raise _moving(record.ccq.id)
        return coordinator

    async def _fetch(
        self,
        record: Record,
        position: tokens.Position,
        *,
        wait_s: float,
        labels_max: int,
    ) -> CcqUpdate:
        ccq_id, cursor = record.ccq.id, position.cursor
        until_clock_us = self._until_clock_us(record, position.progress)
        bound = self._limits.answer_labels_max
        wanted = min(labels_max or bound, bound)
        wait_until = self._clock.monotonic() + wait_s if wait_s else None
        schema = await self._schema(record.ccq)
        while position.place is None:
            make = partial(
                ccq.FetchRequested,
                ccq_id=ccq_id,
                cursor=cursor,
                wait_until=wait_until,
                labels_max=wanted,
                until_clock_us=until_clock_us,
                withdraws=partial(self._withdrawing, schema),
            )
            answer = await self._ask(make, timeout_s=ANSWER_TIMEOUT_S + wait_s)
            try:
                await self._check_answer(answer, record, cursor)
                update = await self._update(answer, record.ccq, position, wanted)
            except HistoryChanged as error:
                # What the lost commits replaced or deleted counts again, and nothing tells which.
                deletions = position.deletions
                error.details["reset"] = schema.is_keyed or any(
                    deletions[lost.partition] > lost.common for lost in lost_positions(error)
                )
                raise
            if update is None:
                break
            is_over = wait_until is None or self._clock.monotonic() >= wait_until
            may_wait = update.withdrawn is not None and not update.answer.missing
            if is_over or update.is_news or not may_wait:
                return update
            cursor = update.answer.cursor  # What was committed has changed nothing for the reader.
        return await self._reset(record, position, wanted)

    async def _reset(self, record: Record, position: tokens.Position, labels_max: int) -> CcqUpdate:
        """The next part of a reset, or the first part of one that begins; see `resets`.

        Raises:
            IncompleteAnswer: an owner cannot be reached. The reader keeps what it has.
            Unavailable: likewise, since the snapshot was removed at once.
        """
        made, scans = record.ccq, self._node.scans
        schema = await self._schema(made)
        query = await parse_async(made.query, schema)
        snapshot, part = position.cursor, None
        if position.place is not None and snapshot:
            # If the snapshot is not there any more, the reset begins anew.
            with contextlib.suppress(HistoryChanged):
                part = await next_part(
                    scans, query, place=position.place, snapshot=snapshot, labels_max=labels_max
                )
        is_begin = part is None
        if part is None:
            snapshot = await newest_snapshot(scans, query)
            part = await next_part(
                scans, query, place=EMPTY_CURSOR, snapshot=snapshot, labels_max=labels_max
            )
        if part is None:
            raise Unavailable("what matches was just stored again; try again", after_s=0.1)
        make = partial(ccq.FetchRequested, ccq_id=made.id, cursor=snapshot, is_reset=True)
        answer = await self._ask(make, timeout_s=ANSWER_TIMEOUT_S)
        await self._check_answer(answer, record, snapshot)
        is_over = part.place.covers(snapshot)
        progress = WindowProgress() if is_begin else position.progress
        sampled = await self._work.sample(part.labels, made.sampler, query=query)
        packed = await asyncio.to_thread(pack_labels, sampled, made.compression)
        answer = replace(answer, labels=packed, cursor=part.place, more=not is_over)
        progress, windows = await self._advance_windows(made, progress, answer, schema=schema)
        return CcqUpdate(
            answer,
            await pieces_of(packed, made.compression),
            self._token(made, schema, snapshot, progress, place=None if is_over else part.place),
            schema.to_json(),
            made.query,
            windows,
            reset=is_begin,
        )

    def _token(
        self,
        made: CcqDefinition,
        schema: Schema,
        cursor: Cursor,
        progress: WindowProgress,
        *,
        place: Cursor | None = None,
        before: tokens.Position | None = None,
    ) -> str:
        deletions = EMPTY_CURSOR
        if not schema.is_keyed:  # Readers of keyed datasets begin anew after any loss.
            deletions = self._node.view.deletions_within(made.dataset, cursor)
        if before is not None:  # Where the reader stays, a node that has just begun knows less.
            stays = {p: before.deletions[p] for p, s in cursor.items() if before.cursor[p] == s}
            deletions = Cursor({**deletions, **stays})
        return tokens.Position(cursor, progress, deletions, place).encode(made.id)

    async def _check_answer(self, answer: Any, record: Record, cursor: Cursor) -> None:
        """Raises the error of an outcome of the machine that is no answer."""
        if isinstance(answer, ccq.RefuseFetch):
            if answer.failure.kind == InvalidToken.kind:
                # It is ahead of all commits, perhaps since those up to it were lost.
                await self._node.scans.check_history(record.ccq.dataset, cursor)
            raise answer.failure.to_error()
        if isinstance(answer, ccq.RedirectFetch):
            raise _moving(record.ccq.id)

    def _is_gone(self, node: str) -> bool:
        return self._driver.machine.state.is_gone(node)

    def _check_not_revoked(self, record: Record) -> None:
        spec = record.ccq.sampler
        if spec is not None and spec.archive:
            self._node.samplers.check_not_revoked(spec.archive)

    def _until_clock_us(self, record: Record, progress: WindowProgress) -> int | None:
        """The event clock at which the next window of this reader closes."""
        window = record.ccq.window
        if window is None:
            return None
        check_progress(window, progress)
        return window.next_close_us(progress)

    async def _update(
        self,
        answer: ccq.AnswerFetch,
        query: CcqDefinition,
        position: tokens.Position,
        labels_max: int,
    ) -> CcqUpdate | None:
        """The update of an answer for a reader at a position; None if it has to begin anew."""
        schema, gone = await self._schema(query), None
        partitions = self._withdrawing(schema, answer.after, answer.cursor)
        if schema.is_keyed or partitions:
            gone = await withdrawals(
                self._node.scans,
                await parse_async(query.query, schema),
                after=answer.after,
                until=answer.cursor,
                labels_max=labels_max,
                partitions=partitions,
            )
            if gone.is_expired:
                return None
            if query.sampler is not None:  # A sample need not have had the label of the whole path.
                gone = replace(gone, shortened=gone.shortened.slice(0, 0))
            answer = _up_to(answer, gone)
            if query.window is not None:
                answer = replace(answer, clock_us=self._clock_us(query, answer.cursor))
        progress, windows = await self._advance_windows(
            query, position.progress, answer, schema=schema, gone=gone
        )
        return CcqUpdate(
            answer,
            await pieces_of(answer.labels, query.compression),
            self._token(query, schema, answer.cursor, progress, before=position),
            schema.to_json(),
            query.query,
            windows,
            None if gone is None else gone.withdrawn,
            None if gone is None else gone.replaced,
            None if gone is None else gone.shortened,
        )

    async def _advance_windows(
        self,
        made: CcqDefinition,
        progress: WindowProgress,
        answer: ccq.AnswerFetch,
        *,
        schema: Schema,
        gone: Withdrawals | None = None,
    ) -> tuple[WindowProgress, WindowChanges | None]:
        """The progress of a reader after an answer, and the changes of its windows."""
        if made.window is None:
            return progress, None
        progress, windows = await asyncio.to_thread(
            apply_windows, made.window, progress, answer, schema=schema, gone=gone
        )
        self._driver.record_late(made.id, windows.late)
        return progress, windows

    def _withdrawing(self, schema: Schema, after: Cursor, until: Cursor) -> frozenset[int]:
        """The partitions in which commits between two cursors may withdraw labels."""
        if schema.is_keyed:
            return frozenset(after.news(until))
        return self._node.view.with_deletions(schema.key, after, until)

    async def _schema(self, made: CcqDefinition) -> Schema:
        """The schema of a CCQ's labels. Raises CcqDropped if the dataset was dropped."""
        try:
            return await self._node.narrowed(made.dataset, made.added)
        except UnknownDataset as error:
            if self._node.catalog.is_dropped(made.dataset):
                raise dropped_failure(made).to_error() from error
            raise

    async def _forward(
        self, coordinator: str, ccq_id: str, *, token: str, wait_s: float, labels_max: int
    ) -> list[continuous_pb2.FetchPart]:
        parts = self._peers.fetch(
            coordinator, ccq_id, token=token, wait_s=wait_s, labels_max=labels_max
        )
        try:
            return await self._until_dead(coordinator, self._complete(coordinator, parts))
        except GalileoError:
            self._records.forget_hint(ccq_id)
            raise

    async def _until_dead(self, node: str, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call to a node. Raises Unavailable when the node is presumed dead.

        A stopped process keeps its connections, so that the call alone would not fail.
        """
        answer = asyncio.ensure_future(call)
        death = asyncio.ensure_future(self._driver.until_dead(node))
        try:
            await asyncio.wait([answer, death], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise Unavailable(f"node {node} does not answer", node=node, after_s=MOVING_RETRY_S)
        finally:
            answer.cancel()
            death.cancel()
            await asyncio.gather(answer, death, return_exceptions=True)

    async def _complete(
        self, coordinator: str, answer: AsyncGenerator[continuous_pb2.FetchPart, None]
    ) -> list[continuous_pb2.FetchPart]:
        """All parts of a coordinator's answer. Raises Unavailable if it is unreachable."""
        parts = []
        try:
            async with aclosing(answer):
                async for part in answer:
                    parts.append(part)
                    if part.HasField("tail"):
                        part.tail.coordinator = self._peers.address(coordinator)
                        return parts
        except Unavailable as error:
            details = {**error.details, "after_s": MOVING_RETRY_S}
            raise Unavailable(error.message, **details) from error
        raise Unavailable(
            f"node {coordinator} closed the stream early", node=coordinator, after_s=MOVING_RETRY_S
        )

    async def held(
        self, ccq_id: str, *, term: int, after: Cursor, labels_max: int
    ) -> CachedRange | None:
        """The handed-off cache of a CCQ; None if there is none."""
        wanted = max(1, min(labels_max, self._limits.answer_labels_max))
        answer = await self._ask(
            lambda request: ccq.CacheReadRequested(request, ccq_id, term, after, wanted),
            timeout_s=ANSWER_TIMEOUT_S,
        )
        if isinstance(answer, ccq.RefuseCacheRead):
            return None
        data = b""
        if answer.labels is not None:
            data = await asyncio.to_thread(to_bytes, answer.labels, Compression.NONE)
        return CachedRange(pa.py_buffer(data), answer.reached, tuple(answer.gone))

    async def find(self, ccq_id: str) -> CcqDefinition:
        """Finds a CCQ here or at the leader; acknowledges nothing.

        Raises:
            UnknownCcq: there is none.
            TransientError: no node that may know it is reachable.
        """
        return (await self._records.find(ccq_id)).ccq

    # --- cancel and list ---------------------------------------------------------------------

    async def cancel(self, ccq_id: str) -> None:
        """Cancels a CCQ everywhere; repeating it has no effect.

        The nodes that may run it hear of the end before this returns, if they answer in time; then
        no fetch has new labels.

        Raises:
            UnknownCcq: there is none.
            Unavailable: no node leads the system partition.
        """
        await self._records.end(ccq_id, "cancelled")

    async def list(self, dataset: str = "") -> list[CcqDescription]:
        """See `CcqRecords.all`."""
        return await self._records.all(dataset)

    # --- the common part ---------------------------------------------------------------------

    async def _ask(self, make: Callable[[int], ccq.ContinuousEvent], *, timeout_s: float) -> Any:
        try:
            return await self._driver.ask(make, timeout_s=timeout_s)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"no answer about the continuous query within {timeout_s:g} s; try again",
                after_s=1.0,
            ) from error


async def _read_token(token: str, ccq_id: str) -> tokens.Position:
    """The position of a reader; errors as `wire.token.read`."""
    if not token:
        return tokens.Position()
    return await offload(len(token), tokens.read, token, ccq_id=ccq_id)


def _up_to(answer: ccq.AnswerFetch, gone: Withdrawals) -> ccq.AnswerFetch:
    """The answer up to the cursor to which withdrawals are known."""
    if gone.until == answer.cursor:
        return answer
    labels = None if answer.labels is None else answer.labels.until(gone.until)
    behind = {p: last for p, last in gone.until.items() if last < answer.cursor[p]}
    missing = tuple(sorted({*answer.missing, *gone.missing}))
    is_cut = any(gone.until[p] < answer.cursor[p] for p in answer.cursor if p not in gone.missing)
    return replace(
        answer,
        labels=labels,
        cursor=gone.until,
        frontier=Cursor({**answer.frontier, **behind}),
        missing=missing,
        more=answer.more or is_cut,
        gone=within(answer.gone, after=answer.after, until=gone.until),
    )


def _moving(ccq_id: str) -> Unavailable:
    return Unavailable(
        "the continuous query is changing its coordinator", after_s=MOVING_RETRY_S, ccq_id=ccq_id
    )
