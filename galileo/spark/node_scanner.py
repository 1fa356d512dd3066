"""Reads new matches from nodes: one streaming call for each request, concurrently for a task.

Runs in Python workers, which outlive a job, so channels stay open from job to job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.cycle import CycleRequest, ItemFailure, MatchedPartitions, Matches
from galileo.errors import (
    Cancelled,
    DeadlineExceeded,
    GalileoError,
    NotOwner,
    Overloaded,
    TransientError,
)
from galileo.spark.calls import OWNER, Owner
from galileo.wire.caller import Caller, Connection, Stream
from galileo.wire.context_propagation import continue_request
from galileo.wire.matches import MatchReader
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

CHANNELS_MAX = 256
ANSWER_BYTES_MAX = 256 << 20
_MATCH = OWNER.call(Owner.match)


class NodeScanner:
    """The open channels of one worker and the event loop that they belong to."""

    def __init__(self, keys: TlsFiles = NO_TLS_FILES, *, channels_max: int = CHANNELS_MAX) -> None:
        self._channels_max = channels_max
        self._loop = asyncio.new_event_loop()
        self._caller = Caller(keys=keys)

    def fetch(self, requests: Sequence[CycleRequest], *, timeout_s: float) -> list[Matches]:
        """The answers to requests, each of the only node that it names.

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
    for part in matches.parts:
        open_items[part.items] = False
    for failure in matches.failures:
        open_items[failure.items] = False
    failed = ItemFailure(np.flatnonzero(open_items).astype(np.uint32), error)
    return replace(matches, failures=(*matches.failures, failed))


def select_new(part: MatchedPartitions, request: CycleRequest) -> MatchedPartitions:
    """Selects of a node's answer what each item requests.

    Keeps commits of requested partitions that are new for the item, complete (up to `reached`) and
    not dropped. No later step of a cycle looks at them again.
    """
    reached, dropped = _restrict(part.reached, request), _restrict(part.dropped, request)
    part = replace(part, reached=reached, dropped=dropped)
    if len(part.matches) == 0:
        return part
    matches = part.matches
    partitions, sequences = (
        np.asarray(matches.rows.column(name).to_numpy()) for name in ("partition", "sequence")
    )
    last = len(request.partitions) - 1
    column = np.minimum(np.searchsorted(request.partitions, partitions), last)
    known = request.partitions[column] == partitions
    known &= dropped.past(partitions, sequences)
    known &= ~reached.past(partitions, sequences)
    after = request.cursor_rows[request.cursors[matches.items], column[matches.places]]
    new = sequences[matches.places] > after
    return replace(part, matches=matches.where(known[matches.places] & new))


def _restrict(cursor: Cursor, request: CycleRequest) -> Cursor:
    """The cursor of the requested partitions only."""
    return Cursor({p: cursor[p] for p in request.partitions.tolist()}) if cursor else EMPTY_CURSOR
