"""Reports of the condition of every node of a cluster, also of nodes that do not answer."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from galileo.client.cluster_caller import CONDITION_S, cluster_caller, topology_of
from galileo.client.decode import node_status
from galileo.client.results import NodeStatus
from galileo.dht import placement
from galileo.dht.rack_spread import RackSpread, rack_spread
from galileo.dht.topology import NodeInfo, Topology
from galileo.errors import GalileoError, NotPermitted
from galileo.wire.alike import alike
from galileo.wire.caller import Caller, CallOptions, Connection
from galileo.wire.services import CLUSTER
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import cluster_pb2


@dataclass(frozen=True, slots=True)
class CcqProblem:
    """A continuous query that fails, with the `kind` of its error; empty: it is overloaded."""

    ccq_id: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The report of one node; sizes in bytes, durations in seconds.

    Attributes:
        name, address: by the topology.
        failure: why it did not answer; then all else is empty.
        protocol: number of the messages that it exchanges with other nodes.
        clock_s: by how much its clock is ahead of this machine's.
        clock_within_s: half the round trip, the possible error of `clock_s`.
        not_ready: by check why it is not ready.
        sync_s: time for its disk to make a small file durable; negative: the write failed.
        java, containment: the problem with Java and with the sandbox; empty: none.
        peers_dead: names of the nodes from which it receives no heartbeats.
        relative_load: its rows over its mean by weight, if all groups store the same.
        rack_spread: of its group, if copies are spread over racks.
        replicas: copies of each partition; 0 if the node did not answer.
    """

    name: str
    address: str
    failure: str = ""
    status: NodeStatus | None = None
    version: str = ""
    protocol: int = 0
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
    relative_load: float = 1.0
    rack_spread: RackSpread | None = None
    replicas: int = 0


async def conditions(
    addresses: Sequence[str], *, patience_s: float, keys: TlsFiles = NO_TLS_FILES
) -> list[NodeReport]:
    """Reports of all nodes, in the order of the topology.

    Args:
        addresses: of at least one node.
        patience_s: how long to retry the call for the topology.
        keys: TLS files and token.

    Raises:
        Unavailable: no node answered.
        NotPermitted: the caller is no administrator.
    """
    caller = cluster_caller(addresses, options=CallOptions(patience_s=patience_s), keys=keys)
    try:
        topology = await caller.call(topology_of)
        return list(await asyncio.gather(*(_report(caller, node) for node in topology.nodes)))
    finally:
        await caller.close()


async def _report(caller: Caller, node: NodeInfo) -> NodeReport:
    try:
        clock_s, within_s = await caller.ask(node.address, _clock)
        status = await caller.ask(node.address, functools.partial(_status, is_whole=True))
        topology = await caller.ask(node.address, topology_of)
        spread = rack_spread(topology.group_of(node.name), replicas=topology.replicas)
    except NotPermitted:
        raise
    except GalileoError as error:
        return NodeReport(
            node.name, node.address, failure=error.details.get("reason") or error.message
        )
    return _answered(
        node,
        status,
        topology_fingerprint=topology.fingerprint,
        relative_load=_relative_load(topology, node.name),
        rack_spread=spread,
        replicas=topology.replicas,
        clock_s=clock_s,
        clock_within_s=within_s,
    )


def _relative_load(topology: Topology, node: str) -> float:
    """See `NodeReport`; with copies, leaders spread by themselves."""
    return 1.0 if topology.is_replicated else placement.relative_loads(topology)[node]


async def _status(node: Connection, *, is_whole: bool) -> cluster_pb2.NodeStatus:
    request = cluster_pb2.StatusRequest(local=True, condition=is_whole)
    reply = await node.unary(CLUSTER, "Status", request, timeout_s=CONDITION_S)
    condition: cluster_pb2.NodeStatus = reply.nodes[0]
    return condition


async def _clock(node: Connection) -> tuple[float, float]:
    """How far the node's clock is ahead, and the error; the first call opens the connection."""
    await _status(node, is_whole=False)
    before = time.time()
    status = await _status(node, is_whole=False)
    after = time.time()
    return status.wall_s - (before + after) / 2, (after - before) / 2


def _answered(node: NodeInfo, value: cluster_pb2.NodeStatus, **others: Any) -> NodeReport:
    """The report of a node that has answered; `others`: what its status does not say."""
    condition = value.condition
    return alike(
        NodeReport,
        condition,
        **others,
        name=node.name,
        address=node.address,
        failure="",
        status=node_status(value),
        not_ready=tuple(sorted(condition.not_ready.items())),
        troubled=tuple(
            CcqProblem(problem.ccq_id, problem.kind, problem.message)
            for problem in condition.troubled
        ),
    )
