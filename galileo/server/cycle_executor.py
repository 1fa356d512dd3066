"""Executes processing cycles of very many CCQs: one request in columns, one result for each.

A cycle evaluates only partitions that can have new matches on Spark; placement and, in small
cycles, the feature graph exclude the others. CCQs at the same cursor with the same partitions share
one row of the request and one cursor of the result, so that a CCQ without matches costs almost
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo import spans
from galileo.ccq import events as ccq
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.cycle import NOT_REQUESTED, Answers, CycleAnswer, CycleRequest, ReachedPart
from galileo.dht import placement
from galileo.dht.topology import RangeMap
from galileo.errors import Failure, GalileoError
from galileo.hashing import digest
from galileo.model.forks import history_of
from galileo.model.schema import Schema
from galileo.node.storage_node import StorageNode
from galileo.packing import Compression
from galileo.packs import PackedLabels
from galileo.query import parse

PRUNED_ITEMS_MAX = 256
"""Size of a cycle up to which the feature graph is used."""
TEXTS_BYTES_MAX = 4 << 20
TEXTS_MAX = 8_192
"""Texts of queries, and their bytes, that are registered with one call."""
QUERIES_KEPT = 200_000
STOOD_MAX = 1_000_000
"""Cached digests of queries that nodes know."""

Evaluate = Callable[[Sequence[CycleRequest]], Awaitable[Answers]]
RegisterQueries = Callable[[str, str, Sequence[str]], Awaitable[None]]
FailureOf = Callable[[Exception], Failure]
Partitions: TypeAlias = frozenset[int]


@dataclass(frozen=True, slots=True)
class _Known:
    """A parsed query, as a cycle needs it."""

    digest: bytes
    candidates: Partitions


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """Items at one cursor with the same partitions.

    Attributes:
        after: their cursor.
        asked: the partitions to scan.
        certain: the result for the excluded partitions.
    """

    after: Cursor
    asked: Partitions
    certain: Cursor


@dataclass(slots=True, eq=False)
class _Group:
    """The items of one dataset that were submitted with the same features.

    Attributes:
        schema: of their labels.
        items: the items of the cycle.
        digests: of their queries.
        rows: the distinct rows.
        row_of: for each item its row.
        row_at: rows by cursor and partitions.
        committed: of each partition a commit that a leader has published.
        here: the partitions about which this node answers, as the leader or another replica.
        nodes: names of those that the request names.
    """

    schema: Schema
    items: list[ccq.CycleItem] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)
    row_of: list[int] = field(default_factory=list)
    row_at: dict[tuple[Cursor, tuple[int, ...], int], int] = field(default_factory=dict)
    committed: Cursor = EMPTY_CURSOR
    here: Partitions = frozenset()
    nodes: Sequence[str] = ()

    @property
    def partitions(self) -> list[int]:
        return sorted(frozenset[int]().union(*(row.asked for row in self.rows)))

    def after(self, partitions: Sequence[int]) -> npt.NDArray[np.int64]:
        """The cursor of each row at each partition, `NOT_REQUESTED` where it is not asked."""
        return np.array(
            [
                [row.after[p] if p in row.asked else NOT_REQUESTED for p in partitions]
                for row in self.rows
            ],
            dtype=np.int64,
        )


class CycleExecutor:
    """Runs processing cycles for the continuous machine.

    Args:
        node: the node's view of the cluster.
        evaluate: runs one Spark job.
        register_queries: registers the texts of queries at a node.
        is_dead: whether a node counts as dead, so that a cycle does not wait for it.
        failure_of: converts an error for the machine.
    """

    def __init__(
        self,
        node: StorageNode,
        *,
        evaluate: Evaluate,
        register_queries: RegisterQueries,
        is_dead: Callable[[str], bool],
        failure_of: FailureOf,
    ) -> None:
        self._node = node
        self._evaluate = evaluate
        self._register_queries = register_queries
        self._is_dead = is_dead
        self._failure_of = failure_of
        self._known: dict[tuple[str, str], _Known] = {}
        self._ranges: tuple[RangeMap, ...] = ()
        self._candidates: dict[Partitions, Partitions] = {}
        self._stood: set[tuple[str, str, bytes]] = set()

    async def run(self, effect: ccq.StartCycle) -> ccq.CycleFinished:
        """Runs one cycle.

        Raises:
            GalileoError: the cycle failed.
        """
        groups = await asyncio.to_thread(self._grouped, effect.items)
        scanned = [group for group in groups if group.partitions]
        answers: dict[int, tuple[CycleAnswer, ...]] = {}
        if scanned:
            for group in scanned:
                self._choose_replicas(group)
            requests = await asyncio.to_thread(self._requests, scanned)
            await self._introduce(scanned, requests)
            with spans.child("job", datasets=len(scanned)):
                answered = await self._evaluate(requests)
            answers = dict(zip(map(id, scanned), answered, strict=True))
            self._forget(requests, answered)
            self._note_deletions(scanned, answered)
        results = [
            await asyncio.to_thread(self._results, group, answers.get(id(group), ()))
            for group in groups
        ]
        return ccq.CycleFinished(effect.cycle_id, tuple(one for part in results for one in part))

    # --- what is asked -----------------------------------------------------------------------

    def _grouped(self, items: Sequence[ccq.CycleItem]) -> list[_Group]:
        groups: dict[tuple[str, int], _Group] = {}
        # By identity first: many items share objects.
        rows: dict[tuple[int, int, int, int], int] = {}
        is_pruned = len(items) <= PRUNED_ITEMS_MAX
        shards = self._node.catalog.dataset_shards
        for item in items:
            name, added = item.ccq.dataset, item.ccq.added
            group = groups.get((name, added))
            if group is None:
                if name not in shards or shards[name].schema.added < added:
                    continue  # Dropped: it ends. Not known yet: retried in the next cycle.
                group = groups[name, added] = _Group(shards[name].schema.narrowed(added))
            known = self._of_query(item.ccq.query, group.schema)
            key = (id(group), id(item.after), id(item.partitions), id(known.candidates))
            at = None if is_pruned else rows.get(key)
            if at is None:
                at = rows[key] = self._row_at(group, item, known, is_pruned=is_pruned)
            group.items.append(item)
            group.digests.append(known.digest)
            group.row_of.append(at)
        return list(groups.values())

    def _row_at(self, group: _Group, item: ccq.CycleItem, known: _Known, *, is_pruned: bool) -> int:
        key = (item.after, item.partitions, id(known.candidates))
        at = None if is_pruned else group.row_at.get(key)
        if at is None:
            at = group.row_at[key] = len(group.rows)
            group.rows.append(self._row(item, known, group.schema, is_pruned=is_pruned))
        return at

    def _row(self, item: ccq.CycleItem, known: _Known, schema: Schema, *, is_pruned: bool) -> _Row:
        sequences = self._node.view.sequences(schema.key)
        wanted = frozenset(item.partitions)
        possible = known.candidates & wanted
        certain = Cursor({p: sequences[p] for p in wanted - possible})
        if not is_pruned:
            return _Row(item.after, possible, certain)
        query = parse(item.ccq.query, schema)
        pruned = self._node.view.pruned_until(query, possible, after=item.after)
        # A synopsis that is older than the evaluated commits excludes nothing new.
        # Where a log has jumped since, its owner is asked, and checks what was evaluated.
        pruned = Cursor(
            {
                p: s
                for p, s in pruned.items()
                if s > item.after[p] and history_of(s) == history_of(item.after[p])
            }
        )
        return _Row(item.after, possible - set(pruned), certain.join(pruned))

    def _of_query(self, text: str, schema: Schema) -> _Known:
        key, ranges = (schema.key, text), self._node.topology.readable_ranges
        if ranges != self._ranges:
            self._known.clear()
            self._ranges = ranges
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= QUERIES_KEPT:
                self._known.clear()
            candidates = self._possible(text, schema)
            # Equal cursors are one object, which identifies the row.
            candidates = self._candidates.setdefault(candidates, candidates)
            known = self._known[key] = _Known(digest(text), candidates)
        return known

    def _possible(self, text: str, schema: Schema) -> Partitions:
        """The partitions that can hold a match by placement; all, if there is one group."""
        if len(self._node.topology.groups) == 1:
            return placement.readable_partitions(self._node.topology)
        return self._node.scans.candidates(parse(text, schema))

    def _choose_replicas(self, group: _Group) -> None:
        """Has this node answer about partitions of which it has published what is committed."""
        shard = self._node.catalog.shards.get(group.schema.key)
        topology = self._node.topology
        if shard is None or not topology.is_replicated or self._node.name not in topology.by_name:
            return
        partitions = group.partitions
        after = group.after(partitions)
        least, most = after.min(axis=0), np.where(after == NOT_REQUESTED, 0, after).max(axis=0)
        known = self._node.view.sequences(group.schema.key)
        # A cursor can be ahead of what this node has heard: another one began the query.
        evaluated = Cursor(dict(zip(partitions, most.tolist(), strict=True)))
        group.committed = evaluated.join({p: known[p] for p in partitions})
        group.here = shard.readable(
            partitions,
            after=Cursor(dict(zip(partitions, least.tolist(), strict=True))),
            until=group.committed,
        )

    def _requests(self, groups: Sequence[_Group]) -> list[CycleRequest]:
        owned = placement.partitions_by_node(self._node.topology)
        live = [node.name for node in self._node.topology.nodes if not self._is_dead(node.name)]
        return [
            self._request(group, [(self._node.name, group.here), *((n, owned[n]) for n in live)])
            for group in groups
        ]

    def _request(self, group: _Group, nodes: Iterable[tuple[str, Partitions]]) -> CycleRequest:
        """What is asked about a group.

        Args:
            group: the items.
            nodes: with the partitions that each can answer about; the first one is asked.
        """
        partitions = group.partitions
        rows, cursors = np.unique(group.after(partitions), axis=0, return_inverse=True)
        owner = {p: name for name, owned in reversed([*nodes]) for p in owned}
        names = group.nodes = list(dict.fromkeys(owner[p] for p in partitions if p in owner))
        samplers = _samplers(group.items)
        committed = [group.committed[p] for p in partitions] if group.here else []
        return CycleRequest(
            dataset=group.schema.key,
            schema_json=group.schema.to_json(),
            partitions=np.array(partitions, dtype=np.int32),
            after=rows.reshape(-1),
            cursors=cursors.reshape(-1)[np.array(group.row_of, dtype=np.intp)].astype(np.int32),
            digests=np.frombuffer(b"".join(group.digests), np.uint8),
            items=np.arange(len(group.items), dtype=np.uint32),
            samplers_json=tuple(samplers),
            samplers=np.array([_number(samplers, item) for item in group.items], dtype=np.uint32),
            is_compressed=np.array(
                [item.ccq.compression is Compression.LZ4 for item in group.items], dtype=np.bool_
            ),
            addresses=tuple(self._node.topology.by_name[name].address for name in names),
            owners=np.array(
                [names.index(owner[p]) if p in owner else -1 for p in partitions], dtype=np.int32
            ),
            committed=np.array(committed, dtype=np.int64),
        )

    # --- queries that nodes do not know yet --------------------------------------------------

    async def _introduce(self, groups: Sequence[_Group], requests: Sequence[CycleRequest]) -> None:
        """Registers new queries at the nodes that are asked.

        If that fails, the node reports unknown queries, which the next cycle registers again.
        """
        if len(self._stood) > STOOD_MAX:
            self._stood.clear()
        calls = [
            self._introduce_at(name, group, np.flatnonzero(request.is_asked_of(node)).tolist())
            for group, request in zip(groups, requests, strict=True)
            for node, name in enumerate(group.nodes)
        ]
        await asyncio.gather(*calls)

    async def _introduce_at(self, node: str, group: _Group, items: Sequence[int]) -> None:
        dataset, digests = group.schema.key, group.digests
        new = {
            digests[item]: group.items[item].ccq.query
            for item in items
            if (node, dataset, digests[item]) not in self._stood
        }
        try:
            for texts in _in_messages(new.values()):
                await self._register_queries(node, dataset, texts)
        except GalileoError:
            return
        self._stood.update((node, dataset, name) for name in new)

    def _forget(self, requests: Sequence[CycleRequest], answers: Answers) -> None:
        """Forgets queries that a node no longer knows; the next cycle registers them again."""
        lost = {
            request.digest_of(item)
            for request, own in zip(requests, answers, strict=True)
            for answer in own
            for item in answer.unknown.tolist()
        }
        if lost:
            self._stood = {one for one in self._stood if one[2] not in lost}

    # --- what was answered -------------------------------------------------------------------

    def _note_deletions(self, groups: Sequence[_Group], answers: Answers) -> None:
        for group, own in zip(groups, answers, strict=True):
            for part in (part for answer in own for part in answer.parts):
                self._node.view.update_deletions(
                    group.schema.key, part.deletions, until=part.reached
                )

    def _results(self, group: _Group, answers: Sequence[CycleAnswer]) -> list[ccq.CycleResult]:
        """The result of each item; takes time in proportion to the items and their packs."""
        keys, cursors = _ends(group, [part for answer in answers for part in answer.parts])
        failures = self._failures(answers)
        labels: dict[int, list[PackedLabels]] = {}
        for answer in answers:
            for at, packed in answer.packs.labels(group.schema).items():
                labels.setdefault(at, []).append(packed)
        results = []
        for number, (item, key) in enumerate(zip(group.items, keys, strict=True)):
            until, gone = cursors[key]
            failure = failures.get(number)
            own = PackedLabels.concat(labels.get(number, ())) if failure is None else None
            results.append(
                ccq.CycleResult(item.ccq.id, item.term, item.after, own, until, failure, gone)
            )
        return results

    def _failures(self, answers: Sequence[CycleAnswer]) -> dict[int, Failure]:
        failures: dict[int, Failure] = {}
        for one in (failure for answer in answers for failure in answer.failures):
            failures |= dict.fromkeys(one.items.tolist(), self._failure_of(one.error))
        return failures


def _ends(
    group: _Group, parts: Sequence[ReachedPart]
) -> tuple[list[int], list[tuple[Cursor, Cursor]]]:
    """Up to where each item was evaluated; items of one row with the same parts share that.

    Returns:
        For each item the index of its cursors; and the cursors: the evaluated one, and the end of
        commits that retention dropped.
    """
    said = _memberships(len(group.items), parts)
    rows = np.array(group.row_of, dtype=np.int64)
    combined = rows * (int(said.max(initial=0)) + 1) + said
    _, items, keys = np.unique(combined, return_index=True, return_inverse=True)
    parts_of: dict[int, list[ReachedPart]] = {}
    cursors: list[tuple[Cursor, Cursor]] = []
    for row, number, item in zip(
        rows[items].tolist(), said[items].tolist(), items.tolist(), strict=True
    ):
        if number not in parts_of:
            parts_of[number] = [part for part in parts if _holds(part, item)]
        cursors.append(_end(group.rows[row], parts_of[number]))
    return keys.tolist(), cursors


def _end(row: _Row, parts: Iterable[ReachedPart]) -> tuple[Cursor, Cursor]:
    reached, gone = row.certain, EMPTY_CURSOR
    for part in parts:
        mine = {p: s for p, s in part.reached.items() if p in row.asked}
        dropped = part.dropped.meet(mine)
        reached = reached.join(mine)
        gone = gone.join({p: s for p, s in dropped.items() if s > row.after[p]})
    return reached, gone


def _memberships(items: int, parts: Sequence[ReachedPart]) -> npt.NDArray[np.int64]:
    """A number for each item, equal for items in the same parts."""
    said = np.zeros(items, dtype=np.int64)
    for part in parts:
        inside = np.zeros(items, dtype=np.int64)
        inside[part.items] = 1
        said = np.unique(2 * said + inside, return_inverse=True)[1].astype(np.int64)
    return said


def _holds(part: ReachedPart, item: int) -> bool:
    at = int(np.searchsorted(part.items, item))
    return at < len(part.items) and int(part.items[at]) == item


def _in_messages(texts: Iterable[str]) -> Iterable[list[str]]:
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= TEXTS_BYTES_MAX or len(held) == TEXTS_MAX:
            yield held
            held, size = [], 0
    if held:
        yield held


def _samplers(items: Iterable[ccq.CycleItem]) -> dict[str, int]:
    """The distinct samplers, numbered from 1 on."""
    texts = dict.fromkeys(item.ccq.sampler.to_json() for item in items if item.ccq.sampler)
    return {text: number for number, text in enumerate(texts, start=1)}


def _number(samplers: dict[str, int], item: ccq.CycleItem) -> int:
    return samplers[item.ccq.sampler.to_json()] if item.ccq.sampler else 0
