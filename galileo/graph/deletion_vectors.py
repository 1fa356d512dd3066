"""Deletion vectors: which paths of a run deletions have removed or shortened.

Of a dataset without a key, a deletion removes rows of earlier commits. A path that loses rows is
superseded by the commit of the deletion. For each stretch of rows that it keeps there is a further
path, which counts since that commit and has the place of these rows: so their labels read them, and
their ids stay. A run knows the paths that differ from the others, as data files of Delta Lake and
Iceberg do; the others count since the commit that stores them, and are not superseded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from galileo.arrays import within
from galileo.graph.columns import Commits, Paths
from galileo.graph.filter_pipeline import CHUNK_PATHS, chunks
from galileo.graph.row_ranges import Positions, Rows, count_rows, select_rows
from galileo.graph.versions import NEVER, Choice, Sequences
from galileo.model.deletions import Stretches
from galileo.model.sort_keys import differs
from galileo.query.columns import Mask, take_rows

Numbers = npt.NDArray[np.int64]
ROWS_TOGETHER = 1 << 24
"""Rows of commits among which deletions are sought at a time: 200 MiB of memory."""
_COMMIT = 32
"""Bits of a row, above which a key has the number of its commit."""


@dataclass(frozen=True, slots=True, eq=False)
class DeletionVector:
    """The paths of a run that are superseded, or count since a deletion; arrays of one length.

    Attributes:
        position: of the path in its run; ascending.
        since: the commit since which it counts.
        superseded: the commit of the deletion that has removed it; `NEVER` where it counts.
    """

    position: Numbers
    since: Sequences
    superseded: Sequences

    def __len__(self) -> int:
        return len(self.position)

    @property
    def nbytes(self) -> int:
        return self.position.nbytes + self.since.nbytes + self.superseded.nbytes

    @classmethod
    def joined(cls, old: DeletionVector | None, new: DeletionVector) -> DeletionVector:
        """Both; of a path that both have, what the new one says."""
        if old is not None:
            kept = ~np.isin(old.position, new.position, assume_unique=True)
            pairs = zip(old.arrays(), new.arrays(), strict=True)
            new = cls(*(np.append(mine[kept], theirs) for mine, theirs in pairs))
        return new.take(np.argsort(new.position))

    def arrays(self) -> tuple[Numbers, Sequences, Sequences]:
        return self.position, self.since, self.superseded

    def take(self, rows: Mask | npt.NDArray[np.intp]) -> DeletionVector:
        return DeletionVector(*(array[rows] for array in self.arrays()))

    def moved(self, places: npt.NDArray[np.intp]) -> DeletionVector | None:
        """The vector where paths have other places, -1 for those that are gone; None if empty."""
        there = replace(self, position=places[self.position])
        left = there.take(there.position >= 0)
        return left.take(np.argsort(left.position)) if len(left) else None

    def choose(
        self,
        choice: Choice,
        commit: npt.NDArray[np.int32],
        *,
        sequence: Sequences,
        after: Sequences,
        until: Sequences,
        at: Sequences,
    ) -> tuple[DeletionFilter, npt.NDArray[np.int32]]:
        """What passes the paths of a choice, and the commits of those that pass alone.

        Args:
            choice: of the versions; see `Choice`.
            commit: the number of the commit of each path of the vector.
            sequence: of these commits; as the others with a value for each path.
            after: the begin of the window.
            until: its end.
            at: for the choice.
        """
        since, superseded = self.since, self.superseded
        match choice:
            case Choice.CURRENT | Choice.STORED:
                counts = (since <= at) & (superseded > at)
                return DeletionFilter(self.position[~counts], is_chosen=False), commit[:0]
            case Choice.WITHDRAWN:
                chosen = (since <= at) & (superseded > at) & (superseded <= until)
            case Choice.REPLACED:
                chosen = (since > after) & (since <= until) & (superseded <= until)
            case Choice.SHORTENED:
                chosen = (since > after) & (since <= until) & (superseded > until)
                chosen &= since != sequence
        return DeletionFilter(self.position[chosen], is_chosen=True), commit[chosen]


@dataclass(frozen=True, slots=True, eq=False)
class DeletionFilter:
    """Passes all rows of a run but some, or these alone.

    Attributes:
        position: of these, ascending.
        is_chosen: whether they alone pass.
    """

    position: Numbers
    is_chosen: bool

    @property
    def weight(self) -> int:
        return 1

    def mask(self, paths: Paths, rows: Rows) -> Mask:
        mask: Mask = np.full(count_rows(rows), not self.is_chosen)
        if isinstance(rows, slice):
            first, stop = np.searchsorted(self.position, [rows.start, rows.stop])
            mask[self.position[first:stop] - rows.start] = self.is_chosen
        elif len(rows):
            first, stop = np.searchsorted(self.position, [rows[0], rows[-1] + 1])
            near = self.position[first:stop]
            at = np.searchsorted(rows, near)
            found = rows.take(at, mode="clip") == near
            mask[at[found]] = self.is_chosen
        return mask


@dataclass(frozen=True, slots=True, eq=False)
class Deletion:
    """A deletion of one partition that is inserted.

    Attributes:
        sequence: of its commit.
        stretches: the rows that it removes.
    """

    partition: int
    sequence: int
    stretches: Stretches


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What a deletion may meet: a run or the memtable.

    Attributes:
        vector: None if there is none yet.
    """

    paths: Paths
    commits: Commits
    vector: DeletionVector | None


