"""Cursors: for each partition, the sequence of the last commit that was handled.

A cursor that lacks a partition has 0 there. Cursors are immutable; join, meet and comparison work
partition by partition.

Many queries share few cursors. A cursor therefore caches its last join and comparison, and a join
that equals one of its operands returns that object, so that advancing 100,000 queries with equal
cursors costs one join.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt

from galileo.errors import HistoryChanged, listed
from galileo.model.forks import count_commits


@dataclass(frozen=True, slots=True, order=True)
class CommitRange:
    """The commits `first` to `last` of a partition, both included."""

    partition: int
    first: int
    last: int

    @property
    def commits(self) -> int:
        """How many commits they are; where the log jumps in between, those after the last jump."""
        return count_commits(self.first - 1, self.last)


class Cursor(Mapping[int, int]):
    """An immutable map from partition to commit sequence; absent means 0, and 0 is absent."""

    __slots__ = ("__weakref__", "_array", "_compared", "_joined", "_news", "_positions")

    def __init__(self, positions: Mapping[int, int] | None = None) -> None:
        items = sorted(positions.items()) if positions else ()
        if positions and min(positions.values()) < 0:
            raise ValueError(f"expected sequences of at least 0, got {dict(items)}")
        self._positions = {int(p): int(s) for p, s in items if s > 0}
        # Weak: otherwise an old cursor would keep all later ones alive.
        self._joined: tuple[ReferenceType[Cursor], ReferenceType[Cursor]] | None = None
        self._compared: tuple[ReferenceType[Cursor], bool] | None = None
        self._news: tuple[ReferenceType[Cursor], tuple[int, ...]] | None = None
        self._array: npt.NDArray[np.int64] | None = None

    def __reduce__(self) -> tuple[type[Cursor], tuple[dict[int, int]]]:
        return Cursor, (self._positions,)

    def __getitem__(self, partition: int) -> int:
        return self._positions.get(partition, 0)

    def __iter__(self) -> Iterator[int]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def items(self) -> ItemsView[int, int]:
        return self._positions.items()

    def values(self) -> ValuesView[int]:
        return self._positions.values()

    def __contains__(self, partition: object) -> bool:
        return partition in self._positions

    def __hash__(self) -> int:
        return hash(tuple(self._positions.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and self._positions == other._positions

    def __repr__(self) -> str:
        return f"Cursor({self._positions})"

    def covers(self, other: Mapping[int, int]) -> bool:
        """Whether this cursor is at or after `other` in every partition."""
        if not isinstance(other, Cursor):
            return all(self[partition] >= sequence for partition, sequence in other.items())
        if other is self:
            return True
        memory = self._compared
        if memory is not None and memory[0]() is other:
            return memory[1]
        mine = self._positions.get
        result = all(mine(p, 0) >= s for p, s in other._positions.items())
        self._compared = (ref(other), result)
        return result

    def news(self, known: Cursor) -> tuple[int, ...]:
        """The partitions in which `known` is after this cursor; caches the last result."""
        memory = self._news
        if memory is not None and memory[0]() is known:
            return memory[1]
        mine = self._positions.get
        partitions = tuple(p for p, s in known._positions.items() if s > mine(p, 0))
        self._news = (ref(known), partitions)
        return partitions

    def join(self, other: Mapping[int, int]) -> Cursor:
        """The pointwise maximum."""
        if not isinstance(other, Cursor):
            return self.join(Cursor(other))
        memory = self._joined
        if memory is not None and memory[0]() is other and (known := memory[1]()) is not None:
            return known
        joined = self._later(other)
        self._joined = (ref(other), ref(joined))
        return joined

    def _later(self, other: Cursor) -> Cursor:
        if self.covers(other):
            return self
        if other.covers(self):
            return other
        partitions = {**self._positions, **other._positions}
        return Cursor({p: max(self[p], other[p]) for p in partitions})

    @classmethod
    def joined(cls, cursors: Iterable[Cursor]) -> Cursor:
        """The pointwise maximum of many cursors, in one step."""
        positions: dict[int, int] = {}
        for cursor in cursors:
            for partition, sequence in cursor._positions.items():
                if sequence > positions.get(partition, 0):
                    positions[partition] = sequence
        return cls(positions)

    def meet(self, other: Mapping[int, int]) -> Cursor:
        """The pointwise minimum."""
        return Cursor({p: min(self[p], other.get(p, 0)) for p in self._positions})

    def past(self, partitions: npt.NDArray[np.int32], sequences: npt.NDArray[np.int64]) -> Mask:
        """A mask of the commits after this cursor, for columns of partitions and sequences."""
        if len(partitions) == 0 or not self._positions:
            return sequences > 0
        after: Mask = sequences > self.of(partitions)
        return after

    def of(self, partitions: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The sequence of each partition of a column, 0 of one that the cursor does not name."""
        if len(partitions) == 0 or not self._positions:
            return np.zeros(len(partitions), dtype=np.int64)
        positions = self._array
        try:
            known = None if positions is None else positions[partitions]
        except IndexError:  # Cheaper than finding the highest partition each time.
            known = None
        if known is None:
            positions = self._array = self._until(int(partitions.max()))
            known = positions[partitions]
        return known

    def _until(self, partition: int) -> npt.NDArray[np.int64]:
        """A dense array of the sequences."""
        positions = np.zeros(partition + 1, dtype=np.int64)
        for known, sequence in self._positions.items():
            if known <= partition:
                positions[known] = sequence
        return positions


