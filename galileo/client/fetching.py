"""Fetching: straight from the coordinator where it is known, else from any node.

Any node answers a fetch, and asks the coordinator where it is another: one hop more. So the client
remembers who answered. A coordinator that was only paused keeps its connections and says nothing;
so it has a moment to begin its answer, much less than nodes take to declare it dead, and then
another node is asked as if nothing were known. Fetches that wait for news go to any node: they are
in no hurry, and silence says nothing there.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakKeyDictionary

import grpc.aio

from galileo.client import decode
from galileo.client.decode import ANSWER_TIMEOUT_S
from galileo.client.results import Update
from galileo.client.transport import Transport
from galileo.errors import DeadlineExceeded, NotOwner, TransientError
from galileo.wire.v1 import continuous_pb2, continuous_pb2_grpc

DIRECT_WITHIN_S = 0.5
"""Within so long a coordinator that is asked directly begins its answer, else others are asked."""
AVOIDED_S = 30.0
"""For so long a node that did not is not asked directly."""
COORDINATORS_MAX = 4_096
"""Continuous queries whose coordinators are remembered."""


class Fetcher:
    """Fetches through a transport; remembers where that goes fastest.

    Args:
        transport: to all nodes.
        monotonic: seconds, of a clock that never jumps.
    """

    def __init__(
        self, transport: Transport, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._transport = transport
        self._monotonic = monotonic
        self._coordinators: OrderedDict[str, str] = OrderedDict()
        self._avoided: dict[str, float] = {}
        self._stubs: WeakKeyDictionary[grpc.aio.Channel, continuous_pb2_grpc.ContinuousStub] = (
            WeakKeyDictionary()
        )

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
        address = None if request.wait_s else self._address(request.ccq_id)
        if address is not None:
            try:
                return await self._transport.ask(
                    address, lambda channel: self._attempt(channel, request, DIRECT_WITHIN_S)
                )
            except (TransientError, NotOwner) as error:
                self._coordinators.pop(request.ccq_id, None)
                if isinstance(error, DeadlineExceeded) or error.details.get("address") == address:
                    self._avoided[address] = self._monotonic() + AVOIDED_S
        return await self._transport.call(lambda channel: self._attempt(channel, request, None))

    def _address(self, ccq_id: str) -> str | None:
        address = self._coordinators.get(ccq_id)
        if address is None or self._avoided.get(address, 0.0) > self._monotonic():
            return None
        return address

    def _stub(self, channel: grpc.aio.Channel) -> continuous_pb2_grpc.ContinuousStub:
        """That of a channel, made once: it makes all methods of the service."""
        stub = self._stubs.get(channel)
        if stub is None:
            stub = self._stubs[channel] = continuous_pb2_grpc.ContinuousStub(channel)
        return stub

    async def _attempt(
        self,
        channel: grpc.aio.Channel,
        request: continuous_pb2.FetchRequest,
        begins_within_s: float | None,
    ) -> Update:
        """One answer of one node.

        Raises:
            DeadlineExceeded: it does not begin in time.
        """
        timeout_s = ANSWER_TIMEOUT_S + request.wait_s
        call = self._stub(channel).Fetch(request, timeout=timeout_s)
        try:
            parts = await decode.update_parts(call, begins_within_s=begins_within_s)
        finally:
            call.cancel()
        if parts[-1].tail.coordinator:
            self.cache_coordinator(request.ccq_id, parts[-1].tail.coordinator)
        return await decode.update_of(parts)
