"""Calls to whichever node answers: addresses tried in turn, transient errors repeated.

A client starts from the addresses it was given and learns the others from the topology, so
it goes on when the node it was pointed at is gone. It learns them anew after an address did not
answer: its node may run elsewhere by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import grpc.aio

from galileo import request_id, spans
from galileo.client.backoff import PAUSE_S as PAUSE_S
from galileo.client.backoff import Backoff, BackoffClock
from galileo.dht.topology import Topology, is_address, with_port
from galileo.errors import ConfigError, GalileoError, InputError, TransientError, Unavailable
from galileo.wire import forks, tls_probe
from galileo.wire.channel import Channels
from galileo.wire.status import CLOSED, HANDSHAKE_FAILED, REFUSED, error_of_rpc, plain_reason
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import cluster_pb2, cluster_pb2_grpc

TOPOLOGY_TIMEOUT_S = 5.0

Result = TypeVar("Result")


class Transport:
    """Channels to the nodes of one cluster.

    Args:
        addresses: "host:port" of at least one node.
        patience_s: how long a call is repeated while nodes are away or busy.
        timing: what it waits with in between.
        keys: what is proved to nodes.

    Attributes:
        on_error: called with what nodes answer, before it is raised.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        patience_s: float,
        timing: BackoffClock | None = None,
        keys: TlsFiles = NO_TLS_FILES,
    ) -> None:
        given = list(addresses)
        if not given:
            raise InputError("expected the address of at least one node, as 'host:port' or 'host'")
        for address in given:
            if not isinstance(address, str) or not is_address(with_port(address)):
                raise InputError(
                    f"expected an address as 'host:port' or 'host', got {address!r}; several are "
                    "arguments of their own"
                )
        self.addresses = list(dict.fromkeys(map(with_port, given)))
        self._given = frozenset(self.addresses)
        self.patience_s = patience_s
        self.timing = timing or BackoffClock()
        keys.check()
        self._is_tls = keys.is_tls
        self._channels = Channels(keys)
        self._knows_all = False
        self.on_error: Callable[[GalileoError], None] = lambda _: None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        await self._channels.close()

    async def call(
        self,
        attempt: Callable[[grpc.aio.Channel], Awaitable[Result]],
        *,
        patience_s: float | None = None,
    ) -> Result:
        """The result of `attempt` at the first node that gives one.

        Args:
            attempt: makes one call over a channel; may run several times.
            patience_s: for how long `TransientError` errors are met with another try.

        Raises:
            Unavailable: no node answered in time; names those that were tried.
            GalileoError: what the node answered.
        """
        patience_s = self.patience_s if patience_s is None else patience_s
        pauses = Backoff(self.timing, patience_s=patience_s)
        with request_id.serving(), spans.span("request"):
            while True:
                try:
                    return await self._once(attempt)
                except TransientError as error:
                    await pauses.after(error)

    async def open(
        self, attempt: Callable[[grpc.aio.Channel], Awaitable[tuple[Any, Result]]]
    ) -> tuple[Any, Result]:
        """The same for an attempt that gives a stream that it opened, and what came first on it.

        Where the caller is cancelled before it has them, the stream is ended.
        """
        opened: list[Any] = []

        async def opening(channel: grpc.aio.Channel) -> tuple[Any, Result]:
            stream, first = await attempt(channel)
            opened.append(stream)
            return stream, first

        try:
            return await self.call(opening)
        except BaseException:
            for stream in opened:
                stream.cancel()
            raise

    async def ask(
        self, address: str, attempt: Callable[[grpc.aio.Channel], Awaitable[Result]]
    ) -> Result:
        """The result of one `attempt` at one address, whatever becomes of it; errors as `call`."""
        try:
            result = await attempt(self._channel(address))
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=address) from error
        await self._learn(address)
        return result

    async def _once(self, attempt: Callable[[grpc.aio.Channel], Awaitable[Result]]) -> Result:
        """One try at each address until one answers, be it with an error of its own."""
        problems: dict[str, str] = {}
        for address in list(self.addresses):
            try:
                result = await attempt(self._channel(address))
            except grpc.RpcError as rpc_error:
                error = error_of_rpc(rpc_error, asked=address)
                if not _is_unreachable(error, address):
                    self.on_error(error)
                    raise error from rpc_error
                problems[address] = plain_reason(rpc_error.details() or str(error))
                self.demote(address)
                continue
            await self._learn(address)
            return result
        await self._check_tls(problems)
        _, reason = problems.popitem()
        if reason == CLOSED and self._is_tls:
            reason += " (a node also closes it when it does not trust the client's certificate)"
        raise Unavailable(
            f"no node could be reached at {', '.join(self.addresses)}; check that the cluster "
            f"runs and that the addresses are right. Last error: {reason}",
            addresses=self.addresses,
        )

    async def _check_tls(self, problems: Mapping[str, str]) -> None:
        """Raises ConfigError where TLS is why no node answered: no further try can help.

        A node speaks TLS and this client does not, or the reverse, or the client does not trust
        the node's certificate.
        """
        addresses = [one for one, problem in problems.items() if REFUSED not in problem]
        answers = await asyncio.gather(*map(tls_probe.speaks_tls, addresses))
        for address, speaks_tls in zip(addresses, answers, strict=True):
            if speaks_tls is None:
                continue
            if speaks_tls and self._is_tls:
                if problems[address] != HANDSHAKE_FAILED:
                    continue
                remedy = "tls"
                problem = (
                    "has a certificate that this client does not trust: it has expired, names "
                    "another host, or is of another authority than the client's authority.pem"
                )
            elif speaks_tls:
                problem, remedy = "expects TLS, and this client connects without", "tls"
            elif not self._is_tls:
                continue
            else:
                problem, remedy = "does not speak TLS, and this client expects it", "no_tls"
            raise ConfigError(f"the node at {address} {problem}", address=address, remedy=remedy)

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
        except asyncio.CancelledError:
            self._knows_all = False
            raise
        named = [node.address for node in Topology.from_json(reply.topology_json).nodes]
        kept = [one for one in self.addresses if one in self._given or one in named]
        self.addresses = list(dict.fromkeys([*kept, *named]))

    def _channel(self, address: str) -> grpc.aio.Channel:
        forks.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InputError(
                "expected calls from the event loop that this client was first used in, for its "
                "connections belong to that; make a client in each (each asyncio.run has its own)"
            )
        return self._channels.get(address)

    def demote(self, address: str) -> None:
        """Has an address tried after all others, and the others learnt anew."""
        self._knows_all = False
        if address in self.addresses:
            self.addresses.remove(address)
            self.addresses.append(address)


def _is_unreachable(error: GalileoError, address: str) -> bool:
    """Whether the node itself did not answer, rather than answering with an error."""
    return isinstance(error, Unavailable) and error.details.get("address") == address
