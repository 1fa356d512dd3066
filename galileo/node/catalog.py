"""The datasets that a node knows, each with its shard.

A dataset is created at its *home*, the first node of its name's rendezvous order, which is
what makes two creations of one name conflict; the home then hands it to every node, and
heartbeats bring it to those that were away.
"""

from __future__ import annotations

import threading
from concurrent.futures import Executor

from galileo.dht.topology import Topology
from galileo.errors import DatasetExists, InputError
from galileo.hashing import text64
from galileo.model.retention import UNLIMITED, NumberedRetention, Retention
from galileo.model.schema import Schema, unknown_dataset
from galileo.node.group_commit import GroupCommit
from galileo.node.shard import Shard
from galileo.storage.records import record_name
from galileo.storage.recovery import Replayed
from galileo.storage.store import Store

DATASETS_MAX = 10_000
RETENTION_KIND = "retention"


class Catalog:
    """Every dataset's schema and shard; opens the journals that the store already has."""

    def __init__(self, store: Store, *, executor: Executor, commits_waiting_max: int) -> None:
        self._store = store
        self._executor = executor
        self._waiting_max = commits_waiting_max
        self._shards: dict[str, Shard] = {}
        self._writers: dict[tuple[str, int], GroupCommit] = {}
        self._opening = threading.Lock()
        self._retentions = {
            dataset: NumberedRetention.from_json(data.decode())
            for dataset, data in store.load_records(RETENTION_KIND).items()
        }
        for schema in store.schemas().values():
            self._shards[schema.name] = Shard(schema, epoch=store.epoch)
        store.recover(self._replay)
        for (dataset, partition), journal in store.journals().items():
            self._shards[dataset].attach(partition, journal)

    def _replay(self, dataset: str, partition: int, replayed: Replayed) -> None:
        self._shards[dataset].replay(partition, replayed)

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

    def retention(self, dataset: str) -> NumberedRetention:
        """The retention policy of a dataset, as far as this node has heard.

        Raises:
            UnknownDataset: there is none of that name.
        """
        return self._retentions.get(self.shard(dataset).schema.name, UNLIMITED)

    @property
    def retentions(self) -> dict[str, NumberedRetention]:
        """The policies that were ever set, by dataset."""
        return dict(self._retentions)

    def set_retention(self, dataset: str, retention: Retention | None) -> NumberedRetention:
        """Changes the policy of a dataset, durably; for its home, which numbers the changes.

        Raises:
            UnknownDataset: there is none of that name.
        """
        numbered = NumberedRetention(self.retention(dataset).version + 1, retention)
        self.adopt_retention(dataset, numbered)
        return numbered

    def adopt_retention(self, dataset: str, numbered: NumberedRetention) -> None:
        """Keeps a policy that the dataset's home has set, if it is newer than the one known."""
        if numbered.version > self._retentions.get(dataset, UNLIMITED).version:
            data = numbered.to_json().encode()
            self._store.save_record(RETENTION_KIND, record_name(dataset), data)
            self._retentions = {**self._retentions, dataset: numbered}

    def writer(self, dataset: str, partition: int) -> GroupCommit:
        """The group commit of one of this node's partitions; made on first use, in any thread."""
        key = (dataset, partition)
        with self._opening:
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
