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

import numpy as np
import numpy.typing as npt

from galileo.arrays import within
from galileo.graph.columns import Commits, Paths
from galileo.graph.row_ranges import Rows, count_rows
from galileo.graph.versions import NEVER, Choice, Sequences
from galileo.model.deletions import Stretches
from galileo.query.columns import Mask

Numbers = npt.NDArray[np.int64]
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
            at = np.searchsorted(rows, self.position)
            found = rows.take(at, mode="clip") == self.position
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
        superseded: likewise, by a further deletion.
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
        The vector of each part with what is new, None if nothing is; and what is left of paths that
        have lost some of their rows.
    """
    vectors: list[DeletionVector | None] = [None] * len(parts)
    left: list[Shortened] = []
    for partition in sorted({deletion.partition for deletion in deletions}):
        of_partition = [each for each in deletions if each.partition == partition]
        named = np.unique(np.concatenate([each.stretches.sequence for each in of_partition]))
        for number, part in enumerate(parts):
            concerned = _concerned(part, partition, named)
            if concerned is None:
                continue
            for deletion in of_partition:
                concerned = concerned.without(deletion.sequence, _keyed(deletion.stretches, named))
            if (found := concerned.vector()) is not None:
                vectors[number] = DeletionVector.joined(vectors[number], found)
            left += concerned.shortened(part, partition, named)
    return vectors, left


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
        rows = slice(start, stop)
        part = Stretches(stretches.sequence[rows], stretches.row[rows], stretches.rows[rows])
        yield Deletion(int(commits.partition[number]), int(commits.sequence[number]), part)


def _keyed(stretches: Stretches, named: Sequences) -> tuple[Numbers, Numbers]:
    """The first and the end of each stretch, above which stand the number of its commit."""
    first = (np.searchsorted(named, stretches.sequence) << _COMMIT) + stretches.row
    return first, first + stretches.rows


@dataclass(frozen=True, slots=True, eq=False)
class _Concerned:
    """The paths of a part that are of commits of which rows are deleted; arrays of one length.

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

    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (self.position, self.key, self.rows, self.since, self.superseded, self.is_left)

    def without(self, sequence: int, deleted: tuple[Numbers, Numbers]) -> _Concerned:
        """These after a deletion, with what is left of those that it shortens."""
        first, stop = deleted
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
        return _Concerned(*(np.append(a, b) for a, b in zip(mine, left, strict=True)))

    def vector(self) -> DeletionVector | None:
        """What is new of the paths of the part."""
        rows = np.flatnonzero(~self.is_left & (self.superseded != NEVER))
        every = DeletionVector(self.position, self.since, self.superseded)
        return every.take(rows) if len(rows) else None

    def shortened(self, part: Part, partition: int, named: Sequences) -> Iterator[Shortened]:
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
        commits = Commits.of(partition, named[numbers])
        yield Shortened(paths, commits, self.since[rows], self.superseded[rows])


def _concerned(part: Part, partition: int, named: Sequences) -> _Concerned | None:
    """The paths of a part that count and are of some commits; None if there is none."""
    commits, paths = part.commits, part.paths
    number = np.searchsorted(named, commits.sequence)
    is_named = (commits.partition == partition) & (
        named.take(number, mode="clip") == commits.sequence
    )
    if not is_named.any():
        return None
    position = np.flatnonzero(is_named.take(paths.commit))
    since = commits.sequence.take(paths.commit[position])
    superseded = np.full(len(position), NEVER)
    if part.vector is not None:
        at = np.searchsorted(position, part.vector.position)
        known = position.take(at, mode="clip") == part.vector.position
        since[at[known]] = part.vector.since[known]
        superseded[at[known]] = part.vector.superseded[known]
    counts = superseded == NEVER
    position, since = position[counts], since[counts]
    if not len(position):
        return None
    key = (number.take(paths.commit[position]) << _COMMIT) + paths.row[position]
    rows = paths.rows[position].astype(np.int64)
    is_left = np.zeros(len(position), dtype=np.bool_)
    return _Concerned(position, key, rows, since, superseded[counts], is_left)
