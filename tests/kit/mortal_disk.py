"""A disk that fails, or whose process dies, before a given operation."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer


class Died(Exception):
    """The process died."""


@dataclass
class MortalDisk(RealDisk):
    """The process dies before the n-th operation, or that operation fails."""

    left: int = 1 << 30
    error: type[BaseException] = Died
    calls: list[str] = field(default_factory=list)

    def _step(self, name: str) -> None:
        self.calls.append(name)
        self.left -= 1
        if self.left < 0:
            raise self.error(errno.EIO, "the disk is gone")

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._step("write")
        return super().write(descriptor, buffers, offset)

    def fdatasync(self, descriptor: int) -> None:
        self._step("fdatasync")
        os.fstat(descriptor)

    def rename(self, path: Path, name: Path) -> None:
        self._step("rename")
        super().rename(path, name)

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        super().unlink(path)

    def sync_directory(self, directory: Path) -> None:
        self._step("sync_directory")
