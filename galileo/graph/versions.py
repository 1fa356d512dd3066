"""The versions of a keyed dataset in its graph: which of its paths count.

A path of a keyed dataset is one row, a *version* of its key. It counts from the commit `since` on,
until another version of the key takes its place: it is *superseded* by the `since` of that one. A
reader at a cursor sees the versions since commits up to the cursor that are superseded by none up
to there. Marks are written in place, and only by commits that are not published yet, so a reader
that began before has no use for them.

The cleaner of a table commits versions once more before it drops their files (*copies*), with the
`since` that they have. A copy takes part from the moment at which its original is dropped: `origin`
is the commit of the original. So a snapshot has exactly one of both.

The arrays are in the order in which rows came. Runs know the place of the first row of each of
their commits, so merging runs moves no version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from galileo.arrays import within
from galileo.cursor import Cursor
from galileo.graph.buffer import Buffer
from galileo.graph.columns import Commits, Paths
from galileo.graph.row_ranges import Positions, Rows
from galileo.model.sort_keys import differs
from galileo.query.columns import Mask, take_rows

Sequences = npt.NDArray[np.int64]

NEVER = 2**63 - 1
"""What supersedes a version that counts."""


@dataclass(frozen=True, slots=True, eq=False)
class NewVersions:
    """The versions of some commits that are inserted, in the order of their rows.

    Attributes:
        since: the commit since which each counts.
        origin: the commit of the version that it is a copy of, as far as that is stored; else 0.
    """

    since: Sequences
    origin: Sequences


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """By which commits versions of a partition are superseded; arrays of one length.

    Attributes:
        sequence, row: where each version is stored.
        superseded: `NEVER` where it counts.
    """

    sequence: Sequences
    row: npt.NDArray[np.integer]
    superseded: Sequences


@dataclass(frozen=True, slots=True, eq=False)
class VersionArrays:
    """What is known of each version, by its place, and of each commit, in the order of the places.

    Attributes:
        since, superseded, origin: of each version.
        first: where the versions of each commit begin; ascending.
        origin_max: the greatest origin of each commit.
        superseded_count: how many versions of each commit are superseded.
    """

    since: Sequences
    superseded: Sequences
    origin: Sequences
    first: Sequences
    origin_max: Sequences
    superseded_count: Sequences

    def of_commits(self, commits: Commits) -> tuple[Sequences, Sequences]:
        """The greatest origin of each commit of a run, and how many of its versions are superseded.

        Later marks are counted, too.
        """
        assert commits.first is not None, "commits with places"
        number = np.searchsorted(self.first, commits.first)
        return self.origin_max.take(number), self.superseded_count.take(number)


@dataclass(frozen=True, slots=True, eq=False)
class CurrentPaths:
    """The paths of a run that no commit up to a cursor supersedes.

    Readers of that cursor or a later one need not look at the others.

    Attributes:
        position: of these, ascending.
        reached: the cursor.
    """

    position: Positions
    reached: Cursor

    def among(self, rows: Rows) -> Positions:
        """Those of some rows of the run."""
        if isinstance(rows, slice):
            return self.position[slice(*np.searchsorted(self.position, [rows.start, rows.stop]))]
        return self.position[np.isin(self.position, rows, assume_unique=True)]


class Versions:
    """The versions of all runs of a graph; one writer at a time."""

    def __init__(self) -> None:
        self._arrays = Buffer((np.int64, np.int64, np.int64))
        self._commits = Buffer((np.int64, np.int64, np.int64))
        self._places: dict[int, Buffer] = {}

    def __len__(self) -> int:
        return self._arrays.length

    @property
    def nbytes(self) -> int:
        buffers = [self._arrays, self._commits, *self._places.values()]
        return sum(buffer.nbytes for buffer in buffers)

    def append(
        self, commits: Commits, counts: npt.NDArray[np.integer], new: NewVersions
    ) -> Commits:
        """Adds the versions of commits, which count; the commits with their places.

        Args:
            commits: ascending within each partition.
            counts: versions of each commit.
            new: of all commits.
        """
        first = self._arrays.length + np.cumsum(counts) - counts
        self._arrays.extend((new.since, np.full(len(new.since), NEVER), new.origin))
        sequence = commits.sequence.repeat(counts)
        is_copy = new.since != sequence
        starts = np.cumsum(counts) - counts
        copied = np.logical_or.reduceat(is_copy, starts) if len(is_copy) else is_copy
        placed = Commits(commits.partition, commits.sequence, first, copied)
        origin_max = np.maximum.reduceat(new.origin, starts) if len(is_copy) else new.origin
        self._commits.extend((first, origin_max, np.zeros(len(first), dtype=np.int64)))
        self._note(placed)
        return placed

    def _note(self, commits: Commits) -> None:
        """Notes the places of commits; those of a partition are together, and ascend."""
        assert commits.first is not None, "commits with places"
        first = np.flatnonzero(differs(commits.partition)).tolist()
        for start, stop in zip(first, [*first[1:], len(commits)], strict=True):
            places = self._places.setdefault(
                int(commits.partition[start]), Buffer((np.int64, np.int64))
            )
            places.extend((commits.sequence[start:stop], commits.first[start:stop]))

    def mark(self, partition: int, marks: Marks) -> None:
        """Writes by which commits versions of a partition are superseded, but to those that are.

        Commits come in order, so the first one that supersedes a version is the earliest.
        """
        sequences, firsts = self._places[partition].view()
        at = np.searchsorted(sequences, marks.sequence)
        found = np.take(sequences, at, mode="clip") == marks.sequence  # Others were shed.
        found &= marks.superseded != NEVER
        place = firsts.take(at[found]) + marks.row[found]
        versions = self.view()
        counts = versions.superseded[place] == NEVER
        place = place[counts]
        versions.superseded[place] = marks.superseded[found][counts]
        commit = np.searchsorted(versions.first, place, side="right") - 1
        np.add.at(versions.superseded_count, commit, 1)

    def view(self) -> VersionArrays:
        """The arrays; later marks are seen in them, later versions are not."""
        return VersionArrays(*self._arrays.view(), *self._commits.view())

    def moved(self, every: Iterable[Commits]) -> tuple[Versions, list[Commits]]:
        """The versions of these commits alone, and the commits with their new places."""
        fresh, placed = Versions(), list[Commits]()
        starts, *numbers = self._commits.view()
        stops = np.append(starts[1:], self._arrays.length)
        for commits in every:
            assert commits.first is not None, "commits with places"
            commit = np.searchsorted(starts, commits.first)
            sizes = stops.take(commit) - commits.first
            rows = np.repeat(commits.first, sizes) + within(sizes)
            first = fresh._arrays.length + np.cumsum(sizes) - sizes
            fresh._arrays.extend(tuple(array.take(rows) for array in self._arrays.view()))
            fresh._commits.extend((first, *(column.take(commit) for column in numbers)))
            placed.append(replace(commits, first=first))
        if placed:
            whole = Commits.concat(placed)
            fresh._note(whole.take(np.lexsort((whole.sequence, whole.partition))))
        return fresh, placed

    def remove(self, partition: int) -> None:
        """Forgets the places of a partition, whose commits may come again."""
        self._places.pop(partition, None)


class Choice(StrEnum):
    """Which versions a window (after, until] of commits chooses; `at` is a further cursor.

    Attributes:
        CURRENT: that count at `at`, or without it at `until`, since commits of the window.
        STORED: that count at `at`, and that commits of the window store.
        WITHDRAWN: that count at `at`, and at `until` no more.
        REPLACED: since commits of the window, that do not count at `until`.
        SHORTENED: of a dataset without a key, what deletions of the window have left of paths.
    """

    CURRENT = "current"
    STORED = "stored"
    WITHDRAWN = "withdrawn"
    REPLACED = "replaced"
    SHORTENED = "shortened"


@dataclass(frozen=True, slots=True, eq=False)
class VersionFilter:
    """Passes versions of one run; arrays with a value for each commit.

    Attributes:
        versions: of the graph.
        first: the place of the first version.
        since: versions since the commits (since[0], since[1]] pass.
        superseded: of those the ones that are superseded by commits (superseded[0],
            superseded[1]].
        dropped: up to where the partition is dropped.
        has_others: whether a commit may have versions since other commits.
        current: the paths of the run among which are all that pass; None: any may.
    """

    versions: VersionArrays
    first: Sequences
    since: tuple[Sequences, Sequences]
    superseded: tuple[Sequences, Sequences | None]
    dropped: Sequences
    has_others: bool
    current: CurrentPaths | None

    @property
    def weight(self) -> int:
        return 3

    def mask(self, paths: Paths, rows: Rows) -> Mask:
        commit = take_rows(paths.commit, rows)
        place = self.first.take(commit) + take_rows(paths.row, rows)
        superseded = self.versions.superseded.take(place)
        after, until = self.superseded
        mask: Mask = superseded > after.take(commit)
        if until is not None:
            mask &= superseded <= until.take(commit)
        if self.has_others:
            since, (first, last) = self.versions.since.take(place), self.since
            mask &= (since > first.take(commit)) & (since <= last.take(commit))
            mask &= self.versions.origin.take(place) <= self.dropped.take(commit)
        return mask
