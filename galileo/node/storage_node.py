"""A storage node: its catalog, and every call that it answers about stored data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from galileo.cursor import Cursor
from galileo.dht.live import LiveTopology
from galileo.dht.topology import Topology
from galileo.errors import GalileoError, Unavailable
from galileo.model.retention import NumberedRetention, Retention
from galileo.model.schema import Schema
from galileo.node.catalog import Catalog, home_of
from galileo.node.giving import Giving
from galileo.node.ingest import Ingest
from galileo.node.matching import Matching
from galileo.node.merging import Merging, MergingOptions
from galileo.node.movers import Movers
from galileo.node.moves import Moves, stored_moves
from galileo.node.peers import HeldBack, Peers, RetentionReport
from galileo.node.reading import Reading
from galileo.node.retaining import Retaining, RetainingOptions
from galileo.node.retention import Readers
from galileo.node.scans import ClusterScans, LocalScans
from galileo.node.selection import Selection
from galileo.node.sent_samplers import SendingOptions, SentSamplers
from galileo.node.taking import Taking
from galileo.node.view import ClusterView
from galileo.storage.store import Store

THREADS = 4
SCAN_THREADS = 4
"""Scans have threads of their own, so that no query waits behind the disk."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Limits of one node; see `config.LimitsSection`. `merging`: None for none."""

    batch_rows_max: int = 1_000_000
    commits_waiting_max: int = 1_024
    merging: MergingOptions | None = None
    sending: SendingOptions = field(default_factory=SendingOptions)


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What status tells of one dataset on one node; sizes in bytes.

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


