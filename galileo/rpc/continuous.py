"""The continuous service: decode, one call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from galileo.ccq.events import AnswerFetch
from galileo.ccq.model import HOLD_S, Record
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.model.quotas import Quotas
from galileo.model.windows import Window, WindowChanges
from galileo.packing import Compression
from galileo.packs import Piece
from galileo.rpc.error_mapping import Context, streaming, unary
from galileo.rpc.ownership import Ownership
from galileo.rpc.quotas import UNBOUNDED, QuotaResolver
from galileo.samplers import SamplerSpec
from galileo.wire.alike import alike
from galileo.wire.codec import (
    commit_ranges_to_pb,
    cursor_to_pb,
    label_chunks,
    windows_to_pb,
)
from galileo.wire.v1 import continuous_pb2

WAIT_MAX_S = 60.0
RUNNING = "running"
"""The state of a CCQ that has not ended."""
PART_BYTES = 1 << 20
"""Approximate size of a message with packed labels."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission of a client; times in seconds."""

    ccq_id: str
    dataset: str
    query: str
    interval_s: float
    expiration_s: float
    sampler: SamplerSpec | None
    compression: Compression
    window: Window | None = None
    hold_s: float = HOLD_S
    owner: str = ""
    quotas: Quotas = UNBOUNDED


@dataclass(frozen=True, slots=True)
class CcqDescription:
    """The description of a CCQ for clients.

    Attributes:
        record: of the CCQ.
        coordinator: the node that runs it now.
        coordinator_address: empty if it is not known yet.
    """

    record: Record
    coordinator: str
    coordinator_address: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """The reply to a submission: `labels` is the initial result, `token` stands after it.

    `windows` are the changes of the CCQ's windows; None if it has none.
    """

    ccq: CcqDescription
    labels: LabelSet
    token: str
    windows: WindowChanges | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CcqUpdate:
    """An update of a CCQ for a reader.

    Attributes:
        answer: of the CCQ's machine.
        pieces: the labels of the answer.
        token: the reader's position after the update.
        query_json: of the CCQ; empty if the reader knows it.
        windows: changes of the CCQ's windows; None if it has none.
        withdrawn: labels that counted at the reader's position, and do no more.
        replaced: labels that may be among the pieces, and do not count.
        shortened: labels that may be among the pieces, and count: deletions have left them of paths
            of a dataset without a key.
        reset: whether the reader has to forget what it has first.
    """

    answer: AnswerFetch
    pieces: Sequence[Piece]
    token: str
    schema_json: str
    query_json: str = ""
    windows: WindowChanges | None = None
    withdrawn: pa.Table | None = None
    replaced: pa.Table | None = None
    shortened: pa.Table | None = None
    reset: bool = False

    @property
    def is_news(self) -> bool:
        """Whether there is anything new for a reader."""
        changes = (self.withdrawn, self.replaced, self.shortened)
        withdraws = any(table.num_rows for table in changes if table is not None)
        return bool(self.reset or self.pieces or self.answer.gone or self.windows or withdraws)


class CcqApi(Protocol):
    """Operations of a node on CCQs; `server.continuous` implements them."""

    async def submit(self, submission: Submission) -> Submitted: ...

    async def fetch(
        self,
        ccq_id: str,
        *,
        token: str,
        wait_s: float,
        labels_max: int,
    ) -> CcqUpdate | list[continuous_pb2.FetchPart]:
        """An update, or the parts of one from the CCQ's coordinator."""
        ...

    async def cancel(self, ccq_id: str) -> None: ...

    async def list(self, dataset: str = "") -> list[CcqDescription]:
        """The CCQs of the cluster that have not ended; dataset empty: of all."""
        ...


