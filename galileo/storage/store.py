"""The data directory of one node, used by one process at a time.

lock                                      held while a process uses the directory
node/epoch.record                         how often the directory was opened
node/history.record                       the history that the directory began when it was restored
datasets/<dataset>.record                 the schema, JSON
records/generations.batches/<number>.record  how many datasets of each name were dropped
journals/<dataset>/<partition>/*.segment  the commits
journals/<dataset>/<partition>/*.merged   older ones, compressed
journals/<dataset>/<partition>/dropped.record  up to where retention has dropped them
damaged/<dataset>-<partition>-<number>    replicas that were damaged; copied again from other nodes
commit-log/<number>.log                   commits that the segments may lack after a crash
records/<kind>/<name>.record              small values of other layers
records/<kind>.batches/<number>.record    very many of them, some in each file

<dataset> is `StoredSchema.key`, of a table, too. One write drops a dataset: that of the number of
dropped generations of its name. Its files are deleted afterwards, at the latest by the next start.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from galileo.errors import (
    ConfigError,
    CorruptData,
    DatasetExists,
    InputError,
    InternalError,
    PartitionReadOnly,
    UnknownDataset,
)
from galileo.model.schema import StoredSchema, is_dropped
from galileo.model.stored_schema import stored_schema_from_json
from galileo.storage.commit_log import CommitLog
from galileo.storage.disk import make_directory
from galileo.storage.journal import PartitionJournal
from galileo.storage.metadata_files import MetadataFiles, record_name
from galileo.storage.metadata_log import MetadataLog, Values
from galileo.storage.partition_files import DROPPED, Partition
from galileo.storage.recovery import Replayed
from galileo.storage.retention import LOG_START_FILE, LogStart
from galileo.storage.segment import corrupt_error, segment_name
from galileo.storage.writer import JournalOptions

PARTITION_MAX = 2**31 - 1
_REMOVED = ".removed"
GENERATIONS_KIND = "generations"
EPOCH, HISTORY = "epoch", "history"
IDENTITY_KIND, IDENTITY = "topology", "identity"

StoreReplay: TypeAlias = Callable[[str, int, Replayed], None]
"""Called with (dataset, partition, commits)."""


class Store:
    """Thread-safe. Open it, `recover` once, then use it; `close` at the end.

    Attributes:
        epoch: 1 at the first opening of this directory, higher at each later one.
        history: the history that its partitions begin since it was restored from a backup; else 0.
        log: the commit log.
        damaged: logs of replicas that `recover` could not open, or that are found damaged later,
            by (dataset, partition), until they are set aside.
    """

    def __init__(
        self,
        directory: Path,
        options: JournalOptions,
        *,
        wall: Callable[[], float],
    ) -> None:
        self.epoch = self.history = 0
        self._directory = directory
        self._options = options
        self._wall = wall
        self.log = CommitLog(directory, options)
        self._lock_descriptor: int | None = None
        self._changing = threading.RLock()
        self._recovered = False
        self._identity = ""
        self.damaged: dict[tuple[str, int], CorruptData] = {}
        self._journals: dict[tuple[str, int], PartitionJournal] = {}
        self._schemas: dict[str, StoredSchema] = {}
        self._generations: dict[str, int] = {}
        self._undeleted: set[str] = set()
        self._deleting = threading.Lock()
        self._records: dict[str, MetadataFiles] = {}
        self._batches: dict[str, MetadataLog] = {}
        self._schema_records = MetadataFiles(directory / "datasets", options.disk)

    @classmethod
    def open(
        cls,
        directory: Path,
        options: JournalOptions | None = None,
        *,
        wall: Callable[[], float],
    ) -> Store:
        """Locks the directory for this process, creates it if missing, and reads the schemas.

        Args:
            directory: of this node alone.
            options: how partitions write; the defaults where absent.
            wall: seconds since 1970, for the informative time in each frame.

        Raises:
            ConfigError: another process uses the directory, or it cannot be used.
            CorruptData: a stored schema or the epoch fails its checksum, or is missing.
        """
        store = cls(directory.absolute(), options or JournalOptions(), wall=wall)
        try:
            store._take_lock()
            store._load_schemas()
            store._advance_epoch()
        except BaseException:
            store.close()
            raise
        return store

    def recover(self, replay: StoreReplay) -> None:
        """Opens every partition that is on disk, one after the other.

        What is damaged is left closed, and named by `damaged`, since other nodes may have it.

        Args:
            replay: takes their commits.

        Raises:
            PartitionReadOnly, ConfigError: as `PartitionJournal.open`.
        """
        with self._changing:
            if self._recovered:
                raise InternalError(
                    "expected one call of Store.recover, got a second one", expected="one_recovery"
                )
            self._redo()
            self._find_undeleted()
            self.delete_dropped()
            self._delete_removed()
            for dataset, partition in self.partitions_on_disk():
                try:
                    self._open_journal(dataset, partition, replay)
                except CorruptData as error:
                    self.damaged[dataset, partition] = error
            self._recovered = True

    def _redo(self) -> None:
        try:
            self.log.recover()
        except OSError as error:
            raise PartitionReadOnly(
                f"the commit log in {self._directory} cannot be written to the segments: {error}. "
                "Check the disk, then start again",
                after_s=self._options.retry_after_s,
            ) from error

    def close(self) -> None:
        """Closes all journals and unlocks the directory."""
        self.log.close()
        with self._changing:
            for journal in self._journals.values():
                journal.close()
            self._journals.clear()
            if self._lock_descriptor is not None:
                os.close(self._lock_descriptor)
                self._lock_descriptor = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- datasets and journals ---------------------------------------------------------------

    def create_dataset(self, schema: StoredSchema) -> bool:
        """Creates a dataset durably; nothing happens where an equal one exists.

        Returns:
            Whether it is new.

        Raises:
            DatasetExists: there is one of this name with another schema.
            PartitionReadOnly: the disk refuses.
        """
        with self._changing:
            if self.is_dropped(schema.key):
                raise InternalError(f"expected a dataset that was not dropped, got {schema.key!r}")
            present = self._schemas.get(schema.key)
            if present is not None and present != schema:
                raise DatasetExists(
                    f"dataset {schema.name!r} exists with another schema: {present.to_json()}. "
                    "A schema only gets more features, by add_features; choose another name, or "
                    "use the dataset as it is",
                    same=False,
                )
            if present is None:
                self._schema_records.save(schema.key, schema.to_json().encode())
                self._schemas[schema.key] = schema
            return present is None

    def add_features(self, schema: StoredSchema) -> None:
        """Adds features to a dataset durably; again, or what is known already, is harmless.

        Its journals, open or not, know them when this returns; the schema is on disk before any
        frame can have them.

        Args:
            schema: of the dataset with the added features.

        Raises:
            DatasetExists: it is not the schema that is here with more features.
            UnknownDataset: there is no such dataset.
            PartitionReadOnly: the disk refuses; nothing was added.
        """
        with self._changing:
            present = self._schema_of(schema.key)
            if present.extends(schema):
                return
            if not schema.extends(present):
                raise DatasetExists(
                    f"features of dataset {schema.name!r} can only be added behind those that it "
                    f"has: {present.to_json()}",
                    same=False,
                )
            self._schema_records.save(schema.key, schema.to_json().encode())
            self._schemas[schema.key] = schema
            for (dataset, _), journal in self._journals.items():
                if dataset == schema.key:
                    journal.add_features(schema)

    def schemas(self) -> dict[str, StoredSchema]:
        """All datasets by key."""
        with self._changing:
            return dict(self._schemas)

    @property
    def generations(self) -> Mapping[str, int]:
        """The number of dropped datasets by name, the latest last; names without any are absent.

        A drop makes another mapping, so this one can be read without a lock.
        """
        return self._generations

    def is_dropped(self, dataset: str) -> bool:
        """Whether the dataset with this key was dropped."""
        return is_dropped(dataset, self._generations)

    def drop_dataset(self, name: str, generations: int) -> list[str]:
        """Drops the first generations of a name, durably; again is harmless.

        Their journals stay open, and their files stay, until `delete_dropped`.

        Returns:
            The keys of those that were here.

        Raises:
            PartitionReadOnly: the disk refuses; nothing was dropped.
        """
        with self._changing:
            if generations <= self._generations.get(name, 0):
                return []
            self.save_batch(GENERATIONS_KIND, {name: str(generations).encode()})
            others = self._generations.copy()
            others.pop(name, None)
            self._generations = {**others, name: generations}  # Another one: it is read unlocked.
            named = [key for key, schema in self._schemas.items() if schema.name == name]
            dropped = list(filter(self.is_dropped, named))
            for key in dropped:
                del self._schemas[key]
            self._undeleted.update(dropped)
            return dropped

    def delete_dropped(self) -> None:
        """Deletes the files of datasets that were dropped, in a thread; their journals are over.

        Raises:
            OSError, PartitionReadOnly: the disk refuses; the next call, or start, goes on.
        """
        with self._deleting:
            with self._changing:
                dropped = self._undeleted.copy()
                for key in [key for key in self._journals if key[0] in dropped]:
                    self._journals.pop(key).close()
                for dataset in dropped:
                    self._move_aside(self._directory / "journals" / dataset)
            for dataset in dropped:
                place = self._directory / "journals" / f"{dataset}{DROPPED}"
                if place.exists():
                    shutil.rmtree(place)
            with self._changing:
                for dataset in dropped:
                    self._schema_records.delete(dataset)
                self._undeleted -= dropped

    def _move_aside(self, place: Path) -> None:
        """Renames the directory of a dropped dataset, so that no start finds a part of one."""
        disk, aside = self._options.disk, place.with_name(place.name + DROPPED)
        if place.exists():
            if aside.exists():  # Of a copy that began before the dataset was dropped.
                shutil.rmtree(aside)
            disk.rename(place, aside)
            disk.sync_directory(place.parent)

    def _find_undeleted(self) -> None:
        """Finds what is left of dropped datasets, also of copies that began before the drop."""
        root = self._directory / "journals"
        places = [path.name.removesuffix(DROPPED) for path in root.glob("*")]
        self._undeleted.update(filter(self.is_dropped, [*places, *self._schema_records.names()]))

    def journal(self, dataset: str, partition: int) -> PartitionJournal:
        """The journal of a partition, created empty where it does not exist yet.

        Raises:
            UnknownDataset: there is no such dataset on this node.
            PartitionReadOnly: the disk refuses to create it.
        """
        journal = self._journals.get((dataset, partition))
        if journal is not None:
            return journal
        with self._changing:
            if not self._recovered:
                raise InternalError(
                    "expected Store.recover before the first use of a journal", expected="recovery"
                )
            journal = self._journals.get((dataset, partition))
            return journal or self._open_journal(dataset, partition, _nothing_to_replay)

    # --- partitions that come and go ---------------------------------------------------------

    def partition_directory(self, dataset: str, partition: int) -> Path:
        """The directory for the files of a partition; it may not exist."""
        return self._directory / "journals" / dataset / str(partition)

    def sequence_bound(self, dataset: str, partition: int) -> int:
        """A sequence that no commit in the files of a partition, damaged or not, exceeds."""
        found = Partition(self.partition_directory(dataset, partition), dataset, partition).files()
        # A commit takes more than a byte.
        return sum(file.stat().st_size for file in found) + max(
            (int(file.stem) for file in found), default=0
        )

    def set_aside(self, dataset: str, partition: int) -> Path:
        """Moves the files of a damaged partition away, durably; it is empty then.

        Returns:
            Where they are now.

        Raises:
            OSError, PartitionReadOnly: the disk refuses.
        """
        with self._changing:
            self._close_journal(dataset, partition)
            self._empty_log(partition)
            disk, place = self._options.disk, self.partition_directory(dataset, partition)
            root = self._directory / "damaged"
            make_directory(disk, root)
            number = sum(1 for _ in root.glob(f"{dataset}-{partition}-*")) + 1
            target = root / f"{dataset}-{partition}-{number}"
            disk.rename(place, target)
            disk.sync_directory(place.parent)
            disk.sync_directory(root)
            self.damaged.pop((dataset, partition), None)  # The dataset may be dropped meanwhile.
            return target

    def _close_journal(self, dataset: str, partition: int) -> None:
        journal = self._journals.pop((dataset, partition), None)
        if journal is not None:
            journal.close()

    def _empty_log(self, partition: int) -> None:
        """Empties the commit log, which could otherwise write again what has left the files."""
        if not self.log.checkpoint():
            raise PartitionReadOnly(
                f"partition {partition} cannot begin anew or be deleted: the commit log cannot be "
                "emptied. Check the disk, then restart the node",
                after_s=self._options.retry_after_s,
            )

    def close_partition(self, partition: int) -> None:
        """Closes a partition of all datasets; its files stay."""
        with self._changing:
            for key in [key for key in self._journals if key[1] == partition]:
                self._journals.pop(key).close()
        self.log.checkpoint()  # Else the next start could write what it has to a later copy.

    def restart_journal(self, dataset: str, partition: int, log_start: bytes) -> PartitionJournal:
        """An empty journal that begins behind what another replica has dropped; durable.

        What there is of the partition is deleted. A crash leaves that, nothing, or the new journal.

        Args:
            dataset: its key.
            partition: its number; its journal is closed by this.
            log_start: the record of what was dropped, as of `PartitionJournal.log_start_record`.

        Raises:
            CorruptData: `log_start` is no such record.
            PartitionReadOnly: the disk refuses.
        """
        place, disk = self.partition_directory(dataset, partition), self._options.disk
        removed, new = (
            place.with_name(f"{partition}{_REMOVED}"),
            place.with_name(f"{partition}.new"),
        )
        first = LogStart.from_bytes(log_start).until + 1
        with self._changing:
            self._close_journal(dataset, partition)
        self._empty_log(partition)
        try:
            self._delete_removed()
            shutil.rmtree(new, ignore_errors=True)
            make_directory(disk, new)
            os.close(disk.create(new / segment_name(first)))
            MetadataFiles(new, disk).save(LOG_START_FILE, log_start)
            if place.exists():
                disk.rename(place, removed)
            disk.rename(new, place)
            disk.sync_directory(place.parent)
            self._delete_removed()
        except OSError as error:
            raise PartitionReadOnly(
                f"partition {partition} cannot begin anew: {error}. Check the disk",
                after_s=self._options.retry_after_s,
            ) from error
        journal = self._open_with(dataset, partition, _nothing_to_replay)
        with self._changing:
            if dataset in self._schemas:
                journal.add_features(self._schemas[dataset])  # They may have come meanwhile.
            self._journals[dataset, partition] = journal
        return journal

    def delete_partition(self, partition: int) -> None:
        """Closes a partition of all datasets and deletes its files; a crash leaves all or none.

        One at a time. It may take long, and everything else of the store goes on meanwhile.

        Raises:
            OSError: the disk refuses; the next start goes on.
            PartitionReadOnly: the commit log cannot be emptied.
        """
        self.close_partition(partition)
        self._empty_log(partition)
        self._delete_removed()  # Else what an earlier attempt has left would be in the way.
        with self._changing:
            disk = self._options.disk
            for dataset in self._schemas:
                place = self.partition_directory(dataset, partition)
                if place.exists():
                    disk.rename(place, place.with_name(f"{partition}{_REMOVED}"))
                    disk.sync_directory(place.parent)
        self._delete_removed()

    def _delete_removed(self) -> None:
        with self._deleting:
            self._delete_partitions()

    def _delete_partitions(self) -> None:
        for place in (self._directory / "journals").glob(f"*/*{_REMOVED}"):
            shutil.rmtree(place)

    def journals(self) -> dict[tuple[str, int], PartitionJournal]:
        """All open journals by (dataset, partition)."""
        with self._changing:
            return dict(self._journals)

    # --- small records -----------------------------------------------------------------------

    def save_record(self, kind: str, name: str, data: bytes) -> None:
        """Writes or replaces a small value durably; errors as `MetadataFiles.save`."""
        with self._changing:
            self._records_of(kind).save(name, data)

    def load_records(self, kind: str) -> dict[str, bytes]:
        """All values of a kind by name; errors as `MetadataFiles.load`."""
        with self._changing:
            return self._records_of(kind).load_all()

    def load_record(self, kind: str, name: str) -> bytes | None:
        """One value, None where there is none; errors as `MetadataFiles.load`."""
        with self._changing:
            return self._records_of(kind).load(name)

    def delete_record(self, kind: str, name: str) -> None:
        """Deletes a value; nothing happens where there is none."""
        with self._changing:
            self._records_of(kind).delete(name)

    @property
    def identity(self) -> str:
        """The random name of the directory, made at its first use; known, it needs no lock."""
        if self._identity:
            return self._identity
        with self._changing:
            if not self._identity:
                data = self.load_record(IDENTITY_KIND, IDENTITY)
                if data is None:
                    data = secrets.token_hex(16).encode()
                    self.save_record(IDENTITY_KIND, IDENTITY, data)
                self._identity = data.decode()
            return self._identity

    # --- very many small records -------------------------------------------------------------

    def free_bytes(self) -> int:
        """Free bytes of the disk of the directory; 0 if it is read-only."""
        statistics = os.statvfs(self._directory)
        return 0 if statistics.f_flag & os.ST_RDONLY else statistics.f_bavail * statistics.f_frsize

    def save_batch(self, kind: str, values: Values) -> None:
        """Writes values by name, and deletes those that are None, all with one sync.

        Errors as `MetadataLog.save`. No kind is used in this way and singly.
        """
        with self._changing:
            self._batches_of(kind).save(values)

    def load_batches(self, kind: str) -> dict[str, bytes]:
        """All values of such a kind by name; errors as `MetadataLog`."""
        with self._changing:
            return self._batches_of(kind).load_all()

    def _batches_of(self, kind: str) -> MetadataLog:
        if kind not in self._batches:
            directory = self._directory / "records" / f"{kind}.batches"
            self._batches[kind] = MetadataLog(directory, self._options.disk)
        return self._batches[kind]

    def _records_of(self, kind: str) -> MetadataFiles:
        if kind not in self._records:
            if record_name(kind) in (".", ".."):
                raise InputError(f"expected a kind of record, got {kind!r}")
            directory = self._directory / "records" / kind
            self._records[kind] = MetadataFiles(directory, self._options.disk)
        return self._records[kind]

    # --- opening -----------------------------------------------------------------------------

    def _take_lock(self) -> None:
        path = self._directory / "lock"
        try:
            make_directory(self._options.disk, self._directory)
            self._lock_descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock_descriptor, 0)
            os.pwrite(self._lock_descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            holder = path.read_text().strip() or "unknown"
            raise ConfigError(
                f"expected to be the only user of {self._directory}, but process {holder} "
                "holds it; stop that process or choose another directory",
                pid=holder,
                expected="only_user",
            ) from error
        except OSError as error:
            raise ConfigError(
                f"the directory {self._directory} cannot be used: {error}", expected="directory"
            ) from error

    def _load_schemas(self) -> None:
        generations = self.load_batches(GENERATIONS_KIND)
        self._generations = {name: int(data) for name, data in generations.items()}
        for key, data in self._schema_records.load_all().items():
            if not self.is_dropped(key):
                self._schemas[key] = stored_schema_from_json(data.decode())

    def _advance_epoch(self) -> None:
        records = MetadataFiles(self._directory / "node", self._options.disk)
        stored = records.load(EPOCH)
        if stored is None and self._schemas:
            path = self._directory / "node" / f"{EPOCH}.record"
            raise corrupt_error(path, 0, reason="the file is missing, though there are datasets")
        self.epoch = int(stored or b"0") + 1
        records.save(EPOCH, str(self.epoch).encode())
        self.history = int(records.load(HISTORY) or b"0")

    def partitions_on_disk(self) -> Iterator[tuple[str, int]]:
        """All partitions with a directory, open or not, as (dataset, partition)."""
        root = self._directory / "journals"
        for directory in sorted(_directories(root)):
            if self.is_dropped(directory.name):
                continue  # A copy that began before it was dropped; the next start deletes it.
            if directory.name not in self._schemas:
                raise corrupt_error(
                    directory, 0, reason="these commits belong to an unknown dataset"
                )
            names = (path.name for path in directory.iterdir())
            for partition in sorted(int(name) for name in names if name.isdecimal()):
                yield directory.name, partition

    def _open_journal(self, dataset: str, partition: int, replay: StoreReplay) -> PartitionJournal:
        journal = self._journals[dataset, partition] = self._open_with(dataset, partition, replay)
        return journal

    def _open_with(self, dataset: str, partition: int, replay: StoreReplay) -> PartitionJournal:
        schema = self._schema_of(dataset)
        if not 0 <= partition <= PARTITION_MAX:
            raise InputError(f"expected a partition from 0 to {PARTITION_MAX}, got {partition}")
        return PartitionJournal.open(
            self.partition_directory(dataset, partition),
            schema=schema,
            partition=partition,
            options=self._options,
            replay=lambda replayed: replay(dataset, partition, replayed),
            wall=self._wall,
        )

    def _schema_of(self, dataset: str) -> StoredSchema:
        schema = self._schemas.get(dataset)
        if schema is None:
            raise UnknownDataset(
                f"expected a dataset of {sorted(self._schemas)}, got {dataset!r}; create it first",
                dataset=dataset,
            )
        return schema


def _directories(root: Path) -> list[Path]:
    """The directories of datasets, except those renamed for deletion."""
    paths = root.iterdir() if root.exists() else ()
    return [path for path in paths if not path.name.endswith(DROPPED)]


def _nothing_to_replay(dataset: str, partition: int, replayed: Replayed) -> None:
    raise InternalError(
        f"expected an empty journal for partition {partition} of {dataset!r}, got sequence "
        f"{replayed.first_sequence}: it appeared on disk after Store.recover"
    )
