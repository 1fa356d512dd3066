"""The process under bubblewrap: its command, its start, and its signals and CPU time from outside.

The process sees, read-only, the interpreter with its standard library, the directory of the C
library, the packages for samplers, the time zones, and the uploaded archive; no `/proc`, `/dev`,
`/etc` or temporary directory. A node of root changes to a user without files. Another node needs a
user namespace, and has an unprivileged uid in it.

A thread starts the process and waits for its end. Linux kills the process when that thread ends,
and therefore also when the parent dies.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import secrets
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from galileo.clock import run_queue_wait_s
from galileo.sampler_runtime import SandboxLimits
from galileo_sandbox import confinement

PROGRAM = "bwrap"
SITE = "/site"
ARCHIVE = "/sent/sampler.zip"
UNPRIVILEGED_UID = 65534

USERS = range(61_184, 65_520)
"""Users that hosts leave to services without a user of their own, and no file belongs to."""

PACKAGES = (
    "galileo",
    "galileo_sandbox",
    "numpy",
    "pyarrow",
    "pandas",
    "dateutil",
    "pytz",
    "tzdata",
    "six",
    "pygeohash",
)
_LIBRARIES_OF_PACKAGES = ".libs"
_OTHERS = ("site-packages", "dist-packages")
_ZONES = "/usr/share/zoneinfo"
_NAMESPACES = ("ipc", "pid", "net", "uts", "cgroup-try")
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    # Address space is what is bounded; some allocators reserve much of it.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    # Else large arrays are returned to the kernel and allocated again, page by page, in every call.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TZ": "UTC",
}
_START = (
    f"import sys; sys.path.append({SITE!r}); "
    "from galileo_sandbox import worker; worker.main(sys.argv[1])"
)
END_S = 10.0
"""Seconds for the kernel to end a killed process."""

_CLOCK_OF_PROCESS = 2


@dataclass(slots=True)
class Child:
    """A started process.

    Attributes:
        process: bubblewrap's, outside.
        requests: descriptor to write requests to.
        answers: descriptor to read answers from.
        printed: descriptor of its standard output and error.
        keeper: the thread that started it and waits for it.
        pid: of the contained process in the namespace of the parent; 0 until `find`.
    """

    process: subprocess.Popen[bytes]
    requests: int
    answers: int
    printed: int
    keeper: threading.Thread
    pid: int = 0
    _handle: int = -1

    def find(self) -> None:
        """Finds the contained process: bubblewrap's grandchild, below the first of its namespace.

        Raises:
            psutil.Error, OSError, ValueError: it is gone.
        """
        (first,) = psutil.Process(self.process.pid).children()
        (contained,) = first.children()
        self.pid = contained.pid
        self._handle = os.pidfd_open(self.pid)

    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the contained process; nothing where it is gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def cpu_s(self) -> float:
        """CPU time of the contained process, all its threads; 0 where it is gone."""
        with suppress(OSError):
            return time.clock_gettime((~self.pid << 3) | _CLOCK_OF_PROCESS)
        return 0.0

    def run_queue_wait_s(self) -> float:
        """How long the contained process has waited for a processor; 0 before `find`."""
        return run_queue_wait_s(self.pid) if self.pid else 0.0

    def end(self) -> None:
        """Kills it with everything in its namespace, waits for that, and closes the pipes."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.keeper.join(END_S)
        if self._handle >= 0:
            # Readable when the process is over; bubblewrap's end is not yet the contained one's.
            gone = select.poll()
            gone.register(self._handle, select.POLLIN)
            gone.poll(1000 * END_S)
        for descriptor in (self.requests, self.answers, self.printed, self._handle):
            if descriptor >= 0:
                os.close(descriptor)


def spawn(
    archive: bytes, memory: int, limits: SandboxLimits, *, as_root: bool | None = None
) -> Child:
    """Starts a contained process.

    Args:
        archive: the uploaded zip file.
        memory: descriptor of the shared memory, readable.
        limits: that the process sets for itself.
        as_root: see `command`.

    Raises:
        OSError: bubblewrap cannot be started.
    """
    machine = confinement.this_machine()
    if machine is None:
        raise OSError(f"the processors of this machine ({os.uname().machine}) are not known")
    requests, ours = os.pipe2(os.O_CLOEXEC)
    answered, answers = os.pipe2(os.O_CLOEXEC)
    printed, prints = os.pipe2(os.O_CLOEXEC)
    given = (answers, memory, _file(archive), _file(confinement.base_filter(machine)))
    theirs = (requests, prints, *(descriptor for descriptor in given if descriptor != memory))
    try:
        words = command(Descriptors(*given), limits, as_root=as_root)
        process, keeper = _start_in_thread(words, requests=requests, prints=prints, given=given)
    except BaseException:
        for descriptor in (ours, answered, printed):
            os.close(descriptor)
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return Child(process, ours, answered, printed, keeper)