class ContinuousServicer:
    def __init__(
        self,
        face: CcqApi,
        ownership: Ownership | None = None,
        allowances: QuotaResolver | None = None,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._part_bytes = part_bytes
        self._face = face
        self._ownership = ownership or Ownership()
        self._allowances = allowances or QuotaResolver()

    @streaming
    async def Submit(  # noqa: N802
        self, request: continuous_pb2.SubmitRequest, context: Context
    ) -> AsyncIterator[continuous_pb2.SubmitPart]:
        caller = self._ownership.caller(context)
        submission = _submission(request, caller.name, self._allowances.of(caller))
        submitted = await self._face.submit(submission)
        labels = submitted.labels
        yield continuous_pb2.SubmitPart(head=_head(labels))
        for chunk in label_chunks(labels.table):
            yield continuous_pb2.SubmitPart(labels=chunk)
        tail = continuous_pb2.SubmitTail(
            ccq=ccq_to_pb(submitted.ccq),
            token=submitted.token,
            frontier=cursor_to_pb(labels.frontier),
            missing=labels.missing,
            windows=_windows(submitted.windows),
        )
        yield continuous_pb2.SubmitPart(tail=tail)

    @streaming
    async def Fetch(  # noqa: N802
        self, request: continuous_pb2.FetchRequest, context: Context
    ) -> AsyncIterator[continuous_pb2.FetchPart]:
        await self._ownership.check(context, request.ccq_id)
        for part in await self._fetch(request):
            yield part

    @streaming
    async def Watch(  # noqa: N802
        self, request: AsyncIterator[continuous_pb2.FetchRequest], context: Context
    ) -> AsyncIterator[continuous_pb2.FetchPart]:
        async for following in request:
            await self._ownership.check(context, following.ccq_id)
            for part in await self._fetch(following):
                yield part

    @unary
    async def List(  # noqa: N802
        self, request: continuous_pb2.ListRequest, context: Context
    ) -> continuous_pb2.ListReply:
        known = [ccq_to_pb(one) for one in await self._face.list(request.dataset)]
        return continuous_pb2.ListReply(ccqs=self._ownership.visible(context, known))

    @unary
    async def Cancel(  # noqa: N802
        self, request: continuous_pb2.CancelRequest, context: Context
    ) -> continuous_pb2.CancelReply:
        await self._ownership.check(context, request.ccq_id)
        await self._face.cancel(request.ccq_id)
        return continuous_pb2.CancelReply()

    async def _fetch(self, request: continuous_pb2.FetchRequest) -> list[continuous_pb2.FetchPart]:
        _check_wait(request.wait_s)
        update = await self._face.fetch(
            request.ccq_id,
            token=request.token,
            wait_s=request.wait_s,
            labels_max=request.labels_max,
        )
        return update if isinstance(update, list) else update_parts(update, self._part_bytes)


def _check_wait(wait_s: float) -> None:
    if not 0 <= wait_s <= WAIT_MAX_S:
        raise InputError(f"expected a wait of 0 to {WAIT_MAX_S:g} s, got {wait_s}")


def _submission(request: continuous_pb2.SubmitRequest, owner: str, quotas: Quotas) -> Submission:
    return Submission(
        ccq_id=request.ccq_id,
        dataset=request.dataset,
        query=request.query,
        interval_s=request.interval_s,
        expiration_s=request.expiration_s,
        sampler=SamplerSpec.from_json(request.sampler_json) if request.sampler_json else None,
        compression=Compression.parse(request.compression),
        window=Window.from_json(request.window_json) if request.window_json else None,
        hold_s=request.hold_s,
        owner=owner,
        quotas=quotas,
    )


def ccq_to_pb(described: CcqDescription) -> continuous_pb2.Ccq:
    record, ccq = described.record, described.record.ccq
    return alike(
        continuous_pb2.Ccq,
        ccq,
        query_json=ccq.query,
        sampler_json=ccq.sampler.to_json() if ccq.sampler else "",
        compression=ccq.compression.text,
        coordinator=described.coordinator,
        coordinator_address=described.coordinator_address,
        term=record.revision,
        state=record.ended or RUNNING,
        window_json=ccq.window.to_json() if ccq.window else "",
        holders=[holder.node for holder in record.holders],
    )


def _windows(changes: WindowChanges | None) -> continuous_pb2.Windows | None:
    return None if changes is None else windows_to_pb(changes)


def _head(labels: LabelSet) -> continuous_pb2.SubmitHead:
    return continuous_pb2.SubmitHead(schema_json=labels.schema.to_json(), query_json=labels.query)


def _packed_parts(pieces: Sequence[Piece], part_bytes: int) -> Iterator[continuous_pb2.FetchPart]:
    """Combines small packs into one message."""
    part, size = continuous_pb2.FetchPart(), 0
    for piece in pieces:
        if piece.rows is not None:
            starts, counts = piece.rows
            part.kept.add(pack=len(part.packed), starts=starts, counts=counts)
        part.packed.append(piece.data)
        size += len(piece.data)
        if size >= part_bytes:
            yield part
            part, size = continuous_pb2.FetchPart(), 0
    if part.packed:
        yield part


def update_parts(update: CcqUpdate, part_bytes: int = PART_BYTES) -> list[continuous_pb2.FetchPart]:
    """The messages of an update, of about `part_bytes` each."""
    parts = list(_packed_parts(update.pieces, part_bytes)) or [continuous_pb2.FetchPart()]
    for name in ("withdrawn", "replaced", "shortened"):
        if (table := getattr(update, name)) is not None:
            for chunk in label_chunks(table):
                parts.append(continuous_pb2.FetchPart())
                getattr(parts[-1], name).append(chunk)
    answer = update.answer
    parts[0].head.CopyFrom(
        continuous_pb2.SubmitHead(schema_json=update.schema_json, query_json=update.query_json)
    )
    parts[-1].tail.CopyFrom(
        continuous_pb2.FetchTail(
            token=update.token,
            frontier=cursor_to_pb(answer.frontier),
            age_s=answer.frontier_age_s,
            more=answer.more,
            missing=answer.missing,
            cursor=cursor_to_pb(answer.cursor),
            gone=commit_ranges_to_pb(answer.gone),
            windows=_windows(update.windows),
            interval_s=answer.interval_s,
            reset=update.reset,
        )
    )
    return parts
