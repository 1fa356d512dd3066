"""The runtime directory, in which the processes of a host find their evaluator.

It has a lock and a socket. The lock is a `flock` on an open file: its holder is the evaluator or a
process that becomes it. A launcher passes the locked file to the process that it starts, so the
lock is never free in between. The socket is there while the evaluator is warm; only its owner may
connect to it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

import psutil

from galileo.errors import ConfigError

_SOCKET = "evaluator.sock"
_LOCK = "evaluator.lock"
_LOG = "evaluator.log"
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


class RuntimeDir:
    """The directory of the lock and the socket. Only its owner may write in it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._make()

    @property
    def log(self) -> Path:
        return self.path / _LOG

    @property
    def work_dir(self) -> Path:
        return self.path / "spark"

    def _check_owned(self) -> None:
        """Refuses a directory that others can write in, since they could pose as the evaluator.

        Raises:
            ConfigError: it, or a link to it, has another owner, or others can write in it.
        """
        status, link = self.path.stat(), self.path.lstat()
        if status.st_mode & _WRITABLE or not {status.st_uid, link.st_uid} <= _trusted():
            raise ConfigError(
                f"expected the evaluator's runtime directory {self.path} to be owned by this "
                f"user and writable for no other; got mode {stat.S_IMODE(status.st_mode):04o} "
                f"of user {status.st_uid}; name another in evaluator.directory",
                key="evaluator.directory",
                mode=f"{stat.S_IMODE(status.st_mode):04o}",
                uid=status.st_uid,
            )

    def open(self) -> int:
        """A descriptor of the directory, for `address`; its holder closes it.

        Raises:
            OSError: there is none.
        """
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    @staticmethod
    def address(descriptor: int) -> str:
        """The address of the socket, for gRPC.

        It names the directory by a descriptor. *Reason:* a path may be too long for an address, and
        may name another directory once this one was deleted, as temporary directories are.
        """
        return f"unix:/proc/self/fd/{descriptor}/{_SOCKET}"

    def published(self) -> tuple[int, int] | None:
        """Identifies the socket; None if there is none, or another user made it."""
        try:
            status = (self.path / _SOCKET).stat()
        except OSError:
            return None
        return (status.st_ino, status.st_ctime_ns) if status.st_uid in _trusted() else None

    def withdraw(self) -> None:
        """Deletes a socket that an evaluator left; only for the holder of the lock."""
        (self.path / _SOCKET).unlink(missing_ok=True)

    def record_holder(self, lock: int, pid: int) -> None:
        """Writes the pid of the holder into the locked file."""
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(pid).encode(), 0)

    def holder(self) -> psutil.Process | None:
        """The process that holds the lock: the evaluator, or one that becomes it."""
        lock = self.try_lock()
        if lock is not None:
            os.close(lock)
            return None
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            return psutil.Process(int((self.path / _LOCK).read_text()))
        return None

    def try_lock(self) -> int | None:
        """The descriptor of the locked file, or None if another process holds the lock.

        The lock lasts until all copies of the descriptor are closed. Creates the directory again
        if it was deleted, as temporary directories are.
        """
        self._make()
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)  # Until the holder is recorded, it names no earlier one.
        return descriptor

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot create the evaluator's runtime directory {self.path}: {error.strerror}",
                key="evaluator.directory",
            ) from error
        self._check_owned()


def _trusted() -> set[int]:
    """Users whose files are trusted: root, and the user of this process."""
    return {0, os.geteuid()}
