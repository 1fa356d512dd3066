"""Continuous queries on this node: indexed once, then matched in every cycle in one pass.

A request names queries by the digests of their texts, and registers texts that this node does not
know. So a cycle of a hundred thousand queries is a few columns, and no query is parsed again. A
full index evicts the least recently used queries.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo import spans
from galileo.cursor import Cursor, LostPosition, history_changed
from galileo.cycle import CycleRequest, ItemFailure, MatchedPartitions, Matches, Numbers
from galileo.errors import GalileoError, Unavailable
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.standing_match import MatchQuery, MatchRequests
from galileo.hashing import digest, split_digests
from galileo.model.forks import first_of
from galileo.model.schema import Schema
from galileo.node.catalog import Catalog
from galileo.node.dataset_shard import DatasetShard
from galileo.query import Query, parse
from galileo.query.index import StandingQueries

QUERIES_MAX = 200_000
"""Queries that are kept for one dataset."""
TEXT_BYTES_MAX = 256 << 20
"""Of their texts."""
PAIRS_MAX = 1 << 22
"""Matches of one answer; what is past them comes with the next, a single commit excepted."""
EVICT_TO_SHARE = 0.9
"""Share of a bound that an eviction leaves filled."""


class Registry:
    """The indexed continuous queries of one dataset; `lock` is held during each access.

    Args:
        schema: of the dataset.
        queries_max: that are kept.
        text_bytes_max: of their texts together.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        queries_max: int = QUERIES_MAX,
        text_bytes_max: int = TEXT_BYTES_MAX,
    ) -> None:
        self.lock = threading.Lock()
        self.standing = StandingQueries(schema)
        self.wrong: dict[bytes, GalileoError] = {}
        self.schema = schema
        self._queries_max = queries_max
        self._text_bytes_max = text_bytes_max
        self._text_bytes = 0
        self._texts: dict[bytes, str] = {}
        self._turn = 0
        self._turns: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._texts)

    def learn(self, text: str) -> None:
        """Indexes a query, or records its error."""
        name = digest(text)
        if name in self._texts or name in self.wrong:
            return
        try:
            query = parse(text, self.schema)
        except GalileoError as error:
            if len(self.wrong) >= self._queries_max:
                self.wrong.clear()
            self.wrong[name] = error
            return
        with self.lock:
            if name in self._texts:
                return  # Another thread was faster.
            self._make_room(len(text))
            self._texts[name] = text
            self._text_bytes += len(text)
            self.standing.add(name, query)
            self._mark_used(self.standing.slots([name]))

    def slots(self, names: Sequence[bytes]) -> npt.NDArray[np.int32]:
        """The slot of each query, -1 where it is unknown; marks the others as used now."""
        slots = self.standing.slots(names)
        self._turn += 1
        self._mark_used(slots[slots >= 0])
        return slots

    def query(self, name: bytes) -> Query:
        return parse(self._texts[name], self.schema)

    def text(self, name: bytes) -> str | None:
        """The text of a query; None where it is not known."""
        return self._texts.get(name)

    def _mark_used(self, slots: npt.NDArray[np.int32]) -> None:
        if len(self._turns) < self.standing.capacity:
            more = np.zeros(self.standing.capacity, dtype=np.int64)
            more[: len(self._turns)] = self._turns
            self._turns = more
        self._turns[slots] = self._turn

    def _make_room(self, text_bytes: int) -> None:
        """Evicts the least recently used queries, some more than necessary."""
        full = len(self._texts) >= self._queries_max
        if not full and self._text_bytes + text_bytes <= self._text_bytes_max:
            return
        names = [*self._texts]
        oldest = np.argsort(self._turns[self.standing.slots(names)], kind="stable")
        for at in oldest.tolist():
            fits = self._text_bytes + text_bytes <= EVICT_TO_SHARE * self._text_bytes_max
            if fits and len(self._texts) < EVICT_TO_SHARE * self._queries_max:
                return
            self._text_bytes -= len(self._texts.pop(names[at]))
            self.standing.remove(names[at])


