"""The system tables: small state that the whole cluster shares, as rows of one partition.

Theory of operation. Partition `SYSTEM` is replicated as any other, on nodes of all groups. Its
leader alone changes rows: one consumer for each table takes all changes that wait, evaluates them
against all published rows, and makes one commit, which names the rows that it has seen
(`unchanged_since`). It answers when the commit is published, and what it has only read, under its
lease. So changes and look-ups are linearizable. A caller repeats a change at the next leader, and
it has its effect once (`galileo.model.system_rows`).

The other nodes follow. A node that hears by gossip of a commit past its position asks the leader
for the rows that have changed since. They are late, but never contradict each other: what a node
knows merges with what the leader says in any order. A node reads all rows of each new leader, and
offers what it lacks, as after commits were lost for good. A leader whose table is empty asks the
other nodes first: it may have been founded anew. So does a node that knows nothing and hears no
leader, as on an empty directory in place of the one with the only copy.

A node follows all rows, or those of a table with a topic of its own (`RowKind.topics`).

A row may have an attachment, bytes that neither the leader nor its followers keep in memory. A node
with a copy of the partition reads them from its log.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa

from galileo.dht.topology import SYSTEM
from galileo.dht.topology_state import TopologyState
from galileo.errors import GalileoError, PartitionMoved, TransientError, Unavailable
from galileo.grouped_calls import GroupedCalls
from galileo.model.schema import DELETED
from galileo.model.system_rows import (
    ALL_NAMES,
    Draft,
    Listing,
    LookUp,
    Outcome,
    Position,
    Row,
    RowChange,
    RowKind,
    RowPage,
    Rows,
    V,
    first_changes,
    first_rows,
)
from galileo.model.table import hashes_of, index_versions, versions_of
from galileo.node.catalog import Catalog
from galileo.node.cluster_view import ClusterView
from galileo.node.peers import Peers
from galileo.node.replication.replicas import Replicas
from galileo.node.row_reader import read_parts, translate_dropped_to_retry
from galileo.node.shard import Results, partition_moved
from galileo.node.table_index import Versions, parts_of
from galileo.node.table_shard import TableShard
from galileo.node.versioned_shard import overtaken
from galileo.storage.commits import Commit

T = TypeVar("T")

PRODUCER = "~system"
"""Of the commits; no user's has this character."""
COMMIT_WAIT_S = 5.0
PATIENCE_S = 10.0
"""So long a caller looks for a leader that carries its change out."""
PAUSE_S = 0.05
ATTACHMENT = 2
"""Place of the column with attachments, behind the name and the value."""
READ_TOGETHER = 65_536
"""Rows, unless they have many bytes."""
FOLLOW_RETRY_S = 0.5
FOLLOW_S = 1.0
"""Between two looks for news that gossip has not announced."""

