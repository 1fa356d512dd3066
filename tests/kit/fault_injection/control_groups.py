"""Control groups of Linux: processes with little memory, or little of a processor.

A group is created within that of this process and removed at the end of the block, when its
processes must have ended. Both versions of control groups are supported.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
CPU_PERIOD_US = 100_000
END_TIMEOUT_S = 10.0


class ControlGroup:
    """One group; `prefix` runs a command in it."""

    def __init__(self, place: Path, *, is_second: bool) -> None:
        self._place = place
        self._is_second = is_second

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command prefix; the process enters the group and executes the command."""
        enter = f'echo $$ > {self._place / "cgroup.procs"} && exec "$@"'
        return ("sh", "-c", enter, "sh")

    def limit_memory(self, size: int) -> None:
        """Limit in bytes; above it the kernel drops its cache of files, then kills a process."""
        name = "memory.max" if self._is_second else "memory.limit_in_bytes"
        (self._place / name).write_text(str(size))

    def limit_cpu(self, share: float) -> None:
        """Share of one processor; 0.2: 20 ms in each 100."""
        quota = int(CPU_PERIOD_US * share)
        if self._is_second:
            (self._place / "cpu.max").write_text(f"{quota} {CPU_PERIOD_US}")
            return
        (self._place / "cpu.cfs_period_us").write_text(str(CPU_PERIOD_US))
        (self._place / "cpu.cfs_quota_us").write_text(str(quota))

    @property
    def memory_used(self) -> int:
        """Bytes, without the cache of files."""
        name = "memory.current" if self._is_second else "memory.usage_in_bytes"
        stat = dict(
            line.split(" ", 1) for line in (self._place / "memory.stat").read_text().splitlines()
        )
        dropped = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
        return int((self._place / name).read_text()) - int(dropped)

    @property
    def memory_left(self) -> int:
        """Bytes until the limit."""
        name = "memory.max" if self._is_second else "memory.limit_in_bytes"
        text = (self._place / name).read_text().strip()
        return int(text) - self.memory_used if text.isdecimal() else sys.maxsize

    def leave(self, pid: int) -> None:
        """Move a process to the group around this one."""
        with contextlib.suppress(ProcessLookupError, OSError):
            (self._place.parent / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def control_group(controller: str) -> Iterator[ControlGroup]:
    """A group within that of this process.

    Args:
        controller: "memory" or "cpu".

    Raises:
        OSError: this machine does not permit it.
    """
    around, is_second = _own(controller)
    place = around / f"galileo-chaos-{os.getpid()}-{time.monotonic_ns()}"
    place.mkdir()
    try:
        yield ControlGroup(place, is_second=is_second)
    finally:
        _remove(place)


def _own(controller: str) -> tuple[Path, bool]:
    """The group of this process for a controller, and whether it is of the second version."""
    second = None
    for line in OWN_GROUPS.read_text().splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            return MOUNTED / names / path.lstrip("/"), False
        if not names:
            second = MOUNTED / path.lstrip("/")
    if second is None or controller not in (second / "cgroup.controllers").read_text().split():
        raise OSError(f"no control group of this process has the controller {controller!r}")
    if controller not in (second / "cgroup.subtree_control").read_text().split():
        (second / "cgroup.subtree_control").write_text(f"+{controller}")
    return second, True


def _remove(place: Path) -> None:
    deadline = time.monotonic() + END_TIMEOUT_S
    while True:
        try:
            place.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@functools.cache
def memory_group_missing() -> str | None:
    try:
        with control_group("memory") as group:
            group.limit_memory(64 << 20)
    except OSError as error:
        return str(error)
    return None


@functools.cache
def cpu_group_missing() -> str | None:
    try:
        with control_group("cpu") as group:
            group.limit_cpu(0.5)
    except OSError as error:
        return str(error)
    return None
