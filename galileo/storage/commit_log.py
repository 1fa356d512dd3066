"""The commit log of a node: one sync for a group of commits to many partitions.

A small batch has a few rows in each partition, and a sync of each segment costs more than
everything else. Such a group is written to the segments without a sync, and appended to the commit
log, which is synced once. A *checkpoint* syncs these segments and deletes the log. The
next start writes what the log still has to the segments again (redo), which changes nothing where
it is there already. So a segment is durable up to its last sync by itself, and beyond that by the
log.

Redo may not overwrite newer bytes, so a place in a segment is used once. Where the sync of a record
fails, the log takes no more until the next start, and the segments are synced directly: redo would
write the same bytes. Where that fails, the partition stops until the next start.

A file of the log is a sequence of records:

    header | table of entries | bytes of entries

An entry is a stretch of a segment: its path below the node's directory, its offset and length. A
crash can leave the last record of the last file half written; it was never acknowledged, and is
ignored. Any other invalid record is damage.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from galileo.errors import ConfigError
from galileo.histogram import DISK_BOUNDS_S, DurationHistogram
from galileo.storage.disk import Disk, make_directory, write_all
from galileo.storage.frame import Buffer, checksum
from galileo.storage.segment import corrupt_error
from galileo.storage.writer import JournalOptions

DIRECTORY = "commit-log"
SUFFIX = ".log"
MAGIC = b"\x89GLL\x0d\x0a\x1a\xa7"
FORMAT_VERSION = 1
LOG_BYTES_MAX = 16 << 20
"""Length of the commit log at which a checkpoint is due."""
LOGGED_BYTES_MAX = 64 << 10
"""Groups to several partitions with fewer bytes for each go through the commit log; more bytes are
not worth writing twice."""

# magic, version, entries, number of the record, bytes of table and entries, their checksum
_HEADER = struct.Struct("<8sHIQQQI")
_CRC = struct.Struct("<I")
_RECORD_HEADER_BYTES = _HEADER.size + _CRC.size
# bytes of the path; offset and bytes of the stretch
_ENTRY = struct.Struct("<HQQ")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Adjacent frames in a segment."""

    path: Path
    offset: int
    size: int
    buffers: Sequence[Buffer]


class Write(Protocol):
    """New commits of one partition on their way to the disk; its journal is locked meanwhile."""

    @property
    def journal(self) -> Unsynced: ...

    @property
    def size(self) -> int:
        """Bytes of their frames."""
        ...

    def write(self) -> bool:
        """Writes the frames to the segment, without a sync. Returns whether the disk took them."""
        ...

    @property
    def stretch(self) -> Stretch:
        """Where the written frames are."""
        ...

    def finish(self, *, is_logged: bool = False) -> None:
        """Syncs the written frames, unless the log has them."""
        ...


class Unsynced(Protocol):
    """The journal of a partition."""

    def sync(self) -> bool:
        """Makes what was written durable. Returns whether it is; if not, the partition stops."""
        ...


