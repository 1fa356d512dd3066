"""Drops the rights of the contained process that bubblewrap cannot drop; irreversible.

Runs after the imports of the packages for samplers, and before the import of the uploaded code.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping
from typing import Final

from galileo.containment import filters
from galileo.containment.system_calls import Machine

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITY_VERSION: Final = 0x2008_0522
_SECCOMP_SET_MODE_FILTER: Final = 1
_ALL_THREADS: Final = 1

_NOTHING = (
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_MSGQUEUE,
    resource.RLIMIT_RTPRIO,
)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def drop_privileges(user: int) -> None:
    """Changes to a user without files, where bubblewrap was started by root.

    Root without capabilities still owns the files of root, and Linux does not limit its threads.
    """
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Inheritable capabilities survive the change of the user.
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.addressof(header), ctypes.addressof(none))


def confine(bounds: Mapping[str, int]) -> None:
    """Bounds memory, files and threads, and filters all system calls from now on.

    Args:
        bounds: memory_bytes, open_files and processes of the limits.

    Raises:
        OSError: the kernel refuses a limit or the filter.
    """
    for limit in _NOTHING:
        resource.setrlimit(limit, (0, 0))
    # Hosts may pipe core dumps to a program of root; only a limit of 1 prevents it.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    for limit, name in (
        (resource.RLIMIT_AS, "memory_bytes"),
        (resource.RLIMIT_NOFILE, "open_files"),
        (resource.RLIMIT_NPROC, "processes"),
    ):
        resource.setrlimit(limit, (bounds[name], bounds[name]))
    machine = filters.this_machine()
    if machine is None:
        raise OSError("the system calls of this machine have no numbers here")
    _filter(machine)


def _filter(machine: Machine) -> None:
    """Installs the filter of system calls in all threads, also those of libraries."""
    program = filters.strict(machine)
    described = _Program(len(program) // filters.INSTRUCTION_BYTES, program)
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    place = ctypes.addressof(described)
    number = machine.numbers["seccomp"]
    _call("syscall", number, _SECCOMP_SET_MODE_FILTER, _ALL_THREADS, place)


def _call(function: str, *arguments: int) -> None:
    """Calls a function of the C library that returns 0."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*map(ctypes.c_ulong, arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}{arguments[:2]}: {os.strerror(number)}")
