"""Continuous queries as clients see them: submit, fetch, cancel, list."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from galileo.ccq import elsewhere
from galileo.ccq import events as ccq
from galileo.ccq import token as tokens
from galileo.ccq.model import Ccq, Compression
from galileo.ccq.pack_files import to_bytes
from galileo.ccq.packs import PackedLabels
from galileo.clock import Clock
from galileo.config import LimitsSection
from galileo.cursor import ORIGIN, Cursor
from galileo.dht import placement
from galileo.errors import (
    DeadlineExceeded,
    InputError,
    InvalidToken,
    Overloaded,
    Unavailable,
)
from galileo.labels import LabelSet
from galileo.model.windows import Changes, Told, Window, fold
from galileo.node.scans import Tail
from galileo.node.storage_node import StorageNode
from galileo.packing import FORMAT_VERSION
from galileo.query import Query, parse
from galileo.rpc.continuous import CcqFacts, Fetched, Held, Submission, Submitted
from galileo.rpc.peers import GrpcPeers
from galileo.samplers import load
from galileo.server.driver import Driver
from galileo.server.work import ContinuousWork
from galileo.wire.codec import KeptRows, cursor_from_pb, stretches_from_pb, windows_from_pb
from galileo.wire.pb import continuous_pb2

SUBMIT_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 30.0
MOVING_RETRY_S = 0.2
"""When to ask again while a CCQ changes its coordinator; electing one takes no longer."""
# For a first guess of the cache that a CCQ needs: what it found so far may come again.
BYTES_PER_LABEL = 16

_CCQ_ID = re.compile(r"[a-z0-9_.-]{1,64}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Initial:
    labels: LabelSet
    tail: Tail


class ContinuousQueries:
    """Implements `rpc.continuous.ContinuousFace` with the driver and the node.

    Args:
        warm: called when a CCQ is submitted, so that Spark is warm before its first cycle.
    """

    def __init__(
        self,
        node: StorageNode,
        driver: Driver,
        *,
        work: ContinuousWork,
        peers: GrpcPeers,
        clock: Clock,
        limits: LimitsSection,
        warm: Callable[[], None],
    ) -> None:
        self._node = node
        self._driver = driver
        self._work = work
        self._peers = peers
        self._clock = clock
        self._limits = limits
        self._warm = warm

    # --- submit ------------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> Submitted:
        """Evaluates once, has a coordinator elected, and answers with both.

        Raises:
            InputError: the query, the sampler or a limit refuses it.
            TryAgain: no node could take it.
        """
        query = parse(submission.query, await self._node.schema(submission.dataset))
        made = self._checked(submission, query)
        self._warm()
        initial = await self._initial(query, made, submission)
        answer = await self._ask(
            lambda request: ccq.SubmitRequested(
                request=request,
                ccq=made,
                reached=initial.tail.frontier,
                need_bytes=BYTES_PER_LABEL * len(initial.labels),
                candidates=self._candidates(query),
            ),
            timeout_s=SUBMIT_TIMEOUT_S,
        )
        if isinstance(answer, ccq.RefuseSubmit):
            raise answer.failure.to_error()
        facts = self._facts(made, answer.coordinator, term=answer.term, state="running")
        told, windows = self._first_windows(made, initial)
        token = tokens.encode(made.id, initial.tail.frontier, told)
        return Submitted(facts, initial.labels, token, windows)

    def _first_windows(self, made: Ccq, initial: _Initial) -> tuple[Told, Changes | None]:
        if made.window is None:
            return Told(), None
        clock_us = self._driver.machine.state.clock_of(made.dataset).at(initial.tail.frontier)
        buckets = initial.labels.buckets
        return fold(made.window, Told(), buckets=buckets, clock_us=clock_us, more=False)

    def _checked(self, submission: Submission, query: Query) -> Ccq:
        limits = self._limits
        if not _CCQ_ID.fullmatch(submission.ccq_id):
            raise InputError(
                f"expected a CCQ id of a-z, 0-9, '_', '.', '-', got {submission.ccq_id!r}"
            )
        if not limits.interval_min_s <= submission.interval_s < float("inf"):
            raise InputError(
                f"expected an update interval of at least {limits.interval_min_s:g} s, "
                f"got {submission.interval_s:g} s"
            )
        if not submission.interval_s <= submission.expiration_s <= limits.expiration_max_s:
            raise InputError(
                f"expected an expiration from the update interval ({submission.interval_s:,g} s) "
                f"to {limits.expiration_max_s:,.0f} s, got {submission.expiration_s:,.10g} s"
            )
        if submission.compression not in ("none", "lz4"):
            raise InputError(
                f"expected the compression 'none' or 'lz4', got {submission.compression!r}"
            )
        if len(self._driver.machine.records) >= limits.ccqs_max:
            raise Overloaded(
                f"the cluster keeps {limits.ccqs_max} continuous queries already; cancel some",
                after_s=60.0,
            )
        if submission.sampler is not None:
            load(submission.sampler)
        compression: Compression = "lz4" if submission.compression == "lz4" else ""
        return Ccq(
            id=submission.ccq_id,
            dataset=submission.dataset,
            query=query.to_json(),
            interval_s=submission.interval_s,
            expires_at=self._clock.wall() + submission.expiration_s,
            sampler=submission.sampler,
            compression=compression,
            window=submission.window,
        )

    async def _initial(self, query: Query, made: Ccq, submission: Submission) -> _Initial:
        tables, tail = [], Tail(ORIGIN, frozenset())
        async for part in self._node.scans.run(query):
            if isinstance(part, Tail):
                tail = part
            else:
                tables.append(LabelSet(query.schema, part))
        found = LabelSet.concat(query.schema, tables).until(tail.frontier)
        sampled = await self._work.sample(found, made.sampler)
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
        forwarded: bool,
        leaves_out: bool,
    ) -> Fetched:
        """What is new past the token, from this node or from the coordinator through it.

        With `leaves_out` packs may hold more than what is new; `Fetched.kept` then says what.
        """
        cursor, told = tokens.read(token, ccq_id=ccq_id) if token else (ORIGIN, Told())
        until_clock_us = self._until_clock_us(ccq_id, told)
        bound = self._limits.answer_labels_max
        wanted = min(labels_max or bound, bound)
        wait_until = self._clock.monotonic() + wait_s if wait_s else None
        answer = await self._ask(
            lambda request: ccq.FetchRequested(
                request, ccq_id, cursor, wait_until, wanted, until_clock_us
            ),
            timeout_s=ANSWER_TIMEOUT_S + wait_s,
        )
        if isinstance(answer, ccq.RefuseFetch):
            raise answer.failure.to_error()
        if isinstance(answer, ccq.RedirectFetch):
            return await self._forward(
                answer.coordinator,
                continuous_pb2.FetchRequest(
                    ccq_id=ccq_id,
                    token=token,
                    wait_s=wait_s,
                    labels_max=labels_max,
                    forwarded=True,
                    packing=FORMAT_VERSION,
                    leaves_out=leaves_out,
                ),
                forwarded=forwarded,
            )
        return await self._fetched(answer, told, leaves_out=leaves_out)

    def _until_clock_us(self, ccq_id: str, told: Told) -> int | None:
        """The event clock at which there is something to tell this reader."""
        record = self._driver.machine.state.tracker.records.get(ccq_id)
        if record is None or record.ccq.window is None:
            return None
        if not record.ccq.window.admits(told):
            raise InvalidToken("expected a token that was given out, got one of impossible windows")
        return record.ccq.window.first_closing_us(told)

    async def _fetched(self, answer: ccq.AnswerFetch, told: Told, *, leaves_out: bool) -> Fetched:
        record = self._driver.machine.state.tracker.records.get(answer.ccq_id)
        if record is None:
            raise Unavailable("the continuous query was purged meanwhile", after_s=0.2)
        made = record.ccq
        windows = None
        if made.window is not None:
            told, windows = await asyncio.to_thread(_folded, made.window, told, answer)
        packed, kept = await _pieces_of(
            answer.labels, compressed=made.compression == "lz4", leaves_out=leaves_out
        )
        return Fetched(
            schema_json=self._node.catalog.schema(made.dataset).to_json(),
            query_json=made.query,
            packed=packed,
            token=tokens.encode(made.id, answer.cursor, told),
            cursor=answer.cursor,
            missing=answer.missing,
            frontier=answer.frontier,
            age_s=answer.frontier_age_s,
            more=answer.more,
            gone=answer.gone,
            windows=windows,
            kept=kept,
        )

    async def _forward(
        self, coordinator: str, request: continuous_pb2.FetchRequest, *, forwarded: bool
    ) -> Fetched:
        if forwarded or coordinator == self._node.name:
            raise Unavailable(
                "the continuous query is changing its coordinator", after_s=MOVING_RETRY_S
            )
        answer = asyncio.ensure_future(self._asked(coordinator, request))
        death = asyncio.ensure_future(self._driver.until_dead(coordinator))
        try:
            await asyncio.wait([answer, death], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            # One that was stopped keeps its connections: nothing would ever break.
            raise Unavailable(f"node {coordinator} says nothing more", after_s=MOVING_RETRY_S)
        finally:
            answer.cancel()
            death.cancel()
            await asyncio.gather(answer, death, return_exceptions=True)

    async def _asked(self, coordinator: str, request: continuous_pb2.FetchRequest) -> Fetched:
        """What another node answers; where it is gone, with the advice to come back soon."""
        parts = []
        try:
            async for part in self._peers.fetch(coordinator, request):
                parts.append(part)
                if part.HasField("tail"):
                    return _forwarded(parts, address=self._peers.address(coordinator))
        except Unavailable as error:
            details = {**error.details, "after_s": MOVING_RETRY_S}
            raise Unavailable(error.message, **details) from error
        raise Unavailable(f"node {coordinator} closed the stream early", after_s=MOVING_RETRY_S)

    async def held(self, ccq_id: str, *, term: int, after: Cursor, labels_max: int) -> Held | None:
        """What this node keeps of a CCQ that it gave away; None where it does not."""
        wanted = max(1, min(labels_max, self._limits.answer_labels_max))
        answer = await self._ask(
            lambda request: elsewhere.HeldRequested(request, ccq_id, term, after, wanted),
            timeout_s=ANSWER_TIMEOUT_S,
        )
        if isinstance(answer, elsewhere.RefuseHeld):
            return None
        data = b""
        if answer.labels is not None:
            data = await asyncio.to_thread(to_bytes, answer.labels, compressed=False)
        return Held(data, answer.reached, answer.gone)

    # --- cancel and list ---------------------------------------------------------------------

    async def cancel(self, ccq_id: str) -> None:
        """Ends a CCQ; again is harmless.

        Raises:
            UnknownCcq: there is none of that id.
        """
        answer = await self._ask(
            lambda request: ccq.CancelRequested(request, ccq_id), timeout_s=ANSWER_TIMEOUT_S
        )
        if isinstance(answer, ccq.RefuseCancel):
            raise answer.failure.to_error()

    def list(self) -> list[CcqFacts]:
        """All CCQs that this node knows and that have not ended."""
        return [
            self._facts(
                record.ccq,
                record.coordinator,
                term=record.term,
                state="running",
                holders=tuple(one.node for one in record.holders),
            )
            for record in sorted(self._driver.machine.records, key=lambda one: one.ccq.id)
            if record.ended is None
        ]

    # --- the common part ---------------------------------------------------------------------

    async def _ask(self, make: Callable[[int], ccq.ContinuousEvent], *, timeout_s: float) -> Any:
        try:
            return await self._driver.ask(make, timeout_s=timeout_s)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"no answer about the continuous query within {timeout_s:g} s; try again",
                after_s=1.0,
            ) from error

    def _facts(
        self,
        made: Ccq,
        coordinator: str,
        *,
        term: int,
        state: str,
        holders: tuple[str, ...] = (),
    ) -> CcqFacts:
        return CcqFacts(
            id=made.id,
            dataset=made.dataset,
            query_json=made.query,
            interval_s=made.interval_s,
            expires_at=made.expires_at,
            sampler=made.sampler,
            compression=made.compression or "none",
            coordinator=coordinator,
            coordinator_address=self._peers.address(coordinator),
            term=term,
            state=state,
            window=made.window,
            holders=holders,
        )


def _folded(window: Window, told: Told, answer: ccq.AnswerFetch) -> tuple[Told, Changes]:
    """Takes time in proportion to the labels."""
    buckets = answer.labels.labels().buckets if answer.labels else np.zeros(0, dtype=np.int64)
    return fold(window, told, buckets=buckets, clock_us=answer.clock_us, more=answer.more)


async def _pieces_of(
    labels: PackedLabels | None, *, compressed: bool, leaves_out: bool
) -> tuple[list[bytes], dict[int, KeptRows]]:
    """What the cache has packed, as it is, and which rows count where not all of them do.

    Packs that hold too much that does not, or others' labels, are packed anew, in a thread.
    """
    if labels is None:
        return [], {}
    pieces = functools.partial(labels.to_pieces, compressed=compressed, leaves_out=leaves_out)
    return pieces() if labels.is_quick(leaves_out=leaves_out) else await asyncio.to_thread(pieces)


def _forwarded(parts: list[continuous_pb2.FetchPart], *, address: str) -> Fetched:
    head, tail = parts[0].head, parts[-1].tail
    kept: dict[int, KeptRows] = {}
    before = 0
    for part in parts:
        kept |= {before + one.pack: (one.starts, one.counts) for one in part.kept}
        before += len(part.packed)
    return Fetched(
        schema_json=head.schema_json,
        query_json=head.query_json,
        packed=[data for part in parts for data in part.packed],
        token=tail.token,
        cursor=cursor_from_pb(tail.cursor),
        missing=tail.missing,
        frontier=cursor_from_pb(tail.frontier),
        age_s=tail.age_s,
        more=tail.more,
        gone=stretches_from_pb(tail.gone),
        windows=windows_from_pb(tail.windows) if tail.HasField("windows") else None,
        kept=kept,
        coordinator_address=address,
    )
