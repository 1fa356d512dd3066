"""Work on this node's graphs that analyses do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

from galileo.cursor import Cursor
from galileo.errors import Cancelled, Overloaded
from galileo.graph.run_scan import Check
from galileo.node import query_limits
from galileo.node.catalog import Catalog
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import PartitionScope
from galileo.node.row_reader import RowReader
from galileo.node.select import CursorRange

Answer = TypeVar("Answer")


class LocalGraphs:
    """This node's graphs and observations, for work in threads of `executor`.

    Cancelling a call stops its work between two pieces, of which each takes milliseconds.

    Attributes:
        reading: reads observations.
    """

    def __init__(self, catalog: Catalog, *, reading: RowReader, executor: Executor) -> None:
        self.reading = reading
        self._catalog = catalog
        self._executor = executor
        self._working = 0

    def shard(self, dataset: str, scope: PartitionScope) -> DatasetShard:
        """The shard of a dataset, which has all partitions of the scope.

        Raises:
            PartitionMoved: another node has one of them.
        """
        shard = self._catalog.shard(dataset)
        shard.check_own(scope.partitions)
        return shard

    def begin(self, dataset: str, scope: PartitionScope) -> tuple[DatasetShard, CursorRange]:
        """The shard, and the commits of an answer that is begun now; errors as `shard`."""
        shard = self.shard(dataset, scope)
        # Published before the graph is read: the graph then holds at least this much.
        published = shard.published()
        bound = published if scope.until is None else published.meet(scope.until)
        reached = Cursor({partition: bound[partition] for partition in scope.partitions})
        return shard, CursorRange(scope.partitions, scope.after, reached)

    async def run(self, work: Callable[[Check], Answer]) -> Answer:
        """Does a piece of work in a thread; when this is cancelled the work's check raises.

        Raises:
            Overloaded: too many pieces wait.
        """
        if self._working >= query_limits.ANALYTICS_WAITING_MAX:
            raise Overloaded(
                f"{self._working} analytics requests are running at this node; try again later",
                after_s=0.5,
            )
        stopped = threading.Event()

        def check() -> None:
            if stopped.is_set():
                raise Cancelled("the request was cancelled")

        self._working += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, work, check)
        finally:
            stopped.set()
            self._working -= 1

    async def run_steps(self, work: Iterator[None]) -> None:
        """Does work that yields between its steps, for about `STEP_S` at a time."""
        while await self.run(lambda check: _advance(work, query_limits.STEP_S, check)):
            pass


def _advance(work: Iterator[None], step_s: float, check: Check) -> bool:
    """Does some of the work, for about `step_s`; whether there is more."""
    deadline = time.monotonic() + step_s
    for _ in work:
        check()
        if time.monotonic() > deadline:
            return True
    return False