class Matching:
    """Answers requests of cycles from this node's graphs.

    Args:
        catalog: of the node.
        executor: in whose threads it works.
    """

    def __init__(self, catalog: Catalog, *, executor: Executor) -> None:
        self._catalog = catalog
        self._executor = executor
        self._registries: dict[str, Registry] = {}

    async def register_queries(self, dataset: str, texts: Sequence[str]) -> None:
        """Indexes queries, so that `match` knows their digests.

        Raises:
            UnknownDataset: there is none of that name here.
        """
        registry = self.registry(dataset)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, _learn, registry, texts)

    async def match(self, request: CycleRequest) -> Matches:
        """The new matches of each item, up to what is committed now.

        Of partitions that this node does not lead, up to what the request knows to be committed.

        Raises:
            UnknownDataset: there is none of that name here.
            PartitionMoved: some of the partitions are not this node's, and it has not published
                what is known to be committed of them.
        """
        loop = asyncio.get_running_loop()
        with spans.child("scan", dataset=request.dataset, queries=len(request)):
            return await loop.run_in_executor(self._executor, self._match, request)

    def text(self, dataset: str, name: bytes) -> str:
        """The text of a continuous query.

        Raises:
            UnknownDataset: there is none of that name here.
            Unavailable: the query was evicted; the next cycle registers it again.
        """
        text = self.registry(dataset).text(name)
        if text is None:
            raise Unavailable("this node has evicted the continuous query; try again")
        return text

    def forget(self, dataset: str) -> None:
        """Removes the queries of a dropped dataset."""
        self._registries.pop(dataset, None)

    def registry(self, dataset: str) -> Registry:
        """The queries of a dataset; empty again when features were added to it.

        Their next cycles register them with the new schema.
        """
        schema = self._catalog.schema(dataset)
        registry = self._registries.get(dataset)
        if registry is not None and registry.schema is not schema:
            self._registries.pop(dataset, None)
        return self._registries.setdefault(dataset, Registry(schema))

    def _match(self, task: CycleRequest) -> Matches:
        registry, shard = self.registry(task.dataset), self._catalog.shard(task.dataset)
        label_schema = registry.schema.narrowed(task.schema.added).label_schema
        # Journals before, and published before the graph is read: it then holds at least this much.
        journals, until = shard.journals, _readable_until(shard, task)
        names, changes = split_digests(task.digests.tobytes()), _changes(shard, task)
        with registry.lock:
            slots = registry.slots(names)
            wanted = slots >= 0
            for change in changes:
                wanted[change.items] = False
            known = np.flatnonzero(wanted).astype(np.int32)
            asks = MatchRequests(slots, task.cursors, task.partitions, task.cursor_rows)
            one_pass = _Passes(shard.graph, registry, asks, names, label_schema)
            parts = one_pass.parts(known, until=until, pairs_max=PAIRS_MAX)
        shard.check_unchanged(journals, until)
        # Looked at after the graph: it is at least what the passes missed.
        dropped, deletions = (
            Cursor({p: s for p, s in cursor.items() if p in until})
            for cursor in (shard.dropped(), shard.deletions())
        )
        parts = [replace(part, dropped=dropped, deletions=deletions) for part in parts]
        answer = _answer(parts, names, slots, registry.wrong)
        return replace(answer, failures=(*answer.failures, *changes))


