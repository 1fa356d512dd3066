"""Sorted runs: immutable, with zone maps; and the policy of their compaction.

Runs are ordered by age. New data is in the memtable and in small recent runs, and a run knows its
sequences by partition, so a scan "since sequence s" prunes old runs without reading their paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from galileo.graph.arena import allocate
from galileo.graph.columns import BUCKET, CELL, COMMIT, Array, Commits, Paths
from galileo.graph.deletion_vectors import DeletionVector
from galileo.graph.versions import CurrentPaths
from galileo.model.schema import Feature
from galileo.model.sort_keys import merge_order
from galileo.query.columns import Mask
from galileo.query.zone_maps import FeatureZones, Zones

BLOCK_PATHS = 4096
"""Paths under one entry of a zone map."""
COMPACTION_GROWTH = 4
"""How much larger than its oldest member a compacted run is, at least."""
RUN_PATHS_MAX = 1 << 23
"""Runs of this size are not compacted any more, which bounds the memory of a compaction."""


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBounds:
    """For each partition of a run the least and the greatest commit sequence, both inclusive."""

    partition: npt.NDArray[np.int32]
    lo: npt.NDArray[np.int64]
    hi: npt.NDArray[np.int64]

    @classmethod
    def of(cls, commits: Commits) -> SequenceBounds:
        order = np.lexsort((commits.sequence, commits.partition))
        partition, sequence = commits.partition[order], commits.sequence[order]
        starts = np.flatnonzero(np.diff(partition, prepend=np.int32(-1)))
        stops = np.append(starts[1:], len(partition)) - 1
        return cls(partition[starts], sequence[starts], sequence[stops[: len(starts)]])


@dataclass(frozen=True, slots=True, eq=False)
class ZoneMap:
    """Bounds of each block of paths of a sorted run.

    Attributes:
        block_paths: paths of a block; the last may have fewer.
        zones: of cell, bucket and features.
        commit_lo: least number of a commit in the block.
        commit_hi: greatest number of a commit in the block.
    """

    block_paths: int
    zones: Zones
    commit_lo: npt.NDArray[np.int32]
    commit_hi: npt.NDArray[np.int32]

    @classmethod
    def of(cls, paths: Paths, *, block_paths: int) -> ZoneMap:
        starts = np.arange(0, len(paths), block_paths)
        return cls(
            block_paths,
            Zones.of(paths.columns, starts),
            np.minimum.reduceat(paths.commit, starts),
            np.maximum.reduceat(paths.commit, starts),
        )

    def may_hold(self, commits: Mask) -> Mask:
        """Mask of blocks that may hold a path of the commits in the mask."""
        before = np.concatenate([[0], np.cumsum(commits)])
        mask: Mask = before[self.commit_hi + 1] > before[self.commit_lo]
        return mask

    @property
    def nbytes(self) -> int:
        zones, features = self.zones, self.zones.features.values()
        arrays: list[Array] = [zones.cell_lo, zones.cell_hi, zones.bucket_lo, zones.bucket_hi]
        arrays += [self.commit_lo, self.commit_hi]
        arrays += [array for f in features for array in (f.has_null, f.has_value)]
        bounds = [array for f in features for array in (f.lo, f.hi) if array is not None]
        return sum(int(array.nbytes) for array in [*arrays, *bounds])


@dataclass(frozen=True, slots=True, eq=False)
class SortedRun:
    """An immutable part of the graph.

    Attributes:
        paths: sorted by cell, then bucket, if there is a zone map; else in insertion order.
        commits: that `paths.commit` refers to.
        zone_map: None in the memtable, which is not sorted.
        spans: sequence bounds; None in the memtable.
        path_counts: number of paths of each commit; None in the memtable.
        deletions: which paths deletions have changed; None: none, or the dataset has a key.
        current: of a keyed dataset, the paths that are not superseded; None where many are not.
    """

    paths: Paths
    commits: Commits
    zone_map: ZoneMap | None = None
    spans: SequenceBounds | None = None
    path_counts: npt.NDArray[np.int64] | None = None
    deletions: DeletionVector | None = None
    current: CurrentPaths | None = None

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def nbytes(self) -> int:
        zones = 0 if self.zone_map is None else self.zone_map.nbytes
        spans = 0 if self.spans is None else 20 * len(self.spans.partition)
        counts = 0 if self.path_counts is None else int(self.path_counts.nbytes)
        deletions = 0 if self.deletions is None else self.deletions.nbytes
        current = 0 if self.current is None else self.current.position.nbytes
        return (
            self.paths.nbytes + self.commits.nbytes + zones + spans + counts + deletions + current
        )

    def commit_paths(self) -> npt.NDArray[np.int64]:
        """Number of paths of each commit."""
        if self.path_counts is None:
            return _count_paths(self.paths, self.commits)
        return self.path_counts

    def with_features(self, features: Sequence[Feature]) -> SortedRun:
        """The same run with further features, which are null."""
        paths, zone_map = self.paths.with_features(features), self.zone_map
        if zone_map is not None:
            starts = np.arange(0, len(paths), zone_map.block_paths)
            columns = paths.columns.features
            nulls = {f.name: FeatureZones.of(columns[f.name], starts) for f in features}
            known = zone_map.zones
            zones = replace(known, features={**known.features, **nulls})
            zone_map = replace(zone_map, zones=zones)
        return replace(self, paths=paths, zone_map=zone_map)


def seal(
    paths: Paths,
    commits: Commits,
    *,
    deletions: DeletionVector | None = None,
    block_paths: int = BLOCK_PATHS,
) -> SortedRun:
    """A sorted run of at least one path, with its zone map."""
    order = np.lexsort((paths.columns.bucket, paths.columns.cell))
    arrays = _arrange_all([(array,) for array in paths.arrays()], order)
    run = _build_run(paths.like(arrays), commits, block_paths=block_paths)
    return with_deletions(run, [SortedRun(paths, commits, deletions=deletions)], order)


def with_deletions(
    run: SortedRun, members: Sequence[SortedRun], order: npt.NDArray[np.intp]
) -> SortedRun:
    """A run with the deletions of those that it was made of.

    Args:
        run: that `seal` or `compact` has made.
        members: of it.
        order: the path of all members, one after the other, that each path of the run was.
    """
    if all(member.deletions is None for member in members):
        return run
    places = np.full(sum(map(len, members)), -1)
    places[order] = np.arange(len(order))
    starts = np.cumsum([0, *map(len, members)])
    parts = [
        replace(member.deletions, position=member.deletions.position + start)
        for member, start in zip(members, starts, strict=False)
        if member.deletions is not None
    ]
    every = DeletionVector(
        *(np.concatenate(arrays) for arrays in zip(*(p.arrays() for p in parts), strict=True))
    )
    return replace(run, deletions=every.moved(places))


def compact(
    runs: Sequence[SortedRun],
    *,
    held: Sequence[Mask | None] | None = None,
    erased: Sequence[npt.NDArray[np.intp]] = (),
    block_paths: int = BLOCK_PATHS,
) -> tuple[SortedRun, npt.NDArray[np.intp]] | None:
    """Merge runs into one sorted run; commits stay in the order of age.

    Args:
        runs: at least one, oldest first.
        held: for each run a mask of live commits; None: all.
        erased: for each run the paths of live commits that are left out; empty: none.
        block_paths: paths under one entry of the zone map.

    Returns:
        The run, without deletions, and the order for `with_deletions`. None if no path is live.
    """
    held = held or [None] * len(runs)
    numbers, commits = _numbered(runs, held)
    pairs = zip(numbers, runs, strict=True)
    commit = np.concatenate([number.take(run.paths.commit) for number, run in pairs])
    starts = np.cumsum([0, *map(len, runs)])
    for start, left_out in zip(starts, erased, strict=False):
        commit[start + left_out] = -1
    stacks: list[tuple[Array, ...]] = [*zip(*(run.paths.arrays() for run in runs), strict=True)]
    stacks[COMMIT] = (commit,)
    order = merge_order([np.concatenate(stacks[CELL]), np.concatenate(stacks[BUCKET])])
    if any(mask is not None for mask in held) or any(map(len, erased)):
        order = order[commit.take(order) >= 0]
    if len(order) == 0:
        return None
    paths = runs[0].paths.like(_arrange_all(stacks, order))
    return _build_run(paths, commits, block_paths=block_paths), order


def _build_run(paths: Paths, commits: Commits, *, block_paths: int) -> SortedRun:
    zone_map = ZoneMap.of(paths, block_paths=block_paths)
    counts = _count_paths(paths, commits)
    return SortedRun(paths, commits, zone_map, SequenceBounds.of(commits), counts)


def _count_paths(paths: Paths, commits: Commits) -> npt.NDArray[np.int64]:
    return np.bincount(paths.commit, minlength=len(commits))


def _arrange_all(stacks: Sequence[Sequence[Array]], order: npt.NDArray[np.intp]) -> list[Array]:
    """Concatenate and reorder each column, one after the other to save memory.

    Validity masks of integers without nulls stay one constant.
    """
    plain = [not all(part.dtype == np.bool_ and part.all() for part in stack) for stack in stacks]
    slots = iter(
        allocate([s[0].dtype for s, dense in zip(stacks, plain, strict=True) if dense], len(order))
    )
    return [
        _arrange(stack, order, next(slots)) if dense else np.broadcast_to(np.True_, len(order))
        for stack, dense in zip(stacks, plain, strict=True)
    ]


def _arrange(stack: Sequence[Array], order: npt.NDArray[np.intp], slot: Array) -> Array:
    whole = stack[0] if len(stack) == 1 else np.concatenate(stack)
    whole.take(order, out=slot, mode="clip")
    return slot


def _numbered(
    runs: Sequence[SortedRun], held: Sequence[Mask | None]
) -> tuple[list[npt.NDArray[np.int32]], Commits]:
    """New commit numbers for each run, -1 for dropped ones; and the commits."""
    numbers: list[npt.NDArray[np.int32]] = []
    remaining: list[Commits] = []
    for run, mask in zip(runs, held, strict=True):
        stays = np.ones(len(run.commits), dtype=np.bool_) if mask is None else mask
        count = sum(map(len, remaining))
        number = np.where(stays, np.cumsum(stays) - 1 + count, -1)
        numbers.append(number.astype(np.int32))
        remaining.append(run.commits.take(stays))
    return numbers, Commits.concat(remaining)


def compaction_start(sizes: Sequence[int]) -> int | None:
    """The oldest run that is to be compacted with all newer ones, or None.

    It is the oldest that grows `COMPACTION_GROWTH`-fold. So without a due compaction each run holds
    more than a third of what all newer ones hold: the number of runs is logarithmic in the number
    of paths, and so is how often a path is rewritten.

    Args:
        sizes: paths of each run, oldest first.
    """
    full = [number for number, size in enumerate(sizes) if size >= RUN_PATHS_MAX]
    first = full[-1] + 1 if full else 0
    newer = sum(sizes[first:])
    for number in range(first, len(sizes)):
        newer -= sizes[number]
        if newer >= (COMPACTION_GROWTH - 1) * sizes[number]:
            return number
    return None
