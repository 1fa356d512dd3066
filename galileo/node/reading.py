"""Reading blocks: from row ranges of commits to observations, wherever they are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor

import numpy as np
import pyarrow as pa

from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError
from galileo.node.catalog import Catalog
from galileo.node.peers import PARTS_SCHEMA, Peers, ReadTask
from galileo.query import Query, parse


class Reading:
    """Reads observations of this node's partitions, and through peers those of others."""

    def __init__(
        self, name: str, topology: Topology, *, catalog: Catalog, peers: Peers, executor: Executor
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._executor = executor

    async def read(self, task: ReadTask) -> AsyncIterator[pa.Table]:
        """The observations of all parts, node by node, commit by commit.

        Raises:
            Unavailable: a node that keeps some of them cannot be reached.
            DataDamaged: stored bytes fail their checksum.
        """
        schema = self._catalog.schema(task.dataset)
        for node, share in self._shares(task).items():
            if node == self._name:
                async for table in self.read_local(share):
                    yield table
            else:
                async for table in self._peers.read(node, share, schema):
                    yield table

    async def read_local(self, task: ReadTask) -> AsyncIterator[pa.Table]:
        """The observations of parts that this node keeps; one table per commit."""
        shard = self._catalog.shard(task.dataset)
        query = parse(task.query_json, shard.schema) if task.query_json else None
        loop = asyncio.get_running_loop()
        for partition, sequence, ranges in _commits(task.parts):
            last = shard.published()[partition]
            if not 1 <= sequence <= last:
                raise InputError(
                    f"expected labels of commits 1 to {last} of partition {partition}, "
                    f"got commit {sequence}; use labels of this cluster"
                )
            table = await loop.run_in_executor(
                self._executor, self._commit, task.dataset, partition, sequence, ranges, query
            )
            if table.num_rows:
                yield table

    def _commit(
        self,
        dataset: str,
        partition: int,
        sequence: int,
        ranges: tuple[np.ndarray, np.ndarray],
        query: Query | None,
    ) -> pa.Table:
        journal = self._catalog.shard(dataset).journals[partition]
        table = journal.read(sequence, ranges=ranges)
        return table if query is None else table.filter(pa.array(query.match_observations(table)))

    def _shares(self, task: ReadTask) -> dict[str, ReadTask]:
        owners = placement.owners(self._topology)
        partitions = task.parts.column("partition").to_numpy()
        known = np.unique(partitions)
        if len(known) and not set(known.tolist()) <= set(owners):
            raise InputError(f"expected partitions of this cluster, got {known.tolist()}")
        nodes = sorted({owners[int(partition)] for partition in known})
        return {
            node: ReadTask(
                task.dataset,
                task.parts.filter(
                    pa.array(np.isin(partitions, [p for p in known if owners[int(p)] == node]))
                ),
                task.query_json,
            )
            for node in nodes
        }


def _commits(parts: pa.Table) -> list[tuple[int, int, tuple[np.ndarray, np.ndarray]]]:
    """The row ranges of each commit, in order of partition and sequence."""
    partitions, sequences, rows, counts = (
        parts.column(name).to_numpy() for name in PARTS_SCHEMA.names
    )
    order = np.lexsort((rows, sequences, partitions))
    partitions, sequences, rows, counts = (
        column[order] for column in (partitions, sequences, rows, counts)
    )
    if len(order) == 0:
        return []
    changed = (np.diff(partitions) != 0) | (np.diff(sequences) != 0)
    starts = np.concatenate([[0], np.flatnonzero(changed) + 1])
    stops = [*starts[1:].tolist(), len(order)]
    return [
        (int(partitions[a]), int(sequences[a]), (rows[a:b], counts[a:b]))
        for a, b in zip(starts.tolist(), stops, strict=True)
    ]
