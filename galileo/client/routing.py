"""Sends each node the rows of a batch that it owns: zero-hop routing (paper, III.A).

The client computes the partitions of all rows from the topology, as nodes do, and sends each owner
its rows in one call. A node that receives rows of another owner forwards them, so a stale topology
costs time and nothing else; the client then reads the topology again. If an owner cannot be
reached, another node receives its rows, and the owner is not called directly for `avoid_s`.

All calls have the producer and number of the batch. Each partition recognises a repeated batch by
them, whichever way it comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pyarrow as pa

from galileo import request_id, spans
from galileo.client.cluster_caller import topology_of
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.model.schema import Schema
from galileo.wire.caller import Caller, Connection
from galileo.wire.v1 import storage_pb2
from galileo.wire.zero_copy import Bulk, BulkStub, stream_of

TOPOLOGY_AGE_MIN_S = 1.0
"""A topology that is younger is not read again."""


class Router:
    """Stores batches at the owners of their rows.

    Args:
        caller: of the nodes.
        monotonic: clock in seconds.
    """

    def __init__(self, caller: Caller, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.options = caller.options
        self._caller = caller
        self._monotonic = monotonic
        self._topology: Topology | None = None
        self._read_at = 0.0

    async def ingest(
        self, schema: Schema, table: pa.Table, *, producer: str, batch: int
    ) -> list[storage_pb2.IngestReply]:
        """Stores one batch of normalised rows, durable when it returns; the reply of each owner.

        Raises:
            GalileoError: of a node; other nodes may have stored their rows.
        """
        if self._topology is None:
            await self._read_topology()
        assert self._topology is not None
        head = storage_pb2.IngestRequest(dataset=schema.key, producer=producer, batch=batch)
        parts = placement.split_by_owner(self._topology, schema, table)
        addresses = {node: self._topology.by_name[node].address for node in parts}
        calls = (
            self._send(addresses[node], Bulk(head, stream_of(rows))) for node, rows in parts.items()
        )
        replies = []
        with request_id.serving(), spans.span("ingest", owners=len(parts)):
            answers = await asyncio.gather(*calls, return_exceptions=True)
        for reply in answers:
            if isinstance(reply, BaseException):
                raise reply
            replies.append(reply)
        if any(reply.forwarded_rows for reply in replies):
            await self._read_topology()
        return replies

    async def _read_topology(self) -> None:
        age_s = self._monotonic() - self._read_at
        if self._topology is None or age_s > TOPOLOGY_AGE_MIN_S:
            self._read_at = self._monotonic()
            self._topology = await self._caller.call(topology_of)

    async def _send(
        self, owner: str, request: Bulk[storage_pb2.IngestRequest]
    ) -> storage_pb2.IngestReply:
        async def attempt(node: Connection) -> storage_pb2.IngestReply:
            reply: storage_pb2.IngestReply = await node.unary(BulkStub, "Ingest", request)
            return reply

        patience_s = self.options.ingest_patience_s
        return await self._caller.call_owner(owner, attempt, patience_s=patience_s)
