"""Files in anonymous memory: for data that has no file and is read as one (Linux)."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

_LINK = "/memfd:"
_NAME = "galileo-data"


class MemoryFile:
    """A file that only this process has; its memory is freed when it is closed.

    Attributes:
        path: while it is open.
        size: bytes that were written.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create(_NAME)
        self.path = Path(f"/proc/self/fd/{self._descriptor}")
        self.size = 0

    def __enter__(self) -> MemoryFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes) -> None:
        """Appends data."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self.size += len(data)


def is_memory_file(path: Path) -> bool:
    """Whether a path is that of a `MemoryFile`, which no other process can truncate."""
    return path.is_symlink() and str(path.readlink()).startswith(_LINK)
