"""Removes versions of tables that no longer count, with the files that they are in.

The commits of a partition up to a bound, the end of a file, are removed. What counts at the bound
is first committed once more, at the end of the log. A copy counts since the same commit as its
original. So it takes the place of no later version, it is never a change, and readers at cursors
past the bound see the same as before. Deletions are removed, unless a copy of an earlier version
lies behind the bound, which would count again.

It is the cleaner of a log-structured store (Rosenblum and Ousterhout, "The design and
implementation of a log-structured file system", 1992): files are cleaned if at most half of their
versions count, so that for each one that is copied at least one is removed. Where there are few
versions, which may be large, it is enough if those that count have at most half of the bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import wait

from galileo.cursor import Cursor
from galileo.errors import GalileoError
from galileo.node.catalog import Catalog
from galileo.node.stored_versions import copies
from galileo.node.table_index import Versions
from galileo.node.versioned_shard import VersionedShard
from galileo.storage.commits import Commit
from galileo.storage.journal import PartitionJournal

CLEANER = "~clean"
"""The producer of copies; no user has one with this character."""
COPIED_TOGETHER = 65_536
WEIGHED_MAX = 4_096
"""Versions whose bytes are compared; others are counted."""
WAIT_S = 0.5

log = logging.getLogger(__name__)


class TableCleaner:
    """Cleans the tables of a node, in a thread."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._enough = dict[tuple[str, int], tuple[int, int]]()

    def clean(
        self,
        shard: VersionedShard,
        settled: Cursor,
        *,
        expired_us: int | None = None,
        is_over: Callable[[], bool],
    ) -> None:
        """Cleans the own partitions of a table or keyed dataset as far as that is worth it.

        Args:
            shard: of the table.
            settled: commits past it are not removed, so that readers can use recent cursors.
            expired_us: observations of earlier time buckets are not copied, microseconds since
                1970; None: all are.
            is_over: whether to stop after the commit at hand.
        """
        for partition, bound in self._bounds(shard, settled):
            if is_over():
                return
            place = f"{shard.schema.key}/p{partition}"
            try:
                if (kept := self._worth_keeping(shard, partition, bound)) is None:
                    continue
                # Without what has replaced them, older versions would count again.
                hangs_over = shard.version_index.versions(partition, until=bound).overhanging(bound)
                least_us = None if len(hangs_over) else expired_us
                if self._copy(shard, partition, kept, least_us=least_us, is_over=is_over):
                    done = shard.drop(partition, bound)
                    log.info(
                        "cleaning dropped %d files of %s, %d bytes, and copied %d versions",
                        *(done.files, place, done.bytes, len(kept)),
                    )
            except (OSError, GalileoError) as error:
                log.warning("cleaning of %s failed: %s; it is tried again", place, error)

    def is_due(self, shard: VersionedShard, settled: Cursor) -> bool:
        """Whether there is something to clean; a part of what `clean` does, without its commits."""
        return any(
            self._worth_keeping(shard, partition, bound) is not None
            for partition, bound in self._bounds(shard, settled)
        )

    def _worth_keeping(self, shard: VersionedShard, partition: int, bound: int) -> Versions | None:
        """What counts at a bound, if that is at most half of what is stored; else None."""
        place, dropped = (shard.schema.key, partition), shard.dropped()[partition]
        count = shard.version_index.count(partition, until=bound)
        at, enough = self._enough.get(place, (dropped, 0))
        if at == dropped and WEIGHED_MAX < count < enough:
            return None
        kept = shard.version_index.versions(partition, until=bound).kept(bound)
        if _is_worth_it(shard, partition, kept, bound):
            self._enough.pop(place, None)
            return kept
        # Each further version supersedes at most one of those that count.
        self._enough[place] = dropped, count + (2 * len(kept) - count) // 3
        return None

    def _bounds(self, shard: VersionedShard, settled: Cursor) -> Iterator[tuple[int, int]]:
        """The own partitions with files that may be removed, and where the last of these ends."""
        # Also what another leader has dropped, where files end elsewhere.
        dropped = shard.dropped()
        for partition, journal in sorted(shard.own.items()):
            ends = [file.last for file in journal.log_files() if file.sealed]
            bound = max((end for end in ends if end <= settled[partition]), default=0)
            copied = _last_copied(journal)
            # With an earlier bound than that of a cleaning before, versions would be copied that
            # were superseded by then. Where the later ones are dropped, they would count again.
            if copied is not None and bound > dropped[partition] and bound >= copied:
                yield partition, bound

    def _copy(
        self,
        shard: VersionedShard,
        partition: int,
        kept: Versions,
        *,
        least_us: int | None,
        is_over: Callable[[], bool],
    ) -> bool:
        """Commits versions once more; whether all of them are committed."""
        for some in _pieces(shard, partition, kept):
            if is_over():
                return False
            copied = copies(shard, partition, some, least_us=least_us)
            if copied is None:
                continue
            number = (shard.journal(partition).last_batch(CLEANER) or 0) + 1
            commit = Commit(CLEANER, number, *copied)
            committing = self._catalog.commit(shard.schema.key, {partition: commit})
            while not wait([committing], timeout=WAIT_S).done:
                if is_over():  # The copy may be committed later, which does no harm.
                    return False
            result = committing.result()[partition]
            if isinstance(result, GalileoError):
                raise result
        return True


def _is_worth_it(shard: VersionedShard, partition: int, kept: Versions, bound: int) -> bool:
    """Whether at most half of what is stored up to a bound counts."""
    count = shard.version_index.count(partition, until=bound)
    if 2 * len(kept) <= count or count > WEIGHED_MAX:
        return 2 * len(kept) <= count
    every = shard.version_index.versions(partition, until=bound)
    stored = every.take(every.sequence <= bound)
    kept_bytes, all_bytes = (shard.row_bytes(partition, some).sum() for some in (kept, stored))
    return bool(2 * kept_bytes <= all_bytes)


def _pieces(shard: VersionedShard, partition: int, kept: Versions) -> Iterator[Versions]:
    for some in kept.pieces(COPIED_TOGETHER):
        yield from shard.split_by_bytes(partition, some)


def _last_copied(journal: PartitionJournal) -> int | None:
    """The commit of the last copies, which is past the bound of their cleaning; 0 without any.

    None: copies may be committed later; a deletion of their keys has to outlive them.
    """
    last = journal.last_batch(CLEANER)
    return 0 if last is None else journal.find_batch(CLEANER, last)
