from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.cursor import Cursor
from galileo.dht import topology_changes
from galileo.errors import DatasetExists, InputError, Unavailable, UnknownDataset
from galileo.model.schema import Feature, Schema
from galileo.node.catalog import CatalogOptions, dataset_home
from galileo.node.storage_node import TOPOLOGY_PAUSE_S

Make = Callable[..., pa.Table]


def schema_at(cluster: Any, home: str, **options: Any) -> Schema:
    """A schema whose name has that home."""
    names = (f"dataset-{number}" for number in range(1000))
    name = next(name for name in names if dataset_home(cluster.topology, name) == home)
    return Schema(name, [Feature("t")], **options)


def knows(cluster: Any, schema: Schema) -> set[str]:
    return {node.name for node in cluster.nodes if schema.name in node.catalog.names}


def test_dataset_home_spreads_names_over_all_nodes(cluster: Any) -> None:
    homes = [dataset_home(cluster.topology, f"dataset-{number}") for number in range(300)]
    assert all(60 < homes.count(name) < 140 for name in "abc")
    assert [dataset_home(cluster.topology, name) for name in ("nam", "gfs", "era5")] == list("caa")


@pytest.mark.parametrize("home", ["a", "b"])
async def test_create_dataset_reaches_all_nodes(cluster: Any, home: str) -> None:
    schema = schema_at(cluster, home)
    await cluster["a"].create_dataset(schema)
    assert knows(cluster, schema) == {"a", "b", "c"}
    assert all(node.catalog.schema(schema.name) == schema for node in cluster.nodes)


@pytest.mark.parametrize("home", ["a", "b"])
async def test_create_dataset_with_a_used_name_is_refused(cluster: Any, home: str) -> None:
    schema = schema_at(cluster, home)
    await cluster["a"].create_dataset(schema)
    for node in "abc":
        with raises(DatasetExists, same=True):
            await cluster[node].create_dataset(schema)
        with raises(DatasetExists, same=False):
            await cluster[node].create_dataset(schema_at(cluster, home, geohash_precision=3))
    assert all(node.catalog.schema(schema.name) == schema for node in cluster.nodes)


async def test_create_dataset_twice_at_once_stores_one_schema(cluster: Any) -> None:
    one, other = schema_at(cluster, "b"), schema_at(cluster, "b", geohash_precision=3)
    results = await asyncio.gather(
        cluster["a"].create_dataset(one),
        cluster["c"].create_dataset(other),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["DatasetExists", "Schema"]
    found = {node.catalog.schema(one.name) for node in cluster.nodes}
    assert len(found) == 1, "all nodes have the winner's schema"


async def test_create_dataset_without_its_home_is_unavailable(cluster: Any) -> None:
    cluster.network.away = {"b"}
    schema = schema_at(cluster, "b")
    with raises(Unavailable, node="b"):
        await cluster["a"].create_dataset(schema)
    assert knows(cluster, schema) == set()


async def test_sync_datasets_fetches_missed_datasets_only(
    cluster: Any, make_observations: Make
) -> None:
    cluster.network.away = {"c"}
    schema = schema_at(cluster, "b")
    await cluster["a"].create_dataset(schema)
    assert knows(cluster, schema) == {"a", "b"}
    cluster.network.away = set()
    cluster.network.calls.clear()
    await cluster["c"].sync_datasets("a", {"nam": 0})
    assert cluster.network.calls == [], "nothing is new to it"
    await cluster["c"].sync_datasets("a", {"nam": 0, schema.name: 0})
    assert knows(cluster, schema) == {"a", "b", "c"}


async def test_schema_at_a_node_on_an_empty_directory_waits_for_the_topology_of_the_cluster(
    cluster: Any, tmp_path: Path
) -> None:
    """The topology of its file may lack ranges by which rows were stored."""
    home = dataset_home(cluster.topology, "nam")
    other = next(name for name in "abc" if name != home)
    of_file = cluster.topology
    fresh = type(cluster)(tmp_path / "fresh", of_file, network=cluster.network)
    await cluster.stop(other)
    fresh.running = cluster.running
    node = fresh.start(other, is_founded=False)
    with raises(Unavailable, node=other):
        await node.sync_datasets(home, {"nam": 0})
    asking = asyncio.create_task(node.schema("nam"))
    await asyncio.wait([asking], timeout=3 * TOPOLOGY_PAUSE_S)
    assert not asking.done()
    node.live.replace_nodes(topology_changes.pin(of_file))
    assert await asking == cluster.schema


async def test_restart_recovers_datasets_and_commits(cluster: Any, make_observations: Make) -> None:
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


async def test_facts_of_all_nodes_add_up_to_the_dataset(
    cluster: Any, make_observations: Make
) -> None:
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


async def test_create_dataset_above_datasets_max_is_refused(cluster: Any) -> None:
    await cluster.reconfigure(catalog=CatalogOptions(datasets_max=2))
    await cluster["a"].create_dataset(schema_at(cluster, "a"))
    with raises(InputError, bound=2):
        await cluster["a"].create_dataset(schema_at(cluster, "b"))


async def test_update_sequences_ignores_older_cursors(cluster: Any) -> None:
    view = cluster["a"].view
    assert view.update_sequences("nam", Cursor({1: 5, 2: 3}))
    assert not view.update_sequences("nam", Cursor({1: 4}))
    assert not view.update_sequences("nam", Cursor())
    assert view.update_sequences("nam", Cursor({1: 6}))
    assert view.sequences("nam") == Cursor({1: 6, 2: 3})
    assert view.sequences("gfs") == Cursor()
