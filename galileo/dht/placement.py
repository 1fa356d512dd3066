"""Placement of blocks: pure functions of a topology.

Tier 1, locality: the geohash range that contains a block's cell selects its group. Tier 2, balance:
a hash of the block selects one of the group's partitions, and weighted rendezvous hashing maps
partitions to the initial nodes of the group, so that a node that comes or goes moves only its own
share (Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005). A moved
partition is on the node of its last move.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.dht.topology import NodeInfo, Topology
from galileo.geo import geohash
from galileo.hashing import mix64, text64
from galileo.model import paths
from galileo.model.schema import Schema

Ranges = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]


def partitions_from_cells(
    topology: Topology, schema: Schema, cells: geohash.Cells, buckets: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """The partition of each block, given its cell and the start of its time bucket."""
    groups = _groups_from_cells(topology, cells, schema.geohash_precision)
    seed = np.uint64(text64("block", schema.name))
    hashes = mix64(mix64(cells ^ seed) ^ buckets.view(np.uint64))
    within = (hashes % np.uint64(topology.partitions_per_group)).astype(np.int32)
    placed: npt.NDArray[np.int32] = groups * np.int32(topology.partitions_per_group) + within
    return placed


def split_by_owner(topology: Topology, schema: Schema, table: pa.Table) -> dict[str, pa.Table]:
    """The rows of each node that owns some, in their order; a table that is one owner's is itself.

    Args:
        topology: of the cluster.
        schema: of the dataset.
        table: normalised observations.
    """
    by_partition = owners(topology)
    nodes = sorted(set(by_partition.values()))
    if len(nodes) == 1 and table.num_rows:
        return {nodes[0]: table}
    cells = paths.cells_from_table(schema, table)
    buckets = paths.buckets_from_table(schema, table)
    partitions = partitions_from_cells(topology, schema, cells, buckets)
    numbers = np.array([nodes.index(by_partition[p]) for p in topology.partitions])
    of_row = numbers[partitions]
    present = np.unique(of_row).tolist()
    if len(present) == 1:
        return {nodes[present[0]]: table}
    return {nodes[n]: table.take(pa.array(np.flatnonzero(of_row == n))) for n in present}


def candidates(topology: Topology, schema: Schema, ranges: Ranges | None) -> frozenset[int]:
    """The partitions that can hold a cell of `ranges` (sorted, half-open); None means all."""
    if ranges is None:
        return frozenset(topology.partitions)
    shift = np.uint64(5 * (geohash.PRECISION_MAX - schema.geohash_precision))
    starts = topology.range_starts
    first = np.searchsorted(starts, ranges[0] << shift, side="right") - 1
    last = np.searchsorted(starts, (ranges[1] << shift) - np.uint64(1), side="right") - 1
    touched = np.zeros(len(starts) + 1, dtype=np.int64)
    np.add.at(touched, first, 1)
    np.add.at(touched, last + 1, -1)
    hit = np.flatnonzero(np.cumsum(touched)[:-1] > 0)
    groups = {topology.ranges[position][1] for position in hit.tolist()}
    count = topology.partitions_per_group
    return frozenset(p for group in groups for p in range(group * count, (group + 1) * count))


def owner(topology: Topology, partition: int) -> str:
    """The name of the node that stores a partition."""
    return owners(topology)[partition]


@lru_cache(maxsize=16)
def owners(topology: Topology) -> Mapping[int, str]:
    """The node of every partition."""
    count = topology.partitions_per_group
    drawn = {
        partition: _winner(topology.groups[partition // count].founders, partition)
        for partition in topology.partitions
    }
    return drawn | {move.partition: move.node for move in topology.moved}


def share(topology: Topology, node: str) -> tuple[int, ...]:
    """The partitions that weighted rendezvous hashing over all nodes of the group gives to a node,
    and that it does not have.

    Moving them balances the group by the weights of its nodes, and moves nothing else.

    Raises:
        ConfigError: the node does not exist.
    """
    number = topology.groups.index(topology.group_of(node))
    count, now = topology.partitions_per_group, owners(topology)
    return tuple(
        partition
        for partition in range(number * count, (number + 1) * count)
        if now[partition] != node and _winner(topology.groups[number].nodes, partition) == node
    )


@lru_cache(maxsize=16)
def partitions_by_node(topology: Topology) -> Mapping[str, frozenset[int]]:
    """The partitions of every node; a node may have none."""
    owned: dict[str, set[int]] = {node.name: set() for node in topology.nodes}
    for partition, node in owners(topology).items():
        owned[node].add(partition)
    return {node: frozenset(partitions) for node, partitions in owned.items()}


def _groups_from_cells(
    topology: Topology, cells: geohash.Cells, precision: int
) -> npt.NDArray[np.int32]:
    shift = np.uint64(5 * (geohash.PRECISION_MAX - precision))
    position = np.searchsorted(topology.range_starts, cells << shift, side="right") - 1
    group_of_range = np.array([group for _, group in topology.ranges], dtype=np.int32)
    return group_of_range[position]


def _winner(nodes: Sequence[NodeInfo], partition: int) -> str:
    def score(name: str, weight: float) -> float:
        uniform = (text64("partition", partition, name) + 1) / (2**64 + 1)
        return -weight / math.log(uniform)

    return max(nodes, key=lambda node: (score(node.name, node.weight), node.name)).name
