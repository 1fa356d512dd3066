"""The bubblewrap command of a contained process: its files, environment and user.

The process sees, read-only, the interpreter with its standard library, the directory of the C
library, the packages for samplers, the time zones, and the uploaded archive; no `/proc`, `/dev`,
`/etc` or temporary directory.

A node of root changes to a user without files. Another node needs a user namespace, and has an
unprivileged uid in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from galileo.containment.limits import ContainmentLimits

PROGRAM = "bwrap"
SITE = "/site"
ARCHIVE = "/sent/sampler.zip"
UNPRIVILEGED_UID = 65534

USERS = range(61_184, 65_520)
"""Users that hosts leave to services without a user of their own, and no file belongs to."""

PACKAGES = (
    "galileo",
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
    f"import sys; sys.path.append({SITE!r}); from galileo.containment.start import begin; begin()"
)


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
    descriptors: Descriptors, limits: ContainmentLimits, *, as_root: bool | None = None
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
            "processes": limits.processes,
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
