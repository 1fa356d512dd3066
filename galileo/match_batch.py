"""MatchBatch: what a pass over new paths found for many queries together, in columns.

A path that matches several queries is there once; pairs of an item and a row say who gets it. What
an item is, a query's number in some request, is for those to know who made the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import ORIGIN, Cursor
from galileo.errors import GalileoError, InputError

Numbers = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]
PAIR_BYTES = 8
"""What a pair takes."""
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
        """The same for pairs in any order."""
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
        """Some of the pairs, and only their rows."""
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
        """Itself; for what came from elsewhere.

        Raises:
            InputError: pairs do not pair up, are not in order, or name rows that are not there.
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
    """What was found for some items, all up to one frontier.

    Attributes:
        items: ascending; those without matches too.
        reached: up to which commit of each partition that they were asked about.
        matches: of those items.
        dropped: up to where retention has dropped commits, which are in no match.
    """

    items: Numbers
    reached: Cursor
    matches: MatchBatch
    dropped: Cursor = ORIGIN


@dataclass(frozen=True, slots=True, eq=False)
class MatchResponse:
    """What became of the items of a request; one that is nowhere in it is to be asked again.

    Attributes:
        parts: no item is in two of them.
        unknown: items whose queries the answering node does not know.
        errors: items that failed, by error.
    """

    parts: tuple[MatchedPartitions, ...] = ()
    unknown: Numbers = field(default_factory=_no_numbers)
    errors: tuple[tuple[Numbers, GalileoError], ...] = ()


def joined(parts: Sequence[MatchBatch], schema: pa.Schema) -> MatchBatch:
    """All pairs of several; rows that are in several of them are there as often."""
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
