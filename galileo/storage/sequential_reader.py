"""Reads a file from front to back through one reused buffer, for checks of whole files.

Not through a memory map: a bad sector is an `OSError` here and the end of the process there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from galileo.storage.disk import read_at
from galileo.storage.frame import checksum

WINDOW_BYTES = 1 << 20
"""Large enough that a call costs nothing, small enough to stay in the processor's cache."""


class SequentialReader:
    """A file as far as it reached when it was opened; one thread.

    Attributes:
        descriptor: of the file, open for reading.
        size: of the file, bytes; what is appended later is not looked at.
    """

    def __init__(self, path: Path, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self.descriptor).st_size
        self._memory = bytearray(min(window_bytes, max(1, self.size)))
        self._buffer = pa.py_buffer(self._memory)
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
