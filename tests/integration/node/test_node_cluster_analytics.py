"""Exploration over real nodes in this process; only the network between them is a stand-in."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations
from parameters import keep_quick

from galileo.cursor import Cursor
from galileo.dht import placement
from galileo.errors import Cancelled, DataExpired, InputError, Overloaded, Unavailable
from galileo.geo import geohash
from galileo.graph import group_merger, newest
from galileo.graph.feature_graph import FeatureGraph
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model.grouping import Grouping, parse_key
from galileo.node import query_limits
from galileo.node.analyses import nearest
from galileo.node.analyses.nearest import NearestAnalysis
from galileo.node.cluster_analytics import ClusterAnswer
from galileo.node.dataset_shard import DatasetShard
from galileo.node.peers import AnalysisTask, PartitionScope
from galileo.query import parse, visitors
from galileo.query.questions import (
    Aggregate,
    Describe,
    Explain,
    FindNearest,
    Latest,
    ListChildren,
    Question,
    Summarise,
    Version,
)
from galileo.wire.value_json import values_to_json


async def answer(
    cluster: Any, question: Question, query: str = "", *, at: str = "a"
) -> ClusterAnswer:
    asked: ClusterAnswer = await cluster[at].analytics.answer(
        parse(query, cluster.schema), question
    )
    return asked


def asked_nodes(cluster: Any) -> list[str]:
    """The other nodes that were asked."""
    return [node for node, method in cluster.network.calls if method == "analyse"]


async def fill(cluster: Any, batches: int = 3) -> pd.DataFrame:
    tables = [make_observations(300, seed=seed) for seed in range(batches)]
    for batch, table in enumerate(tables):
        await cluster.ingest(table, batch=batch)
    return pa.concat_tables(tables).to_pandas()


def held_by(cluster: Any, node: str) -> set[int]:
    return set(placement.partitions_by_node(cluster.topology)[node])


def children_of(*prefix: Any, order: Any = (), limit: int = 10_000) -> ListChildren:
    return ListChildren(values_to_json(prefix), order, limit)


async def test_analytics_give_the_same_answer_at_every_node(cluster: Any) -> None:
    frame = await fill(cluster)
    warm = frame[frame["temperature"] > 280]
    near, counts = [], []
    for at in "abc":
        found = await answer(
            cluster, FindNearest(20.0, 179.0, 25, None), "temperature > 280", at=at
        )
        near.append(found.table.to_pylist())
        question = Summarise("temperature", bins=5)
        summary = (await answer(cluster, question, "temperature > 280", at=at)).facts
        assert (summary["observations"], summary["maximum"]) == (
            len(warm),
            warm["temperature"].max(),
        )
        counts.append(summary["counts"])
        explanation = (await answer(cluster, Explain(), "temperature > 280", at=at)).facts
        assert sum(node["scan"]["found"] for node in explanation["nodes"]) == summary["paths"]
        assert found.missing == frozenset()
    assert near[0] == near[1] == near[2]
    assert counts[0] == counts[1] == counts[2] == np.histogram(warm["temperature"], 5)[0].tolist()


async def test_analytics_with_an_unreachable_node_are_partial(cluster: Any) -> None:
    await fill(cluster)
    gone = held_by(cluster, "b")
    labels = (await cluster.ask("", at="a")).table
    cluster.network.away.add("b")
    kept = labels.filter(pa.array(~np.isin(labels.column("partition").to_numpy(), list(gone))))
    rows = sum(kept.column("rows").to_pylist())

    summary = await answer(cluster, Summarise("temperature", bins=4))
    assert (summary.facts["observations"], summary.missing) == (rows, gone)
    assert gone.isdisjoint(summary.frontier)
    children = await answer(cluster, children_of())
    assert sum(children.table.column("observations").to_pylist()) == rows
    assert children.missing == gone
    near = await answer(cluster, FindNearest(0.0, 0.0, 10_000, None))
    assert (near.table.num_rows, near.missing) == (rows, gone)
    assert gone.isdisjoint(near.frontier)
    nodes = (await answer(cluster, Explain())).facts["nodes"]
    assert {node["node"] for node in nodes if "error" in node} == {"b"}
    assert sum(node["scan"]["found"] for node in nodes if "scan" in node) == kept.num_rows


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
    cluster: Any, query: str, by: list[str]
) -> None:
    """Finer groups than blocks are made of observations, and count the same in all."""
    frame = await fill(cluster)
    expected = aggregated(cluster, frame, query)
    question = Aggregate(Grouping.of(by, {"temperature": "max"}))
    answers = [await answer(cluster, question, query, at=at) for at in "abc"]
    assert all(each.missing == frozenset() for each in answers)
    assert all(each.table.equals(answers[0].table) for each in answers)
    rows = answers[0].table.to_pylist()
    if question.grouping.is_in_graph(cluster.schema):
        assert rows == expected
    else:
        assert sum(row["observations"] for row in rows) == sum(
            row["observations"] for row in expected
        )


async def test_aggregate_with_an_unreachable_node_lacks_its_partitions(cluster: Any) -> None:
    await fill(cluster)
    gone, labels = held_by(cluster, "b"), (await cluster.ask("", at="a")).table
    cluster.network.away.add("b")
    kept = labels.filter(pa.array(~np.isin(labels.column("partition").to_numpy(), list(gone))))
    for by in ([], ["cell:1"], ["cell:9"]):
        found = await answer(cluster, Aggregate(Grouping.of(by)))
        counted = sum(found.table.column("observations").to_pylist())
        assert (counted, found.missing) == (sum(kept.column("rows").to_pylist()), gone)
        assert gone.isdisjoint(found.frontier)


async def test_aggregate_of_too_many_groups_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    monkeypatch.setattr(group_merger, "GROUPS_MAX", 500)
    with raises(InputError, parameter="by", bound=500):
        await answer(cluster, Aggregate(Grouping.of(["cell:9"])))


async def test_aggregate_begins_anew_when_retention_drops_what_it_reads(cluster: Any) -> None:
    """The labels at the edge of a region were found, and then their commits are dropped."""
    await fill(cluster)
    shard = cluster["a"].catalog.shard("nam")
    read, dropped = shard.journal, []

    class Dropping:
        def read(self, *_: Any, **__: Any) -> pa.Table:
            dropped.append(True)
            raise DataExpired("it is gone", partitions=[0], until=[1])

        stored = read

    question = Aggregate(Grouping.of(["cell:1"]))
    whole = await answer(cluster, question, BOX)
    shard.journal = lambda p: read(p) if dropped else Dropping()
    again = await answer(cluster, question, BOX)
    assert dropped == [True]
    assert again.table.equals(whole.table)
    assert again.missing == frozenset()


async def test_summarise_node_lost_between_rounds_is_missing(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    rounds, analyse = list[str](), cluster.network.analyse

    async def lose(node: str, task: AnalysisTask) -> Any:
        rounds.append(node)
        if rounds.count(node) == 2 and node == "b":
            raise Unavailable("gone in the meantime")
        return await analyse(node, task)

    monkeypatch.setattr(cluster.network, "analyse", lose)
    question = Summarise("temperature", bins=6)
    found = await answer(cluster, question)
    assert rounds.count("b") == 2
    assert found.missing == held_by(cluster, "b")
    value = found.facts
    assert sum(value["counts"]) == value["observations"] - value["missing"] > 0
    whole = await answer(cluster, question, at="c")
    assert whole.missing == frozenset()
    assert whole.facts["observations"] > value["observations"]


async def test_summarise_histogram_counts_the_commits_of_its_first_round(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = await fill(cluster)
    late = make_observations(50, seed=9)
    loop = asyncio.get_running_loop()
    ingested, analyse = list[asyncio.Task[Any]](), cluster.network.analyse

    async def commit_more(node: str, task: AnalysisTask) -> Any:
        if not ingested:
            ingested.append(loop.create_task(cluster.ingest(late, batch=9)))
        return await analyse(node, task)

    question = Summarise("temperature", bins=6)
    whole = await answer(cluster, question)
    monkeypatch.setattr(cluster.network, "analyse", commit_more)
    again = await answer(cluster, question)
    await ingested[0]
    for value in (whole.facts, again.facts):
        assert sum(value["counts"]) == value["observations"] - value["missing"]
        assert value["edges"][-1] == value["maximum"]
    assert whole.facts["observations"] == len(frame)


async def test_analytics_skip_partitions_pruned_by_the_feature_graph(cluster: Any) -> None:
    await fill(cluster)
    cold = "temperature > 1000"
    before = await answer(cluster, Explain(), cold)
    assert before.facts["pruned"] == {}
    published = Cursor()
    for owner in cluster.nodes:
        shard = owner.catalog.shard("nam")
        published = published.join(shard.published())
        for synopsis in shard.synopses().values():
            cluster["a"].view.apply_synopsis(cluster.schema, synopsis.changes_since(None))
    after = await answer(cluster, Explain(), cold)
    assert after.facts["pruned"] == dict(published)
    assert sum(node["scan"]["paths_examined"] for node in after.facts["nodes"]) == 0
    summary = await answer(cluster, Summarise("temperature", bins=3), cold)
    assert (summary.facts["paths"], summary.frontier) == (0, published)
    near = await answer(cluster, FindNearest(0.0, 0.0, 5, None), cold)
    assert (near.table.num_rows, near.frontier) == (0, published)
    gone = held_by(cluster, "b")
    cluster.network.away.add("b")
    for question in (Summarise("temperature", bins=3), FindNearest(0.0, 0.0, 5, None)):
        partial = await answer(cluster, question, cold)
        assert partial.missing == gone
        assert dict(partial.frontier) == {p: last for p, last in published.items() if p not in gone}


async def test_children_calls_only_nodes_that_can_hold_the_vertex(cluster: Any) -> None:
    await fill(cluster)
    labels = await cluster.ask("", at="a")
    row = labels.to_arrow().slice(0, 1).to_pylist()[0]
    for prefix in ((row["geohash"],), (row["geohash"], row["time"])):
        cluster.network.calls.clear()
        found = await answer(cluster, children_of(*prefix))
        nodes = {*asked_nodes(cluster)}
        owner = placement.owner(cluster.topology, row["partition"])
        members = {node.name for node in cluster.topology.group_of(owner).nodes}
        assert nodes == (members if len(prefix) == 1 else {owner}) - {"a"}
        assert found.table.num_rows > 0


async def test_children_merges_the_first_pages_of_all_nodes(cluster: Any) -> None:
    frame = await fill(cluster)
    counted = frame["temperature"].value_counts().sort_index()
    found = await answer(cluster, children_of(order=("temperature",), limit=7))
    table = found.table
    assert found.facts["more"]
    assert table.column("value").to_pylist() == counted.index[:7].tolist()
    assert table.column("observations").to_pylist() == counted.iloc[:7].tolist()


async def test_estimate_calls_no_node_and_names_silent_ones(cluster: Any) -> None:
    await fill(cluster)
    everything, node = parse("", cluster.schema), cluster["a"]
    mine, estimates = held_by(cluster, "a"), cluster["a"].estimates
    own = [p for p in (await cluster.ask("", at="a")).partitions.tolist() if p in mine]

    cluster.network.calls.clear()
    estimate = await estimates.estimate(everything, feature="temperature", shares=[0.5])
    assert cluster.network.calls == []
    assert estimate.unheard == frozenset(cluster.topology.partitions) - mine
    assert estimate.count.low <= len(own) <= estimate.count.high
    assert len(estimate.quantiles) == 1

    for other in "bc":
        node.view.record_report(other)
        node.view.update_sequences("nam", cluster[other].catalog.shard("nam").published())
    estimate = await estimates.estimate(everything, feature=None, shares=[])
    assert estimate.unheard == frozenset()
    theirs = [cluster[other].catalog.shard("nam").published() for other in "bc"]
    assert estimate.behind == sum(sum(cursor.values()) for cursor in theirs) > 0

    for other in "bc":
        for synopsis in cluster[other].catalog.shard("nam").synopses().values():
            node.view.apply_synopsis(cluster.schema, synopsis.changes_since(None))
    estimate = await estimates.estimate(everything, feature=None, shares=[])
    assert estimate.behind == 0
    whole = len((await cluster.ask("", at="a")).partitions)
    assert estimate.count.low <= whole <= estimate.count.high


async def test_estimate_is_calculated_outside_the_event_loop(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
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
    await cluster["a"].estimates.estimate(
        parse("", cluster.schema), feature="temperature", shares=[0.5]
    )
    assert threads
    assert threading.get_ident() not in threads


async def test_nearest_writes_its_queries_outside_the_event_loop(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    threads, write = list[int](), visitors.json_value

    def note(tree: Any) -> Any:
        threads.append(threading.get_ident())
        return write(tree)

    query = parse("temperature > 280", cluster.schema)
    monkeypatch.setattr(visitors, "json_value", note)
    await cluster["a"].analytics.answer(query, FindNearest(20.0, 179.0, 25, None))
    assert threads
    assert threading.get_ident() not in threads


async def test_children_with_a_value_of_the_wrong_type_is_refused(cluster: Any) -> None:
    await fill(cluster, batches=1)
    with raises(InputError, level="temperature", expected="float"):
        await answer(cluster, children_of("warm", order=("temperature", "geohash")))


# --- cancellation and bounds ---------------------------------------------------------------------


async def test_cancelled_analytics_stop_their_work(cluster: Any) -> None:
    """The thread meets the check after the caller went away, and ends with it."""
    graphs = cluster["a"].analytics.graphs
    working, outcome, ended = threading.Event(), list[Cancelled](), threading.Event()

    def endless(check: Callable[[], None]) -> None:
        try:
            while True:
                check()
                working.set()
        except Cancelled as error:
            outcome.append(error)
            raise
        finally:
            ended.set()

    task = asyncio.create_task(graphs.run(endless))
    await asyncio.to_thread(working.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(ended.wait)
    assert [type(error) for error in outcome] == [Cancelled]


async def test_analytics_above_waiting_max_are_overloaded(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_limits, "ANALYTICS_WAITING_MAX", 2)
    graphs, go_on = cluster["a"].analytics.graphs, threading.Event()
    tasks = [asyncio.create_task(graphs.run(lambda check: go_on.wait())) for _ in range(2)]
    await asyncio.sleep(0)
    try:
        with raises(Overloaded, after_s=0.5):
            await graphs.run(lambda check: None)
    finally:
        go_on.set()
    assert await asyncio.gather(*tasks) == [True, True]
    assert await graphs.run(lambda check: 7) == 7


async def test_nearest_holds_few_observations_more_than_requested(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster, batches=6)
    monkeypatch.setattr(query_limits, "ROWS_HELD_MIN", 10)
    sizes: list[int] = []
    plain = nearest.first

    def measured(tables: list[pa.Table], sought: Any) -> Any:
        sizes.append(sum(table.num_rows for table in tables))
        return plain(tables, sought)

    monkeypatch.setattr(nearest, "first", measured)
    analysis = NearestAnalysis(FindNearest(0.0, 0.0, 5, None), parse("", cluster.schema))
    analysis.sought = dataclasses.replace(analysis.sought, first_m=3e7)
    scope = PartitionScope(frozenset(held_by(cluster, "b")))
    found = await analysis.local(cluster["b"].analytics.graphs, scope)
    assert found.table.num_rows == 5
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
    everything = parse("", cluster.schema)
    scope = PartitionScope(frozenset(held_by(cluster, "a")))
    local = cluster["a"].analytics.local
    found = (await local(everything, FindNearest(0.0, 0.0, 10_000, None), scope)).table
    assert dropped
    left = plain(shard.graph, everything, partitions=scope.partitions)
    assert found.num_rows == sum(left.column("rows").to_pylist()) > 0


async def test_describe_at_every_node_covers_the_whole_dataset(cluster: Any) -> None:
    frame = await fill(cluster)
    for node in "abc":
        cluster.network.calls.clear()
        whole = await answer(cluster, Describe(), at=node)
        assert sorted(asked_nodes(cluster)) == sorted({*"abc"} - {node})
        facts, temperatures = whole.facts, frame["temperature"]
        assert facts["observations"] == len(frame)
        numbers = facts["numbers"]["temperature"]
        assert numbers["missing"] == temperatures.isna().sum()
        assert (numbers["minimum"], numbers["maximum"]) == (temperatures.min(), temperatures.max())
        assert numbers["mean"] == pytest.approx(temperatures.mean())
        assert facts["extent"]["south"] <= frame["latitude"].min()
        assert facts["extent"]["east"] >= frame["longitude"].max()
        assert facts["bytes"] > 0
        assert not whole.missing


async def test_describe_with_an_unreachable_node_names_missing_partitions(cluster: Any) -> None:
    frame = await fill(cluster)
    cluster.network.away = {"b"}
    whole = await answer(cluster, Describe())
    assert whole.missing == held_by(cluster, "b")
    assert 0 < whole.facts["observations"] < len(frame)
    assert set(whole.frontier).isdisjoint(whole.missing)


async def test_describe_of_a_query_is_refused(cluster: Any) -> None:
    with raises(InputError, parameter="query"):
        await answer(cluster, Describe(), "temperature > 280")


async def test_version_changes_with_the_partitions_of_what_is_committed_or_dropped(
    cluster: Any,
) -> None:
    await fill(cluster)
    cluster.network.calls.clear()
    first = await answer(cluster, Version())
    assert sorted(asked_nodes(cluster)) == ["b", "c"]
    assert set(versions(first)) == set(cluster.topology.partitions)
    assert await answer(cluster, Version(), at="b") == first

    await cluster.ingest(make_observations(1, seed=99), batch=3)
    second = await answer(cluster, Version(), at="c")
    [grown] = changed(first, second)
    assert second.frontier[grown] == first.frontier[grown] + 1
    assert second.ranges == first.ranges

    node = cluster[placement.owner(cluster.topology, grown)]
    shard = node.catalog.shard(cluster.schema.key)
    shard.journals[grown].seal()
    await cluster.ingest(make_observations(300, seed=100), batch=4)
    third = await answer(cluster, Version())
    shard.drop(grown, second.frontier[grown])
    fourth = await answer(cluster, Version())
    assert changed(third, fourth) == [grown]
    assert fourth.frontier == third.frontier


def versions(answer: ClusterAnswer) -> dict[int, tuple[int, ...]]:
    return {partition: tuple(rest) for partition, *rest in answer.facts["versions"]}


def changed(before: ClusterAnswer, after: ClusterAnswer) -> list[int]:
    was, now = versions(before), versions(after)
    return [p for p in sorted({*was, *now}) if was.get(p) != now.get(p)]


async def test_version_with_an_unreachable_node_names_missing_partitions(cluster: Any) -> None:
    await fill(cluster)
    cluster.network.away = {"b"}
    whole = await answer(cluster, Version())
    assert whole.missing == held_by(cluster, "b")
    assert set(versions(whole)).isdisjoint(whole.missing)


async def test_aggregate_names_the_partitions_that_matter(cluster: Any) -> None:
    await fill(cluster)
    query = parse("geohash LIKE '9%'", cluster.schema)
    found = await answer(cluster, Aggregate(Grouping.of([])), "geohash LIKE '9%'")
    version = await answer(cluster, Version())
    assert found.ranges == version.ranges
    assert found.partitions == placement.candidates(
        cluster.topology, cluster.schema, query.cell_ranges()
    )
    assert {p: version.frontier[p] for p in found.partitions} == {
        p: found.frontier[p] for p in found.partitions
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


@pytest.mark.parametrize(
    "query",
    keep_quick(["", "temperature > 280", BOX, DURING, f"{BOX} AND NOT {DURING}"], DURING),
)
async def test_latest_equals_a_loop_at_every_node(cluster: Any, query: str) -> None:
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
        for at in "abc":
            found = await answer(cluster, Latest(parse_key(text)), query, at=at)
            assert found.missing == frozenset()
            rows = found.table.to_pandas().to_dict("records")
            names = [None if pd.isna(key(row)) else key(row) for row in rows]
            assert names == sorted(expected, key=lambda name: (name is None, name or 0)), text
            for name, row in zip(names, rows, strict=True):
                if "geohash" in row:
                    assert row.pop("geohash") == name
                assert without_nan(row) == without_nan(expected[name]), (text, name)


async def test_latest_reads_only_paths_that_may_be_newest(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    read, plain = list[int](), newest.NewestMerger.add

    def add(merger: newest.NewestMerger, table: pa.Table) -> None:
        read.append(table.num_rows)
        plain(merger, table)

    monkeypatch.setattr(newest.NewestMerger, "add", add)
    everything = parse("", cluster.schema)
    scope = PartitionScope(frozenset(held_by(cluster, "a")))
    local = cluster["a"].analytics.local
    found = await local(everything, Latest(parse_key("cell:1")), scope)
    stored = (await local(everything, Describe(), scope)).facts
    assert found.table.num_rows <= sum(read) < stored["observations"] / 2


async def test_latest_of_too_many_values_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(cluster)
    monkeypatch.setattr(newest, "NEWEST_MAX", 50)
    with raises(InputError, parameter="by", bound=50):
        await answer(cluster, Latest(parse_key("cell:9")))


@pytest.mark.parametrize("key", ["window:1h", "bits:7", "wind"])
async def test_latest_by_what_is_no_cell_and_no_feature_is_refused(cluster: Any, key: str) -> None:
    with pytest.raises(InputError):
        await answer(cluster, Latest(parse_key(key)))


async def test_latest_begins_anew_when_retention_drops_what_may_be_newest(cluster: Any) -> None:
    await fill(cluster)
    shard = cluster["a"].catalog.shard("nam")
    plain, calls = shard.versions, list[int]()

    def versions(partitions: Any) -> Any:
        calls.append(0)
        found = plain(partitions)
        if len(calls) == 2:  # The end of the first attempt.
            found = {p: dataclasses.replace(v, dropped=v.dropped + 1) for p, v in found.items()}
        return found

    question = Latest(parse_key("cell:1"))
    whole = await answer(cluster, question)
    shard.versions = versions
    again = await answer(cluster, question)
    assert len(calls) == 4
    assert again.table.equals(whole.table)
