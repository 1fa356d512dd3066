"""What one node keeps of one dataset, and the one way a commit takes into it.

A commit is appended to its partition's journal and made durable; then its paths enter the
graph and the synopsis; then its sequence is published. In that order, so that whatever a
scan can see has a sequence at or below the one it reports, and what it cannot see a higher
one: the reason why a continuous query cannot miss.
"""

from __future__ import annotations

import asyncio
import logging
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
REPLAYED_PATHS_MAX = 65_536
"""Paths that the synopsis takes in together at start; one commit at a time costs it far more."""

log = logging.getLogger(__name__)


class Shard:
    """The journals, the metadata graph and the synopses of one dataset on this node."""

    def __init__(self, schema: Schema, *, epoch: int) -> None:
        self.schema = schema
        self.graph = MetadataGraph(schema)
        self.journals: dict[int, PartitionJournal] = {}
        self.synopses: dict[int, Synopsis] = {}
        self._epoch = epoch
        self._published: dict[int, int] = {}
        self._replayed: dict[int, list[pa.RecordBatch]] = {}
        self._replayed_paths: dict[int, int] = {}

    def replay(self, partition: int, sequence: int, batch: pa.RecordBatch) -> None:
        """Takes a commit that the journal already holds; used at start, before `attach`."""
        self.graph.insert(batch, partition=partition, sequence=sequence)
        self._published[partition] = sequence
        waiting = self._replayed.setdefault(partition, [])
        waiting.append(batch)
        self._replayed_paths[partition] = self._replayed_paths.get(partition, 0) + batch.num_rows
        if self._replayed_paths[partition] >= REPLAYED_PATHS_MAX:
            self._summarise(partition)

    def _summarise(self, partition: int) -> None:
        """Gives the synopsis what was replayed. Its entries then say "changed with the last of
        these commits", which is no loss: after a start every receiver asks for all of them.
        """
        waiting = self._replayed.pop(partition, [])
        self._replayed_paths.pop(partition, None)
        if waiting:
            self._synopsis(partition).add(pa.concat_batches(waiting), self._published[partition])

    def attach(self, partition: int, journal: PartitionJournal) -> None:
        self._summarise(partition)
        self.journals[partition] = journal
        self._synopsis(partition)

    def published(self) -> Cursor:
        """The last commit of each partition that a scan sees."""
        return Cursor(dict(self._published))

    def write(self, partition: int, commits: Sequence[Commit]) -> list[Committed | GalileoError]:
        """The one write path; blocks on the disk, so it runs in a thread."""
        results = self.journals[partition].append(commits)
        for commit, result in zip(commits, results, strict=True):
            if isinstance(result, Committed) and not result.duplicate:
                self._index(partition, result.sequence, commit.paths)
                self._published[partition] = result.sequence
        return results

    def maintain(self) -> None:
        """Merges runs of the graph where that is due; beside reads and writes, in a thread."""
        self.graph.maintain()

    def _index(self, partition: int, sequence: int, batch: pa.RecordBatch) -> None:
        self.graph.insert(batch, partition=partition, sequence=sequence)
        self._synopsis(partition).add(batch, sequence)

    def _synopsis(self, partition: int) -> Synopsis:
        if partition not in self.synopses:
            self.synopses[partition] = Synopsis(self.schema, partition=partition, epoch=self._epoch)
        return self.synopses[partition]

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
