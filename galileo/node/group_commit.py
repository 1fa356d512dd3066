"""Group commit: the waiting commits of one partition are written and synced together.

Any thread submits commits; threads of the executor write them, one group at a time and without the
event loop, so that the disk gets the next group at once. A partition with further commits queues
again behind the others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from galileo import spans
from galileo.errors import GalileoError, Overloaded, PartitionMoved
from galileo.node.shard import Shard
from galileo.storage.journal import Commit, Committed

COMMITS_TOGETHER_MAX = 256

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    commit: Commit
    done: Future[Committed] = field(default_factory=Future)
    span: spans.Span | None = None


class GroupCommit:
    """Commits of one partition that wait together share one fsync."""

    def __init__(
        self, shard: Shard, partition: int, *, executor: Executor, waiting_max: int
    ) -> None:
        self._shard = shard
        self._partition = partition
        self._executor = executor
        self._waiting_max = waiting_max
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._ended = False
        self._writing: Future[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of commits that wait for the disk."""
        return len(self._waiting)

    def submit(self, commit: Commit) -> Future[Committed]:
        """Submits rows with their paths; thread-safe; durable when the future has a result.

        Raises:
            Overloaded: too many commits wait already.
            PartitionMoved: the partition takes no more commits here.
        """
        waiting = _Waiting(commit, span=spans.begun("append", partition=self._partition))
        with self._lock:
            if self._ended:
                raise PartitionMoved(
                    f"partition {self._partition} takes no commits here any more; send the same "
                    "batch again",
                    after_s=0.1,
                )
            self._check_room()
            self._waiting.append(waiting)
            if self._writing is None:
                self._writing = self._executor.submit(self._write_group)
        return waiting.done

    def end(self) -> None:
        """Rejects further commits; the waiting ones are written."""
        with self._lock:
            self._ended = True

    def resume(self) -> None:
        """Accepts commits again."""
        with self._lock:
            self._ended = False

    @property
    def is_over(self) -> bool:
        """Whether it rejects commits, and has written all accepted ones."""
        with self._lock:
            return self._ended and self._writing is None

    async def drained(self) -> None:
        """Returns when nothing is being written."""
        while (writing := self._writing) is not None:
            await asyncio.wait([asyncio.wrap_future(writing)])

    def _check_room(self) -> None:
        taken = len(self._waiting)
        if taken >= self._waiting_max:
            raise Overloaded(
                f"{taken} commits wait for partition {self._partition} already; "
                "try again in a moment",
                after_s=0.2,
                partition=self._partition,
                bound=self._waiting_max,
            )

    def _write_group(self) -> None:
        with self._lock:
            together = self._waiting[:COMMITS_TOGETHER_MAX]
            del self._waiting[:COMMITS_TOGETHER_MAX]
        results: list[Committed | GalileoError] | list[Exception]
        synced_s = 0.0
        try:
            synced_s = self._synced_s  # In the try block: an error reaches the waiting commits.
            results = self._shard.write(self._partition, [each.commit for each in together])
        except Exception as error:
            results = [error] * len(together)
        for each, result in zip(together, results, strict=True):
            if each.span is not None:
                _end_span(
                    each.span, result, together=len(together), sync_s=self._synced_s - synced_s
                )
            _settle(each.done, result)
        with self._lock:
            more = bool(self._waiting)
            self._writing = self._executor.submit(self._write_group) if more else None
        if self._shard.wants_maintenance:
            self._executor.submit(self._maintain)

    @property
    def _synced_s(self) -> float:
        return self._shard.journals[self._partition].syncs.sum_s

    def _maintain(self) -> None:
        try:
            self._shard.maintain()
        except Exception:
            log.exception("merging runs of a graph failed")


def _end_span(
    span: spans.Span, result: Committed | Exception, *, together: int, sync_s: float
) -> None:
    error = type(result).__name__ if isinstance(result, Exception) else ""
    spans.record("fsync", parent=span.traceparent, took_s=sync_s, error=error, commits=together)
    span.end(error=error)


def _settle(done: Future[Committed], result: Committed | Exception) -> None:
    if not done.set_running_or_notify_cancel():
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)
