"""Exploration over real nodes in this process; only the network between them is a stand-in."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.errors import Cancelled, DataExpired, InputError, Overloaded, Unavailable
from galileo.geo import geohash
from galileo.graph import group_merger, newest
from galileo.graph.drill_down import default_order
from galileo.graph.feature_graph import FeatureGraph
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.grouping import Grouping, parse_key
from galileo.model.schema import Schema
from galileo.node import local_analytics
from galileo.node.analytics_protocol import (
    AggregateRequest,
    Children,
    ChildrenRequest,
    Described,
    ExplainResult,
    LatestRequest,
    LatestRows,
    NearestRows,
    PartialGroups,
    PartitionScope,
    SummaryRequest,
    SummaryResult,
    Versioned,
)
from galileo.node.cluster_analytics import ClusterAnalytics
from galileo.node.dataset_shard import DatasetShard
from galileo.node.query_options import QueryOptions
from galileo.query import Query, parse, visitors
from galileo.query.nearest import NearestTo


@dataclass
class Direct:
    """Calls the other node's methods; `away` are those that cannot be reached."""

    explorations: dict[str, ClusterAnalytics] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    before_answer: Callable[[str], None] = lambda node: None

    def _reach(self, node: str, question: Any) -> Any:
        self.asked.append((node, question))
        if node in self.away:
            raise Unavailable(f"node {node} is away", node=node)
        self.before_answer(node)
        return self.explorations[node].local

    async def explain(self, node: str, query: Query, share: PartitionScope) -> ExplainResult:
        return await self._reach(node, share).explain(query, share)

    async def summarise(
        self, node: str, question: SummaryRequest, share: PartitionScope
    ) -> SummaryResult:
        return await self._reach(node, question).summarise(question, share)

    async def aggregate(
        self, node: str, question: AggregateRequest, share: PartitionScope
    ) -> PartialGroups:
        return await self._reach(node, question).aggregate(question, share)

    async def children(self, node: str, question: ChildrenRequest) -> Children:
        return await self._reach(node, question).children(question)

    async def nearest(self, node: str, sought: NearestTo, share: PartitionScope) -> NearestRows:
        return await self._reach(node, sought).nearest(sought, share)

    async def latest(self, node: str, question: LatestRequest, share: PartitionScope) -> LatestRows:
        return await self._reach(node, question).latest(question, share)

    async def describe(self, node: str, schema: Schema, share: PartitionScope) -> Described:
        return await self._reach(node, share).describe(schema.name, share)

    async def version(self, node: str, schema: Schema, share: PartitionScope) -> Versioned:
        return await self._reach(node, share).version(schema.name, share)


@pytest.fixture
async def direct(cluster: Any) -> AsyncIterator[Direct]:
    made = Direct()
    for node in cluster.nodes:
        made.explorations[node.name] = ClusterAnalytics(node, peers=made)
    yield made
    for exploration in made.explorations.values():
        await exploration.close()


async def fill(cluster: Any, batches: int = 3) -> pd.DataFrame:
    tables = [make_observations(300, seed=seed) for seed in range(batches)]
    for batch, table in enumerate(tables):
        await cluster.ingest(table, batch=batch)
    return pa.concat_tables(tables).to_pandas()


def held_by(cluster: Any, node: str) -> set[int]:
    return set(placement.partitions_by_node(cluster.topology)[node])


def children_of(
    cluster: Any, *prefix: Any, order: Any = None, limit: int = 10_000
) -> ChildrenRequest:
    levels = default_order(cluster.schema) if order is None else order
    return ChildrenRequest(cluster.schema, prefix, levels, limit)


async def test_analytics_give_the_same_answer_at_every_node(cluster: Any, direct: Direct) -> None:
    frame = await fill(cluster)
    query = parse("temperature > 280", cluster.schema)
    sought = NearestTo(20.0, 179.0, 25, query)
    question = SummaryRequest(query, "temperature", 5)
    warm = frame[frame["temperature"] > 280]
    near, counts = [], []
    for exploration in direct.explorations.values():
        found = await exploration.nearest(sought)
        near.append(found.value.observations.to_pylist())
        summary = (await exploration.summarise(question)).value
        assert (summary.observations, summary.maximum) == (len(warm), warm["temperature"].max())
        counts.append(summary.histogram.counts.tolist())
        explanation = await exploration.explain(query)
        assert sum(node.explanation.found for node in explanation.nodes) == summary.paths
        assert found.missing == frozenset()
    assert near[0] == near[1] == near[2]
    assert counts[0] == counts[1] == counts[2] == np.histogram(warm["temperature"], 5)[0].tolist()


