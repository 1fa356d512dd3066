"""The runtime directory, in which the processes of a host find their evaluator.

It has a lock and a record. The lock is a `flock` on an open file: its holder is the evaluator or a
process that becomes it. A launcher passes the locked file to the process that it starts, so the
lock is never free in between.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from galileo.errors import ConfigError

TOKEN_KEY = "galileo-evaluator-token"
"""gRPC metadata key of the token of the runtime file."""

_RECORD = "evaluator.json"
_LOCK = "evaluator.lock"
_LOG = "evaluator.log"
_SAME_START_S = 1.0
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class EvaluatorRecord:
    """The address of the evaluator, and the secret that its callers send.

    Attributes:
        address: `host:port`.
        pid: of its process.
        started: time of the start of the process, which identifies it if the pid is used again.
        token: a caller that sends it can read this file.
    """

    address: str
    pid: int
    started: float
    token: str

    @staticmethod
    def of_this_process(address: str) -> EvaluatorRecord:
        process = psutil.Process()
        return EvaluatorRecord(
            address, process.pid, process.create_time(), secrets.token_urlsafe(32)
        )

    def process(self) -> psutil.Process | None:
        """The process of the evaluator; None if it has ended."""
        try:
            process = psutil.Process(self.pid)
            return process if abs(process.create_time() - self.started) < _SAME_START_S else None
        except psutil.NoSuchProcess:
            return None


class RuntimeDir:
    """The directory of the lock and the record. Only its owner may write in it."""

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

    def read(self) -> EvaluatorRecord | None:
        """The record; None if there is none, or another user wrote it."""
        try:
            with (self.path / _RECORD).open() as file:
                is_trusted = os.fstat(file.fileno()).st_uid in _trusted()
                return EvaluatorRecord(**json.load(file)) if is_trusted else None
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def publish(self, record: EvaluatorRecord) -> None:
        """Writes the record atomically."""
        draft = self.path / f"{_RECORD}.{os.getpid()}"
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(record), file)
        draft.replace(self.path / _RECORD)

    def withdraw(self, *, pid: int | None = None) -> None:
        """Deletes the record; with `pid`, only the record of that process.

        If the directory was deleted, another evaluator may have published its record.
        """
        record = self.read() if pid is not None else None
        if record is not None and record.pid != pid:
            return
        with suppress(FileNotFoundError):
            (self.path / _RECORD).unlink()

    def record_holder(self, lock: int, pid: int) -> None:
        """Writes the pid of the holder into the locked file, which names it before it publishes."""
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