_RETRIED = (PartitionMoved, Unavailable)
"""Errors of no change: another attempt may succeed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SystemPartition:
    """What the system tables of one node share.

    Attributes:
        name: of the node.
        live: the topology.
        catalog: of the node.
        replicas: of the node.
        view: what gossip says of commits.
        peers: calls to other nodes.
        executor: reads and makes rows.
    """

    name: str
    live: TopologyState
    catalog: Catalog
    replicas: Replicas
    view: ClusterView
    peers: Peers
    executor: Executor
    number: int = SYSTEM

    @property
    def leader(self) -> str:
        """The node that leads the partition, as far as this node knows.

        Raises:
            Unavailable: it knows none.
        """
        known = self.live.move_of(SYSTEM)
        if known is None:
            raise _no_leader()
        return known.node

    @property
    def others(self) -> list[str]:
        """All other nodes."""
        return [node.name for node in self.live.current.nodes if node.name != self.name]

    def check_lead(self) -> None:
        """Raises PartitionMoved if this node does not lead the partition for sure."""
        if not self.replicas.holds_lease(SYSTEM):
            raise partition_moved([SYSTEM])


class SystemTable(Generic[V]):
    """A system table at one node.

    Args:
        kind: of its rows.
        partition: that they are in.
        learn: keeps what was agreed on about names, as far as it is newer.
        known: what this node keeps, which it offers if the leader lacks it; a thread reads a copy.
        listed: called with all rows of a table that was read from its first row.
        known_of: what this node keeps of one name, where `known` makes all values anew.
        topic: of the rows that this node follows; empty: of all.
    """

    def __init__(
        self,
        kind: RowKind[V],
        partition: SystemPartition,
        *,
        learn: Callable[[Mapping[str, V]], Awaitable[None]],
        known: Callable[[], Mapping[str, V]],
        listed: Callable[[Mapping[str, V]], None] = lambda _: None,
        known_of: Callable[[str], V] | None = None,
        topic: str = "",
    ) -> None:
        self._kind = kind
        self._partition = partition
        self._learn = learn
        self._known = known
        self._listed = listed
        self._known_of = known_of or (lambda name: known().get(name, kind.nothing))
        self._topic = topic
        self._rows = Rows(kind)
        self._read_until = self._last_number = 0
        self._read_term = 0
        self._has_gathered = False
        self._changing = asyncio.Lock()
        self._calls = GroupedCalls[RowChange, V](
            self._carry_out, wait_s=COMMIT_WAIT_S, items_max=kind.changes_max
        )
        self._followed: dict[str, Mapping[str, int]] = {}
        self._position = Position()
        self._listing: Listing[V] | None = Listing(kind)
        self._has_news = asyncio.Event()

    # --- any node ------------------------------------------------------------------------------

    async def change(self, change: RowChange) -> V:
        """Has the leader change a value; returns what it is then.

        Raises:
            Unavailable: there is no leader, or it is not known whether the change was made.
            GalileoError: of the change.
        """
        begun: RowChange | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            try:
                if begun is None and not isinstance(change, LookUp):
                    present: Any = await self._ask_leader(LookUp(change.name))
                    begun = change.begun(present)
                return await self._ask_leader(begun or change)
            except TransientError as error:
                if loop.time() > deadline:
                    raise (_no_leader() if isinstance(error, PartitionMoved) else error) from error
                await asyncio.sleep(PAUSE_S)

    async def look_up(self, name: str) -> V:
        """The value of a name; errors as `change`."""
        return await self.change(LookUp(name))

    async def _ask_leader(self, change: RowChange) -> V:
        leader = self._partition.leader
        if leader == self._partition.name:
            return await self.carry_out(change)
        row = await self._partition.peers.change_row(leader, self.key, change)
        return self._kind.value(row.data)

    async def change_all(self, changes: Sequence[RowChange]) -> list[V | GalileoError]:
        """Has the leader make changes that need no `begun`: the values then, or why not.

        Raises:
            Unavailable: there is no leader, or it is not known which changes were made.
        """
        outcomes = list[V | GalileoError]()
        while left := changes[len(outcomes) :]:
            outcomes += await self._change_together(first_changes(left))
        return outcomes

    async def _change_together(self, changes: Sequence[RowChange]) -> list[V | GalileoError]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            try:
                return await self._ask_leader_all(changes)
            except _RETRIED as error:
                if loop.time() > deadline:
                    raise (_no_leader() if isinstance(error, PartitionMoved) else error) from error
                await asyncio.sleep(PAUSE_S)

    async def _ask_leader_all(self, changes: Sequence[RowChange]) -> list[V | GalileoError]:
        leader = self._partition.leader
        if leader == self._partition.name:
            return await self._carry_out_all(changes)
        outcomes = await self._partition.peers.change_rows(leader, self.key, changes)
        return await self._in_thread(self._results, outcomes)

    def _results(self, outcomes: Sequence[Outcome]) -> list[V | GalileoError]:
        return [one.error or self._kind.value(one.data) for one in outcomes]

    @property
    def key(self) -> str:
        """Of the table."""
        return self._kind.table.key

    def total(self, key: str) -> int:
        """What is counted under a key over all values, as far as this node knows."""
        return sum(counts.get(key, 0) for counts in self._followed.values())

    async def announce(self, name: str, value: V) -> tuple[str, ...]:
        """Has all nodes learn a value now; returns those that do not answer and will follow."""
        await self._learn({name: value})
        row, others = self._kind.row(name, value), self._partition.others
        sent = await asyncio.gather(*(self._send(node, row) for node in others))
        return tuple(node for node, is_sent in zip(others, sent, strict=True) if not is_sent)

    async def _send(self, node: str, row: Row) -> bool:
        try:
            await self._partition.peers.learn_row(node, self.key, row)
        except GalileoError as error:
            log.warning("node %s will learn of %s later: %s", node, row.name, error)
            return False
        return True

    async def learn_row(self, row: Row) -> None:
        """Keeps what was just agreed on about a name."""
        await self._learn(self._kind.values([row]))

    def known_row(self, name: str) -> Row:
        """What this node knows of a name."""
        return self._kind.row(name, self._known_of(name))

    async def known_after(self, name: str) -> Sequence[Row]:
        """What this node knows of the names behind one, some of them."""
        return await self._in_thread(self._known_after, dict(self._known()), name)

    def _known_after(self, known: Mapping[str, V], name: str) -> Sequence[Row]:
        return first_rows(self._kind.row(one, known[one]) for one in sorted(known) if one > name)

    # --- the leader ----------------------------------------------------------------------------

    async def answer(self, change: RowChange) -> Row:
        """Carries a change of another node out; returns the row. Errors as `carry_out`."""
        return self._kind.row(change.name, await self.carry_out(change))

    async def answer_all(self, changes: Sequence[RowChange]) -> list[Outcome]:
        """Carries changes of another node out. Errors as `carry_out`, but of the changes."""
        values = await self._carry_out_all(changes)
        return await self._in_thread(self._outcomes, changes, values)

    def _outcomes(
        self, changes: Sequence[RowChange], values: Sequence[V | GalileoError]
    ) -> list[Outcome]:
        return [
            Outcome.of(one if isinstance(one, GalileoError) else self._kind.row(change.name, one))
            for change, one in zip(changes, values, strict=True)
        ]

    async def _carry_out_all(self, changes: Sequence[RowChange]) -> list[V | GalileoError]:
        calls = map(self._calls.begin, changes)
        outcomes: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        for one in outcomes:
            is_answer = not isinstance(one, BaseException) or isinstance(one, GalileoError)
            if isinstance(one, _RETRIED) or not is_answer:
                raise one
        return outcomes

    async def carry_out(self, change: RowChange) -> V:
        """Carries a change out at this node, the leader.

        Raises:
            PartitionMoved: it is none.
            Unavailable: it is not known whether the change was made.
            GalileoError: of the change.
        """
        return await self._calls.call(change)

    async def _carry_out(self, changes: Sequence[RowChange]) -> Sequence[V | Exception]:
        """Carries changes out in one commit, one group after the other."""
        async with self._changing:
            draft: Draft[Any] = Draft(await self._read_published())
            if not self._read_until and not self._has_gathered:
                await self._gather(draft)
            outcomes = await self._in_thread(_apply_all, changes, draft)
            if draft.changed:
                await self._commit(draft)
            self._has_gathered = True
            # What was only read was true under the lease: no other leader has committed anything.
            self._partition.check_lead()
            return outcomes

    async def _gather(self, draft: Draft[V]) -> None:
        """Adds what this node and all others that live know; errors as `_known_elsewhere`."""
        elsewhere = await self._known_elsewhere()
        for known in (self._known(), elsewhere):
            for name, value in known.items():
                draft.add(name, value)

    async def _known_elsewhere(self) -> dict[str, V]:
        """What the other nodes that live know.

        Raises:
            Unavailable: one of them does not answer.
        """
        is_alive = self._partition.replicas.is_alive
        asked = [self._known_at(node) for node in self._partition.others if is_alive(node)]
        known: dict[str, V] = {}
        for answer in await asyncio.gather(*asked):
            for name, value in answer.items():
                known[name] = self._kind.merged(known.get(name, self._kind.nothing), value)
        return known

    async def _known_at(self, node: str) -> dict[str, V]:
        """What another node knows of all names."""
        known, ask = dict[str, V](), self._partition.peers.known_rows
        while rows := await ask(node, self.key, max(known, default="")):
            known |= await self._in_thread(self._kind.values, rows)
        return known

    async def _read_published(self) -> Rows[V]:
        """All rows that are published at this node, the leader."""
        self._partition.check_lead()
        term, until = self._term, self._shard.published_sequence(SYSTEM)
        if term != self._read_term:  # What it read in an earlier one may be lost since.
            self._rows, self._read_until, self._read_term = Rows(self._kind), 0, term
        if until > self._read_until:
            values = await self._in_thread(self._read, self._read_until, until)
            if self._read_until:
                self._rows.put_all(values, until)
            else:  # These may be very many.
                rows = Rows(self._kind)
                await self._in_thread(rows.put_all, values, until)
                self._rows = rows
            self._read_until = until
        return self._rows

    @property
    def _term(self) -> int:
        return self._partition.replicas.terms.get(SYSTEM, 0)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Does what would hold the event loop up, with many or large rows."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._partition.executor, work, *arguments)

    def _read(self, after: int, until: int) -> dict[str, V]:
        """The rows since the commits (after, until], in a thread."""
        shard, values = self._shard, dict[str, V]()
        for some in shard.index.newest(SYSTEM, after=after, until=until).pieces(READ_TOGETHER):
            for versions in shard.split_by_bytes(SYSTEM, some):
                names, data, *_ = self._read_versions(versions).columns
                of_rows = map(self._kind.value, data.to_pylist())  # None of a deleted row.
                values |= dict(zip(names.to_pylist(), of_rows, strict=True))
        return values

    def _read_versions(self, versions: Versions) -> pa.Table:
        shard = self._shard
        with translate_dropped_to_retry():
            return read_parts(shard, parts_of(SYSTEM, versions), shard.schema)

    async def attachment(self, name: str) -> bytes | None:
        """The attachment of a row, if it has one and this node keeps a copy of its partition.

        Raises:
            PartitionMoved: the partition leaves this node.
            CorruptData: the only copy is damaged.
        """
        return await self._in_thread(self._read_attachment, name)

    def _read_attachment(self, name: str) -> bytes | None:
        shard, table = self._shard, self._kind.table
        if SYSTEM not in shard.journals:
            return None
        hashes = hashes_of(table, pa.table([[name]], schema=table.key_schema))
        until = shard.published_sequence(SYSTEM)
        versions = shard.index.find(SYSTEM, hashes, until=until)
        if not len(versions):
            return None
        text = self._read_versions(versions).column(ATTACHMENT)[0].as_py()
        return None if text is None else base64.b64decode(text)

    @property
    def _shard(self) -> TableShard:
        shard = self._partition.catalog.shards[self.key]
        assert isinstance(shard, TableShard), "a system table"
        return shard

    async def _commit(self, draft: Draft[V]) -> None:
        """Commits rows, as many at a time as a page has; returns when they are published.

        Raises:
            PartitionMoved: this node leads no more.
            Unavailable: they are not published yet, and may be later.
        """
        rows = [self._kind.row(name, value) for name, value in draft.changed.items()]
        while rows:
            first = first_rows(rows)
            sequence = await self._commit_rows(first, draft.attached)
            if sequence == self._read_until + 1:  # Else others are read with it.
                for row in first:
                    self._rows.put(row.name, draft.changed[row.name], sequence)
                self._read_until = sequence
            rows = rows[len(first) :]

    async def _commit_rows(self, rows: Sequence[Row], attached: Mapping[str, pa.Buffer]) -> int:
        """Makes one commit; its sequence. Errors as `_commit`."""
        committing = await self._in_thread(self._begin_commit, rows, attached)
        try:
            results = await asyncio.wait_for(asyncio.wrap_future(committing), COMMIT_WAIT_S)
        except TimeoutError:
            raise Unavailable(
                "a majority of the nodes that keep the system partition does not answer; the "
                "change may be made later",
                after_s=PAUSE_S,
            ) from None
        result = overtaken(results[SYSTEM])
        if isinstance(result, GalileoError):
            raise result
        return result.sequence

    def _begin_commit(
        self, rows: Sequence[Row], attached: Mapping[str, pa.Buffer]
    ) -> Future[Results]:
        table = self._kind.table
        texts = [_as_text(attached.get(row.name)) for row in rows]
        columns = [row.name for row in rows], [row.data or None for row in rows], texts
        named = pa.table(dict(zip(table.arrow_schema.names, columns, strict=False)))
        named = named.append_column(DELETED, pa.array([not row.data for row in rows]))
        [(versions, keys)] = index_versions(table, versions_of(table, named)).values()
        journal = self._shard.journals.get(SYSTEM)
        last = 0 if journal is None else journal.last_batch(PRODUCER) or 0
        # A commit before this one may still wait for the disk, and takes its number there later.
        number = self._last_number = max(self._last_number, last) + 1
        commit = Commit(PRODUCER, number, versions, keys, unchanged_since=self._read_until)
        return self._partition.catalog.commit(self.key, {SYSTEM: commit})

    async def page(self, after: Position, topic: str) -> RowPage:
        """The rows of a topic that were changed after a position, for a node that follows.

        Raises:
            PartitionMoved: this node is not the leader.
        """
        async with self._changing:
            rows, until = await self._read_published(), self._read_until
            page = partial(rows.page, after, topic, until=until, term=self._read_term)
            return await self._in_thread(page)  # What is read does not change meanwhile.

    # --- followers -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Looks for news now."""
        self._has_news.set()

    async def run(self) -> None:
        """Follows the leader until it is cancelled."""
        while True:
            pause = FOLLOW_S if self._listing is None else PAUSE_S
            if self._is_behind:
                try:
                    await self._follow()
                except GalileoError as error:
                    pause = FOLLOW_RETRY_S
                    log.debug("cannot follow %s yet: %s", self.key, error)
                    await self._learn_elsewhere()
            self._has_news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # `wait_for` may swallow a cancellation.
                    await self._has_news.wait()

    @property
    def _is_behind(self) -> bool:
        known = self._partition.live.move_of(SYSTEM)
        if known is None:
            return self._listing is not None
        if known.node == self._partition.name:
            published = self._shard.published_sequence(SYSTEM)
        else:
            published = self._partition.view.sequences(self.key)[SYSTEM]
        # Of the last commit it may have the rows of the first pages alone.
        is_there = self._position == Position(published, ALL_NAMES, known.number)
        return self._listing is not None or not is_there

    async def _follow(self) -> None:
        """Learns all that is new."""
        is_last = False
        while not is_last:
            page = await self._page_after(self._position, self._topic)
            if page.is_anew:
                self._listing = Listing(self._kind)
            learned = await self._in_thread(self._kind.values, page.rows)
            await self._learn(learned)
            self._followed |= {name: self._kind.totals(one) for name, one in learned.items()}
            if self._listing is not None:
                self._listing.heard |= learned
            self._position, is_last = page.reached, page.is_last
        if (listing := self._listing) is not None:
            self._listed(listing.heard)
            await self._offer(listing)
            self._listing = None

    async def _offer(self, listing: Listing[V]) -> None:
        """Offers the leader what this node knows and it did not list."""
        offers = await self._in_thread(listing.missing, dict(self._known()))
        outcomes = zip(offers, await self.change_all(offers), strict=True)
        await self._learn(
            {offer.name: one for offer, one in outcomes if not isinstance(one, GalileoError)}
        )

    async def _learn_elsewhere(self) -> None:
        """Has a node that knows nothing, and hears no leader, learn what the others know."""
        if not self._known():
            with contextlib.suppress(GalileoError):
                await self._learn(await self._known_elsewhere())

    async def _page_after(self, position: Position, topic: str) -> RowPage:
        leader = self._partition.leader
        if leader == self._partition.name:
            return await self.page(position, topic)
        return await self._partition.peers.rows_after(leader, self.key, position, topic)

    async def read(self, topic: str) -> dict[str, V]:
        """All values of a topic, as the leader knows them.

        Raises:
            TransientError: there is no leader, or another one meanwhile.
        """
        values, position, is_last = dict[str, V](), Position(), False
        while not is_last:
            page = await self._page_after(position, topic)
            if page.is_anew:
                values.clear()
            values |= await self._in_thread(self._kind.values, page.rows)
            position, is_last = page.reached, page.is_last
        return values

    async def select(self, pick: Callable[[V], T | None]) -> dict[str, T]:
        """What `pick`, called in a thread, says of all values at this node, the leader; not None.

        Raises:
            PartitionMoved: it is none.
        """
        async with self._changing:
            rows = await self._read_published()
            return await self._in_thread(_picked, rows, pick)


def _picked(rows: Rows[V], pick: Callable[[V], T | None]) -> dict[str, T]:
    picked = ((name, pick(rows[name])) for name in rows)
    return {name: one for name, one in picked if one is not None}


def _as_text(attachment: pa.Buffer | None) -> str | None:
    return None if attachment is None else base64.b64encode(attachment).decode()


def _apply_all(changes: Sequence[RowChange], draft: Draft[Any]) -> list[Any]:
    """Makes changes one after the other: the value after each one, or why it is not made."""
    outcomes = list[Any]()
    for change in changes:
        try:
            change.apply(draft)
            outcomes.append(draft[change.name])
        except GalileoError as error:
            outcomes.append(error)
    return outcomes


def _no_leader() -> Unavailable:
    return Unavailable(
        "no node leads the system partition, which has the definitions of all datasets, "
        "continuous queries and uploaded samplers; try again, or start the nodes that are down",
        after_s=FOLLOW_RETRY_S,
    )
