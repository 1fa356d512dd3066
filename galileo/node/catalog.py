"""The datasets that a node knows, each with its shard.

A dataset is created at its *home*, the first node of its name's rendezvous order, which is
what makes two creations of one name conflict; the home then hands it to every node, and
heartbeats bring it to those that were away.
"""

from __future__ import annotations

from concurrent.futures import Executor

import pyarrow as pa

from galileo.dht.topology import Topology
from galileo.errors import DatasetExists, InputError
from galileo.hashing import text64
from galileo.model.schema import Schema, unknown_dataset
from galileo.node.shard import GroupCommit, Shard
from galileo.storage.store import Store

DATASETS_MAX = 10_000


class Catalog:
    """Every dataset's schema and shard; opens the journals that the store already has."""

    def __init__(self, store: Store, *, executor: Executor, commits_waiting_max: int) -> None:
        self._store = store
        self._executor = executor
        self._waiting_max = commits_waiting_max
        self._shards: dict[str, Shard] = {}
        self._writers: dict[tuple[str, int], GroupCommit] = {}
        for schema in store.schemas().values():
            self._shards[schema.name] = Shard(schema, epoch=store.epoch)
        store.recover(self._replay)
        for (dataset, partition), journal in store.journals().items():
            self._shards[dataset].attach(partition, journal)

    def _replay(self, dataset: str, partition: int, sequence: int, batch: pa.RecordBatch) -> None:
        self._shards[dataset].replay(partition, sequence, batch)

    @property
    def names(self) -> list[str]:
        return sorted(self._shards)

    @property
    def shards(self) -> dict[str, Shard]:
        return dict(self._shards)

    def knows(self, dataset: str) -> bool:
        return dataset in self._shards

    def schema(self, dataset: str) -> Schema:
        return self.shard(dataset).schema

    def shard(self, dataset: str) -> Shard:
        """The shard of a dataset.

        Raises:
            UnknownDataset: naming the nearest one.
        """
        shard = self._shards.get(dataset)
        if shard is None:
            raise unknown_dataset(dataset, self.names)
        return shard

    def create(self, schema: Schema) -> None:
        """Keeps a new dataset, durably.

        Raises:
            DatasetExists: the name is taken.
            InputError: there are too many.
        """
        if schema.name in self._shards:
            raise DatasetExists(
                f"dataset {schema.name!r} exists already"
                + (
                    " with the same schema; go on with it"
                    if self._shards[schema.name].schema == schema
                    else " with another schema; choose another name"
                ),
                same=self._shards[schema.name].schema == schema,
            )
        if len(self._shards) >= DATASETS_MAX:
            raise InputError(
                f"expected at most {DATASETS_MAX} datasets in a cluster, got another one; "
                "keep what belongs together in one dataset"
            )
        self.adopt(schema)

    def adopt(self, schema: Schema) -> None:
        """Keeps a dataset that its home has accepted; again is harmless."""
        self._store.create_dataset(schema)
        if schema.name not in self._shards:
            self._shards[schema.name] = Shard(schema, epoch=self._store.epoch)

    def writer(self, dataset: str, partition: int) -> GroupCommit:
        """The group commit of one of this node's partitions; made on first use."""
        key = (dataset, partition)
        if key not in self._writers:
            shard = self.shard(dataset)
            if partition not in shard.journals:
                shard.attach(partition, self._store.journal(dataset, partition))
            self._writers[key] = GroupCommit(
                shard, partition, executor=self._executor, waiting_max=self._waiting_max
            )
        return self._writers[key]

    async def close(self) -> None:
        """Waits for what is being written, then closes the journals."""
        for writer in self._writers.values():
            await writer.drained()
        for shard in self._shards.values():
            shard.close()


def home_of(topology: Topology, dataset: str) -> str:
    """The node where a dataset is created: the first of its rendezvous order."""
    return max(topology.by_name, key=lambda node: text64("dataset", dataset, node))
