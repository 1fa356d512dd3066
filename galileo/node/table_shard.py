"""The shard of a table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import Unavailable
from galileo.model.sort_keys import differs, sort_order
from galileo.model.table import Table
from galileo.node.shard import Shard
from galileo.node.table_index import TableIndex, Versions
from galileo.storage.commits import Commit
from galileo.storage.retention import Truncation

PIECE_BYTES = 8 << 20
"""Bytes of rows of a table that are read together, unless one row has more."""
UNCHECKED = np.iinfo(np.int64).max
"""The bound of versions that replace whatever is there."""
STALE_AFTER_S = 0.02
"""Seconds after which a client repeats a batch with rows that another one was storing."""


class TableShard(Shard):
    """The journals of one table on this node, and the index of its versions."""

    schema: Table
    index: TableIndex

    def __init__(self, table: Table, **options: Any) -> None:
        super().__init__(table, TableIndex(), **options)
        self._cleaned: dict[int, int] = {}

    def dropped(self) -> Cursor:
        """As of `Shard`, and what may be dropped, although files end elsewhere."""
        cleaned = {p: until for p, until in self._cleaned.items() if p in self.journals}
        return super().dropped().join(cleaned)

    def drop(self, partition: int, until: int) -> Truncation:
        self._cleaned[partition] = max(until, self._cleaned.get(partition, 0))
        return super().drop(partition, until)

    def refuse_stale(
        self, commits: Mapping[int, Sequence[Commit]]
    ) -> Mapping[int, Sequence[Commit]]:
        """Refuses batches with keys that have a version past `Commit.unchanged_since`."""
        stale = {
            (commit.producer, commit.batch)
            for partition, of_partition in commits.items()
            for commit in self._stale(partition, of_partition)
        }
        if not stale:
            return commits
        refusal = Unavailable(
            f"another call has just changed a row of table {self.schema.name!r} that this one "
            "replaces; try again",
            after_s=STALE_AFTER_S,
        )
        return {
            partition: [
                replace(one, refusal=refusal) if (one.producer, one.batch) in stale else one
                for one in of_partition
            ]
            for partition, of_partition in commits.items()
        }

    def _stale(self, partition: int, commits: Sequence[Commit]) -> list[Commit]:
        """The commits of keys that have a version past `Commit.unchanged_since`.

        That version may be published, pending, or of an earlier one of `commits`.
        """
        bounds = [_bound(commit) for commit in commits]
        if min(bounds, default=UNCHECKED) == UNCHECKED:
            return []
        last, pending = self.published_sequence(partition), self.journals[partition].pending_paths
        batches = [*pending, *(commit.paths for commit in commits)]
        counts = [batch.num_rows for batch in batches]
        paths = pa.concat_batches(batches)
        high, low, since = (paths.column(name).to_numpy() for name in ("high", "low", "since"))
        # Stand-ins for the sequences of commits that are not published.
        sequence = np.repeat(np.arange(last + 1, last + 1 + len(batches)), counts)
        bound = np.repeat([*[UNCHECKED] * len(pending), *bounds], counts)
        keys = np.column_stack([high, low])[bound < UNCHECKED]
        newer = self.index.find(partition, keys, after=min(bounds), until=last)
        late = _late(
            np.concatenate([newer.high, high]),
            np.concatenate([newer.low, low]),
            since=np.concatenate([newer.since, np.where(since, since, sequence)]),
            bound=np.concatenate([np.full(len(newer), UNCHECKED), bound]),
        )
        numbers = np.unique(late) - (last + 1 + len(pending))
        return [commits[number] for number in numbers.tolist()]

    def may_drop(self, partition: int, last: int, until: int) -> bool:
        """As of `Shard`: whether nothing that counts at `until` is stored up to `last`.

        Files of replicas end at different commits, and merges change where they end. Where files
        end between a deletion and an older version that was stored again, their drop would leave
        that version without the deletion. A later drop then finds files that end elsewhere.
        """
        if last == until:
            return True
        return not len(self.index.versions(partition, until=until).kept(last))

    def split_by_bytes(self, partition: int, versions: Versions) -> list[Versions]:
        """As many versions together as have about `PIECE_BYTES`; in a thread.

        Args:
            partition: of the versions.
            versions: in the order in which they are stored.
        """
        pieces = (np.cumsum(self.row_bytes(partition, versions)) // PIECE_BYTES).astype(np.int64)
        starts = np.flatnonzero(np.diff(pieces, prepend=-1)).tolist()
        bounds = itertools.pairwise([*starts, len(versions)])
        return [versions.take(slice(start, stop)) for start, stop in bounds]

    def row_bytes(self, partition: int, versions: Versions) -> npt.NDArray[np.float64]:
        """The bytes of the row of each version; in a thread.

        Rows of one commit, which has at most 64 MiB, count as if they were of one size.
        """
        sequences, places = np.unique(versions.sequence, return_inverse=True)
        sizes = np.array(self.journal(partition).row_sizes(sequences.tolist()), dtype=np.float64)
        return sizes[places]


def _bound(commit: Commit) -> int:
    return UNCHECKED if commit.unchanged_since is None else commit.unchanged_since


def _late(
    high: npt.NDArray[np.uint64],
    low: npt.NDArray[np.uint64],
    *,
    since: npt.NDArray[np.int64],
    bound: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Since which commits those versions count that follow one past their bound.

    Args:
        high: of the hash of each key.
        low: likewise.
        since: which commit each version counts.
        bound: the last commit that may have the version before.
    """
    order = sort_order([high, low, since])
    high, low, since, bound = high[order], low[order], since[order], bound[order]
    is_first = differs(high) | differs(low)
    before = np.where(is_first, 0, np.roll(since, 1))
    return since[(before > bound) & (before < since)]
