"""Ingest: any node takes a batch, splits it by partition, and has each owner commit its rows.

The split is a pure function of the rows and the topology, so a retried batch meets the same
partitions, and each of them recognises it by producer and batch number.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError, InvalidObservations
from galileo.model import paths
from galileo.model.observations import normalise
from galileo.model.schema import Schema
from galileo.node.catalog import Catalog
from galileo.node.peers import CommitAnswer, CommitTask, Peers

_PRODUCER = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class IngestAnswer:
    """What became of one batch; `reached` names the commit of each partition that took rows."""

    rows: int
    paths: int
    duplicate_rows: int
    reached: Cursor


class Ingest:
    """Routes batches to the owners of their partitions."""

    def __init__(
        self, name: str, topology: Topology, *, catalog: Catalog, peers: Peers, rows_max: int
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._rows_max = rows_max

    async def ingest(
        self, dataset: str, table: pa.Table, *, producer: str, batch: int
    ) -> IngestAnswer:
        """Stores one batch; durable at every owner when it returns.

        Raises:
            InvalidObservations, UnknownDataset, BatchConflict: the input is wrong.
            Unavailable, PartitionStopped, Overloaded: repeat the same batch later; what an
                owner has already committed is not stored again.
        """
        schema = self._catalog.schema(dataset)
        _check_identity(producer, batch)
        if table.num_rows > self._rows_max:
            raise InvalidObservations(
                f"expected at most {self._rows_max:,} rows in a batch, got {table.num_rows:,}; "
                "send several"
            )
        split = await asyncio.to_thread(self._split, schema, table)
        tasks = [
            CommitTask(dataset, partition, producer, batch, rows)
            for partition, rows in split.items()
        ]
        answers = await asyncio.gather(*map(self._send, tasks), return_exceptions=True)
        return _joined(dict(zip(split, answers, strict=True)))

    async def commit(self, task: CommitTask) -> CommitAnswer:
        """Commits rows of one of this node's own partitions.

        Raises:
            InputError: another node owns the partition.
        """
        if placement.owners(self._topology).get(task.partition) != self._name:
            raise InputError(
                f"node {self._name!r} does not own partition {task.partition}; "
                "check that all nodes have one topology"
            )
        writer = self._catalog.writer(task.dataset, task.partition)
        done = await writer.commit(task.producer, task.batch, task.observations)
        return CommitAnswer(done.sequence, done.rows, done.paths, done.duplicate)

    async def _send(self, task: CommitTask) -> CommitAnswer:
        node = placement.owner(self._topology, task.partition)
        if node == self._name:
            return await self.commit(task)
        return await self._peers.commit(node, task)

    def _split(self, schema: Schema, data: pa.Table) -> dict[int, pa.Table]:
        table = normalise(schema, data)
        cells, buckets = paths.cells_of(schema, table), paths.buckets_of(schema, table)
        partitions = placement.partitions_of(self._topology, schema, cells, buckets)
        order = np.argsort(partitions, kind="stable")
        found, starts = np.unique(partitions[order], return_index=True)
        stops = np.append(starts, table.num_rows)[1:]
        ordered = table.take(pa.array(order))
        return {
            int(partition): ordered.slice(start, stop - start).combine_chunks()
            for partition, start, stop in zip(
                found.tolist(), starts.tolist(), stops.tolist(), strict=True
            )
        }


def _check_identity(producer: str, batch: int) -> None:
    if not _PRODUCER.fullmatch(producer):
        raise InputError(
            f"expected a producer name of letters, digits, '_', '.', ':', '-' (at most 128), "
            f"got {producer!r}"
        )
    if not 0 <= batch < 2**63:
        raise InputError(f"expected a batch number from 0 to 2^63 - 1, got {batch}")


def _joined(answers: Mapping[int, CommitAnswer | BaseException]) -> IngestAnswer:
    done: dict[int, CommitAnswer] = {}
    for partition, answer in answers.items():
        if isinstance(answer, BaseException):
            raise answer
        done[partition] = answer
    return IngestAnswer(
        rows=sum(answer.rows for answer in done.values()),
        paths=sum(answer.paths for answer in done.values()),
        duplicate_rows=sum(answer.rows for answer in done.values() if answer.duplicate),
        reached=Cursor({partition: answer.sequence for partition, answer in done.items()}),
    )