class CommitLog:
    """Thread-safe; one for each data directory, opened before its journals.

    Attributes:
        syncs: how long the disk took to make records durable.
    """

    def __init__(self, directory: Path, options: JournalOptions) -> None:
        self.syncs = DurationHistogram(DISK_BOUNDS_S)
        self._root = directory
        self._prefix = f"{directory}{os.sep}"
        self._directory = directory / DIRECTORY
        self._options = options
        self._disk = options.disk
        self._appending = threading.Lock()
        self._checkpointing = threading.Lock()
        self._descriptor: int | None = None
        self._length = 0
        self._number = 0
        self._files: list[Path] = []
        self._undeleted: list[Path] = []
        self._is_needed = False
        self._unsynced: dict[int, Unsynced] = {}
        self._is_stopped = options.durability == "none"

    def recover(self) -> None:
        """Writes what the log has to the segments, and empties it.

        Segments that do not exist any more are passed over: they were compacted, dropped or moved.

        Raises:
            CorruptData: a record fails its checksum and is not the torn end.
            ConfigError: the log is of a format that this version does not know.
            OSError: the disk refuses; the next start tries it again.
        """
        paths = _files(self._directory)
        stretches = defaultdict[str, list[tuple[int, memoryview]]](list)
        for path in paths:
            for name, offset, data in _read(path, is_last=path == paths[-1]):
                stretches[name].append((offset, data))
        for name, of_segment in stretches.items():
            path = self._root / name
            if path.exists():
                _redo(self._disk, path, of_segment)
        if stretches:
            _log.info("wrote commits of %d segments again from the commit log", len(stretches))
        self._delete(paths)

    @property
    def is_full(self) -> bool:
        """Whether a checkpoint is due."""
        is_over = self._is_stopped or self._length >= LOG_BYTES_MAX
        return bool(self._files) and is_over

    def write(self, writes: Sequence[Write], *, executor: Executor | None = None) -> None:
        """Makes new commits of some partitions durable; each write has its results afterwards.

        Args:
            writes: one of each partition.
            executor: whose threads write to several segments at the same time.
        """
        size = sum(write.size for write in writes)
        if len(writes) <= 1 or size >= len(writes) * LOGGED_BYTES_MAX:
            write_directly(writes, executor=executor)
            return
        writes = [write for write in writes if write.write()]
        if self._append(writes):
            for write in writes:
                write.finish(is_logged=True)
        else:
            _each(writes, lambda write: write.finish(), executor)

    def checkpoint(self) -> bool:
        """Syncs the segments whose commits only the log has, and deletes it.

        Appends go on, in a new file. Where a segment cannot be synced, the files stay.

        Returns:
            Whether nothing is left of what the log had; else the next start writes it again.
        """
        with self._checkpointing:
            with self._appending:
                files, self._files = self._files, []
                unsynced, self._unsynced = self._unsynced, {}
                self._close_file()
            # Each waits for writes that are under way: what they have logged is in the segments.
            are_durable = [journal.sync() for journal in unsynced.values()]
            if all(are_durable):
                self._undeleted += files
                with contextlib.suppress(OSError):  # The next start writes the same bytes again.
                    self._delete(self._undeleted)
                    self._undeleted = []
            else:
                self._is_needed |= bool(files)
            return not (self._undeleted or self._is_needed)

    def close(self) -> None:
        """Empties the log, before the journals are closed."""
        self.checkpoint()
        self._is_stopped = True

    def _append(self, writes: Sequence[Write]) -> bool:
        """Appends a record durably. Returns False if that failed; the log may have it or not."""
        with self._appending:
            if self._is_stopped or not writes:
                return False
            stretches = [write.stretch for write in writes]
            buffers = _encode(stretches, prefix=self._prefix, number=self._number + 1)
            try:
                descriptor = self._ready()
                write_all(self._disk, descriptor, buffers, offset=self._length)
            except OSError as error:
                _log.warning("the commit log takes no record: %s", error)
                return self._undo()
            begun = self._options.monotonic()
            try:
                self._disk.fdatasync(descriptor)
            except OSError as error:
                _log.error("the commit log takes no records until the next start: %s", error)
                self._is_stopped = True
                return self._undo()
            self.syncs.observe(self._options.monotonic() - begun)
            self._length += sum(len(memoryview(buffer)) for buffer in buffers)
            self._number += 1
            self._unsynced |= {id(write.journal): write.journal for write in writes}
            return True

    def _ready(self) -> int:
        if self._descriptor is None:
            make_directory(self._disk, self._directory)
            path = self._directory / f"{self._number + 1:016d}{SUFFIX}"
            self._descriptor = self._disk.create(path)
            self._length = 0
            self._files.append(path)
            self._disk.sync_directory(self._directory)
        return self._descriptor

    def _undo(self) -> bool:
        """Cuts what a failed write may have left; always False."""
        try:
            if self._descriptor is not None:
                self._disk.truncate(self._descriptor, self._length)
        except OSError:
            self._is_stopped = True
        return False

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._length = None, 0

    def _delete(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # An earlier attempt has deleted it.
                self._disk.unlink(path)
        if paths:
            self._disk.sync_directory(self._directory)


def write_directly(writes: Sequence[Write], *, executor: Executor | None) -> None:
    """Writes and syncs the segment of each partition."""

    def write_and_sync(write: Write) -> None:
        if write.write():
            write.finish()

    _each(writes, write_and_sync, executor)


def _each(writes: Sequence[Write], act: Callable[[Write], None], executor: Executor | None) -> None:
    """Calls `act` with each write, in threads of the executor if there are several."""
    if executor is None or len(writes) <= 1:
        for write in writes:
            act(write)
    else:
        wait([executor.submit(act, write) for write in writes])


def _encode(stretches: Sequence[Stretch], *, prefix: str, number: int) -> list[Buffer]:
    names = [str(stretch.path).removeprefix(prefix).encode() for stretch in stretches]
    table = b"".join(
        _ENTRY.pack(len(name), stretch.offset, stretch.size) + name
        for name, stretch in zip(names, stretches, strict=True)
    )
    body = [table, *(buffer for stretch in stretches for buffer in stretch.buffers)]
    size = sum(stretch.size for stretch in stretches)
    fields = (len(stretches), number, len(table), size, checksum(body))
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, *fields)
    return [header + _CRC.pack(checksum([header])), *body]


