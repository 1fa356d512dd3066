"""Known-wrong variants of channels, which the judge has to convict.

Each names what it changes in the production code, by dotted names.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from channel_audit import ROWS, Reader

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import BatchConflict, DataExpired
from galileo.graph.versions import Choice
from galileo.model.times import MICROS
from galileo.node import channel_reader, stored_versions
from galileo.node.channel_cuts import ChannelCuts
from galileo.node.channel_executor import ChannelExecutor, cut_of
from galileo.node.channel_observations import ChannelObservations
from galileo.node.channel_subscriptions import ChannelSubscriptions, Progress
from galileo.node.peers import ExecutionsTask
from galileo.node.reference_tables import ReferenceTables
from galileo.node.retention_plan import Hold
from galileo.node.select import CursorRange
from galileo.node.storage_node import StorageNode
from galileo.query.subscriptions import RowIndex, SubscriptionIndex
from simulator.channel_world import SimulatedWorld, run_channels

_execute = ChannelExecutor.execute
_read_progress = ChannelExecutor._read_progress
_read_changes = ChannelSubscriptions._read_changes
_update = ChannelSubscriptions.update
_note = ChannelExecutor._note
_fetch = ChannelObservations.fetch
_is_due = ChannelExecutor._is_due
_join_changes = ChannelSubscriptions._join_changes
_changed_keys = ReferenceTables.changed_keys
_apply = SubscriptionIndex.apply
_pieces = channel_reader._pieces
_hold = ChannelCuts._hold
_copies = stored_versions.copies
_select = ChannelObservations._select

Patches = dict[str, Any]
"""Replacements by dotted name."""


# --- when subscriptions are read -----------------------------------------------------------------


async def _subscriptions_first(self: Any, channel: str) -> bool:
    """Who subscribes while an execution runs gets what comes afterwards."""
    work = await self._work(channel)
    if work is None or work.compares:
        return await _execute(self, channel)
    for partition in work.shard.surely_own(range(work.channel.partitions)):
        progress = await _read_progress(self, work, partition)
        await _update(self._subscriptions, work, partition, progress)
    await asyncio.sleep(0.4)
    return await _execute(self, channel)


async def _unless_read(self: Any, work: Any, partition: int, progress: Any) -> Any:
    """The second part of `_subscriptions_first`."""
    return await _update(self, work, partition, progress) if work.compares else None


def as_heard(world: SimulatedWorld) -> Patches:
    """Subscriptions are read as far as gossip has named them, as observations are."""

    async def read(
        self: Any, work: Any, partition: int, *, after: int, take: Any, until: int | None = None
    ) -> int:
        if until is None:
            until = world[self._tables._name].view.sequences(work.table)[partition]
            if until <= max(after, 0):
                return max(after, 0)
        return await _read_changes(self, work, partition, after=after, take=take, until=until)

    return {f"{SUBSCRIPTIONS}._read_changes": read}


def _without_deletions(self: Any, changes: Any) -> None:
    """After `unsubscribe` nothing more is delivered."""
    _apply(self, changes.filter(pc.invert(changes.column("deleted"))))


async def _update_on_top(self: Any, work: Any, partition: int, progress: Any) -> Any:
    """An index whose table was cleaned past it is read again, without being emptied first."""
    if work.compares or progress.indexed < 0:
        return await _update(self, work, partition, progress)

    async def apply(rows: pa.Table) -> None:
        progress.index.apply(rows)

    for after in (progress.indexed, -1):
        try:
            progress.indexed = await self._read_changes(work, partition, after=after, take=apply)
        except DataExpired:
            continue
        break
    return None


# --- what is new ---------------------------------------------------------------------------------


def by_clock(world: SimulatedWorld) -> Patches:
    """New is what was stamped between the last execution and this one, by wall clocks.

    Each node stamps what it receives, in milliseconds. The time of the last execution is handed
    over to the node that executes next, without loss. (Wang, Carey and Tsotras, section 5.2:
    `prev < t AND t < current`.)
    """
    times: dict[Cursor, float] = {}

    async def fetch(
        self: Any, work: Any, *, after: Cursor, until: Cursor, is_whole: bool = False
    ) -> Any:
        current = round(self._clock.wall(), 3)
        fetched = await _fetch(self, work, after=EMPTY_CURSOR, until=until, is_whole=True)
        if not after:  # A history.
            return fetched
        numbers = fetched.observations.column("number").to_numpy()
        stamps = np.array([world.stamps[number // ROWS] for number in numbers.tolist()])
        is_new = (times.get(after, 0.0) < stamps) & (stamps < current)
        times[fetched.until] = current
        return replace(fetched, observations=fetched.observations.filter(is_new), after=after)

    return {f"{OBSERVATIONS}.fetch": fetch}


def _without_last(
    partitions: frozenset[int], after: Cursor, until: Cursor, *, at: Cursor | None = None
) -> CursorRange:
    """Intervals are closed at their ends: the last commit belongs to the execution."""
    shorter = {p: max(after[p], s - 1) for p, s in until.items()}
    return CursorRange(partitions, after, Cursor(shorter), at=at)


def _with_last_once_more(
    partitions: frozenset[int], after: Cursor, until: Cursor, *, at: Cursor | None = None
) -> CursorRange:
    """Intervals are open at their beginnings: the last commit belongs to one execution alone."""
    longer = {p: max(0, s - 1) for p, s in after.items()}
    return CursorRange(partitions, Cursor(longer), until, at=at)


async def _part_as_whole(self: Any, work: Any, *, after: Cursor, until: Cursor, **rest: Any) -> Any:
    """An execution that took a part, or lacks a partition that is away, says so in its cut."""
    fetched = await _fetch(self, work, after=after, until=until, **rest)
    return replace(fetched, until=until)


async def _absent_as_matched(
    self: Any, work: Any, *, after: Cursor, until: Cursor, **rest: Any
) -> Any:
    """A partition of the dataset that is away is matched later."""
    fetched = await _fetch(self, work, after=after, until=until, **rest)
    return fetched if fetched.is_part else replace(fetched, until=until)


async def _from_frontier(self: Any, work: Any, partition: int) -> Any:
    """The subscriptions of a node that was away get what came meanwhile."""
    is_begun = partition in self._progress.get(work.channel.key, {})
    progress = await _read_progress(self, work, partition)
    if not is_begun:
        progress.cut = progress.cut.join(self._view.sequences(work.channel.schema.key))
    return progress


def _copies_as_new(shard: Any, partition: int, versions: Any, **options: Any) -> Any:
    """A version that cleaning copies counts since its first commit."""
    made = _copies(shard, partition, versions, **options)
    assert made is not None, "rows without a time"
    rows, copied = made
    columns = copied.to_pydict() | {"since": [0] * copied.num_rows}
    return rows, pa.RecordBatch.from_pydict(columns, schema=copied.schema)


def _all_published(self: Any, shard: Any) -> Cursor:
    """A table is not cleaned past what a channel compares with."""
    published: Cursor = shard.published()
    return published


def _as_it_was(self: Any, work: Any, observed: Any) -> None:
    """A history gets the observations of each execution."""
    histories = self._histories.get(work.channel.key, {})
    if observed.history is not None and observed.after in histories:
        histories[observed.until] = histories[observed.after]


async def _keep_index(self: Any, work: Any, partition: int) -> Any:
    """An index has no changes that no execution has compared."""
    known = self._progress.get(work.channel.key, {}).get(partition)
    kept = None if known is None or known.indexed < 0 else (known.index, known.indexed)
    progress = await _read_progress(self, work, partition)
    if kept is not None:
        progress.index, progress.indexed = kept
    return progress


async def _read_anew_as_new(self: Any, table: Any, *, after: Cursor, until: Cursor) -> Any:
    """Rows are new if they were stored, not if they were read anew."""
    replica = self._replicas[table.key]
    if after == until or any(one.after == after for one in replica.changes):
        return await _changed_keys(self, table, after=after, until=until)
    return replica.reference.rows.select(table.key_columns)


async def _newest_rows(self: Any, table: Any, cursor: Cursor) -> Any:
    """An index that is made anew has the rows of the last cut."""
    return self._replicas[table.key].reference


async def _nothing_compared(self: Any, table: Any) -> Any:
    """A looked-up table is not cleaned past what channels compare with."""
    return []


async def _keep_rows(self: Any, work: Any, partition: int) -> Any:
    """An index has no rows of tables that no execution has compared."""
    known = self._progress.get(work.channel.key, {}).get(partition)
    kept = None if known is None or known.indexed < 0 else (known.index, known.indexed)
    progress = await _read_progress(self, work, partition)
    if kept is not None and kept[1] == progress.subscriptions:
        progress.index, progress.indexed = kept
        progress.joined = progress.references
    return progress


async def _subscriptions_alone(self: Any, work: Any, progress: Any, changes: Any, rows: Any) -> Any:
    """Changes of rows count, as those of subscriptions do."""
    progress.references = rows.cursors
    return await _join_changes(self, work, progress, changes, rows)


# --- keyed datasets ------------------------------------------------------------------------------


def _with_replaced(observations: Any, replaced: Any) -> Any:
    """A history loses what was replaced."""
    return observations


async def _current_alone(self: Any, work: Any, *rest: Any) -> Any:
    """An execution reads what was replaced."""
    async with aclosing(_select(self, work, *rest)) as parts:
        async for choice, part in parts:
            if choice is Choice.CURRENT:
                yield choice, part


def _without_successors(self: Any, index: Any) -> Any:
    """A subscription does not leave a key whose new version it matches."""
    return index.match(self.successors).slice(0, 0)


def _unchanged(changes: Any) -> Any:
    """Changed subscriptions leave what they matched before."""
    return changes.slice(0, 0)


# --- repetitive channels -------------------------------------------------------------------------


async def _new_alone(self: Any, work: Any, fetched: Any) -> Any:
    """Observations that were delivered are delivered again."""
    return RowIndex(work.query, fetched.observations)


async def _only_with_news(self: Any, work: Any, partition: int) -> bool:
    """An execution delivers what matches even if nothing is new."""
    heard = self._view.sequences(work.channel.schema.key)
    has_news = bool(self._of(work, partition).cut.news(heard))
    return await _is_due(self, work, partition) and (has_news or not work.channel.is_repetitive)


def _due_when_it_is_tried(self: Any, now_s: float) -> int:
    """Attempts in one period are due at the same time."""
    return round(now_s * MICROS)


def bound_by_clock(world: SimulatedWorld) -> Patches:
    """The age of observations is bound by the time in the log, not by that of the attempt."""

    def oldest_us(self: Any) -> int:
        now_us = round(world.clock.wall() * MICROS)
        return now_us - (self.channel.age_max_us or now_us)

    return {"galileo.node.channel_observations.ChannelWork.oldest_us": property(oldest_us)}


async def _always_due(self: Any, work: Any, partition: int) -> bool:
    """There is one execution in a period."""
    await _update(self._subscriptions, work, partition, self._of(work, partition))
    return True


async def _never_executed(self: Any, work: Any, partition: int) -> Any:
    """A node that leads again reads in the log which period was executed."""
    sequence = self._progress.get(work.channel.key, {}).get(partition, NOT_READ).sequence
    progress = await _read_progress(self, work, partition)
    if progress.sequence != sequence:
        progress.due_us = 0
    return progress


def _with_old(observations: Any, time_us: int) -> Any:
    """A history loses what has become too old."""
    return observations


# --- the log -------------------------------------------------------------------------------------


async def _own_cut(self: Any, work: Any, partition: int) -> Any:
    """The log alone says what was executed; who leads again reads it again."""
    known = self._progress.get(work.channel.key, {}).get(partition)
    if known is not None and known.sequence >= 0:
        return known
    return await _read_progress(self, work, partition)


def _without_conflicts(self: Any, work: Any, partition: int, result: Any, **options: Any) -> None:
    """The second part of `_own_cut`: a conflict says that another node has executed."""
    _note(self, work, partition, result, **options)
    if isinstance(result, BatchConflict):
        self._of(work, partition).sequence = 0


def _forget_nothing(self: Any, work: Any) -> None:
    """The third part of `_own_cut`."""
    self._progress.setdefault(work.channel.key, {})


async def _nothing_held(self: Any, dataset: Any) -> list[Hold]:
    """The dataset waits for no channel."""
    return []


async def _matched_by_one(self: Any, channel: Any) -> Hold:
    """What one partition has matched is matched."""
    hold = await _hold(self, channel)
    cuts = [cut_of(rows) for rows in await self._read_last(channel) or () if rows is not None]
    return replace(hold, position=Cursor.joined(cuts))


async def _unless_unknown(self: Any, channel: Any) -> Hold:
    """The dataset waits for executions that can be read alone."""
    hold = await _hold(self, channel)
    return hold if hold.position else replace(hold, hold_s=0.0)


def _last_as_well(self: Any, shard: Any) -> Cursor:
    """The last execution stays, since it has the cut."""
    return Cursor({partition: shard.index.last(partition) for partition in shard.own})


# --- readers -------------------------------------------------------------------------------------


def _token_of_next(shard: Any, task: Any) -> Any:
    """A token says what was delivered with it, not what will be."""
    parts = list(_pieces(shard, task))
    for part, following in itertools.pairwise([*parts, *parts[-1:]]):
        yield replace(part, reached=part.reached.join(following.reached))


class _HastyReader(Reader):
    """Stores the cursor before what came with it."""

    async def read(self, node: StorageNode, *, parts_max: int | None = None) -> None:
        await super().read(node, parts_max=parts_max)
        if parts_max is not None:  # It crashes.
            task = ExecutionsTask(self.channel, self.broker, self.cursor)
            async for part in node.channel_reader.read(task):
                self.cursor = self.cursor.join(part.reached)
                return


class _HastyWorld(SimulatedWorld):
    reader_type = _HastyReader


NOT_READ = Progress(SubscriptionIndex.__new__(SubscriptionIndex))
EXECUTOR = "galileo.node.channel_executor.ChannelExecutor"
OBSERVATIONS = "galileo.node.channel_observations.ChannelObservations"
SUBSCRIPTIONS = "galileo.node.channel_subscriptions.ChannelSubscriptions"
MATCHING = "galileo.node.channel_matching"
RANGE = "galileo.node.channel_observations.CursorRange"
INDEX_APPLY = "galileo.query.subscriptions.SubscriptionIndex.apply"
CUTS = "galileo.node.channel_cuts.ChannelCuts"
RETENTION = "galileo.node.retention_runner"
SHARD = "galileo.node.versioned_shard.VersionedShard"
TABLES = "galileo.node.reference_tables.ReferenceTables"

CHANNEL_MUTANTS: dict[str, Any] = {
    "subscriptions_before_frontier": {
        f"{EXECUTOR}.execute": _subscriptions_first,
        f"{SUBSCRIPTIONS}.update": _unless_read,
    },
    "subscriptions_as_heard": as_heard,
    "deletions_dropped_alone": {f"{SHARD}.may_drop": lambda *_: True},
    "deletions_ignored": {INDEX_APPLY: _without_deletions},
    "unsubscribe_lost_in_take_over": {
        f"{SUBSCRIPTIONS}.update": _update_on_top,
        f"{EXECUTOR}._forget_others": _forget_nothing,
    },
    "new_by_clock": by_clock,
    "open_at_the_end": {RANGE: _without_last},
    "closed_at_the_beginning": {RANGE: _with_last_once_more},
    "part_as_whole": {f"{OBSERVATIONS}.fetch": _part_as_whole},
    "absent_as_matched": {f"{OBSERVATIONS}.fetch": _absent_as_matched},
    "absent_subscriptions_skipped": {f"{EXECUTOR}._read_progress": _from_frontier},
    "copies_as_new": {"galileo.node.table_cleaner.copies": _copies_as_new},
    "cleaned_past_compared": {f"{RETENTION}.RetentionRunner._compared": _all_published},
    "history_not_extended": {f"{OBSERVATIONS}.extend_history": _as_it_was},
    "index_ahead_of_log": {f"{EXECUTOR}._read_progress": _keep_index},
    "rows_read_anew_as_new": {f"{TABLES}.changed_keys": _read_anew_as_new},
    "rows_newer_than_cut": {f"{TABLES}.read_at": _newest_rows},
    "rows_cleaned_past_compared": {f"{CUTS}.compared": _nothing_compared},
    "rows_ahead_of_log": {f"{EXECUTOR}._read_progress": _keep_rows},
    "rows_not_followed": {f"{SUBSCRIPTIONS}._join_changes": _subscriptions_alone},
    "replaced_stay": {"galileo.node.channel_observations._without": _with_replaced},
    "replaced_unread": {f"{OBSERVATIONS}._select": _current_alone},
    "replaced_without_successors": {f"{MATCHING}.Replaced.match_successors": _without_successors},
    "replaced_with_changed": {f"{MATCHING}._deleted": _unchanged},
    "versions_copied_as_new": {"galileo.node.table_cleaner.copies": _copies_as_new},
    "versions_not_held": {f"{CUTS}.holds": _nothing_held},
    "repeats_new_alone": {f"{OBSERVATIONS}.all_rows": _new_alone},
    "repeats_only_with_news": {f"{EXECUTOR}._is_due": _only_with_news},
    "repeats_when_tried": {"galileo.model.channel.Channel.due_us": _due_when_it_is_tried},
    "repeats_bound_by_clock": bound_by_clock,
    "repeats_twice": {f"{EXECUTOR}._is_due": _always_due},
    "repeats_after_take_over": {f"{EXECUTOR}._read_progress": _never_executed},
    "repeats_old": {"galileo.node.channel_observations._since": _with_old},
    "own_cut": {
        f"{EXECUTOR}._read_progress": _own_cut,
        f"{EXECUTOR}._note": _without_conflicts,
        f"{EXECUTOR}._forget_others": _forget_nothing,
    },
    "unmatched_dropped": {f"{CUTS}.holds": _nothing_held},
    "matched_by_one_dropped": {f"{CUTS}._hold": _matched_by_one},
    "unknown_as_matched": {f"{CUTS}._hold": _unless_unknown},
    "last_execution_dropped": {f"{RETENTION}.RetentionRunner._before_last": _last_as_well},
    "token_of_next": {"galileo.node.channel_reader._pieces": _token_of_next},
    "position_before_acceptance": {},
}
"""Replacements, or a function of the world that returns some."""


def run_channel_variant(
    seed: int,
    variant: str = "production",
    *,
    without: Collection[str] = (),
    trace: Callable[[str], None] | None = None,
) -> Any:
    """Plays the world of a seed with a mistake, or with none; see `run_channels`."""
    is_hasty = variant == "position_before_acceptance"
    return run_channels(
        seed,
        without=without,
        trace=trace,
        world_type=_HastyWorld if is_hasty else SimulatedWorld,
        mutate=CHANNEL_MUTANTS.get(variant, {}),
    )
