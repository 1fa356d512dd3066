"""The JVM that PySpark drives, launched by us instead of by Spark's shell scripts.

Two reasons. PySpark launches it with `preexec_fn`, which forks the whole process and aborts
now and then where gRPC lives; a plain `Popen` does not. And Spark's scripts always ask for the
module `jdk.incubator.vector`, which small Java runtimes lack and only MLlib uses.
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

# The JVM only passes bytes along. With the first compiler alone it is warm in half the CPU time
# and a warm job takes 60 ms instead of 85.
_COMPILER = "-XX:TieredStopAtLevel=1"

_SERVER = "org.apache.spark.api.python.PythonGatewayServer"


@dataclass(frozen=True, slots=True)
class JvmOptions:
    """How to start the JVM.

    Attributes:
        java: the runtime.
        spark_home: directory that holds `jars/`.
        work_dir: of its own; the JVM keeps temporary files there.
        heap_mb: upper bound of its heap.
        log_config: a log4j2 configuration.
        environment: of the JVM and of every Python worker that it starts.
        flags: further ones of the JVM; by default, only its first compiler.
    """

    java: Java
    spark_home: Path
    work_dir: Path
    heap_mb: int
    log_config: Path
    environment: Mapping[str, str]
    flags: Sequence[str] = (_COMPILER,)


class Gateway:
    """A running JVM. It ends with `close`, and with this process however that ends.

    `PythonGatewayServer` exits when its standard input closes; we hold the other end.
    """

    def __init__(self, process: subprocess.Popen[bytes], *, port: int, secret: str) -> None:
        self._process = process
        self.port = port
        self.secret = secret

    @property
    def pid(self) -> int:
        return self._process.pid

    def variables(self, python: str) -> dict[str, str]:
        """By which PySpark finds it, and the interpreter of its workers; in this environment."""
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
    """Starts the JVM and waits until it can be talked to.

    Args:
        options: how.
        log: where its output goes; this process's standard error when None.

    Raises:
        ConfigError: it ended or did not answer in time.
    """
    info = options.work_dir / "gateway"
    info.unlink(missing_ok=True)
    process = subprocess.Popen(
        _command(options),
        env={**options.environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info)},
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        # Else a Ctrl-C in the terminal would end the JVM before this process can.
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
    """Sets variables of this process for a while; PySpark can be told some things only so."""
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
