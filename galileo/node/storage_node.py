"""A storage node: its catalog, and every call that it answers about stored data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from galileo.clock import Clock, SystemClock
from galileo.cursor import Cursor
from galileo.dht.topology import SYSTEM, Move, Topology
from galileo.dht.topology_state import TopologyState
from galileo.errors import (
    DatasetExists,
    GalileoError,
    InputError,
    Unavailable,
    UnknownDataset,
    UnknownProperty,
    listed,
)
from galileo.model.broker import (
    BROKERS,
    Broker,
    brokers_of,
    check_changed,
    check_circles,
    check_names,
)
from galileo.model.channel import BROKER, Channel, channel_of
from galileo.model.forks import first_of, history_of, next_history
from galileo.model.retention import (
    HeldBack,
    Removed,
    Retention,
    RetentionOutcome,
    VersionedRetention,
)
from galileo.model.schema import (
    Feature,
    Schema,
    StoredSchema,
    existing_dataset,
    features_to_json,
    has_columns,
    split_key,
)
from galileo.model.system import SYSTEM_TABLES
from galileo.model.table import Table
from galileo.node import cleaning, row_checks
from galileo.node.analyses.local_graphs import LocalGraphs
from galileo.node.catalog import Catalog, OnDropped
from galileo.node.channel_cuts import ChannelCuts
from galileo.node.channel_executor import ChannelExecutor
from galileo.node.channel_reader import ChannelReader
from galileo.node.cleaning import CleaningProgress
from galileo.node.cluster_analytics import ClusterAnalytics
from galileo.node.cluster_scan import ClusterScans, ScanEnd
from galileo.node.cluster_view import ClusterView
from galileo.node.compaction_runner import CompactionRunner, CompactionRunnerOptions
from galileo.node.definitions import (
    DEFINITION_ROWS,
    AddFeatures,
    CreateDataset,
    Definition,
    DropDataset,
    SetRetention,
)
from galileo.node.estimates import Estimates
from galileo.node.ingest import Ingest
from galileo.node.local_scan import LocalScans
from galileo.node.log_regression import LogRegression
from galileo.node.pages import Paging
from galileo.node.peers import Peers, TableTask
from galileo.node.reader_positions import ReaderPositions
from galileo.node.replication.protocol import ReplicaLink
from galileo.node.replication.replicas import Replicas, ReplicasOptions
from galileo.node.retention_plan import Readers
from galileo.node.retention_runner import RetentionRunner, RetentionRunnerOptions
from galileo.node.row_reader import RowReader
from galileo.node.sampler_store import SamplerStore
from galileo.node.scrub_runner import ScrubOptions, ScrubRunner
from galileo.node.select import Selection
from galileo.node.standing_queries import Matching
from galileo.node.system_tables import SystemPartition, SystemTable
from galileo.node.table_reader import TableReader
from galileo.query import Query, parse, parse_async
from galileo.query.subscriptions import ParameterQuery
from galileo.storage.journal import UNKNOWN_FEATURES_AFTER_S
from galileo.storage.store import Store

THREADS = 4
SYNC_THREADS = 8
SCAN_THREADS = 4
"""Scans have threads of their own, so that no query waits behind the disk."""
ANALYTICS_THREADS = 2
"""Threads for analytics alone, so that commits and scans keep theirs."""

CLEANING_SAYS_S = 1.0
"""Seconds after which a node that cleans says again how far it is."""
EXECUTION_TIMEOUT_S = 1.0
"""For so long an execution of a channel looks for the owner of a partition of the dataset."""
TOPOLOGY_PAUSE_S, TOPOLOGY_LOOKS_MAX = 0.05, 100
"""A node that does not know the topology of the cluster yet looks so often for it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Limits of one node; see `config.LimitsSection`. `merging`: None for none."""

    batch_rows_max: int = 1_000_000
    commit_queue_max: int = 1_024
    merging: CompactionRunnerOptions | None = None
    samplers_are_allowed: bool = False
    replication: ReplicasOptions = field(default_factory=ReplicasOptions)


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The status of one dataset on one node; sizes in bytes.

    Attributes:
        dropped: up to where retention has dropped each partition's commits.
        held: what it would drop, did not readers hold it back.
    """

    dataset: str
    rows: int
    paths: int
    bytes_on_disk: int
    graph_bytes: int
    sequences: Cursor
    retention: Retention | None
    dropped: Cursor
    held: tuple[HeldBack, ...]


