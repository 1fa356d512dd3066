"""The memtable: new paths, unsorted, in the order of their commits.

Its buffers are written only behind published rows, so that a reader's view needs neither a copy nor
a lock.
"""

from __future__ import annotations

import numpy as np

from galileo.graph.buffer import Buffer
from galileo.graph.columns import Commits, Paths, dtypes
from galileo.graph.deletion_vectors import DeletionVector
from galileo.graph.sorted_runs import SortedRun
from galileo.model.schema import Schema


class Memtable:
    """An append-only buffer of paths and commits; one writer at a time.

    Args:
        schema: of the dataset.

    Attributes:
        deletions: as of a run; replaced as a whole.
    """

    __slots__ = ("_commits", "_paths", "_schema", "deletions")

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._paths = Buffer(dtypes(schema))
        kinds = (np.int32, np.int64, np.int64, np.bool_)
        self._commits = Buffer(kinds if schema.is_keyed else kinds[:2])
        self.deletions: DeletionVector | None = None

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
        self._commits.extend(commits.arrays())

    def view(self) -> SortedRun:
        """A run of the present contents; later appends do not change it."""
        paths = Paths.from_arrays(self._schema, self._paths.view())
        return SortedRun(paths, Commits(*self._commits.view()), deletions=self.deletions)
