"""A cluster with three copies of each partition loses nodes and disks, gains and removes nodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from fault_injection.ccq_readers import WatchReader
from fault_injection.damage import flip, frames
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.stream import Stream
from waiting import wait_until

from galileo.cli.main import main
from galileo.client import Client
from galileo.client.results import NodeStatus
from galileo.cluster import LocalCluster
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.node.replication.protocol import LogRange, RangeDigest
from galileo.replication.values import Member
from galileo.rpc.replication import DIGESTS

QUERY, EVERYTHING = "temperature > 260", "temperature > -100"
TIMEOUT_S = 120.0


def is_whole(client: Client, nodes: int) -> bool:
    """Whether all nodes answer, each leads something, and each partition has its copies."""
    status = client.status()
    topology = Topology.from_json(client.topology_json())
    owners = set(placement.owners(topology).values())
    is_replicated = status.complete and not status.under_replicated
    return is_replicated and len(owners) == nodes == len(status.nodes)


def rows(labels: LabelSet) -> int:
    return int(labels.table.column("rows").to_numpy().sum())


def known_digests(cluster: LocalCluster, client: Client) -> list[int]:
    """What the nodes answer about a log at the directory with which its partition began."""
    founding = Topology.from_json(client.topology_json()).founding
    assert founding is not None
    sequences = {p: s for node in client.status().nodes for p, s in _sequences(node).items()}
    whole = LogRange(0, "numbered", after=0, until=sequences.get(0, 0))
    digests = list[RangeDigest | None]()
    for node in cluster.nodes:
        request = DIGESTS.encode(Member(node.name, founding.disks[0]), [whole])
        with grpc.insecure_channel(node.address) as channel:
            answer = channel.unary_unary(DIGESTS.path)(request)
        digests += DIGESTS.decode_answer(answer)
    return [one.digest for one in digests if one is not None]


def _sequences(node: NodeStatus) -> dict[int, int]:
    return {int(p): s for facts in node.datasets for p, s in facts["sequences"].items()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cluster_with_replicas_loses_nothing_with_a_disk(
    tmp_path: Path, evaluator: dict[str, Any]
) -> None:
    with _replicated(tmp_path, evaluator) as (cluster, stream, reader):
        _lose_disk(cluster, tmp_path)
        _check(cluster, stream, reader)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cluster_with_replicas_loses_nothing_with_a_disk_and_spreads_over_new_nodes(
    tmp_path: Path, evaluator: dict[str, Any]
) -> None:
    with _replicated(tmp_path, evaluator) as (cluster, stream, reader):
        _lose_disk(cluster, tmp_path)
        client = cluster.client(timeout="60s")
        new = cluster.join("group-1")
        new.start()
        new.wait()
        wait_until(lambda: is_whole(client, 4), what="copies at four nodes", timeout_s=TIMEOUT_S)
        with pytest.raises(InputError):
            list(client.remove_node("node-1", lost=True))
        cluster.node("node-1").kill()
        cluster.remove("node-1")
        client = cluster.client(timeout="60s")
        wait_until(lambda: is_whole(client, 3), what="copies elsewhere", timeout_s=TIMEOUT_S)
        cluster.remove("node-2")
        _check(cluster, stream, reader)


@contextmanager
def _replicated(
    directory: Path, evaluator: dict[str, Any]
) -> Iterator[tuple[LocalCluster, Stream, WatchReader]]:
    """Three nodes with three copies, which take observations and answer a continuous query."""
    settings = {"evaluator": evaluator}
    with LocalCluster(
        3, 1, directory, settings=settings, partitions_per_group=4, replicas=3
    ) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        assert is_whole(client, 3)
        ccq = client.submit("numbered", QUERY, interval="250ms", expiration="1h")
        reader = WatchReader(cluster.client(timeout="60s"), ccq)
        stream = Stream(cluster.client(timeout="500ms"), "numbered")
        reader.start()
        stream.start()
        wait_until(lambda: reader.count() > 0, what="an update", timeout_s=TIMEOUT_S)
        yield cluster, stream, reader


def _lose_disk(cluster: LocalCluster, directory: Path) -> None:
    client = cluster.client(timeout="60s")
    wait_until(
        lambda: len(known_digests(cluster, client)) == 1, what="a digest", timeout_s=TIMEOUT_S
    )
    lost = cluster.nodes[1]
    lost.kill()
    shutil.rmtree(directory / lost.name)
    assert client.query("numbered", EVERYTHING).complete
    lost.start()
    lost.wait()
    wait_until(lambda: is_whole(client, 3), what="all copies again", timeout_s=TIMEOUT_S)


def _check(cluster: LocalCluster, stream: Stream, reader: WatchReader) -> None:
    """Everything that was acknowledged is there, and the reader has had all of it once."""
    client = cluster.client(timeout="60s")
    stream.finish()
    found = client.query("numbered", EVERYTHING)
    assert found.complete
    assert rows(found) == stream.sent
    wanted = client.query("numbered", QUERY)
    wait_until(lambda: reader.count() >= len(wanted), what="labels", timeout_s=TIMEOUT_S)
    reader.close()
    audit = reader.deliveries.audit(wanted)
    assert not audit.wrong, audit


@pytest.mark.slow
def test_scrub_command_finds_damage_that_other_nodes_mend(tmp_path: Path) -> None:
    with LocalCluster(3, 1, tmp_path, partitions_per_group=4, replicas=3) as cluster:
        client = cluster.client()
        client.create_dataset(numbered_schema("numbered"))
        for number in range(8):
            client.ingest("numbered", numbered(number * 500, 500))
        wait_until(lambda: is_whole(client, 3), what="all copies", timeout_s=TIMEOUT_S)
        assert _scrub(cluster) == (0, {"node-1": 0, "node-2": 0, "node-3": 0})
        file = max((tmp_path / "node-2").glob("journals/numbered/*/*.segment"), key=_size)
        offset, header = next(iter(frames(file)))
        flip(file, offset + header.observations_offset + 8)
        assert _scrub(cluster, "node-1", "node-3") == (0, {"node-1": 0, "node-3": 0})
        assert _scrub(cluster) == (1, {"node-1": 0, "node-2": 1, "node-3": 0})
        aside = (tmp_path / "node-2").glob
        wait_until(lambda: any(aside("damaged/*")), what="the log set aside", timeout_s=TIMEOUT_S)
        wait_until(lambda: is_whole(client, 3), what="all copies", timeout_s=TIMEOUT_S)
        wait_until(lambda: _scrub(cluster, "node-2") == (0, {"node-2": 0}), what="a sound node")
        with pytest.raises(InputError, match="'node-9' does not exist"):
            list(client.scrub("node-9"))
        cluster.node("node-3").kill()
        *_, last = client.scrub("node-3")
        assert last.failure


def _size(path: Path) -> int:
    return path.stat().st_size


def _scrub(cluster: LocalCluster, *nodes: str) -> tuple[int, dict[str, int]]:
    """The exit code of the command, and how many files of each node are damaged."""
    addresses = [word for address in cluster.addresses for word in ("--node", address)]
    done = CliRunner().invoke(main, [*addresses, "node", "scrub", *nodes, "--json"])
    damaged = {row["node"]: row["damaged files"] for row in json.loads(done.stdout)}
    return done.exit_code, damaged
