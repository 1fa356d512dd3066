from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from expected_errors import raises
from node_cluster import make_observations

from galileo.dht import placement
from galileo.errors import (
    BatchConflict,
    InputError,
    InvalidObservations,
    Overloaded,
    PartitionMoved,
    Unavailable,
    UnknownDataset,
)
from galileo.model import paths
from galileo.model.observations import TEXT_BYTES_MAX
from galileo.model.table import Table
from galileo.node.peers import CommitTask
from galileo.node.storage_node import NodeOptions


def by_partition(cluster: Any, table: pa.Table) -> dict[int, set[str]]:
    """The stations of each partition, straight from the placement."""
    cells, buckets = (
        paths.cells_from_table(cluster.schema, table),
        paths.buckets_from_table(cluster.schema, table),
    )
    placed = placement.partitions_from_cells(cluster.topology, cluster.schema, cells, buckets)
    stations = np.array(table.column("station").to_pylist())
    return {int(p): set(stations[placed == p].tolist()) for p in np.unique(placed)}


def rows_of(cluster: Any, partition: int, table: pa.Table) -> pa.Table:
    stations = by_partition(cluster, table)[partition]
    return table.filter(pc.is_in(table.column("station"), pa.array(sorted(stations))))


def stored(cluster: Any) -> dict[int, list[list[str]]]:
    """The stations of every commit of every partition, read from the journals."""
    found = {}
    for node in cluster.nodes:
        for partition, journal in node.catalog.shard("nam").journals.items():
            tables = [journal.read(number) for number in range(1, journal.last_sequence + 1)]
            found[partition] = [sorted(one.column("station").to_pylist()) for one in tables]
    return found


async def test_ingest_stores_each_row_once_at_its_owner(cluster: Any) -> None:
    table = make_observations(500)
    answer = await cluster.ingest(table)
    assert answer.rows == 500
    assert answer.duplicate_rows == 0
    expected = {p: [sorted(rows)] for p, rows in by_partition(cluster, table).items()}
    assert stored(cluster) == expected
    assert dict(answer.reached) == dict.fromkeys(expected, 1)
    assert answer.paths == sum(fact.paths for node in cluster.nodes for fact in node.facts())
    owners = placement.owners(cluster.topology)
    for node in cluster.nodes:
        held = node.catalog.shard("nam").journals
        assert {owners[partition] for partition in held} == {node.name}


async def test_ingest_at_any_node_in_any_row_order_stores_the_same_commits(cluster: Any) -> None:
    table = make_observations(300)
    shuffled = table.take(pa.array(np.random.default_rng(1).permutation(300)))
    chunked = pa.concat_tables([shuffled.slice(0, 100), shuffled.slice(100)])
    for batch, (node, rows) in enumerate([("a", table), ("b", shuffled), ("c", chunked)]):
        await cluster.ingest(rows, at=node, batch=batch)
    for partition, commits in stored(cluster).items():
        assert len(commits) == 3
        assert commits[0] == commits[1] == commits[2], f"partition {partition}"


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_ingest_of_a_repeated_batch_is_a_duplicate(cluster: Any, is_restarted: bool) -> None:
    table = make_observations(200)
    first = await cluster.ingest(table)
    before = stored(cluster)
    for node in "abc" if is_restarted else "":
        await cluster.restart(node)
    for node in "abc":
        again = await cluster.ingest(table, at=node)
        assert (again.rows, again.paths, again.reached) == (first.rows, first.paths, first.reached)
        assert again.duplicate_rows == 200
    assert stored(cluster) == before


async def test_ingest_retried_after_an_unreachable_node_stores_the_rest(cluster: Any) -> None:
    table = make_observations(400)
    cluster.network.away = {"b"}
    with raises(Unavailable, node="b"):
        await cluster.ingest(table)
    partial = sum(len(commit) for commits in stored(cluster).values() for commit in commits)
    assert 0 < partial < 400
    cluster.network.away = set()
    answer = await cluster.ingest(table, at="c")
    assert answer.rows == 400
    assert answer.duplicate_rows == partial
    assert stored(cluster) == {p: [sorted(r)] for p, r in by_partition(cluster, table).items()}


async def test_ingest_retried_after_a_full_queue_stores_the_rest(cluster: Any) -> None:
    """Each partition takes its part or refuses it by itself; one that refuses fails the batch."""
    table = make_observations(400)
    cluster.options = NodeOptions(commit_queue_max=0)
    await cluster.restart("a")
    with raises(Overloaded, bound=0):
        await cluster.ingest(table)
    partial = sum(len(commit) for commits in stored(cluster).values() for commit in commits)
    assert 0 < partial < 400
    cluster.options = NodeOptions()
    await cluster.restart("a")
    answer = await cluster.ingest(table)
    assert (answer.rows, answer.duplicate_rows) == (400, partial)
    assert stored(cluster) == {p: [sorted(r)] for p, r in by_partition(cluster, table).items()}


async def test_ingest_of_one_batch_number_by_two_producers_stores_both(cluster: Any) -> None:
    for producer in ("one", "two"):
        answer = await cluster.ingest(make_observations(100), producer=producer)
        assert answer.duplicate_rows == 0
    assert Counter(map(len, stored(cluster).values())).keys() == {2}


def warmer(table: pa.Table) -> pa.Table:
    values = [None if t is None else t + 1 for t in table.column("temperature").to_pylist()]
    return table.set_column(3, table.schema.field(3), pa.array(values))


