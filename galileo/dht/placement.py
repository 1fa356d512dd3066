"""Placement of blocks: pure functions of a topology.

Tier 1, locality: the geohash range that contains a block's cell selects its group. Tier 2, balance:
a hash of the block selects one of the group's partitions, and rendezvous hashing with bounded loads
(Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018) maps
partitions to the initial nodes of the group. Every node has a quota, its share by weight rounded
down or up; a partition goes to the node that scores highest for it among those that do not have
their quota of partitions with higher scores. Scores and quotas are integers, so all machines agree.

A partition is on the node that leads it; before one does, on the node that founds it.

Where ranges are cut anew, rows stay in the partitions where they are. A block has one partition in
each *range epoch*; it differs by the group alone, because tier 2 is the same in all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.dht.rack_spread import draw_by_score, rank_nodes, rounded
from galileo.dht.topology import SYSTEM, Group, NodeInfo, RangeMap, Topology, first_cells
from galileo.geo import geohash
from galileo.hashing import mix64, text64
from galileo.model import paths
from galileo.model.schema import Schema, StoredSchema
from galileo.model.table import Table, hashes_of, partitions_of

Ranges = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]


def partitions_from_cells(
    topology: Topology, schema: Schema, cells: geohash.Cells, buckets: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """The partition of new blocks, given the cell and the start of the time bucket of each."""
    groups = _groups_from_cells(_ranges(topology, schema), cells, schema.geohash_precision)
    seed = np.uint64(text64("block", schema.name))
    hashes = mix64(mix64(cells ^ seed) ^ buckets.view(np.uint64))
    within = (hashes % np.uint64(topology.partitions_per_group)).astype(np.int32)
    placed: npt.NDArray[np.int32] = groups * np.int32(topology.partitions_per_group) + within
    return placed


def _ranges(topology: Topology, schema: Schema) -> RangeMap:
    """The ranges that place new blocks: of a keyed dataset, those of its epoch, if it is known."""
    if schema.is_keyed and 0 < schema.range_epoch < topology.range_epoch:
        return topology.former_ranges[schema.range_epoch - 1]
    return topology.ranges


def earlier_partitions(
    topology: Topology, schema: Schema, cells: geohash.Cells, *, partition: int, epoch: int
) -> npt.NDArray[np.int32]:
    """The partition that each block of a partition had in an earlier range epoch."""
    count = topology.partitions_per_group
    ranges = topology.former_ranges[epoch - 1]
    groups = _groups_from_cells(ranges, cells, schema.geohash_precision)
    former: npt.NDArray[np.int32] = groups * np.int32(count) + np.int32(partition % count)
    return former


def readable_partitions(topology: Topology) -> frozenset[int]:
    """The partitions that can have rows: those of groups that have a range, or had one."""
    groups = {group for ranges in topology.readable_ranges for _, group in ranges}
    return frozenset(p for group in groups for p in partitions_of_group(topology, group))


def placed(topology: Topology, schema: StoredSchema) -> Collection[int]:
    """The partitions that can have rows of a dataset or table."""
    return schema.placed if isinstance(schema, Table) else readable_partitions(topology)


@lru_cache(maxsize=16)
def ranges_hash(topology: Topology) -> int:
    """A number that changes with the ranges that `candidates` looks at."""
    return text64("ranges", topology.partitions_per_group, topology.readable_ranges)


def split_by_owner(
    topology: Topology,
    schema: StoredSchema,
    table: pa.Table,
    *,
    partitions: npt.NDArray[np.int32] | None = None,
) -> dict[str, pa.Table]:
    """The rows of each node that owns some, in their order; a table that is one owner's is itself.

    Args:
        topology: of the cluster.
        schema: of the dataset or table.
        table: normalised observations, or versions.
        partitions: of the rows, if they are known.
    """
    if isinstance(schema, Table) and schema.first_partition:
        return {owner(topology, SYSTEM): table}
    by_partition = owners(topology)
    nodes = sorted(set(by_partition.values()))
    if len(nodes) == 1 and table.num_rows:
        return {nodes[0]: table}
    if partitions is None:
        partitions = partitions_of_rows(topology, schema, table)
    numbers = np.array([nodes.index(by_partition[p]) for p in topology.partitions])
    of_row = numbers[partitions]
    present = np.unique(of_row).tolist()
    if len(present) == 1:
        return {nodes[present[0]]: table}
    return {nodes[n]: table.take(pa.array(np.flatnonzero(of_row == n))) for n in present}


def partitions_of_rows(
    topology: Topology, schema: StoredSchema, rows: pa.Table
) -> npt.NDArray[np.int32]:
    """The partition of each normalised row."""
    if isinstance(schema, Table):
        return partitions_of(schema, hashes_of(schema, rows))
    assert isinstance(schema, Schema), "neither a dataset nor a table"
    cells = paths.cells_from_table(schema, rows)
    return partitions_from_cells(topology, schema, cells, paths.buckets_from_table(schema, rows))


def candidates(topology: Topology, schema: Schema, ranges: Ranges | None) -> frozenset[int]:
    """The partitions that can hold a cell of `ranges` (sorted, half-open); None means all."""
    if ranges is None:
        return readable_partitions(topology)
    precision = schema.geohash_precision
    groups = {
        group
        for readable in topology.readable_ranges
        for group in _groups_of_ranges(readable, ranges, precision)
    }
    return frozenset(p for group in groups for p in partitions_of_group(topology, group))


def home_of_producer(topology: Topology, schema: StoredSchema, producer: str) -> int:
    """The partition where the batches of a producer are recorded.

    It is the same for ever: groups that join have other partitions, and the ranges do not matter.
    """
    among = range(topology.partitions_per_group)
    if isinstance(schema, Table):
        among = schema.placed
    return among[text64("batches", schema.key, producer) % len(among)]


def owner(topology: Topology, partition: int) -> str:
    """The name of the node that stores a partition."""
    return all_owners(topology)[partition]


@lru_cache(maxsize=16)
def owners(topology: Topology) -> Mapping[int, str]:
    """The node of every partition of data."""
    moved = {move.partition: move.node for move in topology.moved if move.partition != SYSTEM}
    if topology.founding is not None:
        return dict(enumerate(topology.founding.owners)) | moved
    drawn = {
        partition: node
        for number, group in enumerate(topology.groups)
        for partition, node in _draw(group.founders, partitions_of_group(topology, number)).items()
    }
    return drawn | moved


@lru_cache(maxsize=16)
def all_owners(topology: Topology) -> Mapping[int, str]:
    """The node of every partition; for the system partition, its leader or one that may lead it."""
    leads = [move.node for move in topology.moved if move.partition == SYSTEM]
    system = [*leads, *_rank_of_system(topology), topology.nodes[0].name]
    return {**owners(topology), SYSTEM: system[0]}


def rankings(topology: Topology) -> Mapping[int, tuple[str, ...]]:
    """The nodes of each partition's group, in the order in which they should have its replicas.

    The first one should lead: the one that is pinned, if there is one. Each rank is drawn as owners
    are, without the nodes of earlier ranks, so that every node gets its share of each rank, and few
    change when a node comes or goes. Where nodes share racks, the copies are spread over these
    (`dht.rack_spread`). Nodes after as many as there are copies replace lost ones. Leaving nodes,
    and those that have not joined yet, are left out. The system partition has nodes of all groups.
    """
    ranked: dict[int, tuple[str, ...]] = {SYSTEM: _rank_of_system(topology)}
    for number, group in enumerate(topology.groups):
        partitions = partitions_of_group(topology, number)
        ranked |= _rank_group(group, partitions, replicas=topology.replicas)
    for partition, node in topology.pins:
        if node in ranked[partition]:
            others = (other for other in ranked[partition] if other != node)
            ranked[partition] = node, *others
    return ranked


def _rank_of_system(topology: Topology) -> tuple[str, ...]:
    """The nodes that stay, the oldest first: few change when a node comes or goes."""
    present = {node.name for group in topology.groups for node in group.present}
    return tuple(sorted(present, key=topology.ordinals.__getitem__))


@lru_cache(maxsize=16)
def _rank_group(group: Group, partitions: range, *, replicas: int) -> Mapping[int, tuple[str, ...]]:
    """The ranking of a group; it does not depend on who leads at the moment."""
    nodes = sorted(group.present, key=lambda node: node.name)
    names = np.array([node.name for node in nodes], dtype=object)
    scores, copies = _scores(names.tolist(), partitions), min(replicas, len(nodes))
    if len({node.fault_domain for node in nodes}) < len(nodes):
        leaders = _draw_rank(nodes, scores)
        first = rank_nodes(nodes, scores, leaders=leaders, copies=copies)
    else:
        first = _rank_alone(nodes, scores, copies=copies)
    np.put_along_axis(scores, first, np.uint64(0), axis=1)
    rest = np.argsort(~scores, axis=1, kind="stable")[:, : len(nodes) - copies]
    ranks = np.hstack([first, rest])
    return {p: tuple(names[row]) for p, row in zip(partitions, ranks, strict=True)}


def _rank_alone(
    nodes: Sequence[NodeInfo], scores: npt.NDArray[np.uint64], *, copies: int
) -> npt.NDArray[np.int64]:
    """The first ranks where no two nodes share a rack."""
    scores, ranks = scores.copy(), np.empty((len(scores), copies), dtype=np.int64)
    for rank in range(copies):
        ranks[:, rank] = _draw_rank(nodes, scores)
        np.put_along_axis(scores, ranks[:, rank : rank + 1], np.uint64(0), axis=1)
    return ranks


def _draw_rank(nodes: Sequence[NodeInfo], scores: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The column of one node for each row: by descending score while the node is below its quota.

    A score of zero excludes a node. Where quotas leave none, the best one that is not excluded.
    """
    quotas = _quotas(nodes, len(scores))
    drawn = draw_by_score(scores, np.array([quotas[node.name] for node in nodes]))
    return np.where(drawn < 0, scores.argmax(axis=1), drawn)


