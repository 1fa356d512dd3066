"""Checks of a node's host: disk, open files, Java and the sandbox."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from galileo.containment.probe import obstacle
from galileo.errors import ConfigError
from galileo.spark.java import find_java

SYNCED_BYTES = 4096
REFUSED_S = -1.0
OPEN_FILES_COUNTED_MAX = 2**32 - 1
"""Where there is no limit."""


@dataclass(frozen=True, slots=True)
class HostCondition:
    """Measured a moment ago; sizes in bytes.

    Attributes:
        sync_s: that the disk took to make a small file durable; `REFUSED_S`: it cannot be written.
        java: why Spark cannot run; empty: it can.
        containment: why sent samplers cannot be contained; empty: they can, or nobody sends any.
    """

    disk_free_bytes: int
    disk_size_bytes: int
    sync_s: float
    open_files: int
    open_files_max: int
    java: str
    containment: str


def host_condition(directory: Path, *, takes_samplers: bool, master: str) -> HostCondition:
    """Looks and tries out; takes a second, so it belongs into a thread.

    Args:
        directory: of the node.
        takes_samplers: whether users may send samplers.
        master: of Spark; a remote one needs no Java here.

    Raises:
        ConfigError: there is no such directory.
    """
    try:
        disk = shutil.disk_usage(directory)
    except OSError as error:
        raise ConfigError(
            f"expected the directory of a node, got {directory}: {error.strerror}"
        ) from error
    return HostCondition(
        disk_free_bytes=disk.free,
        disk_size_bytes=disk.total,
        sync_s=sync_s(directory),
        open_files=psutil.Process().num_fds(),
        open_files_max=_open_files_max(),
        java="" if master.startswith("sc://") else _java(),
        containment=(obstacle() or "") if takes_samplers else "",
    )


def sync_s(directory: Path) -> float:
    """How long the disk takes to make a small file durable; one without a name, gone at once."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(SYNCED_BYTES))
            file.flush()
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            return time.perf_counter() - begun
    except OSError:
        return REFUSED_S


def _open_files_max() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_COUNTED_MAX if limit == resource.RLIM_INFINITY else limit


def _java() -> str:
    try:
        find_java(os.environ)
    except ConfigError as error:
        return error.message
    return ""