@dataclass(frozen=True, slots=True, eq=False)
class _Passes:
    """As few passes as keep the response within its bound, usually one."""

    graph: MetadataGraph
    registry: Registry
    asks: MatchRequests
    names: Sequence[bytes]
    label_schema: pa.Schema

    def parts(
        self, items: npt.NDArray[np.int32], *, until: Cursor, pairs_max: int | None
    ) -> list[MatchedPartitions]:
        """The new matches of some items.

        Too many matches are reduced in three steps: the items that are farthest behind get a pass
        of their own; then a pass covers fewer commits; then some items wait for the next request.
        """
        if len(items) == 0:
            return []
        asks = self.asks.select(items)
        matches = self.graph.match(
            MatchQuery(
                self.registry.standing,
                asks,
                until,
                lambda ask: self.registry.query(self.names[items[ask]]),
                self.label_schema,
                pairs_max,
            )
        )
        if matches is not None:
            return [MatchedPartitions(items.astype(np.uint32), until, matches.renumbered(items))]
        assert pairs_max is not None
        ahead, behind = _by_distance(asks, until)
        if len(ahead):
            half = max(1, pairs_max // 2)
            first = self.parts(items[ahead], until=until, pairs_max=half)
            return first + self.parts(items[behind], until=until, pairs_max=half)
        nearer = _halfway(asks, until)
        if nearer is not None:
            return self.parts(items, until=nearer, pairs_max=pairs_max)
        some = items[: max(1, len(items) // 2)]
        return self.parts(some, until=until, pairs_max=pairs_max if len(items) > 1 else None)


def _readable_until(shard: DatasetShard, task: CycleRequest) -> Cursor:
    """Up to where a task is answered.

    A replica does not show what its leader may not show yet: a token ahead of the leader would be
    denied.

    Raises:
        PartitionMoved: see `Matching.match`.
    """
    partitions = task.partitions.tolist()
    after, committed = task.range()
    own = shard.surely_own(partitions)
    shard.check_readable(frozenset(partitions) - own, after=after, until=committed)
    published = shard.published(partitions)
    if committed is None:
        return published
    return Cursor({p: (published if p in own else committed)[p] for p in partitions})


def _changes(shard: DatasetShard, task: CycleRequest) -> list[ItemFailure]:
    """The items that have evaluated commits that were lost before a jump of a log.

    Each of their errors says to go on behind the latest jump, where the coordinator's cache begins
    again: what a reader may want of the commits before is looked for anew.
    """
    jumps = {c: shard.jumps(p) for c, p in enumerate(task.partitions.tolist())}
    jumps = {column: forks for column, forks in jumps.items() if forks.pairs}
    after = task.cursor_rows
    lost = [forks.are_lost(after[:, column]) for column, forks in jumps.items()]
    if not np.any(lost):
        return []
    masks, first, mask_of = np.unique(
        np.column_stack(lost), axis=0, return_index=True, return_inverse=True
    )
    numbers, changes = mask_of.reshape(-1)[task.cursors], list[ItemFailure]()
    for number in np.flatnonzero(masks.any(axis=1)).tolist():
        positions = [
            LostPosition(
                int(task.partitions[column]),
                at := int(after[first[number], column]),
                forks.last_common(at) or 0,
                first_of(forks.history) - 1,
            )
            for (column, forks), is_lost in zip(jumps.items(), masks[number], strict=True)
            if is_lost
        ]
        items = np.flatnonzero(numbers == number).astype(np.uint32)
        changes.append(ItemFailure(items, history_changed(task.dataset, positions)))
    return changes


def _by_distance(
    asks: MatchRequests, until: Cursor
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The asks in two: those with fewer commits to look at, perhaps none, and the others."""
    ends = np.array([until[p] for p in asks.partitions.tolist()], dtype=np.int64)
    behind = np.maximum(ends - np.minimum(asks.after, ends), 0).sum(axis=1)[asks.cursors]
    far = behind >= behind.max()
    return np.flatnonzero(~far), np.flatnonzero(far)


def _halfway(asks: MatchRequests, until: Cursor) -> Cursor | None:
    """Half as far as `until` from where the asks begin; None where that is one commit."""
    begins = zip(asks.partitions.tolist(), asks.least_sequences().tolist(), strict=True)
    gaps = {p: (until[p], until[p] - first) for p, first in begins if first < until[p]}
    if all(gap <= 1 for _, gap in gaps.values()):
        return None
    return Cursor({p: end - gap // 2 for p, (end, gap) in gaps.items()})


def _learn(registry: Registry, texts: Sequence[str]) -> None:
    for text in texts:
        registry.learn(text)


def _answer(
    parts: Sequence[MatchedPartitions],
    names: Sequence[bytes],
    slots: npt.NDArray[np.int32],
    wrong: dict[bytes, GalileoError],
) -> Matches:
    missing = np.flatnonzero(slots < 0).tolist()
    failed: dict[bytes, list[int]] = {}
    unknown: list[int] = []
    for item in missing:
        if names[item] in wrong:
            failed.setdefault(names[item], []).append(item)
        else:
            unknown.append(item)
    failures = tuple(ItemFailure(_numbers(items), wrong[name]) for name, items in failed.items())
    return Matches(tuple(parts), _numbers(unknown), failures)


def _numbers(items: Sequence[int]) -> Numbers:
    return np.array(items, dtype=np.uint32)
