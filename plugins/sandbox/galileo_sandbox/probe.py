"""Tries whether uploaded code can be sandboxed on this machine."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa

from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.sampler_package import archive_of
from galileo.sampler_runtime import DEFAULT_LIMITS
from galileo.samplers import SamplerSpec
from galileo_sandbox.bubblewrap import PROGRAM, program
from galileo_sandbox.channel import SandboxTerminated
from galileo_sandbox.confinement import this_machine
from galileo_sandbox.process import SandboxedProcess, UserCodeError

_LABELS = 9

# Keeps every other label where it can do nothing else, and none where it can.
_SAMPLER = b"""\
import os, socket, threading
import numpy as np


def refused(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False


class Probe:
    def sample(self, labels, *, seed):
        attempts = (
            os.fork,
            socket.socket,
            lambda: os.execv("/bin/true", ["true"]),
            lambda: open("/etc/passwd"),
            lambda: open("/x", "w"),
            lambda: os.listdir("/proc"),
        )
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        contained = all(map(refused, attempts)) and os.getuid() != 0
        return np.arange(len(labels)) % 2 == (0 if contained else 2)
"""


class _NotSandboxed(Exception):
    """The reason why code cannot be sandboxed."""


def unavailable_reason() -> str | None:
    """Why code cannot be sandboxed on this machine, or None; tries it.

    A success is remembered. A failure is tried again, since it may be over: a package was
    installed, or the machine was only too busy.
    """
    try:
        _check_once()
    except _NotSandboxed as error:
        return str(error)
    return None


@functools.cache
def _check_once() -> None:
    """Cached: a success is remembered, an exception is not."""
    if (reason := probe_sandbox()) is not None:
        raise _NotSandboxed(reason)


def probe_sandbox(*, as_root: bool | None = None) -> str | None:
    """As `unavailable_reason`, without the cache.

    Args:
        as_root: see `bubblewrap.command`.
    """
    if this_machine() is None:
        return "its processors are not among those whose system calls are known"
    if program() is None:
        return f"{PROGRAM!r} is not installed; install bubblewrap"
    try:
        return None if _escape_fails(as_root) else "code in it could do what it must not"
    except (SandboxTerminated, UserCodeError) as error:
        return f"bubblewrap fails here: {error}"


def _escape_fails(as_root: bool | None) -> bool:
    """Whether code that tries to escape fails to do so."""
    archive = archive_of({"probe.py": _SAMPLER}, name="probe", entry="probe:Probe")
    process = SandboxedProcess(archive, limits=DEFAULT_LIMITS, as_root=as_root)
    try:
        process.load(SamplerSpec("probe"))
        mask = process.mask("sample", _labels(), seed=0)
    finally:
        process.end()
    return bool(np.array_equal(mask, np.arange(_LABELS) % 2 == 0))


def _labels() -> LabelSet:
    schema = Schema("probe", [Feature("value")])
    zeros = np.zeros(_LABELS, dtype=np.int64)
    columns = {column.name: pa.array(zeros).cast(column.type) for column in schema.label_schema}
    return LabelSet(schema, pa.table(columns, schema=schema.label_schema))
