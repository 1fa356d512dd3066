"""Datasets of a cluster with copies are defined while a node is lost with its disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.nodes import is_whole, wait_until

import galileo
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht.topology import Topology
from galileo.errors import DatasetExists
from galileo.node.catalog import dataset_home

EVERYTHING = "temperature > -100"
TIMEOUT_S = 60.0
DAY = galileo.Retention("1d")


def datasets(client: Client, node: str) -> set[str]:
    """The names of the datasets that a node knows."""
    (status,) = (one for one in client.status().nodes if one.name == node)
    return {str(one["dataset"]) for one in status.datasets}


def homed(topology: Topology, home: str, count: int) -> list[str]:
    """Names of datasets whose home this node would be with one copy."""
    names = (f"numbered-{number}" for number in range(1000))
    return [name for name in names if dataset_home(topology, name) == home][:count]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_datasets_are_defined_while_their_home_is_lost_with_its_disk(tmp_path: Path) -> None:
    with LocalCluster(3, 1, tmp_path, partitions_per_group=4, replicas=3) as cluster:
        client = cluster.client(timeout="60s")
        lost = cluster.nodes[0]
        topology = Topology.from_json(client.topology_json())
        dropped, kept, new = homed(topology, lost.name, 3)
        for name in (dropped, kept):
            client.create_dataset(numbered_schema(name))
            client.ingest(name, numbered(0, 100))
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
