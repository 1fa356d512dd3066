"""A cluster that is restarted, replaced and grown under a stream with a continuous query."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected_errors import raises
from fault_injection.ccq_readers import FetchReader
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.nodes import has_shares
from fault_injection.stream import Stream, StreamOptions
from waiting import wait_until

import galileo
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import InputError
from galileo.local_node import LocalNode

QUERY = "temperature > 260"
TIMEOUT_S = 300.0
FIRST = 1_000_000
"""The number of the first observation that is stored before the stream."""


def restart(client: Client, node: LocalNode, *, meanwhile: Callable[[], None] | None) -> None:
    client.drain(node.name)

    def is_drained() -> bool:
        found = next(one for one in client.status().nodes if one.name == node.name)
        return found.state == "draining" and not found.ccqs_coordinated

    wait_until(is_drained, what=f"{node.name} to drain", timeout_s=TIMEOUT_S)
    node.stop()
    if meanwhile is not None:
        meanwhile()
    node.restart()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cluster_restart_relocation_and_join_deliver_every_label_once(
    tmp_path: Path, evaluator: dict[str, Any]
) -> None:
    """One node comes back elsewhere, the other in its place; a third takes its share."""
    # A machine that is busy with something else makes no node miss another one.
    settings = {"membership": {"failure_timeout_s": 4.0}, "evaluator": evaluator}
    cluster = LocalCluster(2, 1, tmp_path, settings=settings)
    with cluster:
        one, two = cluster.nodes
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        ccq = client.submit("numbered", QUERY, interval="250ms", expiration="1h")
        reader = FetchReader(cluster.client(timeout="60s"), ccq)
        stream = Stream(cluster.client(timeout="200ms"), "numbered")
        reader.start()
        stream.start()
        wait_until(lambda: reader.count() > 0, what="an update", timeout_s=TIMEOUT_S)
        restart(client, one, meanwhile=lambda: cluster.relocate(one.name))
        restart(client, two, meanwhile=None)
        new = cluster.join()
        new.start()
        new.wait()
        wait_until(lambda: client.status().complete, what="the new node to be known")
        wait_until(lambda: has_shares(client), what="the shares", timeout_s=TIMEOUT_S)
        stored = {one.name: one.datasets[0]["rows"] for one in client.status().nodes}
        assert stored[new.name] > 0
        more = reader.count()
        wait_until(lambda: reader.count() > more, what="an update", timeout_s=TIMEOUT_S)
        stream.finish()
        wanted = client.query("numbered", QUERY)
        assert wanted.complete
        wait_until(lambda: reader.count() >= len(wanted), what="all labels", timeout_s=TIMEOUT_S)
        reader.close()
        audit = reader.deliveries.audit(wanted)
        assert not audit.wrong, audit
        assert audit.labels > 100
        assert client.count("numbered") == stream.sent
        client.cancel(ccq.id)
    again = LocalCluster(2, 1, tmp_path)
    assert again.addresses == cluster.addresses, "the directory remembers who joined and where"
    assert [node.name for node in again.nodes] == ["node-1", "node-2", "node-3"]


@pytest.mark.slow
def test_partition_moved_amid_a_stream_has_each_row_once(tmp_path: Path) -> None:
    with LocalCluster(2, 1, tmp_path, partitions_per_group=2, replicas=1) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        client.ingest("numbered", numbered(FIRST, 20_000))
        options = StreamOptions(pause_s=0.01)
        stream = Stream(cluster.client(timeout="500ms"), "numbered", options)
        stream.start()
        source = placement.owner(Topology.from_json(client.topology_json()), 0)
        for to in ({"node-1", "node-2"} - {source}, {source}):
            *_, last = client.move(0, to=to.pop())
            assert last.stage == "done"
        stream.finish()
        stored = client.read(client.query("numbered"), columns=["number"])
        numbers = np.sort(stored.column("number").to_numpy())
        expected = [np.arange(stream.sent), np.arange(FIRST, FIRST + 20_000)]
        np.testing.assert_array_equal(numbers, np.concatenate(expected))


def test_move_wrong_partition_or_node_raises_input_error(cluster: galileo.LocalCluster) -> None:
    with galileo.connect(*cluster.addresses) as client:
        topology = Topology.from_json(client.topology_json())
        with raises(InputError, partition=topology.partitions[-1]):
            list(client.move(topology.partitions[-1], to=topology.groups[0].nodes[0].name))
        with raises(InputError, node="unknown"):
            list(client.move(0, to="unknown"))
        began = time.monotonic()
        owner = placement.owner(topology, 0)
        (done,) = client.move(0, to=owner)
        assert (done.partition, done.stage) == (0, "done")
        assert time.monotonic() - began < TIMEOUT_S
