"""Retention on real nodes: what is dropped, held back and reported."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import DataExpired, Unavailable, UnknownDataset
from galileo.model.deletions import STRETCHES_SCHEMA
from galileo.model.retention import BYTES_MIN, Retention, VersionedRetention
from galileo.model.times import MICROS
from galileo.node.cluster_scan import ScanEnd
from galileo.node.compaction_runner import CompactionRunner, CompactionRunnerOptions
from galileo.node.peers import ScanDone, ScanLabels, ScanTask
from galileo.node.retention_plan import Hold
from galileo.node.retention_runner import RetentionRunner, RetentionRunnerOptions
from galileo.query import parse
from galileo.storage.compacted_segment import CompactedSegment
from galileo.storage.compaction import CompactionOptions


class Clocks:
    """A wall clock and a monotonic one that stand still until they are moved."""

    def __init__(self, wall: float) -> None:
        self.wall_s = wall
        self.monotonic_s = 50.0

    def wall(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.monotonic_s

    def pass_(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds

    @property
    def options(self) -> RetentionRunnerOptions:
        return RetentionRunnerOptions(
            check_s=3600.0, min_age_s=5.0, wall=self.wall, monotonic=self.monotonic
        )


@pytest.fixture
def clocks() -> Clocks:
    return Clocks(1_330_560_000.0 + 3 * 86400)


@pytest.fixture
async def kept(cluster: Any, clocks: Clocks) -> Any:
    """The cluster with a dataset of many small files and no reader, about to retain."""
    cluster.journals = dataclasses.replace(cluster.journals, segment_bytes_max=4_000)
    for name in ("a", "b", "c"):
        await cluster.restart(name)
    for batch in range(6):
        await cluster.ingest(make_observations(60, batch), batch=batch)
    for node in cluster.nodes:
        node.retain(lambda _: (), clocks.options)
    return cluster


async def retain(cluster: Any, policy: Retention | None) -> dict[str, Any]:
    await cluster["a"].set_retention("nam", policy)
    return await cluster["a"].apply_retention("nam")  # type: ignore[no-any-return]


async def test_apply_retention_deletes_old_observations_everywhere(
    kept: Any, clocks: Clocks
) -> None:
    before = await kept.ask()
    assert len(before) > 100
    reports = await retain(kept, Retention("10d"))
    assert {report.files for report in reports.values()} == {0}
    clocks.pass_(20 * 86400)
    settled = (await kept.ask()).frontier
    await kept.ingest(make_observations(60, 6), batch=6)
    reports = await kept["b"].apply_retention("nam")
    assert set(reports) == {"a", "b", "c"}
    assert all(report.files and not report.failures for report in reports.values())
    for name in ("a", "b", "c"):
        assert settled.covers(kept[name].facts()[0].dropped), "what is young stays"
    clocks.pass_(5.0)
    await kept["b"].apply_retention("nam")
    for name in ("a", "b", "c"):
        assert len(await kept.ask(at=name)) == 0
        [facts] = kept[name].facts()
        assert (facts.rows, facts.paths, facts.bytes_on_disk) == (0, 0, 0)
        assert facts.dropped == facts.sequences != EMPTY_CURSOR
        assert facts.retention == Retention("10d")
    [again] = {r.files for r in (await kept["a"].apply_retention("nam")).values()}
    assert again == 0


async def test_retention_survives_restarts_and_keeps_duplicate_detection(
    kept: Any, clocks: Clocks
) -> None:
    frontier = (await kept.ask()).frontier
    clocks.pass_(20 * 86400)
    await kept["a"].apply_retention("nam")
    clocks.pass_(5.0)
    await retain(kept, Retention("10d"))
    for name in ("a", "b", "c"):
        await kept.restart(name)
    assert (await kept.ask()).frontier == frontier, "sequences never change"
    for batch in range(6):
        answer = await kept.ingest(make_observations(60, batch), batch=batch)
        assert (answer.rows, answer.duplicate_rows) == (60, 60)
        assert frontier.covers(answer.reached)
    assert len(await kept.ask()) == 0
    answer = await kept.ingest(make_observations(60, 99), batch=99)
    assert answer.duplicate_rows == 0
    assert all(answer.reached[p] == frontier[p] + 1 for p in answer.reached)
    assert len(await kept.ask()) > 10
    assert kept["a"].catalog.retention("nam").retention == Retention("10d")


async def test_scan_names_commits_that_retention_deleted(kept: Any, clocks: Clocks) -> None:
    whole = await kept.ask()
    node = kept["a"]
    [(dataset, shard)] = node.catalog.dataset_shards.items()
    partition, journal = next((p, j) for p, j in shard.journals.items() if len(j.log_files()) > 2)
    until = journal.log_files()[1].last
    shard.drop(partition, until)
    mine = frozenset(shard.journals)
    for labels_max in (0, 100_000):
        for after in (0, until - 1, until, until + 1):
            task = ScanTask(
                *(0, dataset, "", Cursor({partition: after}), None, mine), labels_max=labels_max
            )
            parts = [part async for part in node.local_scans.scan([task])]
            gone = {partition: until} if after < until else {}
            assert parts[-1] == ScanDone(0, parts[-1].reached, Cursor(gone))
            found = pa.concat_tables(p.table for p in parts if isinstance(p, ScanLabels))
            places = zip(
                *(found.column(n).to_pylist() for n in ("partition", "sequence")), strict=True
            )
            first = min(sequence for p, sequence in places if p == partition)
            assert first == max(after, until) + 1
    bounded = ScanTask(0, dataset, "", EMPTY_CURSOR, Cursor({partition: until - 1}), mine)
    [*_, done] = [part async for part in node.local_scans.scan([bounded])]
    assert done.gone == Cursor({partition: until - 1})
    query = parse("", kept.schema)
    for at in ("a", "b"):
        between = kept[at].scans.between(query, partitions=mine, after=EMPTY_CURSOR, until=None)
        [*_, tail] = [part async for part in between]
        assert tail.gone == Cursor({partition: until})
        assert isinstance(tail, ScanEnd)
    left = await kept.ask()
    assert left.missing == ()
    expected = whole.after(Cursor({partition: until})).in_commit_order()
    assert left.in_commit_order().table.equals(expected.table)


async def test_read_of_deleted_rows_names_their_commits(kept: Any) -> None:
    labels = await kept.ask()
    [(_, shard)] = kept["a"].catalog.dataset_shards.items()
    dropped = {}
    for partition, journal in shard.journals.items():
        if len(journal.log_files()) > 1:
            dropped[partition] = shard.drop(partition, journal.log_files()[0].last).until
    assert dropped
    for at in ("a", "b"):
        with raises(DataExpired) as caught:
            await kept.read(labels, at=at)
        named = caught.value.details
        assert dict(zip(named["partitions"], named["until"], strict=True)) == dropped
    left = labels.after(Cursor(dropped))
    assert 0 < (await kept.read(left)).num_rows == sum(left.table.column("rows").to_pylist())


async def test_synopsis_after_retention_prunes_remaining_commits_only(kept: Any) -> None:
    [(_, shard)] = kept["a"].catalog.dataset_shards.items()
    query = parse("temperature > 0", kept.schema)
    nothing = parse("temperature > 1000", kept.schema)
    view = kept["b"].view

    def hear(restarted: Any) -> None:
        for synopsis in restarted.synopses().values():
            view.apply_synopsis(kept.schema, synopsis.changes_since(None))

    hear(shard)
    mine = frozenset(shard.journals)
    last = shard.published()
    assert view.pruned_until(nothing, mine, after=EMPTY_CURSOR) == last
    for partition, journal in shard.journals.items():
        journal.seal()
        shard.drop(partition, last[partition])
    assert len(shard.graph.scan(query)) == 0
    hear(shard)
    assert view.pruned_until(query, mine) == last, "nothing that is stored matches"
    assert view.pruned_until(query, mine, after=EMPTY_CURSOR) == EMPTY_CURSOR, (
        "what is gone may have matched"
    )
    assert view.pruned_until(query, mine, after=last) == last
    for synopsis in shard.synopses().values():
        synopsis.check()
    await kept.restart("a")
    [(_, shard)] = kept["a"].catalog.dataset_shards.items()
    assert shard.published() == shard.dropped() == last
    await kept.ingest(make_observations(200, 77), batch=77)
    hear(shard)
    later = shard.published()
    assert view.pruned_until(nothing, mine) == later
    assert view.pruned_until(nothing, mine, after=EMPTY_CURSOR) == EMPTY_CURSOR
    assert view.pruned_until(nothing, mine, after=last) == later


async def test_apply_retention_spares_and_names_slow_readers(kept: Any, clocks: Clocks) -> None:
    frontier = (await kept.ask()).frontier
    asked: list[str] = []
    behind, fetched_us = Cursor(dict.fromkeys(frontier, 1)), dict[str, int]()

    def readers(dataset: str) -> tuple[Hold, ...]:
        asked.append(dataset)
        slow = Hold("slow", behind, 20 * 86_400.0, fetched_us["slow"])
        return (slow, Hold("quick", frontier, 20 * 86_400.0, 0))

    for node in kept.nodes:
        await asyncio.to_thread(node._retaining.stop)
        node.retain(readers, clocks.options)
    clocks.pass_(20 * 86400)
    fetched_us["slow"] = round(clocks.wall() * MICROS)
    await kept["a"].apply_retention("nam")
    clocks.pass_(5.0)
    reports = await retain(kept, Retention("10d"))
    assert asked
    held = [one for report in reports.values() for one in report.held]
    assert {one.readers for one in held} == {("slow",)}
    for node in kept.nodes:
        for journal in node.catalog.shard("nam").journals.values():
            assert journal.dropped <= 1
    clocks.pass_(19 * 86400)
    reports = await kept["a"].apply_retention("nam")
    held = [one for report in reports.values() for one in report.held]
    assert {one.readers for one in held} == {("slow",)}, "it was fetched 19 days ago"
    clocks.pass_(86400)
    await kept["a"].apply_retention("nam")
    assert len(await kept.ask()) == 0, "no reader has fetched for as long as the hold"


async def test_apply_retention_passes_readers_where_the_policy_says_so(
    kept: Any, clocks: Clocks
) -> None:
    slow = Hold("slow", EMPTY_CURSOR, 90 * 86_400.0, round(clocks.wall() * MICROS))
    for node in kept.nodes:
        await asyncio.to_thread(node._retaining.stop)
        node.retain(lambda _: (slow,), clocks.options)
    clocks.pass_(20 * 86400)
    reports = await retain(kept, Retention("10d", past_readers=True))
    assert not [one for report in reports.values() for one in report.held]
    assert len(await kept.ask()) == 0


async def test_apply_retention_after_a_clock_jump_deletes_nothing(
    kept: Any, clocks: Clocks
) -> None:
    clocks.pass_(5.0)
    await kept["a"].apply_retention("nam")
    clocks.pass_(5.0)
    clocks.wall_s += 100 * 86400
    reports = await retain(kept, Retention("10d"))
    assert {report.files for report in reports.values()} == {0}
    clocks.pass_(20 * 86400)
    reports = await kept["a"].apply_retention("nam")
    assert all(report.files for report in reports.values())


async def test_apply_retention_seals_old_open_segments(kept: Any, clocks: Clocks) -> None:
    journals = kept["a"].catalog.shard("nam").journals
    await retain(kept, Retention("80d"))
    before = {p: len(journal.log_files()) for p, journal in journals.items()}
    clocks.pass_(9 * 86400)
    await kept["a"].apply_retention("nam")
    clocks.pass_(2 * 86400)
    await kept["a"].apply_retention("nam")
    assert all(journal.log_files()[-1].sealed for journal in journals.values())
    assert {p: len(journal.log_files()) for p, journal in journals.items()} == before


async def test_apply_retention_bounds_the_bytes_of_each_node(kept: Any, clocks: Clocks) -> None:
    clocks.pass_(5.0)
    await kept["a"].apply_retention("nam")
    clocks.pass_(5.0)
    journals = kept["a"].catalog.shard("nam").journals
    size = sum(journal.bytes_on_disk for journal in journals.values())
    policy = Retention(bytes=BYTES_MIN)
    object.__setattr__(policy, "bytes", size // 2)  # below what people may ask for
    kept["a"].catalog.adopt_retention("nam", VersionedRetention(9, policy))
    report = await asyncio.to_thread(kept["a"]._retaining.apply, "nam")
    left = sum(journal.bytes_on_disk for journal in journals.values())
    assert size // 4 < left <= size // 2
    assert report.bytes == size - left


async def test_set_retention_is_versioned_and_survives_restarts(kept: Any) -> None:
    await kept["b"].set_retention("nam", Retention("1d"))
    await kept["c"].set_retention("nam", None)
    numbered = await kept["a"].set_retention("nam", Retention("2d"))
    assert numbered == VersionedRetention(3, Retention("2d"))
    old = VersionedRetention(2, Retention("9d"))
    kept["a"].catalog.adopt_retention("nam", old)
    assert (await kept["a"].retention("nam")) == numbered
    await kept.restart("a")
    assert (await kept["a"].retention("nam")) == numbered
    with pytest.raises(UnknownDataset):
        await kept["a"].set_retention("nothing", None)
    report = (await kept["b"].apply_retention("nam"))["a"]
    assert "starting" in report.failures[0]
    kept.network.away.add("c")
    report = (await kept["b"].apply_retention("nam"))["c"]
    assert "away" in report.failures[0]
    with pytest.raises(Unavailable):
        await kept["a"].apply_own_retention("nam", numbered)


async def test_retention_runner_applies_policies_and_survives_errors(
    kept: Any, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    node, failing = kept["a"], [True]

    def readers(_: str) -> tuple[Hold, ...]:
        if failing:
            failing.clear()
            raise RuntimeError("no readers today")
        return ()

    await node.set_retention("nam", Retention("10d"))
    options = dataclasses.replace(clocks.options, check_s=0.01, min_age_s=1e-6)
    clocks.pass_(20 * 86400)
    retaining = RetentionRunner(
        node.catalog, options, readers=readers, holds=lambda _: (), compared=lambda _: ()
    )
    journals = node.catalog.shard("nam").journals.values()
    try:
        async with asyncio.timeout(60):
            while any(journal.bytes_on_disk for journal in journals):
                clocks.pass_(0.001)
                await asyncio.sleep(0.01)
    finally:
        await asyncio.to_thread(retaining.stop)
    assert "it is tried again" in caplog.text, "a look that fails does not end the thread"


async def test_compaction_of_an_ageing_dataset_bounds_the_span_of_segments(
    kept: Any, clocks: Clocks
) -> None:
    merging = CompactionRunner(
        kept["a"].catalog,
        CompactionRunnerOptions(CompactionOptions(bytes_min=1), interval_s=3600.0),
    )
    shard = kept["a"].catalog.shard("nam")
    try:
        assert merging._merge_options(shard).span_us is None
        await kept["a"].set_retention("nam", Retention("80d"))
        assert merging._merge_options(shard).span_us == 10 * 86400 * MICROS
    finally:
        merging.stop()


async def test_select_overtaken_by_retention_is_unavailable(
    kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = parse("temperature > -1000 OR temperature IS NULL", kept.schema)
    total = sum([table.num_rows async for table in kept["a"].selection.select(query)])
    assert total == 360
    for owner in ("a", "b"):
        shard = kept[owner].catalog.shard("nam")
        scan = type(shard.graph).scan_pieces

        def scan_then_drop(
            graph: Any, *args: Any, shard: Any = shard, scan: Any = scan, **named: Any
        ) -> Any:
            pieces = list(scan(graph, *args, **named))
            if graph is shard.graph:
                monkeypatch.undo()
                for partition, journal in shard.journals.items():
                    journal.seal()
                    shard.drop(partition, journal.last_sequence)
            return iter(pieces)

        monkeypatch.setattr(type(shard.graph), "scan_pieces", scan_then_drop)
        with pytest.raises(Unavailable):
            [table async for table in kept["a"].selection.select(query)]
        left = sum([table.num_rows async for table in kept["a"].selection.select(query)])
        assert left < total
        total = left


async def delete_below(cluster: Any, share: float, batch: int) -> None:
    """Deletes a share of the rows of each commit, from the first one on."""
    places = [
        (partition, sequence, journal.header(sequence).rows)
        for node in cluster.nodes
        for partition, journal in node.catalog.shard("nam").own.items()
        for sequence in range(1, journal.last_sequence + 1)
    ]
    parts = [
        (p, sequence, 0, int(share * rows)) for p, sequence, rows in places if share * rows > 1
    ]
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*parts, strict=True), STRETCHES_SCHEMA, strict=True)
    ]
    stretches = pa.table(columns, schema=STRETCHES_SCHEMA)
    await cluster["a"].ingest.ingest("nam", stretches, producer="d", batch=batch, deletes=True)


async def erase_all(cluster: Any, clocks: Clocks) -> int:
    """Lets all nodes erase what they may; how many files are blank in parts then."""
    count = 0
    for node in cluster.nodes:
        shard = node.catalog.shard("nam")
        for journal in shard.journals.values():
            await asyncio.to_thread(journal.seal)
        await asyncio.to_thread(node._retaining.erase, shard)
        count += sum(
            isinstance(file, CompactedSegment) and int(file.erased(np.arange(*bounds)).max()) > 0
            for journal in shard.journals.values()
            for file in journal._segments
            for bounds in [(file.first_sequence, file.next_sequence)]
        )
    return count


async def test_deletions_are_erased_when_they_have_settled_and_nobody_holds_them(
    kept: Any, clocks: Clocks
) -> None:
    held = [Hold("slow", EMPTY_CURSOR, 90 * 86_400.0, round(clocks.wall() * MICROS))]
    for node in kept.nodes:
        await asyncio.to_thread(node._retaining.stop)
        node.retain(lambda _: tuple(held), clocks.options)
    await delete_below(kept, 0.4, batch=1)
    before = rows_of(await kept.ask())
    for _ in range(4):
        assert await erase_all(kept, clocks) == 0, "it is too recent, and then it is held"
        clocks.pass_(200.0)
    held.clear()
    assert await erase_all(kept, clocks) == 0, "less than half of each file is deleted"
    assert any(node.catalog.shard("nam").graph.erased for node in kept.nodes), "memory is freed"
    await delete_below(kept, 0.8, batch=2)
    after = rows_of(await kept.ask())
    assert await erase_all(kept, clocks) == 0
    for _ in range(4):
        clocks.pass_(310.0)
        files = await erase_all(kept, clocks)
    assert files > 0
    assert after < before
    assert rows_of(await kept.ask()) == after


def rows_of(labels: Any) -> int:
    return int(labels.table.column("rows").to_numpy().sum())
