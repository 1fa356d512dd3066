"""Asking nodes for what is new: one streaming call for each group, all of a task's at once.

Runs in Python workers, which outlive a job, so channels stay open from tick to tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
import numpy as np

from galileo.errors import Cancelled, GalileoError, NotOwner, Overloaded, TransientError
from galileo.matches import Answered, MatchAnswer, to_bytes
from galileo.model.schema import Schema
from galileo.spark.tick import Ask, Group, Share
from galileo.wire.channel import Channels
from galileo.wire.context_propagation import continue_request
from galileo.wire.internal.v1 import peers_pb2, peers_pb2_grpc
from galileo.wire.match_codec import MatchReplies, sequences_to_bytes
from galileo.wire.status import error_of_rpc
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles

CHANNELS_MAX = 256
ANSWER_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """What the node at an address said; items are numbers of the group."""

    ask: Ask
    answer: MatchAnswer
    address: str


class Scanner:
    """The open channels of one worker and the event loop that they belong to."""

    def __init__(self, keys: TlsFiles = NO_TLS_FILES) -> None:
        self._loop = asyncio.new_event_loop()
        self._channels = Channels(keys)

    def fetch(
        self, shares: Sequence[Share], groups: Sequence[Group], *, timeout_s: float
    ) -> list[Delta]:
        """The answers of all nodes.

        What a node did not say in time, or at all, is absent: its partitions stay where they
        are. A node that refuses the call fails the items that it was asked.
        """
        return self._loop.run_until_complete(self._fetch_all(shares, groups, timeout_s))

    def close(self) -> None:
        self._loop.run_until_complete(self._channels.close())
        self._loop.close()

    async def _fetch_all(
        self, shares: Sequence[Share], groups: Sequence[Group], timeout_s: float
    ) -> list[Delta]:
        calls = [
            fetch(
                self._channels.get(share.address),
                ask,
                groups[ask.group],
                address=share.address,
                timeout_s=timeout_s,
            )
            for share in shares
            for ask in share.asks
        ]
        try:
            return list(await asyncio.gather(*calls))
        finally:
            # Only now, for all of a task's are used at once.
            await self._channels.close_oldest(CHANNELS_MAX)


async def fetch(
    channel: grpc.aio.Channel, ask: Ask, group: Group, *, address: str, timeout_s: float
) -> Delta:
    """What one node says about one group; of an answer that breaks off, what is complete."""
    schema = Schema.from_json(group.schema_json)
    replies = MatchReplies(schema.label_schema)
    stub = peers_pb2_grpc.PeerStorageStub(channel)
    with continue_request(group.origin):
        call = stub.Match(_request(ask, group), timeout=timeout_s)
    failure: GalileoError | None = None
    try:
        await _receive(call, replies)
    except grpc.RpcError as error:
        failure = error_of_rpc(error, asked=address)
    except GalileoError as error:
        failure = error
    finally:
        call.cancel()
    answer = replies.answer if failure is None else _failed(replies.answer, failure, ask)
    return Delta(ask, _renumbered(answer, ask), address)


async def _receive(call: grpc.aio.UnaryStreamCall, replies: MatchReplies) -> None:
    received = 0
    async for reply in call:
        received += replies.take(reply)
        if received > ANSWER_BYTES_MAX:
            raise Overloaded(
                f"expected at most {ANSWER_BYTES_MAX} bytes of labels from one node in one "
                "cycle; use a sampler, a narrower query or a shorter update interval"
            )


def _failed(answer: MatchAnswer, error: GalileoError, ask: Ask) -> MatchAnswer:
    """A lost connection leaves items unanswered; anything else is the error of those.

    So does a dropped dataset: the items' coordinator may not have heard of it yet, and ends them.
    """
    lost = isinstance(error, TransientError | NotOwner | Cancelled) or "dropped" in error.details
    if lost and not isinstance(error, Overloaded):
        return answer
    open_items = np.ones(len(ask.items), dtype=np.bool_)
    for part in answer.parts:
        open_items[part.items] = False
    for items, _ in answer.errors:
        open_items[items] = False
    failed = (np.flatnonzero(open_items).astype(np.uint32), error)
    return MatchAnswer(answer.parts, answer.unknown, (*answer.errors, failed))


def _renumbered(answer: MatchAnswer, ask: Ask) -> MatchAnswer:
    """The same with the group's numbers for items."""
    items = ask.items
    parts = tuple(
        Answered(items[part.items], part.reached, part.matches.renumbered(items), part.dropped)
        for part in answer.parts
    )
    errors = tuple((items[numbers], error) for numbers, error in answer.errors)
    return MatchAnswer(parts, items[answer.unknown], errors)


def _request(ask: Ask, group: Group) -> peers_pb2.MatchRequest:
    rows, cursors = np.unique(group.cursors[ask.items], return_inverse=True)
    return peers_pb2.MatchRequest(
        dataset=group.dataset,
        partitions=group.partitions[ask.columns].tolist(),
        after=sequences_to_bytes(group.after[np.ix_(rows, ask.columns)]),
        cursors=to_bytes(cursors),
        digests=group.digests_of(ask.items),
    )
