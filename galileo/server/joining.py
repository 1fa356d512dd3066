"""The start of a node with a topology that was changed by command, and its joining of a cluster."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from galileo.config import Config
from galileo.dht.topology import Topology
from galileo.dht.topology_state import TopologyState
from galileo.errors import ConfigError, GalileoError, TransientError
from galileo.rpc.internal import PROTOCOL
from galileo.server.topology_register import (
    TOPOLOGY_KIND,
    joined_state,
    load_state,
    save_state,
    topology_of,
)
from galileo.storage.store import Store
from galileo.wire.caller import Caller
from galileo.wire.services import CLUSTER
from galileo.wire.v1 import cluster_pb2

PLACEMENT, REMOVED = "placement", "removed"
RETRY_S = 1.0
CALL_S = 30.0

log = logging.getLogger(__name__)


async def resolve_topology(config: Config, store: Store) -> Config:
    """The configuration with the topology that the node last learned, at the file's addresses.

    A node that joins asks a node of the cluster to add it, and waits for one that can.

    Raises:
        ConfigError: the file does not match the node's data, or the node was removed, or the nodes
            of the cluster speak another protocol.
        InputError: the cluster refuses the node.
    """
    if store.load_record(TOPOLOGY_KIND, REMOVED) is not None:
        raise ConfigError(
            f"node {config.node.name!r} was removed from its cluster, and {config.node.directory} "
            "has none of its data any more; delete this directory, and join the cluster anew with "
            "node.join"
        )
    if config.is_joining and load_state(store) is None:
        await _join(config, store)
    state = load_state(store)
    if not config.is_joining:
        _keep_placement(store, config.topology)
    if state is None or not state.chosen.number:
        return config
    topology = topology_of(state.chosen.entry)
    if not config.is_joining and config.topology.fingerprint != topology.fingerprint:
        raise ConfigError(
            "the [cluster] table does not match this node's data, which belongs to another "
            f"cluster, {topology.cluster!r}; restore the table that it began with"
        )
    if config.node.name not in topology.by_name:
        known = ", ".join(topology.by_name)
        raise ConfigError(
            f"expected node.name to be a node of cluster {topology.cluster!r} ({known}), got "
            f"{config.node.name!r}; it was removed, or was named otherwise when it joined"
        )
    address = config.node.address or config.topology.by_name[config.node.name].address
    node, last = replace(config.node, address=address), TopologyState(topology)
    if not config.is_joining:
        # The topology has the addresses with which nodes began; those that have moved are named in
        # the file. Where all have moved, no node could tell this one.
        for one in config.topology.nodes:
            last.relocate(one.name, one.address, epoch=0)
    return replace(config, topology=last.current, is_joining=False, node=node)


async def _join(config: Config, store: Store) -> None:
    """Has the node added to the cluster, and stores the topology.

    A repeated request, after a crash, has the same identity and changes nothing.
    """
    request = cluster_pb2.AddNodeRequest(
        name=config.node.name,
        address=config.topology.by_name[config.node.name].address,
        group=config.node.group,
        weight=config.node.weight,
        rack=config.node.rack,
        identity=store.identity,
        protocol=PROTOCOL,
    )
    caller = Caller(keys=config.keys)
    try:
        while True:
            for address in config.node.join:
                try:
                    reply = await caller.connection(address).unary(
                        CLUSTER, "AddNode", request, timeout_s=CALL_S
                    )
                except TransientError as error:
                    log.warning("waiting to join the cluster of %s: %s", address, error)
                    continue
                await asyncio.to_thread(save_state, store, joined_state(reply.topology))
                log.info("joined the cluster of %s", address)
                return
            await asyncio.sleep(RETRY_S)
    finally:
        await caller.close()


def _keep_placement(store: Store, topology: Topology) -> None:
    """Stores the placement of blocks, or compares it with the stored one.

    Raises:
        ConfigError: the placement has changed, so that blocks would not be found.
    """
    stored = store.load_record(TOPOLOGY_KIND, PLACEMENT)
    now = topology.placement_json.encode()
    if stored == now:
        return
    if stored is not None and store.schemas():
        raise ConfigError(
            "the [cluster] table does not match this node's data: the groups, their nodes with "
            "names, weights and ordinals, the ranges and partitions_per_group must not change once "
            f"there is data; expected {stored.decode()}, got {now.decode()}"
        )
    store.save_record(TOPOLOGY_KIND, PLACEMENT, now)


def mark_removed(store: Store) -> None:
    """Records that this node was removed, so that it does not start again."""
    try:
        store.save_record(TOPOLOGY_KIND, REMOVED, b"{}")
    except GalileoError as error:
        log.warning("could not record the removal of this node: %s", error)
