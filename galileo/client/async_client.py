"""The client as coroutines; `Client` is the same, blocking."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio
import pyarrow as pa

from galileo.client import decode, moving, queries, selection, watching
from galileo.client.async_many import AsyncMany
from galileo.client.async_samplers import SamplerLike
from galileo.client.decode import ANSWER_TIMEOUT_S, TIMEOUT_S
from galileo.client.fetching import Fetching
from galileo.client.ingestion import BATCH_ROWS, Batches, Progress, send_all
from galileo.client.many import ManyFetching
from galileo.client.moving import MoveProgress
from galileo.client.proof import Proof
from galileo.client.queries import LabelBatches
from galileo.client.results import (
    Ccq,
    CcqInfo,
    CcqLike,
    ClusterStatus,
    Labels,
    Receipt,
    Update,
    ccq_id_of,
)
from galileo.client.sparql_views import SparqlView, open_view
from galileo.client.spool import Spool
from galileo.client.submitting import EXPIRATION, INTERVAL
from galileo.client.transport import Transport
from galileo.cursor import Cursor
from galileo.errors import InputError, TryAgain
from galileo.labels import LabelSet
from galileo.model.schema import Schema
from galileo.model.times import Duration, seconds
from galileo.model.windows import Window
from galileo.query.builder import QueryLike, query_text
from galileo.rdf.growing import LABELS_MAX
from galileo.samplers import SamplerSpec
from galileo.wire.pb import (
    cluster_pb2,
    cluster_pb2_grpc,
    continuous_pb2,
    continuous_pb2_grpc,
    query_pb2,
)

RETRY_TIMEOUT_S = 15.0
INGEST_TIMEOUT_S = 60.0
NOT_SENT = "a client cannot be pickled, for it has connections; connect in each process"


class AsyncClient(AsyncMany):
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

    # --- continuous queries ------------------------------------------------------------------

    async def submit(
        self,
        dataset: str,
        query: QueryLike = "",
        *,
        interval: Duration = INTERVAL,
        expiration: Duration = EXPIRATION,
        sampler: SamplerLike | None = None,
        compression: str = "none",
        window: Window | None = None,
    ) -> Ccq:
        """Submits a cached continuous query; it is answered until it expires.

        Args:
            dataset: its name.
            query: CQL2.
            interval: how often new matches are looked for.
            expiration: how long from now it runs. A query that is no longer wanted should be
                cancelled, for until then the cluster evaluates it and keeps its labels.
            sampler: `galileo.sampler(...)` or `galileo.sampler_archive(...)`, thins what is
                found.
            compression: of the cache, "none" or "lz4".
            window: `galileo.Window...`; updates then say which windows their labels belong to,
                and which of them are over.
        """
        chosen = await self._at_hand(sampler)
        request = continuous_pb2.SubmitRequest(
            ccq_id=f"ccq-{uuid.uuid4().hex}",
            dataset=dataset,
            query=query_text(query),
            interval_s=seconds(interval),
            expiration_s=seconds(expiration),
            sampler_json=chosen.to_json() if chosen else "",
            compression=compression,
            window_json=window.to_json() if window else "",
        )

        async def attempt(channel: grpc.aio.Channel) -> Ccq:
            call = continuous_pb2_grpc.ContinuousStub(channel).Submit(
                request, timeout=ANSWER_TIMEOUT_S
            )
            return await decode.collect_submission(call)

        ccq = await self._transport.call(attempt)
        self._fetching.learn(ccq.id, ccq.info.coordinator_address)
        return ccq

    async def fetch(
        self, ccq: CcqLike, *, token: str = "", wait: Duration | None = None, labels_max: int = 0
    ) -> Update:
        """What is new for a client that has what `token` says.

        Args:
            ccq: the continuous query, or its id.
            token: of the last update; empty for everything since the beginning.
            wait: for how long to wait for something new; at most a minute.
            labels_max: soft bound of the answer; 0 for the node's own.

        Raises:
            InvalidToken: it is damaged or of another CCQ.
            CcqExpired, CcqCancelled, UnknownCcq: there is nothing to fetch from.
        """
        wait_s = 0.0 if wait is None else seconds(wait)
        request = watching.request(ccq_id_of(ccq), token, wait_s=wait_s, labels_max=labels_max)
        return await self._fetching.fetch(request)

    async def watch(
        self, ccq: CcqLike, *, token: str = "", labels_max: int = 0, spool: Spool | None = None
    ) -> AsyncIterator[Update]:
        """Updates as they come; asking for the next one acknowledges the last.

        One without anything new comes where nothing has for ten seconds, and more is known to have
        been looked at since the last: its frontier says how far.

        Goes on over crashes of nodes until the CCQ ends, which raises `CcqExpired` or
        `CcqCancelled`.

        Args:
            ccq: the continuous query, or its id.
            token: of the last update; empty for everything since the beginning.
            labels_max: soft bound of an update; 0 for the node's own.
            spool: stores each update before it is yielded, and begins where it ends, so that a
                reader that crashes goes on without a gap or a repetition. It has its own token.

        Raises:
            InputError: the spool is of another CCQ, or a token came beside one that holds some.
            SpoolConflict: another reader stores into the same spool.
            TryAgain: the spool cannot be written; it is as it was.
        """
        ccq_id, held = ccq_id_of(ccq), ""
        if spool is not None:
            held = spool.token
            token = _first_token(spool, ccq_id, held=held, given=token)
        told: Cursor | None = None
        async with aclosing(self._watch_on(ccq_id, token, labels_max=labels_max)) as updates:
            async for update in updates:
                # After news that do not tell of all that was there, it is news how far it is.
                is_further = told is not None and not told.covers(update.frontier)
                if update.is_news or is_further:
                    if spool is not None:
                        await asyncio.to_thread(spool.store, ccq_id, update, after=held)
                        held = update.token
                    told = update.frontier
                    yield update

    async def _watch_on(self, ccq_id: str, token: str, *, labels_max: int) -> Any:
        """All answers of a watch, over crashes of nodes."""
        while True:
            updates = self._watch_once(ccq_id, token, labels_max=labels_max)
            try:
                async for update in updates:
                    token = update.token
                    yield update
            except TryAgain:
                await asyncio.sleep(watching.PAUSE_S)
            finally:
                await updates.aclose()

    async def _watch_once(self, ccq_id: str, token: str, *, labels_max: int) -> Any:
        """One watch stream at one node, until it breaks."""

        async def open_watch(channel: grpc.aio.Channel) -> tuple[Any, Update]:
            call = continuous_pb2_grpc.ContinuousStub(channel).Watch()
            try:
                request = watching.request(ccq_id, token, wait_s=0.0, labels_max=labels_max)
                return call, await watching.asked(call, request)
            except BaseException:
                call.cancel()
                raise

        call, update = await self._transport.open(open_watch)
        try:
            while True:
                yield update
                request = watching.request(
                    ccq_id, update.token, wait_s=watching.WAIT_S, labels_max=labels_max
                )
                update = await watching.asked(call, request)
        except grpc.RpcError as error:
            raise decode.watch_error(error) from error
        finally:
            call.cancel()

    async def sparql_view(
        self,
        ccq: CcqLike,
        *,
        token: str = "",
        spool: Spool | None = None,
        labels_max: int = LABELS_MAX,
    ) -> SparqlView:
        """What a CCQ has found so far as a graph that answers SPARQL, and grows as more comes.

        Holds everything there is when it returns. Its calls are blocking and threads may share
        it; close it when done.

        Args:
            ccq: the continuous query, or its id.
            token: of the last update that is not wanted; empty for everything.
            spool: stores each update before it is added, and is where the view begins, so that
                one that is opened again needs to fetch only what is new.
            labels_max: how many labels the graph holds; then following ends, with a reason.

        Raises:
            InputError: the spool is of another CCQ; or there are more than `labels_max` already.
            CcqExpired, CcqCancelled, UnknownCcq: there is nothing to follow.
        """
        return await open_view(
            self, ccq_id_of(ccq), token=token, spool=spool, labels_max=labels_max
        )

    async def list_ccqs(self) -> list[CcqInfo]:
        """The CCQs that the cluster answers."""
        reply = await self._transport.call(
            lambda channel: continuous_pb2_grpc.ContinuousStub(channel).List(
                continuous_pb2.ListRequest(), timeout=TIMEOUT_S
            )
        )
        return [decode.ccq_info(value) for value in reply.ccqs]

    async def cancel(self, ccq: CcqLike) -> None:
        """Ends a CCQ everywhere; whoever watches it is told."""
        request = continuous_pb2.CancelRequest(ccq_id=ccq_id_of(ccq))
        await self._transport.call(
            lambda channel: continuous_pb2_grpc.ContinuousStub(channel).Cancel(
                request, timeout=TIMEOUT_S
            )
        )

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


def _first_token(spool: Spool, ccq_id: str, *, held: str, given: str) -> str:
    """Where a watch into a spool begins that holds what a token says."""
    spool.check(ccq_id)
    if given and held not in ("", given):
        raise InputError(
            f"expected no token, since the spool {spool.path} says what it holds; leave it out"
        )
    return held or given


def _query_request(
    dataset: str, query: QueryLike, sampler: SamplerSpec | None
) -> query_pb2.QueryRequest:
    return query_pb2.QueryRequest(
        dataset=dataset,
        query=query_text(query),
        sampler_json=sampler.to_json() if sampler else "",
    )
