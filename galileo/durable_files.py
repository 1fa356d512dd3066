"""Small files that are replaced as a whole, and survive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Writes a file, or replaces one; a crash leaves the earlier or the new file, whole.

    Durable when it returns. By default only the owner can read the file.

    Raises:
        OSError: the disk refuses; the earlier file stays.
    """
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.unlink(missing_ok=True)
    with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
