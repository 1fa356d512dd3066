"""The index of a table: where the versions of each key are.

Each partition has sorted runs, as in an LSM tree: newer runs have later commits, and each run is
sorted by the hash of the key, then by the commit since which the version counts. A reader takes
what is there when it begins; it never changes. The writer merges the small runs of the memtable,
`maintain` the others. A version takes 29 bytes.

A version is stored in the commit since which it counts, or once more in a later one
(`galileo.node.table_cleaner`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.arrays import within
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.columns import Commits
from galileo.graph.versions import NEVER, Marks
from galileo.model.schema import DELETED
from galileo.model.sort_keys import differs, merge_order, sort_order
from galileo.node.peers import PARTS_SCHEMA

MEMTABLE_VERSIONS = 4_096
"""Versions at which the memtable of a partition becomes a run that `maintain` merges."""
_EVERY = 2**62
"""A sequence past every commit."""
GROWTH = 2
"""A run has at least so many times the versions of the next newer one."""


@dataclass(frozen=True, slots=True, eq=False)
class Versions:
    """Versions of keys; arrays of one length.

    Attributes:
        high, low: both halves of the hash of each key.
        since: the commit since which the version counts.
        sequence: the commit that it is stored in; both of 32 bits as long as they fit, else of 64.
        row: within that commit.
        deleted: whether the version deletes its key.
    """

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    since: npt.NDArray[np.uint32 | np.int64]
    sequence: npt.NDArray[np.uint32 | np.int64]
    row: npt.NDArray[np.int32]
    deleted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    def take(self, rows: Any) -> Versions:
        return Versions(*(getattr(self, field.name)[rows] for field in fields(self)))

    @staticmethod
    def concatenate(parts: Sequence[Versions]) -> Versions:
        columns = ([getattr(part, field.name) for part in parts] for field in fields(Versions))
        return Versions(*map(np.concatenate, columns))

    def sorted_by_key(self) -> Versions:
        """Sorted by key and `since`; equal ones stay in their order."""
        return self.take(sort_order([self.high, self.low, self.since]))

    def newest(self) -> Versions:
        """The last version of each key, of versions sorted by key."""
        return self.take(np.append(self.first_of_keys()[1:], True)[: len(self)])

    def kept(self, bound: int) -> Versions:
        """The last versions of keys that are stored up to a commit and needed without it.

        A deletion is needed where a version of its key is stored past that commit.

        Args:
            bound: what is stored up to it is dropped; of versions sorted by key.
        """
        if not len(self):
            return self
        starts = np.flatnonzero(self.first_of_keys())
        has_copies = np.logical_or.reduceat(self.sequence > bound, starts)
        newest = self.newest()
        is_needed = ~newest.deleted | has_copies
        return newest.take(is_needed & (newest.sequence <= bound))

    def overhanging(self, bound: int) -> Versions:
        """The last versions of keys that are stored up to a commit, and an older one past it.

        Args:
            bound: of versions sorted by key.
        """
        if not len(self):
            return self
        starts = np.flatnonzero(self.first_of_keys())
        has_later = np.logical_or.reduceat(self.sequence > bound, starts)
        newest = self.newest()
        return newest.take(has_later & (newest.sequence <= bound))

    def pieces(self, count: int) -> Iterator[Versions]:
        """All of them in the order in which they are stored, so many at a time."""
        ordered = self.take(np.lexsort((self.row, self.sequence)))
        for start in range(0, len(self), count):
            yield ordered.take(slice(start, start + count))

    def is_stored_again(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Which rows have the same version before them, of versions sorted by key."""
        before = np.maximum(rows - 1, 0)
        equal: npt.NDArray[np.bool_] = rows > 0
        for column in (self.high, self.low, self.since):
            equal &= column[rows] == column[before]
        return equal

    def first_of_keys(self) -> npt.NDArray[np.bool_]:
        """Mask of the first version of each key, of versions sorted by key."""
        return differs(self.high) | differs(self.low)


NO_VERSIONS = Versions(
    np.empty(0, np.uint64),
    np.empty(0, np.uint64),
    np.empty(0, np.uint32),
    np.empty(0, np.uint32),
    np.empty(0, np.int32),
    np.empty(0, np.bool_),
)


@dataclass(frozen=True, slots=True, eq=False)
class _Partition:
    """What is there of one partition; later commits make another object.

    Attributes:
        runs: sorted by key, the oldest first.
        memtable: small runs of later commits; each is large compared with the newer ones.
    """

    runs: tuple[Versions, ...] = ()
    memtable: tuple[Versions, ...] = ()

    def runs_after(self, after: int) -> tuple[Versions, ...]:
        """Runs that have all versions since the commits past one."""
        newer = (run for run in self.memtable if run.sequence.max() > after)
        return (*self.runs, *newer)

    def with_commits(self, versions: Versions) -> _Partition:
        memtable = (*self.memtable, versions.sorted_by_key())
        if sum(map(len, memtable)) >= MEMTABLE_VERSIONS:
            return _Partition((*self.runs, _merged(memtable)))
        first = _first_to_merge([len(run) for run in memtable])
        if first is not None:
            memtable = (*memtable[:first], _merged(memtable[first:]))
        return _Partition(self.runs, memtable)