def relative_loads(
    topology: Topology, group_rows: Sequence[float] | None = None
) -> Mapping[str, float]:
    """The rows of each node over its mean by weight; 1.0 everywhere is an even cluster.

    Args:
        topology: of the cluster.
        group_rows: of each group; equal for all when absent.
    """
    rows = [1.0] * len(topology.groups) if group_rows is None else group_rows
    weights = sum(node.weight for node in topology.nodes)
    owned = partitions_by_node(topology)
    return {
        node.name: len(owned[node.name])
        / topology.partitions_per_group
        * (group_rows_here / (sum(rows) or 1.0))
        / (node.weight / weights)
        for group, group_rows_here in zip(topology.groups, rows, strict=True)
        for node in group.nodes
    }


def rows_by_group(
    topology: Topology,
    cells: geohash.Cells,
    rows: npt.NDArray[np.int64],
    *,
    precision: int,
) -> list[float]:
    """The rows of each group.

    Args:
        topology: of the cluster.
        cells: where the rows are, at `precision`.
        rows: the number in each cell.
        precision: of the cells.
    """
    groups = _groups_from_cells(topology.ranges, cells, precision)
    by_group: list[float] = np.bincount(
        groups, weights=rows, minlength=len(topology.groups)
    ).tolist()
    return by_group


