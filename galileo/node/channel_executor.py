"""Runs the executions of channels, each where its subscriptions are.

Theory of operation. The owner of partition p of a channel executes it for the subscriptions of
partition p alone, and commits the result to partition p of the channel's log. So nobody has to be
elected, subscriptions never move, and the loss of a node stops its own subscriptions until another
replica, or the node itself, goes on. An execution

1. takes the last commits of the dataset that this node has heard of as its frontier, which may be
   late and is never early, and only then
2. reads the changes of the subscriptions. So an observation that is committed after `subscribe`
   returned meets the subscription;
3. selects the observations between the cut of the last execution and the frontier, matches them,
4. and commits the matches together with the new cut, as the next batch of one producer.

The log alone says what was executed. A node that begins to lead reads the last cut there. Of two
commits with one number the first one counts, and the second is a conflict: whoever sent it reads
the log again. Each observation is therefore in exactly one execution of each partition.

A partition of the dataset that cannot be read stays where it is in the cut, and its commits are
matched later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from galileo.clock import Clock
from galileo.cursor import Cursor
from galileo.errors import BatchConflict, DataExpired, GalileoError, InternalError
from galileo.labels import to_ipc
from galileo.model.channel import MATCHES_SCHEMA, NO_BROKER, Channel
from galileo.model.rows import RowOptions
from galileo.model.times import MICROS, times_from_micros
from galileo.node.catalog import Catalog
from galileo.node.channel_shard import ChannelShard
from galileo.node.cluster_view import ClusterView
from galileo.node.peers import TableTask
from galileo.node.select import CursorRange, Selection
from galileo.node.table_reader import TableReader
from galileo.query.subscriptions import ParameterQuery, SubscriptionIndex
from galileo.storage.commits import Commit, Committed

PRODUCER = "~execute"
"""The producer of executions; no user has one with this character."""
LOOK_S = 0.25
"""Seconds between two looks at which channels there are."""
COMPRESSION = "lz4"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Limits of an execution.

    Attributes:
        rows_max: observations that are matched together, unless one commit alone has more.
        bytes_max: bytes of a result that is committed, unless one commit of observations has more.
    """

    rows_max: int = 131_072
    bytes_max: int = 64 << 20


@dataclass(slots=True)
class Progress:
    """How far a partition of a channel is.

    Attributes:
        index: of its subscriptions.
        subscriptions: the commit of the table up to which the index goes.
        sequence: the commit of the last execution; -1: not read yet.
        execution: its number.
        cut: the commits of the dataset that were matched.
        at: seconds since 1970 of the last execution of this node; 0: none yet.
        took_s: how long it took.
        failure: why the last attempt failed; "" if it did not.
    """

    index: SubscriptionIndex
    subscriptions: int = 0
    sequence: int = -1
    execution: int = 0
    cut: Cursor = field(default_factory=Cursor)
    at: float = 0.0
    took_s: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A channel, its logs and its query."""

    channel: Channel
    shard: ChannelShard
    query: ParameterQuery
    table: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are matched or delivered."""
        place = ("latitude", "longitude", "time")
        return tuple(dict.fromkeys([*place, *self.query.features, *self.delivered]))

    @property
    def delivered(self) -> Sequence[str]:
        names: Sequence[str] = self.channel.delivered_schema.names
        return names


@dataclass(frozen=True, slots=True, eq=False)
class _Fetched:
    """The observations of the commits (after, until] that may match.

    Attributes:
        is_part: whether there are more than one execution takes.
    """

    observations: pa.Table
    after: Cursor
    until: Cursor
    is_part: bool


class _TooLargeError(Exception):
    """The result of an execution is too large for a commit."""


