"""Calls to other nodes over gRPC: those of the internal service, and those in protobuf."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor

from galileo.dht.topology import Topology
from galileo.dht.topology_state import TopologyState
from galileo.errors import Unavailable
from galileo.rpc.continuous import WAIT_MAX_S
from galileo.rpc.gossip import GossipReply, GossipRequest
from galileo.rpc.internal import SERVICE, Internal
from galileo.rpc.internal_calls import REGISTER_QUERIES, InternalCalls
from galileo.wire.caller import Caller, Connection, Stream
from galileo.wire.services import CLUSTER
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.typed_service import Answer, P, TypedCall
from galileo.wire.v1 import cluster_pb2

DEAD_CHECK_S = 1.0
"""Pause between two looks at whether a node is dead that owes the next part of a stream."""


CALL_S = 5.0
"""Deadline of a call, unless it has one of the following."""
GOSSIP_S = 1.0
"""Deadline of an exchange of gossip."""
SAMPLER_S = 10.0
"""Deadline of a call that may bring the archive of a sampler."""
COMMIT_S = 30.0
"""Deadline of the commit of a batch."""
SCAN_S = 60.0
"""Deadline of a call that reads or deletes data; that of the next part of a stream, without the
time of a slow local reader."""
RETENTION_S = 300.0
"""Deadline of the retention of a dataset."""
FETCH_S = SCAN_S + WAIT_MAX_S
"""Time to the next part of an update, for which a client may wait `WAIT_MAX_S`."""
FRAMES_S = 10.0
"""Deadline of messages of replicas with frames."""
REMOVAL_PART_S = 1_800.0
"""Time to the next progress message of a removal."""
DEADLINES_S: Mapping[str, float] = MappingProxyType(
    {
        "apply_retention": RETENTION_S,
        "change_row": SAMPLER_S,
        "fetch": FETCH_S,
        "own_sampler_archive": SAMPLER_S,
        **dict.fromkeys(("commit", "find_batches"), COMMIT_S),
        **dict.fromkeys(("analyse", "scan", "scan_small"), SCAN_S),
        **dict.fromkeys(("read", "read_table", "read_executions"), SCAN_S),
    }
)
"""Deadline of an internal call, or of the next part of its answer, by its name; others have
`CALL_S`."""

GOSSIP = SERVICE.call(Internal.gossip)


class GrpcPeers(InternalCalls):
    """Clients of the other nodes, one channel each; calls of dead nodes fail at once."""

    def __init__(
        self,
        topology: Topology | TopologyState,
        *,
        is_dead: Callable[[str], bool],
        keys: TlsFiles = NO_TLS_FILES,
    ) -> None:
        super().__init__()
        self._topology = TopologyState.of(topology)
        self._is_dead = is_dead
        self._caller = Caller(keys=keys)

    async def close(self) -> None:
        await self._caller.close()

    def address(self, node: str) -> str:
        """The address of a node.

        Raises:
            Unavailable: this node's configuration does not name it, unlike that of others.
        """
        member = self._topology.current.by_name.get(node)
        if member is None:
            raise Unavailable(
                f"this node does not know the node {node}; give all nodes the same [cluster] table "
                "and restart this one, or ask another",
                node=node,
                after_s=1.0,
            )
        return member.address

    async def register_queries(self, node: str, dataset: str, texts: Sequence[str]) -> None:
        """Registers continuous queries at a node."""
        request = REGISTER_QUERIES.encode(dataset, texts)
        await self.ask(node, REGISTER_QUERIES, request, timeout_s=SCAN_S)

    async def status(self, node: str) -> cluster_pb2.StatusReply:
        request = cluster_pb2.StatusRequest(local=True)
        reply: cluster_pb2.StatusReply = await self._call(node, CLUSTER, "Status", request)
        return reply

    async def drain(self, node: str, request: cluster_pb2.DrainRequest) -> cluster_pb2.DrainReply:
        reply: cluster_pb2.DrainReply = await self._call(node, CLUSTER, "Drain", request)
        return reply

    def leave(
        self, node: str, request: cluster_pb2.RemoveNodeRequest
    ) -> AsyncGenerator[cluster_pb2.RemoveNodeProgress, None]:
        """Has a node leave the cluster."""
        return self._stream(node, CLUSTER, "RemoveNode", request, REMOVAL_PART_S)

    async def ask(
        self, node: str, call: TypedCall[..., Answer], request: bytes, *, timeout_s: float
    ) -> Answer:
        """Makes an internal call with an encoded request, also of a dead node."""
        answer = await self._connection(node).exchange(call.path, request, timeout_s=timeout_s)
        return call.decode_answer(answer)

    async def _ask(
        self, node: str, call: TypedCall[P, Answer], *arguments: P.args, **named: P.kwargs
    ) -> Answer:
        """Makes an internal call of a node that is not dead."""
        request = call.encode(*arguments, **named)
        timeout_s = DEADLINES_S.get(call.name, CALL_S)
        answer = await self._live(node).exchange(call.path, request, timeout_s=timeout_s)
        return call.decode_answer(answer)

    async def _parts(
        self, node: str, call: TypedCall[P, Answer], *arguments: P.args, **named: P.kwargs
    ) -> AsyncGenerator[Answer, None]:
        """Makes an internal call of a node that is not dead, whose answer comes in parts."""
        request, part_s = call.encode(*arguments, **named), DEADLINES_S.get(call.name, CALL_S)
        with self._live(node).exchange_parts(call.path, request, part_s=part_s) as stream:
            while (part := await self._next_part(node, stream)) is not None:
                yield call.decode_answer(part)

    async def exchange(self, node: str, request: GossipRequest) -> GossipReply:
        """Sends gossip, also to dead nodes, so that a restarted one is detected."""
        timeout_s = GOSSIP_S
        return await self.ask(node, GOSSIP, GOSSIP.encode(request), timeout_s=timeout_s)

    async def _call(
        self,
        node: str,
        service: ServiceDescriptor,
        method: str,
        request: Any,
        timeout_s: float | None = None,
    ) -> Any:
        timeout_s = timeout_s or CALL_S
        return await self._live(node).unary(service, method, request, timeout_s=timeout_s)

    async def _stream(
        self,
        node: str,
        service: ServiceDescriptor,
        method: str,
        request: Any,
        part_s: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        part_s = part_s or SCAN_S
        with self._live(node).stream(service, method, request, part_s=part_s) as stream:
            while (part := await self._next_part(node, stream)) is not None:
                yield part

    async def _next_part(self, node: str, stream: Stream) -> Any:
        """The next part of a stream; None at its end.

        Raises:
            Unavailable: the node was declared dead while it was waited for.
        """
        reading = asyncio.ensure_future(stream.read())
        try:
            while not (await asyncio.wait([reading], timeout=DEAD_CHECK_S))[0]:
                self._check_live(node)
            return reading.result()
        finally:
            reading.cancel()

    def _live(self, node: str) -> Connection:
        self._check_live(node)
        return self._connection(node)

    def _check_live(self, node: str) -> None:
        if self._is_dead(node):
            raise Unavailable(
                f"node {node} is unreachable; try again when it is back", node=node, after_s=1.0
            )

    def _connection(self, node: str) -> Connection:
        address = self.address(node)
        return self._caller.connection(address, asked=f"{node} at {address}", name=f"node {node}")
