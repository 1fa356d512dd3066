"""The index of a keyed dataset: the metadata graph, and where the versions of each key are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import Cursor
from galileo.graph.columns import Commits
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.versions import Marks, NewVersions
from galileo.model.schema import Schema
from galileo.model.sort_keys import differs, sort_order
from galileo.model.times import column_micros
from galileo.node.table_index import TableIndex, Versions, marks_of, versions_of
from galileo.query.columns import Mask

Sequences = npt.NDArray[np.int64]
_NO_BUCKET = -(2**63)


class KeyedIndex:
    """The paths of a keyed dataset in its graph, and its versions by key; thread-safe.

    Attributes:
        graph: in which new versions mark those that they supersede.
        versions: of each key.
    """

    def __init__(self, schema: Schema) -> None:
        self.graph = MetadataGraph(schema)
        self.versions = TableIndex()
        self._newest = dict[int, int]()

    def insert_many(
        self, batch: pa.RecordBatch, commits: Commits, counts: npt.NDArray[np.integer[Any]]
    ) -> None:
        """Adds versions; those of one partition are added by one caller after the other.

        Args:
            batch: of `schema.path_schema`, the paths of one commit after those of another.
            commits: those of one partition are together, in ascending order.
            counts: paths of each commit.
        """
        held = np.flatnonzero(counts)
        if not len(held):  # Seals alone.
            return
        commits, counts = commits.take(held), counts[held]
        added, starts = versions_of(batch, commits, counts), np.append(0, np.cumsum(counts))
        is_copy = added.since != added.sequence
        new = NewVersions(added.since.astype(np.int64), np.zeros(len(added), dtype=np.int64))
        marks, buckets = dict[int, Marks](), column_micros(batch.column("bucket"))
        for partition, first, stop in _of_partitions(commits):
            rows = slice(int(starts[first]), int(starts[stop]))
            of_partition, newest = added.take(rows), self._newest.get(partition, _NO_BUCKET)
            # The bucket is part of the key, so no key of a later one is there.
            may_be_known = buckets[rows] <= newest
            known = self._known(
                partition, of_partition.take(may_be_known), is_copy[rows][may_be_known]
            )
            self._newest[partition] = max(newest, int(buckets[rows].max()))
            every = of_partition
            if len(known) or stop - first > 1:  # A commit has one version of each key.
                every = Versions.concatenate([known, of_partition]).sorted_by_key()
            marks[partition] = marks_of(every)
            if is_copy[rows].any():
                sequences = commits.sequence[first:stop]
                at = np.minimum(np.searchsorted(sequences, every.sequence), len(sequences) - 1)
                is_new = sequences[at] == every.sequence
                new.origin[(starts[first + at] + every.row)[is_new]] = _origins(every)[is_new]
        self.versions.insert(added, commits, counts)
        names = self.graph.schema.graph_schema.names
        self.graph.insert_many(batch.select(names), commits, counts, versions=new, marks=marks)

    def _known(self, partition: int, added: Versions, is_copy: Mask) -> Versions:
        """The stored versions that new ones supersede, or that supersede them.

        A new version is later than all that are stored, so the last ones of its key are enough. A
        copy may be earlier than some.
        """
        keys = np.column_stack([added.high, added.low])
        if not is_copy.any():
            return self.versions.last(partition, keys)
        copied = _distinct(keys[is_copy])
        others = keys[~np.isin(keys[:, 0], copied[:, 0])]
        every = self.versions.stored(partition, copied), self.versions.last(partition, others)
        return Versions.concatenate(every)

    def remove(self, partition: int) -> None:
        """Removes a partition, which may be inserted again."""
        self.versions.remove(partition)
        self._newest.pop(partition, None)
        self.graph.remove(partition)

    def drop_before(self, partition: int, sequence: int) -> None:
        """Removes what commits of a partition before a sequence store.

        In the graph this is one step, in which the copies of these versions take their place.
        """
        self.graph.drop_before(partition, sequence)
        self.versions.drop_before(partition, sequence)

    def maintain(self) -> bool:
        """Merges runs of both; call it in a thread."""
        is_merged = self.versions.maintain()
        return self.graph.maintain() or is_merged

    @property
    def dropped(self) -> Cursor:
        """The commits that were removed."""
        return self.graph.dropped

    @property
    def runs(self) -> int:
        """Changes when `maintain` may have something to do."""
        return self.graph.runs + self.versions.runs

    def memory_bytes(self) -> int:
        return self.graph.memory_bytes() + self.versions.memory_bytes()


def _of_partitions(commits: Commits) -> Iterator[tuple[int, int, int]]:
    """Each partition with its first commit, and the one behind its last."""
    first = np.flatnonzero(differs(commits.partition)).tolist()
    for start, stop in zip(first, [*first[1:], len(commits)], strict=True):
        yield int(commits.partition[start]), start, stop


def _distinct(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    ordered = keys[sort_order([keys[:, 0], keys[:, 1]])]
    return ordered[differs(ordered[:, 0]) | differs(ordered[:, 1])]


def _origins(stored: Versions) -> Sequences:
    """The commit that stores each version of the same `since` before the next one; 0 for none."""
    is_copy = ~(stored.first_of_keys() | differs(stored.since))
    sequence = stored.sequence.astype(np.int64)
    return np.where(is_copy, np.roll(sequence, 1), 0)
