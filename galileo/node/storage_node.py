"""A storage node: its catalog, and every call that it answers about stored data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from galileo.cursor import Cursor
from galileo.dht.topology import Topology
from galileo.errors import GalileoError
from galileo.model.schema import Schema
from galileo.node.catalog import Catalog, home_of
from galileo.node.ingest import Ingest
from galileo.node.merging import Merging, MergingOptions
from galileo.node.peers import Peers
from galileo.node.reading import Reading
from galileo.node.scans import ClusterScans, LocalScans
from galileo.node.view import ClusterView
from galileo.storage.store import Store

THREADS = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Limits of one node; see `config.LimitsSection`. `merging`: None for none."""

    batch_rows_max: int = 1_000_000
    commits_waiting_max: int = 1_024
    merging: MergingOptions | None = None


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What status tells of one dataset on one node; sizes in bytes."""

    dataset: str
    rows: int
    paths: int
    bytes_on_disk: int
    graph_bytes: int
    sequences: Cursor


class StorageNode:
    """Everything of a node but its network and its continuous queries."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        *,
        store: Store,
        peers: Peers,
        options: NodeOptions,
    ) -> None:
        self.name = name
        self.topology = topology
        self.store = store
        self._peers = peers
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="storage")
        self.view = ClusterView()
        self.catalog = Catalog(
            store, executor=self._executor, commits_waiting_max=options.commits_waiting_max
        )
        self.ingest = Ingest(
            name, topology, catalog=self.catalog, peers=peers, rows_max=options.batch_rows_max
        )
        self.local_scans = LocalScans(self.catalog, executor=self._executor)
        self.scans = ClusterScans(
            name, topology, local=self.local_scans, peers=peers, view=self.view
        )
        self.reading = Reading(
            name, topology, catalog=self.catalog, peers=peers, executor=self._executor
        )
        self._merging = None if options.merging is None else Merging(self.catalog, options.merging)

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

    def facts(self) -> list[DatasetFacts]:
        return [
            DatasetFacts(
                dataset=dataset,
                rows=sum(journal.rows_total for journal in shard.journals.values()),
                paths=sum(journal.paths_total for journal in shard.journals.values()),
                bytes_on_disk=sum(j.bytes_on_disk for j in shard.journals.values()),
                graph_bytes=shard.graph.memory_bytes(),
                sequences=shard.published(),
            )
            for dataset, shard in sorted(self.catalog.shards.items())
        ]

    def stopped(self) -> list[str]:
        """The partitions that refuse writes, each with its reason."""
        return [
            f"{dataset}/p{partition}: {journal.stopped}"
            for dataset, shard in sorted(self.catalog.shards.items())
            for partition, journal in sorted(shard.journals.items())
            if journal.stopped
        ]

    async def close(self) -> None:
        if self._merging is not None:
            await asyncio.to_thread(self._merging.stop)
        await self.catalog.close()
        self._executor.shutdown(wait=True)
        self.store.close()
