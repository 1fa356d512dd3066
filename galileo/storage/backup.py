"""Copies of a node's directory: taken while the node runs, and put back where none runs.

A backup looks like a node's directory, with a manifest that names every file, its length and
its CRC-32C. It is built under a name of its own and renamed when it is complete and verified, so
what has the final name is whole. The order matters: small records are copied before commits,
so that no cursor in them is ahead of the commits that come with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from galileo.errors import ConfigError, CorruptData, InputError, PartitionReadOnly, Unavailable
from galileo.model.forks import history_of, next_history
from galileo.storage.disk import REAL_DISK, Disk, make_directory, write_all
from galileo.storage.frame import checksum
from galileo.storage.metadata_files import MetadataFiles, load_record, record_paths
from galileo.storage.partition_files import Partition, check_file, check_is_node, partitions
from galileo.storage.retention import load_log_start
from galileo.storage.segment import corrupt_error
from galileo.storage.store import EPOCH, HISTORY
from galileo.storage.verify import ATTEMPTS_MAX, Progress, no_progress, verify

FORMAT_VERSION = 1
MANIFEST = "manifest"
PARTIAL = ".partial"
COPY_BYTES = 4 << 20
EPOCHS_SKIPPED = 1 << 20
"""Increase of the epoch by a restore, past all epochs of the node since the backup."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a backup; `path` is relative to it."""

    path: str
    bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup consists of.

    Attributes:
        created_at: seconds since 1970, of the clock that was handed in.
        commits: in all partitions together.
    """

    created_at: float
    commits: int
    files: tuple[StoredFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT_VERSION, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """The inverse of `to_bytes`.

        Raises:
            ConfigError: it is of a format that this version does not know.
        """
        raw = json.loads(data)
        if raw["format"] != FORMAT_VERSION:
            raise ConfigError(
                f"expected a backup of format {FORMAT_VERSION}, got {raw['format']}; use the "
                "version of Galileo that made it",
                expected="format_version",
            )
        files = tuple(StoredFile(**file) for file in raw["files"])
        return cls(raw["created_at"], raw["commits"], files)


def backup(
    directory: Path,
    target: Path,
    *,
    now: float,
    link: bool = False,
    disk: Disk = REAL_DISK,
    progress: Progress | None = None,
) -> Manifest:
    """Copies a node's directory, which the node may be using; it is only read.

    Each partition is copied up to its last complete commit at some moment of the backup.

    Args:
        directory: of the node.
        target: a directory that does not exist yet.
        now: seconds since 1970, for the manifest.
        link: sealed files become hard links where the file system allows it, which costs no
            space and does not protect against damage of the shared file.
        disk: to write with.
        progress: called with the number of bytes just copied.

    Raises:
        InputError: `directory` is no node's, or `target` exists.
        CorruptData: what is stored is damaged; nothing is left of the backup.
        Unavailable: the node replaced its files again and again meanwhile.
        PartitionReadOnly: the disk refuses.
    """
    check_is_node(directory)
    with _building(target, disk) as partial:
        copying = _BackupWriter(directory, partial, link, disk, progress or no_progress)
        files = copying.records()
        for partition in partitions(directory):
            if (partial / "datasets" / f"{partition.dataset}.record").exists():
                files += copying.partition(partition)
        files = copying.newer_schemas(files)
        report = verify(partial)
        if report.damages:
            first = report.damages[0]
            place = directory / Path(first.file).relative_to(partial)
            raise corrupt_error(place, first.offset, reason=first.reason)
        manifest = Manifest(now, report.commits, tuple(files))
        MetadataFiles(partial, disk).save(MANIFEST, manifest.to_bytes())
    return manifest


def restore(
    source: Path,
    directory: Path,
    *,
    now: float,
    disk: Disk = REAL_DISK,
    progress: Progress | None = None,
) -> Manifest:
    """Makes a node's directory out of a backup, which stays as it is.

    Its partitions begin a later history: sequences after those of the backup are not used again.

    Args:
        source: a backup.
        directory: of the node; does not exist yet.
        now: seconds since 1970.
        disk: to write with.
        progress: called with the number of bytes just copied.

    Raises:
        InputError: `source` is no backup, or `directory` exists.
        CorruptData: a file of the backup is not what it was; nothing is left of the restore.
        PartitionReadOnly: the disk refuses.
    """
    data = load_record(source / f"{MANIFEST}.record")
    if data is None:
        raise InputError(
            f"expected a backup with a {MANIFEST}.record, got {source}", expected="backup"
        )
    manifest = Manifest.from_bytes(data)
    with _building(directory, disk) as partial:
        for file in manifest.files:
            if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
                raise InputError(
                    f"expected files within the backup, got {file.path}",
                    expected="file_of_backup",
                    file=str(file.path),
                )
            copied = _copy(source / file.path, partial / file.path, disk=disk)
            if (copied.bytes, copied.crc) != (file.bytes, file.crc):
                reason = "its length or checksum is not that of the manifest"
                raise corrupt_error(source / file.path, 0, reason=reason)
            (progress or no_progress)(file.bytes)
        _skip_epochs(partial, disk)
        stems = [Path(file.path).stem for file in manifest.files]
        known = max((history_of(int(stem)) for stem in stems if stem.isdecimal()), default=0)
        history = str(next_history(known, now)).encode()
        MetadataFiles(partial / "node", disk).save(HISTORY, history)
    return manifest


@dataclass(frozen=True, slots=True)
class _BackupWriter:
    """One backup that is being taken."""

    source: Path
    target: Path
    link: bool
    disk: Disk
    progress: Progress

    def records(self) -> list[StoredFile]:
        """The node's and other layers' small records, and the schemas last: a partition is
        copied only where its schema was.
        """
        places = ["node", *sorted(f"records/{p.name}" for p in self.source.glob("records/*"))]
        paths = [path for place in (*places, "datasets") for path in self._names(place)]
        copied = {path: self._record(path) for path in paths}
        for _ in range(ATTEMPTS_MAX):
            if None not in copied.values():
                break
            # What was in a file that is gone may be in one that has come.
            come = [path for place in places for path in self._names(place) if path not in copied]
            copied = {path: file for path, file in copied.items() if file is not None}
            copied |= {path: self._record(path) for path in come}
        return [file for file in copied.values() if file is not None]

    def newer_schemas(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """Copies schemas again that got features meanwhile: copied commits may have these.

        Args:
            files: that were copied.

        Returns:
            These, with the new copies.
        """
        return [
            self._newer_schema(file) if Path(file.path).parent == Path("datasets") else file
            for file in files
        ]

    def _newer_schema(self, file: StoredFile) -> StoredFile:
        source, target = self.source / file.path, self.target / file.path
        with contextlib.suppress(FileNotFoundError):  # the dataset was dropped meanwhile
            if source.read_bytes() != target.read_bytes():
                self.disk.unlink(target)
                return self._copy_files(Path(file.path))
        return file

    def _names(self, place: str) -> list[Path]:
        return [path.relative_to(self.source) for path in record_paths(self.source / place)]

    def _record(self, path: Path) -> StoredFile | None:
        """None where the node deleted it meanwhile."""
        try:
            return self._copy_files(path)
        except FileNotFoundError:
            return None

    def partition(self, partition: Partition) -> list[StoredFile]:
        place = partition.directory.relative_to(self.source)
        for _ in range(ATTEMPTS_MAX):
            with contextlib.suppress(FileNotFoundError):  # a merge replaced files meanwhile
                files = self._partition_files(partition)
                if files is not None:
                    return files
            shutil.rmtree(self.target / place, ignore_errors=True)
        raise Unavailable(
            f"the node replaced files of {partition.directory} {ATTEMPTS_MAX} times while they "
            "were copied; try again"
        )

    def _partition_files(self, partition: Partition) -> list[StoredFile] | None:
        """None where retention dropped commits meanwhile: mark and files must fit together."""
        dropped = load_log_start(partition.directory).until
        paths = partition.files()
        if not paths:
            return []
        sealed = [path.relative_to(self.source) for path in paths[:-1]]
        files = [self._link_files(path) if self.link else self._copy_files(path) for path in sealed]
        files.append(self._tail(partition, paths[-1].relative_to(self.source)))
        if partition.log_start_file().exists():
            files.append(self._copy_files(partition.log_start_file().relative_to(self.source)))
        return files if load_log_start(partition.directory).until == dropped else None

    def _link_files(self, path: Path) -> StoredFile:
        target = self.target / path
        make_directory(self.disk, target.parent)
        try:
            target.hardlink_to(self.source / path)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without hard links
            return self._copy_files(path)
        self.disk.sync_directory(target.parent)
        size, crc = _read(target)
        self.progress(size)
        return StoredFile(str(path), size, crc)

    def _copy_files(self, path: Path) -> StoredFile:
        copied = _copy(self.source / path, self.target / path, disk=self.disk)
        self.progress(copied.bytes)
        return StoredFile(str(path), copied.bytes, copied.crc)

    def _tail(self, partition: Partition, path: Path) -> StoredFile:
        """The file that the node writes to, up to the last complete frame."""
        copied, target = self._copy_files(path), self.target / path
        check = check_file(target, partition.number, last=True)
        if not check.torn_bytes:
            return copied
        descriptor = os.open(target, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.disk.truncate(descriptor, copied.bytes - check.torn_bytes)
            self.disk.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return StoredFile(str(path), *_read(target))


@contextmanager
def _building(target: Path, disk: Disk) -> Iterator[Path]:
    """A directory that gets the name `target` at the end, or is removed."""
    target = target.absolute()
    partial = target.with_name(target.name + PARTIAL)
    for path in (target, partial):
        if path.exists():
            raise InputError(
                f"expected a directory that does not exist yet, got {path}; nothing was changed. "
                "Choose another one, or remove it",
                expected="new_directory",
            )
    try:
        try:
            make_directory(disk, partial)
            yield partial
            disk.rename(partial, target)
            disk.sync_directory(target.parent)
        except OSError as error:
            raise PartitionReadOnly(
                f"copying to {target} failed: {error}. Make room, or check both disks, then begin "
                "again",
                expected="disk",
            ) from error
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _copy(source: Path, target: Path, *, disk: Disk) -> StoredFile:
    """Copies a file as far as it reaches now, durably.

    Raises:
        FileNotFoundError: there is no such source.
    """
    with source.open("rb", buffering=0) as file:
        make_directory(disk, target.parent)
        descriptor = disk.create(target)
        try:
            size = crc = 0
            left = os.fstat(file.fileno()).st_size
            while left and (data := file.read(min(COPY_BYTES, left))):
                write_all(disk, descriptor, [data], offset=size)
                crc = checksum([data], crc)
                size, left = size + len(data), left - len(data)
            disk.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    disk.sync_directory(target.parent)
    return StoredFile(target.name, size, crc)


def _read(path: Path) -> tuple[int, int]:
    """Length and checksum of a file."""
    size = crc = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(COPY_BYTES):
            size, crc = size + len(data), checksum([data], crc)
    return size, crc


def _skip_epochs(directory: Path, disk: Disk) -> None:
    """Epochs grow for ever, also past those of which the backup does not know."""
    records = MetadataFiles(directory / "node", disk)
    stored = records.load(EPOCH)
    if stored is None:
        raise CorruptData(f"expected the record {EPOCH!r} in the backup, got none")
    records.save(EPOCH, str(int(stored) + EPOCHS_SKIPPED).encode())
