"""The internal service: what nodes ask each other, by the codec of `galileo.wire.messages`.

A call is a method here, a row in `galileo.rpc.policy.INTERNAL_POLICIES`, and where its parameters
and its result are values of its own, their dataclasses.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pyarrow as pa

from galileo.ccq.placement import CcqChange
from galileo.election.ranking import UsageStatistics
from galileo.errors import ConfigError
from galileo.model.retention import Removed
from galileo.model.schema import unknown_dataset
from galileo.model.system_rows import LookUp, OfferRow, Outcome, Page, Position, Row
from galileo.node.definitions import DefinitionChange
from galileo.node.replication.protocol import CommitRange, Envelope, RangeDigest
from galileo.node.sampler_rows import SamplerChange
from galileo.node.storage_node import StorageNode
from galileo.node.system_tables import SystemTable
from galileo.replication.values import Member
from galileo.rpc.error_mapping import Context, streaming, unary
from galileo.rpc.policy import INTERNAL_SERVICE
from galileo.wire.typed_service import TypedCall, TypedService, bounded_head

REPLICATE_HEAD_BYTES_MAX = 1 << 20
"""Bytes of messages of replicas beside their frames."""
AnyChange: TypeAlias = DefinitionChange | SamplerChange | CcqChange | OfferRow | LookUp
"""Changes of rows of all system tables."""


class Internal:
    """Answers the calls of other nodes.

    Args:
        node: this node.
        usage: measures its load.
    """

    def __init__(self, node: StorageNode, usage: Callable[[], UsageStatistics]) -> None:
        self._node = node
        self._usage = usage

    async def replicate(self, envelopes: Sequence[Envelope]) -> None:
        """Takes messages of replicas."""
        await self._node.replicas.receive(envelopes)

    @bounded_head(REPLICATE_HEAD_BYTES_MAX)
    async def replicate_frames(self, envelopes: Sequence[Envelope]) -> None:
        """Takes messages of replicas that are large, as those with many frames are."""
        await self.replicate(envelopes)

    async def digests(
        self, member: Member, ranges: Sequence[CommitRange]
    ) -> Sequence[RangeDigest | None]:
        """The digest of each range at a directory of this node; None where it does not know it."""
        replicas = self._node.replicas
        if member != replicas.me:
            return [None] * len(ranges)
        return replicas.comparison.digests(ranges)

    async def change_row(self, table: str, change: AnyChange) -> Row:
        """Changes a row of a system table, as the leader of the system partition."""
        return await self._table(table).answer(change)

    async def change_rows(self, table: str, changes: Sequence[AnyChange]) -> Sequence[Outcome]:
        """Changes rows of a system table, as the leader of the system partition."""
        return await self._table(table).answer_all(changes)

    async def rows_after(self, table: str, position: Position, topic: str) -> Page:
        """The rows of a topic that were changed after a position, as the leader knows them."""
        return await self._table(table).page(position, topic)

    async def learn_row(self, table: str, row: Row) -> None:
        """Keeps what was just agreed on about a name."""
        await self._table(table).learn_row(row)

    async def known_rows(self, table: str, after: str) -> Sequence[Row]:
        """What this node knows of the names behind one, some of them."""
        return await self._table(table).known_after(after)

    async def known_row(self, table: str, name: str) -> Row:
        """What this node knows of a name."""
        return self._table(table).known_row(name)

    async def usage(self) -> UsageStatistics:
        """The load of this node, for elections."""
        return self._usage()

    def _table(self, key: str) -> SystemTable[Any]:
        table = self._node.system_tables.get(key)
        if table is None:
            raise unknown_dataset(key, sorted(self._node.system_tables))
        return table

    async def sampler_archive(self, digest: str) -> pa.Buffer:
        """The archive of a sampler, as far as this node has it."""
        return pa.py_buffer(await self._node.samplers.own_archive(digest))

    async def drop_generations(self, name: str, generations: int) -> Removed:
        """Drops the first generations of a name at this node."""
        return await self._node.drop(name, generations)


SERVICE = TypedService(INTERNAL_SERVICE, Internal)
PROTOCOL = int.from_bytes(SERVICE.digest[:3]) << 8 | 10
"""Number of the messages between nodes; nodes refuse any other. Its last byte is raised with each
change of messages in protobuf, the others are of the types of the internal service."""


def check_protocol(protocol: int, *, node: str) -> None:
    """Raises ConfigError if another node speaks another protocol."""
    if protocol != PROTOCOL:
        raise ConfigError(
            f"expected a node of protocol {PROTOCOL}, got protocol {protocol} of node {node!r}; "
            "install the same version of Galileo on all nodes",
            node=node,
            expected=PROTOCOL,
        )


def add_internal(
    servicer: object, server: grpc.aio.Server, service: TypedService = SERVICE
) -> None:
    """Has a server answer the internal calls.

    Args:
        servicer: has the methods of `Internal`.
        server: has not started yet.
        service: of which they are.
    """
    handlers = {
        name: _handler(call, getattr(servicer, name)) for name, call in service.calls.items()
    }
    server.add_registered_method_handlers(service.full_name, handlers)


def _handler(
    call: TypedCall[..., Any], method: Callable[..., Any]
) -> grpc.RpcMethodHandler[Any, Any]:
    """Answers a call, whose arguments were decoded, with the method that it names."""

    async def answer(_: None, arguments: Sequence[Any], context: Context) -> bytes:
        return call.encode_answer(await method(*arguments))

    async def parts(
        _: None, arguments: Sequence[Any], context: Context
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(method(*arguments)) as answers:
            async for part in answers:
                yield call.encode_answer(part)

    if call.is_stream:
        return grpc.unary_stream_rpc_method_handler(
            partial(streaming(parts), None), request_deserializer=call.decode
        )
    return grpc.unary_unary_rpc_method_handler(
        partial(unary(answer), None), request_deserializer=call.decode
    )
