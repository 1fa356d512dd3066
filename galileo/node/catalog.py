"""The datasets that a node knows, each with its shard.

A dataset is created at its *home*, the first node of its name's rendezvous order, which is
what makes two creations of one name conflict; the home then hands it to every node, and
heartbeats bring it to those that were away.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from galileo.dht.topology import Topology
from galileo.errors import DatasetExists, InputError, PartitionMoved
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
FENCED_S = 0.1
"""After which a commit for a partition that is being moved is to come again."""

NAMED_MAX = 8
"""Features of a dataset that an error lists."""


class Catalog:
    """Every dataset's schema and shard; opens the journals that the store already has."""

    def __init__(
        self,
        store: Store,
        *,
        executor: Executor,
        commits_waiting_max: int,
        moves_of: Callable[[int], int] = lambda _: 0,
        is_own: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._store = store
        self._moves_of = moves_of
        self._is_own = is_own
        self._fenced: set[int] = set()
        self._executor = executor
        self._waiting_max = commits_waiting_max
        self._shards: dict[str, Shard] = {}
        self._writers: dict[tuple[str, int], GroupCommit] = {}
        self._opening = threading.Lock()
        self._making = threading.Lock()
        self._coming_and_going = threading.Lock()
        self._retentions = {
            dataset: NumberedRetention.from_json(data.decode())
            for dataset, data in store.load_records(RETENTION_KIND).items()
        }
        for schema in store.schemas().values():
            self._shards[schema.name] = self._new_shard(schema)
        store.recover(self._replay, wanted=is_own)
        for (dataset, partition), journal in store.journals().items():
            self._shards[dataset].attach(partition, journal, moves=moves_of(partition))

    def _new_shard(self, schema: Schema) -> Shard:
        return Shard(schema, epoch=self._store.epoch, is_own=self._is_own)

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
            existing = self._shards[schema.name].schema
            raise _exists(existing, same=existing == schema)
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
            self._shards[schema.name] = self._new_shard(schema)

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
        """The group commit of one of this node's partitions; made on first use, in any thread.

        Where it is not `has_writer` it may wait for the disk.

        Raises:
            PartitionMoved: it takes no commits, since it is being moved or was.
        """
        key = (dataset, partition)
        if key not in self._writers:
            self._make_journal(dataset, partition)
        with self._opening:
            self._check_open(partition)
            if key not in self._writers:
                self._writers[key] = GroupCommit(
                    self.shard(dataset),
                    partition,
                    executor=self._executor,
                    waiting_max=self._waiting_max,
                )
            return self._writers[key]

    def has_writer(self, dataset: str, partition: int) -> bool:
        """Whether `writer` answers at once."""
        return (dataset, partition) in self._writers

    def _make_journal(self, dataset: str, partition: int) -> None:
        """Apart from `_opening`, which the event loop takes."""
        with self._making:
            with self._opening:
                self._check_open(partition)
            shard = self.shard(dataset)
            if partition not in shard.journals:
                journal = self._store.journal(dataset, partition)
                shard.attach(partition, journal, moves=self._moves_of(partition))

    def _made(self) -> None:
        """Returns when the journal that is just being made is there."""
        with self._making:
            pass

    def _check_open(self, partition: int) -> None:
        if partition in self._fenced:
            raise fenced(partition)

    # --- partitions that come and go ---------------------------------------------------------

    async def fence(self, partition: int) -> None:
        """Takes no more commits for a partition; returns when those under way are done.

        Its writers stay: a second one beside one that writes yet would publish out of order.
        """
        with self._opening:
            self._fenced.add(partition)
            writers = self._writers_of(partition)
            for writer in writers:
                writer.end()
        await asyncio.to_thread(self._made)
        for writer in writers:
            await writer.drained()

    def unfence(self, partition: int) -> None:
        """Takes commits for a partition again."""
        with self._opening:
            self._fenced.discard(partition)
            for writer in self._writers_of(partition):
                writer.resume()

    def is_fenced(self, partition: int) -> bool:
        """Whether it takes no commits, and none is under way."""
        with self._opening:
            writers = self._writers_of(partition)
            return partition in self._fenced and all(writer.is_over for writer in writers)

    def _writers_of(self, partition: int) -> list[GroupCommit]:
        return [writer for key, writer in self._writers.items() if key[1] == partition]

    def take_in(self, partition: int, datasets: Iterable[str], *, moves: int) -> None:
        """Opens what was copied here, in a thread; blocks until its graph is built.

        Raises:
            DataDamaged, PartitionStopped, ConfigError: as `PartitionJournal.open`; what has been
                opened of it stays open, and what was replayed of the rest is forgotten.
        """
        with self._coming_and_going:
            for dataset in sorted(datasets):
                shard = self.shard(dataset)
                if partition in shard.journals:
                    continue
                try:
                    journal = self._store.open_partition(dataset, partition, self._replay)
                except BaseException:  # or the next attempt would replay it a second time
                    shard.detach(partition)
                    raise
                shard.attach(partition, journal, moves=moves)

    def let_go(self, partition: int) -> None:
        """Forgets a partition that is not this node's, in a thread; its files stay.

        Where it is just being taken in, that comes to its end first: nobody can stop it.
        """
        with self._opening:
            self._writers = {key: one for key, one in self._writers.items() if key[1] != partition}
        with self._coming_and_going:
            for shard in self.shards.values():
                if partition in shard.journals or shard.published()[partition]:
                    shard.detach(partition)
            self._store.close_partition(partition)

    def waiting(self) -> dict[tuple[str, int], int]:
        """Commits that wait for the disk, by dataset and partition; only those written to."""
        return {key: writer.waiting for key, writer in self._writers.copy().items()}

    async def close(self) -> None:
        """Waits for what is being written, then closes the journals."""
        for writer in self._writers.values():
            await writer.drained()
        for shard in self._shards.values():
            shard.close()


def _exists(schema: Schema, *, same: bool) -> DatasetExists:
    names = [feature.name for feature in schema.features]
    more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
    features = f"{', '.join(names[:NAMED_MAX])}{more}"
    how = (
        "with the same schema; go on with it"
        if same
        else f"with another schema, of the features {features}; choose another name"
    )
    return DatasetExists(f"dataset {schema.name!r} exists already {how}", same=same)


def fenced(partition: int) -> PartitionMoved:
    """What a producer is told whose partition is being moved, or was."""
    return PartitionMoved(
        f"partition {partition} is being moved to another node, or was just now; send the same "
        "batch again",
        after_s=FENCED_S,
    )


def home_of(topology: Topology, dataset: str) -> str:
    """The node where a dataset is created: the first of its rendezvous order, for good."""
    names = [node.name for node in topology.founders]
    return max(names, key=lambda node: text64("dataset", dataset, node))
