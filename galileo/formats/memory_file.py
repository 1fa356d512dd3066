"""Files in anonymous memory: for data that has no file and is read as one (Linux)."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

FILE_UNPACKED_BYTES_MAX = 8 << 30
"""Of a file, what is unpacked at once."""
BODY_UNPACKED_BYTES_MAX = 256 << 20
"""The same of a `MemoryFile`, whose data came over the network."""
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


def unpacked_bytes_max(path: Path) -> int:
    """The most bytes that readers may unpack at once of the file at a path."""
    return BODY_UNPACKED_BYTES_MAX if is_memory_file(path) else FILE_UNPACKED_BYTES_MAX
