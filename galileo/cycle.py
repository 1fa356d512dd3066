"""The values of a cycle, in columns: what a coordinator asks, what owners find, what tasks return.

    coordinator -- CycleRequest --> evaluator --> task -- CycleRequest --> owner of partitions
                <-- CycleAnswer --            <--      <----- Matches ----

A request has the items (queries) of one dataset: a few bytes for each item, and no object. A path
that matches several items is stored once; pairs of an item and a row assign it to them. An item is
the number of a query in its request.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError, InputError
from galileo.hashing import DIGEST_BYTES
from galileo.model.schema import Schema
from galileo.packs import PackColumns

Numbers = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]
PAIR_BYTES = 8
"""Bytes of a pair."""
NOT_REQUESTED = int(np.iinfo(np.int64).max)
"""In place of a sequence: nothing of this partition is requested."""
ITEMS_MAX = 1_000_000
_SCHEMAS_MAX = 1_024


def no_numbers() -> Numbers:
    return np.empty(0, dtype=np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class CycleRequest:
    """The n items of one dataset, of which the new matches are wanted.

    Attributes:
        dataset: name.
        schema_json: of the labels.
        partitions: that any item needs, ascending, shape (p,).
        after: sequences for each cursor and partition, `NOT_REQUESTED` where the partition is not
            needed; c rows of p numbers.
        cursors: for each item its row of `after`, shape (n,).
        digests: of the items' queries, one behind the other, `DIGEST_BYTES` each.
        items: numbers of the items in the whole request, ascending, shape (n,).
        samplers_json: the samplers of all items.
        samplers: for each item its sampler, from 1 on; 0 for none; shape (n,).
        is_compressed: whether the labels of an item are packed with compression, shape (n,).
        addresses: of the nodes that are asked.
        owners: for each partition its node in `addresses`; -1 where there is none; shape (p,).
        committed: a commit of each partition that a leader has published, shape (p,): a replica
            that has published it, too, may answer up to there. Empty: only leaders answer.
        origin: request id and trace context of the coordinator's call.
    """

    dataset: str
    schema_json: str
    partitions: npt.NDArray[np.int32]
    after: npt.NDArray[np.int64]
    cursors: npt.NDArray[np.int32]
    digests: npt.NDArray[np.uint8]
    items: Numbers
    samplers_json: tuple[str, ...]
    samplers: Numbers
    is_compressed: npt.NDArray[np.bool_]
    addresses: tuple[str, ...]
    owners: npt.NDArray[np.int32]
    committed: npt.NDArray[np.int64]
    origin: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.cursors)

    @property
    def schema(self) -> Schema:
        """The schema of the labels."""
        return _schema(self.schema_json)

    @property
    def cursor_rows(self) -> npt.NDArray[np.int64]:
        """The sequences of each cursor, shape (c, p)."""
        return self.after.reshape(-1, max(1, len(self.partitions)))

    def range(self) -> tuple[Cursor, Cursor | None]:
        """The smallest of the cursors, and what is known to be committed."""
        after = self._cursor(self.cursor_rows.min(axis=0, initial=NOT_REQUESTED))
        return after, self._cursor(self.committed) if len(self.committed) else None

    def digest_of(self, item: int) -> bytes:
        """The digest of the query at a place among these items."""
        return self.digests[DIGEST_BYTES * item : DIGEST_BYTES * (item + 1)].tobytes()

    def slice(self, start: int, stop: int) -> CycleRequest:
        """The items [start, stop)."""
        return self._select(np.arange(*slice(start, stop).indices(len(self))))

    def is_asked_of(self, node: int) -> Mask:
        """Whether each item needs any of the partitions of a node, shape (n,)."""
        after = self.cursor_rows[:, self.owners == node]
        asked: Mask = (after != NOT_REQUESTED).any(axis=1)[self.cursors]
        return asked

    def for_node(self, node: int) -> CycleRequest:
        """What a node is asked: its partitions, and the items that need any of them."""
        columns = np.flatnonzero(self.owners == node)
        after = self.cursor_rows[:, columns]
        some = self._select(np.flatnonzero(self.is_asked_of(node)))
        rows, cursors = np.unique(some.cursors, return_inverse=True)
        return replace(
            some,
            partitions=self.partitions[columns],
            after=after[rows].reshape(-1),
            cursors=cursors.astype(np.int32),
            addresses=(self.addresses[node],),
            owners=np.zeros(len(columns), dtype=np.int32),
            committed=self.committed[columns] if len(self.committed) else self.committed,
        )

    def check(self, *, items_max: int = ITEMS_MAX) -> None:
        """Checks a decoded request.

        Raises:
            InputError: its columns do not fit each other, or there are too many items.
        """
        if len(self) > items_max:
            raise InputError(
                f"expected at most {items_max:,} items in a request, got {len(self):,}",
                bound=items_max,
            )
        self._check_partitions()
        self._check_items()

    def _check_partitions(self) -> None:
        p = len(self.partitions)
        if p == 0 or int(self.partitions[0]) < 0 or (np.diff(self.partitions) <= 0).any():
            raise InputError(
                "expected partitions from 0 on in ascending order, at least one; got "
                f"{self.partitions[:10].tolist()}"
            )
        if len(self.after) % p or len(self.owners) != p or len(self.committed) not in (0, p):
            raise InputError(
                f"expected cursors, owners and committed sequences of {p} partitions, got "
                f"{len(self.after)}, {len(self.owners)} and {len(self.committed)} numbers"
            )
        if int(self.owners.max()) >= len(self.addresses):
            raise InputError(
                f"expected one of {len(self.addresses)} nodes for each partition, got node "
                f"{self.owners.max()}"
            )

    def _check_items(self) -> None:
        n, cursors = len(self), len(self.after) // len(self.partitions)
        columns = (self.items, self.samplers, self.is_compressed)
        if any(len(column) != n for column in columns) or len(self.digests) != DIGEST_BYTES * n:
            raise InputError(
                f"expected a number, a sampler, a compression and a digest for each of {n:,} "
                f"items, got {[*map(len, columns)]} and {len(self.digests):,} bytes of digests"
            )
        if n and not 0 <= int(self.cursors.min()) <= int(self.cursors.max()) < cursors:
            raise InputError(
                f"expected items of {cursors} cursors, got one with cursor "
                f"{self.cursors.min()} or {self.cursors.max()}"
            )
        if n and int(self.samplers.max()) > len(self.samplers_json):
            raise InputError(
                f"expected items with one of {len(self.samplers_json)} samplers, got one with "
                f"sampler {self.samplers.max()}"
            )
        if (self.items[1:] <= self.items[:-1]).any():
            raise InputError("expected ascending numbers of items, got others")

    def _select(self, places: npt.NDArray[np.intp]) -> CycleRequest:
        if len(places) == len(self):
            return self
        digests = self.digests.reshape(-1, DIGEST_BYTES)
        return replace(
            self,
            cursors=self.cursors[places],
            digests=digests[places].reshape(-1),
            items=self.items[places],
            samplers=self.samplers[places],
            is_compressed=self.is_compressed[places],
        )

    def _cursor(self, sequences: npt.NDArray[np.int64]) -> Cursor:
        positions = zip(self.partitions.tolist(), np.maximum(sequences, 0).tolist(), strict=True)
        return Cursor(dict(positions))


@functools.lru_cache(_SCHEMAS_MAX)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)


@dataclass(frozen=True, slots=True, eq=False)
class MatchBatch:
    """Pairs of items and rows.

    Attributes:
        items: ascending, shape (k,).
        places: of the pair's row in `rows`, shape (k,).
        rows: of a dataset's label schema, each at most once.
    """

    items: Numbers
    places: Numbers
    rows: pa.Table

    @classmethod
    def none(cls, schema: pa.Schema) -> MatchBatch:
        return cls(no_numbers(), no_numbers(), schema.empty_table())

    @classmethod
    def of(cls, items: npt.NDArray[np.integer], places: Numbers, rows: pa.Table) -> MatchBatch:
        """A batch of pairs in any order."""
        order = np.argsort(items, kind="stable")
        return cls(items[order].astype(np.uint32), places[order].astype(np.uint32), rows)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def nbytes(self) -> int:
        return PAIR_BYTES * len(self) + int(self.rows.nbytes)

    def counts(self, items: int) -> npt.NDArray[np.int64]:
        """The number of rows of each of so many items."""
        return np.bincount(self.items, minlength=items)

    def where(self, mask: Mask) -> MatchBatch:
        """The pairs under the mask, and only their rows."""
        if mask.all():
            return self
        items, places = self.items[mask], self.places[mask]
        used, at = np.unique(places, return_inverse=True)
        return MatchBatch(items, at.astype(np.uint32), self.rows.take(pa.array(used)))

    def renumbered(self, items: npt.NDArray[np.integer]) -> MatchBatch:
        """With `items[i]`, which ascend, in place of item i."""
        return MatchBatch(items[self.items].astype(np.uint32), self.places, self.rows)

    def split(self) -> Iterator[tuple[int, pa.Table]]:
        """Each item that has rows, and its rows, which share one gathered table."""
        if len(self) == 0:
            return
        gathered = self.rows.take(pa.array(self.places)).combine_chunks()
        starts = np.flatnonzero(np.append(True, self.items[1:] != self.items[:-1]))
        sizes = np.diff(np.append(starts, len(self))).tolist()
        items = self.items[starts].tolist()
        for item, start, size in zip(items, starts.tolist(), sizes, strict=True):
            yield item, gathered.slice(start, size)

    def check(self) -> MatchBatch:
        """Checks a decoded batch, and returns it.

        Raises:
            InputError: pairs are incomplete, unordered, or name missing rows.
        """
        if len(self.items) != len(self.places):
            raise InputError(
                f"expected as many rows as items in pairs, got {len(self.items)} items and "
                f"{len(self.places)} rows"
            )
        if len(self) and int(self.places.max()) >= self.rows.num_rows:
            raise InputError(
                f"expected pairs with one of {self.rows.num_rows} rows, got row {self.places.max()}"
            )
        if (self.items[1:] < self.items[:-1]).any():
            raise InputError("expected pairs in the order of their items, got others")
        return self


@dataclass(frozen=True, slots=True, eq=False)
class MatchedPartitions:
    """The matches of some items, up to one frontier.

    Attributes:
        items: ascending, also those without matches.
        reached: the frontier in each requested partition.
        matches: of these items.
        dropped: the commits up to which retention has dropped; they are in no match.
        deletions: the last deletion of each partition that has one, up to the frontier at least.
    """

    items: Numbers
    reached: Cursor
    matches: MatchBatch
    dropped: Cursor = EMPTY_CURSOR
    deletions: Cursor = EMPTY_CURSOR

    def of_item(self, item: int, rows: pa.Table) -> MatchedPartitions:
        """The same range for one item, which has these rows."""
        items = np.full(rows.num_rows, item, dtype=np.uint32)
        matches = MatchBatch(items, np.arange(rows.num_rows, dtype=np.uint32), rows)
        return replace(self, items=np.array([item], dtype=np.uint32), matches=matches)


@dataclass(frozen=True, slots=True, eq=False)
class ItemFailure:
    """Items that failed, and why."""

    items: Numbers
    error: GalileoError


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """What a node found for a request; an item without a result has to be requested again.

    Attributes:
        parts: no item is in two of them.
        unknown: items whose queries the node does not know.
        failures: of items.
    """

    parts: tuple[MatchedPartitions, ...] = ()
    unknown: Numbers = field(default_factory=no_numbers)
    failures: tuple[ItemFailure, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ReachedPart:
    """The frontier of some items in partitions of one node; fields as in `MatchedPartitions`."""

    items: Numbers
    reached: Cursor
    dropped: Cursor
    deletions: Cursor


@dataclass(frozen=True, slots=True, eq=False)
class CycleAnswer:
    """What a task returns for a request; items have the numbers of the whole request.

    Attributes:
        parts: up to where items were evaluated; an item is in several where nodes were.
        packs: their labels, packed.
        unknown: items whose queries a node did not know.
        failures: of items, of which only the last counts.
    """

    parts: tuple[ReachedPart, ...]
    packs: PackColumns
    unknown: Numbers
    failures: tuple[ItemFailure, ...]


Answers: TypeAlias = tuple[tuple[CycleAnswer, ...], ...]
"""The result of a job: for each of its requests the answers of all tasks."""


def joined(parts: Sequence[MatchBatch], schema: pa.Schema) -> MatchBatch:
    """All pairs of several batches; common rows are repeated."""
    if not parts:
        return MatchBatch.none(schema)
    sizes = [part.rows.num_rows for part in parts]
    first = np.cumsum([0, *sizes[:-1]])
    places = [part.places + np.uint32(at) for part, at in zip(parts, first, strict=True)]
    items = np.concatenate([part.items for part in parts])
    rows = pa.concat_tables([part.rows for part in parts])
    return MatchBatch.of(items, np.concatenate(places), rows)
