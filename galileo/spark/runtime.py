"""How the processes of a host find their evaluator: a lock, and a file that says where it is.

The lock is the kernel's, on an open file. Who holds it is the evaluator or is about to become it;
a launcher hands the locked file to the process that it starts, so there is no moment between.
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
"""Metadata that carries the secret of the runtime file."""

_RECORD = "evaluator.json"
_LOCK = "evaluator.lock"
_LOG = "evaluator.log"
_SAME_START_S = 1.0
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Record:
    """Where the evaluator listens, and the secret that its callers send.

    Attributes:
        address: `host:port`.
        pid: of its process.
        started: wall time of the process's start; tells it from a later one of the same pid.
        token: proves that a caller can read this file.
    """

    address: str
    pid: int
    started: float
    token: str

    @staticmethod
    def of_this_process(address: str) -> Record:
        process = psutil.Process()
        return Record(address, process.pid, process.create_time(), secrets.token_urlsafe(32))

    def process(self) -> psutil.Process | None:
        """The evaluator's process, None where it has ended."""
        try:
            process = psutil.Process(self.pid)
            return process if abs(process.create_time() - self.started) < _SAME_START_S else None
        except psutil.NoSuchProcess:
            return None


class RuntimeDir:
    """The directory by which the processes of one host meet. Only its owner may enter."""

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
        """Whoever else can write in it could pose as the evaluator.

        It may have been there: the usual place is one where all users of a machine make files.

        Raises:
            ConfigError: it, or a link to it, is another's, or others can write in it.
        """
        found, link = self.path.stat(), self.path.lstat()
        if found.st_mode & _WRITABLE or not {found.st_uid, link.st_uid} <= _trusted():
            raise ConfigError(
                f"expected the evaluator's runtime directory {self.path} to be this user's, and "
                f"no other to write in it; got mode {stat.S_IMODE(found.st_mode):04o} of user "
                f"{found.st_uid}; name another in evaluator.directory"
            )

    def read(self) -> Record | None:
        """The record; None where there is none, or somebody else has put one there."""
        try:
            with (self.path / _RECORD).open() as file:
                is_ours = os.fstat(file.fileno()).st_uid in _trusted()
                return Record(**json.load(file)) if is_ours else None
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def publish(self, record: Record) -> None:
        """Writes the record so that readers see all of it or none."""
        draft = self.path / f"{_RECORD}.{os.getpid()}"
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(record), file)
        draft.replace(self.path / _RECORD)

    def withdraw(self, *, pid: int | None = None) -> None:
        """Takes the record away; where a process is named, that of no other.

        Where the directory was cleaned away, another evaluator may be the one that is found by now.
        """
        record = self.read() if pid is not None else None
        if record is not None and record.pid != pid:
            return
        with suppress(FileNotFoundError):
            (self.path / _RECORD).unlink()

    def note_holder(self, lock: int, pid: int) -> None:
        """Writes into the locked file who holds it, so that one that only starts is found too."""
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(pid).encode(), 0)

    def holder(self) -> psutil.Process | None:
        """The process that is the evaluator, or is about to become it."""
        lock = self.try_lock()
        if lock is not None:
            os.close(lock)
            return None
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            return psutil.Process(int((self.path / _LOCK).read_text()))
        return None

    def try_lock(self) -> int | None:
        """The descriptor of the locked file, or None where an evaluator lives or starts.

        The lock lasts until every copy of the descriptor is closed. Where the directory was cleaned
        away, as those for temporary files are, it is made again.
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
                f"expected to make the evaluator's runtime directory {self.path}: {error.strerror}"
            ) from error
        self._check_owned()


def _trusted() -> set[int]:
    """Users whose files are believed: root, and who runs this process."""
    return {0, os.geteuid()}
