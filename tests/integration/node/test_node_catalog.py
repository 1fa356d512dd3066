from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from node_cluster import make_observations

from galileo.cursor import Cursor
from galileo.dht import topology_changes
from galileo.errors import DatasetExists, Unavailable, UnknownDataset
from galileo.model.schema import Feature, Schema
from galileo.node import system_tables
from galileo.node.storage_node import TOPOLOGY_PAUSE_S

SEA = Schema("sea", [Feature("t")])
OTHER_SEA = Schema("sea", [Feature("t")], geohash_precision=3)


def knows(cluster: Any, schema: Schema) -> set[str]:
    return {node.name for node in cluster.nodes if schema.name in node.catalog.names}


@pytest.mark.parametrize("at", ["a", "b"])
async def test_create_dataset_reaches_all_nodes(cluster: Any, at: str) -> None:
    await cluster[at].create_dataset(SEA)
    assert knows(cluster, SEA) == {"a", "b", "c"}
    assert all(node.catalog.schema("sea") == SEA for node in cluster.nodes)


@pytest.mark.parametrize("at", ["a", "b"])
async def test_create_dataset_with_a_used_name_is_refused(cluster: Any, at: str) -> None:
    await cluster[at].create_dataset(SEA)
    for node in "abc":
        with raises(DatasetExists, same=True):
            await cluster[node].create_dataset(SEA)
        with raises(DatasetExists, same=False):
            await cluster[node].create_dataset(OTHER_SEA)
    assert all(node.catalog.schema("sea") == SEA for node in cluster.nodes)


async def test_create_dataset_twice_at_once_stores_one_schema(cluster: Any) -> None:
    results = await asyncio.gather(
        cluster["a"].create_dataset(SEA),
        cluster["c"].create_dataset(OTHER_SEA),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["DatasetExists", "Schema"]
    found = {node.catalog.schema("sea") for node in cluster.nodes}
    assert len(found) == 1, "all nodes have the winner's schema"


async def test_create_dataset_without_a_leader_of_the_system_partition_is_unavailable(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_tables, "PATIENCE_S", 0.0)
    asked = cluster.followers[0]
    cluster.network.away = {cluster.leader}
    with raises(Unavailable):
        await cluster[asked].create_dataset(SEA)
    assert knows(cluster, SEA) == set()


async def test_node_that_was_away_learns_of_a_dataset_when_it_follows(cluster: Any) -> None:
    first, away = cluster.followers
    cluster.network.away = {away}
    await cluster[first].create_dataset(SEA)
    assert knows(cluster, SEA) == {"a", "b", "c"} - {away}
    cluster.network.away = set()
    await cluster.follow(away)
    assert knows(cluster, SEA) == {"a", "b", "c"}


async def test_schema_at_a_node_on_an_empty_directory_waits_for_the_topology_of_the_cluster(
    cluster: Any, tmp_path: Path
) -> None:
    """The topology of its file may lack ranges by which rows were stored."""
    other = cluster.followers[0]
    of_file = cluster.first
    fresh = type(cluster)(tmp_path / "fresh", of_file, network=cluster.network)
    await cluster.stop(other)
    fresh.running = cluster.running
    node = fresh.start(other, is_founded=False)
    asking = asyncio.create_task(node.schema("nam"))
    await asyncio.wait([asking], timeout=3 * TOPOLOGY_PAUSE_S)
    assert not asking.done()
    node.live.replace_nodes(topology_changes.pin(of_file))
    assert await asking == cluster.schema


async def test_restart_recovers_datasets_and_commits(cluster: Any) -> None:
    for batch in range(3):
        await cluster.ingest(make_observations(200, seed=batch), batch=batch)
    before = {node.name: node.facts() for node in cluster.nodes}
    labels = await cluster.ask("temperature > 280")
    for name in "abc":
        await cluster.restart(name)
    for node in cluster.nodes:
        assert node.catalog.schema("nam") == cluster.schema
        assert [(f.rows, f.paths, f.sequences) for f in node.facts()] == [
            (f.rows, f.paths, f.sequences) for f in before[node.name]
        ]
    again = await cluster.ask("temperature > 280")
    assert again.frontier == labels.frontier
    assert again.in_commit_order().table.equals(labels.in_commit_order().table)


async def test_facts_of_all_nodes_add_up_to_the_dataset(cluster: Any) -> None:
    await cluster.ingest(make_observations(500))
    facts = [fact for node in cluster.nodes for fact in node.facts()]
    assert {fact.dataset for fact in facts} == {"nam"}
    assert sum(fact.rows for fact in facts) == 500
    assert sum(len(fact.sequences) for fact in facts) == len(cluster.topology.partitions)
    assert all(fact.bytes_on_disk > 0 and fact.graph_bytes > 0 for fact in facts)
    assert all(node.stopped() == [] for node in cluster.nodes)


async def test_catalog_schema_of_an_unknown_dataset_names_the_nearest(cluster: Any) -> None:
    with raises(UnknownDataset, dataset="nan", nearest="nam"):
        cluster["a"].catalog.schema("nan")
    with raises(UnknownDataset, dataset="radar", nearest=None, remedy="create_dataset"):
        cluster["a"].catalog.schema("radar")


async def test_update_sequences_ignores_older_cursors(cluster: Any) -> None:
    view = cluster["a"].view
    assert view.update_sequences("nam", Cursor({1: 5, 2: 3}))
    assert not view.update_sequences("nam", Cursor({1: 4}))
    assert not view.update_sequences("nam", Cursor())
    assert view.update_sequences("nam", Cursor({1: 6}))
    assert view.sequences("nam") == Cursor({1: 6, 2: 3})
    assert view.sequences("gfs") == Cursor()