@lru_cache(maxsize=16)
def partitions_by_node(topology: Topology) -> Mapping[str, frozenset[int]]:
    """The partitions of data of every node; a node may have none."""
    owned: dict[str, set[int]] = {node.name: set() for node in topology.nodes}
    for partition, node in owners(topology).items():
        owned[node].add(partition)
    return {node: frozenset(partitions) for node, partitions in owned.items()}


def _groups_from_cells(
    ranges: RangeMap, cells: geohash.Cells, precision: int
) -> npt.NDArray[np.int32]:
    shift = np.uint64(5 * (geohash.PRECISION_MAX - precision))
    starts, groups = _columns(ranges)
    return groups[np.searchsorted(starts, cells << shift, side="right") - 1]


def _groups_of_ranges(readable: RangeMap, ranges: Ranges, precision: int) -> list[int]:
    """The groups that have a cell of `ranges`."""
    shift = np.uint64(5 * (geohash.PRECISION_MAX - precision))
    starts, groups = _columns(readable)
    first = np.searchsorted(starts, ranges[0] << shift, side="right") - 1
    last = np.searchsorted(starts, (ranges[1] << shift) - np.uint64(1), side="right") - 1
    touched = np.zeros(len(starts) + 1, dtype=np.int64)
    np.add.at(touched, first, 1)
    np.add.at(touched, last + 1, -1)
    hit = np.cumsum(touched)[:-1] > 0
    touched_groups: list[int] = np.unique(groups[hit]).tolist()
    return touched_groups


@lru_cache(maxsize=64)
def _columns(ranges: RangeMap) -> tuple[geohash.Cells, npt.NDArray[np.int32]]:
    """The first cell and the group of each range."""
    return first_cells(ranges), np.array([group for _, group in ranges], dtype=np.int32)


def partitions_of_group(topology: Topology, group: int) -> range:
    """The partitions of a group, given its number."""
    count = topology.partitions_per_group
    return range(group * count, (group + 1) * count)


def _draw(nodes: Sequence[NodeInfo], partitions: range) -> dict[int, str]:
    """Rendezvous hashing where no node gets more than its quota.

    Deferred acceptance: each partition asks the node of its highest score that has not refused it,
    and each node refuses all but its quota of the highest scores. The result is that of assigning
    pairs of partition and node by descending score while both are free.
    """
    names = sorted(node.name for node in nodes)
    by_name = _quotas(nodes, len(partitions))
    quotas = np.array([by_name[name] for name in names])
    scores = _scores(names, partitions)
    while True:
        chosen = scores.argmax(axis=1)
        refused = _ranks(chosen, scores.max(axis=1)) >= quotas[chosen]
        if not refused.any():
            return {p: names[node] for p, node in zip(partitions, chosen.tolist(), strict=True)}
        scores[refused, chosen[refused]] = 0


def _quotas(nodes: Sequence[NodeInfo], partitions: int) -> dict[str, int]:
    """The number of partitions of each node: its share by weight, rounded so that all are given.

    Args:
        nodes: of one group.
        partitions: the number of partitions of the group.
    """
    weights = sum(Fraction(node.weight) for node in nodes)
    shares = {node.name: partitions * Fraction(node.weight) / weights for node in nodes}
    return rounded(shares)


def _scores(names: Sequence[str], partitions: range) -> npt.NDArray[np.uint64]:
    """A random number above zero for each partition (rows) and node (columns)."""
    nodes = np.array([text64("node", name) for name in names], dtype=np.uint64)
    numbers = mix64(np.arange(partitions.start, partitions.stop, dtype=np.uint64))
    scores: npt.NDArray[np.uint64] = mix64(numbers[:, None] ^ nodes[None, :]) | np.uint64(1)
    return scores


def _ranks(nodes: npt.NDArray[np.int64], scores: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The position of each entry among those of the same node, by descending score."""
    order = np.lexsort((~scores, nodes))
    ordered = nodes[order]
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return ranks
