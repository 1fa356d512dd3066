"""Applies retention, cleans tables and keyed datasets, and erases deleted observations.

It has a thread of its own, because reading headers and deleting files can take long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias, TypeVar

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError
from galileo.model.channel import SUBSCRIPTIONS, channel_of
from galileo.model.retention import HeldBack, Retention, RetentionOutcome
from galileo.model.schema import StoredSchema
from galileo.model.table import Table
from galileo.model.times import MICROS
from galileo.node.catalog import Catalog
from galileo.node.channel_shard import ChannelShard
from galileo.node.compaction_runner import BYTES_PER_S
from galileo.node.dataset_shard import DatasetShard
from galileo.node.retention_plan import (
    PIECES,
    Bounds,
    Hold,
    Pieces,
    Plan,
    Readers,
    held_until,
    plan,
)
from galileo.node.shard import Shard
from galileo.node.table_cleaner import TableCleaner
from galileo.node.versioned_shard import VersionedShard

CHECK_S = 60.0
MIN_AGE_S = 60.0
TABLE_AGE_S = 300.0
ERASED_SHARE = 0.5
"""Of the rows of a file that are left: so many are deleted, at least, if it is rewritten."""

log = logging.getLogger(__name__)

Holds: TypeAlias = Callable[[StoredSchema], Sequence[Hold]]
"""The named readers and channels of a dataset, the named readers of a table, or the brokers that
hold results of a channel."""
Compared: TypeAlias = Callable[[Table], Sequence[Cursor]]
"""The commits of a table with which channels compare rows of subscriptions."""

S = TypeVar("S", bound=Shard)


@dataclass(frozen=True, slots=True)
class RetentionRunnerOptions:
    """When policies are applied.

    Args:
        check_s: seconds between two checks.
        min_age_s: younger commits are dropped only where the policy may pass readers.
            Longer than a continuous query takes from its first scan until all nodes know of it.
        table_age_s: younger commits of tables are not cleaned, and younger deletions not erased, so
            that their cursors can be used.
        wall: clock of the ages; a jump forward is ignored.
        monotonic: clock that limits `wall`.
    """

    check_s: float = CHECK_S
    min_age_s: float = MIN_AGE_S
    table_age_s: float = TABLE_AGE_S
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _Settling:
    """The commits at two times; the earlier ones have settled when the later time is old enough."""

    settled: Cursor
    seen: Cursor
    seen_at: float


class RetentionRunner:
    """Starts its thread at once; `stop` it before the journals are closed.

    Args:
        catalog: of the node.
        options: when.
        readers: called in this thread.
        holds: likewise, before commits or executions are dropped.
        compared: likewise, before a table is cleaned.
    """

    def __init__(
        self,
        catalog: Catalog,
        options: RetentionRunnerOptions,
        *,
        readers: Readers,
        holds: Holds,
        compared: Compared,
    ) -> None:
        self._catalog = catalog
        self._options = options
        self._readers = readers
        self._holds = holds
        self._tables_compared = compared
        self._started = options.monotonic()
        self._started_wall = options.wall()
        self._settling: dict[tuple[str, float], _Settling] = {}
        self._erased: dict[tuple[str, int], tuple[int, int]] = {}
        self._begun: dict[tuple[str, int], tuple[int, float]] = {}
        self._held: dict[str, tuple[HeldBack, ...]] = {}
        self._cleaner = TableCleaner(catalog)
        self._working = threading.Lock()
        self._stopping = threading.Event()
        for shard in catalog.shards.values():
            self._observe(shard)
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the partition at hand; blocks until then."""
        self._stopping.set()
        self._thread.join()

    def held(self, dataset: str) -> tuple[HeldBack, ...]:
        """The data that readers held back at the last check of a dataset or channel."""
        return self._held.get(dataset, ())

    def apply(self, dataset: str) -> RetentionOutcome:
        """Applies the dataset's policy now; blocks.

        Raises:
            UnknownDataset: there is none of that name.
        """
        shard, policy = self._catalog.shard(dataset), self._catalog.retention(dataset).retention
        if policy is not None:
            return self._retain(shard, policy, self._plan_rows)
        with self._working:
            self._observe(shard)
            self._held.pop(dataset, None)
            return RetentionOutcome()

    def _run(self) -> None:
        while not self._stopping.wait(self._options.check_s):
            for dataset in self._catalog.shards:
                if not self._stopping.is_set():
                    self._try(dataset)
            for place in list(self._settling):
                if place[0] not in self._catalog.shards:
                    del self._settling[place]
                    self._held.pop(place[0], None)
            for file in list(self._erased):
                if file[0] not in self._catalog.shards:
                    del self._erased[file]

    def _try(self, dataset: str) -> None:
        try:
            shard = self._catalog.shards.get(dataset)
            if isinstance(shard, VersionedShard):
                self.clean(shard)
            if isinstance(shard, ChannelShard):
                self.drop_executions(shard)
            elif isinstance(shard, DatasetShard):
                self.apply(dataset)
                if not shard.schema.is_keyed:
                    self.erase(shard)
        except Exception:
            log.exception("retention of dataset %s failed; it is tried again", dataset)

    def clean(self, shard: VersionedShard) -> None:
        """Removes versions that no longer count, and that no reader holds; blocks."""
        compared = self._compared(shard)  # Other nodes are asked.
        with self._working:
            self._observe(shard)
            settled = self._settled(shard).meet(compared)
            if not self._cleaner.is_due(shard, settled):
                return
        until = self._until_held(shard, settled)  # So are they here, if something is to be cleaned.
        if until is None:
            return
        with self._working:
            self._cleaner.clean(
                shard, until, expired_us=self._expired_us(shard), is_over=self._stopping.is_set
            )

    def _until_held(self, shard: Shard, settled: Cursor) -> Cursor | None:
        """Up to where no reader holds older versions; None while readers are not known."""
        holds = self._holds(shard.schema)
        readers = self._readers(shard.schema.key) if isinstance(shard, DatasetShard) else ()
        if readers is None:
            return None
        now_us = self._now_us()
        held = [
            shard.kept(hold.position) for hold in (*holds, *readers) if not hold.is_over(now_us)
        ]
        return reduce(Cursor.meet, held, settled)

    def erase(self, shard: DatasetShard) -> None:
        """Erases what deletions of a dataset without a key have removed, where it is worth it.

        Deletions that no reader holds and that have settled are erased from files of which they
        have removed half at least, in all partitions that this node has; blocks.
        """
        with self._working:
            self._observe(shard, self._options.table_age_s)
            settled = self._settled(shard, self._options.table_age_s)
        if not self._erasable(shard, settled):
            return
        until = self._until_held(shard, settled)
        for partition, state in self._erasable(shard, until or EMPTY_CURSOR).items():
            if self._stopping.is_set():
                return
            place = f"{shard.schema.key}/p{partition}"
            try:
                done = shard.erase(partition, state[0], self._pace, share=ERASED_SHARE)
            except (OSError, GalileoError) as error:
                log.warning("erasing of %s failed: %s; it is tried again", place, error)
                continue
            if done.is_over:
                self._erased[shard.schema.key, partition] = state
            if done.files:
                log.info("erased %d rows of %s, %d bytes", done.rows, place, done.bytes)

    def _erasable(self, shard: DatasetShard, until: Cursor) -> dict[int, tuple[int, int]]:
        """Partitions with deletions up to a cursor, or files, that were not looked at yet.

        Returns:
            Of each the last such deletion, and the number of its files.
        """
        states = {
            partition: (last, journal.segments)
            for partition, journal in sorted(shard.journals.items())
            if (last := shard.last_deletion(partition, until[partition]))
        }
        return {p: s for p, s in states.items() if self._erased.get((shard.schema.key, p)) != s}

    def _pace(self, size: int) -> bool:
        return not self._stopping.wait(size / BYTES_PER_S)

    def _expired_us(self, shard: Shard) -> int | None:
        """Before when observations are too old for the policy of their dataset."""
        policy = self._catalog.retention(shard.schema.key).retention
        if policy is None or policy.age_s is None:
            return None
        return self._now_us() - round(policy.age_s * MICROS)

    def _compared(self, shard: VersionedShard) -> Cursor:
        """The commits of a table that no channel compares with later ones any more.

        A channel that is created meanwhile compares with later ones than are published now.
        """
        published, key = shard.published(), self._catalog.key_of(channel_of(shard.schema.name))
        if not isinstance(shard.schema, Table):
            return published
        channel = self._catalog.channel_shards.get(key or "")
        if channel and channel.schema.compares and shard.schema.name.endswith(SUBSCRIPTIONS):
            return Cursor({p: channel.index.subscriptions(p) for p in published})
        return reduce(Cursor.meet, self._tables_compared(shard.schema), published)

    def drop_executions(self, shard: ChannelShard) -> RetentionOutcome:
        """Drops old executions of a channel that no broker holds; blocks.

        The last one of a partition stays, for its cut.
        """
        return self._retain(shard, Retention(shard.schema.keep_us / MICROS), self._plan_executions)

    def _retain(
        self,
        shard: S,
        policy: Retention,
        make_plan: Callable[[S, Retention, Sequence[Hold]], Plan],
    ) -> RetentionOutcome:
        """Drops what a policy demands and no reader holds.

        Positions of named readers and brokers are read only if there is something to drop, since
        other nodes have them.
        """
        with self._working:
            self._observe(shard)
            planned = make_plan(shard, policy, ())
        is_read = planned.drop and not policy.past_readers
        holds = self._holds(shard.schema) if is_read else ()
        with self._working:
            if holds:
                holds = [replace(hold, position=shard.kept(hold.position)) for hold in holds]
                planned = make_plan(shard, policy, holds)
            report = self._carry_out(shard, planned)
            self._held[shard.schema.key] = report.held
            return report

    def _plan_rows(self, shard: Shard, policy: Retention, holds: Sequence[Hold]) -> Plan:
        pieces = _pieces(shard)
        # Queries are listed after the files were listed, so that none of these is newer.
        queries, readers = self._readers(shard.schema.key), None
        if queries is not None:
            queries = [replace(one, position=shard.kept(one.position)) for one in queries]
            readers = held_until(pieces, policy, [*queries, *holds], now_us=self._now_us())
        return self._plan(shard, policy, pieces, Bounds(self._settled(shard), readers))

    def _plan_executions(
        self, shard: ChannelShard, policy: Retention, holds: Sequence[Hold]
    ) -> Plan:
        pieces = _pieces(shard)
        readers = held_until(pieces, policy, holds, now_us=self._now_us())
        droppable = self._settled(shard).meet(self._before_last(shard))
        return self._plan(shard, policy, pieces, Bounds(droppable, readers))

    def _before_last(self, shard: ChannelShard) -> Cursor:
        """The executions before the last one of each partition."""
        last = {partition: shard.index.last(partition) for partition in shard.own}
        return Cursor({partition: max(0, sequence - 1) for partition, sequence in last.items()})

    def _settled(self, shard: Shard, age_s: float | None = None) -> Cursor:
        age_s = self._age_s(shard) if age_s is None else age_s
        settling = self._settling.get((shard.schema.key, age_s))
        return EMPTY_CURSOR if settling is None else settling.settled

    def _plan(self, shard: Shard, policy: Retention, pieces: Pieces, bounds: Bounds) -> Plan:
        planned = plan(pieces, policy, bounds=bounds, now_us=self._now_us())
        seal = planned.seal | self._long_written(shard, policy)
        return Plan(seal, planned.drop, planned.held)

    def _now_us(self) -> int:
        """The wall clock, limited by the time since the start of this process.

        So a clock that is set forward by mistake drops no data.
        """
        lived = self._started_wall + self._options.monotonic() - self._started
        return int(min(self._options.wall(), lived) * MICROS)

    def _observe(self, shard: Shard, age_s: float | None = None) -> None:
        """Records what is committed now, to know later which commits have settled."""
        age_s = self._age_s(shard) if age_s is None else age_s
        now, place = self._options.monotonic(), (shard.schema.key, age_s)
        before = self._settling.get(place)
        if before is None:
            self._settling[place] = _Settling(EMPTY_CURSOR, shard.published(), now)
        elif now - before.seen_at >= age_s:
            self._settling[place] = _Settling(before.seen, shard.published(), now)

    def _age_s(self, shard: Shard) -> float:
        is_cleaned = isinstance(shard, VersionedShard)
        return self._options.table_age_s if is_cleaned else self._options.min_age_s

    def _long_written(self, shard: Shard, policy: Retention) -> frozenset[int]:
        """The partitions whose open file is older than `1 / PIECES` of the policy's age."""
        if policy.age_s is None:
            return frozenset()
        now, partitions = self._options.monotonic(), set()
        for partition, journal in shard.own.items():
            key, last = (shard.schema.key, partition), journal.log_files()[-1:]
            if not last or last[0].sealed:
                self._begun.pop(key, None)
                continue
            first, since = self._begun.setdefault(key, (last[0].first, now))
            if first != last[0].first:
                self._begun[key] = (last[0].first, now)
            elif now - since > policy.age_s / PIECES:
                partitions.add(partition)
        return frozenset(partitions)

    def _carry_out(self, shard: Shard, planned: Plan) -> RetentionOutcome:
        files = commits = size = 0
        failures = []
        for partition in sorted({*planned.seal, *planned.drop}):
            if self._stopping.is_set():
                break
            if not shard.owns(partition):
                continue
            place = f"{shard.schema.key}/p{partition}"
            try:
                if partition in planned.seal:
                    shard.journals[partition].seal()
                done = shard.drop(partition, planned.drop[partition])
            except (OSError, GalileoError) as error:
                log.error("retention of %s failed: %s", place, error)
                failures.append(f"{place}: {error}")
                continue
            files, commits, size = files + done.files, commits + done.commits, size + done.bytes
            if done.files:
                log.info(
                    "retention dropped %d files of %s, %d bytes, commits up to %d",
                    *(done.files, place, done.bytes, done.until),
                )
        return RetentionOutcome(files, commits, size, planned.held, tuple(failures))


def _pieces(shard: Shard) -> Pieces:
    return {partition: journal.log_files() for partition, journal in shard.own.items()}