class StorageNode:
    """Everything of a node but its network and its continuous queries."""

    def __init__(
        self,
        name: str,
        topology: Topology | LiveTopology,
        *,
        store: Store,
        peers: Peers,
        options: NodeOptions,
    ) -> None:
        self.name = name
        self.live = topology = LiveTopology.of(topology)
        topology.restore(stored_moves(store))
        self.store = store
        self._peers = peers
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="storage")
        self.view = ClusterView()
        self.catalog = Catalog(
            store,
            executor=self._executor,
            commits_waiting_max=options.commits_waiting_max,
            moves_of=self._moves_of,
            is_own=self._is_own,
        )
        self.moves = Moves(name, topology, store=store, catalog=self.catalog)
        self.giving = Giving(name, topology, moves=self.moves, catalog=self.catalog, store=store)
        self.ingest = Ingest(
            name, topology, catalog=self.catalog, peers=peers, rows_max=options.batch_rows_max
        )
        self._scanning = ThreadPoolExecutor(SCAN_THREADS, thread_name_prefix="scan")
        self.samplers = SentSamplers(
            name, topology.now, store=store, peers=peers, options=options.sending
        )
        self.local_scans = LocalScans(self.catalog, executor=self._scanning, samplers=self.samplers)
        self.matching = Matching(self.catalog, executor=self._scanning)
        self.scans = ClusterScans(
            name,
            topology,
            local=self.local_scans,
            peers=peers,
            view=self.view,
            samplers=self.samplers,
        )
        self.reading = Reading(
            name, topology, catalog=self.catalog, peers=peers, executor=self._executor
        )
        self.selection = Selection(
            name,
            topology,
            catalog=self.catalog,
            scans=self.scans,
            reading=self.reading,
            executor=self._scanning,
        )
        self._merging = None if options.merging is None else Merging(self.catalog, options.merging)
        self._retaining: Retaining | None = None

    @property
    def topology(self) -> Topology:
        """The topology as it is known by now."""
        return self.live.now

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that this node has."""
        return self.live.partitions(self.name)

    def _is_own(self, partition: int) -> bool:
        return partition in self.live.partitions(self.name)

    def _moves_of(self, partition: int) -> int:
        last = self.live.move_of(partition)
        return 0 if last is None else last.number

    def taking(self, movers: Movers) -> Taking:
        """What takes partitions over from other nodes."""
        return Taking(
            self.name,
            self.live,
            moves=self.moves,
            catalog=self.catalog,
            store=self.store,
            movers=movers,
            learn=self.learn_datasets,
        )

    def retain(self, readers: Readers, options: RetainingOptions | None = None) -> None:
        """Begins to apply the retention policies of the datasets; nothing is dropped before.

        Args:
            readers: tells whom a policy may not pass; called from a thread.
            options: when.
        """
        self._retaining = Retaining(self.catalog, options or RetainingOptions(), readers=readers)

    async def create_dataset(self, schema: Schema) -> None:
        """Creates a dataset at its home, which hands it to every other node.

        Raises:
            DatasetExists: the name is taken.
            Unavailable: the home cannot be reached.
        """
        home = home_of(self.topology, schema.name)
        if home != self.name:
            await self._peers.create_dataset(home, schema, replicate=False)
            self.catalog.adopt(schema)
            return
        self.catalog.create(schema)
        others = [node.name for node in self.topology.nodes if node.name != self.name]
        await asyncio.gather(*(self._hand_over(node, schema) for node in others))

    async def _hand_over(self, node: str, schema: Schema) -> None:
        try:
            await self._peers.create_dataset(node, schema, replicate=True)
        except GalileoError as error:
            log.warning("node %s will learn of dataset %s later: %s", node, schema.name, error)

    async def schema(self, dataset: str) -> Schema:
        """The schema of a dataset; its home is asked where this node does not know it yet.

        Raises:
            UnknownDataset: there is none of that name.
        """
        home = home_of(self.topology, dataset)
        if home != self.name and not self.catalog.knows(dataset):
            with contextlib.suppress(GalileoError):
                await self.learn_datasets(home, [dataset])
        return self.catalog.schema(dataset)

    async def learn_datasets(self, node: str, names: list[str]) -> None:
        """Fetches from `node` the datasets among `names` that this one lacks."""
        if set(names) <= set(self.catalog.names):
            return
        for schema in await self._peers.datasets(node):
            self.catalog.adopt(schema)

    async def set_retention(self, dataset: str, retention: Retention | None) -> NumberedRetention:
        """Changes the policy of a dataset, at its home; heartbeats bring it to the other nodes.

        Raises:
            UnknownDataset: there is none of that name.
            Unavailable: the home cannot be reached.
        """
        await self.schema(dataset)
        home = home_of(self.topology, dataset)
        if home == self.name:
            return self.catalog.set_retention(dataset, retention)
        numbered = await self._peers.set_retention(home, dataset, retention)
        self.catalog.adopt_retention(dataset, numbered)
        return numbered

    async def retention(self, dataset: str) -> NumberedRetention:
        """The policy of a dataset, as far as this node has heard.

        Raises:
            UnknownDataset: there is none of that name.
        """
        await self.schema(dataset)
        return self.catalog.retention(dataset)

    async def apply_retention(self, dataset: str) -> dict[str, RetentionReport]:
        """Does now, at every node, what the dataset's policy demands; by node.

        A node that cannot be reached or fails is in it, with that as its failure.

        Raises:
            UnknownDataset: there is none of that name.
        """
        await self.schema(dataset)
        names = [node.name for node in self.topology.nodes]
        reports = await asyncio.gather(*(self._applied(name, dataset) for name in names))
        return dict(zip(names, reports, strict=True))

    async def _applied(self, node: str, dataset: str) -> RetentionReport:
        numbered = self.catalog.retention(dataset)
        try:
            if node != self.name:
                return await self._peers.apply_retention(node, dataset, numbered)
            return await self.apply_own_retention(dataset, numbered)
        except GalileoError as error:
            return RetentionReport(failures=(error.message,))

    async def apply_own_retention(
        self, dataset: str, numbered: NumberedRetention
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
                bytes_on_disk=sum(j.bytes_on_disk for j in shard.own.values()),
                graph_bytes=shard.graph.memory_bytes(),
                sequences=shard.own_published(),
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

    async def close(self) -> None:
        if self._merging is not None:
            await asyncio.to_thread(self._merging.stop)
        if self._retaining is not None:
            await asyncio.to_thread(self._retaining.stop)
        self.giving.close()
        await self.moves.close()
        await self.catalog.close()
        self._scanning.shutdown(wait=True)
        self._executor.shutdown(wait=True)
        await asyncio.to_thread(self.samplers.close)
        self.store.close()
