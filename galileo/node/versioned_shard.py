"""Shards of tables and keyed datasets, whose rows replace and delete each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.cursor import Cursor
from galileo.errors import Conflict, DataExpired, GalileoError, InputError, Unavailable
from galileo.graph.versions import NEVER
from galileo.model.sort_keys import differs, sort_order
from galileo.model.table import key_words
from galileo.node.shard import Shard
from galileo.node.table_index import TableIndex, Versions, marks_of
from galileo.storage.commits import Commit, Committed
from galileo.storage.erasing import RemovedRows
from galileo.storage.retention import Truncation

PIECE_BYTES = 8 << 20
"""Bytes of rows of a table that are read together, unless one row has more."""
OVERLAP_AFTER_S = 0.02
"""Seconds after which a client repeats a batch with rows that another one is storing."""


class VersionedShard(Shard):
    """A shard with an index of the versions of each key."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cleaned: dict[int, int] = {}

    @property
    def version_index(self) -> TableIndex:
        """The versions of each key."""
        raise NotImplementedError

    def dropped(self) -> Cursor:
        """As of `Shard`, and what may be dropped or blank, although its files are there."""
        bounds = {
            partition: max(journal.drop_bound, self._cleaned.get(partition, 0))
            for partition, journal in self.journals.items()
        }
        return Cursor(bounds).join(self.erased())

    def drop(self, partition: int, until: int) -> Truncation:
        self._cleaned[partition] = max(until, self._cleaned.get(partition, 0))
        return super().drop(partition, until)

    def refuse_stale(
        self, commits: Mapping[int, Sequence[Commit]]
    ) -> Mapping[int, Sequence[Commit]]:
        """Refuses batches with keys that have a version past `Commit.unchanged_since`."""
        refusals = dict[tuple[str, int], GalileoError]()
        for partition, of_partition in commits.items():
            conditional = [one for one in of_partition if one.unchanged_since is not None]
            if not conditional:
                continue
            journal = self.journals[partition]
            for commit in conditional:
                # What an earlier attempt has stored here is no reason to refuse its other parts.
                is_stored = journal.find_batch(commit.producer, commit.batch) is not None
                if not is_stored and (error := self._refusal(partition, commit)):
                    refusals.setdefault((commit.producer, commit.batch), error)
            for commit in self._overlapping(partition, of_partition):
                refusals.setdefault((commit.producer, commit.batch), _overlap(self.schema.name))
        if not refusals:
            return commits
        return {
            partition: [
                replace(one, refusal=refusals.get((one.producer, one.batch), one.refusal))
                for one in of_partition
            ]
            for partition, of_partition in commits.items()
        }

    def _refusal(self, partition: int, commit: Commit) -> GalileoError | None:
        """Why published commits refuse a conditional batch."""
        bound = commit.unchanged_since
        assert bound is not None, "only conditional batches are refused"
        since, last = Cursor({partition: bound}), self.published_sequence(partition)
        try:
            self.check_history([partition], since)
            if bound > last:
                self.check_own([partition])
                raise self.past_end([partition], since, parameter="unchanged_since")
            keys = np.column_stack([commit.paths.column(half) for half in ("high", "low")])
            later = self.version_index.find(partition, keys, after=bound, until=last)
            self.check_kept([partition], since)
        except GalileoError as error:
            return error
        return self._conflict(partition, commit, later, keys) if len(later) else None

    def _conflict(
        self, partition: int, commit: Commit, later: Versions, keys: npt.NDArray[np.uint64]
    ) -> Conflict:
        row = int(np.flatnonzero((keys == [later.high[0], later.low[0]]).all(axis=1))[0])
        key = self._key_of(commit, row)
        return Conflict(
            f"the row with the key {key_words(key)} of {self.schema.name!r} was changed after the "
            "cursor of this call, which has not changed it; read the row again before you decide",
            key=key,
            partition=partition,
            sequence=int(later.since[0]),
        )

    def _key_of(self, commit: Commit, row: int) -> Any:
        """The key of a row of a commit, for messages."""
        raise NotImplementedError

    def _overlapping(self, partition: int, commits: Sequence[Commit]) -> list[Commit]:
        """The conditional batches with keys of a commit before them that is not published.

        It may be pending, or an earlier one of `commits`.
        """
        pending = self.journals[partition].pending_paths
        batches = [*pending, *(commit.paths for commit in commits)]
        paths = pa.concat_batches([batch.select(["high", "low", "since"]) for batch in batches])
        numbers = np.repeat(np.arange(len(batches)), [batch.num_rows for batch in batches])
        is_copy = paths.column("since").to_numpy() > 0  # The cleaner changes no row.
        high, low, number = (
            column[~is_copy]
            for column in (paths.column("high").to_numpy(), paths.column("low").to_numpy(), numbers)
        )
        order = sort_order([high, low, number])
        high, low, number = high[order], low[order], number[order]
        before = np.where(differs(high) | differs(low), number, np.roll(number, 1))
        late = np.unique(number[before < number]) - len(pending)
        found = [commits[place] for place in late[late >= 0].tolist()]
        return [commit for commit in found if commit.unchanged_since is not None]

    def past_end(
        self, partitions: Iterable[int], cursor: Mapping[int, int], *, parameter: str
    ) -> InputError:
        """The error for a cursor past the last commits of some partitions."""
        published = self.published(partitions)
        past = {p: cursor[p] for p in partitions if cursor[p] > published[p]}
        return InputError(
            f"expected a cursor of {self.schema.name!r}, got one past its last commits: "
            f"{past} where those are {dict(self.published(past).items())}",
            parameter=parameter,
        )

    def check_kept(self, partitions: Iterable[int], cursor: Mapping[int, int]) -> None:
        """Raises DataExpired where versions that followed a cursor may be removed.

        Called after versions were sought, since journals record first what is removed from the
        index.
        """
        dropped = self.dropped()
        expired = {p: dropped[p] for p in partitions if cursor[p] < dropped[p]}
        if expired:
            raise DataExpired(
                f"expected a recent cursor of {self.schema.name!r}, got one before commit "
                f"{max(expired.values())}, up to which replaced and deleted rows are removed; read "
                "what is there now, and continue from its cursor",
                partitions=sorted(expired),
                until=[expired[p] for p in sorted(expired)],
            )

    def may_drop(self, partition: int, last: int, until: int) -> bool:
        """As of `Shard`: whether nothing that counts at `until` is stored up to `last`.

        Files of replicas end at different commits, and merges change where they end. Where files
        end between a deletion and an older version that was stored again, their drop would leave
        that version without the deletion. A later drop then finds files that end elsewhere.
        """
        if last == until:
            return True
        return not len(self.version_index.versions(partition, until=until).kept(last))

    def removed_rows(self, partition: int, until: int) -> RemovedRows:
        """See `Shard.removed_rows`: replaced and deleted versions. Deletions keep their keys."""
        versions = self.version_index.versions(partition, until=until)
        marks = marks_of(versions)
        gone = (marks.superseded != NEVER) & ~versions.deleted
        return RemovedRows.of(
            until,
            sequence=marks.sequence[gone],
            row=marks.row[gone],
            rows=np.ones(np.count_nonzero(gone), dtype=np.int64),
            by=marks.superseded[gone],
        )

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


def overtaken(result: Committed | GalileoError) -> Committed | GalileoError:
    """The result of a batch whose condition a node has set, and not a caller.

    The node reads again where a row has changed since.
    """
    return _overlap("") if isinstance(result, Conflict) else result


def _overlap(name: str) -> Unavailable:
    words = f"of {name!r} " if name else ""
    return Unavailable(
        f"another call is just changing a row {words}that this one replaces; try again",
        after_s=OVERLAP_AFTER_S,
    )
