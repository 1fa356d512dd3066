"""The memory limit of this process: that of the machine or of its control groups.

A container sees the memory of the whole machine, and the kernel kills it if it exceeds its limit.
Therefore the limits of the process's group and its ancestors are read, for both versions of Linux's
control groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

OWN_GROUPS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")
_UNLIMITED_FROM = 1 << 60
"""Version 1 reports a number a little below 2**63 if there is no limit."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes.

    Attributes:
        total: the limit of the process.
        available: the memory that it can still allocate.
    """

    total: int
    available: int


def memory(own_groups: Path = OWN_GROUPS, mounted: Path = MOUNTED) -> Memory:
    """The memory of the machine, bounded by the groups of this process."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for limit, used in _limits(own_groups, mounted):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return Memory(total, available)


def _limits(own_groups: Path, mounted: Path) -> Iterator[tuple[int, int]]:
    """Limit and usage of each group of the process that has a limit."""
    for place, names in _places(_read(own_groups), mounted):
        limit, used = _number(place / names[0]), _number(place / names[1])
        if limit is not None and used is not None and limit < _UNLIMITED_FROM:
            yield limit, max(0, used - _reclaimable(place))


@lru_cache(maxsize=4)
def _places(own_groups: str, mounted: Path) -> tuple[tuple[Path, tuple[str, str]], ...]:
    """Directories of the groups, innermost first, and the names of the two files."""
    places: list[tuple[Path, tuple[str, str]]] = []
    for line in own_groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            root, names = mounted / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        elif not controllers:
            root, names = mounted, ("memory.max", "memory.current")
        else:
            continue
        inner = root / path.lstrip("/")
        # Within a container the path is that of the host, and the container's group is the root.
        chain = [inner, *inner.parents] if inner.is_dir() else [root]
        places += [(place, names) for place in chain if place.is_relative_to(root)]
    return tuple(places)


def _reclaimable(place: Path) -> int:
    """The part of the usage that the kernel can reclaim: cached files."""
    facts = dict(line.partition(" ")[::2] for line in _read(place / "memory.stat").splitlines())
    number = facts.get("total_inactive_file", facts.get("inactive_file", "0"))
    return int(number) if number.isdecimal() else 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