Mask = npt.NDArray[np.bool_]
EMPTY_CURSOR = Cursor()
LOST_MAX = 128
"""Partitions that one `HistoryChanged` names; a reader with more gets a further one."""


@dataclass(frozen=True, slots=True, order=True)
class LostPosition:
    """A position of a reader behind which commits were lost.

    Attributes:
        sequence: the position.
        common: the last commit up to it that is still stored.
        until: the position to go on behind.
    """

    partition: int
    sequence: int
    common: int
    until: int


def history_changed(dataset: str, lost: Iterable[LostPosition]) -> HistoryChanged:
    """The error for a reader of a dataset, table or channel with such positions."""
    named = sorted(set(lost))[:LOST_MAX]
    listing = listed(named, text_of=lambda one: f"{one.partition} past {one.common}")
    return HistoryChanged(
        f"commits of {dataset!r} that were read before are lost, since an older state was restored "
        f"or a disk was replaced: of partitions {listing}",
        dataset=dataset,
        partitions=[one.partition for one in named],
        sequences=[one.sequence for one in named],
        common=[one.common for one in named],
        until=[one.until for one in named],
        remedy="lost_rows",
    )


def lost_positions(error: HistoryChanged) -> list[LostPosition]:
    """The positions that an error names."""
    names = ("partitions", "sequences", "common", "until")
    columns = zip(*(error.details.get(name, ()) for name in names), strict=True)
    return [LostPosition(*values) for values in columns]


def joined_changes(errors: Iterable[HistoryChanged]) -> HistoryChanged:
    """One error for what several nodes have lost of a dataset."""
    known = list(errors)
    lost = (position for error in known for position in lost_positions(error))
    return history_changed(known[0].details.get("dataset", ""), lost)


def continued(cursor: Cursor, error: HistoryChanged) -> Cursor:
    """A cursor whose lost positions are replaced by those behind which the reader goes on."""
    lost = {(one.partition, one.sequence): one.until for one in lost_positions(error)}
    return Cursor({p: lost.get((p, s), s) for p, s in cursor.items()})


ALL_ROWS = 2**31 - 1
"""A row past those of every commit."""


@dataclass(frozen=True, slots=True)
class PageStart:
    """The snapshot of a page, and where the page begins.

    Attributes:
        frontier: the last commits of the snapshot, of its partitions.
        dropped: up to where retention had dropped their commits at the first page.
        partition, sequence, row: the id after which the page begins.
    """

    frontier: Cursor
    dropped: Cursor
    partition: int = -1
    sequence: int = 0
    row: int = ALL_ROWS

    def remaining(self) -> dict[int, tuple[int, int]]:
        """After which commit, and up to which, each partition is still to be read, in order."""
        starts = {p: self.dropped[p] for p in sorted(self.frontier) if p >= self.partition}
        if self.partition in starts:
            begun = self.sequence if self.row == ALL_ROWS else self.sequence - 1
            starts[self.partition] = max(begun, starts[self.partition])
        return {p: (s, self.frontier[p]) for p, s in starts.items() if s < self.frontier[p]}

    def after(self, partition: int, sequence: int, row: int = ALL_ROWS) -> PageStart:
        return PageStart(self.frontier, self.dropped, partition, sequence, row)

    @property
    def position(self) -> Cursor:
        """The commit of the id after which the page begins; empty for the first page."""
        return Cursor({self.partition: self.sequence} if self.sequence else {})

    def continued(self, error: HistoryChanged) -> PageStart:
        """The same without what was lost."""
        frontier, position = continued(self.frontier, error), continued(self.position, error)
        row = self.row if position == self.position else ALL_ROWS
        at = position[self.partition]
        return PageStart(frontier, self.dropped, self.partition, at, row)