_NOTHING = _Partition()


class TableIndex:
    """The versions of the keys of a table, by partition; thread-safe."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}
        self._dropped: Cursor = EMPTY_CURSOR
        self._made = 0
        self._writing = threading.Lock()
        self._merging = threading.Lock()

    def insert_many(
        self, batch: pa.RecordBatch, commits: Commits, counts: npt.NDArray[np.integer[Any]]
    ) -> None:
        """Adds the versions of commits that are later than those of their partitions.

        Args:
            batch: of `Table.path_schema`, those of one commit after those of another.
            commits: those of one partition are together, in ascending order.
            counts: versions of each commit.
        """
        self.insert(versions_of(batch, commits, counts), commits, counts)

    def insert(
        self, versions: Versions, commits: Commits, counts: npt.NDArray[np.integer[Any]]
    ) -> None:
        """As `insert_many`, of what `versions_of` made of the batch."""
        ends = np.cumsum(counts)
        first = np.flatnonzero(differs(commits.partition)).tolist()
        for start, stop in zip(first, [*first[1:], len(commits)], strict=True):
            of_partition = slice(int(ends[start] - counts[start]), int(ends[stop - 1]))
            self._insert(int(commits.partition[start]), versions.take(of_partition))

    def _insert(self, partition: int, versions: Versions) -> None:
        if not len(versions):  # A seal.
            return
        with self._writing:
            before = self._of(partition)
            after = self._partitions[partition] = before.with_commits(versions)
            self._made += after.runs is not before.runs

    def _of(self, partition: int) -> _Partition:
        return self._partitions.get(partition, _NOTHING)

    def newest(self, partition: int, *, after: int = 0, until: int) -> Versions:
        """The last version of each key among those since the commits (after, until]."""
        return self.versions(partition, after=after, until=until).newest()

    def versions(self, partition: int, *, after: int = 0, until: int) -> Versions:
        """The versions since the commits (after, until], sorted by key."""
        parts = []
        for run in self._of(partition).runs_after(after):
            is_wanted = (run.since > after) & (run.since <= until)
            if is_wanted.all():
                parts.append(run)
            elif is_wanted.any():
                parts.append(run.take(is_wanted))
        return _merged(parts) if parts else NO_VERSIONS

    def find(
        self, partition: int, hashes: npt.NDArray[np.uint64], *, after: int = 0, until: int
    ) -> Versions:
        """`newest` of some keys.

        Args:
            partition: of the keys.
            hashes: of keys, as of `hashing.hash128`.
            after: commits up to it do not count.
            until: nor do those past it.
        """
        return self.stored(partition, hashes, after=after, until=until).newest()

    def stored(
        self,
        partition: int,
        hashes: npt.NDArray[np.uint64],
        *,
        after: int = 0,
        until: int = _EVERY,
    ) -> Versions:
        """`versions` of some keys, each once; those that are copies are behind their originals."""
        found, hashes = [NO_VERSIONS], _in_order(hashes)
        for run in self._of(partition).runs_after(after):
            starts = np.searchsorted(run.high, hashes[:, 0], side="left")
            counts = np.searchsorted(run.high, hashes[:, 0], side="right") - starts
            key = np.repeat(np.arange(len(hashes)), counts)
            versions = run.take(starts[key] + within(counts))
            is_wanted = (
                (versions.low == hashes[key, 1])
                & (versions.since > after)
                & (versions.since <= until)
            )
            found.append(versions.take(is_wanted))
        return _merged(found)

    def last(self, partition: int, hashes: npt.NDArray[np.uint64]) -> Versions:
        """At least the last version of each of some keys, wherever it is stored; in no order.

        It takes no longer where keys have many versions.
        """
        found, hashes = [NO_VERSIONS], _in_order(hashes)
        for run in self._of(partition).runs_after(0):
            end = np.searchsorted(run.high, hashes[:, 0], side="right")
            at = np.flatnonzero(end)
            at = at[run.high[end[at] - 1] == hashes[at, 0]]
            place = end[at] - 1
            is_last = run.low[place] == hashes[at, 1]
            if not is_last.all():  # Half of the hash is that of another key, too.
                return self.stored(partition, hashes)
            while len(place):
                found.append(run.take(place))
                place = place[run.is_stored_again(place)] - 1
        return Versions.concatenate(found)

    def remove(self, partition: int) -> None:
        """Removes the versions of a partition, which may be inserted again."""
        with self._writing:
            self._partitions.pop(partition, None)
            self._dropped = Cursor({p: s for p, s in self._dropped.items() if p != partition})

    def drop_before(self, partition: int, sequence: int) -> None:
        """Removes the versions that are stored in the commits of a partition before a sequence."""
        with self._merging, self._writing:
            runs = self._of(partition).runs_after(0)
            left = tuple(run.take(run.sequence >= sequence) for run in runs)
            self._partitions[partition] = _Partition(tuple(run for run in left if len(run)))
            self._dropped = self._dropped.join({partition: sequence - 1})

    def maintain(self) -> bool:
        """Merges runs until each is large compared with the newer ones; call it in a thread.

        Returns:
            Whether there were such.
        """
        if not self._merging.acquire(blocking=False):
            return False
        try:
            return sum(map(self._maintain, list(self._partitions))) > 0
        finally:
            self._merging.release()

    def _maintain(self, partition: int) -> bool:
        runs = self._of(partition).runs
        first = _first_to_merge([len(run) for run in runs])
        if first is None:
            return False
        merged = _merged(runs[first:])
        with self._writing:
            now = self._of(partition)
            if now.runs[: len(runs)] != runs:  # The partition has left, or begins anew.
                return False
            newer = now.runs[len(runs) :]
            self._partitions[partition] = replace(now, runs=(*runs[:first], merged, *newer))
            self._made += 1
        return True

    @property
    def dropped(self) -> Cursor:
        """The commits that retention has removed."""
        return self._dropped

    @property
    def runs(self) -> int:
        """The number of runs that were made."""
        return self._made

    def count(self, partition: int, *, until: int | None = None) -> int:
        """Versions of a partition that are stored in the commits up to `until`, or in all."""
        there = self._of(partition)
        parts = (*there.runs, *there.memtable)
        if until is None:
            return sum(map(len, parts))
        return sum(int(np.count_nonzero(part.sequence <= until)) for part in parts)

    def memory_bytes(self) -> int:
        every = list(self._partitions.values())
        return sum(part.nbytes for there in every for part in (*there.runs, *there.memtable))


def versions_of(
    batch: pa.RecordBatch, commits: Commits, counts: npt.NDArray[np.integer[Any]]
) -> Versions:
    """The versions of commits, in their order; arguments as of `TableIndex.insert_many`."""
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    sequence = _narrow(np.repeat(commits.sequence, counts))
    since = _narrow(batch.column("since").to_numpy())
    return Versions(
        batch.column("high").to_numpy(),
        batch.column("low").to_numpy(),
        np.where(since, since, sequence),
        sequence,
        (np.arange(len(starts)) - starts).astype(np.int32),
        batch.column(DELETED).to_numpy(zero_copy_only=False),
    )


def _narrow(sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32 | np.int64]:
    """Sequences in 32 bits, if all fit."""
    fits = sequences.max(initial=0) < 1 << 32
    return sequences.astype(np.uint32) if fits else sequences


def _in_order(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hashes in the order of runs, in which finding them takes a third of the time."""
    return hashes[np.argsort(hashes[:, 0])]


