"""Calls to whichever node answers: addresses tried in turn, transient errors repeated.

A client starts from the addresses it was given and learns the others from the topology, so
it goes on when the node it was pointed at is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import grpc.aio

from galileo.dht.topology import Topology, is_address
from galileo.errors import GalileoError, InputError, TryAgain, Unavailable
from galileo.wire.channel import open_channel
from galileo.wire.pb import cluster_pb2, cluster_pb2_grpc
from galileo.wire.status import error_of_rpc

PAUSE_S = 0.1
PAUSE_MAX_S = 1.0
"""Between tries where nobody says when to come back, doubled each time."""
PAUSE_MIN_S = 0.05
"""Where somebody does, and says at once."""
TOPOLOGY_TIMEOUT_S = 5.0

Result = TypeVar("Result")


class Transport:
    """Channels to the nodes of one cluster.

    Args:
        addresses: "host:port" of at least one node.
        patience_s: how long a call is repeated while nodes are away or busy.
    """

    def __init__(self, addresses: Iterable[str], *, patience_s: float) -> None:
        self.addresses = list(dict.fromkeys(addresses))
        if not self.addresses:
            raise InputError("expected the address of at least one node, as 'host:port'")
        for address in self.addresses:
            if not is_address(address):
                raise InputError(f"expected an address as 'host:port', got {address!r}")
        self.patience_s = patience_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._knows_all = False

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def call(
        self,
        attempt: Callable[[grpc.aio.Channel], Awaitable[Result]],
        *,
        patience_s: float | None = None,
    ) -> Result:
        """The result of `attempt` at the first node that gives one.

        Args:
            attempt: makes one call over a channel; may run several times.
            patience_s: for how long `TryAgain` errors are met with another try.

        Raises:
            Unavailable: no node answered in time; names those that were tried.
            GalileoError: what the node answered.
        """
        patience = self.patience_s if patience_s is None else patience_s
        deadline = time.monotonic() + patience
        pause = PAUSE_S
        while True:
            try:
                return await self._once(attempt)
            except TryAgain as error:
                advised = error.details.get("after_s")
                wait = pause if advised is None else max(float(advised), PAUSE_MIN_S)
                if time.monotonic() + wait > deadline:
                    raise
                await asyncio.sleep(wait)
                if advised is None:
                    pause = min(2 * pause, PAUSE_MAX_S)

    async def ask(
        self, address: str, attempt: Callable[[grpc.aio.Channel], Awaitable[Result]]
    ) -> Result:
        """The result of one `attempt` at one address, whatever becomes of it; errors as `call`."""
        try:
            return await attempt(self._channel(address))
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=address) from error

    async def _once(self, attempt: Callable[[grpc.aio.Channel], Awaitable[Result]]) -> Result:
        """One try at each address until one answers, be it with an error of its own."""
        problems = []
        for address in list(self.addresses):
            try:
                result = await attempt(self._channel(address))
            except grpc.RpcError as rpc_error:
                error = error_of_rpc(rpc_error, asked=address)
                if not _is_unreachable(error, address):
                    raise error from rpc_error
                problems.append(str(error))
                self._demote(address)
                continue
            await self._learn(address)
            return result
        raise Unavailable(
            f"no node could be reached at {', '.join(self.addresses)}; check that the cluster "
            f"runs (galileo status) and that the addresses are right. Last: {problems[-1]}",
            addresses=self.addresses,
        )

    async def _learn(self, address: str) -> None:
        if self._knows_all:
            return
        self._knows_all = True
        stub = cluster_pb2_grpc.ClusterStub(self._channel(address))
        try:
            reply = await stub.Topology(cluster_pb2.TopologyRequest(), timeout=TOPOLOGY_TIMEOUT_S)
        except grpc.RpcError:
            self._knows_all = False
            return
        nodes = Topology.from_json(reply.topology_json).nodes
        self.addresses = list(dict.fromkeys([*self.addresses, *(n.address for n in nodes)]))

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        return self._channels[address]

    def _demote(self, address: str) -> None:
        self.addresses.remove(address)
        self.addresses.append(address)


def _is_unreachable(error: GalileoError, address: str) -> bool:
    """Whether the node itself did not answer, rather than answering with an error."""
    return isinstance(error, Unavailable) and error.details.get("address") == address
