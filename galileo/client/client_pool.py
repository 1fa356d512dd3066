"""Clients of one cluster for many callers, each with its token, over the same connections."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from galileo.client import decode
from galileo.client.async_client import AsyncClient
from galileo.client.cluster_caller import cluster_caller
from galileo.client.results import CallerIdentity
from galileo.errors import InputError
from galileo.wire.caller import CallOptions
from galileo.wire.services import CLUSTER
from galileo.wire.tls_credentials import TlsFiles
from galileo.wire.v1 import cluster_pb2

CLIENTS_MAX = 256


class ClientPool:
    """Makes the client of each token; belongs to one event loop.

    Args:
        addresses: "host:port" of one or more nodes.
        keys: TLS files of this process, without a token.
        patience_s: how long calls are retried.
        clients_max: clients that are kept; one that was let go is made again.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        keys: TlsFiles,
        patience_s: float,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        if keys.token or keys.token_file:
            raise InputError("expected keys without a token: callers have tokens of their own")
        options = CallOptions(patience_s=patience_s, ingest_patience_s=patience_s)
        # Many callers read at a time, slowly some of them, and the nodes are near.
        self._caller = cluster_caller(addresses, options=options, keys=keys, has_fixed_window=True)
        self._clients_max = clients_max
        self._clients: OrderedDict[str, AsyncClient] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def client(self, token: str) -> AsyncClient:
        """The client of a token, "" for none; it has no connections of its own to close."""
        client = self._clients.get(token)
        if client is None:
            client = AsyncClient._over(self._caller.with_token(token))
            self._clients[token] = client
            while len(self._clients) > self._clients_max:
                self._clients.popitem(last=False)
        self._clients.move_to_end(token)
        return client

    async def identity(self, token: str) -> CallerIdentity:
        """Who a token's owner is, without quotas, as a node knows it by itself."""
        request = cluster_pb2.StatusRequest(caller=True, without_quotas=True)
        reply = await self._caller.with_token(token).unary(CLUSTER, "Status", request)
        return decode.caller_identity(reply.caller)

    async def close(self) -> None:
        """Closes the connections."""
        await self._caller.close()
