"""What tasks ask the owners of partitions: new matches, their observations, archives of samplers.

Runs in Python workers, which outlive a job, so the channels for matches stay open from job to job.
Other calls are rare, and threads share no channel, so each of them has one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from galileo.cycle import (
    CycleRequest,
    ItemFailure,
    MatchBatch,
    MatchedPartitions,
    Matches,
    Numbers,
    joined,
    no_numbers,
)
from galileo.errors import (
    Cancelled,
    DeadlineExceeded,
    GalileoError,
    NotOwner,
    Overloaded,
    TransientError,
)
from galileo.labels import LabelSet, from_ipc
from galileo.samplers import numbered_parts, observed_schema
from galileo.wire.blocking_caller import BlockingCaller
from galileo.wire.caller import Caller, CallOptions, Connection, Stream
from galileo.wire.codec import LABELS_PER_MESSAGE, table_pieces
from galileo.wire.context_propagation import continue_request
from galileo.wire.services import INTERNAL_SERVICE
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.typed_service import TypedService
from galileo.wire.zero_copy import stream_of

CHANNELS_MAX = 256
ANSWER_BYTES_MAX = 256 << 20
SAMPLER_TIMES = CallOptions(call_s=5.0, patience_s=0.0)


class Owner(Protocol):
    """A node, as the tasks of evaluators call it."""

    async def match(self, request: CycleRequest) -> AsyncGenerator[Matches, None]:
        """What is new for the items of a request, as `in_messages` divides it."""
        yield Matches()  # Without it, the contract would be no generator.

    async def observations(
        self, dataset: str, digest: bytes, parts: pa.Buffer, added: int
    ) -> AsyncGenerator[pa.Buffer, None]:
        """The observations of labels that a standing query matched, as Arrow streams.

        Args:
            dataset: its key.
            digest: of the query, which the observations match, too.
            parts: an Arrow stream of `galileo.samplers.numbered_parts`.
            added: how many of the features that were added to the dataset they have.
        """
        yield parts  # As above.

    async def find_sampler_archive(self, digest: str, facts_only: bool) -> pa.Buffer:
        """The archive of an uploaded sampler, or nothing, if only its state is of interest."""


OWNER = TypedService(INTERNAL_SERVICE, Owner)
"""Part of the internal service: tasks do not know the types of its other calls."""
_MATCH = OWNER.call(Owner.match)
_OBSERVATIONS = OWNER.call(Owner.observations)
_FIND_ARCHIVE = OWNER.call(Owner.find_sampler_archive)


# --- matches ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class OwnerScan:
    """What a task asks one owner for one request of its job, and what it has of that by now.

    Attributes:
        number: of the request in the job.
        request: the part of it for the owner; what follows numbers items as it does.
        parts: results; no item is in two of them.
        unknown: items whose queries the owner does not know.
        failures: of items.
    """

    number: int
    request: CycleRequest
    parts: list[MatchedPartitions] = field(default_factory=list)
    unknown: Numbers = field(default_factory=no_numbers)
    failures: list[ItemFailure] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The address of the owner."""
        return self.request.addresses[0]


class NodeScanner:
    """The open channels of one worker and the event loop that they belong to."""

    def __init__(self, keys: TlsFiles = NO_TLS_FILES, *, channels_max: int = CHANNELS_MAX) -> None:
        self._channels_max = channels_max
        self._loop = asyncio.new_event_loop()
        self._caller = Caller(keys=keys)

    def fetch(self, requests: Sequence[CycleRequest], *, timeout_s: float) -> list[Matches]:
        """The answers to requests, each of the only node that it names, asked concurrently.

        The answer of a node that cannot be reached, or not in time, is empty: the cursors of its
        partitions do not change. If a node refuses the call, the items of the call fail.
        """
        return self._loop.run_until_complete(self._fetch_all(requests, timeout_s))

    def close(self) -> None:
        self._loop.run_until_complete(self._caller.close())
        self._loop.close()

    async def _fetch_all(self, requests: Sequence[CycleRequest], timeout_s: float) -> list[Matches]:
        calls = [
            fetch(self._caller.connection(request.addresses[0]), request, timeout_s=timeout_s)
            for request in requests
        ]
        try:
            return list(await asyncio.gather(*calls))
        finally:
            # Not earlier: all channels of a task are in use together.
            await self._caller.close_oldest(self._channels_max)


async def fetch(
    node: Connection, request: CycleRequest, *, timeout_s: float, bytes_max: int = ANSWER_BYTES_MAX
) -> Matches:
    """The answer of one node to a request; the complete parts of it where the stream fails."""
    reader = MatchReader(request.schema.label_schema)
    with continue_request(request.origin):
        stream = node.exchange_parts(_MATCH.path, _MATCH.encode(request), part_s=timeout_s)
    with stream:
        try:
            async with asyncio.timeout(timeout_s):
                await _receive(stream, reader, bytes_max)
        except TimeoutError:
            late = DeadlineExceeded(f"{node.address} has not answered within {timeout_s:g} s")
            return _failed(reader.matches, late, request)
        except GalileoError as error:
            return _failed(reader.matches, error, request)
    return reader.matches


