"""Fetches and watches of one query: at the coordinator where it is known, else at any node.

Any node answers a fetch, and asks the coordinator where it is another: one hop more. So the client
remembers who answered. A coordinator that was only paused keeps its connections and says nothing;
so it has a moment to begin its answer, much less than nodes take to declare it dead, and then
another node is asked as if nothing were known. Fetches that wait for news go to any node: they are
in no hurry, and silence says nothing there.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator

from galileo.client import decode
from galileo.client.cluster_caller import ANSWER_S
from galileo.client.lost_commits import naming_token
from galileo.client.results import Update
from galileo.errors import DeadlineExceeded, InputError, NotOwner, TransientError
from galileo.wire.caller import AvoidedAddresses, Caller, Connection, Stream
from galileo.wire.services import CONTINUOUS
from galileo.wire.v1 import continuous_pb2

COORDINATORS_MAX = 4_096
COORDINATOR_S = 0.5
"""Time in which a coordinator that is called directly begins its answer."""
PART_S = 120.0
"""Time to the next part of an update that has begun; a slow network needs long for a large part."""
WATCH_WAIT_S = 10.0
"""How long a node waits for news of a watched query before it answers."""
WATCH_SILENCE_S = 30.0
"""Time after `WATCH_WAIT_S` after which a watch continues at another node."""


def request(
    ccq_id: str, token: str, *, wait_s: float, labels_max: int
) -> continuous_pb2.FetchRequest:
    if not isinstance(token, str):
        raise InputError(f"expected the token of an update (update.token), got {token!r}")
    if not isinstance(labels_max, int) or labels_max < 0:
        raise InputError(f"expected labels_max as a whole number, or 0, got {labels_max!r}")
    return continuous_pb2.FetchRequest(
        ccq_id=ccq_id,
        token=token,
        wait_s=wait_s,
        labels_max=labels_max,
    )


class Fetcher:
    """Fetches, and caches the coordinators of queries.

    Args:
        caller: of all nodes.
        monotonic: seconds, of a clock that never jumps.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._coordinators: OrderedDict[str, str] = OrderedDict()
        self._avoided = AvoidedAddresses()

    def cache_coordinator(self, ccq_id: str, address: str) -> None:
        """Caches the "host:port" of a continuous query's coordinator; ignores an empty one."""
        if not address:
            return
        self._coordinators[ccq_id] = address
        self._coordinators.move_to_end(ccq_id)
        while len(self._coordinators) > COORDINATORS_MAX:
            self._coordinators.popitem(last=False)

    async def fetch(self, request: continuous_pb2.FetchRequest) -> Update:
        """What is new; errors as `AsyncClient.fetch`."""
        with naming_token(request.token, request.ccq_id):
            return await self._fetch(request)

    async def _fetch(self, request: continuous_pb2.FetchRequest) -> Update:
        address = None if request.wait_s else self._address(request.ccq_id)
        if address is not None:
            try:
                return await self._caller.ask(
                    address, lambda node: self._attempt(node, request, COORDINATOR_S)
                )
            except (TransientError, NotOwner) as error:
                self._coordinators.pop(request.ccq_id, None)
                self._avoided.record(address, error)
        return await self._caller.call(lambda node: self._attempt(node, request, None))

    def watch(self, ccq_id: str, token: str, *, labels_max: int) -> AsyncGenerator[Update, None]:
        """All updates of a query; each request acknowledges the update before it.

        Resumes at another node after an error, for as long as the query has not ended.
        """
        ask = functools.partial(request, ccq_id, labels_max=labels_max)

        async def rest() -> AsyncGenerator[Update, None]:
            """One stream at one node, until it breaks."""
            nonlocal token
            first = ask(token, wait_s=0.0)
            with naming_token(token, ccq_id):
                stream, update = await self._caller.open(
                    lambda node: node.stream(CONTINUOUS, "Watch"),
                    lambda stream: _next_update(stream, first),
                )
            with stream:
                while True:
                    token = update.token
                    yield update
                    # A watch can outlive all nodes that were there when it began.
                    await self._caller.learn_addresses(stream.address)
                    following = ask(token, wait_s=WATCH_WAIT_S)
                    with naming_token(token, ccq_id):
                        update = await _next_update(stream, following)

        return self._caller.resume(rest, patience_s=math.inf)

    def _address(self, ccq_id: str) -> str | None:
        address = self._coordinators.get(ccq_id)
        return None if address is None or address in self._avoided else address

    async def _attempt(
        self,
        node: Connection,
        request: continuous_pb2.FetchRequest,
        begins_within_s: float | None,
    ) -> Update:
        """One answer of one node.

        Raises:
            DeadlineExceeded: it does not begin in time.
        """
        timeout_s = ANSWER_S + request.wait_s
        with node.stream(CONTINUOUS, "Fetch", request, timeout_s=timeout_s) as stream:
            parts = await decode.update_parts(
                stream, begins_within_s=begins_within_s, part_s=PART_S
            )
        if parts[-1].tail.coordinator:
            self.cache_coordinator(request.ccq_id, parts[-1].tail.coordinator)
        return await decode.update_of(parts)


async def _next_update(stream: Stream, asking: continuous_pb2.FetchRequest) -> Update:
    """The next update of a watch's stream.

    Raises:
        DeadlineExceeded: the node sends nothing, though its connection holds.
    """
    within_s = asking.wait_s + WATCH_SILENCE_S
    try:
        async with asyncio.timeout(within_s):
            await stream.write(asking)
    except TimeoutError as error:
        message = f"the node accepted no request of the watch for {within_s:g} s; try again"
        raise DeadlineExceeded(message) from error
    parts = await decode.update_parts(stream, begins_within_s=within_s, part_s=PART_S)
    return await decode.update_of(parts)