class ChannelExecutor:
    """Executes the channels of a node in its own partitions.

    Attributes:
        on_committed: called in the event loop when logs of this node have new executions.
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
        options: ExecutorOptions | None = None,
    ) -> None:
        self._catalog = catalog
        self._tables = tables
        self._selection = selection
        self._view = view
        self._executor = executor
        self._clock = clock
        self._options = options or ExecutorOptions()
        self.on_committed: Callable[[], None] = lambda: None
        self._progress: dict[str, dict[int, Progress]] = {}
        self._queries: dict[str, ParameterQuery] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def progress(self, channel: str) -> dict[int, Progress]:
        """How far each partition is that this node has executed; by partition."""
        own = self._catalog.channel_shard(channel).own
        known = self._progress.get(channel, {})
        return {partition: one for partition, one in sorted(known.items()) if partition in own}

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
                await asyncio.sleep(wait_s)
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
        work = self._work(channel)
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
            except GalileoError as error:
                self._note(work, partition, error)
                continue
            if progress.cut.news(frontier):
                by_cut[progress.cut].append(partition)
        is_behind = False
        for cut, partitions in by_cut.items():
            is_behind |= await self._execute(work, partitions, after=cut, until=cut.join(frontier))
        return is_behind

    def _forget_others(self, work: _Work) -> None:
        """Frees the indices of partitions that other nodes execute."""
        key = work.channel.key
        known = self._progress.get(key, {}).items()
        self._progress[key] = {p: progress for p, progress in known if work.shard.owns(p)}

    def _work(self, channel: str) -> _Work | None:
        """What an execution needs; None if the channel or its table is not here, or is dropped."""
        try:
            shard = self._catalog.channel_shard(channel)
        except GalileoError:
            return None
        schema = shard.schema.schema
        table = self._catalog.key_of(shard.schema.subscription_table)
        if schema is None or table is None or not self._catalog.knows(schema.key):
            return None
        query = self._queries.get(channel)
        if query is None:
            query = self._queries[channel] = ParameterQuery(shard.schema.template, schema)
        return _Work(shard.schema, shard, query, table)

    async def _read_progress(self, work: _Work, partition: int) -> Progress:
        """The progress of a partition, as its log has it."""
        known = self._progress.setdefault(work.channel.key, {})
        progress = known.get(partition)
        if progress is None:
            progress = known[partition] = Progress(SubscriptionIndex(work.query))
        last = work.shard.index.last(partition)
        if last == progress.sequence:
            return progress
        if last == 0:
            progress.execution, progress.cut = 0, Cursor(dict(work.channel.start))
        else:
            journal = work.shard.journal(partition)
            loop = asyncio.get_running_loop()
            rows = await loop.run_in_executor(self._executor, journal.read, last)
            progress.execution = rows.column("execution")[0].as_py()
            progress.cut = cut_of(rows)
        progress.sequence = last
        return progress

    async def _execute(
        self,
        work: _Work,
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
        try:
            fetched = await self._fetch(work, after=after, until=until)
        except GalileoError as error:
            for partition in partitions:
                self._note(work, partition, error, took_s=self._clock.monotonic() - begun)
            return False
        if not after.news(fetched.until):
            return False
        prepared = await asyncio.gather(
            *(self._prepare(work, partition, fetched) for partition in partitions),
            return_exceptions=True,
        )
        results: dict[int, BaseException | Committed] = {}
        commits = dict[int, Commit]()
        for partition, one in zip(partitions, prepared, strict=True):
            if isinstance(one, Commit):
                commits[partition] = one
            else:
                results[partition] = one
        if commits:
            committing = self._catalog.commit(work.channel.key, commits)
            committed = await asyncio.wrap_future(committing)
            results.update(committed)
            self.on_committed()
        for partition, result in results.items():
            self._note(work, partition, result, took_s=self._clock.monotonic() - begun)
        is_part |= fetched.is_part
        is_behind = is_part and any(isinstance(one, Committed) for one in results.values())
        half = halfway(after, fetched.until)
        for partition in [p for p, one in results.items() if isinstance(one, _TooLargeError)]:
            is_behind |= await self._execute(
                work, [partition], after=after, until=half, is_part=True
            )
        return is_behind

    def _note(
        self,
        work: _Work,
        partition: int,
        result: BaseException | Committed,
        *,
        took_s: float = 0.0,
    ) -> None:
        """Records the outcome of an execution.

        Raises:
            BaseException: an outcome that is no error of the world.
        """
        progress = self._of(work, partition)
        progress.at, progress.took_s, progress.failure = self._clock.wall(), took_s, ""
        if isinstance(result, Committed | BatchConflict | _TooLargeError):
            return
        if not isinstance(result, GalileoError):
            raise result
        progress.failure = result.message
        log.info("%s/p%d cannot be executed: %s", work.channel.name, partition, result)

    def _of(self, work: _Work, partition: int) -> Progress:
        return self._progress[work.channel.key][partition]

    async def _fetch(self, work: _Work, *, after: Cursor, until: Cursor) -> _Fetched:
        """The new observations that may match, of as many commits as an execution takes."""
        options = RowOptions(columns=work.columns)
        schema = options.arrow_schema(work.query.constant.schema)
        wanted, absent, is_part = until, set[int](), False
        while True:
            missing = set[int]()
            commits = CursorRange(frozenset(after.news(until)), after, until)
            tables, rows, is_large = [schema.empty_table()], 0, False
            selected = self._selection.select(
                work.query.constant, options, commits=commits, on_missing=missing.update
            )
            try:
                async with aclosing(selected) as parts:
                    async for part in parts:
                        tables.append(part)
                        rows += part.num_rows
                        is_large = rows > self._options.rows_max and _can_halve(after, until)
                        if is_large:
                            break
            except DataExpired as error:
                after = after.join(_expired(error, until))
                continue
            except GalileoError:
                missing |= await self._unreadable(work, options, commits)
                if missing >= commits.partitions:
                    raise
            if missing:
                absent |= missing
                until = Cursor({p: after[p] if p in absent else s for p, s in wanted.items()})
                is_part = False
            elif is_large:
                until, is_part = halfway(after, until), True
            else:
                return _Fetched(pa.concat_tables(tables), after, until, is_part)

    async def _unreadable(
        self, work: _Work, options: RowOptions, commits: CursorRange
    ) -> frozenset[int]:
        """The partitions of which some commits cannot be read.

        They may be damaged, or their owner has lost commits that it had reported.
        """
        alone = {p: replace(commits, partitions=frozenset([p])) for p in commits.partitions}
        reading = (self._is_readable(work, options, of_one) for of_one in alone.values())
        are_readable = await asyncio.gather(*reading)
        return frozenset(
            p for p, is_readable in zip(alone, are_readable, strict=True) if not is_readable
        )

    async def _is_readable(self, work: _Work, options: RowOptions, commits: CursorRange) -> bool:
        missing = set[int]()
        selected = self._selection.select(
            work.query.constant, options, commits=commits, on_missing=missing.update
        )
        try:
            async with aclosing(selected) as parts:
                async for _ in parts:
                    pass
        except GalileoError as error:
            log.info("%s cannot read %s: %s", work.channel.name, commits.partitions, error)
            return False
        return not missing

    async def _prepare(self, work: _Work, partition: int, fetched: _Fetched) -> Commit:
        """The commit of an execution.

        Raises:
            _TooLargeError: its result is too large.
            GalileoError: its subscriptions cannot be read.
        """
        progress, loop = self._of(work, partition), asyncio.get_running_loop()
        await self._update_index(work, partition)
        rows = await loop.run_in_executor(self._executor, _match, work, progress, fetched)
        if rows.nbytes > self._options.bytes_max and _can_halve(fetched.after, fetched.until):
            raise _TooLargeError
        at = times_from_micros(np.array([round(self._clock.wall() * MICROS)]))
        brokers = pa.array([rows.num_rows - 1], pa.int32())
        paths = pa.RecordBatch.from_arrays([at, brokers], schema=work.channel.path_schema)
        return Commit(PRODUCER, progress.execution + 1, rows, paths)

    async def _update_index(self, work: _Work, partition: int) -> None:
        """Brings the index of a partition up to date with the table of subscriptions.

        Raises:
            PartitionMoved: another node has it.
        """
        try:
            await self._apply_changes(work, partition)
        except DataExpired:  # Cleaned past what the index knows.
            self._of(work, partition).subscriptions = 0
            await self._apply_changes(work, partition)

    async def _apply_changes(self, work: _Work, partition: int) -> None:
        progress, loop = self._of(work, partition), asyncio.get_running_loop()
        if not progress.subscriptions:  # A part may be there, of which rows were deleted since.
            progress.index = SubscriptionIndex(work.query)
        task = TableTask(
            work.table,
            after=Cursor({partition: progress.subscriptions}) if progress.subscriptions else None,
            partitions=frozenset([partition]),
        )
        reached = progress.subscriptions
        async with aclosing(self._tables.read_local(task)) as parts:
            async for part in parts:
                reached = max(reached, part.reached[partition])
                if part.rows.num_rows:
                    await loop.run_in_executor(self._executor, progress.index.apply, part.rows)
        progress.subscriptions = reached


def _match(work: _Work, progress: Progress, fetched: _Fetched) -> pa.Table:
    """The rows of an execution: its cut, and the share of each broker; in a thread."""
    matches = progress.index.match(fetched.observations)
    number, until = progress.execution + 1, fetched.until
    cut = {
        "execution": number,
        "broker": NO_BROKER,
        "partitions": list(until),
        "after": [fetched.after[partition] for partition in until],
        "until": list(until.values()),
        "subscriptions": progress.subscriptions,
    }
    shares = [
        {"execution": number, "broker": broker, "observations": rows, "matches": pairs}
        for broker, rows, pairs in _shares(work, fetched.observations, matches)
    ]
    return pa.Table.from_pylist([cut, *shares], schema=work.channel.observation_schema)


def _shares(
    work: _Work, observations: pa.Table, matches: pa.RecordBatch
) -> Iterator[tuple[str, bytes, bytes]]:
    """Of each broker the observations that it gets, and its matches with their rows."""
    encoded = matches.column("broker").dictionary_encode()
    codes = encoded.indices.to_numpy()
    for code, broker in enumerate(encoded.dictionary.to_pylist()):
        share = matches.filter(pa.array(codes == code))
        rows = share.column("rows")
        numbers, inverse = np.unique(rows.flatten().to_numpy(), return_inverse=True)
        renumbered = pa.ListArray.from_arrays(
            _offsets_of(rows), pa.array(inverse.astype(np.int32)), type=MATCHES_SCHEMA.field(0).type
        )
        delivered = observations.select(work.delivered).take(pa.array(numbers)).combine_chunks()
        pairs = pa.table([renumbered, share.column("subscriptions")], schema=MATCHES_SCHEMA)
        yield (
            broker,
            to_ipc(delivered, compression=COMPRESSION),
            to_ipc(pairs, compression=COMPRESSION),
        )


def _offsets_of(lists: pa.ListArray) -> pa.Array:
    """The offsets of lists without nulls into their flattened values."""
    lengths = np.append(0, lists.value_lengths().to_numpy())
    return pa.array(np.cumsum(lengths).astype(np.int32))


def cut_of(rows: pa.Table) -> Cursor:
    """The cut of an execution: up to which commit of each partition it has gone."""
    if rows.column("broker")[0].as_py() != NO_BROKER:
        raise InternalError("an execution has no cut")
    partitions, until = (rows.column(name)[0].as_py() for name in ("partitions", "until"))
    return Cursor(dict(zip(partitions, until, strict=True)))


def halfway(after: Cursor, until: Cursor) -> Cursor:
    """A cursor with half of the several commits between two: those of the first partitions."""
    left = _commits_between(after, until) // 2
    positions = dict(until)
    for partition in reversed(after.news(until)):
        removed = min(left, until[partition] - after[partition])
        positions[partition] -= removed
        left -= removed
    return Cursor(positions)


def _can_halve(after: Cursor, until: Cursor) -> bool:
    return _commits_between(after, until) > 1


def _commits_between(after: Cursor, until: Cursor) -> int:
    return sum(until[partition] - after[partition] for partition in after.news(until))


def _expired(error: DataExpired, until: Cursor) -> Cursor:
    """Up to where retention has dropped commits of a range."""
    places = zip(error.details["partitions"], error.details["until"], strict=True)
    return Cursor({partition: min(last, until[partition]) for partition, last in places})
