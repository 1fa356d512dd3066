"""What one node keeps of one dataset, and the one way a commit takes into it.

A commit is appended to its partition's journal and made durable; then its paths enter the
graph and the synopsis; then its sequence is published. In that order, so that whatever a
scan can see has a sequence at or below the one it reports, and what it cannot see a higher
one: the reason why a continuous query cannot miss.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import GalileoError, Overloaded
from galileo.graph.metadata import MetadataGraph
from galileo.graph.synopsis import Synopsis
from galileo.model import paths
from galileo.model.schema import Schema
from galileo.storage.journal import Commit, Committed, PartitionJournal

COMMITS_TOGETHER_MAX = 256
UNSUMMARISED_PATHS_MAX = 65_536

log = logging.getLogger(__name__)


class Shard:
    """The journals, the metadata graph and the synopses of one dataset on this node.

    A synopsis takes in many commits at once for little more than the cost of one, so commits
    wait for it until it is asked for, or until there are many. It is then late, which it may be.
    """

    def __init__(self, schema: Schema, *, epoch: int) -> None:
        self.schema = schema
        self.graph = MetadataGraph(schema)
        self.journals: dict[int, PartitionJournal] = {}
        self._epoch = epoch
        self._published: dict[int, int] = {}
        self._synopses: dict[int, Synopsis] = {}
        self._unsummarised: dict[int, list[tuple[int, pa.RecordBatch]]] = {}
        self._unsummarised_paths: dict[int, int] = {}
        self._summarising = threading.Lock()

    def replay(self, partition: int, sequence: int, batch: pa.RecordBatch) -> None:
        """Takes a commit that the journal already holds; used at start, before `attach`."""
        self._index(partition, sequence, batch)

    def attach(self, partition: int, journal: PartitionJournal) -> None:
        self.journals[partition] = journal

    def published(self) -> Cursor:
        """The last commit of each partition that a scan sees."""
        return Cursor(dict(self._published))

    def synopses(self) -> dict[int, Synopsis]:
        """The synopsis of each partition, of all that is published by now."""
        with self._summarising:
            for partition in (*self._unsummarised, *self.journals):
                self._summarise(partition)
            return dict(self._synopses)

    def write(self, partition: int, commits: Sequence[Commit]) -> list[Committed | GalileoError]:
        """The one write path; blocks on the disk, so it runs in a thread."""
        results = self.journals[partition].append(commits)
        for commit, result in zip(commits, results, strict=True):
            if isinstance(result, Committed) and not result.duplicate:
                self._index(partition, result.sequence, commit.paths)
        return results

    def maintain(self) -> None:
        """Merges runs of the graph where that is due; beside reads and writes, in a thread."""
        self.graph.maintain()

    def _index(self, partition: int, sequence: int, batch: pa.RecordBatch) -> None:
        self.graph.insert(batch, partition=partition, sequence=sequence)
        with self._summarising:
            self._unsummarised.setdefault(partition, []).append((sequence, batch))
            waiting = self._unsummarised_paths.get(partition, 0) + batch.num_rows
            self._unsummarised_paths[partition] = waiting
            if waiting >= UNSUMMARISED_PATHS_MAX:
                self._summarise(partition)
        self._published[partition] = sequence

    def _summarise(self, partition: int) -> None:
        """Gives the synopsis the commits that wait, as one that ends with the last of them.

        Its entries then say "changed with the last one", and a receiver that knows less gets
        them all. The caller holds the lock.
        """
        synopsis = self._synopses.get(partition)
        if synopsis is None:
            synopsis = Synopsis(self.schema, partition=partition, epoch=self._epoch)
            self._synopses[partition] = synopsis
        waiting = self._unsummarised.pop(partition, [])
        self._unsummarised_paths.pop(partition, None)
        if waiting:
            synopsis.add(pa.concat_batches([batch for _, batch in waiting]), waiting[-1][0])

    def close(self) -> None:
        for journal in self.journals.values():
            journal.close()


@dataclass(frozen=True, slots=True)
class _Waiting:
    commit: Commit
    done: asyncio.Future[Committed]


class GroupCommit:
    """Commits of one partition that wait together share one fsync."""

    def __init__(
        self, shard: Shard, partition: int, *, executor: Executor, waiting_max: int
    ) -> None:
        self._shard = shard
        self._partition = partition
        self._executor = executor
        self._waiting_max = waiting_max
        self._indexing = 0
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Commits that are ready and wait for the disk."""
        return len(self._waiting)

    async def commit(self, producer: str, batch: int, table: pa.Table) -> Committed:
        """Durable when it returns.

        Args:
            producer: with `batch` the identity of these rows, for retries.
            batch: number of the batch.
            table: normalised observations of this partition.

        Raises:
            Overloaded: too many commits wait already.
            PartitionStopped: the disk failed.
            BatchConflict: the batch number was used for other rows.
        """
        taken = self._indexing + len(self._waiting)
        if taken >= self._waiting_max:
            raise Overloaded(
                f"{taken} commits wait for partition {self._partition} already; "
                "try again in a moment",
                after_s=0.2,
            )
        loop = asyncio.get_running_loop()
        ordered, batch_of_paths = await self._indexed(table)
        waiting = _Waiting(
            Commit(producer=producer, batch=batch, observations=ordered, paths=batch_of_paths),
            loop.create_future(),
        )
        self._waiting.append(waiting)
        if self._writer is None or self._writer.done():
            self._writer = loop.create_task(self._drain())
        return await waiting.done

    async def _indexed(self, table: pa.Table) -> tuple[pa.Table, pa.RecordBatch]:
        self._indexing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, paths.index, self._shard.schema, table
            )
        finally:
            self._indexing -= 1

    async def drained(self) -> None:
        """Returns when nothing is being written."""
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            together = self._waiting[:COMMITS_TOGETHER_MAX]
            del self._waiting[:COMMITS_TOGETHER_MAX]
            commits = [waiting.commit for waiting in together]
            try:
                results: list[Committed | GalileoError] | list[Exception]
                results = await loop.run_in_executor(
                    self._executor, self._shard.write, self._partition, commits
                )
            except Exception as error:
                results = [error] * len(together)
            for waiting, result in zip(together, results, strict=True):
                _settle(waiting.done, result)
            maintained = loop.run_in_executor(self._executor, self._shard.maintain)
            maintained.add_done_callback(_report)


def _report(maintained: asyncio.Future[None]) -> None:
    if not maintained.cancelled() and maintained.exception() is not None:
        log.error("merging runs of a graph failed", exc_info=maintained.exception())


def _settle(done: asyncio.Future[Committed], result: Committed | Exception) -> None:
    if done.done():
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)
