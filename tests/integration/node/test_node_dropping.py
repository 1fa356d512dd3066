"""Dropping datasets on a cluster of nodes, some of which are away, late or restarted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cycle_requests import cycle_request
from expected_errors import raises
from node_cluster import make_observations

from galileo.errors import PartitionMoved, Unavailable, UnknownDataset
from galileo.model import paths
from galileo.model.retention import Removed, Retention
from galileo.model.rows import RowOptions
from galileo.model.schema import Feature, Schema
from galileo.model.system import SYSTEM_TABLES
from galileo.node import system_tables
from galileo.node.catalog import RETENTION_KIND
from galileo.node.definitions import Definition
from galileo.query import parse
from galileo.storage.commits import Commit

AGAIN = Schema("nam", [Feature("depth", "m")], geohash_precision=3)


def known(cluster: Any) -> dict[str, list[str]]:
    return {node.name: node.catalog.keys for node in cluster.nodes}


def everywhere(*keys: str) -> dict[str, list[str]]:
    return {name: list(keys) for name in "abc"}


def directories(cluster: Any) -> list[str]:
    """Of the files of datasets at all nodes."""
    names = sorted(path.name for path in cluster.directory.glob("*/journals/*"))
    return [name for name in names if name not in SYSTEM_TABLES]


@pytest.mark.parametrize("at", ["a", "b", "c"])
async def test_drop_dataset_at_any_node_deletes_it_everywhere(cluster: Any, at: str) -> None:
    await cluster.ingest(make_observations(500))
    labels = await cluster.ask()
    outcome = await cluster[at].drop_dataset("nam")
    assert sum(one.rows for one in outcome.values()) == 500
    assert all(one.bytes > 0 for one in outcome.values())
    assert known(cluster) == everywhere()
    assert directories(cluster) == []
    for node in "abc":
        for request in (
            cluster[node].schema("nam"),
            cluster[node].named("nam"),
            cluster[node].drop_dataset("nam"),
            cluster.ingest(make_observations(5), at=node),
            cluster.read(labels, at=node),
        ):
            with raises(UnknownDataset, dropped="nam", remedy="create_dataset"):
                await request


async def test_drop_dataset_of_an_unknown_dataset_is_refused(cluster: Any) -> None:
    with raises(UnknownDataset, nearest="nam"):
        await cluster["a"].drop_dataset("nan")
    assert known(cluster) == everywhere("nam")


async def test_drop_dataset_frees_the_name_for_a_new_dataset(cluster: Any) -> None:
    old = await cluster.ingest(make_observations(300))
    labels = await cluster.ask()
    await cluster["b"].set_retention("nam", Retention(bytes=1 << 40))
    await cluster["a"].drop_dataset("nam")
    created = await cluster["b"].create_dataset(AGAIN)
    assert created == AGAIN.of_generation(1)
    assert known(cluster) == everywhere("nam@1")
    rows = make_observations(80).rename_columns(["latitude", "longitude", "time", "depth", "n"])
    answer = await cluster["a"].ingest.ingest(
        "nam@1", rows.drop_columns(["n"]), producer="radar", batch=0
    )
    assert (answer.rows, answer.duplicate_rows) == (80, 0), "numbers of batches begin anew"
    assert set(answer.reached.values()) == {1}, "and so do sequences"
    assert set(old.reached.values()) == {1}
    for node in "abc":
        assert await cluster[node].named("nam") == created
        assert (await cluster[node].retention("nam")).retention is None
        with raises(UnknownDataset, dropped="nam"):
            await cluster.read(labels, at=node)
        with raises(UnknownDataset, dropped="nam"):
            await cluster.ingest(make_observations(5), at=node)
    await cluster["c"].set_retention("nam", Retention(bytes=1 << 30))
    assert cluster["c"].catalog.retention("nam@1").retention == Retention(bytes=1 << 30)
    removed = await cluster["a"].drop_dataset("nam@1")
    assert sum(one.rows for one in removed.values()) == 80
    assert cluster["c"].catalog.generations == {"nam": 2}
    assert cluster["c"].store.load_records(RETENTION_KIND) == {}


async def test_drop_dataset_missed_by_a_node_is_learnt_later(cluster: Any) -> None:
    await cluster.ingest(make_observations(300))
    at, away = cluster.followers
    cluster.network.away = {away}
    outcome = await cluster[at].drop_dataset("nam")
    assert isinstance(outcome[away], Unavailable)
    cluster.network.away = set()
    assert cluster[away].catalog.keys == ["nam"]
    await cluster.follow(away)
    assert known(cluster) == everywhere()
    assert directories(cluster) == []


async def test_node_that_missed_a_drop_and_a_creation_adopts_the_new_dataset(cluster: Any) -> None:
    await cluster.ingest(make_observations(300))
    at, away = cluster.followers
    cluster.network.away = {away}
    await cluster[at].drop_dataset("nam")
    await cluster[at].create_dataset(AGAIN)
    cluster.network.away = set()
    await cluster.follow(away)
    assert known(cluster) == everywhere("nam@1")
    await cluster.follow(cluster.leader)
    assert known(cluster) == everywhere("nam@1")


async def test_drop_dataset_without_a_leader_of_the_system_partition_is_unavailable(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_tables, "PATIENCE_S", 0.0)
    other, _ = cluster.followers
    cluster.network.away = {cluster.leader}
    with pytest.raises(Unavailable):
        await cluster[other].drop_dataset("nam")
    assert known(cluster) == everywhere("nam")


async def test_drop_dataset_survives_restarts(cluster: Any) -> None:
    await cluster.ingest(make_observations(300))
    await cluster["a"].set_retention("nam", Retention(bytes=1 << 40))
    await cluster["a"].drop_dataset("nam")
    for name in "abc":
        await cluster.restart(name)
    assert known(cluster) == everywhere()
    await cluster["c"].create_dataset(AGAIN)
    for name in "abc":
        node = await cluster.restart(name)
        assert await node.named("nam") == AGAIN.of_generation(1)
        assert (await node.retention("nam")).retention is None


async def test_drop_dataset_leaves_ingest_into_others_running(cluster: Any) -> None:
    other = Schema("gfs", cluster.schema.features, geohash_precision=2, time_bucket="6h")
    await cluster["a"].create_dataset(other)

    async def ingest(dataset: str, batch: int) -> Any:
        node = cluster["abc"[batch % 3]]
        table = make_observations(50, batch)
        return await node.ingest.ingest(dataset, table, producer=dataset, batch=batch)

    outcomes = await asyncio.gather(
        *(ingest("gfs", batch) for batch in range(12)),
        cluster["b"].drop_dataset("nam"),
        *(ingest("nam", batch) for batch in range(12)),
        return_exceptions=True,
    )
    assert [one.rows for one in outcomes[:12]] == [50] * 12
    errors = [one for one in outcomes[13:] if isinstance(one, Exception)]
    assert all(isinstance(error, UnknownDataset | PartitionMoved) for error in errors)
    assert known(cluster) == everywhere("gfs")
    assert set(directories(cluster)) == {"gfs"}
    found = [
        len(table) async for table in cluster["c"].selection.select(parse("", other), RowOptions())
    ]
    assert sum(found) == 600


async def test_late_requests_for_a_dropped_dataset_are_refused(cluster: Any) -> None:
    """What a node sends that has not heard of the drop is refused, or finds nothing."""
    rows = make_observations(50)
    await cluster.ingest(rows)
    node = cluster["a"]
    await node.matching.register_queries("nam", [""])
    await node.drop_dataset("nam")
    await node.create_dataset(cluster.schema)
    task = cycle_request(cluster.schema, [], after=[[0]], dataset="nam")
    with pytest.raises(UnknownDataset):
        await node.matching.match(task)
    with pytest.raises(UnknownDataset):
        node.catalog.commit("nam", {0: Commit("p", 0, *paths.index(cluster.schema, rows))})
    await node.adopt(cluster.schema)
    node.catalog.adopt_retention("nam", (await node.retention("nam@1")))
    assert known(cluster) == everywhere("nam@1")
    assert not node.catalog.shard("nam@1").journals


async def test_drop_repeated_gives_the_first_answer(cluster: Any) -> None:
    await cluster.ingest(make_observations(50))
    removed = await cluster["a"].drop_dataset("nam")
    await cluster["a"].create_dataset(AGAIN)
    first = removed["b"]
    assert first.rows > 0
    assert await cluster["b"].drop("nam", 1) == first, "the answer to a call that comes again"
    await cluster["b"].learn_definitions({"nam": Definition(1)})
    assert await (await cluster.restart("b")).drop("nam", 1) == Removed()
    assert known(cluster) == everywhere("nam@1")


async def test_drop_called_concurrently_gives_one_answer(cluster: Any) -> None:
    """A node that follows may hear of the drop before the call of another node comes."""
    await cluster.ingest(make_observations(50))
    node = cluster["a"]
    rows = sum(journal.rows_total for journal in node.catalog.shard("nam").own.values())
    outcomes = await asyncio.gather(*(node.drop("nam", 1) for _ in range(3)))
    assert {one.rows for one in outcomes} == {rows}
