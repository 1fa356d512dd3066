"""Reads new matches from nodes: one streaming call for each group, concurrently for a task.

Runs in Python workers, which outlive a job, so channels stay open from job to job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import Cancelled, GalileoError, NotOwner, Overloaded, TransientError
from galileo.match_batch import MatchedPartitions, MatchResponse, to_bytes
from galileo.spark.job import Group, NodeQuery, NodeRequest
from galileo.wire.caller import Caller, Connection, Stream
from galileo.wire.context_propagation import continue_request
from galileo.wire.internal.v1 import peers_pb2
from galileo.wire.match_codec import MatchReplies, sequences_to_bytes
from galileo.wire.services import PEER_STORAGE
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

CHANNELS_MAX = 256
ANSWER_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class NodeAnswer:
    """The answer of the node at an address; items are numbered as in the group."""

    query: NodeQuery
    answer: MatchResponse
    address: str


class NodeScanner:
    """The open channels of one worker and the event loop that they belong to."""

    def __init__(self, keys: TlsFiles = NO_TLS_FILES, *, channels_max: int = CHANNELS_MAX) -> None:
        self._channels_max = channels_max
        self._loop = asyncio.new_event_loop()
        self._caller = Caller(keys=keys)

    def fetch(
        self, requests: Sequence[NodeRequest], groups: Sequence[Group], *, timeout_s: float
    ) -> list[NodeAnswer]:
        """The answers of all nodes.

        The answer of a node that cannot be reached, or not in time, is empty: the cursors of its
        partitions do not change. If a node refuses the call, the items of the call fail.
        """
        return self._loop.run_until_complete(self._fetch_all(requests, groups, timeout_s))

    def close(self) -> None:
        self._loop.run_until_complete(self._caller.close())
        self._loop.close()

    async def _fetch_all(
        self, requests: Sequence[NodeRequest], groups: Sequence[Group], timeout_s: float
    ) -> list[NodeAnswer]:
        calls = [
            fetch(
                self._caller.connection(request.address),
                query,
                groups[query.group],
                timeout_s=timeout_s,
            )
            for request in requests
            for query in request.queries
        ]
        try:
            return list(await asyncio.gather(*calls))
        finally:
            # Not earlier: all channels of a task are in use together.
            await self._caller.close_oldest(self._channels_max)


async def fetch(
    node: Connection,
    query: NodeQuery,
    group: Group,
    *,
    timeout_s: float,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> NodeAnswer:
    """The answer of one node for one group; the complete parts of it where the stream fails."""
    replies = MatchReplies(group.schema.label_schema)
    failure: GalileoError | None = None
    with continue_request(group.origin):
        stream = node.stream(
            PEER_STORAGE, "Match", match_request(query, group), timeout_s=timeout_s
        )
    with stream:
        try:
            await _receive(stream, replies, bytes_max)
        except GalileoError as error:
            failure = error
    answer = replies.answer if failure is None else _failed(replies.answer, failure, query)
    return NodeAnswer(query, _renumber(answer, query), node.address)


async def _receive(stream: Stream, replies: MatchReplies, bytes_max: int) -> None:
    received = 0
    async for reply in stream:
        received += replies.take(reply)
        if received > bytes_max:
            raise Overloaded(
                f"expected at most {bytes_max} bytes of labels from one node in one "
                "cycle; use a sampler, a narrower query or a shorter update interval"
            )


def _failed(answer: MatchResponse, error: GalileoError, query: NodeQuery) -> MatchResponse:
    """The answer after an error: unanswered items fail, except where the connection was lost.

    A dropped dataset fails no items: their coordinator ends them once it knows.
    """
    lost = isinstance(error, TransientError | NotOwner | Cancelled) or "dropped" in error.details
    if lost and not isinstance(error, Overloaded):
        return answer
    open_items = np.ones(len(query.items), dtype=np.bool_)
    for part in answer.parts:
        open_items[part.items] = False
    for items, _ in answer.errors:
        open_items[items] = False
    failed = (np.flatnonzero(open_items).astype(np.uint32), error)
    return MatchResponse(answer.parts, answer.unknown, (*answer.errors, failed))


def _renumber(answer: MatchResponse, query: NodeQuery) -> MatchResponse:
    """The answer with items numbered as in the group."""
    items = query.items
    parts = tuple(
        MatchedPartitions(
            items[part.items], part.reached, part.matches.renumbered(items), part.dropped
        )
        for part in answer.parts
    )
    errors = tuple((items[numbers], error) for numbers, error in answer.errors)
    return MatchResponse(parts, items[answer.unknown], errors)


def match_request(query: NodeQuery, group: Group) -> peers_pb2.MatchRequest:
    """The request of a node for its items of a group."""
    rows, cursors = np.unique(group.cursors[query.items], return_inverse=True)
    committed = group.committed
    return peers_pb2.MatchRequest(
        dataset=group.dataset,
        partitions=group.partitions[query.columns].tolist(),
        after=sequences_to_bytes(group.after[np.ix_(rows, query.columns)]),
        cursors=to_bytes(cursors),
        digests=group.digests_of(query.items),
        committed=b"" if committed is None else sequences_to_bytes(committed[query.columns]),
        added=group.schema.added,
    )


def filter_untrusted(part: MatchedPartitions, query: NodeQuery, group: Group) -> MatchedPartitions:
    """Removes from a node's answer what does not belong there.

    Keeps commits of requested partitions that are new, complete (up to `reached`) and not dropped.
    """
    requested = group.partitions[query.columns]
    reached = _restrict(part.reached, requested)
    dropped = _restrict(part.dropped, requested)
    part = replace(part, reached=reached, dropped=dropped)
    if len(part.matches) == 0:
        return part
    matches = part.matches
    partitions, sequences = (
        np.asarray(matches.rows.column(name).to_numpy()) for name in ("partition", "sequence")
    )
    last = len(group.partitions) - 1
    column = np.minimum(np.searchsorted(group.partitions, partitions), last)
    known = group.partitions[column] == partitions
    known &= dropped.past(partitions, sequences)
    known &= ~reached.past(partitions, sequences)
    after = group.after[group.cursors[matches.items], column[matches.places]]
    new = sequences[matches.places] > after
    return replace(part, matches=matches.where(known[matches.places] & new))


def _restrict(cursor: Cursor, partitions: npt.NDArray[np.int32]) -> Cursor:
    """The cursor of some partitions only."""
    return Cursor({p: cursor[p] for p in partitions.tolist()}) if cursor else EMPTY_CURSOR
