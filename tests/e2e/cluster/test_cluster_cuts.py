"""Ranges are cut anew in a cluster with three copies while leaders are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_injection.ccq_readers import WatchReader
from fault_injection.ledger import numbered, numbered_schema
from fault_injection.nodes import is_whole
from fault_injection.stream import Stream
from waiting import wait_until
from webhook_receiver import WebhookReceiver

import galileo
from galileo.client import Client
from galileo.cluster import LocalCluster, LocalNode
from galileo.dht import placement
from galileo.dht.topology import Topology

QUERY = "temperature > 260"
HALVES = [("", "group-1"), ("8", "group-1")]
ROWS = 100
TIMEOUT_S = 300.0
KEYS = ("cell:1", "cell:9")
MAPS = ([("", "group-1"), ("8", "east")], [("", "east")], [("", "east"), ("d", "group-1")])


def leader(cluster: LocalCluster, client: Client, partition: int) -> LocalNode:
    topology = Topology.from_json(client.topology_json())
    return cluster.node(placement.owners(topology)[partition])


def aggregated(client: Client) -> list[int]:
    """The observations of all groups, as metadata graphs and as rows have them."""
    tables = [client.aggregate("numbered", by=by, require_complete=True).to_arrow() for by in KEYS]
    return [sum(table["observations"].to_pylist()) for table in tables]


def paged_ids(client: Client) -> set[str]:
    """The ids of all pages."""
    page = client.select_page("numbered", limit=400)
    ids = page.table["id"].to_pylist()
    while page.next is not None:
        page = client.select_page("numbered", limit=400, after=page.next)
        ids += page.table["id"].to_pylist()
    assert len(set(ids)) == len(ids)
    return set(ids)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cluster_with_copies_cuts_its_ranges_while_leaders_are_killed(
    tmp_path: Path, evaluator: dict[str, Any]
) -> None:
    settings = {"evaluator": evaluator}
    with LocalCluster(
        3, 1, tmp_path, settings=settings, partitions_per_group=2, replicas=3
    ) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        ccq = client.submit("numbered", QUERY, interval="250ms", expiration="1h")
        reader = WatchReader(cluster.client(timeout="60s"), ccq)
        stream = Stream(cluster.client(timeout="500ms"), "numbered")
        reader.start()
        stream.start()
        wait_until(lambda: reader.count() > 0, what="an update", timeout_s=TIMEOUT_S)
        for number in range(3):
            node = cluster.join("east", new_group=number == 0)
            node.start()
            node.wait()
        client = cluster.client(timeout="60s")
        repeated = numbered(10_000_000, 500)
        client.ingest("numbered", repeated, producer="repeated")
        for number, ranges in enumerate(MAPS):
            wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
            killed = leader(cluster, client, number % 4)
            killed.kill()
            steps = client.set_ranges(ranges)
            assert killed.name in next(steps).waiting
            killed.start()
            assert [*steps][-1].stage == "done"
            killed.wait()
            wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
            killed = leader(cluster, client, (number + 1) % 4)
            killed.kill()
            again = client.ingest("numbered", repeated, producer="repeated")
            assert again.duplicate_rows == 500
            killed.start()
            killed.wait()
        wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
        stream.finish()
        assert client.count("numbered") == stream.sent + 500
        assert aggregated(client) == [stream.sent + 500] * 2
        wanted = client.query("numbered", QUERY)
        assert wanted.complete
        assert set(wanted.frontier) == {0, 1, 2, 3}
        wait_until(lambda: reader.count() >= len(wanted), what="labels", timeout_s=TIMEOUT_S)
        reader.close()
        audit = reader.deliveries.audit(wanted)
        assert not audit.wrong, audit


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cluster_whose_ranges_were_cut_gets_copies_and_cuts_them_again(tmp_path: Path) -> None:
    with LocalCluster(4, 2, tmp_path, partitions_per_group=1) as cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        client.ingest("numbered", numbered(0, 500), producer="first")
        list(client.set_ranges([("", "group-2"), ("8", "group-1")]))
        assert client.ingest("numbered", numbered(0, 500), producer="first").duplicate_rows == 500
        client.ingest("numbered", numbered(500, 500), producer="second")
    with LocalCluster(4, 2, tmp_path, replicas=2) as cluster:
        client = cluster.client(timeout="60s")
        list(client.set_ranges([("", "group-2")]))
        assert aggregated(client) == [1_000] * 2
        for number, producer in enumerate(("first", "second")):
            table = numbered(number * 500, 500)
            assert client.ingest("numbered", table, producer=producer).duplicate_rows == 500
        client.ingest("numbered", numbered(1_000, 500), producer="third")
        assert client.count("numbered") == 1_500
        assert aggregated(client) == [1_500] * 2
        assert len(paged_ids(client)) == 1_500
        assert Topology.from_json(client.topology_json()).range_epoch == 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_table_channel_and_worker_go_on_when_a_leader_dies_after_a_cut(tmp_path: Path) -> None:
    """A client that knew the cluster before the cut stores rows, subscribes and is notified."""
    with LocalCluster(3, 1, tmp_path, replicas=3) as cluster, WebhookReceiver() as receiver:
        client = cluster.client(timeout="60s")
        client.create_dataset(numbered_schema("numbered"))
        client.create_table(galileo.Table("ports", {"id": "text", "berths": "int"}, key="id"))
        client.create_channel(
            galileo.Channel("all", "numbered", "temperature >= :least", period="250ms")
        )
        client.create_broker(galileo.Broker("ops", galileo.Webhook(receiver.url)))
        store(client, 0)
        list(cluster.client().set_ranges(HALVES))
        with cluster.worker():
            for number in (1, 2):
                wait_until(lambda: is_whole(client), what="all copies", timeout_s=TIMEOUT_S)
                killed = leader(cluster, client, number)
                killed.kill()
                store(client, number)
                killed.start()
                killed.wait()
            assert client.table("ports").rows.num_rows == 3 * ROWS
            wanted = {f"s{number}" for number in range(3)}
            wait_until(
                lambda: wanted == subscriptions(receiver), what="notifications", timeout_s=TIMEOUT_S
            )


def store(client: Client, number: int) -> None:
    """Stores rows in a table, a subscription and observations."""
    ids = [f"{number}-{row}" for row in range(ROWS)]
    assert client.upsert("ports", {"id": ids, "berths": range(ROWS)}).rows == ROWS
    client.subscribe("all", {"id": [f"s{number}"], "least": [0]}, broker="ops")
    assert client.ingest("numbered", numbered(number * ROWS, ROWS)).rows == ROWS


def subscriptions(receiver: WebhookReceiver) -> set[str]:
    """The subscriptions of all notifications that came."""
    matches = [one for _, document in receiver.accepted for one in document["matches"]]
    return {name for match in matches for name in match["subscriptions"]}
