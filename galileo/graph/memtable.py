"""The memtable: new paths, unsorted, in the order of their commits.

Arrays grow by doubling and are written only behind published rows, so that a reader's view needs
neither a copy nor a lock.
"""

from __future__ import annotations

import numpy as np

from galileo.graph.columns import Array, Commits, Paths, dtypes
from galileo.graph.sorted_runs import SortedRun
from galileo.model.schema import Schema

_CAPACITY_MIN = 64


class Memtable:
    """An append-only buffer of paths and commits; one writer at a time.

    Args:
        schema: of the dataset.
    """

    __slots__ = ("_commits", "_paths", "_schema")

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._paths = _Buffer(dtypes(schema))
        self._commits = _Buffer((np.int32, np.int64))

    def __len__(self) -> int:
        return self._paths.length

    @property
    def commits(self) -> int:
        """Number of commits; that of the next one."""
        return self._commits.length

    @property
    def nbytes(self) -> int:
        """Size of the used part of the buffers; unused pages are not mapped."""
        return self._paths.nbytes + self._commits.nbytes

    def append(self, paths: Paths, commits: Commits) -> None:
        """Adds commits; the number of the first in `paths` is `commits`."""
        self._paths.extend(paths.arrays())
        self._commits.extend((commits.partition, commits.sequence))

    def view(self) -> SortedRun:
        """A run of the present contents; later appends do not change it."""
        partition, sequence = self._commits.view()
        return SortedRun(
            Paths.from_arrays(self._schema, self._paths.view()), Commits(partition, sequence)
        )


class _Buffer:
    """Arrays of one common length that grow together."""

    __slots__ = ("_arrays", "length")

    def __init__(self, kinds: tuple[type[np.generic], ...]) -> None:
        self._arrays: tuple[Array, ...] = tuple(np.empty(_CAPACITY_MIN, kind) for kind in kinds)
        self.length = 0

    @property
    def nbytes(self) -> int:
        return sum(self.length * array.itemsize for array in self._arrays)

    def extend(self, columns: tuple[Array, ...]) -> None:
        stop = self.length + len(columns[0])
        if stop > len(self._arrays[0]):
            self._grow(stop)
        for array, column in zip(self._arrays, columns, strict=True):
            array[self.length : stop] = column
        self.length = stop

    def view(self) -> tuple[Array, ...]:
        return tuple(array[: self.length] for array in self._arrays)

    def _grow(self, needed: int) -> None:
        """Moves to new arrays; views keep the old ones."""
        capacity = max(needed, 2 * len(self._arrays[0]))
        grown = tuple(np.empty(capacity, array.dtype) for array in self._arrays)
        for new, old in zip(grown, self._arrays, strict=True):
            new[: self.length] = old[: self.length]
        self._arrays = grown
