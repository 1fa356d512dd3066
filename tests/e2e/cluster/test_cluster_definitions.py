"""Datasets are defined while a node is away, or lost with its disk, but not without a majority."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.nodes import is_whole
from waiting import wait_until

import galileo
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht.topology import SYSTEM, Topology
from galileo.errors import DatasetExists, TransientError

EVERYTHING = "temperature > -100"
TIMEOUT_S = 60.0
DAY = galileo.Retention("1d")


def datasets(client: Client, node: str) -> set[str]:
    """The names of the datasets that a node knows."""
    (status,) = (one for one in client.status().nodes if one.name == node)
    return {str(one["dataset"]) for one in status.datasets}


def system_leader(client: Client) -> str:
    """The node that leads the system partition."""
    topology = Topology.from_json(client.topology_json())
    return next(move.node for move in topology.moved if move.partition == SYSTEM)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_datasets_are_defined_while_the_leader_of_definitions_is_lost_with_its_disk(
    tmp_path: Path,
) -> None:
    with LocalCluster(3, 1, tmp_path, partitions_per_group=4, replicas=3) as cluster:
        client = cluster.client(timeout="60s")
        dropped, kept, new = "dropped", "kept", "new"
        for name in (dropped, kept):
            client.create_dataset(numbered_schema(name))
            client.ingest(name, numbered(0, 100))
        wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
        lost = next(node for node in cluster.nodes if node.name == system_leader(client))
        lost.kill()
        shutil.rmtree(tmp_path / lost.name)

        client.create_dataset(numbered_schema(new), retention=DAY)
        client.ingest(new, numbered(0, 500))
        assert client.drop_dataset(dropped).pending == (lost.name,)
        client.create_dataset(galileo.Schema(dropped, [galileo.Feature("depth")]))
        client.set_retention(kept, DAY)
        found = client.query(new, EVERYTHING)
        assert (found.complete, int(found.table.column("rows").to_numpy().sum())) == (True, 500)

        lost.start()
        lost.wait()
        wait_until(lambda: is_whole(client), what="all copies again", timeout_s=TIMEOUT_S)
        agreed = {new, kept, dropped}
        wait_until(
            lambda: datasets(client, lost.name) == agreed, what="datasets", timeout_s=TIMEOUT_S
        )
        with Client(lost.address) as alone:
            wait_until(
                lambda: alone.retention(kept) == alone.retention(new) == DAY,
                what="policies",
                timeout_s=TIMEOUT_S,
            )
            assert alone.schema(dropped).key == f"{dropped}@1"
            with pytest.raises(DatasetExists):
                alone.create_dataset(numbered_schema(new))
            alone.drop_dataset(new)
        assert new not in {schema.name for schema in client.datasets()}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_node_that_was_away_with_one_copy_learns_what_was_defined_meanwhile(
    tmp_path: Path,
) -> None:
    """Definitions have three copies in a cluster of three nodes whose data has one."""
    with LocalCluster(3, 1, tmp_path, partitions_per_group=4, replicas=1) as cluster:
        client = cluster.client(timeout="60s")
        for name in ("dropped", "kept"):
            client.create_dataset(numbered_schema(name))
        wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
        away = next(node for node in cluster.nodes if node.name == system_leader(client))
        away.kill()

        client.create_dataset(numbered_schema("new"))
        assert client.drop_dataset("dropped").pending == (away.name,)
        client.set_retention("kept", DAY)

        away.start()
        away.wait()
        with Client(away.address) as alone:
            wait_until(
                lambda: datasets(client, away.name) == {"kept", "new"},
                what="datasets",
                timeout_s=TIMEOUT_S,
            )
            wait_until(
                lambda: alone.retention("kept") == DAY, what="the policy", timeout_s=TIMEOUT_S
            )
            alone.ingest("new", numbered(0, 200))
            assert alone.count("new") == 200


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_a_majority_nothing_is_defined_and_a_restart_of_all_keeps_everything(
    tmp_path: Path,
) -> None:
    with LocalCluster(3, 1, tmp_path, partitions_per_group=4, replicas=3) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("kept"))
        client.create_dataset(numbered_schema("dropped"))
        client.drop_dataset("dropped")
        client.set_retention("kept", DAY)
        wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
        left, *others = cluster.nodes
        for node in others:
            node.kill()
        with Client(left.address, timeout="3s") as alone:
            with pytest.raises(TransientError):
                alone.create_dataset(numbered_schema("lonely"))
            assert alone.schema("kept").name == "kept"
        for node in others:
            node.start()
        for node in cluster.nodes:
            node.restart()
        for node in cluster.nodes:
            node.wait()
        assert {one.name for one in client.datasets()} >= {"kept"}
        assert client.retention("kept") == DAY
        client.create_dataset(numbered_schema("dropped"))
        assert client.schema("dropped").key == "dropped@1"
