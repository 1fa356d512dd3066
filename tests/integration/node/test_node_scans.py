from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.election.ranking import UsageStatistics
from galileo.errors import PartitionMoved, UnknownProperty
from galileo.graph import metadata_graph
from galileo.graph.columns import Paths
from galileo.graph.metadata_graph import MetadataGraph
from galileo.labels import LabelSet, first_commits
from galileo.model.schema import Feature, Schema
from galileo.node import local_scan, query_limits
from galileo.node.cluster_scan import ScanEnd
from galileo.node.peers import ScanAnswer, ScanDone, ScanFailed, ScanLabels, ScanTask
from galileo.query import parse
from galileo.rpc import internal

QUERIES = [
    "",
    "temperature > 280",
    "temperature BETWEEN 270 AND 290 AND geohash LIKE '9%'",
    "S_INTERSECTS(geometry, BBOX(-120, 30, -80, 50))",
    "temperature IS NULL",
    "temperature > 1000",
    "S_INTERSECTS(geometry, BBOX(170, -40, -150, 60))",
    "S_INTERSECTS(geometry, POLYGON((170 -40, 210 -40, 190 60, 170 60, 170 -40)))",
    "NOT (temperature > 280) OR S_INTERSECTS(geometry, BBOX(100, -40, 160, 0))",
]


def identities(labels: LabelSet) -> set[tuple[int, int, int]]:
    columns = (labels.partitions, labels.sequences, labels.rows)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def dumb(query: str, frame: pd.DataFrame) -> pd.Series:
    """Which observations match, in pandas."""
    t, lat, lon = frame["temperature"], frame["latitude"], frame["longitude"]
    box = (lon >= -120) & (lon <= -80) & (lat >= 30) & (lat <= 50)
    south = (lon >= 100) & (lon <= 160) & (lat >= -40) & (lat <= 0)
    # Across the antimeridian: a box, and a quadrilateral whose eastern side is slanted.
    east = lon % 360
    strip = (lat >= -40) & (lat <= 60) & (east >= 170)
    slanted = east <= 210 - (lat + 40) / 5
    # Geohash cell 9: 45 degrees by 45.
    nine = (lon >= -135) & (lon < -90) & (lat >= 0) & (lat < 45)
    answers = [frame["station"] != "", t > 280, t.between(270, 290) & nine, box, t.isna()]
    answers += [t > 1000, strip & (east <= 210), strip & slanted, (t <= 280) | south]
    return answers[QUERIES.index(query)]


async def fill(cluster: Any, batches: int = 3, rows: int = 300) -> pd.DataFrame:
    tables = [make_observations(rows, seed=seed) for seed in range(batches)]
    for batch, table in enumerate(tables):
        await cluster.ingest(table, batch=batch)
    return pa.concat_tables(tables).to_pandas()


