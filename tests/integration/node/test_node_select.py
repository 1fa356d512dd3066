from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations
from parameters import keep_quick

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.dht import placement
from galileo.errors import (
    NAMED_MAX,
    DataExpired,
    IncompleteAnswer,
    InputError,
    PartitionMoved,
)
from galileo.model.rows import RowOptions, in_order
from galileo.node import query_limits
from galileo.node.peers import ReadTask
from galileo.node.select import CursorRange
from galileo.query import parse
from galileo.storage.journal import PartitionJournal

BOX = "S_INTERSECTS(geometry, BBOX(-100, 10, 40, 33))"
QUERIES = (
    "",
    f"temperature > 260 AND {BOX}",
    f"temperature > 260 AND NOT {BOX}",
    "DWITHIN(geometry, POINT(10 20), 3000000) OR temperature IS NULL",
    "NOT DWITHIN(geometry, POINT(10 20), 3000000)",
    "temperature > 260 AND S_INTERSECTS(geometry, BBOX(170, -40, -150, 60))",
    "S_WITHIN(geometry, POLYGON((170 -40, 210 -40, 190 60, 170 60, 170 -40)))",
    "geohash LIKE 's%' AND datetime > TIMESTAMP('2012-03-01T03:00:00Z')",
    "geohash NOT LIKE 's1b%'",
    "temperature > 1000",
)


async def select(
    cluster: Any, query: str = "", *, columns: Sequence[str] = (), at: str = "a"
) -> pa.Table:
    found = cluster[at].selection.select(parse(query, cluster.schema), RowOptions(tuple(columns)))
    tables = [table async for table in found]
    names = list(columns) or cluster.schema.observation_schema.names
    empty = cluster.schema.observation_schema.empty_table().select(names)
    return pa.concat_tables([empty, *tables])


def stations(table: pa.Table) -> list[str]:
    return sorted(table.column("station").to_pylist())


@pytest.mark.parametrize("query", QUERIES)
async def test_select_equals_a_query_and_an_exact_read(cluster: Any, query: str) -> None:
    whole = make_observations(3000)
    for number in range(3):
        await cluster.ingest(whole.slice(1000 * number, 1000), batch=number)
    expected = whole.filter(pa.array(parse(query, cluster.schema).match_observations(whole)))
    for node in "abc":
        found = await select(cluster, query, at=node)
        assert found.sort_by("station").equals(expected.sort_by("station"))
        counted = await cluster[node].selection.count(parse(query, cluster.schema))
        assert counted == expected.num_rows
    assert stations(await cluster.read(await cluster.ask(query))) == stations(expected)


async def test_select_of_many_rows_returns_several_tables(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_limits, "ROWS_PER_PIECE", 70)
    monkeypatch.setattr(query_limits, "LABELS_PER_PART", 50)
    whole = make_observations(2000)
    for number in range(20):
        await cluster.ingest(whole.slice(100 * number, 100), batch=number)
    query = parse("temperature > 260", cluster.schema)
    tables = [table async for table in cluster["a"].selection.select(query)]
    assert len(tables) >= 5
    expected = whole.filter(pa.array(query.match_observations(whole)))
    assert stations(pa.concat_tables(tables)) == stations(expected)
    assert await cluster["a"].selection.count(query) == expected.num_rows


async def test_select_in_short_steps_returns_the_same_rows(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_limits, "STEP_S", -1.0)
    whole = make_observations(1000)
    await cluster.ingest(whole)
    assert stations(await select(cluster, BOX)) == stations(
        whole.filter(pa.array(parse(BOX, cluster.schema).match_observations(whole)))
    )


@pytest.mark.parametrize("order", ["", "time"])
async def test_select_limit_reached_early_reports_unreachable_nodes(
    cluster: Any, order: str
) -> None:
    await cluster.ingest(make_observations(300))
    query, options = parse("", cluster.schema), RowOptions(("station",), 1, order)
    cluster.network.away = {"b"}
    with pytest.raises(IncompleteAnswer):
        _ = [table async for table in cluster["a"].selection.select(query, options)]
    missing: set[int] = set()
    found = cluster["a"].selection.select(query, options, on_missing=missing.update)
    assert sum([table.num_rows async for table in found]) == 1
    assert missing == set((await cluster.ask("")).missing) != set()


async def test_select_returns_the_requested_columns(cluster: Any) -> None:
    await cluster.ingest(make_observations(500))
    found = await select(cluster, f"temperature > 260 AND {BOX}", columns=("station", "latitude"))
    assert found.column_names == ["station", "latitude"]
    assert stations(found) == stations(await select(cluster, f"temperature > 260 AND {BOX}"))


@pytest.mark.parametrize("columns", [("stations",), ("station", "station")])
async def test_select_of_unknown_or_repeated_columns_is_refused(
    cluster: Any, columns: tuple[str, ...]
) -> None:
    with raises(InputError, parameter="columns"):
        await select(cluster, columns=columns)


