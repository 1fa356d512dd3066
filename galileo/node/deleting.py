"""Deletes rows of datasets without a key: any node sends each owner the rows of its partitions.

The caller names rows by their places, as an evaluation has found them. What a deletion removes does
not depend on what has come meanwhile, so it needs no condition. Deleting a row again is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.errors import NAMED_MAX, DataExpired, GalileoError, InputError, listed
from galileo.model.deletions import STRETCHES_SCHEMA, Stretches
from galileo.model.schema import Schema
from galileo.node.catalog import Catalog
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import CommitAnswer, CommitTask, Peers
from galileo.storage.commits import Commit, Committed, deletion_of


class Deleting:
    """Routes deletions to the owners of the rows, and commits those of this node's partitions.

    Args:
        on_committed: called in the event loop when partitions of this node have commits.
    """

    def __init__(
        self,
        name: str,
        topology: TopologyState,
        *,
        catalog: Catalog,
        peers: Peers,
        on_committed: Callable[[], None],
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._on_committed = on_committed

    async def delete(self, task: CommitTask) -> list[CommitAnswer | BaseException]:
        """Deletes stretches of rows; durable when it returns. The answer of each owner.

        Args:
            task: whose rows are those of `STRETCHES_SCHEMA`.

        Raises:
            InputError: these are not the columns, or a partition is not one of this cluster.
        """
        rows = task.observations
        nulls = sum(column.null_count for column in rows.columns)
        if nulls or not rows.schema.equals(STRETCHES_SCHEMA):
            raise InputError(
                f"expected rows with the columns {', '.join(map(str, STRETCHES_SCHEMA))}; got "
                f"{', '.join(map(str, rows.schema))}, and {nulls} nulls",
                parameter="observations",
            )
        of_row = rows.column("partition").to_numpy()
        named = np.unique(of_row).tolist()
        topology = self._topology.current
        if unknown := sorted({*named} - {*topology.partitions}):
            raise InputError(
                f"expected partitions of this cluster, got {listed(unknown)}",
                partitions=unknown[:NAMED_MAX],
            )
        schema = self._catalog.stored_schema(task.dataset)
        calls = []
        of_owner = placement.split_by_owner(topology, schema, rows, partitions=of_row)
        for owner, theirs in of_owner.items():
            part = replace(task, observations=theirs)
            is_own = owner == self._name
            calls.append(self.commit(part) if is_own else self._forward(owner, part))
        return await asyncio.gather(*calls, return_exceptions=True)

    async def _forward(self, owner: str, task: CommitTask) -> CommitAnswer:
        answer = await self._peers.commit(owner, task)
        return replace(answer, forwarded_rows=task.observations.num_rows)

    async def commit(self, task: CommitTask) -> CommitAnswer:
        """Deletes rows of this node's own partitions.

        Raises:
            PartitionMoved: another node has one of the partitions, or is about to.
            InputError: a commit is not there, or a stretch has no rows.
            HistoryChanged: a commit was lost.
        """
        shard = self._catalog.shard(task.dataset)
        parts, commits = await asyncio.to_thread(_commits, shard, task)
        results = await asyncio.wrap_future(self._catalog.commit(task.dataset, commits))
        if errors := [one for one in results.values() if isinstance(one, GalileoError)]:
            raise errors[0]
        self._on_committed()
        stored = {p: one for p, one in results.items() if isinstance(one, Committed)}
        return CommitAnswer(
            rows=sum(part.count for part in parts.values()),
            paths=0,
            duplicate_rows=sum(parts[p].count for p, one in stored.items() if one.duplicate),
            reached=Cursor({p: one.sequence for p, one in stored.items()}),
        )


def _commits(
    shard: DatasetShard, task: CommitTask
) -> tuple[Mapping[int, Stretches], Mapping[int, Commit]]:
    """The stretches of each partition, and the commits that delete them."""
    rows, schema = task.observations, shard.schema
    assert isinstance(schema, Schema), "tables have other deletions"
    partitions, sequences = (rows.column(n).to_numpy() for n in ("partition", "sequence"))
    named = np.unique(partitions).tolist()
    shard.check_own(named)
    shard.check_commits(partitions, sequences)
    last = shard.published(named)
    if (ahead := last.past(partitions, sequences)).any():
        row = int(np.flatnonzero(ahead)[0])
        raise InputError(
            f"expected rows of commits 1 to {last[int(partitions[row])]} of partition "
            f"{partitions[row]}, got commit {sequences[row]}; name rows of this cluster",
            partition=int(partitions[row]),
            sequence=int(sequences[row]),
        )
    parts = {
        partition: part
        for partition in named
        if len(part := _stored(shard, partition, rows.filter(pa.array(partitions == partition))))
    }
    return parts, {
        partition: deletion_of(
            schema, task.producer, task.batch, part.to_paths(schema), digest=part.digest()
        )
        for partition, part in parts.items()
    }


def _stored(shard: DatasetShard, partition: int, rows: pa.Table) -> Stretches:
    """The stretches of rows that are stored; those that retention has dropped need no deletion.

    Raises:
        InputError: a commit has fewer rows.
    """
    journal, stretches = shard.journal(partition), Stretches.of(rows)
    sequences, places = np.unique(stretches.sequence, return_inverse=True)
    sizes = np.zeros(len(sequences), dtype=np.int64)
    for number, sequence in enumerate(sequences.tolist()):
        with contextlib.suppress(DataExpired):
            sizes[number] = journal.row_count(sequence)
    size, stop = sizes[places], stretches.row + stretches.rows
    if (beyond := (stop > size) & (size > 0)).any():
        row = int(np.flatnonzero(beyond)[0])
        raise InputError(
            f"expected rows 0 to {size[row] - 1} of commit {stretches.sequence[row]} of partition "
            f"{partition}, got row {stop[row] - 1}; name rows of this cluster",
            partition=partition,
            sequence=int(stretches.sequence[row]),
        )
    return stretches.take(np.flatnonzero(size))
