"""A disk for a process that dies at one of its operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class KillingDisk(RealDisk):
    """The real disk, for a process that dies at one of its operations.

    Args:
        at: number of the operation, from 0.
        after: whether the operation itself still happens; a write happens half otherwise.
    """

    def __init__(self, at: int, *, after: bool) -> None:
        self.names: list[str] = []
        self._at = at
        self._after = after

    def _do(self, name: str, operation: Callable[[], Any]) -> Any:
        self.names.append(name)
        if len(self.names) - 1 < self._at:
            return operation()
        if self._after:
            operation()
        raise Killed

    def create(self, path: Path) -> int:
        return int(self._do("create", lambda: RealDisk.create(self, path)))

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        joined = b"".join(map(bytes, buffers))
        if len(self.names) == self._at and not self._after:
            RealDisk.write(self, descriptor, [joined[: len(joined) // 2]], offset)
        return int(self._do("write", lambda: RealDisk.write(self, descriptor, [joined], offset)))

    def fdatasync(self, descriptor: int) -> None:
        self._do("fdatasync", lambda: RealDisk.fdatasync(self, descriptor))

    def rename(self, path: Path, name: Path) -> None:
        self._do("rename", lambda: RealDisk.rename(self, path, name))

    def unlink(self, path: Path) -> None:
        self._do("unlink", lambda: RealDisk.unlink(self, path))

    def sync_directory(self, directory: Path) -> None:
        self._do("sync_directory", lambda: RealDisk.sync_directory(self, directory))
