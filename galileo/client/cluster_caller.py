"""The caller of a cluster's nodes, which reads their addresses from the topology."""

from __future__ import annotations

from collections.abc import Iterable

from galileo.dht.topology import Topology, is_address, with_port
from galileo.errors import InputError
from galileo.wire.caller import DEFAULTS, Caller, CallOptions, Connection
from galileo.wire.services import CLUSTER
from galileo.wire.tls_credentials import NO_TLS_FILES, TlsFiles
from galileo.wire.v1 import cluster_pb2

TOPOLOGY_S = 5.0
"""Deadline of a request for the topology."""
ANSWER_S = 300.0
"""Deadline of one attempt whose answer has labels or observations."""
CONDITION_S = 30.0
"""Deadline of a report of a node, which tests Java and the sandbox for samplers."""


def cluster_caller(
    addresses: Iterable[str],
    *,
    options: CallOptions = DEFAULTS,
    keys: TlsFiles = NO_TLS_FILES,
    has_fixed_window: bool = False,
) -> Caller:
    """A caller that continues when the nodes fail whose addresses it was given.

    Args:
        addresses: "host:port" or "host" of at least one node.
        options: times of calls.
        keys: TLS files and token of the client.
        has_fixed_window: as `galileo.wire.channel.Channels`.

    Raises:
        InputError: there is no address, or one is malformed.
    """
    configured = list(addresses)
    if not configured:
        raise InputError("expected the address of at least one node, as 'host:port' or 'host'")
    for address in configured:
        if not isinstance(address, str) or not is_address(with_port(address)):
            raise InputError(
                f"expected an address as 'host:port' or 'host', got {address!r}; several are "
                "arguments of their own",
                parameter="address",
            )
    known = map(with_port, configured)
    return Caller(
        known,
        options=options,
        keys=keys,
        discover=_members,
        has_fixed_window=has_fixed_window,
    )


async def _members(node: Connection) -> list[str]:
    return [member.address for member in (await topology_of(node)).nodes]


async def topology_of(node: Connection) -> Topology:
    """The topology that a node knows."""
    reply = await node.unary(
        CLUSTER, "Topology", cluster_pb2.TopologyRequest(), timeout_s=TOPOLOGY_S
    )
    return Topology.from_json(reply.topology_json)
