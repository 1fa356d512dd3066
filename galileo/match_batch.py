"""The matches of many queries in one pass over new paths, in columns.

A path that matches several queries is stored once; pairs of an item and a row assign it to them. An
item is the number of a query in its request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError, InputError

Numbers = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]
PAIR_BYTES = 8
"""Bytes of a pair."""
_NUMBER = np.dtype("<u4")


def _no_numbers() -> Numbers:
    return np.empty(0, dtype=np.uint32)


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
        return cls(_no_numbers(), _no_numbers(), schema.empty_table())

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
    """

    items: Numbers
    reached: Cursor
    matches: MatchBatch
    dropped: Cursor = EMPTY_CURSOR


@dataclass(frozen=True, slots=True, eq=False)
class MatchResponse:
    """The results of the items of a request; an item without one has to be requested again.

    Attributes:
        parts: no item is in two of them.
        unknown: items whose queries the answering node does not know.
        errors: items that failed, by error.
    """

    parts: tuple[MatchedPartitions, ...] = ()
    unknown: Numbers = field(default_factory=_no_numbers)
    errors: tuple[tuple[Numbers, GalileoError], ...] = ()


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


def to_bytes(numbers: npt.NDArray[np.integer]) -> bytes:
    """Numbers from 0 to 2**32 - 1 as four bytes each, the lowest first."""
    return numbers.astype(_NUMBER).tobytes()


def from_bytes(data: bytes) -> Numbers:
    """The inverse of `to_bytes`.

    Raises:
        InputError: these are no whole numbers of four bytes.
    """
    if len(data) % _NUMBER.itemsize:
        raise InputError(f"expected numbers of 4 bytes each, got {len(data)} bytes")
    return np.frombuffer(data, dtype=_NUMBER).astype(np.uint32, copy=False)