def _file(content: bytes) -> int:
    """The descriptor of an anonymous file with this content, at its start."""
    descriptor = os.memfd_create("given", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _start_in_thread(
    words: list[str], *, requests: int, prints: int, given: tuple[int, ...]
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Starts the command in a thread that waits for its end."""
    started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

    def keep() -> None:
        try:
            process = subprocess.Popen(
                words,
                stdin=requests,
                stdout=prints,
                stderr=prints,
                pass_fds=given,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    keeper = threading.Thread(target=keep, name="contained sampler", daemon=True)
    keeper.start()
    outcome = started.get()
    if isinstance(outcome, OSError):
        raise outcome
    return outcome, keeper


# --- the command ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Open files that the process inherits, by number.

    Attributes:
        answers: to write to.
        memory: of labels, to read.
        archive: read by bubblewrap, which puts it where `ARCHIVE` says.
        filter: read by bubblewrap, the base filter of system calls.
    """

    answers: int
    memory: int
    archive: int
    filter: int


def program() -> str | None:
    """The path of bubblewrap, or None."""
    return shutil.which(PROGRAM, path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/local/bin")


def command(
    descriptors: Descriptors, limits: SandboxLimits, *, as_root: bool | None = None
) -> list[str]:
    """The command line of a contained process.

    Args:
        descriptors: that it inherits.
        limits: of which it takes memory, files and threads upon itself.
        as_root: whether bubblewrap is started with root's rights; as this process is, by default.
    """
    rooted = os.geteuid() == 0 if as_root is None else as_root
    interpreter = str(Path(sys.executable).resolve())
    config = {
        "answers": descriptors.answers,
        "memory": descriptors.memory,
        "archive": ARCHIVE,
        "user": secrets.choice(USERS) if rooted else None,
        "bounds": {
            "memory_bytes": limits.memory_bytes,
            "open_files": limits.open_files,
            "threads": limits.threads,
        },
    }
    return [
        program() or PROGRAM,
        *_isolation(rooted=rooted),
        *_files(),
        *("--perms", "0444", "--ro-bind-data", str(descriptors.archive), ARCHIVE),
        *("--remount-ro", "/", "--chdir", "/", "--clearenv"),
        *_environment(),
        *("--seccomp", str(descriptors.filter), "--"),
        *(
            interpreter,
            "-s",
            "-S",
            "-P",
            "-B",
            "-u",
            "-X",
            "utf8",
            "-c",
            _START,
            json.dumps(config),
        ),
    ]


def _isolation(*, rooted: bool) -> Iterator[str]:
    yield from (f"--unshare-{name}" for name in _NAMESPACES)
    yield from ("--new-session", "--die-with-parent", "--cap-drop", "ALL")
    if rooted:
        # Until the process has changed to another user.
        yield from ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    else:
        yield from (
            "--unshare-user",
            "--uid",
            str(UNPRIVILEGED_UID),
            "--gid",
            str(UNPRIVILEGED_UID),
        )


def _environment() -> Iterator[str]:
    for name, value in (_ENVIRONMENT | {"LD_LIBRARY_PATH": str(_libraries())}).items():
        yield from ("--setenv", name, value)


def _files() -> list[str]:
    """Mounts of the visible files, and of all directories above them with mode 755."""
    places = {place: source for source, place in _seen()}
    above = {str(one) for place in (*places, ARCHIVE) for one in Path(place).parents} - {"/"}
    options = [["--perms", "0755", "--dir", one] for one in sorted(above)]
    options += [["--ro-bind", source, place] for place, source in places.items()]
    # Where Galileo is installed without an environment of its own, others' packages are there.
    options += [["--tmpfs", place, "--remount-ro", place] for place in _other_packages()]
    options += [["--symlink", target, link] for link, target in _links()]
    return [word for option in options for word in option]


def _seen() -> Iterator[tuple[str, str]]:
    """The visible files, by their places in the sandbox."""
    alike = [str(Path(sys.executable).resolve()), *_standard_library(), *_libpython()]
    alike += [*_system_libraries(), *([_ZONES] if Path(_ZONES).is_dir() else [])]
    yield from ((place, place) for place in alike)
    for name in PACKAGES:
        yield from _package(name)


def _standard_library() -> Sequence[str]:
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix, "installed_base": sys.base_prefix}
    paths = sysconfig.get_paths(vars=base | {"installed_platbase": sys.base_prefix})
    return sorted({paths["stdlib"], paths["platstdlib"]})


def _other_packages() -> list[str]:
    places = [Path(place) / name for place in _standard_library() for name in _OTHERS]
    return [str(place) for place in places if place.is_dir()]


def _libpython() -> list[str]:
    """The interpreter's own library, where it is not in the program."""
    return [str(path) for path in sorted(_libraries().glob("libpython3*.so*"))]


def _libraries() -> Path:
    return Path(str(sysconfig.get_config_var("LIBDIR") or f"{sys.base_prefix}/lib"))


def _package(name: str) -> Iterator[tuple[str, str]]:
    """A package of ours or of the environment, with the libraries that wheels put next to it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return
    file = Path(spec.origin)
    home = file.parent if file.name == "__init__.py" else file
    yield str(home), f"{SITE}/{home.name}"
    libraries = home.with_name(name + _LIBRARIES_OF_PACKAGES)
    if libraries.is_dir():
        yield str(libraries), f"{SITE}/{libraries.name}"


def _system_libraries() -> Sequence[str]:
    """The directories of the C library and of the program that links, as this process has them."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line}
    parents = {
        path.parent.resolve() for path in mapped if path.name.startswith(("libc.so", "ld-linux"))
    }
    lib64 = Path("/lib64").resolve()
    return sorted({str(path) for path in parents} | ({str(lib64)} if lib64.is_dir() else set()))


def _links() -> Iterator[tuple[str, str]]:
    """`/lib` and its like, where they only lead below `/usr`."""
    for link in ("/lib", "/lib64"):
        if Path(link).is_symlink():
            yield link, str(Path(link).readlink())
