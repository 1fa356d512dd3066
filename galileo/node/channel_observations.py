"""The observations that executions of channels match: what is new, and what was there before.

An execution reads the observations between the cut of the last one and its frontier. A partition
of the dataset that cannot be read stays where it is, and so do commits that are too many for one
execution. What retention has dropped is not read.

Where changed subscriptions also match what is there already, and where a channel is repetitive, the
node keeps the observations up to a cut that may match, its *history*. There is one for each cut
that a partition of the channel has; an execution extends it by what is new. It loses what has
become too old, and is read again after some time, without what retention has dropped.

In a dataset without a key a history has what counts at the frontier. It is read again if there are
deletions past the commits whose deletions it lacks already.

Of a keyed dataset an execution reads what counts at its frontier since the cut, and a history has
what counts at its cut. So an execution that has a history also reads what counted at the cut and
was *replaced*, or deleted, up to the frontier. All of this is a function of the log of the dataset
and the two cursors. The dataset is not cleaned past the cut (`galileo.node.channel_cuts`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array
from galileo.clock import Clock
from galileo.cursor import EMPTY_CURSOR, Cursor, continued
from galileo.errors import (
    NAMED_MAX,
    DataExpired,
    GalileoError,
    HistoryChanged,
    MessageTooLarge,
    Unavailable,
)
from galileo.graph.versions import Choice
from galileo.model import keyed
from galileo.model.channel import ID, Channel
from galileo.model.rows import RowOptions
from galileo.model.schema import DELETED, Schema
from galileo.model.table import Table
from galileo.model.times import TIME_MIN_US, column_micros
from galileo.node.channel_matching import KEY, Observed
from galileo.node.channel_shard import ChannelShard
from galileo.node.cluster_view import ClusterView
from galileo.node.select import CursorRange, Selection
from galileo.query import Query
from galileo.query.lookup_index import LookupIndex
from galileo.query.subscriptions import ParameterQuery, RowIndex, SubscriptionIndex

ROWS_MAX = 131_072
"""Observations that are matched together, unless one commit alone has more, both sides have to be
new, or the channel is repetitive."""
HISTORY_ROWS_MAX = 10_000_000
"""Observations of a history."""
CHUNKS_MAX = 256
"""Pieces of a history before they are joined."""
HISTORY_AGE_S = 600.0
"""Seconds after which a history is read again, without what retention has dropped."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class ChannelWork:
    """A channel, its logs and its query, and when this execution was due.

    Attributes:
        due_us: microseconds since 1970.
        reading: held while the subscriptions of a partition are read, which takes memory.
    """

    channel: Channel
    shard: ChannelShard
    query: ParameterQuery
    table: str
    due_us: int
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are matched, joined or delivered, or tell keys apart."""
        place = ("latitude", "longitude", "time")
        key = self.schema.key_features if self.has_replaced else ()
        return tuple(dict.fromkeys([*place, *self.query.features, *self.delivered, *key]))

    @property
    def schema(self) -> Schema:
        """The schema of the dataset."""
        assert self.channel.schema is not None, "a channel of a cluster"
        return self.channel.schema

    @property
    def has_replaced(self) -> bool:
        """Whether an execution has a history, of which observations are replaced and deleted."""
        return self.schema.is_keyed and self.channel.new in ("either", "none")

    @property
    def delivered(self) -> Sequence[str]:
        names: Sequence[str] = self.channel.observed_schema.names
        return (*names, *self.channel.needed_columns)

    def make_index(self) -> SubscriptionIndex:
        """An index without subscriptions."""
        channel = self.channel
        if not channel.lookup:
            return SubscriptionIndex(self.query)
        return LookupIndex(self.query, channel.subscriptions, channel.reference_tables)

    def readable(self, rows: pa.Table) -> pa.Table:
        """Marks subscriptions that cannot be matched as deleted, and names them in the log.

        Nodes do not check rows that are stored before the channel is created.
        """
        permitted = self.query.permits(rows)
        if permitted.all():
            return rows
        names = rows.column(ID).filter(pa.array(~permitted))
        log.warning(
            "channel %s: %d subscriptions cannot be matched and are left out: %s; store them again",
            *(self.channel.name, len(names), names[:NAMED_MAX].to_pylist()),
        )
        number = rows.schema.get_field_index(DELETED)
        deleted = pc.or_(rows.column(DELETED), pa.array(~permitted))
        return rows.set_column(number, rows.schema.field(number), deleted)

    @property
    def compares(self) -> bool:
        """Whether changes of subscriptions count as news."""
        return self.channel.compares

    @property
    def compared_tables(self) -> Sequence[Table]:
        """The tables whose changes count as news, with the subscriptions that have their rows."""
        tables = self.channel.reference_tables
        return [tables[step.table] for step in self.channel.lookup] if self.compares else []

    @property
    def oldest_us(self) -> int:
        """The time of the oldest observations that may match."""
        age_max_us = self.channel.age_max_us
        return TIME_MIN_US if age_max_us is None else max(TIME_MIN_US, self.due_us - age_max_us)

    @property
    def selected(self) -> Query:
        """What every observation that matches satisfies, whatever the subscription."""
        constant, oldest_us = self.query.constant, self.oldest_us
        return constant if oldest_us == TIME_MIN_US else constant.since(oldest_us)

    def is_divisible(self, after: Cursor, until: Cursor) -> bool:
        """Whether several executions can do the work of one.

        Where both sides have to be new, all that is new has to meet in one. A repetitive channel
        delivers all that matches in one.
        """
        is_whole = self.channel.new in ("both", "none")
        return not is_whole and commits_between(after, until) > 1


@dataclass(frozen=True, slots=True, eq=False)
class FetchedObservations:
    """The observations of the commits (after, until] that may match.

    Attributes:
        replaced: those that counted at `after`, and at `until` do not.
        is_part: whether there are more than one execution takes.
        is_whole: whether every partition could be read.
        cut: where the range was to begin, without commits that were lost.
    """

    observations: pa.Table
    replaced: pa.Table
    after: Cursor
    until: Cursor
    is_part: bool
    is_whole: bool
    cut: Cursor


@dataclass(slots=True, eq=False)
class History:
    """The observations up to a cut that may match.

    Attributes:
        oldest_us: those before this time are missing.
        read_at: when they were read, monotonic.
        at: the commits whose deletions they lack.
    """

    rows: RowIndex
    oldest_us: int
    read_at: float
    at: Cursor


class ChannelObservations:
    """Reads the observations of executions, and keeps the histories of channels.

    Args:
        selection: of the dataset.
        view: with the deletions that this node has heard of.
        executor: in whose threads it works.
        clock: monotonic clock.
    """

    def __init__(
        self, selection: Selection, *, view: ClusterView, executor: Executor, clock: Clock
    ) -> None:
        self._selection = selection
        self._view = view
        self._executor = executor
        self._clock = clock
        self._histories: dict[str, dict[Cursor, History]] = {}

    async def fetch(
        self,
        work: ChannelWork,
        *,
        after: Cursor,
        until: Cursor,
        is_whole: bool = False,
        at: Cursor | None = None,
    ) -> FetchedObservations:
        """The observations of a range that may match.

        Args:
            work: the channel.
            after: where the range begins.
            until: where it ends.
            is_whole: whether all observations are needed; otherwise an execution takes the
                observations of as many commits as fit.
            at: a later cursor at which they count; None: `until`.

        Raises:
            MessageTooLarge: there are more than a node keeps.
        """
        query, rows_max = work.selected, HISTORY_ROWS_MAX if is_whole else ROWS_MAX
        options = RowOptions(columns=work.columns)
        schema = options.arrow_schema(query.schema)
        wanted, absent, is_part, cut = until, set[int](), False, after
        while True:
            missing = set[int]()
            commits = CursorRange(frozenset(after.news(until)), after, until, at=at)
            tables = {choice: [schema.empty_table()] for choice in Choice}
            rows, is_large = 0, False
            try:
                async with aclosing(self._select(work, options, commits, missing)) as parts:
                    async for choice, part in parts:
                        tables[choice].append(part)
                        rows += part.num_rows
                        is_large = rows > rows_max and (is_whole or work.is_divisible(after, until))
                        if is_large:
                            break
            except HistoryChanged as error:  # What was matched before stays delivered.
                known, cursors = (after, until), (after, until, wanted, cut)
                after, until, wanted, cut = (continued(cursor, error) for cursor in cursors)
                if (after, until) == known:
                    raise
                continue
            except DataExpired as error:
                kept = after.join(_expired(error, until))
                if kept == after:
                    raise
                after = kept
                continue
            except GalileoError:
                missing |= await self._unreadable(work, options, commits)
                if not missing or missing >= commits.partitions:
                    raise  # What was read is not all, and the next attempt may read it.
            if missing:
                absent |= missing
                until = Cursor({p: after[p] if p in absent else s for p, s in wanted.items()})
                is_part = False
            elif is_large and is_whole:
                raise self._too_many_observations(work)
            elif is_large:
                until, is_part = halfway(after, until), True
            else:
                read = (tables[choice] for choice in (Choice.CURRENT, Choice.WITHDRAWN))
                whole, replaced = [await self._joined(work, some) for some in read]
                return FetchedObservations(whole, replaced, after, until, is_part, not absent, cut)

    async def _select(
        self, work: ChannelWork, options: RowOptions, commits: CursorRange, missing: set[int]
    ) -> AsyncGenerator[tuple[Choice, pa.Table], None]:
        """The observations that may match, and those that were replaced; adds to `missing`."""
        has_replaced = work.has_replaced and commits.after
        for choice in (Choice.CURRENT, *([Choice.WITHDRAWN] if has_replaced else ())):
            chosen = replace(commits, choice=choice)
            selected = self._selection.select(
                work.selected, options, commits=chosen, on_missing=missing.update
            )
            async with aclosing(selected) as parts:
                async for part in parts:
                    yield choice, part

    async def _joined(self, work: ChannelWork, tables: Sequence[pa.Table]) -> pa.Table:
        """Observations in one table, with `KEY` where some of them are replaced."""

        def with_keys() -> pa.Table:
            hashes = keyed.hashes_of(work.schema, whole)[:, 0]
            return whole.append_column(KEY, pa.array(np.ascontiguousarray(hashes)))

        whole = pa.concat_tables(tables)
        if not work.has_replaced:
            return whole
        return await asyncio.get_running_loop().run_in_executor(self._executor, with_keys)

    async def _unreadable(
        self, work: ChannelWork, options: RowOptions, commits: CursorRange
    ) -> frozenset[int]:
        """The partitions with commits that cannot be read.

        They may be damaged, or their owner has lost commits that it had reported.
        """
        alone = {p: replace(commits, partitions=frozenset([p])) for p in commits.partitions}
        reading = (self._is_readable(work, options, of_one) for of_one in alone.values())
        are_readable = await asyncio.gather(*reading)
        return frozenset(
            p for p, is_readable in zip(alone, are_readable, strict=True) if not is_readable
        )

    async def _is_readable(
        self, work: ChannelWork, options: RowOptions, commits: CursorRange
    ) -> bool:
        missing = set[int]()
        try:
            async with aclosing(self._select(work, options, commits, missing)) as parts:
                async for _ in parts:
                    pass
        except GalileoError as error:
            log.info("%s cannot read %s: %s", work.channel.name, commits.partitions, error)
            return False
        return not missing

    async def history(self, work: ChannelWork, until: Cursor, *, at: Cursor) -> History:
        """The observations up to a cut that may match.

        Args:
            work: the channel.
            until: the cut.
            at: a later cursor, at which they count in a dataset without a key.

        Raises:
            Unavailable: a partition of the dataset cannot be read.
            MessageTooLarge: there are too many.
        """
        histories, oldest_us = self._histories.setdefault(work.channel.key, {}), work.oldest_us
        known, dataset = histories.get(until), work.schema.key
        is_keyed = work.schema.is_keyed
        if (
            known is None
            or known.oldest_us > oldest_us
            or (not is_keyed and self._view.with_deletions(dataset, known.at, at))
        ):
            counted = None if is_keyed else at
            fetched = await self.fetch(
                work, after=EMPTY_CURSOR, until=until, is_whole=True, at=counted
            )
            if not fetched.is_whole:
                raise Unavailable(
                    f"the observations before an execution of channel {work.channel.name!r} cannot "
                    "all be read; try again",
                    after_s=1.0,
                )
            index, read_at = RowIndex(work.query, fetched.observations), self._clock.monotonic()
            known = histories[until] = History(index, oldest_us, read_at, at)
        elif known.oldest_us < oldest_us:
            rows = known.rows.observations
            trim = partial(_since, rows, oldest_us)
            recent = await asyncio.get_running_loop().run_in_executor(self._executor, trim)
            index = known.rows if recent is rows else RowIndex(work.query, recent)
            known = histories[until] = replace(known, rows=index, oldest_us=oldest_us)
        return known

    async def remaining(self, work: ChannelWork, fetched: FetchedObservations) -> History:
        """The history of the cut of an execution, without what was replaced or deleted since.

        Raises:
            Unavailable: a partition of the dataset cannot be read.
            MessageTooLarge: there are too many.
        """
        known = await self.history(work, fetched.cut, at=fetched.until)
        if not fetched.replaced.num_rows:
            return known
        rest = await asyncio.get_running_loop().run_in_executor(
            self._executor, _without, known.rows.observations, fetched.replaced
        )
        return replace(known, rows=RowIndex(work.query, rest))

    def extend_history(self, work: ChannelWork, observed: Observed) -> None:
        """Keeps the history up to the next cut."""
        histories = self._histories.get(work.channel.key, {})
        known = histories.get(observed.after)
        if known is not None and observed.history is not None:
            known = replace(known, rows=observed.history)
            self._extend(work, known, observed.new.observations, until=observed.until)

    async def all_rows(self, work: ChannelWork, fetched: FetchedObservations) -> RowIndex:
        """The observations up to the next cut that may match, which its history keeps.

        Raises:
            Unavailable: a partition of the dataset cannot be read.
            MessageTooLarge: there are too many.
        """
        known = await self.remaining(work, fetched)
        count = known.rows.observations.num_rows + fetched.observations.num_rows
        if count > HISTORY_ROWS_MAX:
            raise self._too_many_observations(work)
        return self._extend(work, known, fetched.observations, until=fetched.until)

    def _extend(
        self, work: ChannelWork, known: History, new: pa.Table, *, until: Cursor
    ) -> RowIndex:
        """Keeps a history with some more observations as that of a cut."""
        rows = known.rows
        if new.num_rows:
            whole = pa.concat_tables([rows.observations, new])
            if whole.column(0).num_chunks > CHUNKS_MAX:
                whole = whole.combine_chunks()
            rows = RowIndex(work.query, whole)
        histories = self._histories.setdefault(work.channel.key, {})
        histories[until] = replace(known, rows=rows, at=until)
        return rows

    def _too_many_observations(self, work: ChannelWork) -> MessageTooLarge:
        further = ", bound their age by age_max" if work.channel.is_repetitive else ""
        return MessageTooLarge(
            f"expected a template of channel {work.channel.name!r} whose conditions without "
            f"parameters select at most {HISTORY_ROWS_MAX:,} observations, got more; add "
            f"some{further}, or let retention drop what is old",
            bound=HISTORY_ROWS_MAX,
        )

    def forget(self, channel: str, *, but: Collection[Cursor] = (), ahead_s: float = 0.0) -> None:
        """Frees the histories of a channel up to other cuts, and those that are too old then."""
        oldest = self._clock.monotonic() + ahead_s - HISTORY_AGE_S
        kept = {
            cut: history
            for cut, history in self._histories.pop(channel, {}).items()
            if cut in but and history.read_at > oldest
        }
        if kept:
            self._histories[channel] = kept


def _since(observations: pa.Table, time_us: int) -> pa.Table:
    """Those that are not before a time."""
    is_recent = column_micros(observations.column("time")) >= time_us
    return observations if is_recent.all() else observations.filter(pa.array(is_recent))


def _without(observations: pa.Table, replaced: pa.Table) -> pa.Table:
    """Those whose keys others have not."""
    is_replaced = pc.is_in(observations.column(KEY), value_set=one_array(replaced.column(KEY)))
    return observations.filter(pc.invert(is_replaced))


def halfway(after: Cursor, until: Cursor) -> Cursor:
    """A cursor halfway between two: it has half of the commits, from the first partitions."""
    left = commits_between(after, until) // 2
    positions = dict(until)
    for partition in reversed(after.news(until)):
        removed = min(left, until[partition] - after[partition])
        positions[partition] -= removed
        left -= removed
    return Cursor(positions)


def commits_between(after: Cursor, until: Cursor) -> int:
    return sum(until[partition] - after[partition] for partition in after.news(until))


def _expired(error: DataExpired, until: Cursor) -> Cursor:
    """Up to where retention has dropped commits of a range."""
    places = zip(error.details["partitions"], error.details["until"], strict=True)
    return Cursor({partition: min(last, until[partition]) for partition, last in places})
