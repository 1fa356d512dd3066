"""The internal service: what nodes ask each other, by the codec of `galileo.wire.messages`.

A call is a method here, a row in `galileo.rpc.policy.INTERNAL_POLICIES`, and where its parameters
and its result are values of its own, their dataclasses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from galileo.errors import ConfigError
from galileo.model.retention import Removed
from galileo.node.definitions import (
    AnyChange,
    DefinitionRow,
    DefinitionsPage,
    Position,
    decode,
    encode,
)
from galileo.node.replication.protocol import CommitRange, Envelope, RangeDigest
from galileo.node.storage_node import StorageNode
from galileo.replication.values import Member
from galileo.rpc.error_mapping import Context, unary
from galileo.rpc.policy import INTERNAL_SERVICE
from galileo.wire.typed_service import TypedCall, TypedService


class Internal:
    """Answers the calls of other nodes."""

    def __init__(self, node: StorageNode) -> None:
        self._node = node

    async def replicate(self, envelopes: Sequence[Envelope]) -> None:
        """Takes messages of replicas."""
        await self._node.replicas.receive(envelopes)

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

    async def change_definition(self, change: AnyChange) -> DefinitionRow:
        """Carries a change of definitions out, as the leader of the system partition."""
        return DefinitionRow(change.name, encode(await self._node.system.carry_out(change)))

    async def definitions_after(self, position: Position) -> DefinitionsPage:
        """The definitions that were changed after a position, as the leader knows them."""
        return await self._node.system.page(position)

    async def learn_definition(self, row: DefinitionRow) -> None:
        """Keeps what was just agreed on about a name."""
        await self._node.learn_definitions({row.name: decode(row.data)})

    async def known_definition(self, name: str) -> DefinitionRow:
        """What this node knows of a name."""
        return DefinitionRow(name, encode(self._node.known_definition(name)))

    async def known_definitions(self, after: str) -> Sequence[DefinitionRow]:
        """What this node knows of the names behind one, some of them."""
        return await self._node.system.known_after(after)

    async def drop_generations(self, name: str, generations: int) -> Removed:
        """Drops the first generations of a name at this node."""
        return await self._node.drop(name, generations)


SERVICE = TypedService(INTERNAL_SERVICE, Internal)
PROTOCOL = int.from_bytes(SERVICE.digest[:3]) << 8 | 9
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


def add_internal(servicer: object, server: grpc.aio.Server) -> None:
    """Has a server answer the internal calls.

    Args:
        servicer: has the methods of `Internal`.
        server: has not started yet.
    """
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _handler(call, getattr(servicer, name)), request_deserializer=call.decode
        )
        for name, call in SERVICE.calls.items()
    }
    server.add_registered_method_handlers(SERVICE.full_name, handlers)


def _handler(
    call: TypedCall[..., Any], method: Callable[..., Awaitable[Any]]
) -> Callable[[Sequence[Any], Context], Awaitable[bytes]]:
    """Answers a call, whose arguments were decoded, with the method that it names."""

    async def answer(_: None, arguments: Sequence[Any], context: Context) -> bytes:
        return call.encode_answer(await method(*arguments))

    guarded = unary(answer)
    return lambda arguments, context: guarded(None, arguments, context)
