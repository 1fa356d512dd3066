"""The datasets, tables and channels of a node, each with its shard; "datasets" in what follows.

The definitions of datasets are rows of a system table (`galileo.node.system_tables`). A node keeps
what it knows of them on its disk, so that it serves its partitions before it has heard another one:
the schemas, the retention policies, and how many datasets of each name were dropped (the
*generations* of the name), of which the highest number counts. A dataset of a lower generation is
never taken in again. Inside the cluster a dataset goes by its key (`StoredSchema.key`), so nothing
that is late can meet another one of the same name. Of two schemas of a dataset that with more
features counts.

The system tables have shards, too, of which clients do not find the hidden ones.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from galileo.errors import (
    CorruptData,
    GalileoError,
    PartitionReadOnly,
)
from galileo.model.channel import Channel
from galileo.model.retention import UNLIMITED, Removed, VersionedRetention
from galileo.model.schema import (
    Schema,
    StoredSchema,
    dropped_dataset,
    existing_dataset,
    name_of_key,
    other_kind,
    unknown_dataset,
)
from galileo.model.system import HIDDEN_TABLES, SYSTEM_TABLES
from galileo.model.table import Table
from galileo.node.channel_shard import ChannelShard
from galileo.node.dataset_shard import DatasetShard
from galileo.node.definitions import Definition
from galileo.node.keyed_shard import KeyedShard
from galileo.node.replication.log_writer import LogOwner, LogWriter
from galileo.node.shard import ALL_PARTITIONS, Results, Shard, partition_moved
from galileo.node.table_shard import TableShard
from galileo.storage.commits import Commit
from galileo.storage.journal import PartitionJournal
from galileo.storage.metadata_files import record_name
from galileo.storage.recovery import Replayed
from galileo.storage.store import Store

RETENTION_KIND = "retention"

AnyShard: TypeAlias = DatasetShard | TableShard | ChannelShard
S = TypeVar("S", DatasetShard, ChannelShard)
OnDropped: TypeAlias = Callable[[str, int, Sequence[str]], None]
"""Called with a name, its number of dropped generations, and the keys of the dropped datasets."""

log = logging.getLogger(__name__)


def _kind_of(shard: AnyShard) -> type[Shard]:
    return DatasetShard if isinstance(shard, DatasetShard) else type(shard)


def _ignore(name: str, generations: int, keys: Sequence[str]) -> None:
    """The default of `Catalog.on_dropped`: nothing else depends on the dataset."""


class Catalog:
    """Every dataset's schema and shard; opens the journals that the store already has.

    Args:
        commit_queue_max: commits that wait for the disk of one partition.
        on_dropped: called when datasets have just been dropped.
    """

    def __init__(
        self,
        store: Store,
        *,
        executor: Executor,
        syncing: Executor,
        machines: LogOwner,
        term_of: Callable[[int], int] = lambda _: 0,
        owned: Callable[[], Container[int]] = lambda: ALL_PARTITIONS,
        commit_queue_max: int = 1_024,
        on_dropped: OnDropped = _ignore,
    ) -> None:
        self._machines = machines
        self._store = store
        self._term_of = term_of
        self._owned = owned
        self._executor = executor
        self._syncing = syncing
        self._commit_queue_max = commit_queue_max
        self._shards: dict[str, AnyShard] = {}
        self._kinds: dict[type, Mapping[str, Any]] = {}
        self._keys: dict[str, str] = {}
        self._readers: list[set[str]] = []
        self._writers: dict[str, LogWriter] = {}
        self._drops: dict[str, tuple[int, asyncio.Task[Removed]]] = {}
        self._opening = threading.Lock()
        self._making = threading.Lock()
        self._changing_partitions = threading.Lock()
        self._retentions = {
            dataset: VersionedRetention.from_json(data.decode())
            for dataset, data in store.load_records(RETENTION_KIND).items()
        }
        self._on_dropped = on_dropped
        self._forget_retentions()
        for table in SYSTEM_TABLES.values():
            store.create_dataset(table)
        for schema in store.schemas().values():
            self._add(schema)
            if schema.key not in HIDDEN_TABLES:
                self._keys[schema.name] = schema.key
        store.recover(self._replay)
        for dataset, partition in store.damaged:
            self._shards[dataset].detach(partition)  # Some of its commits have been replayed.
        for (dataset, partition), journal in store.journals().items():
            self._attach(dataset, partition, journal)

    def _add(self, schema: StoredSchema) -> None:
        """Adds a shard to new mappings, since others may be going through the present ones."""
        shard = self._new_shard(schema)
        self._shards = {**self._shards, schema.key: shard}
        kind = _kind_of(shard)
        self._kinds[kind] = {**self._kinds.get(kind, {}), schema.key: shard}

    def _remove(self, keys: Iterable[str]) -> None:
        """Removes shards; the mappings of other kinds stay the same objects."""
        for shard in [self._shards[key] for key in keys if key in self._shards]:
            kind, key = _kind_of(shard), shard.schema.key
            self._shards = {k: one for k, one in self._shards.items() if k != key}
            self._kinds[kind] = {k: one for k, one in self._kinds[kind].items() if k != key}

    def _new_shard(self, schema: StoredSchema) -> AnyShard:
        options: dict[str, Any] = {
            "owned": self._owned,
            "log": self._store.log,
            "on_change": self._note_change,
            "may_serve": self._machines.holds_lease,
            "may_follow": self._machines.follows,
            "is_lost": self._machines.is_lost,
        }
        if isinstance(schema, Table):
            return TableShard(schema, **options)
        if isinstance(schema, Channel):
            return ChannelShard(schema, **options)
        assert isinstance(schema, Schema), "neither a dataset, a table nor a channel"
        if schema.is_keyed:
            return KeyedShard(schema, **options)
        return DatasetShard(schema, **options)

    def _replay(self, dataset: str, partition: int, replayed: Replayed) -> None:
        self._shards[dataset].replay(partition, replayed)

    @property
    def keys(self) -> list[str]:
        """The keys of all datasets, without system tables."""
        return sorted(self._shards.keys() - SYSTEM_TABLES.keys())

    @property
    def visible_keys(self) -> list[str]:
        """The keys of all datasets that clients find."""
        return sorted(self._shards.keys() - HIDDEN_TABLES.keys())

    @property
    def names(self) -> list[str]:
        """The names of all datasets, without system tables."""
        return sorted(self._keys.copy().keys() - SYSTEM_TABLES.keys())

    @property
    def shards(self) -> Mapping[str, AnyShard]:
        """All shards by key, with system tables; a change of the catalog makes another mapping."""
        return self._shards

    @property
    def dataset_shards(self) -> Mapping[str, DatasetShard]:
        """The shards of datasets alone."""
        return self._of_kind(DatasetShard)

    @property
    def channel_shards(self) -> Mapping[str, ChannelShard]:
        """The shards of channels alone."""
        return self._of_kind(ChannelShard)

    def _of_kind(self, kind: type[S]) -> Mapping[str, S]:
        return self._kinds.get(kind, {})

    @property
    def channels(self) -> dict[str, Channel]:
        """The channels by key."""
        return {key: shard.schema for key, shard in self.channel_shards.items()}

    def watch(self) -> Callable[[], list[tuple[str, AnyShard]]]:
        """What returns the shards whose own commits may have changed since its last call.

        The first call returns all.
        """
        changed: set[str] = set()
        owned_before: Container[int] | None = None
        self._readers.append(changed)

        def take() -> list[tuple[str, AnyShard]]:
            nonlocal owned_before
            owned = self._owned()
            if owned is not owned_before:
                owned_before = owned
                changed.update(self._shards)
            taken = sorted(changed.pop() for _ in range(len(changed)))
            shards = self._shards  # Read last: a shard may be new.
            return [(key, shards[key]) for key in taken if key in shards]

        return take

    def _note_change(self, dataset: str) -> None:
        for changed in self._readers:
            changed.add(dataset)

    def knows(self, dataset: str) -> bool:
        return dataset in self._shards

    @property
    def generations(self) -> Mapping[str, int]:
        """The number of dropped datasets by name; names without any are absent."""
        return self._store.generations

    def is_dropped(self, dataset: str) -> bool:
        """Whether the dataset with this key was dropped."""
        return self._store.is_dropped(dataset)

    def key_of(self, name: str) -> str | None:
        """The key of the dataset that has a name now; None where there is none here."""
        return self._keys.get(name)

    def stored_schema(self, dataset: str) -> StoredSchema:
        """The schema of a dataset, table or channel; errors as `stored_shard`."""
        return self.stored_shard(dataset).schema

    def schema(self, dataset: str) -> Schema:
        """The schema of a dataset; errors as `shard`."""
        return self.shard(dataset).schema

    def narrowed(self, dataset: str, added: int) -> Schema:
        """The schema of the dataset with this key when it had so many added features.

        Raises:
            UnknownDataset: it was dropped, or there is none.
            InvalidSchema: some of these features are unknown here.
        """
        return self.schema(dataset).narrowed(added)

    def shard(self, dataset: str) -> DatasetShard:
        """The shard of the dataset with this key.

        Raises:
            UnknownDataset: as of `stored_shard`.
            InputError: it is none.
        """
        shard = self.stored_shard(dataset)
        if not isinstance(shard, DatasetShard):
            raise other_kind(shard.schema, "dataset")
        return shard

    def table_shard(self, table: str) -> TableShard:
        """The shard of the table with this key.

        Raises:
            UnknownDataset: as of `stored_shard`.
            InputError: it is none.
        """
        shard = self.stored_shard(table)
        if not isinstance(shard, TableShard):
            raise other_kind(shard.schema, "table")
        return shard

    def versioned_shard(self, name: str) -> KeyedShard | TableShard:
        """The shard of the table or keyed dataset with this key.

        Raises:
            UnknownDataset: as of `stored_shard`.
            InputError: it is none.
        """
        shard = self.stored_shard(name)
        if not isinstance(shard, KeyedShard | TableShard):
            raise other_kind(shard.schema, "table")
        return shard

    def channel_shard(self, channel: str) -> ChannelShard:
        """The shard of the channel with this key.

        Raises:
            UnknownDataset: as of `stored_shard`.
            InputError: it is none.
        """
        shard = self.stored_shard(channel)
        if not isinstance(shard, ChannelShard):
            raise other_kind(shard.schema, "channel")
        return shard

    def stored_shard(self, dataset: str) -> AnyShard:
        """The shard of the dataset, table or channel with this key.

        Raises:
            UnknownDataset: it was dropped, or there is none; the error names the nearest one.
        """
        shard = self._shards.get(dataset)
        if shard is None or dataset in HIDDEN_TABLES:
            name = name_of_key(dataset)
            if self.is_dropped(dataset):
                raise dropped_dataset(name, is_again=self.key_of(name) is not None)
            raise unknown_dataset(name, sorted(map(name_of_key, self.dataset_shards)))
        return shard

    def _known_shard(self, dataset: str) -> AnyShard:
        """The shard of a dataset or of a system table; errors as `stored_shard`."""
        return self._shards.get(dataset) or self.stored_shard(dataset)

    def adopt(self, schema: StoredSchema) -> None:
        """Stores a dataset that was accepted, or its added features; idempotent.

        Ignores a dropped dataset. One of an earlier generation has to be dropped first. Added
        features may wait for the disk and for the graph: call it in a thread where there are some.

        Raises:
            DatasetExists: the dataset is here with a schema that this one does not extend, and that
                does not extend this one.
            PartitionReadOnly: the disk refuses; nothing was stored.
        """
        known = self._shards.get(schema.key)
        if known is not None and (more := _added_features(schema, known)):
            more.shard.prepare_features(more.schema)  # It may wait, and holds up no other dataset.
        with self._making:
            if self.is_dropped(schema.key):
                return
            shard = self._shards.get(schema.key)
            if shard is None:
                self._store.create_dataset(schema)
                self._add(schema)
                self._keys[schema.name] = schema.key
                self._note_change(schema.key)
            elif more := _added_features(schema, shard):
                more.shard.prepare_features(more.schema)
                self._store.add_features(more.schema)
                more.shard.add_features(more.schema)

    def lacks(self, dataset: str, added: int) -> bool:
        """Whether a dataset, or some of so many added features of it, is unknown here."""
        shard = self._shards.get(dataset)
        if shard is None:
            return not self.is_dropped(dataset)
        return shard.schema.added < added

    def definitions(self) -> dict[str, Definition]:
        """What this node knows of all datasets but the system tables, which never change."""
        names = self._keys.copy().keys() - SYSTEM_TABLES.keys() | self.generations.keys()
        return {name: self.definition(name) for name in names}

    def definition(self, name: str) -> Definition:
        """What this node knows of a name."""
        dropped, shard = self.generations.get(name, 0), self._shards.get(self._keys.get(name, ""))
        if shard is None:
            return Definition(dropped)
        retention = self._retentions.get(shard.schema.key, UNLIMITED)
        return Definition(dropped, shard.schema, retention=retention)

    def outdated(self, schema: StoredSchema) -> bool:
        """Whether the generation of a dataset implies drops that this node has not made yet."""
        return schema.generation > self.generations.get(schema.name, 0)

    async def drop(self, name: str, generations: int) -> Removed:
        """Drops the first generations of a name, durably; a repeated call returns the same result.

        One write drops the datasets; the next start deletes files that the disk does not delete
        now. Running commits are finished first.

        Raises:
            PartitionReadOnly: the disk refuses; nothing was dropped.
        """
        known = self._drops.get(name)
        if known is None or known[0] < generations:
            # A drop that has begun is completed, even if its caller is cancelled.
            dropping = asyncio.create_task(self._drop_and_delete(name, generations))
            known = self._drops[name] = generations, dropping
        try:
            return await asyncio.shield(known[1]) if known[0] == generations else Removed()
        except PartitionReadOnly:
            self._drops.pop(name, None)
            raise

    async def _drop_and_delete(self, name: str, generations: int) -> Removed:
        shards, writers = await asyncio.to_thread(self._drop, name, generations)
        self._on_dropped(name, generations, [shard.schema.key for shard in shards])
        for writer in writers:
            await writer.drained()
        return await asyncio.to_thread(self._delete, shards)

    def _drop(self, name: str, generations: int) -> tuple[Sequence[Shard], list[LogWriter]]:
        """Removes the datasets and their writers; from now on none gets a writer."""
        with self._making:
            dropped = self._store.drop_dataset(name, generations)
            with self._opening:
                writers = [self._writers.pop(key) for key in dropped if key in self._writers]
                shards = [self._shards[key] for key in dropped if key in self._shards]
                self._remove(dropped)
            if self._keys.get(name) in dropped:
                del self._keys[name]
            return shards, writers

    def _delete(self, shards: Iterable[Shard]) -> Removed:
        """Deletes the files of datasets; rows count at the owners of their partitions alone."""
        with self._changing_partitions:
            journals = [journal for shard in shards for journal in shard.journals.values()]
            rows = sum(own.rows_total for shard in shards for own in shard.own.values())
            removed = Removed(rows, sum(journal.bytes_on_disk for journal in journals))
            for journal in journals:
                journal.end()
            try:
                self._store.delete_dropped()
                self._forget_retentions()
            except (OSError, PartitionReadOnly) as error:
                log.error("dropped datasets cannot be deleted: %s; the next start does it", error)
            return removed

    def _forget_retentions(self) -> None:
        for dataset in [key for key in self._retentions if self.is_dropped(key)]:
            self._store.delete_record(RETENTION_KIND, dataset)
            self._retentions = {k: policy for k, policy in self._retentions.items() if k != dataset}

    def retention(self, dataset: str) -> VersionedRetention:
        """The retention policy of the dataset with a key, as far as this node knows."""
        return self._retentions.get(dataset, UNLIMITED)

    def adopt_retention(self, dataset: str, numbered: VersionedRetention) -> None:
        """Stores a policy that was set, if it is newer than the known one."""
        if self.is_dropped(dataset):
            return
        if numbered.version > self._retentions.get(dataset, UNLIMITED).version:
            data = numbered.to_json().encode()
            self._store.save_record(RETENTION_KIND, record_name(dataset), data)
            self._retentions = {**self._retentions, dataset: numbered}

    def commit(
        self,
        dataset: str,
        commits: Mapping[int, Commit],
        *,
        known: Results | None = None,
    ) -> Future[Results]:
        """Commits the parts of a batch to this node's own partitions; thread-safe.

        The first commit of a partition creates its journal, and waits for the disk.

        Args:
            dataset: its key.
            commits: the parts, by partition.
            known: the results of other parts.

        Returns:
            The results by partition, as of `LogWriter.submit`. Those of partitions that this node
            does not lead, and of journals that cannot be created, are errors.

        Raises:
            UnknownDataset: there is no such dataset.
        """
        refused: Results = dict(known or {})
        terms, shard = self._machines.terms, self._known_shard(dataset)
        refused |= {p: shard.not_own([p]) for p in commits if p not in terms}
        for partition in commits.keys() - refused.keys() - shard.journals.keys():
            try:
                self._make_journal(dataset, partition)
            except GalileoError as error:
                refused[partition] = error
        with self._opening:
            accepted = {p: commit for p, commit in commits.items() if p not in refused}
            return self._writer(dataset).submit(accepted, refused)

    def log_writer(self, dataset: str) -> LogWriter | None:
        """The writer of a dataset's logs; None if there is no such dataset here."""
        if dataset not in self._shards:
            return None
        with self._opening:
            return self._writer(dataset)

    def _writer(self, dataset: str) -> LogWriter:
        writer = self._writers.get(dataset)
        if writer is None:
            writer = self._writers[dataset] = LogWriter(
                self._shards[dataset],
                machines=self._machines,
                open_journal=lambda partition: self._make_journal(dataset, partition),
                restart_journal=partial(self.restart_journal, dataset),
                executor=self._executor,
                syncing=self._syncing,
                waiting_max=self._commit_queue_max,
            )
        return writer

    def _make_journal(self, dataset: str, partition: int) -> None:
        """Creates a journal without holding `_opening`, which the event loop takes."""
        with self._making:
            shard = self._known_shard(dataset)
            if partition not in shard.journals:
                self._attach(dataset, partition, self._store.journal(dataset, partition))

    def restart_journal(self, dataset: str, partition: int, log_start: bytes) -> None:
        """Begins a replica of a log anew behind what its leader has dropped, in a thread.

        Raises:
            CorruptData, PartitionReadOnly: as `Store.restart_journal`.
        """
        shard = self._known_shard(dataset)
        with self._changing_partitions:
            shard.detach(partition)
            journal = self._store.restart_journal(dataset, partition, log_start)
            self._attach(dataset, partition, journal)

    def set_aside(self, dataset: str, partition: int) -> Path:
        """Moves the files of a damaged log away, in a thread; errors as `Store.set_aside`."""
        with self._changing_partitions:
            self._known_shard(dataset).detach(partition)
            return self._store.set_aside(dataset, partition)

    def _attach(self, dataset: str, partition: int, journal: PartitionJournal) -> None:
        journal.on_damage = partial(self._report_damage, dataset, partition)
        self._shards[dataset].attach(partition, journal, term=self._term_of(partition))

    def _report_damage(self, dataset: str, partition: int, error: CorruptData) -> GalileoError:
        """Has the log copied again, and the reader look for another replica, if there is one."""
        if not self._machines.has_others(partition):
            return error
        loop = self._machines.loop
        loop.call_soon_threadsafe(self._machines.on_damage, dataset, partition, error)
        return partition_moved([partition])

    def close_partition(self, partition: int) -> None:
        """Closes a partition that is not this node's, in a thread; its files stay.

        Where it is being opened, waits for the end of that, which cannot be stopped.
        """
        with self._changing_partitions:
            for shard in self.shards.values():
                if partition in shard.journals or shard.published()[partition]:
                    shard.detach(partition)
            self._store.close_partition(partition)

    def waiting(self) -> dict[tuple[str, int], int]:
        """Commits that wait for the disk, by dataset and partition; only those written to."""
        return {
            (dataset, partition): waiting
            for dataset, writer in self._writers.copy().items()
            for partition, waiting in writer.waiting.items()
        }

    async def close(self) -> None:
        """Waits for what is being written, then closes the journals."""
        for writer in list(self._writers.values()):  # Messages may still open journals.
            await writer.drained()
        for shard in self._shards.values():
            shard.close()


class _AddedFeatures(NamedTuple):
    """A shard, and the schema of its dataset with features that it does not know."""

    shard: DatasetShard
    schema: Schema


def _added_features(schema: StoredSchema, shard: AnyShard) -> _AddedFeatures | None:
    """What a shard of the same name lacks; None where it knows the schema.

    Raises:
        DatasetExists: neither has what the other has.
    """
    if shard.schema.extends(schema):
        return None
    is_wider = schema.extends(shard.schema)
    if is_wider and isinstance(shard, DatasetShard) and isinstance(schema, Schema):
        return _AddedFeatures(shard, schema)
    raise existing_dataset(shard.schema, same=False)
