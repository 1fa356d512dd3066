"""Group commit: the waiting commits of one dataset are written together.

Any thread submits batches; a thread of the executor writes what waits, one group at a time and
without the event loop, so that the disk gets the next group at once. What is done once for a group
costs the same for one partition and for all.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TypeAlias

from galileo import spans
from galileo.errors import GalileoError, Overloaded
from galileo.node.shard import Shard
from galileo.storage.journal import Commit, Committed

COMMITS_TOGETHER_MAX = 4_096

log = logging.getLogger(__name__)

Results: TypeAlias = dict[int, Committed | GalileoError]
"""What became of the part of a batch in each partition."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    commits: Mapping[int, Commit]
    results: Results
    done: Future[Results] = field(default_factory=Future)
    span: spans.Span | None = None


class GroupCommit:
    """Commits of one dataset that wait together share one write and sync of each partition.

    Args:
        shard: of the dataset.
        executor: whose threads write.
        syncing: whose threads write to several partitions at the same time; another one, since the
            first waits for it.
        waiting_max: commits of one partition that may wait.
    """

    def __init__(
        self, shard: Shard, *, executor: Executor, syncing: Executor, waiting_max: int
    ) -> None:
        self._shard = shard
        self._executor = executor
        self._syncing = syncing
        self._waiting_max = waiting_max
        self._lock = threading.Lock()
        self._queue: list[_Waiting] = []
        self._waiting = Counter[int]()
        self._accepted = Counter[int]()
        self._writing: Future[None] | None = None

    @property
    def waiting(self) -> dict[int, int]:
        """The number of commits that wait for the disk, by partition that was written to."""
        with self._lock:
            return dict(self._waiting)

    def submit(
        self, commits: Mapping[int, Commit], refused: Results | None = None
    ) -> Future[Results]:
        """Submits the parts of a batch, with their paths, by partition; thread-safe.

        Args:
            commits: the parts.
            refused: the results of other parts of the batch.

        Returns:
            All results, when what was accepted is durable. Errors are results too: those of
            `Shard.write`, and `Overloaded` where too many commits wait already.
        """
        with self._lock:
            full = [p for p in commits if self._waiting[p] >= self._waiting_max]
            overloaded = {partition: self._overloaded(partition) for partition in full}
            accepted = {p: commit for p, commit in commits.items() if p not in overloaded}
            span = spans.begun("append", partitions=len(accepted)) if accepted else None
            waiting = _Waiting(accepted, {**(refused or {}), **overloaded}, span=span)
            if not accepted:
                waiting.done.set_result(waiting.results)
                return waiting.done
            self._waiting.update(accepted.keys())
            self._accepted.update(accepted.keys())
            self._queue.append(waiting)
            if self._writing is None:
                self._writing = self._executor.submit(self._write_group)
        return waiting.done

    def is_idle(self, partition: int) -> bool:
        """Whether all accepted commits of a partition are written."""
        with self._lock:
            return not self._accepted[partition]

    async def drained(self, partition: int | None = None) -> None:
        """Returns when nothing is being written, or nothing of one partition."""
        while (writing := self._writing) is not None:
            if partition is not None and not self._accepted[partition]:
                return
            await asyncio.wait([asyncio.wrap_future(writing)])

    def _overloaded(self, partition: int) -> Overloaded:
        waiting = self._waiting[partition]
        return Overloaded(
            f"{waiting} commits wait for partition {partition} already; try again in a moment",
            after_s=0.2,
            partition=partition,
            bound=self._waiting_max,
        )

    def _take(self) -> list[_Waiting]:
        """The oldest batches that wait, at least one."""
        count = size = 0
        for waiting in self._queue:
            size += len(waiting.commits)
            if count and size > COMMITS_TOGETHER_MAX:
                break
            count += 1
        together = self._queue[:count]
        del self._queue[:count]
        for waiting in together:
            self._waiting.subtract(waiting.commits.keys())
        return together

    def _write_group(self) -> None:
        with self._lock:
            together = self._take()
        durable_s, error = self._shard.durable_s, None
        try:
            self._write(together)
        except Exception as raised:
            error = raised
        durable_s = self._shard.durable_s - durable_s
        for waiting in together:
            _end_span(waiting, error, together=len(together), sync_s=durable_s)
            _settle(waiting, error)
        with self._lock:
            for waiting in together:
                self._accepted.subtract(waiting.commits.keys())
            self._writing = self._executor.submit(self._write_group) if self._queue else None
        if self._shard.wants_maintenance:
            self._executor.submit(self._maintain)

    def _write(self, together: list[_Waiting]) -> None:
        """Writes batches and sets their results."""
        commits = defaultdict[int, list[Commit]](list)
        for waiting in together:
            for partition, commit in waiting.commits.items():
                commits[partition].append(commit)
        results = self._shard.write(commits, executor=self._syncing)
        of_partition = {partition: iter(each) for partition, each in results.items()}
        for waiting in together:
            waiting.results.update({p: next(of_partition[p]) for p in waiting.commits})

    def _maintain(self) -> None:
        try:
            self._shard.maintain()
        except Exception:
            log.exception("merging runs of a graph failed")


def _end_span(waiting: _Waiting, raised: Exception | None, *, together: int, sync_s: float) -> None:
    if waiting.span is None:
        return
    errors = (each for each in waiting.results.values() if isinstance(each, Exception))
    error = raised or next(errors, None)
    name = type(error).__name__ if error else ""
    spans.record(
        "fsync", parent=waiting.span.traceparent, took_s=sync_s, error=name, commits=together
    )
    waiting.span.end(error=name)


def _settle(waiting: _Waiting, error: Exception | None) -> None:
    if not waiting.done.set_running_or_notify_cancel():
        return
    if error is not None:
        waiting.done.set_exception(error)
    else:
        waiting.done.set_result(waiting.results)
