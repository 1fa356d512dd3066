"""Asks every node of a cluster how it is; a node that does not answer is a finding, too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from galileo.client.decode import node_status
from galileo.client.results import NodeStatus
from galileo.client.transport import TOPOLOGY_TIMEOUT_S, Transport
from galileo.dht.topology import NodeInfo, Topology
from galileo.errors import GalileoError, NotPermitted
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import cluster_pb2, cluster_pb2_grpc

CONDITION_TIMEOUT_S = 30.0
"""A node tries out Java and containment, which takes seconds on a busy host."""


@dataclass(frozen=True, slots=True)
class CcqProblem:
    """A CCQ that fails, with the error's `kind`, or that is overloaded, with none."""

    ccq_id: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What one node says; sizes in bytes, durations in seconds.

    Attributes:
        name, address: by the topology.
        failure: why it did not answer; then nothing else is known.
        clock_s: by how much its clock is ahead of this machine's.
        clock_within_s: half the time that the question took, by which `clock_s` may be wrong.
        not_ready: why it is not ready, by what is looked at.
        sync_s: that its disk takes to make a small file durable; negative: it refuses.
        java, containment: what is wrong with them; empty: nothing.
        peers_dead: names of the nodes that it does not hear from.
    """

    name: str
    address: str
    failure: str = ""
    status: NodeStatus | None = None
    version: str = ""
    topology_fingerprint: int = 0
    clock_s: float = 0.0
    clock_within_s: float = 0.0
    not_ready: tuple[tuple[str, str], ...] = ()
    disk_free_bytes: int = 0
    disk_size_bytes: int = 0
    sync_s: float = 0.0
    open_files: int = 0
    open_files_max: int = 0
    java: str = ""
    containment: str = ""
    troubled: tuple[CcqProblem, ...] = ()
    cache_bytes_max: int = 0
    spill_bytes_max: int = 0
    ccqs: int = 0
    ccqs_max: int = 0
    durability: str = "fsync"
    peers_dead: tuple[str, ...] = ()


async def conditions(
    addresses: Sequence[str], *, patience_s: float, keys: TlsFiles = NO_TLS_FILES
) -> list[NodeReport]:
    """Reports of all nodes, in the order of the topology.

    Args:
        addresses: of at least one node.
        patience_s: how long to try until one tells the topology.
        keys: what is proved to nodes.

    Raises:
        Unavailable: none does.
        NotPermitted: a node does not tell this to the caller.
    """
    transport = Transport(addresses, patience_s=patience_s, keys=keys)
    try:
        reply = await transport.call(
            lambda channel: cluster_pb2_grpc.ClusterStub(channel).Topology(
                cluster_pb2.TopologyRequest(), timeout=TOPOLOGY_TIMEOUT_S
            )
        )
        topology = Topology.from_json(reply.topology_json)
        return list(await asyncio.gather(*(_report(transport, one) for one in topology.nodes)))
    finally:
        await transport.close()


async def _report(transport: Transport, node: NodeInfo) -> NodeReport:
    try:
        clock_s, within_s = await _clock(transport, node.address)
        status = await _status(transport, node.address, is_whole=True)
        topology = await transport.ask(
            node.address,
            lambda channel: cluster_pb2_grpc.ClusterStub(channel).Topology(
                cluster_pb2.TopologyRequest(), timeout=TOPOLOGY_TIMEOUT_S
            ),
        )
    except NotPermitted:
        raise
    except GalileoError as error:
        return NodeReport(
            node.name, node.address, failure=error.details.get("reason") or error.message
        )
    fingerprint = Topology.from_json(topology.topology_json).fingerprint
    return replace(
        _of(node, status),
        topology_fingerprint=fingerprint,
        clock_s=clock_s,
        clock_within_s=within_s,
    )


async def _status(transport: Transport, address: str, *, is_whole: bool) -> cluster_pb2.NodeStatus:
    request = cluster_pb2.StatusRequest(local=True, condition=is_whole)
    reply = await transport.ask(
        address,
        lambda channel: cluster_pb2_grpc.ClusterStub(channel).Status(
            request, timeout=CONDITION_TIMEOUT_S
        ),
    )
    found: cluster_pb2.NodeStatus = reply.nodes[0]
    return found


async def _clock(transport: Transport, address: str) -> tuple[float, float]:
    """The node's clock against this one: the second question meets an open connection."""
    await _status(transport, address, is_whole=False)
    before = time.time()
    status = await _status(transport, address, is_whole=False)
    after = time.time()
    return status.wall_s - (before + after) / 2, (after - before) / 2


def _of(node: NodeInfo, value: cluster_pb2.NodeStatus) -> NodeReport:
    found = value.condition
    return NodeReport(
        name=node.name,
        address=node.address,
        status=node_status(value),
        version=found.version,
        not_ready=tuple(sorted(found.not_ready.items())),
        disk_free_bytes=found.disk_free_bytes,
        disk_size_bytes=found.disk_size_bytes,
        sync_s=found.sync_s,
        open_files=found.open_files,
        open_files_max=found.open_files_max,
        java=found.java,
        containment=found.containment,
        troubled=tuple(CcqProblem(one.ccq_id, one.kind, one.message) for one in found.troubled),
        cache_bytes_max=found.cache_bytes_max,
        spill_bytes_max=found.spill_bytes_max,
        ccqs=found.ccqs,
        ccqs_max=found.ccqs_max,
        durability=found.durability,
        peers_dead=tuple(found.peers_dead),
    )
