"""Calls a node of the cluster: tries the addresses in turn, and repeats transient errors.

A client starts with the configured addresses and reads the others from the topology, so that it
continues when its first node fails. After an address did not answer it reads the topology again:
the node may have moved to another address.
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
        patience_s: how long a call is repeated while nodes are unreachable or busy.
        timing: the clock of the waits between attempts.
        keys: TLS files and token of the client.

    Attributes:
        on_error: called with each error that a node answers, before it is raised.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        patience_s: float,
        timing: BackoffClock | None = None,
        keys: TlsFiles = NO_TLS_FILES,
    ) -> None:
        configured = list(addresses)
        if not configured:
            raise InputError("expected the address of at least one node, as 'host:port' or 'host'")
        for address in configured:
            if not isinstance(address, str) or not is_address(with_port(address)):
                raise InputError(
                    f"expected an address as 'host:port' or 'host', got {address!r}; several are "
                    "arguments of their own"
                )
        self.addresses = list(dict.fromkeys(map(with_port, configured)))
        self._configured = frozenset(self.addresses)
        self.patience_s = patience_s
        self.timing = timing or BackoffClock()
        keys.check()
        self._is_tls, self._certificate = keys.is_tls, keys.certificate
        self._channels = Channels(keys)
        self._has_topology = False
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
            patience_s: for how long a `TransientError` is followed by another attempt.

        Raises:
            Unavailable: no node answered in time; names the addresses that were tried.
            GalileoError: the error that the node answered.
        """
        patience_s = self.patience_s if patience_s is None else patience_s
        backoff = Backoff(self.timing, patience_s=patience_s)
        with request_id.serving(), spans.span("request"):
            while True:
                try:
                    return await self._try_addresses(attempt)
                except TransientError as error:
                    await backoff.after(error)

    async def open(
        self, attempt: Callable[[grpc.aio.Channel], Awaitable[tuple[Any, Result]]]
    ) -> tuple[Any, Result]:
        """As `call`, for an attempt that returns a stream and the first message on it.

        If the caller is cancelled before it has them, the stream is cancelled.
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
        """The result of one `attempt` at one address, without a retry; errors as `call`."""
        try:
            result = await attempt(self._channel(address))
        except grpc.RpcError as error:
            raise error_of_rpc(error, asked=address) from error
        await self._read_topology(address)
        return result

    async def _try_addresses(
        self, attempt: Callable[[grpc.aio.Channel], Awaitable[Result]]
    ) -> Result:
        """Tries each address once, until a node answers with a result or an error."""
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
                self.deprioritise(address)
                continue
            await self._read_topology(address)
            return result
        await self._check_tls(problems)
        _, reason = problems.popitem()
        if reason == CLOSED and self._is_tls:
            reason += (
                "; a node also closes the connection in the TLS handshake if it does not accept "
                f"the client's certificate {self._certificate}: issue one with the authority of "
                "this cluster (galileo cert issue client)"
            )
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
        addresses = [a for a, problem in problems.items() if REFUSED not in problem]
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

    async def _read_topology(self, address: str) -> None:
        if self._has_topology:
            return
        self._has_topology = True
        stub = cluster_pb2_grpc.ClusterStub(self._channel(address))
        try:
            reply = await stub.Topology(cluster_pb2.TopologyRequest(), timeout=TOPOLOGY_TIMEOUT_S)
        except grpc.RpcError:
            self._has_topology = False
            return
        except asyncio.CancelledError:
            self._has_topology = False
            raise
        members = [node.address for node in Topology.from_json(reply.topology_json).nodes]
        known = [a for a in self.addresses if a in self._configured or a in members]
        self.addresses = list(dict.fromkeys([*known, *members]))

    def _channel(self, address: str) -> grpc.aio.Channel:
        forks.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InputError(
                "expected calls from the event loop in which this client was first used, got "
                "another loop; create a client in each loop (each asyncio.run has its own)"
            )
        return self._channels.get(address)

    def deprioritise(self, address: str) -> None:
        """Moves an address behind all others, and has the topology read again."""
        self._has_topology = False
        if address in self.addresses:
            self.addresses.remove(address)
            self.addresses.append(address)


def _is_unreachable(error: GalileoError, address: str) -> bool:
    """Whether no node answered at this address."""
    return isinstance(error, Unavailable) and error.details.get("address") == address
