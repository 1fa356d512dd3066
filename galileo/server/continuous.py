"""Continuous queries as clients see them: submit, fetch, cancel, list."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from galileo.ccq import events as ccq
from galileo.ccq import token as tokens
from galileo.ccq.model import Ccq, Compression
from galileo.ccq.packs import PackedLabels
from galileo.clock import Clock
from galileo.config import LimitsSection
from galileo.cursor import ORIGIN
from galileo.dht import placement
from galileo.errors import (
    DeadlineExceeded,
    InputError,
    Overloaded,
    Unavailable,
)
from galileo.labels import LabelSet
from galileo.node.scans import Tail
from galileo.node.storage_node import StorageNode
from galileo.packing import FORMAT_VERSION
from galileo.query import Query, parse
from galileo.rpc.continuous import CcqFacts, Fetched, Submission, Submitted
from galileo.rpc.peers import GrpcPeers
from galileo.samplers import load
from galileo.server.driver import Driver
from galileo.server.work import ContinuousWork
from galileo.wire.codec import cursor_from_pb, stretches_from_pb
from galileo.wire.pb import continuous_pb2

SUBMIT_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 30.0
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
        return Submitted(facts, initial.labels, tokens.encode(made.id, initial.tail.frontier))

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
        self, ccq_id: str, *, token: str, wait_s: float, labels_max: int, forwarded: bool
    ) -> Fetched:
        """What is new past the token, from this node or from the coordinator through it."""
        cursor = tokens.decode(token, ccq_id=ccq_id) if token else ORIGIN
        bound = self._limits.answer_labels_max
        wanted = min(labels_max or bound, bound)
        wait_until = self._clock.monotonic() + wait_s if wait_s else None
        answer = await self._ask(
            lambda request: ccq.FetchRequested(request, ccq_id, cursor, wait_until, wanted),
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
                ),
                forwarded=forwarded,
            )
        return await self._fetched(answer)

    async def _fetched(self, answer: ccq.AnswerFetch) -> Fetched:
        record = self._driver.machine.state.tracker.records.get(answer.ccq_id)
        if record is None:
            raise Unavailable("the continuous query was purged meanwhile", after_s=0.2)
        made = record.ccq
        return Fetched(
            schema_json=self._node.catalog.schema(made.dataset).to_json(),
            query_json=made.query,
            packed=await _bytes_of(answer.labels, compressed=made.compression == "lz4"),
            token=tokens.encode(made.id, answer.cursor),
            cursor=answer.cursor,
            missing=answer.missing,
            frontier=answer.frontier,
            age_s=answer.frontier_age_s,
            more=answer.more,
            gone=answer.gone,
        )

    async def _forward(
        self, coordinator: str, request: continuous_pb2.FetchRequest, *, forwarded: bool
    ) -> Fetched:
        if forwarded or coordinator == self._node.name:
            raise Unavailable("the continuous query is changing its coordinator", after_s=0.2)
        parts = []
        async for part in self._peers.fetch(coordinator, request):
            parts.append(part)
            if part.HasField("tail"):
                return _forwarded(parts)
        raise Unavailable(f"node {coordinator} closed the stream early", after_s=0.2)

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
            self._facts(record.ccq, record.coordinator, term=record.term, state="running")
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

    def _facts(self, made: Ccq, coordinator: str, *, term: int, state: str) -> CcqFacts:
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
        )


async def _bytes_of(labels: PackedLabels | None, *, compressed: bool) -> list[bytes]:
    """What the cache has packed, as it is; in a thread where some of it has to be left out."""
    if labels is None:
        return []
    if labels.is_whole:
        return labels.to_bytes()
    return await asyncio.to_thread(labels.to_bytes, compressed=compressed)


def _forwarded(parts: list[continuous_pb2.FetchPart]) -> Fetched:
    head, tail = parts[0].head, parts[-1].tail
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
    )
