"""A storage node: its catalog, and every call that it answers about stored data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from galileo.cursor import Cursor
from galileo.dht.topology import Topology
from galileo.dht.topology_state import TopologyState
from galileo.errors import GalileoError, Unavailable
from galileo.model.retention import (
    HeldBack,
    Removed,
    Retention,
    RetentionReport,
    VersionedRetention,
)
from galileo.model.schema import Schema, split_key
from galileo.node.catalog import Catalog, CatalogOptions, OnDropped, dataset_home
from galileo.node.cluster_scan import ClusterScans
from galileo.node.cluster_view import ClusterView
from galileo.node.compaction_runner import CompactionRunner, CompactionRunnerOptions
from galileo.node.ingest import Ingest
from galileo.node.local_scan import LocalScans
from galileo.node.migration.moves import Moves, stored_moves
from galileo.node.migration.protocol import MigrationOptions, MigrationPeer
from galileo.node.migration.source import PartitionSource
from galileo.node.migration.target import PartitionTarget
from galileo.node.peers import Peers
from galileo.node.query_options import QueryOptions
from galileo.node.replication.protocol import ReplicaLink
from galileo.node.replication.replicas import Replicas, ReplicasOptions
from galileo.node.retention_plan import Readers
from galileo.node.retention_runner import RetentionRunner, RetentionRunnerOptions
from galileo.node.row_reader import RowReader
from galileo.node.sampler_store import SamplerStore, UploadOptions
from galileo.node.scrub_runner import ScrubOptions, ScrubRunner
from galileo.node.select import Selection
from galileo.node.standing_queries import Matching
from galileo.storage.store import Store

THREADS = 4
SYNC_THREADS = 8
SCAN_THREADS = 4
"""Scans have threads of their own, so that no query waits behind the disk."""

TOPOLOGY_PAUSE_S, TOPOLOGY_LOOKS_MAX = 0.05, 100
"""A node that does not know the topology of the cluster yet looks so often for it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Limits of one node; see `config.LimitsSection`. `merging`: None for none."""

    batch_rows_max: int = 1_000_000
    catalog: CatalogOptions = field(default_factory=CatalogOptions)
    merging: CompactionRunnerOptions | None = None
    sending: UploadOptions = field(default_factory=UploadOptions)
    queries: QueryOptions = field(default_factory=QueryOptions)
    migration: MigrationOptions = field(default_factory=MigrationOptions)
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


def _outcome(answer: Removed | BaseException) -> Removed | GalileoError:
    if isinstance(answer, Removed | GalileoError):
        return answer
    raise answer


class StorageNode:
    """Everything of a node but its network and its continuous queries.

    Attributes:
        on_dropped: called when datasets have just been dropped here.
        scrub: reads stored commits again in the background, once it has begun.
        replicas: the machines of its replicated partitions; None if there is one copy.
        is_home: whether this node creates and drops datasets; not any more if it is being removed.
    """

    def __init__(
        self,
        name: str,
        topology: Topology | TopologyState,
        *,
        store: Store,
        peers: Peers,
        options: NodeOptions,
    ) -> None:
        self.name = name
        self.options = options
        self.is_home = True
        self.live = topology = TopologyState.of(topology)
        is_replicated = topology.current.is_replicated
        if not is_replicated:
            topology.restore(stored_moves(store))
        self.store = store
        self._peers = peers
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="storage")
        self._syncing = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="sync")
        self.view = ClusterView()
        self.replicas = (
            Replicas(name, topology, store=store, options=options.replication)
            if is_replicated
            else None
        )
        self.catalog = Catalog(
            store,
            executor=self._executor,
            syncing=self._syncing,
            options=options.catalog,
            moves_of=self._moves_of,
            owned=partial(topology.partitions, name) if self.replicas is None else self._led,
            machines=self.replicas,
        )
        self.moves = Moves(
            name, topology, store=store, catalog=self.catalog, options=options.migration
        )
        self.giving = PartitionSource(
            name,
            topology,
            moves=self.moves,
            catalog=self.catalog,
            store=store,
            options=options.migration,
        )
        self.ingest = Ingest(
            name, topology, catalog=self.catalog, peers=peers, rows_max=options.batch_rows_max
        )
        self._scanning = ThreadPoolExecutor(SCAN_THREADS, thread_name_prefix="scan")
        self.samplers = SamplerStore(
            name, topology, store=store, peers=peers, options=options.sending
        )
        queries = options.queries
        self.local_scans = LocalScans(
            self.catalog, executor=self._scanning, samplers=self.samplers, options=queries
        )
        self.matching = Matching(self.catalog, executor=self._scanning)
        self.on_dropped: OnDropped = self.catalog.on_dropped
        self.catalog.on_dropped = self._forget
        self.scans = ClusterScans(
            name,
            topology,
            local=self.local_scans,
            peers=peers,
            view=self.view,
            samplers=self.samplers,
            options=queries,
        )
        self.reading = RowReader(
            name,
            topology,
            catalog=self.catalog,
            peers=peers,
            executor=self._executor,
            options=queries,
        )
        self.selection = Selection(
            name,
            topology,
            catalog=self.catalog,
            scans=self.scans,
            reading=self.reading,
            executor=self._scanning,
            options=queries,
        )
        self._merging = (
            None if options.merging is None else CompactionRunner(self.catalog, options.merging)
        )
        self._retaining: RetentionRunner | None = None
        self.scrub: ScrubRunner | None = None

    @property
    def topology(self) -> Topology:
        """The topology as it is known by now."""
        return self.live.current

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that this node has, or leads for sure if they are replicated."""
        if self.replicas is not None:
            return frozenset(filter(self.replicas.holds_lease, self.replicas.led))
        return self.live.partitions(self.name)

    def _moves_of(self, partition: int) -> int:
        last = self.live.move_of(partition)
        return 0 if last is None else last.number

    def _led(self) -> frozenset[int]:
        return frozenset() if self.replicas is None else self.replicas.led

    def connect_replicas(
        self,
        link: ReplicaLink,
        *,
        identity_of: Callable[[str], str],
        is_alive: Callable[[str], bool],
    ) -> Replicas | None:
        """Starts the replicas of a cluster with more than one; see `Replicas.connect`."""
        if self.replicas is not None:
            self.replicas.connect(
                self.catalog,
                link,
                identity_of=identity_of,
                is_alive=is_alive,
                lead=self.moves.lead,
                learn=lambda node, dataset: self.sync_datasets(node, [dataset]),
            )
        return self.replicas

    def taking(self, movers: MigrationPeer) -> PartitionTarget:
        """What takes partitions over from other nodes."""
        return PartitionTarget(
            self.name,
            self.live,
            moves=self.moves,
            catalog=self.catalog,
            store=self.store,
            movers=movers,
            learn=self.sync_datasets,
            options=self.options.migration,
        )

    def retain(self, readers: Readers, options: RetentionRunnerOptions | None = None) -> None:
        """Begins to apply the retention policies of the datasets; nothing is dropped before.

        Args:
            readers: lists the readers that a policy may not pass; called in a thread.
            options: when.
        """
        self._retaining = RetentionRunner(
            self.catalog, options or RetentionRunnerOptions(), readers=readers
        )

    def begin_scrub(self, options: ScrubOptions) -> None:
        """Begins to read stored commits again; when the replicas are connected, if there are."""
        self.scrub = ScrubRunner(self.catalog, self.store, options)

    # --- datasets ------------------------------------------------------------------------------

    async def create_dataset(self, schema: Schema) -> Schema:
        """Creates a dataset at its home, which hands it to every other node.

        Returns:
            Its schema with the generation that the home gave it.

        Raises:
            DatasetExists: the name is taken.
            Unavailable: the home cannot be reached.
        """
        home = dataset_home(self.topology, schema.name)
        if home != self.name:
            created = await self._peers.create_dataset(home, schema, replicate=False)
            await self.adopt(created)
            return created
        self._check_home()
        created = self.catalog.create(schema)
        await asyncio.gather(*(self._hand_over(node, created) for node in self._others))
        return created

    def _check_home(self) -> None:
        if not self.is_home:
            raise Unavailable(
                f"node {self.name!r} is being removed and hands its duties over; try again",
                node=self.name,
                after_s=1.0,
            )

    @property
    def _others(self) -> list[str]:
        return [node.name for node in self.topology.nodes if node.name != self.name]

    async def adopt(self, schema: Schema) -> None:
        """Keeps a dataset that its home has accepted, and drops those of its name before it."""
        if self.catalog.outdated(schema):
            await self.drop(schema.name, schema.generation)
        self.catalog.adopt(schema)

    async def drop_dataset(self, dataset: str) -> dict[str, Removed | GalileoError]:
        """Drops the dataset with this key at its home, which has every other node drop it.

        A node that cannot be reached now drops it after a later heartbeat.

        Returns:
            What each node removed, or why it has not yet.

        Raises:
            UnknownDataset: there is none with this key, or it was dropped before.
            Unavailable: the home cannot be reached; nothing was dropped.
            PartitionReadOnly: the home's disk refuses; nothing was dropped.
        """
        home = dataset_home(self.topology, dataset)
        if home != self.name:
            return await self._peers.drop_dataset(home, dataset)
        self._check_home()
        self.catalog.shard(dataset)
        name, generation = split_key(dataset)
        removed = {self.name: await self.drop(name, generation + 1)}
        others = await asyncio.gather(
            *(self._peers.drop_generations(node, name, generation + 1) for node in self._others),
            return_exceptions=True,
        )
        return removed | dict(zip(self._others, map(_outcome, others), strict=True))

    async def drop(self, name: str, generations: int) -> Removed:
        """Drops the first generations of a name at this node alone; see `Catalog.drop`."""
        return await self.catalog.drop(name, generations)

    def _forget(self, name: str, generations: int, keys: Sequence[str]) -> None:
        """Removes all other state of datasets that were dropped."""
        if self.replicas is not None:
            self.replicas.forget(keys)
        for dataset in keys:
            self.view.forget(dataset)
            self.matching.forget(dataset)
        self.on_dropped(name, generations, keys)

    async def _hand_over(self, node: str, schema: Schema) -> None:
        try:
            await self._peers.create_dataset(node, schema, replicate=True)
        except GalileoError as error:
            log.warning("node %s will learn of dataset %s later: %s", node, schema.name, error)

    async def schema(self, dataset: str) -> Schema:
        """The schema of the dataset with this key; fetched from its home where it is unknown here.

        Raises:
            UnknownDataset: there is none, or it was dropped.
        """
        home = dataset_home(self.topology, dataset)
        if home != self.name and self._lacks(dataset):
            await self._await_topology()
            with contextlib.suppress(GalileoError):
                await self.sync_datasets(home, [dataset])
        return self.catalog.schema(dataset)

    async def named(self, name: str) -> Schema:
        """The schema of the dataset that has this name now, for who knows nothing but the name.

        A key is taken, too, and means the dataset with this key.

        Raises:
            UnknownDataset: there is none of that name.
        """
        if split_key(name)[1]:
            return await self.schema(name)
        home, key = dataset_home(self.topology, name), self.catalog.key_of(name)
        if key is None and home != self.name:
            await self._await_topology()
            with contextlib.suppress(GalileoError):
                await self._learn_all(home)
            key = self.catalog.key_of(name)
        return self.catalog.schema(key or name)

    def _lacks(self, dataset: str) -> bool:
        return not (self.catalog.knows(dataset) or self.catalog.is_dropped(dataset))

    async def sync_datasets(self, node: str, keys: Sequence[str]) -> None:
        """Fetches from `node` the datasets with these keys, where this one lacks some.

        Raises:
            Unavailable: this node does not know the topology of the cluster yet, or `node` does not
                answer.
        """
        if any(map(self._lacks, keys)):
            await self._learn_all(node)

    @property
    def _knows_topology(self) -> bool:
        """Whether this node knows a topology of the register, or needs none.

        With copies, a node may begin on an empty directory. The topology of its file may lack
        ranges by which rows were stored, so it learns no dataset before the present one.
        """
        topology = self.topology
        return not topology.is_replicated or topology.agreed_version > 0

    async def _await_topology(self) -> None:
        """Waits for the topology of the register, if this node lacks it."""
        for _ in range(TOPOLOGY_LOOKS_MAX):
            if self._knows_topology:
                return
            await asyncio.sleep(TOPOLOGY_PAUSE_S)

    async def _learn_all(self, node: str) -> None:
        if not self._knows_topology:
            raise Unavailable(
                f"node {self.name!r} does not know the topology of the cluster yet; try again",
                after_s=TOPOLOGY_PAUSE_S,
                node=self.name,
            )
        for schema in await self._peers.datasets(node):
            await self.adopt(schema)

    async def learn_generations(self, generations: Mapping[str, int]) -> None:
        """Drops the datasets that are dropped at another node.

        Raises:
            PartitionReadOnly: the disk refuses; of some of it nothing was dropped.
        """
        known = self.catalog.generations
        for name, dropped in generations.items():
            if dropped > known.get(name, 0):
                await self.drop(name, dropped)

    async def set_retention(self, dataset: str, retention: Retention | None) -> VersionedRetention:
        """Changes the policy of a dataset, at its home; heartbeats bring it to the other nodes.

        Raises:
            UnknownDataset: there is none of that name.
            Unavailable: the home cannot be reached.
        """
        dataset = (await self.named(dataset)).key
        home = dataset_home(self.topology, dataset)
        if home == self.name:
            self._check_home()
            return self.catalog.set_retention(dataset, retention)
        numbered = await self._peers.set_retention(home, dataset, retention)
        self.catalog.adopt_retention(dataset, numbered)
        return numbered

    async def retention(self, dataset: str) -> VersionedRetention:
        """The policy of a dataset, as far as this node knows.

        Raises:
            UnknownDataset: there is none of that name.
        """
        return self.catalog.retention((await self.named(dataset)).key)

    async def apply_retention(self, dataset: str) -> dict[str, RetentionReport]:
        """Does now, at every node, what the dataset's policy demands; by node.

        A node that cannot be reached or fails is in it, with that as its failure.

        Raises:
            UnknownDataset: there is none of that name.
        """
        dataset = (await self.named(dataset)).key
        names = [node.name for node in self.topology.nodes]
        reports = await asyncio.gather(*(self._apply_at(name, dataset) for name in names))
        return dict(zip(names, reports, strict=True))

    async def _apply_at(self, node: str, dataset: str) -> RetentionReport:
        numbered = self.catalog.retention(dataset)
        try:
            if node != self.name:
                return await self._peers.apply_retention(node, dataset, numbered)
            return await self.apply_own_retention(dataset, numbered)
        except GalileoError as error:
            return RetentionReport(failures=(error.message,))

    async def apply_own_retention(
        self, dataset: str, numbered: VersionedRetention
    ) -> RetentionReport:
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

    def facts(self) -> list[DatasetFacts]:
        return [
            DatasetFacts(
                dataset=dataset,
                rows=sum(journal.rows_total for journal in shard.own.values()),
                paths=sum(journal.paths_total for journal in shard.own.values()),
                bytes_on_disk=sum(j.bytes_on_disk for j in shard.maintained.values()),
                graph_bytes=shard.graph.memory_bytes(),
                sequences=shard.own_published().sequences,
                retention=self.catalog.retention(dataset).retention,
                dropped=shard.dropped(),
                held=() if self._retaining is None else self._retaining.held(dataset),
            )
            for dataset, shard in sorted(self.catalog.shards.items())
        ]

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
        return [] if self.replicas is None else list(self.replicas.comparison.diverged.values())

    async def close(self) -> None:
        if self.scrub is not None:
            await asyncio.to_thread(self.scrub.stop)
        if self._merging is not None:
            await asyncio.to_thread(self._merging.stop)
        if self._retaining is not None:
            await asyncio.to_thread(self._retaining.stop)
        self.giving.close()
        await self.moves.close()
        await self.catalog.close()
        self._scanning.shutdown(wait=True)
        self._executor.shutdown(wait=True)
        self._syncing.shutdown(wait=True)
        await asyncio.to_thread(self.samplers.close)
        self.store.close()