async def test_analytics_with_an_unreachable_node_are_partial(cluster: Any, direct: Direct) -> None:
    await fill(cluster)
    everything = parse("", cluster.schema)
    direct.away.add("b")
    gone, asked = held_by(cluster, "b"), direct.explorations["a"]
    labels = (await cluster.ask("", at="a")).table
    kept = labels.filter(pa.array(~np.isin(labels.column("partition").to_numpy(), list(gone))))
    rows = sum(kept.column("rows").to_pylist())

    summary = await asked.summarise(SummaryRequest(everything, "temperature", 4))
    assert (summary.value.observations, summary.missing) == (rows, gone)
    assert gone.isdisjoint(summary.frontier)
    children = await asked.children(children_of(cluster))
    assert sum(children.value.table.column("observations").to_pylist()) == rows
    assert children.missing == gone
    near = await asked.nearest(NearestTo(0.0, 0.0, 10_000, everything))
    assert (near.value.observations.num_rows, near.missing) == (rows, gone)
    assert gone.isdisjoint(near.frontier)
    explanation = await asked.explain(everything)
    errors = {node.node: node.error for node in explanation.nodes}
    assert {name for name, error in errors.items() if error} == {"b"}
    assert (
        sum(node.explanation.found for node in explanation.nodes if node.explanation)
        == kept.num_rows
    )


def aggregated(cluster: Any, frame: pd.DataFrame, query: str) -> list[dict[str, Any]]:
    """Groups of the matching observations by cell of two characters and day, by pandas."""
    table = pa.Table.from_pandas(frame, schema=cluster.schema.observation_schema)
    kept = frame[parse(query, cluster.schema).match_observations(table)]
    cells = geohash.encode(kept["latitude"], kept["longitude"], 2)
    keys = [pd.Series(geohash.to_text(cells, 2).to_pylist(), index=kept.index, name="geohash")]
    groups = kept.groupby([*keys, kept["time"].dt.floor("6h")])["temperature"]
    columns = {"observations": groups.size(), "temperature_max": groups.max()}
    whole = pd.DataFrame(columns).reset_index()
    return pa.Table.from_pandas(whole, preserve_index=False).to_pylist()  # NaN is null.


BOX = "S_INTERSECTS(geometry, BBOX(-100.5, 10.3, 40.2, 33.1))"
DURING = "T_DURING(datetime, INTERVAL('2012-03-01T03:30:00Z', '2012-03-01T05:20:00Z'))"


@pytest.mark.parametrize("query", ["", "temperature > 280", BOX, f"NOT {BOX}", DURING])
@pytest.mark.parametrize("by", [["cell:2", "window:6h"], ["cell:9", "window:90m"]])
async def test_aggregate_equals_pandas_at_every_node(
    cluster: Any, direct: Direct, query: str, by: list[str]
) -> None:
    """Finer groups than blocks are made of observations, and count the same in all."""
    frame = await fill(cluster)
    expected = aggregated(cluster, frame, query)
    question = AggregateRequest(
        parse(query, cluster.schema), Grouping.of(by, {"temperature": "max"})
    )
    answers = [await e.aggregate(question) for e in direct.explorations.values()]
    assert all(answer.missing == frozenset() for answer in answers)
    assert all(answer.value.equals(answers[0].value) for answer in answers)
    rows = answers[0].value.to_pylist()
    if question.grouping.is_in_graph(cluster.schema):
        assert rows == expected
    else:
        assert sum(row["observations"] for row in rows) == sum(
            row["observations"] for row in expected
        )


async def test_aggregate_with_an_unreachable_node_lacks_its_partitions(
    cluster: Any, direct: Direct
) -> None:
    await fill(cluster)
    direct.away.add("b")
    gone, labels = held_by(cluster, "b"), (await cluster.ask("", at="a")).table
    kept = labels.filter(pa.array(~np.isin(labels.column("partition").to_numpy(), list(gone))))
    for by in ([], ["cell:1"], ["cell:9"]):
        question = AggregateRequest(parse("", cluster.schema), Grouping.of(by))
        found = await direct.explorations["a"].aggregate(question)
        counted = sum(found.value.column("observations").to_pylist())
        assert (counted, found.missing) == (sum(kept.column("rows").to_pylist()), gone)
        assert gone.isdisjoint(found.frontier)


