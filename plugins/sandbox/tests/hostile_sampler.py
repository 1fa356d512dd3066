"""The sampler that makes the attempts of `hostile`."""

from __future__ import annotations

import textwrap

from hostile import ATTEMPTS

from galileo.sampler_package import SamplerArchive, archive_of

_TOOLS = """
import ctypes, fcntl, mmap, os, pickle, resource, socket, stat, struct, subprocess, sys
import threading, time
import numpy
import pyarrow as pa

LIBC = ctypes.CDLL(None, use_errno=True)
kept = []


class Evil(BaseException):
    def __str__(self):
        raise SystemError("gone too far")

    __repr__ = __str__


def call(name, *arguments):
    return number(NUMBERS[name], *arguments)


def number(number, *arguments):
    return checked(LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))


def prctl(*arguments):
    return checked(LIBC.prctl(*map(ctypes.c_long, (*arguments, 0, 0, 0))))


def libc_call(name, *arguments):
    return checked(getattr(LIBC, name)(*arguments))


def checked(outcome):
    if outcome == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return outcome


def machine_code(code):
    place = mmap.mmap(-1, 4096, prot=7)
    place.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()


def spin():
    while True:
        pass


def start(number, work):
    for _ in range(number):
        threading.Thread(target=work, daemon=True).start()


def arrow_file(table):
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, table.schema).close()
    return sink.getvalue()


def hold(number):
    for _ in range(number):
        kept.append(os.dup(0))


def release():
    while kept:
        os.close(kept.pop())


def is_a(kind, descriptor):
    try:
        return kind(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def memory():
    return next(one for one in range(3, 4096) if is_a(stat.S_ISREG, one))


def is_known(descriptor):
    # Python's mmap keeps a copy of its descriptor, which is of the same kind.
    known = (os.fstat(one).st_ino for one in (answers(), memory()))
    writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    return os.fstat(descriptor).st_ino in known and (descriptor == answers() or not writable)


def writable(descriptor):
    LIBC.mmap.restype = ctypes.c_void_p
    place = LIBC.mmap(None, ctypes.c_long(4096), 1, 1, descriptor, ctypes.c_long(0))
    return checked(LIBC.mprotect(ctypes.c_void_p(place), ctypes.c_long(4096), 3))


def answers():
    return next(one for one in range(3, 4096) if is_a(stat.S_ISFIFO, one))


def parent():
    return PARENT


def open_port():
    return PORT
"""
_CLASS = """

class Hostile:
    def __init__(self, *, parent=1, port=1, place=""):
        global PARENT, PORT
        PARENT, PORT = parent, port
        self.place = place

    def sample(self, labels, *, seed):
        if seed < len(ATTEMPTS):
            chosen = ATTEMPTS[seed](labels, seed, self.place)
            if isinstance(chosen, (numpy.ndarray, bytes)):
                return chosen
        return numpy.ones(len(labels), dtype=bool)
"""


def hostile_archive(numbers: dict[str, int]) -> SamplerArchive:
    """A sampler that makes the attempt whose place in `ATTEMPTS` the seed says; else a good one.

    Args:
        numbers: of system calls, by name.
    """
    functions = [
        f"def attempt_{place}(labels, seed, place):\n" + textwrap.indent(attempt.code, "    ")
        for place, attempt in enumerate(ATTEMPTS)
    ]
    names = ", ".join(f"attempt_{place}" for place in range(len(ATTEMPTS)))
    source = "\n\n".join([_TOOLS, f"NUMBERS = {numbers!r}", *functions])
    module = f"{source}\n\nATTEMPTS = ({names},)\n{_CLASS}"
    return archive_of({"hostile.py": module.encode()}, name="hostile", entry="hostile:Hostile")