@dataclass(frozen=True, slots=True)
class _Header:
    entries: int
    number: int
    table_bytes: int
    size: int
    crc: int

    @property
    def record_bytes(self) -> int:
        return _RECORD_HEADER_BYTES + self.table_bytes + self.size

    @classmethod
    def at(cls, data: bytes, offset: int) -> _Header | None:
        """The valid header at an offset, None where there is none.

        Raises:
            ConfigError: there is one of a format that this version does not know.
        """
        covered = data[offset : offset + _HEADER.size]
        crc = data[offset + _HEADER.size : offset + _RECORD_HEADER_BYTES]
        if len(crc) < _CRC.size or _CRC.pack(checksum([covered])) != crc:
            return None
        magic, version, *fields = _HEADER.unpack(covered)
        if magic == MAGIC and version != FORMAT_VERSION:
            raise ConfigError(
                f"expected a commit log of format {FORMAT_VERSION}, got {version}; start the "
                "version of Galileo that wrote it, and stop it cleanly",
                expected="format_version",
            )
        return cls(*fields) if magic == MAGIC else None


def _read(path: Path, *, is_last: bool) -> Iterator[tuple[str, int, memoryview]]:
    """The entries of a file, in order: path, offset and bytes."""
    data, at, number = path.read_bytes(), 0, int(path.stem)
    while at < len(data):
        header = _Header.at(data, at)
        body_at = at + _RECORD_HEADER_BYTES
        body = data[body_at : body_at + (header.table_bytes + header.size if header else 0)]
        is_whole = header is not None and len(body) == header.table_bytes + header.size
        if header is None or not is_whole or checksum([body]) != header.crc:
            if is_last and not _follows(data, at + 1, number=number):
                return
            raise corrupt_error(path, at, reason="the checksum of the record is wrong")
        if header.number != number:
            reason = f"expected record {number}, got {header.number}"
            raise corrupt_error(path, at, reason=reason)
        yield from _entries(memoryview(body), header)
        at, number = at + header.record_bytes, number + 1


def _follows(data: bytes, start: int, *, number: int) -> bool:
    """Whether a later record begins after an invalid one."""
    at = data.find(MAGIC, start)
    while at >= 0:
        header = _Header.at(data, at)
        if header is not None and header.number > number:
            return True
        at = data.find(MAGIC, at + 1)
    return False


def _entries(body: memoryview, header: _Header) -> Iterator[tuple[str, int, memoryview]]:
    table, at = 0, header.table_bytes
    for _ in range(header.entries):
        name_bytes, offset, size = _ENTRY.unpack_from(body, table)
        table += _ENTRY.size
        yield bytes(body[table : table + name_bytes]).decode(), offset, body[at : at + size]
        table, at = table + name_bytes, at + size


def _redo(disk: Disk, path: Path, stretches: Sequence[tuple[int, memoryview]]) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for offset, data in stretches:
            write_all(disk, descriptor, [data], offset=offset)
        disk.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _files(directory: Path) -> list[Path]:
    """The files of the log, oldest first."""
    return sorted(directory.glob(f"*{SUFFIX}"))
