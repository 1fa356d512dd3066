"""A disk that knows what a power cut would leave, and convicts what relies on more than that.

A file system writes the data of a file and the names in a directory when it likes, in any order,
unless a program syncs the file and the directory. `RecordingDisk` watches the process at the
functions of the operating system, keeps what was synced, and compares that with what is there:

- a file gets its final name only after its data is synced (a rename replaces at once, and the new
  data may come later than the new name);
- a name that a power cut would leave is deleted only when everything else below the root would be
  left too, because a file is deleted where another one holds what it holds;
- what is acknowledged is durable, data and names: `check` at that moment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

EMPTY = hashlib.sha256().digest()


class Violation(AssertionError):
    """The process relied on what a power cut would not leave."""


class RecordingDisk:
    """Watches all files below a directory; what is there at the beginning is durable.

    Args:
        root: the directory; a power cut leaves its own name.
        logged: suffixes of files whose data another file may hold in addition.
        logs: directories whose files hold that data, so that they go only when it is synced.
        passing: patterns of names that need not survive, or may come back.

    Attributes:
        operations: names of the watched operations so far, each with the name of its file.
        violations: what was done too early.
    """

    def __init__(
        self,
        root: Path,
        *,
        logged: tuple[str, ...] = (),
        logs: tuple[str, ...] = (),
        passing: tuple[str, ...] = (),
    ) -> None:
        self.operations: list[tuple[str, str]] = []
        self.violations: list[str] = []
        self._root, self._logged, self._logs = root.resolve(), logged, logs
        self._passing = passing
        self._data: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._patch = pytest.MonkeyPatch()
        for place in (self._root, *self._root.rglob("*")):
            self._sync(place)

    def __enter__(self) -> RecordingDisk:
        for name in ("fsync", "fdatasync"):
            self._watch(name, self._synced)
        for name in ("rename", "replace"):
            self._watch(name, self._renamed)
        for name in ("unlink", "remove"):
            self._watch(name, self._unlinked)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._patch.undo()
        if kind is None and self.violations:
            raise Violation("\n".join(self.violations))

    def check(self, *, logged: bool = True) -> None:
        """Expects that a power cut would leave all that is there, and nothing else.

        Args:
            logged: whether another file may hold the data of files with the suffixes `logged`.

        Raises:
            Violation: it would leave something else.
        """
        wrong = [*self._lost(logged=logged), *self._returning()]
        if wrong:
            raise Violation(f"not durable: {', '.join(wrong)}")

    # --- what a power cut would do ---------------------------------------------------------------

    def _lost(self, place: Path | None = None, *, logged: bool) -> Iterator[str]:
        """What is there, below a place or at it, and would not be there, or with other data."""
        for path in _below(place or self._root):
            if path.is_dir():
                names = self._names.get(path.stat().st_ino, {})
                for name, number in _listing(path).items():
                    if names.get(name) != number and not self._is_passing(name):
                        yield f"name of {self._short(path / name)}"
            elif (
                not self._is_passing(path.name)
                and not (logged and path.suffix in self._logged)
                and self._data.get(path.stat().st_ino, EMPTY) != _digest(path)
            ):
                yield f"data of {self._short(path)}"

    def _returning(self) -> Iterator[str]:
        """Names that are gone and would be there again."""
        for path in _below(self._root):
            if path.is_dir():
                gone = self._names.get(path.stat().st_ino, {}).keys() - _listing(path)
                for name in sorted(gone):
                    if not self._is_passing(name):
                        yield f"former {self._short(path / name)}"

    def _is_passing(self, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self._passing)

    def _would_stay(self, path: Path) -> bool:
        names = self._names.get(path.parent.stat().st_ino, {})
        return names.get(path.name) == path.lstat().st_ino

    # --- operations ------------------------------------------------------------------------------

    def _watch(self, name: str, before: Callable[..., None]) -> None:
        real = getattr(os, name)

        def watched(*args: Any, **options: Any) -> Any:
            before(name, *args, **options)
            return real(*args, **options)

        self._patch.setattr(os, name, watched)

    def _synced(self, name: str, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if self._is_ours(path):
            self.operations.append((name, path.name))
            self._sync(path, Path(f"/proc/self/fd/{descriptor}"))

    def _sync(self, path: Path, opened: Path | None = None) -> None:
        number = (opened or path).stat().st_ino
        if path.is_dir():
            self._names[number] = _listing(path)
        else:
            self._data[number] = _digest(opened or path)

    def _renamed(self, name: str, source: Any, target: Any, **options: Any) -> None:
        path = Path(os.fspath(source)).absolute()
        if self._is_ours(path) and path.exists():
            self.operations.append((name, Path(os.fspath(target)).name))
            self._convict(f"rename {self._short(path)}", self._lost(path, logged=True))

    def _unlinked(self, name: str, path: Any, *, dir_fd: int | None = None) -> None:
        parent = Path() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
        whole = (parent / os.fspath(path)).absolute()
        if not self._is_ours(whole) or not whole.exists():
            return
        self.operations.append((name, whole.name))
        if self._would_stay(whole):
            is_log = whole.parent.name in self._logs
            lost = self._lost(logged=not is_log)
            own = {f"{what} of {self._short(whole)}" for what in ("data", "name")}
            self._convict(f"unlink {self._short(whole)}", (one for one in lost if one not in own))
        if whole.stat().st_nlink == 1:
            self._data.pop(whole.stat().st_ino, None)

    def _convict(self, operation: str, lost: Iterator[str]) -> None:
        self.violations += [f"{operation} before the sync of the {what}" for what in lost]

    def _is_ours(self, path: Path) -> bool:
        return path == self._root or self._root in path.parents

    def _short(self, path: Path) -> str:
        return str(path.relative_to(self._root))


def _below(place: Path) -> Iterator[Path]:
    yield place
    if place.is_dir():
        yield from sorted(place.rglob("*"))


def _listing(directory: Path) -> Mapping[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(directory)}


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
