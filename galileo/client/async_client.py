"""The asynchronous client; `Client` has the same calls, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from galileo.client.arguments import no_such_call
from galileo.client.async_analytics import AsyncAnalytics
from galileo.client.async_brokers import AsyncBrokers
from galileo.client.async_ccqs import AsyncCcqs
from galileo.client.async_channels import AsyncChannels
from galileo.client.async_cluster import AsyncCluster
from galileo.client.async_datasets import AsyncDatasets
from galileo.client.async_observations import AsyncObservations
from galileo.client.async_readers import AsyncReaders
from galileo.client.async_samplers import AsyncSamplers
from galileo.client.async_tables import AsyncTables
from galileo.client.cluster_caller import cluster_caller
from galileo.client.profiles import Credentials
from galileo.model.times import Duration, seconds
from galileo.wire.caller import Caller, CallOptions

NOT_PICKLABLE = "a client has connections and cannot be pickled; connect in each process"


class AsyncClient(
    AsyncCluster,
    AsyncReaders,
    AsyncBrokers,
    AsyncChannels,
    AsyncTables,
    AsyncObservations,
    AsyncCcqs,
    AsyncSamplers,
    AsyncDatasets,
    AsyncAnalytics,
):
    """A client of a cluster.

    Args:
        addresses: "host:port" of one or more nodes; the client reads the others from the topology.
        timeout: retry unreachable or busy nodes for up to this long; by default 15 seconds, and
            60 seconds for an ingest.
        proof: credentials, for clusters with access control; see docs/security.md. What it leaves
            open is read from GALILEO_TOKEN, GALILEO_TOKEN_FILE and GALILEO_TLS.

    Example:
        >>> async with galileo.AsyncClient("127.0.0.1:7701") as client:
        ...     print(await client.count("weather"))
        4
    """

    def __init__(
        self, *addresses: str, timeout: Duration | None = None, proof: Credentials | None = None
    ) -> None:
        options = CallOptions()
        if timeout is not None:
            patience_s = seconds(timeout)
            options = CallOptions(patience_s=patience_s, ingest_patience_s=patience_s)
        keys = (proof or Credentials()).keys()
        self._use(cluster_caller(addresses, options=options, keys=keys))

    @classmethod
    def _over(cls, caller: Caller) -> AsyncClient:
        """A client with a caller of its own; see `ClientPool`."""
        client = cls.__new__(cls)
        client._use(caller)
        return client

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_call(self, name)

    def __repr__(self) -> str:
        return f"<AsyncClient of {', '.join(self._caller.addresses)}>"

    def __reduce__(self) -> Any:
        raise TypeError(NOT_PICKLABLE)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; a second call does nothing.

        Example:
            >>> client = galileo.AsyncClient("127.0.0.1:7701")
            >>> await client.close()
        """
        await self._caller.close()
