"""`LocalCluster`: processes that start, stop, die and come back with their data."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from click.testing import CliRunner
from expected_errors import raises
from processes import is_alive

import galileo
from galileo.cli.main import main
from galileo.cluster import stop_evaluator
from galileo.config import load
from galileo.dht import placement
from galileo.errors import ConfigError, InputError, Unavailable
from galileo.model.schema import Feature, Schema
from galileo.spark.runtime_dir import RuntimeDir

SCHEMA = Schema("nam", [Feature("temperature", "K")], geohash_precision=3)
ROWS = pd.DataFrame(
    {
        "latitude": [10.0, -20.0, 30.0, 40.0],
        "longitude": [0.0, 50.0, -100.0, 170.0],
        "time": pd.Timestamp("2014-03-01", tz="UTC"),
        "temperature": [270.0, 280.0, 290.0, 300.0],
    }
)
IMPATIENT = {"membership": {"heartbeat_interval_s": 0.1, "failure_timeout_s": 3.0}}


def until(client: galileo.Client, *, complete: bool) -> None:
    """Asks until all nodes answer, or one does not."""
    deadline = time.monotonic() + 60
    while client.status().complete != complete:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_local_cluster_keeps_acknowledged_rows_when_a_node_is_killed(tmp_path: Path) -> None:
    with galileo.LocalCluster(2, 1, tmp_path, settings=IMPATIENT) as cluster:
        one, two = cluster.nodes
        with galileo.connect(*cluster.addresses) as client:
            client.create_dataset(SCHEMA)
            client.ingest("nam", ROWS)
            pid = two.pid
            two.kill()
            assert (two.running, two.pid) == (False, None)
            assert pid is not None
            assert not psutil.pid_exists(pid)
            assert [node.state for node in client.status().nodes] == ["up", "unreachable"]
            partial = client.query("nam")
            assert not partial.complete
            two.restart()
            until(client, complete=True)
            assert client.read(client.query("nam")).num_rows == 4
        addresses = cluster.addresses
        assert one.log.read_text().count("serves at") == 1
        assert two.log.read_text().count("serves at") == 2
    assert not one.running
    assert not two.running
    again = galileo.LocalCluster(2, 1, tmp_path, settings=IMPATIENT)
    assert again.addresses == addresses, "the directory remembers them"


@pytest.mark.slow
def test_local_cluster_restarted_has_its_data_and_all_nodes(tmp_path: Path) -> None:
    with galileo.LocalCluster(2, 1, tmp_path, settings=IMPATIENT) as cluster:
        addresses = cluster.addresses
        with galileo.connect(*addresses) as client:
            client.create_dataset(SCHEMA)
            client.ingest("nam", ROWS)
    again = galileo.LocalCluster(2, 1, tmp_path, settings=IMPATIENT)
    # The first node waits for the second for so long that it holds it dead.
    again.nodes[0].start()
    again.nodes[0].wait()
    with galileo.connect(addresses[0]) as client:
        until(client, complete=False)
        with again:
            assert client.status().complete, "a cluster that has started knows all its nodes"
            labels = client.query("nam")
            assert labels.complete
            assert client.read(labels).num_rows == 4


def test_local_cluster_new_places_partitions_evenly(tmp_path: Path) -> None:
    cluster = galileo.LocalCluster(4, 2, tmp_path)
    for node in cluster.nodes:
        node._write_config()
        (tmp_path / node.name).mkdir()
    topology = load(tmp_path / "node-1.toml", environment={}).topology
    assert set(placement.relative_loads(topology).values()) == {1.0}
    again = galileo.LocalCluster(4, directory=tmp_path)
    assert again._topology["partitions_per_group"] == 4
    assert (len(again._topology["groups"]), again._topology["replicas"]) == (2, 1)


@pytest.mark.parametrize(
    ("nodes", "groups", "replicas", "expected"),
    [
        (3, None, None, (1, 3)),
        (8, None, None, (1, 3)),
        (2, None, None, (1, 1)),
        (3, 2, None, (2, 1)),
        (5, 2, None, (2, 1)),
        (6, 2, None, (2, 3)),
        (3, None, 1, (1, 1)),
        (2, None, 2, (1, 2)),
    ],
)
def test_local_cluster_new_has_three_copies_where_groups_have_three_nodes(
    tmp_path: Path, nodes: int, groups: int | None, replicas: int | None, expected: tuple[int, int]
) -> None:
    topology = galileo.LocalCluster(nodes, groups, tmp_path, replicas=replicas)._topology
    assert (len(topology["groups"]), topology["replicas"]) == expected


@pytest.mark.parametrize("present", ["node-1", "node-2"])
@pytest.mark.parametrize(("groups", "replicas"), [(1, 1), (2, 1), (1, 3)])
def test_local_cluster_of_an_existing_directory_keeps_its_groups_and_copies(
    tmp_path: Path, groups: int, replicas: int, present: str
) -> None:
    first = galileo.LocalCluster(3, groups, tmp_path, replicas=replicas)
    first._write_config("node-1")
    (tmp_path / present).mkdir()
    again = galileo.LocalCluster(3, directory=tmp_path)
    assert again._topology == first._topology


@pytest.mark.parametrize(("nodes", "groups"), [(0, 0), (1, 2), (2, 0)])
def test_local_cluster_with_fewer_nodes_than_groups_is_refused(nodes: int, groups: int) -> None:
    with raises(InputError, parameter="nodes"):
        galileo.LocalCluster(nodes, groups)


def test_local_cluster_with_other_node_count_than_its_data_is_refused(tmp_path: Path) -> None:
    galileo.LocalCluster(3, 2, tmp_path)
    with raises(InputError, expected=3):
        galileo.LocalCluster(2, 2, tmp_path)


def test_local_cluster_with_other_counts_changes_no_file(tmp_path: Path) -> None:
    first = galileo.LocalCluster(3, 2, tmp_path, port=7801)
    first._write_config("node-1")
    (tmp_path / "node-1").mkdir()
    before = (tmp_path / "node-1.toml").read_text()
    with raises(ConfigError, expected={"nodes": 3, "groups": 2}):
        galileo.LocalCluster(4, 2, tmp_path, port=7801)
    done = CliRunner().invoke(main, ["up", "--nodes", "4", "--directory", str(tmp_path)])
    assert done.exit_code == 2
    assert done.stderr.endswith("[config]\n")
    assert (tmp_path / "node-1.toml").read_text() == before
    galileo.LocalCluster(3, 2, tmp_path, port=7801)


def test_local_cluster_node_of_an_unknown_name_is_refused(tmp_path: Path) -> None:
    cluster = galileo.LocalCluster(3, 2, tmp_path)
    assert cluster.node("node-2") is cluster.nodes[1]
    with raises(InputError, node="node-4"):
        cluster.node("node-4")


@pytest.mark.slow
def test_local_cluster_at_a_used_port_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = galileo.LocalCluster(1, 1, tmp_path, port=port)
        with raises(InputError, address=f"127.0.0.1:{port}"):
            cluster.__enter__()
    assert not cluster.nodes[0].running
    assert not cluster.nodes[0].log.exists(), "it was not even tried"


@pytest.mark.slow
def test_local_cluster_beside_a_running_one_is_refused(
    tmp_path: Path,
) -> None:
    with galileo.LocalCluster(1, 1, tmp_path / "one") as running:
        runtime = RuntimeDir(running.evaluator_directory)
        lock = runtime.try_lock()
        assert lock is not None
        with subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
        ) as evaluator:
            runtime.record_holder(lock, evaluator.pid)
            config = (tmp_path / "one" / "node-1.toml").read_text()
            port = int(running.addresses[0].rpartition(":")[2])
            with raises(InputError, address=running.addresses[0]):
                galileo.LocalCluster(1, 1, port=port).__enter__()
            with raises(InputError, parameter="directory"):
                galileo.LocalCluster(1, 1, tmp_path / "one", settings=IMPATIENT).__enter__()
            assert (tmp_path / "one" / "node-1.toml").read_text() == config
            assert evaluator.poll() is None, "the evaluator is that of the running cluster"
            evaluator.kill()
        os.close(lock)
        assert running.client().status().complete


@pytest.mark.parametrize("port", [0, 65_535, 70_000])
def test_local_cluster_with_an_invalid_port_is_refused(tmp_path: Path, port: int) -> None:
    with raises(InputError, parameter="port"):
        galileo.LocalCluster(2, 1, tmp_path, port=port)


@pytest.mark.slow
def test_local_cluster_relocated_node_has_its_new_address(tmp_path: Path) -> None:
    with galileo.LocalCluster(1, 1, tmp_path) as cluster:
        (node,) = cluster.nodes
        old = node.address
        node.stop()
        cluster.relocate(node.name)
        node.start()
        node.wait()
        assert node.address != old
        with galileo.connect(node.address) as client:
            assert client.status().complete


@pytest.mark.slow
def test_local_cluster_refused_restart_still_stops_its_evaluator(
    tmp_path: Path,
) -> None:
    with galileo.LocalCluster(1, 1, tmp_path) as cluster:
        (node,) = cluster.nodes
        node.stop()
        runtime = RuntimeDir(cluster.evaluator_directory)
        lock = runtime.try_lock()
        assert lock is not None
        host, _, port = node.address.rpartition(":")
        with subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,)
        ) as evaluator:
            runtime.record_holder(lock, evaluator.pid)
            os.close(lock)
            with (
                socket.create_server((host, int(port))),
                raises(InputError, address=node.address),
            ):
                cluster.start()
            cluster.stop()
            assert not psutil.pid_exists(evaluator.pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "logged"),
    [
        ({"node": {"listen": "nowhere"}}, "host:port as node.listen"),
        ({"limits": {"ccqs_max": 0}}, "expected limits.ccqs_max above zero, got 0"),
    ],
)
def test_local_cluster_with_invalid_settings_names_the_node_that_ended(
    tmp_path: Path, settings: dict[str, Any], logged: str
) -> None:
    cluster = galileo.LocalCluster(1, 1, tmp_path, settings=settings)
    with raises(Unavailable, node="node-1"):
        cluster.__enter__()
    assert logged in cluster.nodes[0].log.read_text()


STUBBORN = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
input()
"""


@pytest.mark.slow
def test_stop_evaluator_kills_one_that_ignores_signals(tmp_path: Path) -> None:
    cluster = galileo.LocalCluster(1, 1, tmp_path)
    runtime = RuntimeDir(cluster.evaluator_directory)
    lock = runtime.try_lock()
    assert lock is not None
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdin=pipe, stdout=pipe) as evaluator:
        assert evaluator.stdout is not None
        child = int(evaluator.stdout.readline())
        runtime.record_holder(lock, evaluator.pid)
        stop_evaluator(cluster.evaluator_directory, timeout_s=3.0)
        assert not psutil.pid_exists(evaluator.pid)
        assert not is_alive(child)
    os.close(lock)
