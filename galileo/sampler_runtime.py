"""The interface to a runtime of uploaded samplers, and how it is found.

Uploaded code never runs in a process of Galileo. A distribution of its own, `galileo-sandbox`, runs
it in sandboxed processes; its entry point is in the group `galileo.sampler_runtimes`. Where none is
installed, uploaded samplers are refused with `SandboxUnavailable`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import metadata
from typing import Protocol

from galileo.errors import InputError, SandboxUnavailable
from galileo.sampler_package import SamplerArchive
from galileo.samplers import Sampler, SamplerSpec

ENTRY_POINTS = "galileo.sampler_runtimes"
NOT_INSTALLED = (
    "the package galileo-sandbox is not installed; install it with `pip install galileo-sandbox` "
    "and start this process again"
)


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of a runtime; a call that exceeds one ends the process of its sampler.

    Attributes:
        memory_bytes: address space of a process: some 300 MB of Python, NumPy and Arrow, the
            labels that it is given, and what its code takes.
        cpu_s: CPU time of one call, all threads together.
        wall_s: seconds of one call.
        output_bytes: what its code may print in one call.
        open_files: file descriptors.
        threads: of a process; it cannot start other processes.
        input_bytes: labels and observations of one call, as Arrow has them.
        processes: of the runtime, some 100 MB each.
    """

    memory_bytes: int = 2**30
    cpu_s: float = 60.0
    wall_s: float = 60.0
    output_bytes: int = 2**20
    open_files: int = 64
    threads: int = 16
    input_bytes: int = 256 * 2**20
    processes: int = 8

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InputError(
                    f"expected {name} above 0, got {getattr(self, name)!r}", option=name
                )


DEFAULT_LIMITS = SandboxLimits()


class SamplerRuntime(Protocol):
    """Runs uploaded samplers in processes of their own; thread-safe. An entry point names a class.

    It is the one place that keeps revoked code from running: a call that begins or ends after
    `revoke` raises `SamplerRevoked` and has no result.
    """

    def __init__(self, limits: SandboxLimits) -> None: ...

    @staticmethod
    def unavailable_reason() -> str | None:
        """Why uploaded code cannot run on this machine; None if it can. Takes a second."""
        ...

    def load(self, archive: SamplerArchive, spec: SamplerSpec, *, owner: str) -> Sampler:
        """Constructs the sampler in a process, which calls of the same owner share.

        Args:
            archive: its code.
            spec: its options; the seed is given with each call.
            owner: dataset whose labels it is shown; no other owner's call gets the same process.

        Raises:
            SandboxUnavailable: this machine cannot run it.
            SamplerRevoked: the archive was revoked.
            InputError: the sampler refuses its options.
            SamplerFailed: its code raised, hung or died when it was imported or constructed.
            Overloaded: all processes are in use. Calls of the sampler raise it as well.
        """
        ...

    def evict(self, digest: str) -> None:
        """Ends the processes of an archive after their calls; another call starts a new one."""
        ...

    def revoke(self, digest: str) -> None:
        """Ends the processes of an archive after their calls, and never runs its code again."""
        ...

    def close(self) -> None:
        """Ends all processes after their calls."""
        ...


class NoRuntime:
    """Stands in where no runtime is installed: refuses every sampler."""

    def __init__(self, limits: SandboxLimits) -> None:
        pass

    @staticmethod
    def unavailable_reason() -> str | None:
        return NOT_INSTALLED

    def load(self, archive: SamplerArchive, spec: SamplerSpec, *, owner: str) -> Sampler:
        raise SandboxUnavailable(
            f"uploaded sampler {spec.name!r} cannot run here: {NOT_INSTALLED}", sampler=spec.name
        )

    def evict(self, digest: str) -> None:
        pass

    def revoke(self, digest: str) -> None:
        pass

    def close(self) -> None:
        pass


def open_runtime(limits: SandboxLimits = DEFAULT_LIMITS) -> SamplerRuntime:
    """A runtime of the installed distribution; one that refuses every sampler if there is none."""
    return _runtime_class()(limits)


def unavailable_reason() -> str | None:
    """Why uploaded samplers cannot run on this machine; None if they can.

    Tries it with code that attempts to leave the sandbox, which takes a second. Does not look at
    the configuration.
    """
    return _runtime_class().unavailable_reason()


@functools.cache
def _runtime_class() -> type[SamplerRuntime]:
    points = metadata.entry_points(group=ENTRY_POINTS)
    return next((point.load() for point in points), NoRuntime)
