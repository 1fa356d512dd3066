"""A cluster that grows and shrinks while observations come and a continuous query is read."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from expected_errors import raises
from fault_injection.ccq_readers import FetchReader, WatchReader
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.nodes import has_shares
from fault_injection.stream import Stream
from waiting import wait_until

from galileo.cli.main import main
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError, Unavailable
from galileo.wire import services
from galileo.wire.v1 import query_pb2

QUERY = "temperature > 260"
TIMEOUT_S = 300.0


def command(cluster: LocalCluster, *words: str) -> str:
    nodes = [word for address in cluster.addresses for word in ("--node", address)]
    done = CliRunner().invoke(main, [*nodes, *words, "--json"])
    assert done.exit_code == 0, done.output
    return done.output


def partitions(cluster: LocalCluster) -> dict[str, int]:
    topology = Topology.from_json(cluster.client().topology_json())
    return {name: len(own) for name, own in placement.partitions_by_node(topology).items()}


def is_leaving(client: Client, node: str) -> bool:
    return Topology.from_json(client.topology_json()).by_name[node].leaving


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cluster_nodes_join_and_leave_under_load_without_loss(
    tmp_path: Path, evaluator: dict[str, Any]
) -> None:
    settings = {"membership": {"failure_timeout_s": 4.0}, "evaluator": evaluator}
    with LocalCluster(1, 1, tmp_path, settings=settings, partitions_per_group=4) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        ccq = client.submit("numbered", QUERY, interval="250ms", expiration="1h")
        reader = WatchReader(cluster.client(timeout="60s"), ccq)
        stream = Stream(cluster.client(timeout="500ms"), "numbered")
        reader.start()
        stream.start()
        wait_until(lambda: reader.count() > 0, what="an update", timeout_s=TIMEOUT_S)
        for number in (2, 3):
            node = cluster.join()
            node.start()
            node.wait()
            wait_until(lambda n=number: len(client.status().nodes) == n, what="the node")
            wait_until(lambda: client.status().complete, what="heartbeats", timeout_s=TIMEOUT_S)
        wait_until(lambda: has_shares(client), what="the shares", timeout_s=TIMEOUT_S)
        assert sorted(partitions(cluster).values()) == [1, 1, 2]
        more = reader.count()
        wait_until(lambda: reader.count() > more, what="an update", timeout_s=TIMEOUT_S)
        cluster.remove("node-1")
        client = cluster.client(timeout="60s")
        assert partitions(cluster) == {"node-2": 2, "node-3": 2}
        with raises(InputError, node="node-1"):
            list(client.remove_node("node-1"))
        client.create_dataset(numbered_schema("later"))
        stream.finish()
        wanted = client.query("numbered", QUERY)
        assert wanted.complete
        wait_until(lambda: reader.count() >= len(wanted), what="all labels", timeout_s=TIMEOUT_S)
        reader.close()
        audit = reader.deliveries.audit(wanted)
        assert not audit.wrong, audit
        assert client.count("numbered") == stream.sent
    with LocalCluster(1, 1, tmp_path, settings=settings) as again:
        assert [node.name for node in again.nodes] == ["node-2", "node-3"]
        assert again.client().count("numbered") == stream.sent


@pytest.mark.slow
def test_node_gets_its_share_of_one_copy_and_then_everything(tmp_path: Path) -> None:
    with LocalCluster(1, 1, tmp_path, partitions_per_group=4) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        client.ingest("numbered", numbered(0, 1_000))
        node = cluster.join()
        node.start()
        node.wait()
        client = cluster.client(timeout="60s")
        wait_until(lambda: has_shares(client), what="the shares")
        assert partitions(cluster) == {"node-1": 2, "node-2": 2}
        assert client.count("numbered") == 1_000
        assert [*client.remove_node("node-1")][-1].stage == "done"
        with Client(node.address, timeout="60s") as left:
            assert set(placement.owners(Topology.from_json(left.topology_json())).values()) == {
                "node-2"
            }
            assert left.count("numbered") == 1_000
            assert not any(one.lost for one in left.status().nodes)


@pytest.mark.slow
def test_remove_node_undone_keeps_the_node(tmp_path: Path) -> None:
    """The removal cannot end, since the node that takes the partitions is stopped."""
    with LocalCluster(3, 1, tmp_path, partitions_per_group=4, replicas=1) as cluster:
        client = Client(cluster.node("node-1").address, timeout="60s")
        cluster.node("node-3").pause()
        for progress in client.remove_node("node-2", to="node-3"):
            assert progress.stage == "move"
            break
        wait_until(lambda: is_leaving(client, "node-2"), what="the mark")
        client.keep_node("node-2")
        assert not is_leaving(client, "node-2")
        cluster.node("node-3").resume()
        wait_until(lambda: client.status().complete, what="heartbeats", timeout_s=TIMEOUT_S)
        states = {one["node"]: one["state"] for one in json.loads(command(cluster, "node", "list"))}
        assert states == {"node-1": "up", "node-2": "up", "node-3": "up"}
        client.close()


@pytest.mark.slow
def test_removed_node_does_not_start_again(tmp_path: Path) -> None:
    with LocalCluster(2, 1, tmp_path, partitions_per_group=4) as cluster:
        node = cluster.node("node-2")
        assert [*cluster.client().remove_node("node-2")][-1].stage == "done"
        with pytest.raises(Unavailable, match="was removed from its cluster"):
            node.restart()


@pytest.mark.slow
def test_removed_node_answers_completely_until_it_stops(tmp_path: Path) -> None:
    settings = {"membership": {"heartbeat_interval_s": 0.2, "failure_timeout_s": 0.6}}
    with LocalCluster(2, 1, tmp_path, settings=settings, partitions_per_group=4) as cluster:
        node = cluster.node("node-2")
        client = cluster.client()
        client.create_dataset(numbered_schema("numbered"))
        client.ingest("numbered", numbered(0, 100))
        with grpc.insecure_channel(node.address) as channel:
            stub = services.stub_of(services.QUERY, channel)
            assert [*client.remove_node("node-2")][-1].stage == "done"
            answers = []
            while node.running:
                with contextlib.suppress(grpc.RpcError):
                    *_, last = stub.Run(query_pb2.QueryRequest(dataset="numbered"))
                    answers.append(last.tail)
                time.sleep(0.02)
        assert len(answers) > 10
        assert not any(tail.missing for tail in answers)


@pytest.mark.slow
def test_rack_of_a_file_is_in_the_topology_and_changes_with_a_restart(tmp_path: Path) -> None:
    settings = {"node": {"rack": "r1"}}
    with LocalCluster(1, 1, tmp_path, settings=settings) as cluster:
        wait_until(lambda: racks(cluster) == {"node-1": "r1"}, what="the rack")
        client = cluster.client()
        client.add_node("node-9", "127.0.0.1:9", rack="r9")
        joining = cluster.join()
        joining.start()
        joining.wait()
        config = tmp_path / "node-1.toml"
        config.write_text(config.read_text().replace('"r1"', '"r2"'))
        cluster.node("node-1").restart()
        expected = {"node-1": "r2", "node-2": "r1", "node-9": "r9"}
        wait_until(lambda: racks(cluster) == expected, what="the other rack")
        shown = json.loads(command(cluster, "node", "list"))
        assert {one["node"]: one["rack"] for one in shown} == expected


def racks(cluster: LocalCluster) -> dict[str, str]:
    text = cluster.client(timeout="60s").topology_json()
    return {node.name: node.rack for node in Topology.from_json(text).nodes}


@pytest.mark.slow
def test_join_after_the_first_node_was_removed_asks_the_others(tmp_path: Path) -> None:
    with LocalCluster(1, 1, tmp_path, partitions_per_group=4) as cluster:
        for _ in range(2):
            node = cluster.join()
            node.start()
            node.wait()
            wait_until(lambda: cluster.client().status().complete, what="heartbeats")
            cluster.remove(cluster.nodes[0].name)
        assert [node.name for node in cluster.nodes] == ["node-3"]
        assert partitions(cluster) == {"node-3": 4}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cluster_ranges_are_cut_under_load_without_loss(
    tmp_path: Path, evaluator: dict[str, Any]
) -> None:
    settings = {"membership": {"failure_timeout_s": 4.0}, "evaluator": evaluator}
    with LocalCluster(2, 1, tmp_path, settings=settings, partitions_per_group=4) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        ccq = client.submit("numbered", QUERY, interval="250ms", expiration="1h")
        reader = FetchReader(cluster.client(timeout="60s"), ccq)
        stream = Stream(cluster.client(timeout="500ms"), "numbered")
        reader.start()
        stream.start()
        wait_until(lambda: reader.count() > 0, what="an update", timeout_s=TIMEOUT_S)
        node = cluster.join("east", new_group=True)
        node.start()
        node.wait()
        wait_until(lambda: client.status().complete, what="heartbeats", timeout_s=TIMEOUT_S)
        for ranges in ([("", "group-1"), ("8", "east")], [("", "east")]):
            assert [*client.set_ranges(ranges)][-1].stage == "done"
            more = reader.count()
            wait_until(lambda n=more: reader.count() > n, what="an update", timeout_s=TIMEOUT_S)
        stream.finish()
        wanted = client.query("numbered", QUERY)
        assert wanted.complete
        assert set(wanted.frontier) > {0, 1, 2, 3}
        wait_until(lambda: reader.count() >= len(wanted), what="all labels", timeout_s=TIMEOUT_S)
        reader.close()
        audit = reader.deliveries.audit(wanted)
        assert not audit.wrong, audit
        assert client.count("numbered") == stream.sent
    with LocalCluster(2, 1, tmp_path, settings=settings) as again:
        assert Topology.from_json(again.client().topology_json()).range_epoch == 3
        assert again.client().count("numbered") == stream.sent


@pytest.mark.slow
def test_ranges_wait_for_a_node_that_is_down_and_can_be_taken_back(tmp_path: Path) -> None:
    with LocalCluster(3, 1, tmp_path, partitions_per_group=4, replicas=1) as cluster:
        client = cluster.client()
        ranges = [("", "group-1"), ("s", "group-1")]
        node = cluster.node("node-3")
        node.kill()
        steps = client.set_ranges(ranges)
        assert next(steps).waiting == ("node-3",)
        steps.close()
        pending = Topology.from_json(client.topology_json())
        assert (pending.pending_ranges, pending.range_epoch) == ((("", 0), ("s", 0)), 1)
        with raises(InputError, expected="no_pending_ranges"):
            list(client.set_ranges([("", "group-1")]))
        command(cluster, "topology", "cut", "--undo")
        assert Topology.from_json(client.topology_json()).pending_ranges is None
        node.start()
        file = tmp_path / "ranges.json"
        file.write_text(json.dumps([["", 0], ["s", "group-1"]]))
        command(cluster, "topology", "cut", str(file))
        assert Topology.from_json(client.topology_json()).range_epoch == 2
