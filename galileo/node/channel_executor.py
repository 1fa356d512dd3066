"""Runs the executions of channels, each where its subscriptions are.

Theory of operation. The owner of partition p of a channel executes it for the subscriptions of
partition p alone, and commits the result to partition p of the channel's log. So no node has to be
elected, subscriptions never move, and the loss of a node stops its own subscriptions until another
replica, or the node itself, goes on. An execution

1. takes the last commits of the dataset that this node has heard of as its frontier, which may be
   late and is never early, and only then
2. selects the observations between the cut of the last execution and the frontier;
3. reads the changes of the subscriptions. So an observation that is committed after `subscribe`
   returned meets the subscription. If these have rows of tables (`galileo.query.lookup_index`), the
   owners of the tables are asked then, too;
4. matches (`galileo.node.channel_matching`);
5. joins the observations that matched with the tables of the channel, if it enriches them, each
   once for all partitions. The owners of the tables are asked now, so a row whose upsert returned
   before an observation was ingested is joined with it (`galileo.node.reference_tables`);
6. commits the matches together with the new cut, as the next batch of one producer. The cut says
   up to which commits the tables were read, too.

The log alone says what was executed. A node that begins to lead reads the last cut there. Of two
commits with one number the first one counts, and the second is a conflict: its sender reads
the log again. Each observation is therefore in exactly one execution of each partition.

A partition of the dataset that cannot be read (`galileo.node.channel_observations`) stays where it
is in the cut, and its commits are matched later. Retention waits for that, with a bound
(`galileo.node.channel_cuts`).

Where changes of subscriptions count as news, an execution compares them with the subscriptions as
the last one saw them: an index is never ahead of the log but while an execution is under way. The
table is not cleaned past there (`RetentionRunner`). If subscriptions have rows of tables, they
change with these. Then the index is at the cursor of each table in the last cut, too, and these
tables are not cleaned past there (`galileo.node.channel_cuts`). Where changed subscriptions also
match what is there already, an execution has the history of its cut.

An execution of a repetitive channel matches the history, too, with all subscriptions. It is due at
a multiple of the period, which the log has with the cut. An attempt within the same period is due
at the same time, so it has the same bound on the age of observations; and there is one execution
at most that is due at a time, because each is due later than the one before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from galileo.clock import Clock
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import (
    BatchConflict,
    GalileoError,
    InternalError,
    MessageTooLarge,
    TransientError,
    Unavailable,
)
from galileo.histogram import LAG_BOUNDS_S, DurationHistogram
from galileo.model.channel import NO_BROKER, Channel
from galileo.model.forks import count_commits
from galileo.model.times import MICROS, column_micros, iso, times_from_micros
from galileo.node import channel_matching
from galileo.node.catalog import Catalog
from galileo.node.channel_matching import Observed, Replaced
from galileo.node.channel_observations import (
    ChannelObservations,
    ChannelWork,
    FetchedObservations,
    halfway,
)
from galileo.node.channel_subscriptions import ChannelSubscriptions, Progress
from galileo.node.cluster_view import ClusterView
from galileo.node.reference_tables import References, ReferenceTables
from galileo.node.select import Selection
from galileo.node.table_reader import TableReader
from galileo.query import joins
from galileo.query.subscriptions import ParameterQuery, RowIndex
from galileo.storage.commits import Commit, Committed

PRODUCER = "~execute"
"""The producer of executions; no user has one with this character."""
LOOK_S = 0.25
"""Seconds between two looks at which channels there are."""
BYTES_MAX = 64 << 20
"""Bytes of a result that is committed, unless one commit alone has more; a repetitive channel fails
beyond it."""
RETRY_S = 10.0
"""Seconds until the next attempt after an error that may pass by itself."""

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """The results of executions with the same cut.

    Attributes:
        observations: with the columns that are delivered.
        records: of each partition its matches, with the numbers of the observations.
        references: up to which commits tables were read.
    """

    observations: pa.Table
    records: dict[int, pa.Table]
    references: dict[str, Cursor]


class _TooLargeError(Exception):
    """The result of an execution is too large for a commit."""


class ChannelExecutor:
    """Executes the channels of a node in its own partitions.

    Args:
        on_committed: called in the event loop when logs of this node have new executions.

    Attributes:
        durations: of the executions of a partition.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        tables: TableReader,
        selection: Selection,
        view: ClusterView,
        executor: Executor,
        clock: Clock,
        on_committed: Callable[[], None],
    ) -> None:
        self._catalog = catalog
        self._view = view
        self._executor = executor
        self._clock = clock
        self._references = ReferenceTables(tables, executor=executor, clock=clock)
        self._observations = ChannelObservations(
            selection, view=view, executor=executor, clock=clock
        )
        self._subscriptions = ChannelSubscriptions(
            tables, references=self._references, executor=executor
        )
        self._on_committed = on_committed
        self.durations = DurationHistogram(LAG_BOUNDS_S)
        self._progress: dict[str, dict[int, Progress]] = {}
        self._queries: dict[str, ParameterQuery] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def query(self, channel: Channel) -> ParameterQuery:
        """The template of a channel, bound to its dataset."""
        query = self._queries.get(channel.key)
        if query is None:
            # A long template takes a tenth of a second, for which the loop would stand still.
            compiled = await asyncio.get_running_loop().run_in_executor(
                self._executor, ParameterQuery.of, channel
            )
            query = self._queries[channel.key] = compiled
        return query

    def behind(self, channel: str, progress: Progress) -> int:
        """How many commits of the dataset that this node has heard of are not matched yet."""
        schema = self._catalog.channel_shard(channel).schema.schema
        heard = EMPTY_CURSOR if schema is None else self._view.sequences(schema.key)
        cut = progress.cut
        return sum(count_commits(cut[p], heard[p]) for p in cut.news(heard))

    def progress(self, channel: str) -> dict[int, Progress]:
        """How far each partition is that this node has executed, or tried to; by partition."""
        shard = self._catalog.channel_shard(channel)
        own, known = shard.own, self._progress.get(channel, {})
        return {
            partition: one
            for partition, one in sorted(known.items())
            if partition in own or (one.failure and shard.owns(partition))
        }

    def failures(self) -> list[str]:
        """The partitions that are not executed at present, each with the reason."""
        return [
            f"{channel.name}/p{partition}: {progress.failure}"
            for key, channel in sorted(self._catalog.channels.items())
            for partition, progress in self.progress(key).items()
            if progress.failure
        ]

    async def run(self) -> None:
        """Executes every channel at the multiples of its period, until it is cancelled."""
        try:
            while True:
                channels = self._catalog.channels
                for key in channels.keys() - self._running.keys():
                    self._running[key] = asyncio.create_task(self._run_channel(channels[key]))
                for key in self._running.keys() - channels.keys():
                    self._running.pop(key).cancel()
                    self._progress.pop(key, None)
                    self._queries.pop(key, None)
                    self._observations.forget(key)
                self._references.forget_idle()
                await asyncio.sleep(LOOK_S)
        finally:
            running = list(self._running.values())
            self._running.clear()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _run_channel(self, channel: Channel) -> None:
        is_behind = False
        while True:
            if not is_behind:
                wait_s = channel.period_s - self._clock.wall() % channel.period_s
                has_to_retry = any(one.is_transient for one in self._known(channel).values())
                await asyncio.sleep(min(wait_s, RETRY_S) if has_to_retry else wait_s)
            try:
                is_behind = await self.execute(channel.key)
            except GalileoError as error:
                is_behind = False
                log.warning("an execution of channel %s failed: %s", channel.name, error)
            except Exception:
                is_behind = False
                log.exception("an execution of channel %s failed", channel.name)

    async def execute(self, channel: str) -> bool:
        """Executes the own partitions of a channel once.

        Returns:
            Whether there is more to do at once, since an execution took a part of what is new.
        """
        work = await self._work(channel)
        if work is None:
            return False
        assert work.channel.schema is not None, "a channel without a dataset"
        frontier = self._view.sequences(work.channel.schema.key)
        own = work.shard.surely_own(range(work.channel.partitions))
        self._forget_others(work)
        by_cut = defaultdict[Cursor, list[int]](list)
        for partition in sorted(own):
            try:
                progress = await self._read_progress(work, partition)
                is_due = await self._is_due(work, partition)
            except GalileoError as error:
                self._fail(work, partition, error)
                continue
            if is_due and (progress.cut.news(frontier) or self._is_wanted(work, partition)):
                by_cut[progress.cut].append(partition)
            else:
                progress.failure, progress.is_transient = "", False
        self._forget_histories(work)
        is_behind = False
        for cut, partitions in by_cut.items():
            until = cut.join(frontier)
            try:
                is_behind |= await self._execute(work, partitions, after=cut, until=until)
            except GalileoError as error:
                for partition in partitions:
                    self._fail(work, partition, error)
        self._forget_histories(work, ahead_s=work.channel.period_s)
        return is_behind

    async def _is_due(self, work: ChannelWork, partition: int) -> bool:
        """Whether there may be an execution now.

        Of a repetitive channel it is due later than the last one, and its subscriptions are indexed
        here, where it is decided what they need.

        Raises:
            Unavailable: the clock is behind the last execution.
        """
        if not work.channel.is_repetitive:
            return True
        last_us = self._of(work, partition).due_us
        if work.due_us < last_us:
            raise Unavailable(
                f"the clock of this node is behind: the last execution of channel "
                f"{work.channel.name!r} was due at {iso(last_us)}; the next one follows when the "
                "clock is past that",
                after_s=RETRY_S,
            )
        if work.due_us > last_us:
            await self._subscriptions.update(work, partition, self._of(work, partition))
        return work.due_us > last_us

    def _forget_others(self, work: ChannelWork) -> None:
        """Frees the indices of partitions that other nodes execute."""
        known = self._known(work.channel).items()
        self._progress[work.channel.key] = {p: one for p, one in known if work.shard.owns(p)}

    def _is_wanted(
        self, work: ChannelWork, partition: int, read: Mapping[str, Cursor] | None = None
    ) -> bool:
        """Whether an execution has something to match even if no observation is new.

        Args:
            work: the channel.
            partition: of its log.
            read: up to which commits the tables that it looks up are read; None: as far as this
                node has heard, which can be further where an owner has lost commits.
        """
        progress = self._of(work, partition)
        if work.channel.is_repetitive:
            return len(progress.index) > 0
        published = self._catalog.table_shard(work.table).published_sequence(partition)
        known = {
            table.name: self._view.sequences(table.key) if read is None else read[table.name]
            for table in work.compared_tables
        }
        return (work.compares and published > progress.subscriptions) or any(
            progress.references.get(name, EMPTY_CURSOR).news(cursor)
            for name, cursor in known.items()
        )

    def _forget_histories(self, work: ChannelWork, *, ahead_s: float = 0.0) -> None:
        cuts = {progress.cut for progress in self._known(work.channel).values()}
        self._observations.forget(work.channel.key, but=cuts, ahead_s=ahead_s)

    async def _work(self, channel: str) -> ChannelWork | None:
        """What an execution needs; None if the channel or its table is not here, or is dropped."""
        try:
            shard = self._catalog.channel_shard(channel)
        except GalileoError:
            return None
        schema = shard.schema.schema
        table = self._catalog.key_of(shard.schema.subscription_table)
        if schema is None or table is None or not self._catalog.knows(schema.key):
            return None
        due_us = shard.schema.due_us(self._clock.wall())
        return ChannelWork(shard.schema, shard, await self.query(shard.schema), table, due_us)

    async def _read_progress(self, work: ChannelWork, partition: int) -> Progress:
        """The progress of a partition, as its log has it."""
        known = self._progress.setdefault(work.channel.key, {})
        progress = known.get(partition)
        if progress is None:
            progress = known[partition] = Progress(work.make_index())
        last = work.shard.index.last(partition)
        if last == progress.sequence:
            return progress
        if last == 0:
            progress.execution, progress.cut = 0, Cursor(dict(work.channel.start))
            progress.due_us = 0
        else:
            journal = work.shard.journal(partition)
            loop = asyncio.get_running_loop()
            rows = await loop.run_in_executor(self._executor, journal.read, last)
            progress.execution = rows.column("execution")[0].as_py()
            read = Cursor({partition: rows.column("subscriptions")[0].as_py()})
            # Without those that were lost; what follows is compared with what is left.
            progress.subscriptions = self._catalog.table_shard(work.table).kept(read)[partition]
            progress.cut, references = cut_of(rows), references_of(rows)
            progress.references = {
                table.name: references.get(table.name, EMPTY_CURSOR)
                for table in work.compared_tables
            }
            if work.channel.is_repetitive:
                progress.due_us = int(column_micros(rows.column("due").slice(0, 1))[0])
        progress.sequence = last
        seen = progress.subscriptions, progress.references
        if work.compares and (progress.indexed, progress.joined) != seen:
            progress.index, progress.indexed, progress.joined = work.make_index(), -1, {}
        return progress

    async def _execute(
        self,
        work: ChannelWork,
        partitions: Sequence[int],
        *,
        after: Cursor,
        until: Cursor,
        is_part: bool = False,
    ) -> bool:
        """Executes partitions with the same cut.

        Args:
            work: the channel.
            partitions: of its log.
            after: their cut.
            until: the commits to match.
            is_part: whether more than these are known.

        Returns:
            Whether some were executed, and a part of what is new is left.
        """
        begun = self._clock.monotonic()
        is_repetitive = work.channel.is_repetitive
        fetched = await self._observations.fetch(
            work, after=after, until=until, is_whole=is_repetitive
        )
        after = fetched.cut
        if not after.news(fetched.until):
            partitions = [p for p in partitions if self._is_wanted(work, p)]
            if not partitions:
                return False
        history, new = None, RowIndex(work.query, fetched.observations)
        if work.channel.new == "either":
            history = (await self._observations.remaining(work, fetched)).rows
        elif is_repetitive and any(self._is_wanted(work, p) for p in partitions):
            new = await self._observations.all_rows(work, fetched)
        replaced = await self._replaced(work, fetched) if work.channel.leave else None
        observed = Observed(new, history, replaced, fetched.after, fetched.until, work.due_us)
        commits, results = await self._prepare(work, partitions, observed)
        if commits:
            committing = self._catalog.commit(work.channel.key, commits)
            committed = await asyncio.wrap_future(committing)
            results.update(committed)
            self._on_committed()
        for partition, result in results.items():
            took_s = self._of(work, partition).took_s = self._clock.monotonic() - begun
            self.durations.observe(took_s)
            self._note(work, partition, result, until=observed.until)
        self._observations.extend_history(work, observed)
        is_part |= fetched.is_part
        is_behind = is_part and any(isinstance(one, Committed) for one in results.values())
        half = halfway(after, fetched.until)
        for partition in [p for p, one in results.items() if isinstance(one, _TooLargeError)]:
            await self._read_progress(work, partition)
            is_behind |= await self._execute(
                work, [partition], after=after, until=half, is_part=True
            )
        return is_behind

    async def _replaced(self, work: ChannelWork, fetched: FetchedObservations) -> Replaced | None:
        if not fetched.replaced.num_rows:
            return None
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, Replaced.of, work.query, fetched.replaced, fetched.observations
        )

    def _note(
        self, work: ChannelWork, partition: int, result: BaseException | Committed, *, until: Cursor
    ) -> None:
        """Records the outcome of an execution.

        Raises:
            BaseException: an outcome that is no error of the world.
        """
        progress = self._of(work, partition)
        progress.at = self._clock.wall()
        if isinstance(result, Committed):
            progress.failure, progress.is_transient = "", False
            progress.due_us = work.due_us
            progress.sequence, progress.execution = result.sequence, progress.execution + 1
            progress.cut, progress.subscriptions = until, progress.indexed
            progress.references = progress.joined
            return
        progress.sequence = -1  # What the index has of changes may not have counted.
        if isinstance(result, BatchConflict | _TooLargeError):
            return
        if not isinstance(result, GalileoError):
            raise result
        self._fail(work, partition, result)

    def _fail(self, work: ChannelWork, partition: int, error: GalileoError) -> None:
        """Notes why a partition cannot be executed now; the log has each reason once."""
        progress = self._of(work, partition)
        if progress.failure != error.message:
            log.warning("%s/p%d is not executed: %s", work.channel.name, partition, error)
        progress.failure = error.message
        progress.is_transient = isinstance(error, TransientError)

    def _known(self, channel: Channel) -> dict[int, Progress]:
        """The progress of partitions that were executed, or tried, since the node began."""
        return self._progress.get(channel.key, {})

    def _of(self, work: ChannelWork, partition: int) -> Progress:
        return self._progress[work.channel.key][partition]

    async def _prepare(
        self, work: ChannelWork, partitions: Sequence[int], observed: Observed
    ) -> tuple[dict[int, Commit], dict[int, BaseException | Committed]]:
        """The commits of executions of partitions with the same cut, and why others have none."""
        failed = dict[int, BaseException | Committed]()
        tables = work.channel.reference_tables
        rows = await self._references.read_whole([tables[s.table] for s in work.channel.lookup])
        if work.compared_tables and not observed.after.news(observed.until):
            partitions = [p for p in partitions if self._is_wanted(work, p, rows.cursors)]
        matching = {p: self._match(work, p, observed, rows) for p in partitions}
        records = await _outcomes(matching, failed)
        try:
            joined = await self._join(work, observed, records)
        except Exception as error:
            failed |= {p: error for p, some in records.items() if some.num_rows}
            left = {p: some for p, some in records.items() if p not in failed}
            joined = _Joined(observed.rows, left, {})
        joined = replace(joined, references=joined.references | rows.cursors)
        commits = {p: self._commit(work, p, observed, joined) for p in joined.records}
        return await _outcomes(commits, failed), failed

    async def _match(
        self, work: ChannelWork, partition: int, observed: Observed, references: References
    ) -> pa.Table:
        """The matches of a partition, whose subscriptions have rows of some tables.

        Raises:
            _TooLargeError: there are too many.
            GalileoError: its subscriptions cannot be read.
        """
        progress, changes = self._of(work, partition), None
        if not work.channel.is_repetitive:
            changes = await self._subscriptions.update(work, partition, progress)
        changes = await self._subscriptions.join(work, progress, changes, references)
        index = progress.index

        def match() -> pa.Table:
            news = None if changes is None else work.readable(changes)
            return channel_matching.match(work.channel, index, observed, news)

        return await self._divisibly(work, observed, match)

    async def _join(
        self, work: ChannelWork, observed: Observed, records: dict[int, pa.Table]
    ) -> _Joined:
        """The observations as they are delivered.

        Raises:
            _TooLargeError: there are too many rows for them.
            GalileoError: a table cannot be read.
        """
        channel, loop = work.channel, asyncio.get_running_loop()
        matched = {p: some for p, some in records.items() if some.num_rows}
        if not channel.enrich or not matched:
            return _Joined(observed.rows, records, {})
        select = partial(channel_matching.matched, observed, matched)
        rows, renumbered = await loop.run_in_executor(self._executor, select)
        read = await self._references.read(channel.enrich, channel.reference_tables, rows)
        enrich = partial(joins.enrich, rows, channel.enrich, read.rows)
        async with self._references.joining:
            enriched = await self._divisibly(work, observed, enrich)
        return _Joined(enriched, records | renumbered, read.cursors)

    async def _commit(
        self, work: ChannelWork, partition: int, observed: Observed, joined: _Joined
    ) -> Commit:
        """The commit of an execution. Raises _TooLargeError if its result is too large."""
        progress = self._of(work, partition)
        encode = partial(
            channel_matching.execution,
            work.channel,
            joined.records[partition],
            joined.observations,
            observed=observed,
            number=progress.execution + 1,
            subscriptions=progress.indexed,
            references=joined.references,
        )
        rows = await self._divisibly(work, observed, encode)
        if rows.nbytes > BYTES_MAX and work.is_divisible(observed.after, observed.until):
            raise _TooLargeError
        if rows.nbytes > BYTES_MAX and work.channel.is_repetitive:
            raise MessageTooLarge(
                f"expected at most {BYTES_MAX:,} bytes of what matches at once in a partition of "
                f"channel {work.channel.name!r}, got {rows.nbytes:,}; create one with more "
                "conditions, fewer columns or a smaller age_max",
                bound=BYTES_MAX,
            )
        at = times_from_micros(np.array([round(self._clock.wall() * MICROS)]))
        position = pa.array([progress.indexed], pa.int64())
        paths = pa.RecordBatch.from_arrays([at, position], schema=work.channel.path_schema)
        return Commit(PRODUCER, progress.execution + 1, rows, paths)

    async def _divisibly(
        self, work: ChannelWork, observed: Observed, make: Callable[[], pa.Table]
    ) -> pa.Table:
        """What a function makes in a thread.

        Raises:
            _TooLargeError: it is too large, and several executions can do the work.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, make)
        except MessageTooLarge:
            if not work.is_divisible(observed.after, observed.until):
                raise
            raise _TooLargeError from None


async def _outcomes(
    tasks: Mapping[int, Awaitable[T]], failed: dict[int, BaseException | Committed]
) -> dict[int, T]:
    """The results of tasks; the errors of others are added to those that failed."""
    outcomes = await asyncio.gather(*tasks.values(), return_exceptions=True)
    results = dict[int, T]()
    for number, outcome in zip(tasks, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            failed[number] = outcome
        else:
            results[number] = outcome
    return results


def cut_of(rows: pa.Table) -> Cursor:
    """The cut of an execution: up to which commit of each partition it has gone."""
    if rows.column("broker")[0].as_py() != NO_BROKER:
        raise InternalError("an execution has no cut")
    partitions, until = (rows.column(name)[0].as_py() for name in ("partitions", "until"))
    return Cursor(dict(zip(partitions, until, strict=True)))


def references_of(rows: pa.Table) -> dict[str, Cursor]:
    """Up to which commits of each partition an execution has read tables, by name."""
    fields = ("references", "reference_partitions", "reference_until")
    if fields[0] not in rows.column_names:
        return {}
    positions = defaultdict[str, dict[int, int]](dict)
    for name, partition, until in zip(*(rows.column(f)[0].as_py() for f in fields), strict=True):
        positions[name][partition] = until
    return {name: Cursor(of_table) for name, of_table in positions.items()}