@dataclass(frozen=True, slots=True, eq=False)
class Shortened:
    """The paths that are left of shortened ones.

    Attributes:
        paths: numbered by `commits`.
        commits: that store them.
        since: as of a `DeletionVector`.
        superseded: the commit of a further deletion; `NEVER` where they count.
    """

    paths: Paths
    commits: Commits
    since: Sequences
    superseded: Sequences


def apply(
    parts: Sequence[Part], deletions: Sequence[Deletion]
) -> tuple[list[DeletionVector | None], list[Shortened]]:
    """Removes the rows of some deletions from the paths of a graph.

    Args:
        parts: all paths that there are.
        deletions: in the order of their commits.

    Returns:
        What is new of the vector of each part, None if nothing is; and what is left of paths that
        have lost some of their rows.
    """
    named = _Named.of(deletions)
    bounds = [(deletion.sequence, *named.bounds(deletion)) for deletion in deletions]
    numbers = [named.numbers(p.commits.partition, p.commits.sequence) for p in parts]
    vectors: list[DeletionVector | None] = [None] * len(parts)
    left = list[Shortened]()
    for removed in named.removed():
        for place, part in enumerate(parts):
            met = _met(part, numbers[place], removed)
            for deletion in bounds if len(met) else ():
                met = met.without(*deletion)
            if (new := met.vector()) is not None:
                vectors[place] = DeletionVector.joined(vectors[place], new)
            left += met.shortened(part, named)
    return vectors, left


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    """The commits of which deletions remove rows, by number, and the stretches of all deletions.

    Attributes:
        partition, sequence: of each commit; sorted.
        rows: how many rows each has up to the last one that is removed.
        number: of the commit of each stretch; ascending.
        start, stop: the first row of each stretch, and the row behind its last one.
    """

    partition: npt.NDArray[np.int32]
    sequence: Sequences
    rows: Numbers
    number: Numbers
    start: Numbers
    stop: Numbers

    @classmethod
    def of(cls, deletions: Sequence[Deletion]) -> _Named:
        every = [each.stretches for each in deletions]
        partitions = [np.full(len(s), d.partition) for s, d in zip(every, deletions, strict=True)]
        partition = np.concatenate(partitions).astype(np.int32)
        sequence = np.concatenate([stretches.sequence for stretches in every])
        start = np.concatenate([stretches.row for stretches in every])
        stop = start + np.concatenate([stretches.rows for stretches in every])
        order = np.lexsort((sequence, partition))
        partition, sequence = partition[order], sequence[order]
        start, stop = start[order], stop[order]
        is_first = differs(partition) | differs(sequence)
        first = np.flatnonzero(is_first)
        rows = np.maximum.reduceat(stop, first)
        number = np.cumsum(is_first) - 1
        return cls(partition[first], sequence[first], rows, number, start, stop)

    def removed(self) -> Iterator[_Removed]:
        """Which rows are removed, of as many commits at a time as have about `ROWS_TOGETHER`."""
        ends = np.cumsum(self.rows)
        starts = np.flatnonzero(differs((ends - self.rows) // ROWS_TOGETHER))
        for first, last in pairwise([*starts.tolist(), len(ends)]):
            offset = (ends - self.rows)[first:last] - (ends - self.rows)[first]
            stretches = slice(*np.searchsorted(self.number, [first, last]).tolist())
            of_stretch = offset[self.number[stretches] - first]
            depth = np.zeros(int(self.rows[first:last].sum()) + 1, dtype=np.int32)
            # A number of another type would take 30 times as long.
            np.add.at(depth, of_stretch + self.start[stretches], np.int32(1))
            np.add.at(depth, of_stretch + self.stop[stretches], np.int32(-1))
            before = np.zeros(len(depth), dtype=np.int32)
            np.cumsum(np.cumsum(depth[:-1], dtype=np.int32) > 0, out=before[1:])
            yield _Removed(first, offset, self.rows[first:last], before)

    def numbers(self, partition: npt.NDArray[np.int32], sequence: Sequences) -> Numbers:
        """The number of each commit; -1 of others."""
        found = np.full(len(partition), -1)
        starts = np.flatnonzero(differs(self.partition))
        stops = np.append(starts[1:], len(self.partition))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            mine = np.flatnonzero(partition == self.partition[start])
            known = self.sequence[start:stop]
            at = np.searchsorted(known, sequence[mine])
            is_known = known.take(at, mode="clip") == sequence[mine]
            found[mine[is_known]] = start + at[is_known]
        return found

    def bounds(self, deletion: Deletion) -> tuple[Numbers, Numbers]:
        """The first and the end of each stretch, above which stands the number of its commit."""
        stretches = deletion.stretches
        partition = np.full(len(stretches), deletion.partition, dtype=np.int32)
        first = (self.numbers(partition, stretches.sequence) << _COMMIT) + stretches.row
        return first, first + stretches.rows


@dataclass(frozen=True, slots=True, eq=False)
class _Removed:
    """Which rows of some commits are removed, by any of several deletions.

    Attributes:
        first: the number of the first commit.
        offset: where the rows of each commit begin in `before`.
        rows: how many of them it has.
        before: how many rows are removed before each row of these commits, one after the other.
    """

    first: int
    offset: Numbers
    rows: Numbers
    before: npt.NDArray[np.int32]

    def met(self, paths: Paths, number: Numbers) -> Positions:
        """The paths that lose rows; `number` is that of each of their commits, -1 of others."""
        held = (number >= self.first) & (number < self.first + len(self.offset))
        if not held.any():
            return np.empty(0, dtype=np.intp)
        offset, size = np.zeros((2, len(number)), dtype=np.int64)
        offset[held] = self.offset[number[held] - self.first]
        size[held] = self.rows[number[held] - self.first]
        met = list[Positions]()
        for chunk in chunks(slice(0, len(paths)), CHUNK_PATHS):
            commit, row = take_rows(paths.commit, chunk), take_rows(paths.row, chunk)
            base, last = offset.take(commit), size.take(commit)
            stop = np.minimum(row + take_rows(paths.rows, chunk), last)
            before = self.before.take(base + np.minimum(row, last))
            met.append(select_rows(chunk, self.before.take(base + stop) > before))
        return np.concatenate(met)


def deletions_of(
    stretches: Stretches, commit: npt.NDArray[np.integer], commits: Commits
) -> Iterator[Deletion]:
    """The deletions of some commits.

    Args:
        stretches: of all of them.
        commit: the number of the commit of each stretch, ascending.
        commits: of which these are numbers.
    """
    numbers, starts = np.unique(commit, return_index=True)
    stops = np.append(starts[1:], len(commit)).tolist()
    for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops, strict=True):
        part = stretches.take(slice(start, stop))
        yield Deletion(int(commits.partition[number]), int(commits.sequence[number]), part)


@dataclass(frozen=True, slots=True, eq=False)
class _Met:
    """The paths of a part that lose rows; arrays of one length.

    Attributes:
        position: in the part; of a path that is left of a shortened one that of the whole one.
        key: the number of its commit, then its first row.
        rows: how many it has.
        since, superseded: as of a `DeletionVector`.
        is_left: whether it is left of a shortened one.
    """

    position: Numbers
    key: Numbers
    rows: Numbers
    since: Sequences
    superseded: Sequences
    is_left: Mask

    def __len__(self) -> int:
        return len(self.position)

    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (self.position, self.key, self.rows, self.since, self.superseded, self.is_left)

    def without(self, sequence: int, first: Numbers, stop: Numbers) -> _Met:
        """These after a deletion of stretches, with what is left of those that it shortens."""
        begin, end = self.key, self.key + self.rows
        low = np.searchsorted(stop, begin, side="right")
        high = np.searchsorted(first, end, side="left")
        met = np.flatnonzero((high > low) & (self.superseded == NEVER))
        if not len(met):
            return self
        superseded = self.superseded.copy()
        superseded[met] = sequence
        # Between n stretches that it loses lie n - 1 that it keeps, and one on each side.
        gaps = (high - low)[met] + 1
        of, number = np.repeat(met, gaps), within(gaps)
        at = low[of] + number
        start = np.where(number == 0, begin[of], stop.take(at - 1, mode="clip"))
        is_last = number == (high - low)[of]
        finish = np.where(is_last, end[of], first.take(at, mode="clip"))
        kept = np.flatnonzero(finish > start)
        left = (
            self.position[of[kept]],
            start[kept],
            (finish - start)[kept],
            np.full(len(kept), sequence),
            np.full(len(kept), NEVER),
            np.ones(len(kept), dtype=np.bool_),
        )
        mine = replace(self, superseded=superseded).arrays()
        return _Met(*(np.append(a, b) for a, b in zip(mine, left, strict=True)))

    def vector(self) -> DeletionVector | None:
        """What is new of the paths of the part."""
        rows = np.flatnonzero(~self.is_left & (self.superseded != NEVER))
        every = DeletionVector(self.position, self.since, self.superseded)
        return every.take(rows) if len(rows) else None

    def shortened(self, part: Part, named: _Named) -> Iterator[Shortened]:
        """What is left of paths of the part, if there is anything."""
        rows = np.flatnonzero(self.is_left)
        if not len(rows):
            return
        key = self.key[rows]
        numbers, commit = np.unique(key >> _COMMIT, return_inverse=True)
        paths = replace(
            part.paths.take(self.position[rows]),
            row=(key & ((1 << _COMMIT) - 1)).astype(np.int32),
            rows=self.rows[rows].astype(np.int32),
            commit=commit.astype(np.int32),
        )
        commits = Commits(named.partition[numbers], named.sequence[numbers])
        yield Shortened(paths, commits, self.since[rows], self.superseded[rows])


def _met(part: Part, number: Numbers, removed: _Removed) -> _Met:
    """The paths of a part that count and lose rows; `number` is that of each of its commits."""
    commits, paths = part.commits, part.paths
    position = removed.met(paths, number)
    number_of = number.take(paths.commit.take(position))
    commit, rows = paths.commit.take(position), paths.rows.take(position).astype(np.int64)
    since, superseded = commits.sequence.take(commit), np.full(len(position), NEVER)
    if part.vector is not None and len(position):
        at = np.searchsorted(position, part.vector.position)
        known = position.take(at, mode="clip") == part.vector.position
        since[at[known]] = part.vector.since[known]
        superseded[at[known]] = part.vector.superseded[known]
    key = (number_of << _COMMIT) + paths.row.take(position)
    is_left = np.zeros(len(position), dtype=np.bool_)
    every = _Met(position, key, rows, since, superseded, is_left)
    counts = superseded == NEVER
    return _Met(*(array[counts] for array in every.arrays()))
