"""A disk that loses what was not synced when its power is cut, page by page."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer

PAGE = 4096


class PowerCutDisk(RealDisk):
    """Files below `root`; after `cut`, each page written since the last sync is there or not.

    Args:
        root: directory of all files.
        seed: of what is lost, and of what fails.

    Attributes:
        syncs: of files so far.
        failing: the share of writes and of syncs that fail.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.syncs = 0
        self._root = root
        self._random = random.Random(seed)
        self.failing = 0.0
        self._durable: dict[int, bytes] = {}

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._durable[os.fstat(descriptor).st_ino] = b""  # Of a file that had the number before.
        return descriptor

    def fdatasync(self, descriptor: int) -> None:
        self.syncs += 1
        node = os.fstat(descriptor).st_ino
        if self._random.random() < self.failing:
            # Linux marks the pages as clean: what comes later neither writes nor reports them.
            self._lose(descriptor, self._durable.get(node, b""))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._durable[node] = _content(descriptor)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self._random.random() < self.failing:
            super().write(descriptor, [b"".join(map(bytes, buffers))[: PAGE // 3]], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, buffers, offset)

    def truncate(self, descriptor: int, length: int) -> None:
        super().truncate(descriptor, length)
        node = os.fstat(descriptor).st_ino
        self._durable[node] = self._durable.get(node, b"")[:length]

    def sync_directory(self, directory: Path) -> None:
        directory.stat()

    def cut(self) -> None:
        """Changes all files to what a power cut leaves."""
        for path in sorted(self._root.rglob("*")):
            if path.suffix not in (".segment", ".log"):
                continue
            descriptor = os.open(path, os.O_RDWR)
            try:
                self._lose(descriptor, self._durable.get(path.stat().st_ino, b""))
            finally:
                os.close(descriptor)

    def _lose(self, descriptor: int, durable: bytes) -> None:
        """Keeps some of the pages that differ from what is durable, and some of the new length."""
        content = _content(descriptor)
        length = self._random.choice((len(durable), len(content), self._between(durable, content)))
        kept = bytearray(content[:length].ljust(length, b"\0"))
        for start in range(0, length, PAGE):
            if self._random.random() < 0.5:
                old = durable[start : start + PAGE]
                stop = min(start + PAGE, length)
                kept[start:stop] = old.ljust(stop - start, b"\0")[: stop - start]
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, bytes(kept), 0)
        self._durable[os.fstat(descriptor).st_ino] = bytes(kept)

    def _between(self, durable: bytes, content: bytes) -> int:
        low, high = sorted((len(durable), len(content)))
        return self._random.randint(low, high)


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