async def test_aggregate_of_too_many_groups_is_refused(
    cluster: Any, direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    monkeypatch.setattr(group_merger, "GROUPS_MAX", 500)
    question = AggregateRequest(parse("", cluster.schema), Grouping.of(["cell:9"]))
    with raises(InputError, parameter="by", bound=500):
        await direct.explorations["a"].aggregate(question)


async def test_aggregate_begins_anew_when_retention_drops_what_it_reads(
    cluster: Any, direct: Direct
) -> None:
    """The labels at the edge of a region were found, and then their commits are dropped."""
    await fill(cluster)
    shard = cluster["a"].catalog.shard("nam")
    read, dropped = shard.journal, []

    class Dropping:
        def read(self, *_: Any, **__: Any) -> pa.Table:
            dropped.append(True)
            raise DataExpired("it is gone", partitions=[0], until=[1])

    query = parse(BOX, cluster.schema)
    question = AggregateRequest(query, Grouping.of(["cell:1"]))
    whole = await direct.explorations["a"].aggregate(question)
    shard.journal = lambda p: read(p) if dropped else Dropping()
    again = await direct.explorations["a"].aggregate(question)
    assert dropped == [True]
    assert again.value.equals(whole.value)
    assert again.missing == frozenset()


async def test_summarise_node_lost_between_rounds_is_missing(cluster: Any, direct: Direct) -> None:
    await fill(cluster)
    rounds = []

    def lose(node: str) -> None:
        rounds.append(node)
        if rounds.count(node) == 2 and node == "b":
            raise Unavailable("gone in the meantime")

    direct.before_answer = lose
    question = SummaryRequest(parse("", cluster.schema), "temperature", 6)
    found = await direct.explorations["a"].summarise(question)
    assert rounds.count("b") == 2
    assert found.missing == held_by(cluster, "b")
    value = found.value
    assert value.histogram.counts.sum() == value.observations - value.missing > 0
    whole = await direct.explorations["c"].summarise(question)
    assert whole.missing == frozenset()
    assert whole.value.observations > value.observations


async def test_summarise_histogram_counts_the_commits_of_its_first_round(
    cluster: Any, direct: Direct
) -> None:
    frame = await fill(cluster)
    late = make_observations(50, seed=9)
    loop = asyncio.get_running_loop()
    ingested: list[asyncio.Task[Any]] = []

    def commit_more(_: str) -> None:
        if not ingested:
            ingested.append(loop.create_task(cluster.ingest(late, batch=9)))

    question = SummaryRequest(parse("", cluster.schema), "temperature", 6)
    whole = await direct.explorations["a"].summarise(question)
    direct.before_answer = commit_more
    again = await direct.explorations["a"].summarise(question)
    await ingested[0]
    for found in (whole, again):
        value = found.value
        assert value.histogram.counts.sum() == value.observations - value.missing
        assert value.histogram.edges[-1] == value.maximum
    assert whole.value.observations == len(frame)


async def test_analytics_skip_partitions_pruned_by_the_feature_graph(
    cluster: Any, direct: Direct
) -> None:
    await fill(cluster)
    cold, exploration = parse("temperature > 1000", cluster.schema), direct.explorations["a"]
    before = await exploration.explain(cold)
    assert before.pruned == Cursor()
    published = Cursor()
    for owner in cluster.nodes:
        shard = owner.catalog.shard("nam")
        published = published.join(shard.published())
        for synopsis in shard.synopses().values():
            cluster["a"].view.apply_synopsis(cluster.schema, synopsis.changes_since(None))
    after = await exploration.explain(cold)
    assert after.pruned == published
    assert sum(node.explanation.paths_examined for node in after.nodes) == 0
    summary = await exploration.summarise(SummaryRequest(cold, "temperature", 3))
    assert (summary.value.paths, summary.frontier) == (0, published)
    near = await exploration.nearest(NearestTo(0.0, 0.0, 5, cold))
    assert (near.value.observations.num_rows, near.frontier) == (0, published)
    direct.away.add("b")
    gone = held_by(cluster, "b")
    for answer in (
        await exploration.summarise(SummaryRequest(cold, "temperature", 3)),
        await exploration.nearest(NearestTo(0.0, 0.0, 5, cold)),
    ):
        assert answer.missing == gone
        assert dict(answer.frontier) == {p: last for p, last in published.items() if p not in gone}


async def test_children_calls_only_nodes_that_can_hold_the_vertex(
    cluster: Any, direct: Direct
) -> None:
    await fill(cluster)
    labels = await cluster.ask("", at="a")
    row = labels.to_arrow().slice(0, 1).to_pylist()[0]
    asked = direct.explorations["a"]
    for prefix in ((row["geohash"],), (row["geohash"], row["time"])):
        direct.asked.clear()
        found = await asked.children(children_of(cluster, *prefix))
        nodes = {node for node, _ in direct.asked}
        owner = placement.owner(cluster.topology, row["partition"])
        members = {node.name for node in cluster.topology.group_of(owner).nodes}
        assert nodes == (members if len(prefix) == 1 else {owner}) - {"a"}
        assert found.value.table.num_rows > 0


async def test_children_merges_the_first_pages_of_all_nodes(cluster: Any, direct: Direct) -> None:
    frame = await fill(cluster)
    counted = frame["temperature"].value_counts().sort_index()
    found = await direct.explorations["a"].children(
        children_of(cluster, order=("temperature",), limit=7)
    )
    table = found.value.table
    assert found.value.more
    assert table.column("value").to_pylist() == counted.index[:7].tolist()
    assert table.column("observations").to_pylist() == counted.iloc[:7].tolist()


async def test_estimate_calls_no_node_and_names_silent_ones(cluster: Any, direct: Direct) -> None:
    await fill(cluster)
    everything, node = parse("", cluster.schema), cluster["a"]
    mine, exploration = held_by(cluster, "a"), direct.explorations["a"]
    own = [p for p in (await cluster.ask("", at="a")).partitions.tolist() if p in mine]

    estimate = await exploration.estimate(everything, feature="temperature", shares=[0.5])
    assert direct.asked == []
    assert estimate.unheard == frozenset(cluster.topology.partitions) - mine
    assert estimate.count.low <= len(own) <= estimate.count.high
    assert len(estimate.quantiles) == 1

    for other in "bc":
        node.view.record_report(other)
        node.view.update_sequences("nam", cluster[other].catalog.shard("nam").published())
    estimate = await exploration.estimate(everything, feature=None, shares=[])
    assert estimate.unheard == frozenset()
    theirs = [cluster[other].catalog.shard("nam").published() for other in "bc"]
    assert estimate.behind == sum(sum(cursor.values()) for cursor in theirs) > 0

    for other in "bc":
        for synopsis in cluster[other].catalog.shard("nam").synopses().values():
            node.view.apply_synopsis(cluster.schema, synopsis.changes_since(None))
    estimate = await exploration.estimate(everything, feature=None, shares=[])
    assert estimate.behind == 0
    whole = len((await cluster.ask("", at="a")).partitions)
    assert estimate.count.low <= whole <= estimate.count.high


async def test_estimate_is_calculated_outside_the_event_loop(
    cluster: Any, direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def record(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            threads.add(threading.get_ident())
            return function(*arguments)

        return call

    for name in ("estimate", "quantiles"):
        monkeypatch.setattr(FeatureGraph, name, record(getattr(FeatureGraph, name)))
    monkeypatch.setattr(DatasetShard, "synopses", record(DatasetShard.synopses))
    await direct.explorations["a"].estimate(
        parse("", cluster.schema), feature="temperature", shares=[0.5]
    )
    assert threads
    assert threading.get_ident() not in threads


async def test_nearest_writes_its_queries_outside_the_event_loop(
    cluster: Any, direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    threads, write = list[int](), visitors.json_value

    def note(tree: Any) -> Any:
        threads.append(threading.get_ident())
        return write(tree)

    query = parse("temperature > 280", cluster.schema)
    monkeypatch.setattr(visitors, "json_value", note)
    await direct.explorations["a"].nearest(NearestTo(20.0, 179.0, 25, query))
    assert threads
    assert threading.get_ident() not in threads


async def test_children_with_a_value_of_the_wrong_type_is_refused(
    cluster: Any, direct: Direct
) -> None:
    await fill(cluster, batches=1)
    with raises(InputError, level="temperature", expected="float"):
        await direct.explorations["a"].children(
            children_of(cluster, "warm", order=("temperature", "geohash"))
        )


# --- cancellation and bounds ---------------------------------------------------------------------


async def test_cancelled_analytics_stop_their_work(cluster: Any, direct: Direct) -> None:
    """The thread meets the check after the caller went away, and ends with it."""
    local = direct.explorations["a"].local
    working, outcome = threading.Event(), []

    def endless(check: Callable[[], None]) -> None:
        try:
            while True:
                check()
                working.set()
        except Cancelled as error:
            outcome.append(error)
            raise

    task = asyncio.create_task(local._run(endless))
    await asyncio.to_thread(working.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await direct.explorations["a"].close()
    assert [type(error) for error in outcome] == [Cancelled]


async def test_analytics_above_waiting_max_are_overloaded(cluster: Any) -> None:
    await cluster.reconfigure(queries=QueryOptions(analytics_waiting_max=2))
    exploration, go_on = ClusterAnalytics(cluster["a"], peers=Direct()), threading.Event()
    local = exploration.local
    tasks = [asyncio.create_task(local._run(lambda check: go_on.wait())) for _ in range(2)]
    await asyncio.sleep(0)
    try:
        with raises(Overloaded, after_s=0.5):
            await local._run(lambda check: None)
    finally:
        go_on.set()
    assert await asyncio.gather(*tasks) == [True, True]
    assert await local._run(lambda check: 7) == 7
    await exploration.close()


async def test_nearest_holds_few_observations_more_than_requested(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster, batches=6)
    await cluster.reconfigure(queries=QueryOptions(rows_held_min=10))
    exploration = ClusterAnalytics(cluster["b"], peers=Direct())
    sizes: list[int] = []
    plain = local_analytics.first

    def measured(tables: list[pa.Table], sought: NearestTo) -> Any:
        sizes.append(sum(table.num_rows for table in tables))
        return plain(tables, sought)

    monkeypatch.setattr(local_analytics, "first", measured)
    sought = NearestTo(0.0, 0.0, 5, parse("", cluster.schema), first_m=3e7)
    share = PartitionScope(frozenset(held_by(cluster, "b")))
    found = await exploration.local.nearest(sought, share)
    await exploration.close()
    assert found.observations.num_rows == 5
    assert len(sizes) >= 1
    frame = (await cluster.read(await cluster.ask("", at="b"))).to_pandas()
    assert len(frame) == 1800


async def test_nearest_starts_again_after_retention_deleted_rows(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are dropped after the search found paths in them and before it read them."""
    cluster.journals = dataclasses.replace(cluster.journals, segment_bytes_max=4_000)
    for name in "abc":
        await cluster.restart(name)
    await fill(cluster)
    direct = Direct()
    direct.explorations["a"] = exploration = ClusterAnalytics(cluster["a"], peers=direct)
    shard, plain = cluster["a"].catalog.shard("nam"), MetadataGraph.scan
    dropped: list[int] = []
    dropping = threading.Lock()

    def scan(graph: MetadataGraph, *args: Any, **keywords: Any) -> pa.Table:
        found = plain(graph, *args, **keywords)
        many = [partition for partition, j in shard.journals.items() if j.segments > 1]
        # Dropping scans too, within itself.
        if not dropped and many and not dropping.locked():
            with dropping:
                shard.drop(many[0], shard.journals[many[0]].log_files()[0].last)
            dropped.append(many[0])
        return found

    monkeypatch.setattr(MetadataGraph, "scan", scan)
    sought = NearestTo(0.0, 0.0, 10_000, parse("", cluster.schema))
    share = PartitionScope(frozenset(held_by(cluster, "a")))
    found = (await exploration.local.nearest(sought, share)).observations
    assert dropped
    left = plain(shard.graph, sought.among, partitions=share.partitions)
    assert found.num_rows == sum(left.column("rows").to_pylist()) > 0
    await exploration.close()


async def test_describe_at_every_node_covers_the_whole_dataset(
    cluster: Any, direct: Direct
) -> None:
    frame = await fill(cluster)
    for node in "abc":
        direct.asked.clear()
        whole = await direct.explorations[node].describe(cluster.schema)
        assert sorted(name for name, _ in direct.asked) == sorted({*"abc"} - {node})
        description, temperatures = whole.value.description, frame["temperature"]
        assert description.observations == len(frame)
        numbers = description.numbers["temperature"]
        assert numbers.missing == temperatures.isna().sum()
        assert (numbers.minimum, numbers.maximum) == (temperatures.min(), temperatures.max())
        assert numbers.mean == pytest.approx(temperatures.mean())
        assert description.extent is not None
        assert description.extent.south <= frame["latitude"].min()
        assert description.extent.east >= frame["longitude"].max()
        assert whole.value.bytes > 0
        assert not whole.missing


async def test_describe_with_an_unreachable_node_names_missing_partitions(
    cluster: Any, direct: Direct
) -> None:
    frame = await fill(cluster)
    direct.away = {"b"}
    whole = await direct.explorations["a"].describe(cluster.schema)
    assert whole.missing == placement.partitions_by_node(cluster.topology)["b"]
    assert 0 < whole.value.description.observations < len(frame)
    assert set(whole.frontier).isdisjoint(whole.missing)


async def test_version_changes_with_the_partitions_of_what_is_committed_or_dropped(
    cluster: Any, direct: Direct
) -> None:
    await fill(cluster)
    direct.asked.clear()
    first = await direct.explorations["a"].version(cluster.schema)
    assert sorted(name for name, _ in direct.asked) == ["b", "c"]
    assert set(first.value.partitions) == set(cluster.topology.partitions)
    assert await direct.explorations["b"].version(cluster.schema) == first

    await cluster.ingest(make_observations(1, seed=99), batch=3)
    second = await direct.explorations["c"].version(cluster.schema)
    [grown] = changed(first, second)
    assert second.frontier[grown] == first.frontier[grown] + 1
    assert second.ranges == first.ranges

    node = cluster[placement.owner(cluster.topology, grown)]
    shard = node.catalog.shard(cluster.schema.key)
    shard.journals[grown].seal()
    await cluster.ingest(make_observations(300, seed=100), batch=4)
    third = await direct.explorations["a"].version(cluster.schema)
    shard.drop(grown, second.frontier[grown])
    fourth = await direct.explorations["a"].version(cluster.schema)
    assert changed(third, fourth) == [grown]
    assert fourth.frontier == third.frontier


def changed(before: Any, after: Any) -> list[int]:
    was, now = before.value.partitions, after.value.partitions
    return [p for p in sorted({*was, *now}) if was.get(p) != now.get(p)]


async def test_version_with_an_unreachable_node_names_missing_partitions(
    cluster: Any, direct: Direct
) -> None:
    await fill(cluster)
    direct.away = {"b"}
    whole = await direct.explorations["a"].version(cluster.schema)
    assert whole.missing == held_by(cluster, "b")
    assert set(whole.value.partitions).isdisjoint(whole.missing)


async def test_aggregate_names_the_partitions_that_matter(cluster: Any, direct: Direct) -> None:
    await fill(cluster)
    asked = direct.explorations["a"]
    query = parse("geohash LIKE '9%'", cluster.schema)
    found = await asked.aggregate(AggregateRequest(query, Grouping.of([])))
    version = await asked.version(cluster.schema)
    assert found.ranges == version.ranges
    assert found.candidates == placement.candidates(
        cluster.topology, cluster.schema, query.cell_ranges()
    )
    assert {p: version.frontier[p] for p in found.candidates} == {
        p: found.frontier[p] for p in found.candidates
    }


def newest_by_loop(frame: pd.DataFrame, key: Callable[[dict[str, Any]], Any]) -> dict[Any, Any]:
    """The newest observation of each key; of those of one time the least by place and features."""

    def rank(row: dict[str, Any]) -> Any:
        features = [row["temperature"], row["station"]]
        missing_last = [(pd.isna(value), value if not pd.isna(value) else 0) for value in features]
        return -row["time"].value, row["latitude"], row["longitude"], missing_last

    newest: dict[Any, Any] = {}
    for row in frame.to_dict("records"):
        name = None if pd.isna(key(row)) else key(row)
        if name not in newest or rank(row) < rank(newest[name]):
            newest[name] = row
    return newest


def without_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if pd.isna(value) else value for name, value in row.items()}


def cell_of(precision: int) -> Callable[[dict[str, Any]], str]:
    def cell(row: dict[str, Any]) -> str:
        cells = geohash.encode([row["latitude"]], [row["longitude"]], precision)
        return str(geohash.to_text(cells, precision)[0])

    return cell


LATEST: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("cell:1", cell_of(1)),
    ("cell:2", cell_of(2)),
    ("cell:3", cell_of(3)),
    ("temperature", lambda row: row["temperature"]),
    ("station", lambda row: row["station"]),
]


@pytest.mark.parametrize("query", ["", "temperature > 280", BOX, DURING, f"{BOX} AND NOT {DURING}"])
async def test_latest_equals_a_loop_at_every_node(cluster: Any, direct: Direct, query: str) -> None:
    """With many ties, and with labels of which it is not certain that an observation matches."""
    rng = np.random.default_rng(len(query))
    for batch in range(3):
        frame = make_observations(300, seed=batch).to_pandas()
        later = pd.to_timedelta(rng.integers(0, 8, 300) * 6, "h")
        frame["time"] = frame["time"].dt.floor("30min") + later
        frame["temperature"] = np.where(
            rng.random(300) < 0.1, np.nan, frame["temperature"].round(-1)
        )
        frame["station"] = rng.choice(["KDEN", "KCYS", None], 300)
        near = rng.random(300) < 0.5
        # In one cell, in the box and out of it.
        frame.loc[near, "latitude"] = rng.choice([30.0, 33.0, 33.3], near.sum())
        frame.loc[near, "longitude"] = rng.choice([-100.7, -100.0], near.sum())
        table = pa.Table.from_pandas(
            frame, schema=cluster.schema.observation_schema, preserve_index=False
        )
        await cluster.ingest(table, batch=batch)
    whole = (await cluster.read(await cluster.ask("", at="b"))).to_pandas()
    parsed = parse(query, cluster.schema)
    table = pa.Table.from_pandas(
        whole, schema=cluster.schema.observation_schema, preserve_index=False
    )
    matching = table.filter(pa.array(parsed.match_observations(table))).to_pandas()
    for text, key in LATEST:
        expected = newest_by_loop(matching, key)
        question = LatestRequest(parsed, parse_key(text))
        for exploration in direct.explorations.values():
            found = await exploration.latest(question)
            assert found.missing == frozenset()
            rows = found.value.to_pandas().to_dict("records")
            names = [None if pd.isna(key(row)) else key(row) for row in rows]
            assert names == sorted(expected, key=lambda name: (name is None, name or 0)), text
            for name, row in zip(names, rows, strict=True):
                if "geohash" in row:
                    assert row.pop("geohash") == name
                assert without_nan(row) == without_nan(expected[name]), (text, name)


async def test_latest_reads_only_paths_that_may_be_newest(
    cluster: Any, direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    read, plain = list[int](), newest.NewestMerger.add

    def add(merger: newest.NewestMerger, table: pa.Table) -> None:
        read.append(table.num_rows)
        plain(merger, table)

    monkeypatch.setattr(newest.NewestMerger, "add", add)
    everything = parse("", cluster.schema)
    share = PartitionScope(frozenset(held_by(cluster, "a")))
    question = LatestRequest(everything, parse_key("cell:1"))
    found = await direct.explorations["a"].local.latest(question, share)
    stored = (await direct.explorations["a"].local.describe("nam", share)).description
    assert found.observations.num_rows <= sum(read) < stored.observations / 2


async def test_latest_of_too_many_values_is_refused(
    cluster: Any, direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    monkeypatch.setattr(newest, "NEWEST_MAX", 50)
    question = LatestRequest(parse("", cluster.schema), parse_key("cell:9"))
    with raises(InputError, parameter="by", bound=50):
        await direct.explorations["a"].latest(question)


@pytest.mark.parametrize("key", ["window:1h", "bits:7", "wind"])
async def test_latest_by_what_is_no_cell_and_no_feature_is_refused(
    cluster: Any, direct: Direct, key: str
) -> None:
    with pytest.raises(InputError):
        await direct.explorations["a"].latest(
            LatestRequest(parse("", cluster.schema), parse_key(key))
        )


async def test_latest_begins_anew_when_retention_drops_what_may_be_newest(
    cluster: Any, direct: Direct
) -> None:
    await fill(cluster)
    shard = cluster["a"].catalog.shard("nam")
    plain, calls = shard.versions, list[int]()

    def versions(partitions: Any) -> Any:
        calls.append(0)
        found = plain(partitions)
        if len(calls) == 2:  # The end of the first attempt.
            found = {p: dataclasses.replace(v, dropped=v.dropped + 1) for p, v in found.items()}
        return found

    question = LatestRequest(parse("", cluster.schema), parse_key("cell:1"))
    whole = await direct.explorations["a"].latest(question)
    shard.versions = versions
    again = await direct.explorations["a"].latest(question)
    assert len(calls) == 4
    assert again.value.equals(whole.value)
