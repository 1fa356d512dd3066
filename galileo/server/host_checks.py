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

from galileo.errors import ConfigError
from galileo.sampler_runtime import unavailable_reason
from galileo.spark.jvm import find_java

SYNCED_BYTES = 4096
REFUSED_S = -1.0
OPEN_FILES_COUNTED_MAX = 2**32 - 1
"""Reported if there is no limit."""


@dataclass(frozen=True, slots=True)
class HostCondition:
    """Measurements of a host; sizes in bytes.

    Attributes:
        sync_s: time to write and sync a small file; `REFUSED_S` if it cannot be written.
        java: why Spark cannot run; empty if it can.
        containment: why there is no sandbox; empty if there is one, or it is not needed.
    """

    disk_free_bytes: int
    disk_size_bytes: int
    sync_s: float
    open_files: int
    open_files_max: int
    java: str
    containment: str


def host_condition(directory: Path, *, takes_samplers: bool) -> HostCondition:
    """Measures the host; takes a second, so call it in a thread.

    Args:
        directory: of the node.
        takes_samplers: whether users may upload samplers.

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
        java=_java(),
        containment=(unavailable_reason() or "") if takes_samplers else "",
    )


def sync_s(directory: Path) -> float:
    """Measures the time to write and sync a small unnamed file."""
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