async def _receive(stream: Stream, reader: MatchReader, bytes_max: int) -> None:
    received = 0
    async for message in stream:
        received += len(message)
        if received > bytes_max:
            raise Overloaded(
                f"expected at most {bytes_max} bytes of labels from one node in one "
                "cycle; use a sampler, a narrower query or a shorter update interval"
            )
        reader.take(_MATCH.decode_answer(message))


def _failed(matches: Matches, error: GalileoError, request: CycleRequest) -> Matches:
    """The answer after an error: unanswered items fail, except where the connection was lost.

    A dropped dataset fails no items: their coordinator ends them once it knows.
    """
    lost = isinstance(error, TransientError | NotOwner | Cancelled) or "dropped" in error.details
    if lost and not isinstance(error, Overloaded):
        return matches
    open_items = np.ones(len(request), dtype=np.bool_)
    answered = [part.items for part in matches.parts]
    for items in (*answered, *(failure.items for failure in matches.failures)):
        open_items[items] = False
    failed = ItemFailure(np.flatnonzero(open_items).astype(np.uint32), error)
    return replace(matches, failures=(*matches.failures, failed))


def in_messages(matches: Matches) -> Iterator[Matches]:
    """An answer in messages of bounded size, the parts first.

    A part whose rows do not fit one message is sent as several; only the last of them has its
    items.
    """
    for part in matches.parts:
        pieces = [*_pieces(part.matches)]
        for piece in pieces[:-1]:
            yield Matches((replace(part, items=part.items[:0], matches=piece),))
        yield Matches((replace(part, matches=pieces[-1]),))
    if len(matches.unknown) or matches.failures:
        yield replace(matches, parts=())


class MatchReader:
    """Collects the messages of an answer.

    Args:
        schema: of its labels.

    Attributes:
        matches: the complete parts so far, and what else was received.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._pieces: list[MatchBatch] = []
        self.matches = Matches()

    def take(self, message: Matches) -> None:
        """Adds a message.

        Raises:
            InputError: its labels have another schema, or its pairs do not fit them.
        """
        parts = [part for part in map(self._part, message.parts) if part is not None]
        now = self.matches
        self.matches = Matches(
            (*now.parts, *parts),
            np.concatenate((now.unknown, message.unknown)),
            (*now.failures, *message.failures),
        )

    def _part(self, part: MatchedPartitions) -> MatchedPartitions | None:
        """The whole part of which this is the last piece; None if more follow."""
        rows = from_ipc(part.matches.rows, self._schema)
        self._pieces.append(replace(part.matches, rows=rows).check())
        if len(part.items) == 0:
            return None
        pieces, self._pieces = self._pieces, []
        matches = pieces[0] if len(pieces) == 1 else joined(pieces, self._schema)
        return replace(part, matches=matches)


def _pieces(matches: MatchBatch) -> Iterator[MatchBatch]:
    """The pairs of a bounded number of rows each; one piece at least."""
    if matches.rows.num_rows == 0:
        yield matches
    start = 0
    for rows in table_pieces(matches.rows, LABELS_PER_MESSAGE):
        inside = (matches.places >= start) & (matches.places < start + rows.num_rows)
        places = matches.places[inside] - np.uint32(start)
        yield MatchBatch(matches.items[inside], places, rows.combine_chunks())
        start += rows.num_rows


# --- what samplers need -----------------------------------------------------------------------


def read_observations(
    labels: LabelSet,
    *,
    address: str,
    digest: bytes,
    timeout_s: float,
    keys: TlsFiles = NO_TLS_FILES,
) -> pa.Table:
    """The observations of labels, in the columns of `observed_schema`.

    Args:
        labels: of partitions of the node, so few that their observations fit in memory.
        address: of the node that matched them.
        digest: of the query that the observations must match.
        timeout_s: of the call.
        keys: of a node.

    Raises:
        TransientError: the node cannot be reached, or does not know the query any more.
        DataExpired: retention dropped some of them.
    """
    schema, columns = labels.schema, observed_schema(labels.schema)
    parts = stream_of(numbered_parts(labels).combine_chunks())
    request = _OBSERVATIONS.encode(schema.key, digest, parts, schema.added)
    options = CallOptions(stream_s=timeout_s, patience_s=0.0)
    with BlockingCaller([address], options=options, keys=keys) as caller:
        chunks = caller.exchange_parts(_OBSERVATIONS.path, request)
        tables = [from_ipc(_OBSERVATIONS.decode_answer(chunk), columns) for chunk in chunks]
    return pa.concat_tables([columns.empty_table(), *tables])


def find_sampler_archive(
    address: str, digest: str, facts_only: bool, *, keys: TlsFiles = NO_TLS_FILES
) -> pa.Buffer:
    """The archive of a sampler, as a node has it; nothing, if only its state is of interest."""
    with BlockingCaller([address], options=SAMPLER_TIMES, keys=keys) as caller:
        answer = caller.exchange(_FIND_ARCHIVE.path, _FIND_ARCHIVE.encode(digest, facts_only))
    return _FIND_ARCHIVE.decode_answer(answer)
