"""Scans of this node's own partitions, and of the whole cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from galileo.cursor import ORIGIN, Cursor
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import AskElsewhere, Cancelled, GalileoError, TryAgain, UnknownDataset
from galileo.labels import LabelSet, first_commits
from galileo.node.catalog import Catalog
from galileo.node.peers import Peers, ScanAnswer, ScanDone, ScanFailed, ScanLabels, ScanTask
from galileo.node.shard import Shard
from galileo.node.view import ClusterView
from galileo.query import Query, parse

LABELS_PER_PART = 32_768
PARTS_WAITING_MAX = 8

log = logging.getLogger(__name__)


class LocalScans:
    """Answers scan tasks from this node's graphs."""

    def __init__(self, catalog: Catalog, *, executor: Executor) -> None:
        self._catalog = catalog
        self._executor = executor

    async def scan(self, tasks: Sequence[ScanTask]) -> AsyncIterator[ScanAnswer]:
        """Each task's labels in parts, then its `ScanDone`, or a `ScanFailed` of its own."""
        loop = asyncio.get_running_loop()
        for dataset in sorted({task.dataset for task in tasks}):
            group = [task for task in tasks if task.dataset == dataset]
            for answer in await loop.run_in_executor(self._executor, self._scan, dataset, group):
                yield answer

    def _scan(self, dataset: str, tasks: Sequence[ScanTask]) -> list[ScanAnswer]:
        try:
            shard = self._catalog.shard(dataset)
        except GalileoError as error:
            return [ScanFailed(task.item, error) for task in tasks]
        # Published before the graph is read: the graph then holds at least this much.
        published = shard.published()
        alike: dict[tuple[Cursor | None, frozenset[int]], list[ScanTask]] = {}
        for task in tasks:
            alike.setdefault((task.until, task.partitions), []).append(task)
        answers: list[ScanAnswer] = []
        for (until, partitions), group in alike.items():
            bound = published if until is None else published.meet(until)
            reached = Cursor({partition: bound[partition] for partition in partitions})
            answers += _scan_alike(shard, group, partitions=partitions, reached=reached)
        return answers


def _scan_alike(
    shard: Shard, tasks: Sequence[ScanTask], *, partitions: frozenset[int], reached: Cursor
) -> list[ScanAnswer]:
    """Tasks that differ in query and cursor alone: one pass over what is new serves them all."""
    answers: list[ScanAnswer] = []
    parsed: list[tuple[ScanTask, Query]] = []
    for task in tasks:
        try:
            parsed.append((task, parse(task.query_json, shard.schema)))
        except GalileoError as error:
            answers.append(ScanFailed(task.item, error))
    tables = shard.graph.scan_many(
        [(query, task.after) for task, query in parsed], until=reached, partitions=partitions
    )
    for (task, _), table in zip(parsed, tables, strict=True):
        labels, until = LabelSet(shard.schema, table), reached
        if task.labels_max:
            labels, until = first_commits(labels, reached=reached, labels_max=task.labels_max)
        answers += [ScanLabels(task.item, part) for part in _parts(labels.table)]
        answers.append(ScanDone(task.item, until))
    return answers


@dataclass(frozen=True, slots=True)
class Tail:
    """How far an answer goes: the frontier of each partition asked, and those not reached."""

    frontier: Cursor
    missing: frozenset[int]


# What makes a node's partitions missing: it is away, busy, or has not heard of the dataset yet.
# Any other error of a node is the answer's error, never a silent gap.
_AWAY = (TryAgain, AskElsewhere, Cancelled, UnknownDataset)

_Part: TypeAlias = pa.Table | Tail | Exception


class ClusterScans:
    """Answers a query from all partitions that could hold a match."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        *,
        local: LocalScans,
        peers: Peers,
        view: ClusterView,
    ) -> None:
        self._name = name
        self._topology = topology
        self._local = local
        self._peers = peers
        self._view = view

    def candidates(self, query: Query) -> frozenset[int]:
        """The partitions that placement allows to hold a match."""
        return placement.candidates(self._topology, query.schema, query.cell_ranges())

    async def run(self, query: Query) -> AsyncIterator[pa.Table | Tail]:
        """The labels in parts, then how far they go; of everything committed when it was asked.

        Where the feature graph rules a match out up to some commit, only later ones are looked
        at, so what it spares is work and never an answer. A node that cannot be reached makes
        its partitions missing; labels that it had already sent lie past the tail's frontier and
        are for the caller to drop (`LabelSet.until`).
        """
        wanted = self.candidates(query)
        spared = self._view.spared(query, wanted)
        async for part in self.between(query, partitions=wanted, after=spared, until=None):
            if isinstance(part, Tail):
                yield Tail(part.frontier.join(spared), part.missing)
            else:
                yield part

    async def between(
        self,
        query: Query,
        *,
        partitions: frozenset[int],
        after: Cursor,
        until: Cursor | None,
        labels_max: int = 0,
    ) -> AsyncIterator[pa.Table | Tail]:
        """The labels of the commits (after, until] of some partitions, then their `Tail`.

        With `labels_max` above 0 each node may stop behind that many.
        """
        whole = ScanTask(
            0, query.schema.name, query.to_json(), after, until, partitions, labels_max
        )
        tasks = self._shares(whole)
        queue: asyncio.Queue[_Part] = asyncio.Queue(PARTS_WAITING_MAX)
        running = [
            asyncio.create_task(self._ask(node, task, queue)) for node, task in tasks.items()
        ]
        tails: list[Tail] = []
        try:
            while len(tails) < len(running):
                part = await queue.get()
                if isinstance(part, Exception):
                    raise part
                if isinstance(part, Tail):
                    tails.append(part)
                else:
                    yield part
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        yield _joined(tails)

    def _shares(self, task: ScanTask) -> dict[str, ScanTask]:
        """The part of the task that each node has to answer."""
        by_node = placement.partitions_by_node(self._topology)
        shares = {node: owned & task.partitions for node, owned in by_node.items()}
        return {
            node: dataclasses.replace(task, partitions=share)
            for node, share in shares.items()
            if share
        }

    async def _ask(self, node: str, task: ScanTask, queue: asyncio.Queue[_Part]) -> None:
        """Puts one node's labels and its tail, or what went wrong on our side."""
        answers = self._local.scan([task]) if node == self._name else self._peers.scan(node, [task])
        tail = Tail(ORIGIN, task.partitions)
        try:
            async for answer in answers:
                if isinstance(answer, ScanLabels):
                    await queue.put(answer.table)
                elif isinstance(answer, ScanDone):
                    tail = Tail(answer.reached, frozenset())
                else:
                    raise answer.error
        except _AWAY as error:
            log.warning("node %s did not answer a scan: %s", node, error)
        except Exception as error:
            await queue.put(error)
            return
        await queue.put(tail)


def _joined(tails: Sequence[Tail]) -> Tail:
    frontier, missing = ORIGIN, frozenset[int]()
    for tail in tails:
        frontier, missing = frontier.join(tail.frontier), missing | tail.missing
    return Tail(frontier, missing)


def _parts(table: pa.Table) -> list[pa.Table]:
    return [
        table.slice(start, LABELS_PER_PART) for start in range(0, table.num_rows, LABELS_PER_PART)
    ]
