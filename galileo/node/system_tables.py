"""The system tables: small state that the whole cluster shares, as rows of one partition.

Theory of operation. Partition `SYSTEM` is replicated as any other, on nodes of all groups. Its
leader alone changes rows: one consumer takes all changes that wait, evaluates them against all
published rows, and makes one commit, which names the rows that it has seen (`unchanged_since`). It
answers when the commit is published, and what it has only read, under its lease. So changes and
look-ups are linearizable. A caller repeats a change at the next leader, and it has its effect once
(`galileo.node.definitions`).

The other nodes follow. A node that hears by gossip of a commit past its position asks the leader
for the rows that have changed since. They are late, but never contradict each other: what a node
knows merges with what the leader says in any order. A node reads all rows of each new leader, and
offers what it lacks, as after commits were lost for good. A leader whose table is empty asks the
other nodes first: it may have been founded anew. So does a node that knows nothing and hears no
leader, as on an empty directory in place of the one with the only copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from galileo.dht.topology import SYSTEM
from galileo.dht.topology_state import TopologyState
from galileo.errors import GalileoError, PartitionMoved, TransientError, Unavailable
from galileo.grouped_calls import GroupedCalls
from galileo.model.system import DATASETS
from galileo.model.table import index_versions, versions_of
from galileo.node.catalog import Catalog
from galileo.node.cluster_view import ClusterView
from galileo.node.definitions import (
    NOTHING,
    AnyChange,
    Definition,
    DefinitionRow,
    Definitions,
    DefinitionsPage,
    Draft,
    Listing,
    LookUp,
    Position,
    decode,
    decode_rows,
    encode,
    first_rows,
    merged,
)
from galileo.node.peers import Peers
from galileo.node.replication.replicas import Replicas
from galileo.node.row_reader import read_parts
from galileo.node.shard import partition_moved
from galileo.node.table_index import parts_of
from galileo.node.table_shard import TableShard
from galileo.storage.commits import Commit

PRODUCER = "~system"
"""Of the commits; no user's has this character."""
CHANGES_MAX = 64
"""Changes of one commit."""
COMMIT_WAIT_S = 5.0
PATIENCE_S = 10.0
"""So long a caller looks for a leader that carries its change out."""
PAUSE_S = 0.05
FOLLOW_RETRY_S = 0.5
FOLLOW_S = 1.0
"""Between two looks for news that gossip has not announced."""

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class SystemTables:
    """The system tables at one node.

    Args:
        name: of the node.
        live: the topology.
        catalog: of the node.
        replicas: of the node.
        view: what gossip says of commits.
        peers: calls to other nodes.
        executor: reads rows.
        learn: keeps what was agreed on about names, as far as it is newer.

    """

    def __init__(
        self,
        name: str,
        live: TopologyState,
        *,
        catalog: Catalog,
        replicas: Replicas,
        view: ClusterView,
        peers: Peers,
        executor: Executor,
        learn: Callable[[Mapping[str, Definition]], Awaitable[None]],
    ) -> None:
        self._name = name
        self._live = live
        self._catalog = catalog
        self._replicas = replicas
        self._view = view
        self._peers = peers
        self._executor = executor
        self._learn = learn
        self._definitions = Definitions()
        self._read_until = self._last_number = 0
        self._read_term = 0
        self._has_gathered = False
        self._changing = asyncio.Lock()
        self._calls = GroupedCalls[AnyChange, Definition](
            self._carry_out, wait_s=COMMIT_WAIT_S, items_max=CHANGES_MAX
        )
        self._creators = Definitions()
        self._position = Position()
        self._listing: Listing | None = Listing()
        self._has_news = asyncio.Event()

    # --- any node ------------------------------------------------------------------------------

    async def change(self, change: AnyChange) -> Definition:
        """Has the leader change a definition; returns what it is then.

        Raises:
            Unavailable: there is no leader, or it is not known whether the change was made.
            GalileoError: of the change.
        """
        begun: AnyChange | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            try:
                if begun is None and not isinstance(change, LookUp):
                    begun = change.begun(await self._ask_leader(LookUp(change.name)))
                return await self._ask_leader(begun or change)
            except TransientError as error:
                if loop.time() > deadline:
                    raise (_no_leader() if isinstance(error, PartitionMoved) else error) from error
                await asyncio.sleep(PAUSE_S)

    async def look_up(self, name: str) -> Definition:
        """The definition of a name; errors as `change`."""
        return await self.change(LookUp(name))

    async def _ask_leader(self, change: AnyChange) -> Definition:
        leader = self._leader
        if leader == self._name:
            return await self.carry_out(change)
        row = await self._peers.change_definition(leader, change)
        return decode(row.data)

    @property
    def _leader(self) -> str:
        known = self._live.move_of(SYSTEM)
        if known is None:
            raise _no_leader()
        return known.node

    def created_by(self, principal: str) -> int:
        """How many names a principal was the last to create, as far as this node knows."""
        return self._creators.created_by(principal)

    # --- the leader ----------------------------------------------------------------------------

    async def carry_out(self, change: AnyChange) -> Definition:
        """Carries a change out at this node, the leader.

        Raises:
            PartitionMoved: it is none.
            Unavailable: it is not known whether the change was made.
            GalileoError: of the change.
        """
        return await self._calls.call(change)

    async def _carry_out(self, changes: Sequence[AnyChange]) -> Sequence[Definition | Exception]:
        """Carries changes out in one commit, one group after the other."""
        async with self._changing:
            draft, outcomes = Draft(await self._read_published()), list[Definition | Exception]()
            if not self._read_until and not self._has_gathered:
                await self._gather(draft)
            for change in changes:
                try:
                    change.apply(draft)
                    outcomes.append(draft[change.name])
                except GalileoError as error:
                    outcomes.append(error)
            if draft.changed:
                await self._commit(draft.changed)
            self._has_gathered = True
            # What was only read was true under the lease: no other leader has committed anything.
            self._check_lead()
            return outcomes

    async def _gather(self, draft: Draft) -> None:
        """Adds what this node and all others that live know; errors as `_known_elsewhere`."""
        elsewhere = await self._known_elsewhere()
        for known in (self._catalog.definitions(), elsewhere):
            for name, definition in known.items():
                draft.put(name, merged(draft[name], definition))

    async def _known_elsewhere(self) -> dict[str, Definition]:
        """What the other nodes that live know.

        Raises:
            Unavailable: one of them does not answer.
        """
        others = [node.name for node in self._live.current.nodes if node.name != self._name]
        asked = [self._known_at(node) for node in others if self._replicas.is_alive(node)]
        known: dict[str, Definition] = {}
        for answer in await asyncio.gather(*asked):
            for name, definition in answer.items():
                known[name] = merged(known.get(name, NOTHING), definition)
        return known

    async def _known_at(self, node: str) -> dict[str, Definition]:
        """What another node knows of all names."""
        known: dict[str, Definition] = {}
        while rows := await self._peers.known_definitions(node, max(known, default="")):
            known |= await self._in_thread(decode_rows, rows)
        return known

    async def known_after(self, name: str) -> Sequence[DefinitionRow]:
        """What this node knows of the names behind one, some of them."""
        return await self._in_thread(self._known_after, name)

    def _known_after(self, name: str) -> Sequence[DefinitionRow]:
        known = self._catalog.definitions()
        named = (DefinitionRow(one, encode(known[one])) for one in sorted(known) if one > name)
        return first_rows(named)

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Does what would hold the event loop up, with many definitions."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, work, *arguments)

    def _check_lead(self) -> None:
        if not self._replicas.holds_lease(SYSTEM):
            raise partition_moved([SYSTEM])

    async def _read_published(self) -> Definitions:
        """All definitions that are published at this node, the leader."""
        self._check_lead()
        term, until = self._replicas.terms.get(SYSTEM, 0), self._shard.published_sequence(SYSTEM)
        if term != self._read_term:  # What it read in an earlier one may be lost since.
            self._definitions, self._read_until, self._read_term = Definitions(), 0, term
        if until > self._read_until:
            rows = await self._in_thread(self._read, self._read_until, until)
            for name, definition in rows.items():
                self._definitions.put(name, definition, until)
            self._read_until = until
        return self._definitions

    def _read(self, after: int, until: int) -> dict[str, Definition]:
        """The rows since the commits (after, until], in a thread. None is ever deleted."""
        shard = self._shard
        versions = shard.index.newest(SYSTEM, after=after, until=until)
        if not len(versions):
            return {}
        rows = read_parts(shard, parts_of(SYSTEM, versions), shard.schema)
        columns = (rows.column(name).to_pylist() for name in ("name", "definition"))
        return {name: decode(data) for name, data in zip(*columns, strict=True)}

    @property
    def _shard(self) -> TableShard:
        shard = self._catalog.shards[DATASETS.key]
        assert isinstance(shard, TableShard), "a system table"
        return shard

    async def _commit(self, changed: Mapping[str, Definition]) -> None:
        """Commits definitions, as many at a time as a page has; returns when they are published.

        Raises:
            PartitionMoved: this node leads no more.
            Unavailable: they are not published yet, and may be later.
        """
        rows = [DefinitionRow(name, encode(definition)) for name, definition in changed.items()]
        while rows:
            first = first_rows(rows)
            sequence = await self._commit_rows(first)
            if sequence == self._read_until + 1:  # Else others are read with it.
                for row in first:
                    self._definitions.put(row.name, changed[row.name], sequence)
                self._read_until = sequence
            rows = rows[len(first) :]

    async def _commit_rows(self, rows: Sequence[DefinitionRow]) -> int:
        """Makes one commit; its sequence. Errors as `_commit`."""
        columns = {"name": [row.name for row in rows], "definition": [row.data for row in rows]}
        table = versions_of(DATASETS, pa.table(columns))
        [(versions, keys)] = index_versions(DATASETS, table).values()
        journal = self._shard.journals.get(SYSTEM)
        last = 0 if journal is None else journal.last_batch(PRODUCER) or 0
        # A commit before this one may still wait for the disk, and takes its number there later.
        number = self._last_number = max(self._last_number, last) + 1
        commit = Commit(PRODUCER, number, versions, keys, unchanged_since=self._read_until)
        committing = await self._in_thread(self._catalog.commit, DATASETS.key, {SYSTEM: commit})
        try:
            results = await asyncio.wait_for(asyncio.wrap_future(committing), COMMIT_WAIT_S)
        except TimeoutError:
            raise Unavailable(
                "a majority of the nodes that keep the definitions of datasets does not answer; "
                "the change may be made later",
                after_s=PAUSE_S,
            ) from None
        result = results[SYSTEM]
        if isinstance(result, GalileoError):
            raise result
        return result.sequence

    async def page(self, after: Position) -> DefinitionsPage:
        """The definitions that were changed after a position, for a node that follows.

        Raises:
            PartitionMoved: this node is not the leader.
        """
        async with self._changing:
            await self._read_published()
            term = self._replicas.terms.get(SYSTEM, 0)
            return await self._in_thread(self._page, after, term)

    def _page(self, after: Position, term: int) -> DefinitionsPage:
        """A page of what is read, which does not change meanwhile."""
        definitions, is_anew = self._definitions, after.term != term
        start = Position() if is_anew else after
        names = [name for _, name in definitions.after(start.sequence, start.name)]
        rows = first_rows(DefinitionRow(name, encode(definitions[name])) for name in names)
        is_last = len(rows) == len(names)
        # No name sorts behind "~", so what this commit changes is not sent again.
        sequence = self._read_until if is_last else definitions.sequences[rows[-1].name]
        name = "~" if is_last else rows[-1].name
        return DefinitionsPage(tuple(rows), Position(sequence, name, term), is_last, is_anew)

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
                    log.debug("cannot follow the definitions of datasets yet: %s", error)
                    await self._learn_elsewhere()
            self._has_news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # `wait_for` may swallow a cancellation.
                    await self._has_news.wait()

    @property
    def _is_behind(self) -> bool:
        known = self._live.move_of(SYSTEM)
        if known is None:
            return self._listing is not None
        if known.node == self._name:
            published = self._shard.published_sequence(SYSTEM)
        else:
            published = self._view.sequences(DATASETS.key)[SYSTEM]
        is_there = (published, known.number) == (self._position.sequence, self._position.term)
        return self._listing is not None or not is_there

    async def _follow(self) -> None:
        """Learns all that is new."""
        is_last = False
        while not is_last:
            page = await self._next_page()
            if page.is_anew:
                self._listing = Listing()
            learned = await self._in_thread(decode_rows, page.rows)
            await self._learn(learned)
            for name, definition in learned.items():
                self._creators.put(name, replace(definition, schema=None), 0)
            if self._listing is not None:
                self._listing.heard |= learned
            self._position, is_last = page.reached, page.is_last
        if self._listing is not None:
            await self._offer(self._listing)
            self._listing = None

    async def _learn_elsewhere(self) -> None:
        """Has a node that knows nothing, and hears no leader, learn what the others know."""
        if not self._catalog.definitions():
            with contextlib.suppress(GalileoError):
                await self._learn(await self._known_elsewhere())

    async def _next_page(self) -> DefinitionsPage:
        leader = self._leader
        if leader == self._name:
            return await self.page(self._position)
        return await self._peers.definitions_after(leader, self._position)

    async def _offer(self, listing: Listing) -> None:
        """Offers the leader what this node knows and it did not list."""
        for offer in await self._in_thread(listing.missing, self._catalog.definitions()):
            await self.change(offer)


def _no_leader() -> Unavailable:
    return Unavailable(
        "no node leads the system partition, which has the definitions of all datasets; try again, "
        "or start the nodes that are down",
        after_s=FOLLOW_RETRY_S,
    )
