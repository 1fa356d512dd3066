"""What a fault needs of the machine, tried out rather than guessed."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fault_injection.clocks import faketime_missing
from fault_injection.control_groups import cpu_group_missing, memory_group_missing
from fault_injection.disks import LoopDisk, MemoryDisk
from fault_injection.networks import network_missing
from fault_injection.strace import attached_to_nothing


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a machine may lack.

    Attributes:
        name: in words.
        missing: why it cannot be had here; None where it can.
    """

    name: str
    missing: Callable[[], str | None]


def first_missing(needs: Iterable[Need]) -> str | None:
    """Why not all of these can be had, None where they can."""
    reasons = (f"no {need.name}: {why}" for need in needs if (why := need.missing()) is not None)
    return next(reasons, None)


@functools.cache
def strace_missing() -> str | None:
    path = shutil.which("strace")
    if path is None:
        return "strace is not installed"
    fault = "inject=fdatasync:error=EIO:when=1"
    probe = [path, "-qq", "-f", "-e", "trace=fdatasync", "-e", fault, sys.executable, "-c", "pass"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"strace may not inject: {done.stderr.strip()}"


@functools.cache
def attaching_missing() -> str | None:
    why = strace_missing()
    if why is not None:
        return why
    try:
        attached_to_nothing()
    except (OSError, TimeoutError) as error:
        return f"strace may not attach to a process: {error}"
    return None


@functools.cache
def memory_disk_missing() -> str | None:
    with tempfile.TemporaryDirectory(prefix="galileo-probe-") as place:
        try:
            with MemoryDisk(Path(place) / "disk", size_bytes=1 << 16):
                return None
        except OSError as error:
            return str(error)


@functools.cache
def loop_disk_missing() -> str | None:
    """Tried with a power cut and all, since a container may permit some of it only."""
    with tempfile.TemporaryDirectory(prefix="galileo-probe-") as place:
        try:
            with LoopDisk(Path(place)) as disk:
                (disk.directory / "file").write_bytes(b"x")
                disk.cut_power(flag=2)
                disk.repair()
                return None
        except OSError as error:
            return str(error)


STRACE = Need("strace", strace_missing)
ATTACHING = Need("strace of running processes", attaching_missing)
MEMORY_DISK = Need("small file system", memory_disk_missing)
LOOP_DISK = Need("file system on a loop device", loop_disk_missing)
CLOCKS = Need("wall clock that jumps", faketime_missing)
NETWORK = Need("network of namespaces", network_missing)
MEMORY_GROUP = Need("control group with little memory", memory_group_missing)
CPU_GROUP = Need("control group with little of a processor", cpu_group_missing)
