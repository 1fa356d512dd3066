"""A cluster that began with one copy of each partition gets more, and goes back to one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fault_injection.ccq_readers import WatchReader
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.nodes import has_shares, is_whole, left_behind
from fault_injection.stream import Stream
from waiting import wait_until

from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht import placement
from galileo.dht.topology import Topology

QUERY, EVERYTHING = "temperature > 260", "temperature > -100"
TIMEOUT_S = 60.0
FIRST_S = 300.0
"""Longest start of the evaluator on a busy machine."""


def rows(client: Client) -> int:
    found = client.query("numbered", EVERYTHING)
    assert found.complete
    return int(found.table.column("rows").to_numpy().sum())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_node_that_got_partitions_while_there_was_one_copy_is_removed(
    tmp_path: Path, no_evaluator: dict[str, Any]
) -> None:
    settings = {"evaluator": no_evaluator}
    with LocalCluster(
        1, 1, tmp_path, partitions_per_group=4, replicas=1, settings=settings
    ) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        client.ingest("numbered", numbered(0, 1_000))
        joined = [cluster.join("group-1") for _ in range(2)]
        for node in joined:
            node.start()
            node.wait()
        wait_until(lambda: has_shares(client), what="the shares", timeout_s=TIMEOUT_S)
        owners = placement.owners(Topology.from_json(client.topology_json()))
        assert joined[0].name in owners.values()
        client.set_replicas(2)
        wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
        assert not any(node.pending for node in client.status().nodes)
        assert [*client.remove_node(joined[0].name)][-1].stage == "done"
        assert joined[0].name not in Topology.from_json(client.topology_json()).by_name
        assert rows(client) == 1_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cluster_of_one_copy_gets_three_and_keeps_moved_partitions(tmp_path: Path) -> None:
    with LocalCluster(3, 1, tmp_path, partitions_per_group=4, replicas=1) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        client.ingest("numbered", numbered(0, 1_000))
        owners = placement.owners(Topology.from_json(client.topology_json()))
        target = next(node.name for node in cluster.nodes if node.name != owners[0])
        list(client.move(0, to=target))
        client.ingest("numbered", numbered(1_000, 500), producer="named")
        list(client.set_ranges([("", "group-1"), ("8", "group-1")]))
        before = client.query("numbered", EVERYTHING)
    with LocalCluster(3, 1, tmp_path, replicas=3) as cluster:
        client = cluster.client(timeout="60s")
        assert not client.status().under_replicated
        assert placement.owner(Topology.from_json(client.topology_json()), 0) == target
        after = client.query("numbered", EVERYTHING)
        keys = [("partition", "ascending"), ("sequence", "ascending"), ("row", "ascending")]
        assert after.table.sort_by(keys).equals(before.table.sort_by(keys))
        again = client.ingest("numbered", numbered(1_000, 500), producer="named")
        assert again.duplicate_rows == 500
        client.ingest("numbered", numbered(1_500, 500))
        lost = cluster.node(target)
        lost.kill()
        shutil.rmtree(tmp_path / target)
        assert rows(client) == 2_000
        lost.start()
        lost.wait()
        wait_until(lambda: is_whole(client), what="all copies again", timeout_s=TIMEOUT_S)
        client.set_replicas(2)
        assert rows(client) == 2_000
    with LocalCluster(3, 1, tmp_path) as cluster:
        client = cluster.client(timeout="60s")
        assert Topology.from_json(client.topology_json()).replicas == 2
        assert rows(client) == 2_000


@pytest.mark.slow
def test_running_cluster_gets_copies(tmp_path: Path, no_evaluator: dict[str, Any]) -> None:
    settings = {"evaluator": no_evaluator}
    with LocalCluster(
        2, 1, tmp_path, partitions_per_group=4, replicas=1, settings=settings
    ) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        client.ingest("numbered", numbered(0, 1_000), producer="named")
        client.set_replicas(2)
        wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
        again = client.ingest("numbered", numbered(0, 1_000), producer="named")
        assert again.duplicate_rows == rows(client) == 1_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_running_cluster_gets_copies_and_gives_them_up_amid_a_stream(
    tmp_path: Path, evaluator: dict[str, Any]
) -> None:
    settings = {"evaluator": evaluator}
    with LocalCluster(
        3, 1, tmp_path, partitions_per_group=4, replicas=1, settings=settings
    ) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        ccq = client.submit("numbered", QUERY, interval="250ms", expiration="1h")
        reader = WatchReader(cluster.client(timeout="60s"), ccq)
        stream = Stream(cluster.client(timeout="500ms"), "numbered")
        reader.start()
        stream.start()
        wait_until(lambda: reader.count() > 0, what="an update", timeout_s=FIRST_S)
        client.set_replicas(3)
        wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
        client.set_replicas(1)
        wait_until(
            lambda: not left_behind(Topology.from_json(client.topology_json()), cluster),
            what="old copies to go",
            timeout_s=2 * TIMEOUT_S,
        )
        stream.finish()
        assert rows(client) == stream.sent
        wanted = client.query("numbered", QUERY)
        wait_until(lambda: reader.count() >= len(wanted), what="labels", timeout_s=TIMEOUT_S)
        reader.close()
        audit = reader.deliveries.audit(wanted)
        assert not audit.wrong, audit