def tell_all(cluster: Any) -> None:
    """Brings the sequences and synopses of all nodes to all nodes, as heartbeats do."""
    for owner in cluster.nodes:
        shard = owner.catalog.shard("nam")
        for node in cluster.nodes:
            node.view.update_sequences("nam", shard.published())
            if node is not owner:
                for synopsis in shard.synopses().values():
                    node.view.apply_synopsis(cluster.schema, synopsis.changes_since(None))


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every answer come as a stream."""

    async def is_large(*_: Any) -> None:
        return None

    monkeypatch.setattr(local_scan.LocalScans, "scan_small", is_large)


# --- complete answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "with synopses"])
async def test_query_at_every_node_equals_a_simple_model(cluster: Any, heard: bool) -> None:
    frame = await fill(cluster)
    if heard:
        tell_all(cluster)
    for query in QUERIES:
        answers = [await cluster.ask(query, at=node) for node in "abc"]
        assert all(answer.complete for answer in answers)
        assert identities(answers[0]) == identities(answers[1]) == identities(answers[2]), query
        rows = await cluster.read(answers[0])
        expected = sorted(frame["station"][dumb(query, frame)])
        assert sorted(rows.column("station").to_pylist()) == expected, query


async def test_query_frontier_covers_all_published_commits(cluster: Any) -> None:
    await fill(cluster)
    answer = await cluster.ask("temperature > 1000")
    assert len(answer) == 0
    published = EMPTY_CURSOR
    for node in cluster.nodes:
        published = published.join(node.catalog.shard("nam").published())
    assert answer.frontier == published


async def test_query_of_one_cell_scans_its_group_only(cluster: Any) -> None:
    await fill(cluster)
    cluster.network.calls.clear()
    answer = await cluster.ask("geohash LIKE '9%'")
    assert len(answer) > 0
    group = dict(cluster.topology.ranges)["9"]
    members = {node.name for node in cluster.topology.groups[group].nodes}
    asked = {node for node, _ in cluster.network.calls}
    assert asked == members - {"a"}


async def test_scans_between_successive_cursors_add_up_to_the_query(cluster: Any) -> None:
    await fill(cluster, batches=4)
    query = parse("temperature > 270", cluster.schema)
    everyone = frozenset(cluster.topology.partitions)
    after, parts = EMPTY_CURSOR, []
    for step in range(1, 5):
        until = Cursor(dict.fromkeys(everyone, step))
        tables = [
            part
            async for part in cluster["b"].scans.between(
                query, partitions=everyone, after=after, until=until
            )
        ]
        assert tables[-1] == ScanEnd(until, frozenset())
        labels = LabelSet(cluster.schema, pa.concat_tables(tables[:-1]))
        assert set(labels.sequences.tolist()) == {step}
        parts.append(labels)
        after = until
    together = LabelSet.concat(cluster.schema, parts)
    assert len(together) == len(identities(together))
    assert identities(together) == identities(await cluster.ask("temperature > 270"))


# --- partial answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("away", [{"b"}, {"c"}, {"b", "c"}])
async def test_query_with_unreachable_nodes_names_missing_partitions(
    cluster: Any, away: set[str]
) -> None:
    await fill(cluster)
    whole = await cluster.ask("temperature > 280")
    cluster.network.away = away
    partial = await cluster.ask("temperature > 280")
    owned = placement.partitions_by_node(cluster.topology)
    gone = frozenset().union(*(owned[node] for node in away))
    assert set(partial.missing) == gone
    assert gone.isdisjoint(partial.frontier)
    assert identities(partial) == {one for one in identities(whole) if one[0] not in gone}
    cluster.network.away = set()
    assert identities(await cluster.ask("temperature > 280")) == identities(whole)


@pytest.mark.parametrize("labels_max", [0, 1, 100_000])
async def test_limited_query_reports_unreachable_nodes(cluster: Any, labels_max: int) -> None:
    await fill(cluster)
    cluster.network.away = {"b"}
    query, scans = parse("", cluster.schema), cluster["a"].scans
    parts = [part async for part in scans.limited(query, scans.run(query), labels_max)]
    assert sum(part.num_rows for part in parts[:-1]) == min(labels_max, len(await cluster.ask()))
    assert parts[-1].missing == placement.partitions_by_node(cluster.topology)["b"]


async def test_query_of_one_cell_is_complete_without_other_groups(cluster: Any) -> None:
    await fill(cluster)
    group = dict(cluster.topology.ranges)["9"]
    elsewhere = {node.name for node in cluster.topology.groups[1 - group].nodes}
    here = next(node.name for node in cluster.topology.groups[group].nodes)
    cluster.network.away = elsewhere
    answer = await cluster.ask("geohash LIKE '9%'", at=here)
    assert answer.complete
    assert len(answer) > 0


async def test_query_drops_labels_of_a_broken_stream(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node had sent some labels; whether they are all is not known, so none count."""
    monkeypatch.setattr(query_limits, "LABELS_PER_PART", 20)
    await fill(cluster)
    whole = await cluster.ask()
    cluster.network.cut_after = {"b": 2}
    query = parse("", cluster.schema)
    parts = [part async for part in cluster["a"].scans.run(query)]
    theirs = placement.partitions_by_node(cluster.topology)["b"]
    tables = pa.concat_tables(part for part in parts if not isinstance(part, ScanEnd))
    came = set(tables.column("partition").to_pylist())
    assert came & theirs, "the stream broke only after some labels"
    assert parts[-1].missing == theirs
    assert theirs.isdisjoint(parts[-1].frontier)
    kept = await cluster.ask()
    assert identities(kept) == {one for one in identities(whole) if one[0] not in theirs}


