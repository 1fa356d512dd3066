"""Finds the owners of rows, and sends each the rows of a batch that it owns: zero-hop routing
(paper, III.A).

The client computes the partitions of all rows from the topology, as nodes do, and sends each owner
its rows in one call. A node that receives rows of another owner forwards them, so a stale topology
costs time and nothing else; the client then reads the topology again. If an owner cannot be
reached, another node receives its rows, and the owner is not called directly for `AVOID_S`.

All calls have the producer and number of the batch. Each partition recognises a repeated batch by
them, whichever way it comes. If a partition has copies, and its owner is silent for `HEDGE_S`,
another node gets the rows, too, which forwards them to who leads the partitions by then: a hedged
request (Dean and Barroso, "The Tail at Scale", 2013).

The calls also name the range epoch: where the ranges were cut anew since the topology was read, a
node refuses its part, and all parts are sent again, split anew, since a partition has to get all
its rows of a batch at once.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo import request_id, spans
from galileo.client.cluster_caller import topology_of
from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import RangesChanged, TransientError
from galileo.hashing import rows_digest
from galileo.model.schema import StoredSchema
from galileo.model.system import SYSTEM_TABLES
from galileo.wire.caller import Backoff, Caller, Connection
from galileo.wire.codec import cursor_to_pb
from galileo.wire.services import STORAGE
from galileo.wire.v1 import storage_pb2
from galileo.wire.zero_copy import Bulk, stream_of

Reply = TypeVar("Reply")

TOPOLOGY_AGE_MIN_S = 1.0
HEDGE_S = 3.0
"""Time after which the rows of an owner of replicated partitions are sent to another node, too."""
"""A topology that is younger is not read again."""


class Router:
    """Finds the owners of partitions, and stores batches at the owners of their rows.

    Args:
        caller: of the nodes.
        monotonic: clock in seconds.
    """

    def __init__(self, caller: Caller, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.caller = caller
        self._monotonic = monotonic
        self._topology: Topology | None = None
        self._read_at = 0.0

    @property
    def has_copies(self) -> bool:
        """Whether partitions have copies, as far as this client knows."""
        return self._topology is not None and self._topology.is_replicated

    async def members(self, node: Connection) -> list[str]:
        """The addresses of all nodes, from the topology that a node knows; keeps the topology."""
        self._read_at = self._monotonic()
        topology = self._topology = await topology_of(node)
        return [member.address for member in topology.nodes]

    async def topology(self) -> Topology:
        """The topology as this client knows it, which may be stale."""
        return self._topology or await self._read_topology(self.caller.backoff())

    async def owners(self, partitions: Iterable[int]) -> list[str]:
        """The address of the owner of each partition; "" of one that the cluster does not have."""
        topology = await self.topology()
        owners = placement.owners(topology)
        addresses = {"": ""} | {node.name: node.address for node in topology.nodes}
        return [addresses[owners.get(partition, "")] for partition in partitions]

    async def ingest(
        self,
        schema: StoredSchema,
        table: pa.Table,
        *,
        producer: str,
        batch: int,
        is_new: bool = False,
        is_named: bool = False,
        partitions: npt.NDArray[np.int32] | None = None,
        unchanged_since: Cursor | None = None,
        deletes: bool = False,
    ) -> list[storage_pb2.IngestReply]:
        """Stores one batch of normalised rows, durable when it returns; the reply of each owner.

        Args:
            schema: of the dataset.
            table: the rows.
            producer: of the batch.
            batch: its number.
            is_new: whether it is certain that no other call has sent it.
            is_named: whether the caller chose its number, so that it may be another batch's too.
            partitions: of rows that no change of ranges moves; None: of others.
            unchanged_since: rows of a table whose keys have later versions are refused; None: none
                is.
            deletes: whether the rows are of `galileo.model.deletions.STRETCHES_SCHEMA`.

        Raises:
            BatchConflict: another batch has this number; nothing is stored.
            Conflict: a row was changed since; rows of other partitions may be stored.
            RangesChanged: the ranges went on changing until the call's patience ended.
            GalileoError: of a node; other nodes may have stored their rows.
        """
        if is_named:
            await self.record(schema, table, producer=producer, batch=batch)
        backoff = self.caller.backoff(self.caller.options.ingest_patience_s)
        topology = self._topology or await self._read_topology(backoff)
        head = storage_pb2.IngestRequest(
            dataset=schema.key,
            producer=producer,
            batch=batch,
            added=schema.added,
            deletes=deletes,
        )
        head.first_epoch = topology.range_epoch if is_new else 1
        if unchanged_since is not None:
            head.unchanged_since.SetInParent()  # An empty one is a condition, too.
            head.unchanged_since.MergeFrom(cursor_to_pb(unchanged_since))
        while True:
            head.range_epoch = topology.range_epoch
            try:
                parts = placement.split_by_owner(topology, schema, table, partitions=partitions)
                return await self._send_parts(topology, parts, head, backoff=backoff)
            except RangesChanged as error:
                await backoff.after(error)
                topology = await self._learn_ranges(error, backoff)

    async def record(
        self,
        schema: StoredSchema,
        table: pa.Table,
        *,
        producer: str,
        batch: int,
        is_last: bool = False,
    ) -> None:
        """Has the digest of a whole batch recorded, before any of its rows is stored.

        Args:
            schema: of the dataset.
            table: the rows.
            producer: of the batch.
            batch: its number.
            is_last: whether it ends a request, which is recorded, too.

        Raises:
            BatchConflict: another batch has this number.
        """
        backoff = self.caller.backoff(self.caller.options.ingest_patience_s)
        topology = self._topology or await self._read_topology(backoff)
        digest = max(1, await asyncio.to_thread(rows_digest, table) ^ is_last)
        record = storage_pb2.IngestRequest(
            dataset=schema.key, producer=producer, batch=batch, added=schema.added, digest=digest
        )
        home = placement.home_of_producer(topology, schema, producer)
        owner = topology.by_name[placement.owner(topology, home)].address
        nothing = stream_of(table.slice(0, 0))
        await self._send(topology, owner, Bulk(record, nothing), backoff.left_s)

    async def _send_parts(
        self,
        topology: Topology,
        parts: Mapping[str, pa.Table],
        head: storage_pb2.IngestRequest,
        *,
        backoff: Backoff,
    ) -> list[storage_pb2.IngestReply]:
        """Sends each owner its rows; an error about the ranges comes before others."""
        addresses = {node: topology.by_name[node].address for node in parts}
        calls = (
            self._send(topology, addresses[node], Bulk(head, stream_of(rows)), backoff.left_s)
            for node, rows in parts.items()
        )
        replies = []
        with request_id.serving(), spans.span("ingest", owners=len(parts)):
            answers = await asyncio.gather(*calls, return_exceptions=True)
        changed = [reply for reply in answers if isinstance(reply, RangesChanged)]
        for reply in [*changed, *answers]:
            if isinstance(reply, BaseException):
                raise reply
            replies.append(reply)
        is_stale = any(reply.forwarded_rows for reply in replies)
        if is_stale and self._monotonic() - self._read_at > TOPOLOGY_AGE_MIN_S:
            await self._read_topology(backoff)
        return replies

    async def _learn_ranges(self, changed: RangesChanged, backoff: Backoff) -> Topology:
        """A new topology with the ranges of the node that raised the error, or later ones.

        Raises:
            RangesChanged: the error, if no node knows these ranges in time.
        """
        topology = await self._read_topology(backoff)
        while topology.range_epoch < changed.details["range_epoch"]:
            await backoff.after(changed)
            topology = await self._read_topology(backoff)
        return topology

    async def _read_topology(self, backoff: Backoff) -> Topology:
        self._read_at = self._monotonic()
        read = self.caller.call(topology_of, patience_s=backoff.left_s)
        topology = self._topology = await read
        return topology

    async def _send(
        self,
        topology: Topology,
        owner: str,
        request: Bulk[storage_pb2.IngestRequest],
        patience_s: float,
    ) -> storage_pb2.IngestReply:
        async def attempt(node: Connection) -> storage_pb2.IngestReply:
            reply: storage_pb2.IngestReply = await node.unary(STORAGE, "Ingest", request)
            return reply

        direct = self.caller.call_owner(owner, attempt, patience_s=patience_s)
        others = [node.address for node in topology.nodes if node.address != owner]
        may_move = topology.is_replicated or request.head.dataset in SYSTEM_TABLES
        if not may_move or not others:
            return await direct
        calls = [asyncio.create_task(direct)]
        try:
            done, _ = await asyncio.wait(calls, timeout=HEDGE_S)
            if not done:
                hedge = self.caller.call(
                    attempt, patience_s=patience_s, first=random.choice(others)
                )
                calls.append(asyncio.create_task(hedge))
                self.caller.avoided.add(owner)
            return await _first_result(calls)
        finally:
            for call in calls:
                call.cancel()


async def _first_result(calls: Sequence[asyncio.Task[Reply]]) -> Reply:
    """The first result of calls that do the same.

    Raises:
        GalileoError: all have failed, or one has with no `TransientError`.
    """
    waiting = set(calls)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        errors = {call: call.exception() for call in done}
        for call, error in errors.items():
            if error is None or not waiting or not isinstance(error, TransientError):
                return call.result()