async def test_select_with_an_unreachable_node_is_incomplete(cluster: Any) -> None:
    await cluster.ingest(make_observations(300))
    cluster.network.away = {"b"}
    missing = sorted(placement.partitions_by_node(cluster.topology)["b"])
    with raises(IncompleteAnswer, missing=missing):
        await select(cluster)
    with raises(IncompleteAnswer, missing=missing):
        await cluster["a"].selection.count(parse("", cluster.schema))


async def test_select_partial_names_missing_partitions(cluster: Any) -> None:
    whole = make_observations(300)
    await cluster.ingest(whole)
    cluster.network.away = {"b"}
    missing: set[int] = set()
    query = parse("", cluster.schema)
    found = cluster["a"].selection.select(query, on_missing=missing.update)
    rows = sum([table.num_rows async for table in found])
    labels = await cluster.ask("")
    assert missing == set(labels.missing)
    assert missing
    assert rows == (await cluster.read(labels)).num_rows < whole.num_rows


@pytest.mark.parametrize("query", ["", "temperature > 260"])
async def test_select_partial_of_commits_names_missing_partitions(cluster: Any, query: str) -> None:
    """Those of nodes that are away are named; of the others the answer has these commits."""
    cursors = [EMPTY_CURSOR]
    for batch in range(3):
        answer = await cluster.ingest(make_observations(300, batch), batch=batch)
        cursors.append(cursors[-1].join(answer.reached))
    for after, until in itertools.combinations(cursors, 2):
        commits = CursorRange(frozenset(after.news(until)), after, until)
        for away in ("b", "c", "bc"):
            cluster.network.away = set(away)
            missing: set[int] = set()
            found = cluster["a"].selection.select(
                parse(query, cluster.schema), commits=commits, on_missing=missing.update
            )
            tables = [table async for table in found]
            others = {p for name in away for p in cluster[name].partitions}
            assert missing == commits.partitions & others
            expected = [
                node.catalog.shard("nam").journals[partition].read(sequence)
                for node in cluster.nodes
                for partition in node.partitions - others
                for sequence in range(after[partition] + 1, until[partition] + 1)
            ]
            whole = pa.concat_tables([cluster.schema.observation_schema.empty_table(), *expected])
            is_match = parse(query, cluster.schema).match_observations(whole)
            assert stations(pa.concat_tables(tables)) == stations(whole.filter(pa.array(is_match)))
            with raises(IncompleteAnswer, missing=sorted(missing)):
                await select_commits(cluster, query, commits)


async def select_commits(cluster: Any, query: str, commits: CursorRange) -> list[pa.Table]:
    found = cluster["a"].selection.select(parse(query, cluster.schema), commits=commits)
    return [table async for table in found]


