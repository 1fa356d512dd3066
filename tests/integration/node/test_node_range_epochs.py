"""Batches that are repeated after the ranges were cut anew are stored once, whatever was lost."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from node_cluster import make_observations
from parameters import keep_quick
from range_histories import EAST, MAPS, WEST, History, Violation

from galileo.client.routing import Router
from galileo.dht import topology_changes
from galileo.dht.topology import Group, NodeInfo, Topology
from galileo.errors import BatchConflict, PartitionReadOnly, RangesChanged, Unavailable
from galileo.model import paths
from galileo.model.table import Table
from galileo.node import earlier_batches
from galileo.node.earlier_batches import BatchIdentity
from galileo.node.peers import BatchLookup, CommitTask, FoundBatch
from galileo.query import parse
from galileo.storage.journal import PartitionJournal

HISTORIES = 2
MANY_HISTORIES = 400
SEEDS_OF_MUTANTS = 100
ALL_WEST, ALL_EAST = (("", WEST),), (("", EAST),)


@pytest.fixture
async def western(cluster: Any) -> Any:
    """The cluster with all ranges in the west: nodes a and c, and partitions 0 to 3."""
    learn(cluster, replace(topology_changes.pin(cluster.topology), ranges=ALL_WEST))
    return cluster


def learn(cluster: Any, topology: Topology, *, at: str = "abc") -> None:
    """Has nodes learn a topology, of the next version."""
    cluster.topology = replace(topology, version=cluster.topology.version + 1)
    for name in at:
        cluster[name].live.replace_nodes(cluster.topology)


def cut(cluster: Any, ranges: Any, *, at: str = "abc") -> None:
    """Has nodes learn of new ranges that are in force, without all others."""
    topology = topology_changes.propose_ranges(cluster.topology, ranges)
    version = topology.version
    learn(cluster, topology_changes.activate_ranges(topology, ranges, known_version=version), at=at)


def stored_rows(cluster: Any) -> list[str]:
    journals = [
        journal for node in cluster.nodes for journal in node.catalog.shard("nam").journals.values()
    ]
    return [
        station
        for journal in journals
        for sequence in range(1, journal.last_sequence + 1)
        for station in journal.read(sequence).column("station").to_pylist()
    ]


async def test_ingest_repeated_after_a_cut_stores_nothing_twice(western: Any) -> None:
    table = make_observations(200)
    first = await western.ingest(table)
    cut(western, ALL_EAST)
    again = await western.ingest(table)
    assert (again.rows, again.duplicate_rows) == (200, 200)
    assert again.reached == first.reached
    assert len(stored_rows(western)) == 200


async def test_ingest_partly_stored_before_a_cut_stores_the_rest(western: Any) -> None:
    table = make_observations(200)
    western.network.away = {"c"}
    with pytest.raises(Unavailable):
        await western.ingest(table)
    western.network.away = set()
    before = len(stored_rows(western))
    assert 0 < before < 200
    cut(western, ALL_EAST)
    again = await western.ingest(table)
    assert (again.rows, again.duplicate_rows) == (200, before)
    assert sorted(stored_rows(western)) == sorted(table.column("station").to_pylist())


async def test_ingest_after_ranges_went_back_stores_nothing_twice(western: Any) -> None:
    tables = [make_observations(100, seed) for seed in range(3)]
    for number, ranges in enumerate([ALL_EAST, ALL_WEST, ALL_EAST]):
        await western.ingest(tables[number], batch=number)
        cut(western, ranges)
    for number, table in enumerate(tables):
        again = await western.ingest(table, batch=number)
        assert again.duplicate_rows == 100
    assert len(stored_rows(western)) == 300


async def test_ingest_after_a_cut_and_a_restart_stores_nothing_twice(western: Any) -> None:
    table = make_observations(100)
    await western.ingest(table)
    cut(western, ALL_EAST)
    for name in "abc":
        await western.restart(name)
    assert (await western.ingest(table)).duplicate_rows == 100


async def test_ingest_higher_number_of_a_known_producer_asks_no_node(western: Any) -> None:
    await western.ingest(make_observations(100), batch=0)
    cut(western, ALL_EAST)
    await western.ingest(make_observations(100, 1), at="b", batch=1)
    western.network.calls.clear()
    await western.ingest(make_observations(100, 2), at="b", batch=2)
    assert not [call for call in western.network.calls if call[1] == "find_batches"]


async def test_ingest_never_sent_before_asks_no_node(western: Any) -> None:
    cut(western, ALL_EAST)
    western.network.calls.clear()
    await western["b"].ingest.ingest(
        "nam", make_observations(50), producer="new", batch=0, range_epoch=2, first_epoch=2
    )
    assert not western.network.calls


async def test_ingest_while_the_node_before_is_away_is_unavailable(western: Any) -> None:
    table = make_observations(100)
    await western.ingest(table)
    cut(western, ALL_EAST)
    western.network.away = {"a", "c"}
    with pytest.raises(Unavailable):
        await western.ingest(table, at="b")
    assert len(stored_rows(western)) == 100


async def test_ingest_split_by_earlier_ranges_is_refused(western: Any) -> None:
    cut(western, ALL_EAST)
    with pytest.raises(RangesChanged) as caught:
        await western["a"].ingest.ingest(
            "nam", make_observations(10), producer="p", batch=0, range_epoch=1
        )
    assert caught.value.details["range_epoch"] == 2
    with pytest.raises(RangesChanged):
        await western["b"].ingest.commit(CommitTask("nam", "p", 0, make_observations(10)))


async def test_record_of_a_batch_is_found_after_ranges_and_groups_have_changed(
    western: Any,
) -> None:
    nothing = make_observations(1).slice(0, 0)

    async def record(at: str, batch: int, digest: int) -> None:
        ingest = western[at].ingest
        await ingest.ingest("nam", nothing, producer="p", batch=batch, digest=digest)

    for batch in range(3):
        await record("abc"[batch], batch, 7 + batch)
    cut(western, ALL_EAST)
    east = Group("north", (NodeInfo("d", "127.0.0.1:4"),))
    learn(western, replace(western.topology, groups=(*western.topology.groups, east)))
    for batch, at in itertools.product(range(3), "abc"):
        await record(at, batch, 7 + batch)
        with pytest.raises(BatchConflict):
            await record(at, batch, 6)
    assert not stored_rows(western)


@pytest.mark.parametrize("range_epoch", [1, 2, 3])
@pytest.mark.parametrize("at", ["a", "b", "c"])
async def test_ingest_into_a_table_does_not_depend_on_the_ranges(
    western: Any, at: str, range_epoch: int
) -> None:
    """Each node stores and forwards the rows of a table, whichever ranges the client knows."""
    table = Table("shelters", {"id": "text", "beds": "int"}, key="id").spread(8)
    for node in western.nodes:
        await node.adopt(table)
    cut(western, ALL_EAST)
    rows = pa.table({"id": [f"s{n}" for n in range(50)], "beds": range(50)})
    stored = await western[at].ingest.ingest(
        "shelters", rows, producer="p", batch=0, range_epoch=range_epoch
    )
    assert (stored.rows, stored.duplicate_rows) == (50, 0)


async def test_ingest_split_by_unknown_ranges_is_unavailable(western: Any) -> None:
    with pytest.raises(Unavailable):
        await western["a"].ingest.ingest(
            "nam", make_observations(10), producer="p", batch=0, range_epoch=2
        )


async def test_ingest_of_a_whole_batch_waits_for_ranges_that_another_node_knows(
    western: Any,
) -> None:
    cut(western, MAPS[0], at="c")
    sending = asyncio.create_task(western.ingest(make_observations(100), at="a"))
    await asyncio.sleep(0.02)
    learn(western, western.topology)
    assert (await sending).rows == 100
    assert len(stored_rows(western)) == 100


async def test_find_waits_for_commits_that_were_accepted_before(
    western: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, goes_on, append = threading.Event(), threading.Event(), PartitionJournal.appending

    def held(journal: PartitionJournal, commits: Any, **options: Any) -> Any:
        writing.set()
        goes_on.wait(60)
        return append(journal, commits, **options)

    table = make_observations(100)
    monkeypatch.setattr(PartitionJournal, "appending", held)
    first = asyncio.create_task(western.ingest(table, producer="p"))
    await asyncio.to_thread(writing.wait, 60)
    cut(western, ALL_EAST)
    again = asyncio.create_task(western.ingest(table, producer="p"))
    await asyncio.wait([again], timeout=0.1)
    assert not again.done()
    goes_on.set()
    await first
    assert (await again).duplicate_rows > 0
    assert sorted(stored_rows(western)) == sorted(table.column("station").to_pylist())


async def test_commit_that_begins_before_a_find_and_ends_after_is_refused(
    western: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, goes_on, index_parts = threading.Event(), threading.Event(), paths.index_parts

    def held(schema: Any, table: pa.Table, *, place: Any) -> Any:
        parts = index_parts(schema, table, place=place)
        split.set()
        goes_on.wait(60)
        return parts

    table = make_observations(100)
    with monkeypatch.context() as patched:
        patched.setattr(paths, "index_parts", held)
        call = western["a"].ingest.ingest("nam", table, producer="p", batch=0, range_epoch=1)
        first = asyncio.create_task(call)
        await asyncio.to_thread(split.wait, 60)
    cut(western, ALL_EAST)
    await western.ingest(table, producer="p")
    goes_on.set()
    with pytest.raises(RangesChanged):
        await first
    assert sorted(stored_rows(western)) == sorted(table.column("station").to_pylist())


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_find_in_a_partition_that_takes_no_writes_needs_its_seal(
    western: Any, is_sealed: bool
) -> None:
    await western.ingest(make_observations(100))
    partition = min(western["a"].partitions & {0, 1, 2, 3})
    journal = western["a"].catalog.shard("nam").journals[partition]
    cut(western, ALL_EAST)
    lookup = BatchLookup("nam", "radar", 0, range_epoch=2, places=[(1, partition)])
    if is_sealed:
        await western["a"].ingest.earlier.find(replace(lookup, batch=7))
    journal.stop("the disk failed")
    if is_sealed:
        assert await western["a"].ingest.earlier.find(lookup) == [FoundBatch(1, 0)]
    else:
        with pytest.raises(PartitionReadOnly):
            await western["a"].ingest.earlier.find(lookup)


async def test_find_seals_each_log_once_in_an_epoch(western: Any) -> None:
    for number in range(3):
        await western.ingest(make_observations(100, number), producer=f"p{number}")
    cut(western, ALL_EAST)
    for number in range(3):
        await western.ingest(make_observations(100, number), producer=f"p{number}")
    journals = [
        journal for name in "ac" for journal in western[name].catalog.shard("nam").journals.values()
    ]
    assert [(journal.last_sequence, journal.sealed_epoch) for journal in journals] == [(4, 2)] * 4


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_partitions_with_seals_alone_answer_and_have_no_time(
    western: Any, is_restarted: bool
) -> None:
    cut(western, ALL_EAST)
    table = make_observations(100)
    await western.ingest(table)
    for name in "abc" if is_restarted else "":
        await western.restart(name)
    answer = await western.ask(at="b")
    assert sum(answer.table.column("rows").to_pylist()) == 100
    sealed = [western[name].catalog.shard("nam") for name in "ac"]
    assert {p: s for shard in sealed for p, s in shard.published().items()} == dict.fromkeys(
        range(4), 1
    )
    for shard in sealed:
        assert shard.event_clock() == ()
        assert all(synopsis.version.sequence == 1 for synopsis in shard.synopses().values())


async def test_ingest_after_a_restart_with_former_ranges_is_refused_by_the_seal(
    western: Any,
) -> None:
    """As when a node begins with the topology of its file, and has the log of others."""
    former, table = western.topology, make_observations(100)
    cut(western, ALL_EAST)
    assert (await western.ingest(table)).rows == 100
    western.topology = former
    for name in "ac":
        await western.restart(name)
    with pytest.raises(RangesChanged):
        await western["a"].ingest.ingest("nam", table, producer="radar", batch=0, range_epoch=1)
    assert sorted(stored_rows(western)) == sorted(table.column("station").to_pylist())


async def test_query_while_ranges_are_announced_asks_their_partitions(western: Any) -> None:
    everything, scans = parse("", western.schema), western["a"].scans
    asked = [scans.candidates(everything)]
    learn(western, topology_changes.propose_ranges(western.topology, ALL_EAST))
    asked.append(scans.candidates(everything))
    learn(western, topology_changes.withdraw_ranges(western.topology))
    asked.append(scans.candidates(everything))
    west, east = frozenset(range(4)), frozenset(range(4, 8))
    assert asked == [west, west | east, west]


async def test_query_after_cuts_finds_rows_where_each_was_stored(western: Any) -> None:
    for number, ranges in enumerate([MAPS[0], ALL_EAST, MAPS[3]]):
        await western.ingest(make_observations(100, number), batch=number)
        cut(western, ranges)
    for node in "abc":
        for text in ("", "S_INTERSECTS(geometry, BBOX(-100, -40, 20, 40))"):
            answer = await western.ask(text, at=node)
            found = await western.read(answer, at=node)
            tables = [make_observations(100, number) for number in range(3)]
            wanted = filtered(pa.concat_tables(tables), text)
            assert sorted(found.column("station").to_pylist()) == wanted


def filtered(table: pa.Table, text: str) -> list[str]:
    """The stations of a table, or those in the box of the test."""
    return sorted(
        row["station"]
        for row in table.to_pylist()
        if not text or (-100 <= row["longitude"] <= 20 and -40 <= row["latitude"] <= 40)
    )


# --- random histories --------------------------------------------------------------------------


def _no_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchIdentity, "is_repeatable", property(lambda identity: False))


def _one_name_in_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_batches, "stored_producer", lambda producer, epoch: producer)


def _looks_at_the_last_epoch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    former = earlier_batches._former_places

    def last(schema: Any, parts: Any, batch: BatchIdentity, topology: Topology) -> Any:
        first = max(batch.first_epoch, batch.range_epoch - 1)
        return former(schema, parts, replace(batch, first_epoch=first), topology)

    monkeypatch.setattr(earlier_batches, "_former_places", last)


def _takes_all_batches_for_new(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Router._send_parts

    async def as_new(self: Router, *args: Any, **options: Any) -> Any:
        head = args[-1]
        head.first_epoch = head.range_epoch
        return await send(self, *args, **options)

    monkeypatch.setattr(Router, "_send_parts", as_new)


MUTANTS = {
    "no_lookup": _no_lookup,
    "one_name_in_all_epochs": _one_name_in_all_epochs,
    "looks_at_the_last_epoch_alone": _looks_at_the_last_epoch_alone,
    "takes_all_batches_for_new": _takes_all_batches_for_new,
}


@pytest.fixture
def history(western: Any, tmp_path: Path) -> Callable[[int], History]:
    """`await history(seed)` plays one history in a cluster of its own."""

    async def played(seed: int) -> History:
        topology = replace(topology_changes.pin(western.first), ranges=ALL_WEST)
        made = type(western)(tmp_path / f"history-{seed}", topology)
        for name in "abc":
            made.start(name)
        await made["a"].create_dataset(western.schema)
        history = History(made, random.Random(seed))
        try:
            await history.play()
        finally:
            await made.close()
        return history

    return played


async def test_ingest_random_histories_store_each_row_once(history: Any) -> None:
    duplicates = [(await history(seed)).duplicates for seed in range(HISTORIES)]
    assert sum(duplicates) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES, MANY_HISTORIES))
async def test_ingest_many_random_histories_store_each_row_once(history: Any, seed: int) -> None:
    await history(seed)


@pytest.mark.parametrize("name", keep_quick(sorted(MUTANTS), "no_lookup"))
async def test_random_histories_convict_a_mutant(
    name: str, history: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(SEEDS_OF_MUTANTS):
        try:
            await history(seed)
        except (Violation, BatchConflict):
            return
    pytest.fail(f"no history of {SEEDS_OF_MUTANTS} shows that {name} is wrong")
