"""A node of a cluster with one copy loses its directory: nothing begins anew without a command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from expected_errors import raises
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.nodes import is_whole
from waiting import wait_until

from galileo.cli.main import main
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError, TransientError

ROWS = 1_000


def partitions_of(client: Client, node: str) -> tuple[int, ...]:
    topology = Topology.from_json(client.topology_json())
    return tuple(sorted(placement.partitions_by_node(topology)[node]))


def lose_directory(cluster: LocalCluster, name: str) -> None:
    node = cluster.node(name)
    node.stop()
    shutil.rmtree(cluster.directory / name)
    node.start()
    node.wait()


def stored(client: Client) -> int:
    return int(client.query("numbered").table.column("rows").to_numpy().sum())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two nodes that share four partitions, with one copy of each."""
    with LocalCluster(2, 1, tmp_path, partitions_per_group=4, replicas=1) as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Client:
    """With a dataset that has rows at both nodes."""
    made = cluster.client(timeout="30s")
    made.create_dataset(numbered_schema("numbered"))
    made.ingest("numbered", numbered(0, ROWS))
    return made


@pytest.mark.slow
def test_partitions_of_a_lost_directory_are_missing_until_it_is_forgotten(
    cluster: LocalCluster, client: Client
) -> None:
    lost = partitions_of(client, "node-2")
    with raises(InputError, node="node-2"):
        client.forget_node("node-2")
    lose_directory(cluster, "node-2")
    with Client(cluster.node("node-2").address) as one:
        assert one.query("numbered").missing == lost
    assert client.query("numbered").missing == lost
    left = stored(client)
    assert 0 < left < ROWS
    assert client.forget_node("node-2") == lost
    client.ingest("numbered", numbered(ROWS, ROWS))
    assert client.count("numbered") == left + ROWS


@pytest.mark.slow
def test_node_that_began_anew_keeps_its_new_directory(
    cluster: LocalCluster, client: Client
) -> None:
    lost = partitions_of(client, "node-2")
    lose_directory(cluster, "node-2")
    for _ in range(2):
        for address in cluster.addresses:
            with Client(address, timeout="30s") as one:
                assert one.query("numbered").missing == lost
        cluster.node("node-2").restart()
    with pytest.raises(TransientError):
        cluster.client(timeout="500ms").ingest("numbered", numbered(ROWS, ROWS), producer="a")
    assert client.forget_node("node-2") == lost
    client.ingest("numbered", numbered(ROWS, ROWS), producer="a")
    found = client.count("numbered")
    assert ROWS < found < 2 * ROWS
    with raises(InputError, node="node-2"):
        client.forget_node("node-2")
    cluster.node("node-2").restart()
    wait_until(lambda: is_whole(client), what="the node that has begun anew")
    assert client.count("numbered") == found


@pytest.mark.slow
def test_directory_that_is_put_back_is_served_again(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    node, directory = cluster.node("node-2"), tmp_path / "node-2"
    node.stop()
    saved = directory.rename(tmp_path / "unmounted")
    node.start()
    node.wait()
    assert client.query("numbered").missing == partitions_of(client, "node-2")
    node.stop()
    shutil.rmtree(directory)
    saved.rename(directory)
    node.start()
    node.wait()
    wait_until(lambda: is_whole(client), what="the directory")
    assert client.count("numbered") == ROWS
    with raises(InputError, node="node-2"):
        client.forget_node("node-2")


@pytest.mark.slow
def test_forgotten_directory_that_turns_up_serves_nothing(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    node, directory = cluster.node("node-2"), tmp_path / "node-2"
    node.stop()
    saved = directory.rename(tmp_path / "unmounted")
    node.start()
    node.wait()
    lost = client.forget_node("node-2")
    client.ingest("numbered", numbered(ROWS, ROWS))
    found = client.count("numbered")
    node.stop()
    later = directory.rename(tmp_path / "later")
    saved.rename(directory)
    node.start()
    node.wait()

    def tells() -> bool:
        shown = CliRunner().invoke(main, ["--node", node.address, "doctor", "--json"]).output
        return "have begun anew in another one" in shown

    wait_until(tells, what="the node to hear that its directory was given up")
    assert client.query("numbered").missing == lost
    node.stop()
    shutil.rmtree(directory)
    later.rename(directory)
    node.start()
    node.wait()
    wait_until(lambda: is_whole(client), what="the later directory")
    assert client.count("numbered") == found


@pytest.mark.slow
def test_node_forget_command_lists_the_partitions(cluster: LocalCluster, client: Client) -> None:
    lost = partitions_of(client, "node-2")
    words = ["--node", cluster.node("node-1").address, "node", "forget", "node-2"]
    refused = CliRunner().invoke(main, [*words, "--yes"])
    assert refused.exit_code == 2
    assert "expected a node that has lost its directory" in refused.output
    lose_directory(cluster, "node-2")
    assert CliRunner().invoke(main, words, input="n\n").exit_code == 1
    done = CliRunner().invoke(main, [*words, "--yes", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"node": "node-2", "partitions": list(lost)}
    wait_until(lambda: is_whole(client), what="the partitions to begin anew")
