"""A standalone cluster of Spark on loopback addresses: a master and workers, as processes.

It runs on the Java that the evaluator finds, with the classes of the package `pyspark`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from galileo.cluster import free_ports
from galileo.spark.jvm import MODULE_OPTIONS, find_java

START_S = 120.0
STOP_S = 60.0
SPARK_HOME = Path(pyspark.__file__).parent

# Spark asks for a module that small Java runtimes lack, and that none of this needs.
JAVA = """#!/bin/bash
words=()
for word in "$@"; do
    [[ $word == --add-modules=jdk.incubator.vector ]] || words+=("$word")
done
exec {java} "${{words[@]}}"
"""


def authenticating(secret: str) -> dict[str, str]:
    """Settings of a master and workers that share this secret with their applications."""
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.saslFallback": "false",
    }


class Programs:
    """Starts programs of Spark, and ends them.

    Args:
        directory: of their logs and files.
        within: words of a command that runs them, such as `ip netns exec NAME`.
    """

    def __init__(self, directory: Path, *, within: Sequence[str] = ()) -> None:
        self.directory = directory
        self._within = tuple(within)
        self._running: list[subprocess.Popen[bytes]] = []
        home = directory / "java"
        (home / "bin").mkdir(parents=True, exist_ok=True)
        self._java = home / "bin" / "java"
        self._java.write_text(JAVA.format(java=find_java(os.environ)))
        self._java.chmod(0o755)

    def start(
        self,
        name: str,
        *words: str,
        settings: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """The process of a class, and its log. Settings are in a file, since they can be secret."""
        stem = f"{name.rpartition('.')[2]}-{len(self._running)}"
        log, conf = self.directory / f"{stem}.log", self.directory / f"{stem}-conf"
        conf.mkdir(mode=0o700)
        lines = [f"{key} {value}" for key, value in (settings or {}).items()]
        (conf / "spark-defaults.conf").write_text("\n".join([*lines, ""]))
        environment = {
            **os.environ,
            "JAVA_HOME": str(self._java.parents[1]),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": host,
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_WORKER_DIR": str(self.directory / "work"),
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *self._within,
                    *(str(self._java), "-Xmx512m", "-XX:TieredStopAtLevel=1"),
                    *("-cp", f"{SPARK_HOME}/jars/*", *MODULE_OPTIONS, name, *words),
                ],
                env=environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._running.append(process)
        return process, log

    def stop(self) -> None:
        for process in reversed(self._running):
            process.terminate()
        for process in reversed(self._running):
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.kill()
            process.wait(STOP_S)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path, *, host: str) -> None:
    """Waits until a program listens."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()[-2_000:]
            assert time.monotonic() < deadline, log.read_text()[-2_000:]
            time.sleep(0.1)


@dataclass(slots=True)
class Standalone:
    """A master and workers of one core each.

    Attributes:
        programs: that start them.
        host: on which all listen.
        settings: of Spark, of the master and the workers.
    """

    programs: Programs
    host: str = "127.0.0.1"
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_ports(1)[0])
    ui_port: int = field(default_factory=lambda: free_ports(1)[0])
    master: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"spark://{self.host}:{self.port}"

    def start(self, *, workers: int, cores: int = 1) -> None:
        self.start_master()
        for _ in range(workers):
            self.start_worker(cores=cores)

    def start_master(self) -> None:
        self.master, log = self.programs.start(
            "org.apache.spark.deploy.master.Master",
            *("--host", self.host, "--port", str(self.port), "--webui-port", str(self.ui_port)),
            settings=self.settings,
            host=self.host,
        )
        wait_for(self.port, self.master, log, host=self.host)

    def start_worker(
        self, *, cores: int = 1, host: str = "", programs: Programs | None = None
    ) -> None:
        [port] = free_ports(1)
        place = host or self.host
        worker, log = (programs or self.programs).start(
            "org.apache.spark.deploy.worker.Worker",
            *("--host", place, "--port", str(port), "--webui-port", "0"),
            *("--cores", str(cores), "--memory", "2g", self.address),
            settings=self.settings,
            host=place,
        )
        wait_for(port, worker, log, host=place)
        self.workers.append(worker)

    def kill_master(self) -> None:
        assert self.master is not None
        self.master.kill()
        self.master.wait(STOP_S)

    def kill_worker(self, number: int = 0) -> None:
        worker = self.workers.pop(number)
        worker.kill()
        worker.wait(STOP_S)

    def executors(self) -> list[psutil.Process]:
        """The processes of executors, of all applications."""
        return [
            child
            for worker in self.workers
            for child in psutil.Process(worker.pid).children(recursive=True)
            if child.name() == "java"
        ]
