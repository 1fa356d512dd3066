"""The data source on a standalone cluster of Spark and over Spark Connect, all on loopback."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyspark
import pytest

import galileo
from galileo.cluster import free_ports
from galileo.model.times import times_from_micros
from galileo.spark.jvm import MODULE_OPTIONS, find_java

ROWS = 4_000
START_S = 120.0
PROGRAM_S = 600.0
PROGRAM = Path(__file__).parents[2] / "kit" / "spark_round_trip.py"
SPARK_HOME = Path(pyspark.__file__).parent

# Spark asks for a module that small Java runtimes lack, and that none of this needs.
JAVA = """#!/bin/bash
words=()
for word in "$@"; do
    [[ $word == --add-modules=jdk.incubator.vector ]] || words+=("$word")
done
exec {java} "${{words[@]}}"
"""


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()[-2_000:]
            assert time.monotonic() < deadline, log.read_text()[-2_000:]
            time.sleep(0.1)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], Path]]]:
    """`launch(class, words, settings)`: one of Spark's programs, ended behind the test."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(JAVA.format(java=find_java(os.environ)))
    java.chmod(0o755)
    environment = {
        **os.environ,
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    running: list[subprocess.Popen[bytes]] = []

    def start(
        name: str, *words: str, settings: dict[str, str] | None = None
    ) -> tuple[subprocess.Popen[bytes], Path]:
        log = tmp_path / f"{name.rpartition('.')[2]}.log"
        given = [f"-D{key}={value}" for key, value in (settings or {}).items()]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(str(java), "-Xmx512m", "-cp", f"{SPARK_HOME}/jars/*"),
                    *(*MODULE_OPTIONS, *given, name, *words),
                ],
                env=environment,
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        running.append(process)
        return process, log

    yield start
    for process in reversed(running):
        process.terminate()
        process.wait(120)


@contextmanager
def standalone(launch: Callable[..., tuple[subprocess.Popen[bytes], Path]]) -> Iterator[str]:
    """A master and a worker; the address of the master."""
    port, worker_port = free_ports(2)
    address = f"spark://127.0.0.1:{port}"
    place = ("--host", "127.0.0.1", "--webui-port", "0")
    master, log = launch("org.apache.spark.deploy.master.Master", *place, "--port", str(port))
    wait_for(port, master, log)
    worker, log = launch(
        "org.apache.spark.deploy.worker.Worker",
        *place,
        *("--port", str(worker_port), "--cores", "2", "--memory", "1g", address),
    )
    wait_for(worker_port, worker, log)
    yield address


@contextmanager
def connect(launch: Callable[..., tuple[subprocess.Popen[bytes], Path]]) -> Iterator[str]:
    """A server of Spark Connect with an embedded Spark."""
    [port] = free_ports(1)
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
    }
    server, log = launch(
        "org.apache.spark.sql.connect.service.SparkConnectServer", settings=settings
    )
    wait_for(port, server, log)
    yield f"sc://127.0.0.1:{port}"


def lacking(kind: str) -> str | None:
    """What Spark Connect needs and is not installed."""
    wanted = ("zstandard", "grpc_status") if kind == "connect" else ()
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    return f"Spark Connect needs {', '.join(missing)}" if missing else None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["standalone", "connect"])
def test_source_on_every_master_reads_writes_and_streams(
    kind: str,
    launch: Callable[..., tuple[subprocess.Popen[bytes], Path]],
    cluster: galileo.LocalCluster,
    client: galileo.Client,
    fresh_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    if reason := lacking(kind):
        pytest.skip(reason)
    source, target = fresh_name("source"), fresh_name("target")
    for name in (source, target):
        client.create_dataset(galileo.Schema(name, [galileo.Feature("temperature", "K")]))
    numbers = np.arange(ROWS)
    whole = pa.table(
        {
            "latitude": numbers % 160 - 80.0,
            "longitude": numbers % 360 - 180.0,
            "time": times_from_micros(1_330_560_000_000_000 + numbers),
            "temperature": 260.0 + numbers % 40,
        }
    )
    client.ingest(source, whole, batch_rows=1_000)
    places = [cluster.addresses[0], source, target, str(tmp_path / "checkpoint")]
    with {"standalone": standalone, "connect": connect}[kind](launch) as master:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), master, *places],
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4_000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {"rows": client.count(source, "temperature > 280"), "pushed": True}
    ordered = [client.select(one).sort_by("time") for one in (source, target)]
    assert ordered[0].to_pydict() == ordered[1].to_pydict()
