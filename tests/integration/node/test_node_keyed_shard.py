"""Keyed datasets of real nodes with one copy: restarts, cleaning, pages, conditional writes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from buoys import BUOYS, START, Buoys, Row, ordered
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from parameters import keep_quick
from set_back import EarlierLogs

from galileo.cursor import EMPTY_CURSOR
from galileo.dht import placement, topology_changes
from galileo.dht.topology import Group, NodeInfo, Topology, even_ranges
from galileo.errors import (
    Conflict,
    DataExpired,
    DatasetExists,
    DuplicateKey,
    HistoryChanged,
    Unavailable,
)
from galileo.geo import geohash
from galileo.graph import metadata_graph
from galileo.model.schema import Feature, Schema
from galileo.node import table_index
from galileo.query import parse
from galileo.storage.compaction import CompactionOptions

HISTORY = 7


@pytest.fixture
async def buoys(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Buoys:
    monkeypatch.setattr(table_index, "MEMTABLE_VERSIONS", 8)
    monkeypatch.setattr(metadata_graph, "VERSIONS_MIN", 10)
    cluster.schema = BUOYS
    cluster.journals = replace(cluster.journals, segment_bytes_max=4_000)
    for name in "abc":
        await cluster.restart(name)
    await cluster["b"].create_dataset(BUOYS)
    return Buoys(cluster)


@pytest.mark.parametrize("seed", keep_quick(range(20), 0))
async def test_answers_are_those_of_a_dict_after_restarts_and_cleaning(
    buoys: Buoys, seed: int
) -> None:
    buoys.chance.seed(seed)
    for _ in range(2):
        await buoys.write(12)
        await buoys.restart()
        await buoys.check()
        await buoys.clean()
        await buoys.check()
        await buoys.write(3)
    assert len(buoys.dropped()) > 2
    await buoys.restart()
    await buoys.check()


async def test_nodes_start_with_merged_files(buoys: Buoys) -> None:
    await buoys.write(15)
    for shard in buoys.shards:
        for journal in shard.own.values():
            journal.seal()
            assert journal.merge(CompactionOptions(bytes_min=1), lambda _: True)
    await buoys.restart()
    await buoys.check()


async def test_observations_too_old_for_the_retention_are_not_copied(buoys: Buoys) -> None:
    await buoys.write(25)
    limit = START + dt.timedelta(hours=6)
    old, young = (
        [row for row in buoys.rows if (row["time"] < limit) is is_old] for is_old in (True, False)
    )
    await buoys.clean(expired_us=round(limit.timestamp() * 1e6))
    rows = await buoys.select()
    assert [row for row in rows if row["time"] >= limit] == young
    left = [row for row in rows if row["time"] < limit]
    assert len(left) < len(old)
    assert all(row in old for row in left)
    await buoys.restart()
    assert await buoys.select() == rows


async def test_deletions_of_all_rows_leave_nothing(buoys: Buoys) -> None:
    await buoys.write(10)
    rows = buoys.rows
    await buoys.send(rows, [True] * len(rows))
    buoys.expected.clear()
    await buoys.check()
    await buoys.clean()
    await buoys.check()
    await buoys.restart()
    await buoys.check()
    assert sum(one.version_index.count(p) for one in buoys.shards for p in one.own) == 0


@pytest.mark.parametrize("batches", keep_quick([6, 20], 6))
async def test_pages_that_began_before_a_cleaning_are_right_or_expired(
    buoys: Buoys, batches: int
) -> None:
    await buoys.write(batches)
    page = await buoys.any_node().paging.page(parse("", BUOYS), limit=5)
    first, expected = page.observations, buoys.rows
    begun = page.following
    assert begun is not None
    read = first.select(BUOYS.observation_schema.names).to_pylist()
    await buoys.write(5)
    assert ordered(read + await buoys.pages("", begun)) == expected
    before = buoys.dropped()
    await buoys.clean()
    assert buoys.dropped() != before
    with pytest.raises(DataExpired):
        await buoys.pages("", begun)
    await buoys.check()


async def test_pages_of_a_cleaned_dataset_are_its_rows_while_it_changes(buoys: Buoys) -> None:
    await buoys.write(15)
    await buoys.clean()
    assert buoys.dropped()
    expected, start, read = buoys.rows, None, list[Row]()
    while True:
        page = await buoys.any_node().paging.page(parse("", BUOYS), limit=3, start=start)
        read += page.observations.select(BUOYS.observation_schema.names).to_pylist()
        start = page.following
        if start is None:
            break
        await buoys.write(1)
    assert ordered(read) == expected


@pytest.mark.slow
async def test_readers_see_the_same_rows_while_nodes_clean(buoys: Buoys) -> None:
    """A reader may have to begin anew, but sees no row twice and misses none."""
    counts = Counter[str]()

    async def read(number: int) -> None:
        node, query = buoys.cluster.nodes[number % 3], parse("", BUOYS)
        answers: dict[str, Any] = {"select": buoys.select, "pages": buoys.pages}
        name = ("select", "pages", "labels")[number % 3]
        while not cleaning.done():
            with contextlib.suppress(DataExpired, Unavailable):
                assert await node.selection.count(query) == len(expected)
                if name == "labels":
                    assert await buoys.labels("") == levels
                else:
                    assert ordered(await answers[name]("")) == expected
                counts[name] += 1

    for _ in range(3):
        await buoys.write(10)
        expected = buoys.rows
        levels = Counter(row["level"] for row in expected)
        cleaning = asyncio.create_task(buoys.clean())
        await asyncio.gather(cleaning, *map(read, range(6)))
    assert all(counts[name] for name in ("select", "pages", "labels"))


# --- conditional writes ---------------------------------------------------------------------------


async def test_conditional_write_is_refused_where_its_key_has_changed(buoys: Buoys) -> None:
    (key, row), (other_key, other) = buoys.new_row(), buoys.new_row()
    assert key != other_key
    await buoys.send([row, other], [False, False])
    seen = buoys.published()
    await buoys.send([row | {"level": 100}], [False], unchanged_since=seen)
    with pytest.raises(Conflict) as caught:
        await buoys.send([row | {"level": 101}], [False], unchanged_since=seen)
    assert caught.value.details["key"][2:] == [row["station"]]
    await buoys.send([other | {"level": 102}], [False], unchanged_since=seen)
    await buoys.send([row], [True], unchanged_since=buoys.published())
    with pytest.raises(Conflict):
        await buoys.send([row], [False], unchanged_since=seen)
    found = await buoys.select()
    assert [one["level"] for one in found] == [102]


async def test_conditional_write_with_a_key_twice_is_refused(buoys: Buoys) -> None:
    _, row = buoys.new_row()
    with pytest.raises(DuplicateKey):
        await buoys.send([row, row | {"level": 7}], [False, False], unchanged_since=EMPTY_CURSOR)
    assert await buoys.select() == []


async def test_conditional_write_that_is_repeated_is_stored_once(buoys: Buoys) -> None:
    _, row = buoys.new_row()
    seen = buoys.published()
    options = {"producer": "q", "batch": 1, "unchanged_since": seen}
    first = await buoys.send([row], [False], **options)
    again = await buoys.send([row], [False], **options)
    assert (first.rows, first.duplicate_rows) == (1, 0)
    assert (again.rows, again.duplicate_rows, again.reached) == (1, 1, first.reached)
    assert await buoys.select() == [row]
    await buoys.restart()
    again = await buoys.send([row], [False], **options)
    assert (again.duplicate_rows, again.reached) == (1, first.reached)


async def test_conditional_write_that_was_stored_in_part_is_completed(buoys: Buoys) -> None:
    """The rows of the first attempt are no changes that refuse those of other partitions."""
    rows = {partition_of(buoys, row): row for _, row in (buoys.new_row() for _ in range(50))}
    options = {"producer": "q", "batch": 1, "unchanged_since": buoys.published()}
    for row in [*rows.values()][: len(rows) // 2]:
        await buoys.send([row], [False], **options)
    sent = [*rows.values()]
    completed = await buoys.send(sent, [False] * len(sent), **options)
    assert (completed.rows, completed.duplicate_rows) == (len(rows), len(rows) // 2)
    assert await buoys.select() == ordered(sent)


@pytest.mark.slow
async def test_conditional_write_before_the_cleaned_bound_is_refused(buoys: Buoys) -> None:
    await buoys.write(2)
    seen = buoys.published()
    await buoys.write(15)
    await buoys.clean()
    dropped = buoys.dropped()
    key, row = next(
        (key, row)
        for key, row in sorted(buoys.expected.items(), key=str)
        if seen[partition_of(buoys, row)] < dropped[partition_of(buoys, row)]
    )
    with raises(DataExpired):
        await buoys.send([row], [True], unchanged_since=seen)
    await buoys.check()
    await buoys.send([row], [True], unchanged_since=buoys.published())
    del buoys.expected[key]
    await buoys.check()


async def test_conditional_write_at_a_cursor_of_lost_commits_is_refused(buoys: Buoys) -> None:
    earlier = EarlierLogs(buoys.cluster, "buoys")
    await buoys.write(6)
    kept = buoys.rows
    await earlier.save()
    await buoys.write(6)
    lost = buoys.published()
    await earlier.restore(*"abc", history=HISTORY)
    behind = {p for p, last in lost.items() if last > buoys.published()[p]}
    rows = [row for row in kept if partition_of(buoys, row) in behind]
    assert rows
    for row in rows:
        for is_deletion in (False, True):
            with raises(HistoryChanged):
                await buoys.send([row], [is_deletion], unchanged_since=lost)
    assert await buoys.select() == kept


async def test_a_dataset_keeps_its_key(buoys: Buoys) -> None:
    await buoys.write(2)
    node = buoys.any_node()
    for key in (None, "level", ["station", "level"]):
        other = Schema(
            "buoys", BUOYS.features, geohash_precision=2, time_bucket="6h", key=key or ()
        )
        with raises(DatasetExists, same=False):
            await node.create_dataset(other)
    plain = Schema("plain", BUOYS.features)
    await node.create_dataset(plain)
    with raises(DatasetExists, same=False):
        await node.create_dataset(Schema("plain", BUOYS.features, key="station"))
    assert not (await node.schema("plain")).is_keyed
    assert await buoys.select() == buoys.rows


def partition_of(buoys: Buoys, row: Row) -> int:
    """The partition of a row by the present topology."""
    topology = buoys.cluster.topology
    schema = buoys.shards[0].schema
    cells = geohash.encode(np.array([row["latitude"]]), np.array([row["longitude"]]), 2)
    hours = (row["time"] - START) // dt.timedelta(hours=6) * 6
    bucket = round((START + dt.timedelta(hours=hours)).timestamp() * 1e6)
    [partition] = placement.partitions_from_cells(topology, schema, cells, np.array([bucket]))
    return int(partition)


# --- ranges ---------------------------------------------------------------------------------------

NODES = [NodeInfo(name, f"127.0.0.1:{port}") for port, name in enumerate("ab", start=1)]
FIRST = Topology("test", (Group("west", (NODES[0],)), Group("east", (NODES[1],))), even_ranges(2))
EAST: tuple[tuple[str, int], ...] = (("", 1),)


def cut(topology: Topology, ranges: Any) -> Topology:
    proposed = topology_changes.propose_ranges(topology, ranges)
    version = proposed.version
    return topology_changes.activate_ranges(proposed, ranges, known_version=version)


@given(
    cells=st.lists(st.integers(0, 1023), min_size=1, max_size=20),
    bucket=st.integers(0, 1_000),
    epoch=st.integers(1, 3),
)
@examples(100)
def test_keys_stay_in_their_partitions_when_ranges_are_cut(
    cells: list[int], bucket: int, epoch: int
) -> None:
    topologies = [FIRST, cut(FIRST, EAST), cut(cut(FIRST, EAST), (("", 0),))]
    assert [one.range_epoch for one in topologies] == [1, 2, 3]
    blocks = np.array(cells, dtype=np.uint64), np.full(len(cells), bucket)
    schema = BUOYS.placed_by(epoch)
    plain = Schema("buoys", [Feature("level")], geohash_precision=2)
    first = placement.partitions_from_cells(topologies[epoch - 1], plain, *blocks)
    for topology in topologies[epoch - 1 :]:
        placed = placement.partitions_from_cells(topology, schema, *blocks)
        assert placed.tolist() == first.tolist()
        assert {*placed.tolist()} <= placement.readable_partitions(topology)


@pytest.mark.slow
async def test_rows_replace_those_before_the_ranges_were_cut(buoys: Buoys) -> None:
    await buoys.write(6)
    topology = cut(topology_changes.pin(buoys.cluster.topology), EAST)
    buoys.cluster.topology = replace(topology, version=topology.version + 1)
    for node in buoys.cluster.nodes:
        node.live.replace_nodes(buoys.cluster.topology)
    assert buoys.any_node().topology.range_epoch == 2
    await buoys.write(6)
    await buoys.check()
    await buoys.restart()
    await buoys.write(2)
    await buoys.check()
    of_cluster = await buoys.any_node().schema("buoys")
    assert of_cluster.range_epoch == 1
