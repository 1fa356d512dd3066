"""The continuous service: decode, one call, encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from galileo.cursor import Cursor, Stretch
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo.packing import FORMAT_VERSION, unpack
from galileo.rpc.guard import Context, streaming, unary
from galileo.samplers import SamplerSpec
from galileo.wire.codec import cursor_to_pb, label_chunks, stretches_to_pb
from galileo.wire.pb import continuous_pb2, continuous_pb2_grpc

WAIT_MAX_S = 60.0
PART_BYTES = 1 << 20
"""Packed labels go into one message up to about so many bytes."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a client asks for; times in seconds."""

    ccq_id: str
    dataset: str
    query: str
    interval_s: float
    expiration_s: float
    sampler: SamplerSpec | None
    compression: str


@dataclass(frozen=True, slots=True)
class CcqFacts:
    """A CCQ as people see it."""

    id: str
    dataset: str
    query_json: str
    interval_s: float
    expires_at: float
    sampler: SamplerSpec | None
    compression: str
    coordinator: str
    coordinator_address: str
    term: int
    state: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """`labels` is the initial result; `token` says so to the next fetch."""

    ccq: CcqFacts
    labels: LabelSet
    token: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """What is new for a client.

    Attributes:
        schema_json: of the dataset.
        query_json: of the CCQ.
        packed: the labels, as `galileo.packing` packs them.
        cursor: of the token: up to where the labels reach.
        missing: partitions that could not be considered.
        frontier: how far the CCQ is evaluated; `age_s`: for how long it has been.
        more: whether a further fetch has more at once.
        gone: up to the cursor, what retention dropped before it was evaluated.
    """

    schema_json: str
    query_json: str
    packed: Sequence[bytes]
    token: str
    cursor: Cursor
    missing: Sequence[int]
    frontier: Cursor
    age_s: float
    more: bool
    gone: Sequence[Stretch] = ()


class ContinuousFace(Protocol):
    """What a node offers about CCQs; `server.continuous` implements it."""

    async def submit(self, submission: Submission) -> Submitted: ...

    async def fetch(
        self, ccq_id: str, *, token: str, wait_s: float, labels_max: int, forwarded: bool
    ) -> Fetched: ...

    async def cancel(self, ccq_id: str) -> None: ...

    def list(self) -> list[CcqFacts]: ...


class ContinuousServicer(continuous_pb2_grpc.ContinuousServicer):
    def __init__(self, face: ContinuousFace) -> None:
        self._face = face

    @streaming
    async def Submit(  # noqa: N802
        self, request: continuous_pb2.SubmitRequest, context: Context
    ) -> AsyncIterator[continuous_pb2.SubmitPart]:
        submitted = await self._face.submit(
            Submission(
                ccq_id=request.ccq_id,
                dataset=request.dataset,
                query=request.query,
                interval_s=request.interval_s,
                expiration_s=request.expiration_s,
                sampler=(
                    SamplerSpec.from_json(request.sampler_json) if request.sampler_json else None
                ),
                compression=request.compression or "none",
            )
        )
        labels = submitted.labels
        yield continuous_pb2.SubmitPart(head=_head(labels))
        for chunk in label_chunks(labels.table):
            yield continuous_pb2.SubmitPart(labels=chunk)
        tail = continuous_pb2.SubmitTail(
            ccq=facts_to_pb(submitted.ccq),
            token=submitted.token,
            frontier=cursor_to_pb(labels.frontier),
            missing=labels.missing,
        )
        yield continuous_pb2.SubmitPart(tail=tail)

    @streaming
    async def Fetch(  # noqa: N802
        self, request: continuous_pb2.FetchRequest, context: Context
    ) -> AsyncIterator[continuous_pb2.FetchPart]:
        for part in await self._fetch(request):
            yield part

    @streaming
    async def Watch(  # noqa: N802
        self, request: AsyncIterator[continuous_pb2.FetchRequest], context: Context
    ) -> AsyncIterator[continuous_pb2.FetchPart]:
        async for one in request:
            for part in await self._fetch(one):
                yield part

    @unary
    async def List(  # noqa: N802
        self, request: continuous_pb2.ListRequest, context: Context
    ) -> continuous_pb2.ListReply:
        return continuous_pb2.ListReply(ccqs=[facts_to_pb(facts) for facts in self._face.list()])

    @unary
    async def Cancel(  # noqa: N802
        self, request: continuous_pb2.CancelRequest, context: Context
    ) -> continuous_pb2.CancelReply:
        await self._face.cancel(request.ccq_id)
        return continuous_pb2.CancelReply()

    async def _fetch(self, request: continuous_pb2.FetchRequest) -> list[continuous_pb2.FetchPart]:
        if not 0 <= request.wait_s <= WAIT_MAX_S:
            raise InputError(f"expected a wait of 0 to {WAIT_MAX_S:g} s, got {request.wait_s}")
        fetched = await self._face.fetch(
            request.ccq_id,
            token=request.token,
            wait_s=request.wait_s,
            labels_max=request.labels_max,
            forwarded=request.forwarded,
        )
        if request.packing >= FORMAT_VERSION:
            parts = [continuous_pb2.FetchPart(packed=some) for some in _grouped(fetched.packed)]
        else:
            parts = await asyncio.to_thread(_arrow_parts, fetched)
        return _framed(parts or [continuous_pb2.FetchPart()], fetched)


def facts_to_pb(facts: CcqFacts) -> continuous_pb2.CcqValue:
    return continuous_pb2.CcqValue(
        id=facts.id,
        dataset=facts.dataset,
        query_json=facts.query_json,
        interval_s=facts.interval_s,
        expires_at=facts.expires_at,
        sampler_json=facts.sampler.to_json() if facts.sampler else "",
        compression=facts.compression,
        coordinator=facts.coordinator,
        coordinator_address=facts.coordinator_address,
        term=facts.term,
        state=facts.state,
    )


def _head(labels: LabelSet) -> continuous_pb2.SubmitHead:
    return continuous_pb2.SubmitHead(schema_json=labels.schema.to_json(), query_json=labels.query)


def _grouped(packed: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Small ones together, so that many of them are not as many messages."""
    group: list[bytes] = []
    size = 0
    for data in packed:
        group.append(data)
        size += len(data)
        if size >= PART_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _arrow_parts(fetched: Fetched) -> list[continuous_pb2.FetchPart]:
    """For readers that do not know our packing."""
    schema = Schema.from_json(fetched.schema_json).label_schema
    tables = [unpack(data, schema) for data in fetched.packed]
    return [
        continuous_pb2.FetchPart(labels=chunk) for table in tables for chunk in label_chunks(table)
    ]


def _framed(
    parts: list[continuous_pb2.FetchPart], fetched: Fetched
) -> list[continuous_pb2.FetchPart]:
    """The parts with head and tail."""
    head, tail = parts[0].head, parts[-1].tail
    head.schema_json, head.query_json = fetched.schema_json, fetched.query_json
    tail.token, tail.age_s, tail.more = fetched.token, fetched.age_s, fetched.more
    tail.frontier.CopyFrom(cursor_to_pb(fetched.frontier))
    tail.cursor.CopyFrom(cursor_to_pb(fetched.cursor))
    tail.missing.extend(fetched.missing)
    tail.gone.extend(stretches_to_pb(fetched.gone))
    return parts
