"""Reads a file from front to back through one reused buffer, for checks of whole files.

Not through a memory map: a bad sector is an `OSError` here and the end of the process there.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from galileo.storage.disk import read_at
from galileo.storage.frame import checksum

WINDOW_BYTES = 1 << 20
"""Large enough that a call costs nothing, small enough to stay in the processor's cache."""


DISK_BLOCK_BYTES = 4096
"""Reads past the page cache begin and end at multiples of this; no disk in use has larger ones."""


class SequentialReader:
    """A file as far as it reached when it was opened; one thread.

    Attributes:
        descriptor: of the file, open for reading.
        size: of the file, bytes; what is appended later is not looked at.
    """

    def __init__(self, path: Path, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self.descriptor).st_size
        self._begin(bytearray(min(window_bytes, max(1, self.size))))

    def _begin(self, memory: bytearray | mmap.mmap) -> None:
        self._memory = memory
        self._buffer = pa.py_buffer(memory)
        self._start = self._stop = 0

    def __enter__(self) -> SequentialReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes, at most those of a window; fewer only where the file ends."""
        size = min(size, self.size - offset, len(self._memory))
        if not self._start <= offset <= offset + size <= self._stop:
            self._fill(offset)
        place = offset - self._start
        return bytes(self._memory[place : min(place + size, self._stop - self._start)])

    def all_bytes_at(self, offset: int, size: int) -> bytes:
        """`size` bytes, however many; fewer only where the file ends."""
        if size > len(self._memory):
            return read_at(self.descriptor, min(size, self.size - offset), offset=offset)
        return self.bytes_at(offset, size)

    def is_loaded(self, offset: int, least: int) -> tuple[pa.Buffer, int]:
        """What is in memory around `offset`, until the next call, and where that is in it.

        At least `least` bytes from there on, fewer only where the file or the window ends.
        """
        if not self._start <= offset <= offset + min(least, self.size - offset) <= self._stop:
            self._fill(offset)
        return self._buffer.slice(0, self._stop - self._start), offset - self._start

    def checksum(self, offset: int, size: int) -> int | None:
        """CRC-32C of a stretch of any length; None where the file ends within it."""
        crc, end = 0, offset + size
        if end > self.size:
            return None
        while offset < end:
            if not self._start <= offset < self._stop:
                self._fill(offset)
            part = min(end, self._stop) - offset
            if part <= 0:
                return None
            crc = checksum([self._buffer.slice(offset - self._start, part)], crc)
            offset += part
        return crc

    def _fill(self, offset: int) -> None:
        self._start = self._stop = offset
        end = min(len(self._memory), self.size - offset)
        with memoryview(self._memory) as memory:
            while self._stop < offset + end:
                place = self._stop - offset
                count = os.preadv(self.descriptor, [memory[place:end]], self._stop)
                if count == 0:
                    return
                self._stop += count


OpenFile: TypeAlias = Callable[[Path], SequentialReader]
"""Opens a file to be read; `SequentialReader`, or one with other arguments."""


class DiskReader(SequentialReader):
    """Reads what is on the disk, not what the page cache has of it; one thread.

    Uses direct I/O. Where the file system has none, as tmpfs, or the operating system, as macOS, it
    has the page cache drop each stretch before it reads it; what is dirty or mapped stays there.

    Args:
        path: of the file.
        length: of the part that is wanted; None for all.
        on_read: called with the bytes of each read, which it may delay, or end by an error.
    """

    def __init__(
        self,
        path: Path,
        *,
        length: int | None = None,
        on_read: Callable[[int], None],
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.descriptor, self.is_direct = _open_direct(path)
        size = os.fstat(self.descriptor).st_size
        self.size = size if length is None else min(size, length)
        self._on_read = on_read
        # A window begins at a block, so it has one more than a caller can ask for.
        blocks = -(-min(window_bytes, max(1, self.size)) // DISK_BLOCK_BYTES) + 1
        self._begin(mmap.mmap(-1, blocks * DISK_BLOCK_BYTES))  # Aligned, as direct I/O needs it.

    def all_bytes_at(self, offset: int, size: int) -> bytes:
        parts, end = list[bytes](), min(offset + size, self.size)
        while offset < end:
            part = self.bytes_at(offset, min(end - offset, len(self._memory) - DISK_BLOCK_BYTES))
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def bytes_at(self, offset: int, size: int) -> bytes:
        return super().bytes_at(offset, min(size, len(self._memory) - DISK_BLOCK_BYTES))

    def _fill(self, offset: int) -> None:
        self._start = self._stop = offset // DISK_BLOCK_BYTES * DISK_BLOCK_BYTES
        wanted = min(len(self._memory), self.size - self._start)
        with memoryview(self._memory) as memory:
            while self._stop < self._start + wanted:
                place = self._stop - self._start
                count = self._read(memory[place:], self._stop)
                if count == 0:
                    break
                self._stop += count
                self._on_read(count)
        self._stop = min(self._stop, self.size)

    def _read(self, memory: memoryview, offset: int) -> int:
        if self.is_direct:
            try:
                return os.preadv(self.descriptor, [memory], offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._end_direct()
        _drop_cached(self.descriptor, offset, len(memory))
        return os.preadv(self.descriptor, [memory], offset)

    def _end_direct(self) -> None:
        """For a file system that takes the flag, but not such reads."""
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.is_direct = False


def _open_direct(path: Path) -> tuple[int, bool]:
    """A descriptor, and whether it reads past the page cache."""
    flags, direct = os.O_RDONLY | os.O_CLOEXEC, getattr(os, "O_DIRECT", 0)
    if direct:
        try:
            return os.open(path, flags | direct), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return os.open(path, flags), False


def _drop_cached(descriptor: int, offset: int, size: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)