async def test_query_with_a_stream_broken_at_once_is_partial(cluster: Any) -> None:
    await fill(cluster)
    cluster.network.cut_after = {"b": 0}
    answer = await cluster.ask()
    assert set(answer.missing) == placement.partitions_by_node(cluster.topology)["b"]


async def test_query_of_a_dataset_unknown_to_a_node_is_partial(cluster: Any) -> None:
    late = Schema("late", [Feature("temperature")], geohash_precision=2)
    cluster["a"].catalog.adopt(late)
    parts = [part async for part in cluster["a"].scans.run(parse("", late))]
    owned = placement.partitions_by_node(cluster.topology)
    assert parts == [ScanEnd(EMPTY_CURSOR, owned["b"] | owned["c"])]


@pytest.mark.usefixtures("all_large")
async def test_query_with_an_unexpected_error_raises_it(cluster: Any) -> None:
    async def broken(node: str, tasks: Sequence[ScanTask]) -> AsyncIterator[ScanAnswer]:
        yield ScanDone(0, EMPTY_CURSOR)
        raise ZeroDivisionError("a mistake of ours")

    cluster.network.scan = broken
    with pytest.raises(ZeroDivisionError):
        await cluster.ask()


@pytest.mark.usefixtures("all_large")
async def test_abandoned_query_leaves_no_task(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_limits, "LABELS_PER_PART", 1)
    await fill(cluster, batches=1)
    before = asyncio.all_tasks()
    parts = cluster["a"].scans.between(
        parse("", cluster.schema),
        partitions=frozenset(cluster.topology.partitions),
        after=EMPTY_CURSOR,
        until=None,
    )
    assert (await anext(parts)).num_rows == 1
    assert asyncio.all_tasks() > before
    await parts.aclose()
    assert asyncio.all_tasks() == before


async def test_abandoned_query_ends_its_calls_for_small_answers(cluster: Any) -> None:
    await fill(cluster, batches=1)
    calls: list[asyncio.Future[None]] = []

    def never(*_: Any) -> asyncio.Future[None]:
        calls.append(asyncio.get_running_loop().create_future())
        return calls[-1]

    cluster.network.scan_small = never
    parts = cluster["a"].scans.run(parse("", cluster.schema))
    assert (await anext(parts)).num_rows > 0, "of the node itself"
    await parts.aclose()
    assert [call.cancelled() for call in calls] == [True, True]


# --- what the feature graph spares ---------------------------------------------------------------


def scanned_after(cluster: Any) -> Cursor:
    """From where the other nodes were asked to look."""
    after = EMPTY_CURSOR
    for task in cluster.network.scanned:
        after = after.join({p: task.after[p] for p in task.partitions})
    cluster.network.scanned.clear()
    return after


async def test_query_skips_commits_pruned_by_synopses(cluster: Any) -> None:
    await fill(cluster)
    await cluster.ask("temperature > 1000")
    assert scanned_after(cluster) == EMPTY_CURSOR, "nothing is known yet"
    tell_all(cluster)
    answer = await cluster.ask("temperature > 1000")
    theirs = set(cluster.topology.partitions) - set(
        placement.partitions_by_node(cluster.topology)["a"]
    )
    assert dict(scanned_after(cluster)) == dict.fromkeys(theirs, 3)
    assert answer.complete
    assert dict(answer.frontier) == dict.fromkeys(cluster.topology.partitions, 3)
    await cluster.ask("temperature > 300")
    assert scanned_after(cluster) == EMPTY_CURSOR, "there may be a match"


