"""The file of an audit log: one JSON object per line, with rotation by size.

Each line is written at once, so that it survives the process, but not synced: a power cut may lose
the last seconds. A line that cannot be written goes to the log instead, and the node goes on;
otherwise a full disk would prevent the acts that repair it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from galileo.errors import ConfigError

MODE = 0o600
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

log = logging.getLogger(__name__)


class AuditLog:
    """One file of one process; any thread may write.

    Args:
        path: of the file; rotated files have a number as suffix, the newest 1.
        bytes_max: size at which the file is rotated.
        files_max: number of rotated files.

    Attributes:
        written, failed: the numbers of lines that were written and that could not be.

    Raises:
        ConfigError: it cannot be written, or another process writes it.
    """

    def __init__(self, path: Path, *, bytes_max: int, files_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._one_at_a_time = threading.Lock()
        self._is_torn = False
        self.written = 0
        self.failed = 0
        try:
            self._file, self._size = self._open()
        except OSError as error:
            raise ConfigError(
                "expected audit.file to be a file that this process alone writes: "
                f"{error.strerror}; name one for each node, on a disk that can be written",
                key="audit.file",
            ) from None

    def write(self, event: Mapping[str, Any]) -> None:
        """Appends an event; a failure is logged and counted."""
        line = json.dumps(event, separators=(",", ":"), default=str).encode() + b"\n"
        with self._one_at_a_time:
            try:
                self._append(line)
            except (OSError, ValueError) as error:
                self.failed += 1
                text = line.decode(errors="replace").strip()
                log.error("cannot write to the audit log (%s): %s", error, text)
            else:
                self.written += 1

    def close(self) -> None:
        with self._one_at_a_time:
            os.close(self._file)
            self._file = -1

    def _append(self, line: bytes) -> None:
        if self._file < 0:
            raise ValueError("it is closed")
        if self._size and self._size + len(line) > self._bytes_max:
            self._put_aside()
        whole = b"\n" + line if self._is_torn else line
        done = os.write(self._file, whole)
        self._size += done
        self._is_torn = done < len(whole)
        if self._is_torn:
            raise OSError(f"only {done} of {len(whole)} bytes were taken")

    def _put_aside(self) -> None:
        """Rotates the files and deletes the oldest.

        If no new file can be opened, the next line retries only that.
        """
        if self._path.exists():
            for number in range(self._files_max - 1, 0, -1):
                older = self._aside(number)
                if older.exists():
                    older.replace(self._aside(number + 1))
            self._path.replace(self._aside(1))
        opened, size = self._open()
        os.close(self._file)
        self._file, self._size = opened, size

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _open(self) -> tuple[int, int]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path, _FLAGS, MODE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(file, MODE)
            size = os.fstat(file).st_size
            # An incomplete line, of this or an earlier run, must not corrupt the next one.
            self._is_torn = size > 0 and _last_byte(self._path, size) != b"\n"
            return file, size
        except OSError:
            os.close(file)
            raise


def _last_byte(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1)
