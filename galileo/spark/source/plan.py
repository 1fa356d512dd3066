"""Plans reads: cuts commits into tasks, as pure functions of cursors.

A task reads the commits between two cursors, so its rows are the same whenever it runs. A task of a
batch read has partitions of one node. The tasks of a stream do not depend on the owners of
partitions: a micro-batch that is repeated after partitions moved has the same rows in the same
tasks, by which a sink recognises them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import Unavailable, listed
from galileo.model.forks import count_commits
from galileo.wire.codec import cursor_from_pb
from galileo.wire.v1 import cluster_pb2


@dataclass(frozen=True)
class Split(InputPartition):
    """The commits (after, until] of some partitions of one node.

    Attributes:
        addresses: of the nodes, the owner of the partitions first.
        partitions: ascending.
    """

    addresses: tuple[str, ...]
    partitions: tuple[int, ...]
    after: Cursor
    until: Cursor


@dataclass(frozen=True)
class StreamTask(InputPartition):
    """A task of a stream, which reads its splits one after the other."""

    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class StoredCommits:
    """The stored commits of a dataset, as reported by the nodes.

    Attributes:
        published: the last commit of each partition.
        dropped: the last dropped commit of each partition.
        rows_per_commit: mean of the partition's node.
        missing: partitions of nodes that did not answer.
    """

    published: Cursor
    dropped: Cursor
    rows_per_commit: Mapping[int, float]
    missing: frozenset[int]


def merge_status(
    topology: Topology, nodes: Iterable[cluster_pb2.NodeStatus], *, dataset: str
) -> StoredCommits:
    """The stored commits of a dataset from the status of all nodes."""
    owned = placement.partitions_by_node(topology)
    published, dropped = Cursor(), Cursor()
    means: dict[int, float] = {}
    missing: frozenset[int] = frozenset()
    for node in nodes:
        if node.state == "unreachable":
            missing |= owned[node.name]
        for status in node.datasets:
            if status.dataset == dataset:
                last, gone = cursor_from_pb(status.sequences), cursor_from_pb(status.dropped)
                commits = sum(count_commits(gone[p], last[p]) for p in last)
                means |= dict.fromkeys(last, status.rows / max(1, commits))
                published, dropped = published.join(last), dropped.join(gone)
    return StoredCommits(published, dropped, means, missing)


def check_complete(stored: StoredCommits) -> None:
    """Raises Unavailable if a node with partitions did not answer."""
    if stored.missing:
        raise Unavailable(
            f"the nodes of partitions {listed(sorted(stored.missing))} did not answer; try again "
            "when they can be reached",
            missing=sorted(stored.missing),
        )


def limit_commits(start: Cursor, end: Cursor, *, commits_max: int) -> Cursor:
    """The cursor `commits_max` commits after `start` towards `end`, fair to all partitions.

    How many commits there are before a jump is not known here; all of them count for nothing.
    """
    reached = dict(start)
    left = commits_max
    behind = sorted((count_commits(start[p], end[p]), p) for p in start.news(end))
    # With fewer commits than partitions, those with the most remaining commits have priority.
    behind = behind[-commits_max:]
    for place, (commits, partition) in enumerate(behind):
        share = min(commits, -(-left // (len(behind) - place)))
        reached[partition] = end[partition] - commits + share
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
        topology: owners of partitions.
        after: start, exclusive.
        until: end, inclusive.
        weights: of a commit of each partition; 1 by default.
        weight_max: of a task with more than one commit.
    """
    result = []
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
        result += [
            _split(addresses, group) for group in _groups(pieces, weights, weight_max=weight_max)
        ]
    return result


def table_splits(
    topology: Topology, *, until: Cursor, weights: Mapping[int, float], weight_max: float
) -> list[Split]:
    """The partitions of a table, several of one node in a task; arguments as of `splits`."""
    result = []
    for node, partitions in placement.partitions_by_node(topology).items():
        pieces = [_Piece(p, 0, until[p]) for p in sorted(partitions) if until[p]]
        addresses = _addresses(topology, first=topology.by_name[node].address)
        result += [
            _split(addresses, group) for group in _groups(pieces, weights, weight_max=weight_max)
        ]
    return result


def stream_tasks(
    topology: Topology,
    *,
    after: Cursor,
    until: Cursor,
    commits_max: int,
    cuts_partitions: bool = True,
) -> list[StreamTask]:
    """The tasks of a stream: the commits of a task depend on the cursors only.

    Args:
        topology: owners of partitions.
        after: start, exclusive.
        until: end, inclusive.
        commits_max: of a task.
        cuts_partitions: whether several tasks may have commits of one partition; if not, a task
            with more than `commits_max` has one partition.
    """
    owners = placement.owners(topology)
    pieces = [
        piece
        for partition in sorted(owners)
        for piece in _pieces(
            partition,
            after[partition],
            until[partition],
            commits_max=commits_max if cuts_partitions else max(1, until[partition]),
        )
    ]
    tasks = []
    for group in _groups(pieces, {}, weight_max=commits_max):
        by_node: dict[str, list[_Piece]] = {}
        for piece in group:
            by_node.setdefault(owners[piece.partition], []).append(piece)
        tasks.append(
            StreamTask(
                tuple(
                    _split(_addresses(topology, first=topology.by_name[node].address), own)
                    for node, own in by_node.items()
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
    begin = until - count_commits(after, until)
    if after < begin:  # How many commits there are before a jump is not known here.
        yield _Piece(partition, after, begin)
    for start in range(begin, until, commits_max):
        yield _Piece(partition, start, min(start + commits_max, until))


def _groups(
    pieces: Sequence[_Piece], weights: Mapping[int, float], *, weight_max: float
) -> Iterator[list[_Piece]]:
    """Groups pieces up to a weight; a group has one piece of a partition."""
    group: list[_Piece] = []
    total = 0.0
    for piece in pieces:
        weight = count_commits(piece.after, piece.until) * weights.get(piece.partition, 1.0)
        has_partition = any(piece.partition == other.partition for other in group)
        if group and (has_partition or total + weight > weight_max):
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
