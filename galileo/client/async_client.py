"""The client as coroutines; `Client` is the same, blocking."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pyarrow as pa

from galileo.client import decode, moving, queries, selection
from galileo.client.async_ccqs import AsyncCcqs
from galileo.client.async_samplers import SamplerLike
from galileo.client.decode import TIMEOUT_S
from galileo.client.fetching import Fetching
from galileo.client.ingestion import BATCH_ROWS, Batches, Progress, send_all
from galileo.client.many import ManyFetching
from galileo.client.moving import MoveProgress
from galileo.client.proof import Proof
from galileo.client.queries import LabelBatches
from galileo.client.results import (
    ClusterStatus,
    Labels,
    Receipt,
)
from galileo.client.transport import Transport
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo.model.times import Duration, seconds
from galileo.query.builder import QueryLike, query_text
from galileo.samplers import SamplerSpec
from galileo.wire.pb import (
    cluster_pb2,
    cluster_pb2_grpc,
    query_pb2,
)

RETRY_TIMEOUT_S = 15.0
INGEST_TIMEOUT_S = 60.0
NOT_SENT = "a client cannot be pickled, for it has connections; connect in each process"


class AsyncClient(AsyncCcqs):
    """A cluster, from the outside.

    Args:
        addresses: "host:port" of one or more nodes; the others are learnt.
        timeout: retry unreachable or busy nodes for up to this long; by default 15 seconds, and
            60 seconds for an ingest.
        proof: who the client is, for clusters that ask; see docs/security.md. What it leaves
            open is read from GALILEO_TOKEN, GALILEO_TOKEN_FILE and GALILEO_TLS.
    """

    def __init__(
        self, *addresses: str, timeout: Duration | None = None, proof: Proof | None = None
    ) -> None:
        retry_s = RETRY_TIMEOUT_S if timeout is None else seconds(timeout)
        keys = (proof or Proof()).keys()
        self._transport = Transport(addresses, patience_s=retry_s, keys=keys)
        self._ingest_timeout_s = INGEST_TIMEOUT_S if timeout is None else retry_s
        self._fetching = Fetching(self._transport)
        self._many = ManyFetching(self._transport)
        self._schemas: dict[str, Schema] = {}
        self._sent_digests: set[str] = set()

    def __repr__(self) -> str:
        return f"<AsyncClient of {', '.join(self._transport.addresses)}>"

    def __reduce__(self) -> Any:
        raise TypeError(NOT_SENT)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; a second call does nothing."""
        await self._transport.close()

    # --- observations ------------------------------------------------------------------------

    async def ingest(
        self,
        dataset: str,
        data: Batches,
        *,
        producer: str | None = None,
        batch_rows: int = BATCH_ROWS,
        progress: Progress | None = None,
    ) -> Receipt:
        """Stores observations; durable when it returns.

        Args:
            dataset: its name.
            data: an Arrow table, batch or reader, a DataFrame, or an iterable of them; columns
                latitude, longitude, time and the features.
            producer: name under which the batches are numbered. Ingesting the same data again
                under the same name and `batch_rows` stores nothing twice. A fresh one if absent.
            batch_rows: rows per batch; a table is cut into such pieces.
            progress: called with the rows of each batch that became durable.

        Raises:
            InvalidObservations: a table does not fit; nothing of that table was stored.
            TryAgain: a node that must take rows stayed away; ingest the same again later, under
                `details["producer"]`, or what was stored by then is stored twice.
        """
        schema = await self.schema(dataset)
        return await send_all(
            self._transport,
            schema,
            data=data,
            producer=producer or f"client-{uuid.uuid4().hex}",
            batch_rows=batch_rows,
            patience_s=self._ingest_timeout_s,
            progress=progress,
        )

    async def query(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        sampler: SamplerLike | None = None,
        progress: Progress | None = None,
    ) -> Labels:
        """The labels of all paths that match a CQL2 query, of everything that is stored by now.

        Args:
            dataset: its name.
            query: CQL2.
            sampler: `galileo.sampler(...)` or `galileo.sampler_archive(...)`, thins them where
                they are stored.
            progress: called with the labels of each piece as it comes.

        Raises:
            QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
            UnknownSampler: a node does not have the sampler.
            SamplerFailed: the sampler raised; `details["traceback"]` says where.
            NotPermitted, NotContained, SamplerRevoked: it goes along, and is not run.
        """
        request = _query_request(dataset, query, await self._at_hand(sampler))
        return await queries.collected(self._transport, request, progress=progress)

    def query_batches(
        self, dataset: str, query: QueryLike = "", *, sampler: SamplerLike | None = None
    ) -> LabelBatches:
        """The same, a bounded set of labels at a time; memory stays bounded here and at the nodes.

        Its `end` says, once all labels were given, how far they go and which partitions are
        missing. What a node that is lost on the way had sent by then was given, too;
        `end.known(labels)` leaves it out.

        Raises:
            QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
            Unavailable: while it is read: the node that answers was lost. Ask again then, and
                drop what was given.
        """

        async def request() -> query_pb2.QueryRequest:
            return _query_request(dataset, query, await self._at_hand(sampler))

        return LabelBatches(self._transport, request)

    async def read(
        self, labels: LabelSet, *, exact: bool = True, progress: Progress | None = None
    ) -> pa.Table:
        """The observations behind labels.

        Args:
            labels: of this cluster.
            exact: only observations that match the labels' query exactly; else all of their
                paths, of which some can lie just outside a polygon or an interval.
            progress: called with the observations of each piece as it comes.
        """
        pieces = self.read_batches(labels, exact=exact)
        tables = [table async for table in queries.telling(pieces, progress)]
        schema = labels.schema.observation_schema
        return pa.concat_tables(tables) if tables else schema.empty_table()

    async def read_batches(
        self, labels: LabelSet, *, exact: bool = True
    ) -> AsyncIterator[pa.Table]:
        """The same in pieces, ordered by partition, commit and row; memory stays bounded.

        Where a connection breaks, the next piece comes from another node, and no row twice.
        """
        async with aclosing(queries.read_batches(self._transport, labels, exact=exact)) as tables:
            async for table in tables:
                yield table

    async def select(
        self, dataset: str, query: QueryLike = "", *, columns: Sequence[str] = ()
    ) -> pa.Table:
        """The observations that match a CQL2 query exactly, found and read in one call.

        What `query` and then `read` give, without the labels; all at once, in any order. Where
        there are too many for memory, use `query_batches` and `read_batches`.

        Args:
            dataset: its name.
            query: CQL2.
            columns: of the answer; all where none is named.

        Raises:
            QuerySyntaxError, UnknownProperty, UnsupportedQuery: the query is wrong.
            InputError: there is no such column.
            Unavailable: a node that may keep some of them cannot be reached.
        """
        schema = await self.schema(dataset)
        return await selection.select(self._transport, schema, query_text(query), columns=columns)

    async def count(self, dataset: str, query: QueryLike = "") -> int:
        """How many observations match a CQL2 query exactly; errors as `select`."""
        return await selection.count(self._transport, dataset, query_text(query))

    # --- the cluster -------------------------------------------------------------------------

    async def status(self) -> ClusterStatus:
        """Every node's state, also of those that do not answer."""
        reply = await self._transport.call(
            lambda channel: cluster_pb2_grpc.ClusterStub(channel).Status(
                cluster_pb2.StatusRequest(), timeout=TIMEOUT_S
            )
        )
        return ClusterStatus(tuple(decode.node_status(node) for node in reply.nodes))

    async def drain(self, node: str, *, undo: bool = False) -> None:
        """Has a node give away the continuous queries that it coordinates, and take none on.

        Returns at once; `status` shows the node as "draining" and how many it still coordinates.
        What it stores stays there. A restart of the node ends it.

        Args:
            node: its name in the topology.
            undo: lets it take queries on again.

        Raises:
            InputError: there is no such node.
        """
        request = cluster_pb2.DrainRequest(node=node, undo=undo)
        await self._transport.call(
            lambda channel: cluster_pb2_grpc.ClusterStub(channel).Drain(request, timeout=TIMEOUT_S)
        )

    def move(self, partition: int, *, to: str) -> AsyncIterator[MoveProgress]:
        """Moves a partition to another node of its group, while everything goes on.

        Closing the iterator gives it up. What was copied stays, so that the same call goes on from
        there. What breaks off for a reason that passes is begun again, as long as the client is
        patient; each bit of progress renews that.

        Args:
            partition: its number.
            to: the node that takes it.

        Returns:
            How far it is, now and then; at last with the stage "done".

        Raises:
            InputError: there is no such node or partition, the node is of another group, or other
                nodes do not know it yet.
            Unavailable: a node cannot be reached.
            DataDamaged: what the partition's node has is damaged; nothing has moved.
        """
        return moving.move(self._transport, partition, to=to)

    async def topology_json(self) -> str:
        """Groups, nodes, ranges and partitions, as JSON."""
        reply = await self._transport.call(
            lambda channel: cluster_pb2_grpc.ClusterStub(channel).Topology(
                cluster_pb2.TopologyRequest(), timeout=TIMEOUT_S
            )
        )
        return str(reply.topology_json)


def _query_request(
    dataset: str, query: QueryLike, sampler: SamplerSpec | None
) -> query_pb2.QueryRequest:
    return query_pb2.QueryRequest(
        dataset=dataset,
        query=query_text(query),
        sampler_json=sampler.to_json() if sampler else "",
    )
