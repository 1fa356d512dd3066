"""What is there to read, and how it is cut into tasks: pure functions of cursors.

A task reads the commits past one cursor and not past another. So its answer is the same whenever it
runs, and however often. A batch read's tasks are of partitions that one node keeps. Those of a
stream do not depend on who keeps what: a micro-batch that is repeated after partitions have moved
has the same rows in the same tasks, by which a sink recognises them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import Unavailable
from galileo.wire.codec import cursor_from_pb
from galileo.wire.v1 import cluster_pb2


@dataclass(frozen=True)
class Split(InputPartition):
    """The commits (after, until] of some partitions of one node.

    Attributes:
        addresses: of the nodes that can answer, that which keeps the partitions first.
        partitions: ascending.
    """

    addresses: tuple[str, ...]
    partitions: tuple[int, ...]
    after: Cursor
    until: Cursor


@dataclass(frozen=True)
class SteadyTask(InputPartition):
    """What a task of a stream reads, one after the other."""

    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a cluster holds of a dataset, as its nodes say.

    Attributes:
        published: the last commit of each partition.
        dropped: up to where retention has dropped commits.
        rows_per_commit: mean of each partition's node.
        missing: partitions of nodes that did not answer.
    """

    published: Cursor
    dropped: Cursor
    rows_per_commit: Mapping[int, float]
    missing: frozenset[int]


def stored(topology: Topology, nodes: Iterable[cluster_pb2.NodeStatus], *, dataset: str) -> Stored:
    """What the answers of all nodes say of one dataset."""
    owned = placement.partitions_by_node(topology)
    published, dropped = Cursor(), Cursor()
    means: dict[int, float] = {}
    missing: frozenset[int] = frozenset()
    for node in nodes:
        if node.state == "unreachable":
            missing |= owned[node.name]
        for one in node.datasets:
            if one.dataset == dataset:
                last, gone = cursor_from_pb(one.sequences), cursor_from_pb(one.dropped)
                commits = sum(last.values()) - sum(gone.values())
                means |= dict.fromkeys(last, one.rows / max(1, commits))
                published, dropped = published.join(last), dropped.join(gone)
    return Stored(published, dropped, means, missing)


def check_whole(found: Stored) -> None:
    """Raises Unavailable where a node that keeps some of it did not answer."""
    if found.missing:
        raise Unavailable(
            f"the nodes that keep partitions {sorted(found.missing)} could not be asked what they "
            "hold; try again when they are back",
            missing=sorted(found.missing),
        )


def bounded(start: Cursor, end: Cursor, *, commits_max: int) -> Cursor:
    """How far to go from `start` towards `end` with so many commits, fairly for all partitions."""
    reached = dict(start)
    left = commits_max
    behind = sorted((sequence - start[p], p) for p, sequence in end.items() if sequence > start[p])
    # Where there is not one commit for each, those that are farthest behind have their turn.
    behind = behind[-commits_max:]
    for place, (commits, partition) in enumerate(behind):
        share = min(commits, -(-left // (len(behind) - place)))
        reached[partition] = start[partition] + share
        left -= share
    return Cursor(reached)


def splits(
    topology: Topology,
    *,
    after: Cursor,
    until: Cursor,
    weights: Mapping[int, float],
    weight_max: float,
) -> list[Split]:
    """The commits (after, until] of all partitions, cut into tasks.

    Args:
        topology: says who keeps what.
        after: where to begin.
        until: where to end.
        weights: of one commit of each partition; 1 where it is not named.
        weight_max: of a task, where it has more than one commit.
    """
    found = []
    for node, partitions in placement.partitions_by_node(topology).items():
        pieces = [
            piece
            for partition in sorted(partitions)
            for piece in _pieces(
                partition,
                after[partition],
                until[partition],
                commits_max=max(1, int(weight_max / max(weights.get(partition, 1.0), 1e-9))),
            )
        ]
        addresses = _addresses(topology, first=topology.by_name[node].address)
        found += [
            _split(addresses, group) for group in _groups(pieces, weights, weight_max=weight_max)
        ]
    return found


def steady_tasks(
    topology: Topology, *, after: Cursor, until: Cursor, commits_max: int
) -> list[SteadyTask]:
    """The same for a stream: which commits a task has is decided by the cursors alone."""
    kept_by = placement.owners(topology)
    pieces = [
        piece
        for partition in sorted(kept_by)
        for piece in _pieces(partition, after[partition], until[partition], commits_max=commits_max)
    ]
    tasks = []
    for group in _groups(pieces, {}, weight_max=commits_max):
        of_nodes: dict[str, list[_Piece]] = {}
        for piece in group:
            of_nodes.setdefault(kept_by[piece.partition], []).append(piece)
        tasks.append(
            SteadyTask(
                tuple(
                    _split(_addresses(topology, first=topology.by_name[node].address), mine)
                    for node, mine in of_nodes.items()
                )
            )
        )
    return tasks


@dataclass(frozen=True, slots=True)
class _Piece:
    """The commits (after, until] of one partition."""

    partition: int
    after: int
    until: int


def _pieces(partition: int, after: int, until: int, *, commits_max: int) -> Iterator[_Piece]:
    for start in range(after, until, commits_max):
        yield _Piece(partition, start, min(start + commits_max, until))


def _groups(
    pieces: Sequence[_Piece], weights: Mapping[int, float], *, weight_max: float
) -> Iterator[list[_Piece]]:
    """Pieces put together as long as they are light; those of one partition stay apart."""
    group: list[_Piece] = []
    total = 0.0
    for piece in pieces:
        weight = (piece.until - piece.after) * weights.get(piece.partition, 1.0)
        taken = any(piece.partition == other.partition for other in group)
        if group and (taken or total + weight > weight_max):
            yield group
            group, total = [], 0.0
        group.append(piece)
        total += weight
    if group:
        yield group


def _split(addresses: tuple[str, ...], group: Sequence[_Piece]) -> Split:
    return Split(
        addresses,
        tuple(piece.partition for piece in group),
        Cursor({piece.partition: piece.after for piece in group}),
        Cursor({piece.partition: piece.until for piece in group}),
    )


def _addresses(topology: Topology, *, first: str) -> tuple[str, ...]:
    return (first, *(node.address for node in topology.nodes if node.address != first))