@pytest.mark.parametrize("seed", keep_quick(range(12), *range(5)))
async def test_select_limit_and_order_equal_a_simple_model(
    cluster: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Selected, and read behind labels, at every node; times repeat, so the rest may differ."""
    random = np.random.default_rng(seed)
    held, piece, part = (int(random.integers(*span)) for span in ((1, 300), (20, 500), (20, 300)))
    monkeypatch.setattr(query_limits, "ROWS_HELD_MIN", held)
    monkeypatch.setattr(query_limits, "ROWS_PER_PIECE", piece)
    monkeypatch.setattr(query_limits, "LABELS_PER_PART", part)
    whole = make_observations(600, seed)
    for number in range(3):
        await cluster.ingest(whole.slice(200 * number, 200), batch=number)
    text = str(random.choice(QUERIES))
    limit = int(random.choice([0, 1, 7, 150, 1000]))
    by = str(random.choice(["", "time", "temperature", "station", "latitude"]))
    order = str(random.choice(["", "-"])) + by if by else ""
    columns = [(), ("station",), ("time", "station"), ("station", "temperature")]
    options = RowOptions(columns[random.integers(len(columns))], limit, order)
    query = parse(text, cluster.schema)
    matches = whole.filter(pa.array(query.match_observations(whole)))
    expected = in_order(matches, RowOptions(order_by=order)).slice(0, limit)
    ordered = by or "time"
    value_of = dict(zip(*(whole.column(n).to_pylist() for n in ("station", ordered)), strict=True))
    labels = await cluster.ask(text)
    parts = labels.table.select(["partition", "sequence", "row", "rows"])
    task = ReadTask("nam", parts, labels.query, options)
    for node in "abc":
        for found in (
            [table async for table in cluster[node].selection.select(query, options)],
            [table async for table in cluster[node].reading.read(task)],
        ):
            assert all(table.column_names == list(options.names(cluster.schema)) for table in found)
            names = [name for table in found for name in table.column("station").to_pylist()]
            assert len(names) == len(set(names)) == expected.num_rows
            assert set(names) <= set(stations(matches))
            if order:
                assert [value_of[name] for name in names] == expected.column(by).to_pylist()


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        (RowOptions(order_by="temprature"), "order_by"),
        (RowOptions(order_by="--time"), "order_by"),
        (RowOptions(limit=1_000_001, order_by="time"), "limit"),
    ],
)
async def test_select_with_an_invalid_order_or_limit_is_refused(
    cluster: Any, options: RowOptions, parameter: str
) -> None:
    with raises(InputError, parameter=parameter):
        _ = [
            table
            async for table in cluster["a"].selection.select(parse("", cluster.schema), options)
        ]


async def test_select_in_order_with_limit_reads_fewer_time_buckets(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_limits, "ROWS_HELD_MIN", 0)
    monkeypatch.setattr(query_limits, "ROWS_PER_PIECE", 1)
    monkeypatch.setattr(query_limits, "LABELS_PER_PART", 10)
    monkeypatch.setattr(query_limits, "STEP_S", -1.0)
    whole = in_order(make_observations(600), RowOptions(order_by="time"))
    for number in range(20):
        await cluster.ingest(whole.slice(30 * number, 30), batch=number)
    real, reads = PartitionJournal.read, list[int]()

    def counted(*args: Any, **options: Any) -> pa.Table:
        reads.append(1)
        return real(*args, **options)

    monkeypatch.setattr(PartitionJournal, "read", counted)
    for limit in (600, 3):
        options = RowOptions(("time",), limit, "time")
        query = parse("", cluster.schema)
        _ = [table async for table in cluster["a"].selection.select(query, options)]
        reads.append(0)
    most, least = (len(one) for one in "".join(map(str, reads)).split("0")[:2])
    assert 0 < least < most / 2


async def test_select_of_own_partitions_is_local(cluster: Any) -> None:
    whole = make_observations(1000)
    await cluster.ingest(whole)
    cluster.network.away = {"a", "c"}
    expected = whole.filter(
        pa.array(parse("geohash LIKE 'e%'", cluster.schema).match_observations(whole))
    )
    assert expected.num_rows > 0
    assert stations(await select(cluster, "geohash LIKE 'e%'", at="b")) == stations(expected)


async def between(
    cluster: Any, after: Cursor, until: Cursor, *, query: str = "", at: str = "a"
) -> list[str]:
    every = frozenset(cluster[at].topology.partitions)
    found = cluster[at].selection.select(
        parse(query, cluster.schema),
        RowOptions(("station",)),
        commits=CursorRange(every, after, until),
    )
    return sorted([name async for table in found for name in table.column(0).to_pylist()])


def committed(cluster: Any) -> Cursor:
    cursor = EMPTY_CURSOR
    for node in cluster.nodes:
        cursor = cursor.join(node.facts()[0].sequences)
    return cursor


@pytest.mark.parametrize("query", ["", f"temperature > 260 AND {BOX}"])
async def test_select_of_a_commit_range_is_repeatable(cluster: Any, query: str) -> None:
    whole = make_observations(900)
    cursors = [EMPTY_CURSOR]
    for number in range(3):
        await cluster.ingest(whole.slice(300 * number, 300), batch=number)
        cursors.append(committed(cluster))
    for number, (after, until) in enumerate(itertools.pairwise(cursors)):
        part = whole.slice(300 * number, 300)
        matching = parse(query, cluster.schema).match_observations(part)
        for node in "abc":
            found = await between(cluster, after, until, query=query, at=node)
            assert found == stations(part.filter(pa.array(matching)))
    assert await between(cluster, cursors[1], cursors[1], query=query) == []


async def test_select_of_future_commits_is_refused(cluster: Any) -> None:
    await cluster.ingest(make_observations(300))
    last = committed(cluster)
    ahead = Cursor({partition: sequence + 1 for partition, sequence in last.items()})
    for node in "abc":
        with raises(InputError):
            await between(cluster, EMPTY_CURSOR, ahead, at=node)


async def test_error_about_many_partitions_names_some(cluster: Any) -> None:
    with pytest.raises(PartitionMoved) as caught:
        cluster["a"].catalog.shard("nam").check_own(range(16_384))
    assert len(caught.value.details["partitions"]) == NAMED_MAX
    assert len(caught.value.message) < 500


async def test_select_of_deleted_commits_names_them(cluster: Any) -> None:
    for batch in range(2):
        await cluster.ingest(make_observations(300, batch), batch=batch)
    last = committed(cluster)
    shard = cluster["b"].catalog.shard("nam")
    partition = next(p for p, journal in shard.journals.items() if journal.last_sequence == 2)
    shard.journals[partition].seal()
    await cluster.ingest(make_observations(300, 2), batch=2)
    shard.drop(partition, 2)
    for query in ("", BOX):
        with pytest.raises(DataExpired) as caught:
            await between(cluster, EMPTY_CURSOR, last, query=query, at="b")
        assert caught.value.details == {"partitions": [partition], "until": [2]}
        left = Cursor({partition: 2})
        assert await between(cluster, left, last, query=query, at="b")
    with pytest.raises(DataExpired):
        await between(cluster, EMPTY_CURSOR, last, at="a")
