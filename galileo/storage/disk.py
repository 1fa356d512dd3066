"""The file operations that a disk can make fail, behind one interface.

The store writes only through a `Disk`, so that a test can make each single step fail. Reads do not
use it: tests of damage use damaged files.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from galileo.storage.frame import Buffer

IOV_MAX = 1024
"""Buffers that one `pwritev` takes on Linux and macOS."""


class Disk(Protocol):
    """Each method raises `OSError`, as the call of the operating system does."""

    def create(self, path: Path) -> int:
        """Creates a file that must not exist; returns its descriptor, open for both."""
        ...

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes up to `IOV_MAX` buffers at `offset`; returns how many bytes, maybe too few."""
        ...

    def fdatasync(self, descriptor: int) -> None: ...

    def truncate(self, descriptor: int, length: int) -> None: ...

    def rename(self, path: Path, name: Path) -> None:
        """Gives a file another name in its directory; one of that name is replaced."""
        ...

    def unlink(self, path: Path) -> None: ...

    def sync_directory(self, directory: Path) -> None:
        """Makes the names in a directory durable."""
        ...


class RealDisk:
    """The operating system's own operations."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(descriptor, buffers, offset)

    def fdatasync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        os.ftruncate(descriptor, length)

    def rename(self, path: Path, name: Path) -> None:
        path.replace(name)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


REAL_DISK = RealDisk()


def write_all(disk: Disk, descriptor: int, buffers: Sequence[Buffer], *, offset: int) -> None:
    """Writes all buffers one behind the other, however short the single writes are."""
    waiting = [view for buffer in buffers if len(view := memoryview(buffer))]
    first = 0
    while first < len(waiting):
        written = disk.write(descriptor, waiting[first : first + IOV_MAX], offset)
        if written <= 0:
            raise OSError(errno.EIO, "the disk wrote nothing and named no error")
        offset += written
        while first < len(waiting) and written >= len(waiting[first]):
            written -= len(waiting[first])
            first += 1
        if written:
            waiting[first] = waiting[first][written:]


def make_directory(disk: Disk, directory: Path) -> None:
    """Creates a directory and its parents where missing; their names are durable on return.

    Each is synced before the next is created, so an earlier process that died in here can have
    left only the lowest existing one unsynced.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    existing = missing[-1].parent if missing else directory
    with contextlib.suppress(PermissionError):  # its creator could read the parent
        disk.sync_directory(existing.parent)
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        disk.sync_directory(path.parent)


def read_at(descriptor: int, size: int, *, offset: int) -> bytes:
    """`size` bytes at `offset`, fewer only where the file ends."""
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(descriptor, size, offset)):
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
