"""Ingest: any node accepts a batch, splits it by partition, and sends each part to its owner.

The split is a pure function of the rows and the topology, so a repeated batch goes to the same
partitions, and each recognises it by producer and batch number. The whole batch is sorted, split
and indexed in one step: own parts can be written at once, and others arrive at their owner sorted.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.dht.topology_state import TopologyState
from galileo.errors import GalileoError, InputError, InvalidObservations
from galileo.model import paths
from galileo.model.observations import normalise
from galileo.model.schema import Schema
from galileo.node.catalog import Catalog
from galileo.node.peers import CommitAnswer, CommitTask, Peers
from galileo.storage.journal import Commit, Committed

_PRODUCER = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class IngestAnswer:
    """The result of one batch; `reached` has its commit in each partition."""

    rows: int
    paths: int
    duplicate_rows: int
    reached: Cursor


class Ingest:
    """Routes batches to the owners of their partitions."""

    def __init__(
        self, name: str, topology: TopologyState, *, catalog: Catalog, peers: Peers, rows_max: int
    ) -> None:
        self._name = name
        self._topology = topology
        self._catalog = catalog
        self._peers = peers
        self._rows_max = rows_max

    async def ingest(
        self, dataset: str, table: pa.Table, *, producer: str, batch: int, principal: str = ""
    ) -> IngestAnswer:
        """Stores one batch; durable at every owner when it returns.

        Args:
            dataset: its name.
            table: the rows.
            producer: of the batch; different principals never share one.
            batch: its number.
            principal: of the caller; "" without authentication.

        Raises:
            InvalidObservations, UnknownDataset, BatchConflict: the input is wrong.
            Unavailable, PartitionReadOnly, Overloaded: repeat the same batch later; what an
                owner has already committed is not stored again.
        """
        schema = self._catalog.schema(dataset)
        _check_identity(producer, batch)
        if table.num_rows > self._rows_max:
            raise InvalidObservations(
                f"expected at most {self._rows_max:,} rows in a batch, got {table.num_rows:,}; "
                "send several"
            )
        name = f"{principal}/{producer}" if principal else producer
        local, elsewhere = await asyncio.to_thread(
            self._submit_own_parts, schema, table, name, batch
        )
        calls = (self._peers.commit(self._owner(task), task) for task in elsewhere)
        stored = _all_done(local.values())
        remote = await asyncio.gather(*calls, return_exceptions=True)
        await stored
        answers = {partition: _outcome(future) for partition, future in local.items()}
        answers |= zip((task.partition for task in elsewhere), remote, strict=True)
        return _join_answers(answers)

    async def commit(self, task: CommitTask) -> CommitAnswer:
        """Commits rows of one of this node's own partitions.

        Raises:
            InputError: there is no such partition.
            PartitionMoved: another node has the partition, or is about to.
        """
        if task.partition not in self._topology.current.partitions:
            raise InputError(
                f"expected a partition of this cluster, got {task.partition}; check that all nodes "
                "have one topology"
            )
        self._catalog.shard(task.dataset).check_own([task.partition])
        place = task.dataset, task.partition
        if not self._catalog.has_writer(*place):  # The disk makes it, which may take long.
            await asyncio.to_thread(self._catalog.writer, *place)
        writer = self._catalog.writer(*place)
        return _answer(await writer.commit(task.producer, task.batch, task.observations))

    def _owner(self, task: CommitTask) -> str:
        return placement.owner(self._topology.current, task.partition)

    def _submit_own_parts(
        self, schema: Schema, data: pa.Table, producer: str, batch: int
    ) -> tuple[dict[int, Future[Committed]], list[CommitTask]]:
        """Splits a batch; submits this node's parts, and returns the tasks of other nodes."""
        place = partial(placement.partitions_from_cells, self._topology.current, schema)
        parts = paths.index_parts(schema, normalise(schema, data), place=place)
        local: dict[int, Future[Committed]] = {}
        elsewhere = []
        for partition, (rows, derived) in parts.items():
            task = CommitTask(schema.key, partition, producer, batch, rows)
            if self._owner(task) == self._name:
                local[partition] = self._submit(task, derived)
            else:
                elsewhere.append(task)
        return local, elsewhere

    def _submit(self, task: CommitTask, derived: pa.RecordBatch) -> Future[Committed]:
        """The commit's future; already failed if the commit was rejected."""
        commit = Commit(task.producer, task.batch, task.observations, derived)
        try:
            return self._catalog.writer(task.dataset, task.partition).submit(commit)
        except GalileoError as error:
            refused: Future[Committed] = Future()
            refused.set_exception(error)
            return refused


def _all_done(futures: Collection[Future[Committed]]) -> asyncio.Future[None]:
    """Done when all futures are, also with errors; wakes the event loop once."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left = itertools.count(len(futures) - 1, -1)

    def settle() -> None:
        if not done.done():
            done.set_result(None)

    def count(_: Future[Committed]) -> None:
        if next(left) == 0 and not loop.is_closed():
            loop.call_soon_threadsafe(settle)

    if not futures:
        settle()
    for future in futures:
        future.add_done_callback(count)
    return done


def _outcome(future: Future[Committed]) -> CommitAnswer | BaseException:
    return future.exception() or _answer(future.result())


def _answer(done: Committed) -> CommitAnswer:
    return CommitAnswer(done.sequence, done.rows, done.paths, done.duplicate)


PRODUCER_SHOWN = 140
"""Characters of a wrong one in a message."""


def _check_identity(producer: str, batch: int) -> None:
    if not _PRODUCER.fullmatch(producer):
        raise InputError(
            f"expected a producer name of letters, digits, '_', '.', ':', '-' (at most 128), "
            f"got {producer[:PRODUCER_SHOWN]!r}"
        )
    if not 0 <= batch < 2**63:
        raise InputError(f"expected a batch number from 0 to 2^63 - 1, got {batch}")


def _join_answers(answers: Mapping[int, CommitAnswer | BaseException]) -> IngestAnswer:
    done: dict[int, CommitAnswer] = {}
    for partition, answer in sorted(answers.items()):
        if isinstance(answer, BaseException):
            raise answer
        done[partition] = answer
    return IngestAnswer(
        rows=sum(answer.rows for answer in done.values()),
        paths=sum(answer.paths for answer in done.values()),
        duplicate_rows=sum(answer.rows for answer in done.values() if answer.duplicate),
        reached=Cursor({partition: answer.sequence for partition, answer in done.items()}),
    )
