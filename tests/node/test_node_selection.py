from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from galileo.cursor import ORIGIN, Cursor
from galileo.errors import DataDropped, InputError, Unavailable
from galileo.node import selection
from galileo.query import parse

Make = Callable[..., pa.Table]

BOX = "S_INTERSECTS(geometry, BBOX(-100, 10, 40, 33))"
QUERIES = (
    "",
    f"temperature > 260 AND {BOX}",
    f"temperature > 260 AND NOT {BOX}",
    "DWITHIN(geometry, POINT(10 20), 3000000) OR temperature IS NULL",
    "NOT DWITHIN(geometry, POINT(10 20), 3000000)",
    "geohash LIKE 's%' AND datetime > TIMESTAMP('2012-03-01T03:00:00Z')",
    "geohash NOT LIKE 's1b%'",
    "temperature > 1000",
)


async def select(
    cluster: Any, query: str = "", *, columns: Sequence[str] = (), at: str = "a"
) -> pa.Table:
    found = cluster[at].selection.select(parse(query, cluster.schema), columns)
    tables = [table async for table in found]
    names = list(columns) or cluster.schema.observation_schema.names
    empty = cluster.schema.observation_schema.empty_table().select(names)
    return pa.concat_tables([empty, *tables])


def stations(table: pa.Table) -> list[str]:
    return sorted(table.column("station").to_pylist())


@pytest.mark.parametrize("query", QUERIES)
async def test_the_same_as_labels_and_an_exact_read(
    cluster: Any, make_observations: Make, query: str
) -> None:
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


async def test_large_answers_come_in_tables_of_whole_commits(
    cluster: Any, make_observations: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "ROWS_PER_TABLE", 70)
    monkeypatch.setattr(selection, "LABELS_PER_PIECE", 50)
    whole = make_observations(2000)
    for number in range(20):
        await cluster.ingest(whole.slice(100 * number, 100), batch=number)
    query = parse("temperature > 260", cluster.schema)
    tables = [table async for table in cluster["a"].selection.select(query)]
    assert len(tables) >= 5
    expected = whole.filter(pa.array(query.match_observations(whole)))
    assert stations(pa.concat_tables(tables)) == stations(expected)
    assert await cluster["a"].selection.count(query) == expected.num_rows


async def test_a_long_search_gives_others_their_turn(
    cluster: Any, make_observations: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "STEP_S", -1.0)
    whole = make_observations(1000)
    await cluster.ingest(whole)
    assert stations(await select(cluster, BOX)) == stations(
        whole.filter(pa.array(parse(BOX, cluster.schema).match_observations(whole)))
    )


async def test_only_the_columns_that_were_asked_for(cluster: Any, make_observations: Make) -> None:
    await cluster.ingest(make_observations(500))
    found = await select(cluster, f"temperature > 260 AND {BOX}", columns=("station", "latitude"))
    assert found.column_names == ["station", "latitude"]
    assert stations(found) == stations(await select(cluster, f"temperature > 260 AND {BOX}"))


@pytest.mark.parametrize("columns", [("stations",), ("station", "station")])
async def test_columns_that_are_not_there(cluster: Any, columns: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="expected columns of dataset 'nam', each once"):
        await select(cluster, columns=columns)


async def test_a_node_that_is_away_is_an_error(cluster: Any, make_observations: Make) -> None:
    await cluster.ingest(make_observations(300))
    cluster.network.away = {"b"}
    with pytest.raises(Unavailable, match="a node that keeps partitions"):
        await select(cluster)
    with pytest.raises(Unavailable):
        await cluster["a"].selection.count(parse("", cluster.schema))


async def test_what_lies_here_alone_needs_nobody(cluster: Any, make_observations: Make) -> None:
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
        ("station",),
        commits=selection.CommitRange(every, after, until),
    )
    return sorted([name async for table in found for name in table.column(0).to_pylist()])


def committed(cluster: Any) -> Cursor:
    cursor = ORIGIN
    for node in cluster.nodes:
        cursor = cursor.join(node.facts()[0].sequences)
    return cursor


@pytest.mark.parametrize("query", ["", f"temperature > 260 AND {BOX}"])
async def test_commits_that_are_named_are_the_same_whenever_they_are_asked_for(
    cluster: Any, make_observations: Make, query: str
) -> None:
    whole = make_observations(900)
    cursors = [ORIGIN]
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


async def test_commits_that_are_not_there_are_an_error(
    cluster: Any, make_observations: Make
) -> None:
    await cluster.ingest(make_observations(300))
    last = committed(cluster)
    ahead = Cursor({partition: sequence + 1 for partition, sequence in last.items()})
    for node in "abc":
        with pytest.raises(InputError, match="expected commits of this cluster"):
            await between(cluster, ORIGIN, ahead, at=node)


async def test_commits_that_are_gone_are_named(cluster: Any, make_observations: Make) -> None:
    for batch in range(2):
        await cluster.ingest(make_observations(300, batch), batch=batch)
    last = committed(cluster)
    shard = cluster["b"].catalog.shard("nam")
    partition = next(p for p, journal in shard.journals.items() if journal.last_sequence == 2)
    shard.journals[partition].seal()
    await cluster.ingest(make_observations(300, 2), batch=2)
    shard.drop(partition, 2)
    for query in ("", BOX):
        with pytest.raises(DataDropped) as caught:
            await between(cluster, ORIGIN, last, query=query, at="b")
        assert caught.value.details == {"partitions": [partition], "until": [2]}
        left = Cursor({partition: 2})
        assert await between(cluster, left, last, query=query, at="b")
    with pytest.raises(DataDropped):
        await between(cluster, ORIGIN, last, at="a")
