"""A node as a process: what it offers, how it ends, and what it refuses to start with."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

import galileo
from galileo.cluster import free_ports

TIMEOUT_S = 300.0


def server(*words: str) -> list[str]:
    return [sys.executable, "-m", "galileo.server", *words]


def check_refused(message: str, *words: str) -> str:
    """What a node writes that does not start; `message` is part of it."""
    done = subprocess.run(server(*words), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def address_in(config: Path) -> str:
    return config.read_text().rpartition('address = "')[2].partition('"')[0]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a cluster of one node."""
    [port] = free_ports(1)
    path = tmp_path / "node.toml"
    path.write_text(
        f'[node]\nname = "a"\ndirectory = "{tmp_path / "data"}"\n'
        '[cluster]\ngroups = [{name = "g", nodes = '
        f'[{{name = "a", address = "127.0.0.1:{port}"}}]}}]\n'
    )
    return path


def test_node_serves_health_and_reflection(cluster: galileo.LocalCluster) -> None:
    with grpc.insecure_channel(cluster.addresses[0]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reply = health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        names = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {f"galileo.{name}" for name in ("Storage", "Query", "Continuous", "Cluster")} <= {
        f"galileo.{name.rpartition('.')[2]}" for name in names
    }
    assert "grpc.health.v1.Health" in names


@pytest.mark.slow
def test_node_in_a_used_directory_does_not_start(cluster: galileo.LocalCluster) -> None:
    config = str(cluster.directory / "node-1.toml")
    holder = cluster.node("node-1").pid
    message = f"to be the only user of {cluster.directory / 'node-1'}, but process {holder}"
    check_refused(message, "--config", config)


@pytest.mark.slow
def test_node_with_an_unknown_key_fails_in_one_line(config: Path) -> None:
    message = "galileo: unknown key in [limits]: 'ccq_max'; did you mean"
    text = check_refused(message, "--config", str(config), "--set", "limits.ccq_max=3")
    assert text.count("\n") == 1


def test_node_stops_cleanly_on_sigterm(config: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(server("--config", str(config)), stderr=stderr)
    try:
        address = address_in(config)
        with galileo.connect(address, timeout=TIMEOUT_S) as client:
            assert client.status().complete
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
    text = log.read_text()
    assert f"node a serves at {address}" in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_node_with_another_placement_than_its_data_does_not_start(config: Path) -> None:
    with subprocess.Popen(server("--config", str(config)), stderr=subprocess.DEVNULL) as process:
        with galileo.connect(address_in(config), timeout=TIMEOUT_S) as client:
            client.create_dataset(galileo.Schema("nam", [galileo.Feature("temperature")]))
        process.send_signal(signal.SIGTERM)
    config.write_text(f"{config.read_text()}partitions_per_group = 8\n")
    check_refused("does not match this node's data", "--config", str(config))


@pytest.mark.slow
def test_node_ends_with_its_parent(config: Path) -> None:
    """The parent starts the node, waits until it serves, and dies."""
    code = (
        "import os, subprocess, sys, galileo\n"
        f"words = {server('--config', str(config))!r}\n"
        "node = subprocess.Popen([*words, '--parent', str(os.getpid())], "
        "stderr=subprocess.DEVNULL, start_new_session=True)\n"
        "address = sys.argv[1]\n"
        "with galileo.connect(address, timeout=50) as client:\n"
        "    client.status()\n"
        "print(node.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    address = address_in(config)
    done = subprocess.run(
        [sys.executable, "-c", code, address],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    try:
        node = psutil.Process(int(done.stdout))
    except psutil.NoSuchProcess:
        return
    gone, _ = psutil.wait_procs([node], timeout=TIMEOUT_S)
    assert gone, "the node goes on without its parent"
