"""Copies of a partition's files in another node's directory, written chunk by chunk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from galileo.errors import CorruptData
from galileo.storage.compacted_segment import compacted_segment_paths
from galileo.storage.disk import Disk, make_directory, read_at, write_all
from galileo.storage.frame import checksum
from galileo.storage.partition_files import check_file
from galileo.storage.retention import load_log_start, log_start_path
from galileo.storage.segment import segment_name, segment_paths

READ_BYTES = 4 << 20


def read_piece(path: Path, *, offset: int, size: int) -> bytes:
    """Some bytes of a file; fewer where it ends.

    Raises:
        OSError: the disk refuses.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_at(descriptor, size, offset=offset)
    finally:
        os.close(descriptor)


def file_checksum(path: Path, *, size: int) -> int:
    """CRC-32C of the first `size` bytes.

    Raises:
        CorruptData: the file is shorter.
        OSError: the disk refuses.
    """
    total, offset = 0, 0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while offset < size:
            piece = read_at(descriptor, min(READ_BYTES, size - offset), offset=offset)
            if not piece:
                raise CorruptData(
                    f"expected {size} bytes in {path}, got {offset}",
                    expected="size",
                    file=str(path),
                )
            total, offset = checksum([piece], total), offset + len(piece)
    finally:
        os.close(descriptor)
    return total


class PartitionCopy:
    """The directory of a partition that is being copied; one thread at a time.

    Args:
        directory: of the partition; made where missing.
        partition: its number.
        disk: that is written to.

    Raises:
        OSError: the disk refuses; each method, too.
    """

    def __init__(self, directory: Path, *, partition: int, disk: Disk) -> None:
        self._directory = directory
        self._partition = partition
        self._disk = disk
        make_directory(disk, directory)

    def length(self, name: str) -> int:
        """The bytes of a file that are copied."""
        path = self._directory / name
        return path.stat().st_size if path.exists() else 0

    def keep_only(self, names: set[str]) -> None:
        """Deletes the files that are not named, left by an earlier copy."""
        for path in self._directory.iterdir():
            if path.name not in names:
                self._disk.unlink(path)

    def write(self, name: str, data: bytes, *, offset: int) -> None:
        """Writes a piece of a file."""
        path = self._directory / name
        if path.exists():
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        else:
            descriptor = self._disk.create(path)
        try:
            write_all(self._disk, descriptor, [data], offset=offset)
        finally:
            os.close(descriptor)

    def finish(self, name: str, *, size: int) -> None:
        """Truncates a file to its size and syncs it."""
        descriptor = os.open(self._directory / name, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size > size:
                self._disk.truncate(descriptor, size)
            self._disk.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        self._disk.sync_directory(self._directory)

    def write_log_start(self, data: bytes) -> None:
        """Writes the record of what retention dropped; nothing where there is none.

        Where it has dropped all that there was, the empty file that follows a mark is
        made, too: files without commits are not listed.
        """
        path = log_start_path(self._directory)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)
        if data:
            self.write(path.name, data, offset=0)
            self.finish(path.name, size=len(data))
            self._make_file_behind(load_log_start(self._directory).until)
        self._disk.sync_directory(self._directory)

    def _make_file_behind(self, until: int) -> None:
        files = [*compacted_segment_paths(self._directory), *segment_paths(self._directory)]
        if until and not any(int(path.stem) > until for path in files):
            os.close(self._disk.create(self._directory / segment_name(until + 1)))

    def delete(self, name: str) -> None:
        self._disk.unlink(self._directory / name)

    def checksum(self, name: str, *, size: int) -> int:
        """CRC-32C of a file as it is on this disk.

        Raises:
            CorruptData: it is shorter.
        """
        return file_checksum(self._directory / name, size=size)

    def check(self, name: str, *, is_last: bool) -> None:
        """Checks every byte against the checksums in the file.

        Raises:
            CorruptData: one fails.
        """
        result = check_file(self._directory / name, self._partition, last=is_last)
        if result.flaws or result.torn_bytes:
            reasons = [flaw.reason for flaw in result.flaws[:3]] or ["its end is torn"]
            raise CorruptData(
                f"expected a whole file {name} of partition {self._partition}, but "
                f"{'; '.join(reasons)}; it was damaged before it was copied: check the disk that "
                "it comes from with galileo verify",
                expected="whole_file",
                file=name,
            )