def _merged(parts: Sequence[Versions]) -> Versions:
    """The versions of runs, the older first, sorted by key."""
    if len(parts) == 1:
        return parts[0]
    whole = Versions.concatenate(parts)
    return whole.take(merge_order([whole.high, whole.low, whole.since]))


def _first_to_merge(sizes: Sequence[int]) -> int | None:
    """The oldest run that is small compared with the newer ones together; None if there is none."""
    newer = 0
    first = None
    for number in reversed(range(len(sizes))):
        if newer and sizes[number] < GROWTH * newer:
            first = number
        newer += sizes[number]
    return first


def marks_of(stored: Versions) -> Marks:
    """By which commit each of all versions of some keys is superseded; a deletion by its own.

    Args:
        stored: sorted by key, then `since`, if a key has more than one; a version may be stored
            more than once.
    """
    is_first_of_key, since = stored.first_of_keys(), stored.since.astype(np.int64)
    starts = np.flatnonzero(is_first_of_key | differs(since))
    following = np.append(since[starts[1:]], NEVER)
    following[np.append(is_first_of_key[starts[1:]], True)] = NEVER
    superseded = np.repeat(following, np.diff(np.append(starts, len(stored))))
    superseded = np.where(stored.deleted, since, superseded)
    return Marks(stored.sequence.astype(np.int64), stored.row, superseded)


def parts_of(partition: int, versions: Versions) -> pa.Table:
    """Where versions are stored, of `PARTS_SCHEMA`; rows that follow each other are one part."""
    ordered = versions.take(np.lexsort((versions.row, versions.sequence)))
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = (np.diff(ordered.sequence) != 0) | (np.diff(ordered.row) != 1)
    starts = np.flatnonzero(is_first)
    columns = [
        np.full(len(starts), partition),
        ordered.sequence[starts],
        ordered.row[starts],
        np.diff(np.append(starts, len(ordered))),
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, PARTS_SCHEMA, strict=True)]
    return pa.table(arrays, schema=PARTS_SCHEMA)