def _ignore(*_: object) -> None:
    """The default of callbacks."""


@dataclass(frozen=True, slots=True)
class NodeCallbacks:
    """What a node calls in the event loop; by default, these do nothing.

    Attributes:
        on_committed: when its partitions have commits, or its channels new executions.
        on_led: when it has begun to lead a partition, to tell the others.
        on_dropped: when datasets have just been dropped here.
        on_revoked: with the digests of samplers that are revoked.
    """

    on_committed: Callable[[], None] = _ignore
    on_led: Callable[[], None] = _ignore
    on_dropped: OnDropped = _ignore
    on_revoked: Callable[[frozenset[str]], None] = _ignore


NO_CALLBACKS = NodeCallbacks()


def _outcome(answer: Removed | BaseException) -> Removed | GalileoError:
    if isinstance(answer, Removed | GalileoError):
        return answer
    raise answer


class StorageNode:
    """Everything of a node but its network and its continuous queries.

    Attributes:
        scrub: reads stored commits again in the background, once it has begun.
        replicas: the machines of its partitions.
        removal_failure: why the last attempt to remove this node has failed; empty if it has not.
        system: the definitions that the whole cluster shares.
        system_tables: all tables of the system partition that clients do not find, by key.
        conflicts: datasets of this directory that are none of the cluster, with the reasons.
    """

    def __init__(
        self,
        name: str,
        topology: Topology | TopologyState,
        *,
        store: Store,
        peers: Peers,
        options: NodeOptions,
        callbacks: NodeCallbacks = NO_CALLBACKS,
        clock: Clock | None = None,
        make_executor: Callable[..., Executor] = ThreadPoolExecutor,
    ) -> None:
        self.name = name
        self.options = options
        clock = clock or SystemClock()
        self.removal_failure = ""
        self.conflicts: dict[str, str] = {}
        self.live = topology = TopologyState.of(topology)
        self.store = store
        self._peers = peers
        self._executor = make_executor(THREADS, thread_name_prefix="storage")
        self._syncing = make_executor(SYNC_THREADS, thread_name_prefix="sync")
        self.view = ClusterView(on_loss=self._begin_history)
        self._wall = clock.wall
        self._callbacks = callbacks
        self.replicas = Replicas(
            name,
            topology,
            store=store,
            options=options.replication,
            monotonic=clock.monotonic,
        )
        self.catalog = Catalog(
            store,
            executor=self._executor,
            syncing=self._syncing,
            machines=self.replicas,
            term_of=self._term_of,
            owned=lambda: self.replicas.led,
            commit_queue_max=options.commit_queue_max,
            on_dropped=self._forget,
        )
        partition = SystemPartition(
            name, topology, self.catalog, self.replicas, self.view, peers, self._executor
        )
        self.system = SystemTable(
            DEFINITION_ROWS,
            partition,
            learn=self.learn_definitions,
            known=self.catalog.definitions,
            known_of=self.catalog.definition,
        )
        self._scanning = make_executor(SCAN_THREADS, thread_name_prefix="scan")
        self.samplers = SamplerStore(
            partition,
            is_allowed=options.samplers_are_allowed,
            clock=clock,
            on_revoked=callbacks.on_revoked,
        )
        self.system_partition = partition
        self.system_tables: dict[str, SystemTable[Any]] = {}
        self.add_system_table(self.system)
        self.add_system_table(self.samplers.table)
        self.local_scans = LocalScans(self.catalog, executor=self._scanning, samplers=self.samplers)
        self.matching = Matching(self.catalog, executor=self._scanning)
        self.scans, self.reading, self.selection = self._make_readers()
        self._exploring = make_executor(ANALYTICS_THREADS, thread_name_prefix="exploration")
        self.analytics = ClusterAnalytics(
            name,
            topology,
            graphs=LocalGraphs(self.catalog, reading=self.reading, executor=self._exploring),
            scans=self.scans,
            peers=peers,
            executor=self._exploring,
        )
        self.estimates = Estimates(
            name,
            topology,
            catalog=self.catalog,
            view=self.view,
            scans=self.scans,
            executor=self._exploring,
        )
        self.tables = TableReader(
            name,
            topology,
            catalog=self.catalog,
            peers=peers,
            executor=self._executor,
        )
        self.ingest = Ingest(
            name,
            topology,
            catalog=self.catalog,
            peers=peers,
            tables=self.tables,
            rows_max=options.batch_rows_max,
            on_committed=callbacks.on_committed,
        )
        # Executions match later what is in partitions that have no owner now.
        *_, of_executions = self._make_readers(retry_max_s=EXECUTION_TIMEOUT_S)
        self.channels = ChannelExecutor(
            self.catalog,
            tables=self.tables,
            selection=of_executions,
            view=self.view,
            executor=self._scanning,
            clock=clock,
            on_committed=callbacks.on_committed,
        )
        self.channel_reader = ChannelReader(
            name,
            topology,
            catalog=self.catalog,
            peers=peers,
            view=self.view,
            executor=self._executor,
        )
        self.paging = Paging(scans=self.scans, reading=self.reading, executor=self._scanning)
        self._merging = (
            None if options.merging is None else CompactionRunner(self.catalog, options.merging)
        )
        self._retaining: RetentionRunner | None = None
        self.scrub: ScrubRunner | None = None

    def _make_readers(
        self, *, retry_max_s: float = math.inf
    ) -> tuple[ClusterScans, RowReader, Selection]:
        """What scans the cluster, reads rows, and does both."""
        scans = ClusterScans(
            self.name,
            self.live,
            local=self.local_scans,
            peers=self._peers,
            view=self.view,
            samplers=self.samplers,
            retry_max_s=retry_max_s,
        )
        reading = RowReader(
            self.name,
            self.live,
            catalog=self.catalog,
            peers=self._peers,
            executor=self._executor,
            retry_max_s=retry_max_s,
        )
        selection = Selection(
            self.name,
            self.live,
            catalog=self.catalog,
            scans=scans,
            reading=reading,
            executor=self._scanning,
        )
        return scans, reading, selection

    @property
    def topology(self) -> Topology:
        """The topology as it is known by now."""
        return self.live.current

    @property
    def pending(self) -> list[str]:
        """What an operator has to do for this node, or what its removal waits for."""
        removal = [f"its removal waits: {self.removal_failure}"] if self.removal_failure else []
        given_up = [
            f"partitions {listed(sorted(self.replicas.given_up))} of its directory are not served, "
            "since they have begun anew in another one (galileo node forget): start the node with "
            "that one, or with an empty one"
        ]
        return [*removal, *(given_up if self.replicas.given_up else []), *self.conflicts.values()]

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions of data that this node leads for sure."""
        return frozenset(filter(self.replicas.holds_lease, self.replicas.led - {SYSTEM}))

    def _term_of(self, partition: int) -> int:
        last = self.live.move_of(partition)
        return 0 if last is None else last.number

    def connect_replicas(
        self,
        link: ReplicaLink,
        *,
        identity_of: Callable[[str], str],
        is_alive: Callable[[str], bool],
    ) -> Replicas:
        """Starts the replicas; see `Replicas.connect`."""
        self.replicas.connect(
            self.catalog,
            link,
            identity_of=identity_of,
            is_alive=is_alive,
            lead=self._announce,
            learn=self._learn_from,
        )
        return self.replicas

    def _announce(self, partition: int, term: int) -> None:
        self.live.adopt([Move(partition, term, self.name)])
        self._callbacks.on_led()

    def _begin_history(self, loss: LogRegression) -> None:
        """Has the owner of a partition that has lost commits lead it in a later history.

        Nodes learn of the owner's next term as of any other, the owner too. If the history is later
        than that of the lost commit already, their sequences are not used again.
        """
        known = self.live.move_of(loss.partition)
        if known is None or known.node != loss.node or self.topology.is_replicated:
            return
        history = history_of(known.number)
        if loss.partition != SYSTEM and history <= history_of(loss.had):
            lowest = first_of(next_history(history, self._wall())) - 1
            self.live.adopt([Move(loss.partition, lowest, loss.node)])

    def retain(self, readers: Readers, options: RetentionRunnerOptions | None = None) -> None:
        """Begins to apply the retention policies of the datasets; nothing is dropped before.

        Called in the event loop.

        Args:
            readers: lists the readers that a policy may not pass; called in a thread.
            options: when.
        """
        loop = asyncio.get_running_loop()
        cuts = ChannelCuts(self.catalog, self.channel_reader, loop=loop)
        positions = ReaderPositions(self.tables, cuts, loop=loop)
        self._retaining = RetentionRunner(
            self.catalog,
            options or RetentionRunnerOptions(),
            readers=readers,
            holds=positions.read_from_thread,
            compared=cuts.compared_from_thread,
        )

    def begin_scrub(self, options: ScrubOptions) -> None:
        """Begins to read stored commits again; when the replicas are connected."""
        self.scrub = ScrubRunner(self.catalog, self.store, options)

    # --- datasets ------------------------------------------------------------------------------

    async def create_dataset(
        self, schema: StoredSchema, *, creator: str = "", names_max: int = 0
    ) -> StoredSchema:
        """Creates a dataset, table or channel, and hands it to every other node.

        With a channel come its tables.

        Args:
            schema: of it, in any generation.
            creator: the principal that calls, "" if it has no quota.
            names_max: of names that the principal may create.

        Returns:
            Its schema with the generation that it got.

        Raises:
            DatasetExists: the name is taken.
            InvalidSchema: the name is reserved.
            QuotaExceeded: the principal has created too many others.
            Unavailable: no node leads the system partition.
        """
        row_checks.check_reserved(schema)
        if isinstance(schema, Table):
            schema = schema.spread(len(self.topology.partitions))
        if isinstance(schema, Schema):
            schema = schema.placed_by(self.topology.range_epoch)
        if isinstance(schema, Channel) and schema.schema is None:
            schema = await self._bind_channel(schema)
        text, creation = schema.to_json(), secrets.token_hex(8)
        change = CreateDataset(schema.name, text, creation, creator, names_max)
        definition = await self.system.change(change)
        created = definition.schema
        assert created is not None, "created without a schema"
        await self.system.announce(schema.name, definition)
        return created

    async def _bind_channel(self, channel: Channel) -> Channel:
        """The channel with the schema of its dataset; creates its tables.

        Raises:
            UnknownDataset, InputError: there is no such dataset, or the template is none of it; or
                one of the tables is missing, or a step or a lookup does not fit it; or brokers
                would store the channel's notifications where it reads.
            DatasetExists: the channel exists, or one of its tables, with rows.
        """
        with contextlib.suppress(UnknownDataset):
            known = await self.stored_named(channel.name)
            raise existing_dataset(known, same=known.is_wanted(channel))
        schema = await self.named(channel.dataset)
        tables = {step.table: await self._table(step.table) for step in channel.steps}
        query = await asyncio.to_thread(
            ParameterQuery, channel.template, schema, channel.lookup, tables
        )
        bound = channel.bound(
            schema,
            query.parameters,
            start=await self._frontier(schema),
            partitions=len(self.topology.partitions),
            references=list(tables.values()),
        )
        brokers = await self._brokers()
        check_circles([*self.catalog.channels.values(), bound], [*brokers.values()])
        for table in bound.tables:
            try:
                await self.create_dataset(table)
            except DatasetExists as error:  # Perhaps from a creation that has failed halfway.
                if not error.details.get("same") or await self._has_rows(table.name):
                    raise
        return bound

    async def _table(self, name: str) -> Table:
        """The table of a name that a channel reads.

        Raises:
            UnknownDataset, InputError: there is none, or it is a system table, of which callers may
                read some rows alone.
        """
        table = self.catalog.table_shard((await self.stored_named(name)).key).schema
        if table.first_partition:
            raise InputError(
                f"expected a table of yours, got {name!r} of Galileo's own, which no channel reads",
                dataset=name,
            )
        return table

    async def row_check(
        self, table: StoredSchema, *, is_conditional: bool
    ) -> Callable[[pa.Table], None] | None:
        """What checks the rows of a batch for a table that Galileo reads; None for other tables.

        It raises InputError if a row cannot be read, if a sink of a broker leads back to a channel
        of the broker, if a subscription lacks a parameter, or has none that fits, or a broker of a
        wrong name.
        """
        channel, checks = await self.channel_of(table), list[Callable[[pa.Table], None]]()
        if isinstance(table, Table) and row_checks.has_states(table):
            checks.append(partial(row_checks.check_state, table, is_conditional=is_conditional))
        if table.name == BROKERS.name:
            channels = [*self.catalog.channels.values()]
            checks.append(partial(check_changed, channels, await self._brokers()))
        if channel is not None and table.name == channel.subscription_table:
            checks += [
                (await self.channels.query(channel)).check,
                lambda rows: check_names(rows.column(BROKER)),
            ]

        def check(rows: pa.Table) -> None:
            for each in checks:
                each(rows)

        return check if checks else None

    async def _brokers(self) -> dict[str, Broker]:
        """All brokers by name. Raises TransientError if no node leads the system partition."""
        return brokers_of((await self.tables.read_all(TableTask(BROKERS.key))).rows)

    async def channel_of(self, table: StoredSchema) -> Channel | None:
        """The channel that a table belongs to; None if it belongs to none."""
        name = channel_of(table.name)
        if isinstance(table, Table) and name:
            with contextlib.suppress(UnknownDataset):
                channel = await self.stored_named(name)
                return channel if isinstance(channel, Channel) else None
        return None

    async def _frontier(self, schema: Schema) -> Cursor:
        """The last commits of a dataset; as far as known those of nodes that do not answer."""
        nothing, frontier = parse("false", schema), self.view.sequences(schema.key)
        everywhere = frozenset(self.topology.partitions)
        scan = self.scans.between(nothing, partitions=everywhere, after=frontier, until=None)
        async with aclosing(scan) as parts:
            async for part in parts:
                if isinstance(part, ScanEnd):
                    frontier = frontier.join(part.frontier)
        return frontier

    async def _has_rows(self, table: str) -> bool:
        task = TableTask((await self.stored_named(table)).key)
        async with aclosing(self.tables.read(task)) as parts:
            async for part in parts:
                if part.rows.num_rows:
                    return True
        return False

    @property
    def _others(self) -> list[str]:
        return [node.name for node in self.topology.nodes if node.name != self.name]

    async def adopt(self, schema: StoredSchema) -> None:
        """Keeps a dataset, or its added features, and drops those of its name before it."""
        if self.catalog.outdated(schema):
            await self.drop(schema.name, schema.generation)
        known = self.catalog.knows(schema.key)
        if not known or self.catalog.stored_schema(schema.key) != schema:
            await asyncio.to_thread(self.catalog.adopt, schema)

    async def add_features(self, dataset: str, features: Sequence[Feature]) -> Schema:
        """Adds features to the dataset with this key, and sends the schema to all other nodes.

        Another node that cannot be reached now learns of them later.

        Returns:
            The schema of the dataset.

        Raises:
            InvalidSchema: the dataset has a feature of such a name, or would have too many.
            UnknownDataset: there is none with this key, or it was dropped.
            Unavailable: no node leads the system partition.
            PartitionReadOnly: the disk refuses; this node learns of the features later.
        """
        known = await self.schema(dataset)
        change = AddFeatures(dataset, features_to_json(features))
        definition = await self.system.change(change)
        wider = definition.schema
        assert isinstance(wider, Schema), "a dataset without a schema"
        await self.system.announce(known.name, definition)
        return wider

    async def drop_dataset(self, dataset: str) -> dict[str, Removed | GalileoError]:
        """Drops the dataset with this key, and has every other node drop it.

        A node that cannot be reached now drops it later.

        Returns:
            What each node removed, or why it has not yet.

        Raises:
            UnknownDataset: there is none with this key, or it was dropped before.
            Unavailable: no node leads the system partition.
            PartitionReadOnly: the disk refuses; this node drops it later.
        """
        name, generation = split_key(dataset)
        dropped = await self.stored_schema(dataset)
        self._check_unused(dropped)
        await self.system.change(DropDataset(dataset))
        removed = {self.name: await self.drop(name, generation + 1)}
        others = await asyncio.gather(
            *(self._peers.drop_generations(node, name, generation + 1) for node in self._others),
            return_exceptions=True,
        )
        if isinstance(dropped, Channel):
            for table in dropped.tables:
                if (key := self.catalog.key_of(table.name)) is not None:
                    await self.drop_dataset(key)
        return removed | dict(zip(self._others, map(_outcome, others), strict=True))

    def _check_unused(self, schema: StoredSchema) -> None:
        """Raises InputError if Galileo or a channel needs what is to be dropped."""
        if schema.key in SYSTEM_TABLES:
            raise InputError(
                f"expected a dataset or table of yours, got {schema.name!r}, which Galileo needs "
                "in every cluster; drop another one",
                dataset=schema.name,
            )
        for channel in self.catalog.channels.values():
            is_dataset = channel.schema is not None and channel.schema.key == schema.key
            is_reference = schema.key in (table.key for table in channel.references)
            is_part = schema.name in (table.name for table in channel.tables)
            if is_dataset or is_reference or is_part:
                raise InputError(
                    f"expected a dataset or table without channels, got {schema.name!r}, which the "
                    f"channel {channel.name!r} reads; drop the channel first",
                    channel=channel.name,
                )

    def add_system_table(self, table: SystemTable[Any]) -> None:
        """Has other nodes find a table of the system partition here."""
        self.system_tables[table.key] = table

    async def drop(self, name: str, generations: int) -> Removed:
        """Drops the first generations of a name at this node alone; see `Catalog.drop`."""
        return await self.catalog.drop(name, generations)

    def _forget(self, name: str, generations: int, keys: Sequence[str]) -> None:
        """Removes all other state of datasets that were dropped."""
        self.replicas.forget(keys)
        for dataset in keys:
            self.view.forget(dataset)
            self.matching.forget(dataset)
        self._callbacks.on_dropped(name, generations, keys)

    async def schema(self, dataset: str, *, added: int = 0) -> Schema:
        """The schema of the dataset with this key; errors as `stored_schema`.

        Raises:
            InputError: it is a table.
        """
        await self.stored_schema(dataset, added=added)
        return self.catalog.schema(dataset)

    async def stored_schema(self, dataset: str, *, added: int = 0) -> StoredSchema:
        """The schema of the dataset or table with this key; fetched if it is unknown here.

        Args:
            dataset: its key.
            added: the number of added features that it has at least, as the caller knows.

        Raises:
            UnknownDataset: there is none, or it was dropped.
            Unavailable: this node cannot learn of some of these features yet.
        """
        if self.catalog.lacks(dataset, added):
            await self._look_up(split_key(dataset)[0])
        schema = self.catalog.stored_schema(dataset)
        if schema.added < added:
            raise Unavailable(
                f"node {self.name!r} does not know all features of dataset {schema.name!r} yet; "
                "try again",
                node=self.name,
                after_s=UNKNOWN_FEATURES_AFTER_S,
            )
        return schema

    async def narrowed(self, dataset: str, added: int) -> Schema:
        """The schema of the dataset with this key when it had so many added features.

        Errors as `schema`.
        """
        return (await self.schema(dataset, added=added)).narrowed(added)

    async def schema_with(self, schema: Schema, names: Iterable[str]) -> Schema:
        """The schema, or that of the dataset by now, if it lacks a feature of these names."""
        if has_columns(schema, names):
            return schema
        await self._look_up(schema.name)
        return self.catalog.schema(schema.key)

    async def bind(self, text: str, schema: Schema, *, asked_once: bool = True) -> Query:
        """A query of a dataset; its schema is looked up again if it lacks a feature.

        Args:
            text: CQL2.
            schema: of the dataset.
            asked_once: whether now() is the time of this call; else it is refused.

        Raises:
            InputError: as `galileo.query.parse`.
        """
        now_us = round(1e6 * self._wall()) if asked_once else None
        try:
            return await parse_async(text, schema, now_us=now_us)
        except UnknownProperty:
            await self._look_up(schema.name)
            return await parse_async(text, self.catalog.schema(schema.key), now_us=now_us)

    async def named(self, name: str) -> Schema:
        """The schema of the dataset that has this name now, for who knows nothing but the name.

        A key is taken, too, and means the dataset with this key.

        Raises:
            UnknownDataset: there is none of that name.
            InputError: it is a table.
        """
        return self.catalog.schema((await self.stored_named(name)).key)

    async def stored_named(self, name: str) -> StoredSchema:
        """The schema of the dataset or table that has this name now; see `named`."""
        if split_key(name)[1]:
            return await self.stored_schema(name)
        if self.catalog.key_of(name) is None:
            await self._look_up(name)
        return self.catalog.stored_schema(self.catalog.key_of(name) or name)

    async def _look_up(self, name: str) -> None:
        """Learns of a dataset from the leader of the system partition.

        Raises:
            Unavailable: there is none.
        """
        await self.learn_definitions({name: await self.system.look_up(name)})

    async def learn_definitions(self, learned: Mapping[str, Definition]) -> None:
        """Keeps what was agreed on about datasets, as far as it is newer.

        Raises:
            PartitionReadOnly: the disk refuses some of it.
            Unavailable: this node does not know the topology of the cluster yet.
        """
        await self._await_topology()
        for name, one in learned.items():
            if one.generations > self.catalog.generations.get(name, 0):
                await self.drop(name, one.generations)
            self.conflicts.pop(name, None)
            if one.schema is None:
                continue
            try:
                await self.adopt(one.schema)
            except DatasetExists as error:
                self.conflicts[name] = (
                    f"this directory has another dataset {name!r} than the cluster, which was "
                    "created while the node was away; its rows can be read from a copy of the "
                    "directory that a cluster of its own serves"
                )
                log.error("%s: %s", self.conflicts[name], error)
                continue
            self.catalog.adopt_retention(one.schema.key, one.retention)

    async def _learn_from(self, node: str, dataset: str, added: int) -> None:
        """Learns a dataset, or some of its features, from another node that has rows of it."""
        name = split_key(dataset)[0]
        if self.catalog.lacks(dataset, added):
            row = await self._peers.known_row(node, self.system.key, name)
            await self.learn_definitions(DEFINITION_ROWS.values([row]))

    @property
    def _knows_topology(self) -> bool:
        """Whether this node knows a topology of the register.

        A node may begin on an empty directory. The topology of its file may lack ranges by which
        rows were stored, so it learns no dataset before the present one.
        """
        return self.topology.founding is not None

    async def _await_topology(self) -> None:
        """Waits for the topology of the register, if this node lacks it.

        Raises:
            Unavailable: it does not come.
        """
        for _ in range(TOPOLOGY_LOOKS_MAX):
            if self._knows_topology:
                return
            await asyncio.sleep(TOPOLOGY_PAUSE_S)
        raise Unavailable(
            f"node {self.name!r} does not know the topology of the cluster yet; try again",
            after_s=TOPOLOGY_PAUSE_S,
            node=self.name,
        )

    async def set_retention(self, dataset: str, retention: Retention | None) -> VersionedRetention:
        """Changes the policy of a dataset at every node; one that is away learns of it later.

        Returns:
            The policy with its version; a later one if another call has changed it at once.

        Raises:
            UnknownDataset: there is none of that name.
            Unavailable: no node leads the system partition.
        """
        schema = await self.named(dataset)
        change = SetRetention(schema.key, retention.to_json() if retention else "")
        definition = await self.system.change(change)
        await self.system.announce(schema.name, definition)
        return definition.retention

    async def retention(self, dataset: str) -> VersionedRetention:
        """The policy of a dataset, as far as this node knows.

        Raises:
            UnknownDataset: there is none of that name.
        """
        return self.catalog.retention((await self.named(dataset)).key)

    async def apply_retention(self, dataset: str) -> dict[str, RetentionOutcome]:
        """Does now, at every node, what the dataset's policy demands; by node.

        A node that cannot be reached or fails is in it, with that as its failure.

        Raises:
            UnknownDataset: there is none of that name.
        """
        dataset = (await self.named(dataset)).key
        names = [node.name for node in self.topology.nodes]
        reports = await asyncio.gather(*(self._apply_at(name, dataset) for name in names))
        return dict(zip(names, reports, strict=True))

    async def _apply_at(self, node: str, dataset: str) -> RetentionOutcome:
        numbered = self.catalog.retention(dataset)
        try:
            if node != self.name:
                return await self._peers.apply_retention(node, dataset, numbered)
            return await self.apply_own_retention(dataset, numbered)
        except GalileoError as error:
            return RetentionOutcome(failures=(error.message,))

    async def apply_own_retention(
        self, dataset: str, numbered: VersionedRetention
    ) -> RetentionOutcome:
        """The same at this node alone, with a policy that may be newer than the one known here.

        Raises:
            UnknownDataset: there is none of that name.
            Unavailable: this node is starting.
        """
        await self.schema(dataset)
        self.catalog.adopt_retention(dataset, numbered)
        if self._retaining is None:
            raise Unavailable("this node is starting; try again", after_s=1.0)
        return await asyncio.to_thread(self._retaining.apply, dataset)

    async def clean(self, dataset: str) -> AsyncGenerator[CleaningProgress, None]:
        """Erases now what was deleted or replaced in the copies of this node; see `cleaning`.

        Closing it ends the work; what was erased before stays so.

        Raises:
            UnknownDataset: there is none of that name.
            InputError: it is a channel.
        """
        shard = self.catalog.stored_shard((await self.stored_named(dataset)).key)
        stopping, last = threading.Event(), CleaningProgress()
        steps = cleaning.clean(shard, stopping)
        try:
            while True:
                step = asyncio.ensure_future(asyncio.to_thread(next, steps, None))
                while not (await asyncio.wait([step], timeout=CLEANING_SAYS_S))[0]:
                    yield last
                if (following := await step) is None:
                    return
                yield (last := following)
        finally:
            stopping.set()

    def facts(self) -> list[DatasetFacts]:
        return [
            DatasetFacts(
                dataset=dataset,
                rows=sum(journal.rows_total for journal in shard.own.values()),
                paths=sum(journal.paths_total for journal in shard.own.values()),
                bytes_on_disk=sum(j.bytes_on_disk for j in shard.journals.values()),
                graph_bytes=shard.index.memory_bytes(),
                sequences=shard.own_published().sequences,
                retention=self.catalog.retention(dataset).retention,
                dropped=shard.dropped(),
                held=self.held(dataset),
            )
            for dataset, shard in sorted(self.catalog.shards.items())
            if dataset not in SYSTEM_TABLES
        ]

    def held(self, dataset: str) -> tuple[HeldBack, ...]:
        """What retention would drop of a dataset or channel, did not readers hold it back."""
        return () if self._retaining is None else self._retaining.held(dataset)

    def stopped(self) -> list[str]:
        """The partitions that refuse writes, each with its reason."""
        return [
            f"{dataset}/p{partition}: {journal.stopped}"
            for dataset, shard in sorted(self.catalog.shards.items())
            for partition, journal in sorted(shard.own.items())
            if journal.stopped
        ]

    def damaged(self) -> list[str]:
        """The damaged files that are known, each with its place and reason."""
        waiting = [str(error) for error in list(self.store.damaged.values())]
        return waiting if self.scrub is None else [*self.scrub.damages(), *waiting]

    def diverged(self) -> list[str]:
        """The copies that differ from those of this node, which leads them, without damage."""
        return list(self.replicas.comparison.diverged.values())

    async def close(self) -> None:
        if self.scrub is not None:
            await asyncio.to_thread(self.scrub.stop)
        if self._merging is not None:
            await asyncio.to_thread(self._merging.stop)
        if self._retaining is not None:
            await asyncio.to_thread(self._retaining.stop)
        await asyncio.to_thread(self._exploring.shutdown, cancel_futures=True)
        await self.catalog.close()
        self._scanning.shutdown(wait=True)
        self._executor.shutdown(wait=True)
        self._syncing.shutdown(wait=True)
        await asyncio.to_thread(self.samplers.close)
        self.store.close()
