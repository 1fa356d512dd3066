"""Runs: immutable stretches of paths, sorted and with zone maps, and when to merge them.

Runs stand in the order of age. New data sits in the head and in small recent runs, and a run
knows by partition which sequences it holds, so "since sequence s" rules old runs out without
a look at their paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from galileo.graph.columns import Array, Commits, Paths
from galileo.model.schema import Schema
from galileo.query.columns import Mask
from galileo.query.zones import Zones

BLOCK_PATHS = 4096
"""Paths under one entry of a zone map."""
MERGE_GROWTH = 4
"""How much larger than its oldest member a merged run is, at least."""
RUN_PATHS_MAX = 1 << 23
"""Runs of this size are not merged any more, which bounds the memory that a merge takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """For each partition of a run the least and the greatest commit sequence, both inclusive."""

    partition: npt.NDArray[np.int32]
    lo: npt.NDArray[np.int64]
    hi: npt.NDArray[np.int64]

    @classmethod
    def of(cls, commits: Commits) -> Spans:
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
        """Which blocks may hold a path of the commits that are true in the mask."""
        before = np.concatenate([[0], np.cumsum(commits)])
        found: Mask = before[self.commit_hi + 1] > before[self.commit_lo]
        return found

    @property
    def nbytes(self) -> int:
        zones, features = self.zones, self.zones.features.values()
        arrays: list[Array] = [zones.cell_lo, zones.cell_hi, zones.bucket_lo, zones.bucket_hi]
        arrays += [self.commit_lo, self.commit_hi]
        arrays += [array for f in features for array in (f.has_null, f.has_value)]
        bounds = [array for f in features for array in (f.lo, f.hi) if array is not None]
        return sum(int(array.nbytes) for array in [*arrays, *bounds])


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Paths that never change.

    Attributes:
        paths: by cell, then bucket, where there is a zone map; else as they came.
        commits: that `paths.commit` refers to.
        zone_map: None in the head, which is not sorted.
        spans: of the commits; None in the head.
    """

    paths: Paths
    commits: Commits
    zone_map: ZoneMap | None = None
    spans: Spans | None = None

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def nbytes(self) -> int:
        zones = 0 if self.zone_map is None else self.zone_map.nbytes
        spans = 0 if self.spans is None else 20 * len(self.spans.partition)
        return self.paths.nbytes + self.commits.nbytes + zones + spans


def seal(paths: Paths, commits: Commits, *, block_paths: int = BLOCK_PATHS) -> Run:
    """A sorted run of at least one path, with its zone map."""
    ordered = paths.take(np.lexsort((paths.columns.bucket, paths.columns.cell)))
    zone_map = ZoneMap.of(ordered, block_paths=block_paths)
    return Run(ordered, commits, zone_map, Spans.of(commits))


def merge(schema: Schema, runs: Sequence[Run], *, block_paths: int = BLOCK_PATHS) -> Run:
    """One sorted run of the paths of all; commits keep the order of age."""
    paths = Paths.concat(schema, [run.paths for run in runs])
    sizes = [len(run.commits) for run in runs]
    shifts = np.repeat(np.cumsum([0, *sizes[:-1]]), [len(run) for run in runs])
    commit = (paths.commit + shifts).astype(np.int32)
    commits = Commits(
        np.concatenate([run.commits.partition for run in runs]),
        np.concatenate([run.commits.sequence for run in runs]),
    )
    renumbered = Paths(paths.columns, paths.row, paths.rows, commit)
    return seal(renumbered, commits, block_paths=block_paths)


def merge_start(sizes: Sequence[int]) -> int | None:
    """The oldest run that is to be merged with all newer ones, or None.

    It is the oldest that grows `MERGE_GROWTH`-fold. So when nothing is to be merged each run
    holds more than a third of what all newer ones hold together: the number of runs
    is logarithmic in the number of paths, and so is how often a path is rewritten.

    Args:
        sizes: paths of each run, oldest first.
    """
    full = [number for number, size in enumerate(sizes) if size >= RUN_PATHS_MAX]
    first = full[-1] + 1 if full else 0
    newer = sum(sizes[first:])
    for number in range(first, len(sizes)):
        newer -= sizes[number]
        if newer >= (MERGE_GROWTH - 1) * sizes[number]:
            return number
    return None
