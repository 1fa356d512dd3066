"""The JVM of PySpark, launched without Spark's shell scripts.

PySpark launches it with a `preexec_fn`, which forks the process and sometimes aborts if gRPC is in
use; a plain `Popen` does not. And Spark's scripts require the module `jdk.incubator.vector`, which
small Java runtimes lack and only MLlib uses.
"""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from galileo.errors import ConfigError
from galileo.spark.java import Java

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.02

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


@dataclass(frozen=True, slots=True)
class JvmOptions:
    """Options of the JVM.

    Attributes:
        java: the runtime.
        spark_home: directory that holds `jars/`.
        work_dir: for temporary files of the JVM.
        heap_mb: upper bound of its heap.
        log_config: a log4j2 configuration.
        environment: of the JVM and of every Python worker that it starts.
        flags: of the JVM; by default, only its first compiler.
    """

    java: Java
    spark_home: Path
    work_dir: Path
    heap_mb: int
    log_config: Path
    environment: Mapping[str, str]
    flags: Sequence[str] = (_COMPILER,)


class Gateway:
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


def launch(options: JvmOptions, *, log: IO[bytes] | None = None) -> Gateway:
    """Starts the JVM and waits until it is ready.

    Args:
        options: of the JVM.
        log: for its output; None for the standard error of this process.

    Raises:
        ConfigError: it ended or was not ready in time.
    """
    info = options.work_dir / "gateway"
    info.unlink(missing_ok=True)
    process = subprocess.Popen(
        _command(options),
        env={**options.environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info)},
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
    return Gateway(process, port=port, secret=secret)


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


def _command(options: JvmOptions) -> list[str]:
    return [
        str(options.java.path),
        "-cp",
        f"{options.spark_home}/jars/*",
        f"-Xmx{options.heap_mb}m",
        f"-Djava.io.tmpdir={options.work_dir}",
        *options.flags,
        *MODULE_OPTIONS,
        f"-Dlog4j2.configurationFile={options.log_config}",
        _SERVER,
    ]


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