@pytest.mark.parametrize("change", [lambda table: table.slice(0, 150), warmer])
async def test_ingest_of_other_rows_with_a_used_batch_number_is_a_conflict(
    cluster: Any, change: Callable[[pa.Table], pa.Table]
) -> None:
    """Else a producer that restarts its numbering would get a duplicate for new rows."""
    table = make_observations(200)
    await cluster.ingest(table)
    before = stored(cluster)
    with pytest.raises(BatchConflict):
        await cluster.ingest(change(table))
    assert stored(cluster) == before
    for name in "abc":
        await cluster.restart(name)
    with pytest.raises(BatchConflict):
        await cluster.ingest(change(table))
    assert (await cluster.ingest(table)).duplicate_rows == 200


async def test_ingest_concurrently_stores_every_batch(cluster: Any) -> None:
    tables = [make_observations(50, seed=seed) for seed in range(20)]
    nodes = "abcab" * 4
    await asyncio.gather(
        *(
            cluster.ingest(table, at=node, batch=batch)
            for batch, (table, node) in enumerate(zip(tables, nodes, strict=True))
        )
    )
    found = sorted(s for commits in stored(cluster).values() for commit in commits for s in commit)
    assert found == sorted(s for table in tables for s in table.column("station").to_pylist())
    facts = [fact for node in cluster.nodes for fact in node.facts()]
    assert sum(fact.rows for fact in facts) == 1000


async def test_ingest_of_an_empty_table_stores_nothing(cluster: Any) -> None:
    answer = await cluster.ingest(make_observations(5).slice(0, 0))
    assert (answer.rows, answer.paths, len(answer.reached)) == (0, 0, 0)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "values"),
    [("producer", ("", "a b", "x" * 129, "ü", "a/b", "a\n")), ("batch", (-1, 2**63))],
)
async def test_ingest_with_an_invalid_producer_or_batch_number_is_refused(
    cluster: Any, parameter: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        with raises(InputError, parameter=parameter):
            await cluster.ingest(make_observations(5), **{parameter: value})


async def test_ingest_into_an_unknown_dataset_names_the_nearest(cluster: Any) -> None:
    with raises(UnknownDataset, nearest="nam"):
        await cluster["a"].ingest.ingest("nan", make_observations(5), producer="p", batch=0)


async def test_ingest_with_one_invalid_row_stores_nothing(cluster: Any) -> None:
    good = make_observations(100)
    latitudes = good.column("latitude").to_pylist()
    latitudes[57] = 91.0
    wrong = good.set_column(0, good.schema.field(0), pa.array(latitudes))
    with raises(InvalidObservations, row=57):
        await cluster.ingest(wrong)
    assert stored(cluster) == {}
    assert (await cluster.ingest(good)).duplicate_rows == 0


async def test_ingest_above_batch_rows_max_is_refused(cluster: Any) -> None:
    cluster.options = NodeOptions(batch_rows_max=10)
    await cluster.restart("a")
    with raises(InvalidObservations, bound=10):
        await cluster.ingest(make_observations(11))
    assert (await cluster.ingest(make_observations(10))).rows == 10


async def test_ingest_of_checked_rows_refuses_long_texts_before_they_are_unpacked(
    cluster: Any,
) -> None:
    table = await cluster["a"].create_dataset(Table("sites", {"id": "text", "note": "text"}, "id"))
    note = pa.DictionaryArray.from_arrays([0] * 8, ["x" * (TEXT_BYTES_MAX // 8 + 1)])
    rows = pa.table({"id": list("abcdefgh"), "note": note})
    for check in (None, lambda _: None):
        with raises(InvalidObservations, column="note", bound=TEXT_BYTES_MAX):
            await cluster["a"].ingest.ingest(table.key, rows, producer="p", batch=0, check=check)


async def test_watch_has_what_was_created_or_committed(cluster: Any) -> None:
    catalog = cluster["a"].catalog
    take = catalog.watch()

    def changed() -> set[str]:
        taken = {key for key, shard in take() if shard is catalog.shards[key]}
        return taken & {*catalog.keys}

    assert "nam" in changed()
    assert changed() == set()
    await cluster["b"].create_dataset(Table("sites", {"id": "text"}, "id"))
    assert changed() == {"sites"}
    await cluster.ingest(make_observations(500))
    assert changed() == {"nam"}
    assert changed() == set()
    await cluster["a"].drop_dataset("sites")
    assert changed() == set()
    await cluster.move(min(cluster["a"].partitions), to="c")
    assert changed() == {*cluster["a"].catalog.keys}, "it leads other partitions now"


async def test_ingest_calls_each_other_owner_once(cluster: Any) -> None:
    await cluster.ingest(make_observations(500), at="a")
    commits = [node for node, method in cluster.network.calls if method == "commit"]
    assert sorted(commits) == ["b", "c"]


async def test_commit_of_rows_of_another_node_is_refused(cluster: Any) -> None:
    rows = make_observations(500)
    theirs = set(by_partition(cluster, rows)) - placement.partitions_by_node(cluster.topology)["a"]
    with raises(PartitionMoved, partitions=sorted(theirs)):
        await cluster["a"].ingest.commit(CommitTask("nam", "p", 0, rows))
    assert stored(cluster) == {}, "no row is stored, not even of own partitions"


async def test_ingest_numbers_of_one_principal_are_not_those_of_another(cluster: Any) -> None:
    for seed, principal in enumerate(("ann", "bob")):
        for duplicates in (0, 50):
            answer = await cluster["a"].ingest.ingest(
                "nam", make_observations(50, seed), producer="p", batch=0, principal=principal
            )
            assert (answer.rows, answer.duplicate_rows) == (50, duplicates)