async def test_node_does_not_read_a_query_when_nothing_is_new_since_its_synopsis(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    tell_all(cluster)
    query = parse("temperature > 1000", cluster.schema)
    there = cluster["b"]
    partitions = placement.partitions_by_node(cluster.topology)["b"]
    published = there.catalog.shard("nam").published(partitions)

    def unread(*_: Any) -> None:
        raise AssertionError("the query was read")

    monkeypatch.setattr(local_scan, "parse", unread)
    task = ScanTask(0, "nam", query.to_json(), published, None, partitions)
    (done,) = await there.local_scans.scan_small(task)
    assert done.reached == published
    earlier = Cursor({p: s - 1 for p, s in published.items()})
    with pytest.raises(AssertionError, match="was read"):
        await there.local_scans.scan_small(replace(task, after=earlier))


async def test_others_have_turns_between_small_scans_of_one_call(cluster: Any) -> None:
    await fill(cluster)
    partitions = placement.partitions_by_node(cluster.topology)["b"]
    task = ScanTask(0, "nam", parse("", cluster.schema).to_json(), EMPTY_CURSOR, None, partitions)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    answers = await internal.Internal(cluster["b"], UsageStatistics).scan_small([task] * 64)
    counting.cancel()
    assert len(answers) == 64
    assert turns >= 64


async def test_query_with_a_stale_synopsis_finds_later_commits(cluster: Any) -> None:
    await fill(cluster)
    tell_all(cluster)
    hot = make_observations(50, seed=9)
    hot = hot.set_column(3, hot.schema.field(3), pa.array([2000.0] * 50))
    written = await cluster.ingest(hot, batch=9)
    answer = await cluster.ask("temperature > 1000")
    assert np.sum(answer.table.column("rows").to_numpy()) == 50
    assert answer.frontier.covers(written.reached)


async def test_query_pruned_partition_of_an_unreachable_node_is_missing(cluster: Any) -> None:
    await fill(cluster)
    tell_all(cluster)
    cluster.network.away.add("b")
    answer = await cluster.ask("temperature > 1000")
    away = set(placement.partitions_by_node(cluster.topology)["b"])
    assert set(answer.missing) == away
    assert {answer.frontier[partition] for partition in away} == {3}


# --- one node ------------------------------------------------------------------------------------


async def local(cluster: Any, *tasks: ScanTask) -> list[ScanAnswer]:
    return [answer async for answer in cluster["a"].local_scans.scan(tasks)]


async def test_scan_tasks_fail_separately(cluster: Any) -> None:
    await fill(cluster)
    mine = placement.partitions_by_node(cluster.topology)["a"]
    query = parse("temperature > 280", cluster.schema).to_json()

    def task(item: int, dataset: str = "nam", query_json: str = query) -> ScanTask:
        return ScanTask(item, dataset, query_json, EMPTY_CURSOR, None, mine)

    answers = await local(cluster, task(1), task(2, "nan"), task(3, query_json="tempera > 1"))
    kinds = {answer.item: type(answer) for answer in answers}
    assert kinds == {1: ScanDone, 2: ScanFailed, 3: ScanFailed}
    failed = {one.item: one.error.kind for one in answers if isinstance(one, ScanFailed)}
    assert failed == {2: "unknown_dataset", 3: "unknown_property"}
    alone = await local(cluster, task(1))
    assert sum(one.table.num_rows for one in alone if isinstance(one, ScanLabels)) > 0


async def test_scan_tasks_together_equal_scan_tasks_alone(cluster: Any) -> None:
    await fill(cluster, batches=4)
    mine = placement.partitions_by_node(cluster.topology)["a"]
    tasks = [
        ScanTask(
            number,
            "nam",
            parse(query, cluster.schema).to_json(),
            Cursor(dict.fromkeys(mine, number % 4)),
            None if number % 2 else Cursor(dict.fromkeys(mine, 3)),
            frozenset(sorted(mine)[: 1 + number % len(mine)]),
        )
        for number, query in enumerate(QUERIES)
    ]

    def rows(answers: list[ScanAnswer], item: int) -> set[tuple[int, int, int]]:
        tables = [a.table for a in answers if isinstance(a, ScanLabels) and a.item == item]
        return identities(
            LabelSet.concat(cluster.schema, [LabelSet(cluster.schema, t) for t in tables])
        )

    together = await local(cluster, *tasks)
    for task in tasks:
        alone = await local(cluster, task)
        assert rows(alone, task.item) == rows(together, task.item)
        assert alone[-1] in together


async def test_scan_of_an_unknown_partition_fails(cluster: Any) -> None:
    await fill(cluster)
    task = ScanTask(0, "nam", "true", EMPTY_CURSOR, None, frozenset({999}))
    [refused] = await local(cluster, task)
    assert isinstance(refused, ScanFailed)
    assert isinstance(refused.error, PartitionMoved), "an answer would look as if it were empty"


@pytest.mark.usefixtures("all_large")
async def test_query_sends_labels_of_a_moving_partition_once(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that looks at observations may find them gone when it has given some labels."""
    await fill(cluster)
    there, breaks = cluster["b"].local_scans, [True]
    scan = there.scan

    async def broken(tasks: Sequence[ScanTask]) -> AsyncIterator[ScanAnswer]:
        async for answer in scan(tasks):
            yield answer
            if breaks and isinstance(answer, ScanLabels):
                breaks.clear()
                yield ScanFailed(answer.item, PartitionMoved("it has left the node"))
                return

    monkeypatch.setattr(there, "scan", broken)
    found = await cluster.ask()
    assert not breaks
    assert len(identities(found)) == len(found)
    assert found.missing == tuple(sorted(cluster["b"].partitions))
    whole = await cluster.ask()
    assert whole.complete
    assert identities(found) < identities(whole)


@pytest.mark.usefixtures("all_large")
async def test_query_names_partitions_whose_nodes_refuse_them_for_too_long(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_limits, "MOVED_RETRY_S", 0.1)
    await fill(cluster)

    async def refuse(tasks: Sequence[ScanTask]) -> AsyncIterator[ScanAnswer]:
        for task in tasks:
            yield ScanFailed(task.item, PartitionMoved("it has left the node"))

    monkeypatch.setattr(cluster["b"].local_scans, "scan", refuse)
    found = await cluster.ask()
    assert found.missing == tuple(sorted(cluster["b"].partitions))
    assert cluster["b"].partitions.isdisjoint(found.frontier)


async def test_query_of_an_unknown_property_is_refused(cluster: Any) -> None:
    with raises(UnknownProperty, property="tempera"):
        await cluster.ask("tempera > 3")


# --- step by step --------------------------------------------------------------------------------


@pytest.mark.usefixtures("all_large")
async def test_query_scans_ahead_of_its_reader_within_the_queue(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ahead of its reader a scan makes only what the queue and one step hold."""
    monkeypatch.setattr(internal, "SCAN_PARTS_MAX", 1)
    monkeypatch.setattr(query_limits, "LABELS_PER_PART", 1)
    monkeypatch.setattr(query_limits, "STEP_BYTES_MAX", 50)
    await fill(cluster, batches=1)
    made: list[int] = []
    gathered = MetadataGraph._labels

    def counted(*args: Any) -> pa.RecordBatch:
        batch = gathered(*args)
        made.append(batch.num_rows)
        return batch

    monkeypatch.setattr(MetadataGraph, "_labels", counted)
    parts = cluster["a"].scans.run(parse("", cluster.schema))
    assert (await anext(parts)).num_rows == 1
    waiting = query_limits.PARTS_WAITING_MAX
    async with asyncio.timeout(60):
        while sum(made) <= waiting:  # noqa: ASYNC110 - threads count
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    # Three nodes, each with one part that does not fit into the queue.
    assert waiting < sum(made) <= 1 + waiting + 3
    rest = [part.num_rows async for part in parts if not isinstance(part, ScanEnd)]
    assert 1 + sum(rest) == sum(made) == len(await cluster.ask())


@pytest.mark.usefixtures("all_large")
async def test_abandoned_scan_ends(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_limits, "STEP_BYTES_MAX", 50)
    await fill(cluster, batches=1)
    steps: list[int] = []
    step = local_scan._IncrementalScan.step

    def counted(self: Any) -> list[ScanAnswer]:
        steps.append(1)
        return step(self)

    monkeypatch.setattr(local_scan._IncrementalScan, "step", counted)
    parts = cluster["a"].scans.run(parse("", cluster.schema))
    await anext(parts)
    await parts.aclose()
    taken = len(steps)
    await asyncio.sleep(0.05)
    # A thread of each node may have been about to begin with one.
    assert len(steps) <= taken + 3
    steps.clear()
    assert len(await cluster.ask()) > 0
    assert len(steps) > 2 * (taken + 3)


@pytest.mark.parametrize("small_bytes_max", [0, 400, 1 << 20])
async def test_query_with_small_and_large_answers_gives_the_same_labels(
    cluster: Any, small_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    whole = await cluster.ask("temperature > 300")
    monkeypatch.setattr(query_limits, "SMALL_BYTES_MAX", small_bytes_max)
    monkeypatch.setattr(query_limits, "STEP_S", 60.0)
    cluster.network.calls.clear()
    again = await cluster.ask("temperature > 300")
    assert identities(again) == identities(whole)
    assert len(again) == len(whole)
    streamed = [method for _, method in cluster.network.calls].count("scan")
    assert streamed == (0 if small_bytes_max > 400 else 2)


async def test_query_in_short_steps_gives_the_same_answer(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time at all each look at a chunk is a step, and the answer is the same."""
    await fill(cluster)
    whole = await cluster.ask("temperature > 300")
    monkeypatch.setattr(query_limits, "STEP_S", -1.0)
    monkeypatch.setattr(query_limits, "INLINE_S", -1.0)
    assert identities(await cluster.ask("temperature > 300")) == identities(whole)
    assert len(await cluster.ask("temperature > 1000")) == 0


@pytest.mark.parametrize("query", ["", "temperature > 270", "temperature > 1000"])
@pytest.mark.parametrize("labels_max", [1, 40, 100_000])
async def test_bounded_scan_equals_a_whole_scan_that_is_cut_afterwards(
    cluster: Any, query: str, labels_max: int
) -> None:
    await fill(cluster, batches=4)
    mine = placement.partitions_by_node(cluster.topology)["a"]
    text = parse(query, cluster.schema).to_json()
    after, until = Cursor(dict.fromkeys(mine, 1)), Cursor(dict.fromkeys(mine, 3))
    task = ScanTask(0, "nam", text, after, until, mine)
    bounded = await local(cluster, replace(task, labels_max=labels_max))
    whole = labels_of(cluster, await local(cluster, task))
    expected, cut = first_commits(whole, reached=until, labels_max=labels_max)
    assert bounded[-1] == ScanDone(0, cut)
    found = labels_of(cluster, bounded)
    assert identities(found) == identities(expected)
    assert len(found) == len(expected)


def labels_of(cluster: Any, answers: list[ScanAnswer]) -> LabelSet:
    tables = [answer.table for answer in answers if isinstance(answer, ScanLabels)]
    empty = cluster.schema.label_schema.empty_table()
    return LabelSet(cluster.schema, pa.concat_tables([empty, *tables]))


async def test_bounded_scans_of_an_old_token_make_each_label_once(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a bounded scan makes is what it answers, a step at a time, however much there is."""
    monkeypatch.setattr(query_limits, "STEP_BYTES_MAX", 500)
    await fill(cluster, batches=8, rows=100)
    mine = placement.partitions_by_node(cluster.topology)["a"]
    everything = await local(cluster, ScanTask(0, "nam", "", EMPTY_CURSOR, None, mine))
    made: list[int] = []
    plain = metadata_graph.to_labels

    def to_labels(schema: pa.Schema, paths: Paths, **options: Any) -> pa.RecordBatch:
        made.append(len(paths))
        return plain(schema, paths, **options)

    monkeypatch.setattr(metadata_graph, "to_labels", to_labels)
    after, answered = EMPTY_CURSOR, 0
    while after != everything[-1].reached:
        answers = await local(cluster, ScanTask(0, "nam", "", after, None, mine, labels_max=20))
        sizes = [answer.table.num_rows for answer in answers if isinstance(answer, ScanLabels)]
        answered += sum(sizes)
        assert sum(made) == answered
        after = answers[-1].reached
    assert answered == len(labels_of(cluster, everything)) > 4 * 20
    assert max(made) <= 12, "a step made the labels of several"


async def test_bounded_scans_ask_each_node_for_its_part(cluster: Any) -> None:
    await fill(cluster, batches=6)
    whole, query = await cluster.ask(), parse("", cluster.schema)
    everyone = frozenset(cluster.topology.partitions)
    owned = placement.partitions_by_node(cluster.topology)
    after, found = EMPTY_CURSOR, list[LabelSet]()
    cluster.network.scanned.clear()
    while after != whole.frontier:
        answer = cluster["a"].scans.between(
            query, partitions=everyone, after=after, until=whole.frontier, labels_max=40
        )
        *tables, end = [part async for part in answer]
        assert end.frontier.covers(after)
        assert end.frontier != after
        after = end.frontier
        found += [LabelSet(cluster.schema, table) for table in tables]
    labels = LabelSet.concat(cluster.schema, found)
    assert len(labels) == len(whole)
    assert identities(labels) == identities(whole)
    assert {(task.partitions, task.labels_max) for task in cluster.network.scanned} == {
        (owned[node], min(40, 80 * len(owned[node]) // len(everyone))) for node in "bc"
    }
