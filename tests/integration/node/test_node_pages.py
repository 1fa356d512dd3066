"""Pages of observations by id, over real nodes in this process."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from node_cluster import make_observations
from parameters import keep_quick

from galileo.errors import DataExpired, IncompleteAnswer, InputError
from galileo.node import pages
from galileo.node.pages import ObservationPage, PageStart
from galileo.query import parse

BOX = "S_INTERSECTS(geometry, BBOX(-100.5, 10.3, 40.2, 33.1))"
ID = ("partition", "sequence", "row")


async def page(cluster: Any, query: str = "", *, at: str = "a", **options: Any) -> ObservationPage:
    found: ObservationPage = await cluster[at].paging.page(
        parse(query, cluster.schema), **{"limit": 40} | options
    )
    return found


async def all_pages(cluster: Any, query: str = "", **options: Any) -> list[pa.Table]:
    """Each from another node."""
    found = await page(cluster, query, **options)
    tables, start, number = [found.observations], found.following, 0
    while start is not None:
        number += 1
        found = await page(cluster, query, at="abc"[number % 3], start=start, **options)
        assert found.observations.num_rows
        tables.append(found.observations)
        start = found.following
    return tables


async def rest(cluster: Any, found: ObservationPage) -> None:
    while found.following is not None:
        found = await page(cluster, start=found.following, limit=100)


def stations(tables: list[pa.Table]) -> list[str]:
    return sorted(pa.concat_tables(tables).column("station").to_pylist())


def ids(tables: list[pa.Table]) -> list[tuple[int, ...]]:
    rows = pa.concat_tables(tables).select(ID).to_pylist()
    return [tuple(row.values()) for row in rows]


@pytest.mark.parametrize(
    ("query", "limit"),
    keep_quick(
        itertools.product(
            ["", "temperature > 260", BOX, f"NOT {BOX}", "false"], [1, 7, 100, 10_000]
        ),
        *itertools.product(["", BOX, "false"], [100]),
        *(("temperature > 260", 10_000), ("temperature > 260", 1)),
    ),
)
async def test_pages_together_are_all_matches_in_the_order_of_ids(
    cluster: Any, query: str, limit: int
) -> None:
    rows = 60 if limit == 1 else 600
    whole = make_observations(rows)
    for number in range(6):
        await cluster.ingest(whole.slice(number * rows // 6, rows // 6), batch=number)
    matching = parse(query, cluster.schema).match_observations(whole)
    tables = await all_pages(cluster, query, limit=limit)
    assert stations(tables) == sorted(whole.filter(matching).column("station").to_pylist())
    found = ids(tables)
    assert found == sorted(set(found))
    assert [table.num_rows for table in tables[:-1]] == [limit] * (len(tables) - 1)


async def test_pages_bound_the_labels_that_they_hold(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LABELS_HELD", 5)
    monkeypatch.setattr(pages, "ROWS_READ_MIN", 3)
    whole = make_observations(400)
    await cluster.ingest(whole)
    for query in ("", BOX):
        matching = parse(query, cluster.schema).match_observations(whole)
        tables = await all_pages(cluster, query, limit=30)
        assert stations(tables) == sorted(whole.filter(matching).column("station").to_pylist())
        assert ids(tables) == sorted(set(ids(tables)))


@pytest.mark.parametrize("query", ["", BOX])
async def test_pages_end_amid_the_rows_of_a_path(cluster: Any, query: str) -> None:
    """All observations of a block have one temperature, and are one path."""
    few = make_observations(4)
    whole = few.take(pa.array(list(range(4)) * 30))
    names = pa.array([f"station {number}" for number in range(120)])
    whole = whole.set_column(whole.column_names.index("station"), "station", names)
    await cluster.ingest(whole)
    matching = parse(query, cluster.schema).match_observations(whole)
    tables = await all_pages(cluster, query, limit=7)
    assert stations(tables) == sorted(whole.filter(matching).column("station").to_pylist())
    assert ids(tables) == sorted(set(ids(tables)))


async def test_pages_have_what_was_committed_at_the_first_one(cluster: Any) -> None:
    first = make_observations(200)
    await cluster.ingest(first, batch=0)
    found = await page(cluster, limit=10)
    tables, start, batch = [found.observations], found.following, 0
    while start is not None:
        batch += 1
        _, found = await asyncio.gather(
            cluster.ingest(make_observations(20, seed=batch), batch=batch),
            page(cluster, start=start, limit=10),
        )
        tables.append(found.observations)
        start = found.following
    assert stations(tables) == sorted(first.column("station").to_pylist())
    assert len(set(ids(tables))) == 200


async def test_a_page_reads_few_rows_of_few_commits(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        await cluster.ingest(make_observations(3_000, seed=number), batch=number)
    read: list[int] = []
    plain = pages._single_rows

    def counted(labels: pa.Table, begun: int, stop: int) -> pa.Table:
        read.append(stop - begun)
        return plain(labels, begun, stop)

    monkeypatch.setattr(pages, "_single_rows", counted)
    found = await page(cluster, limit=10)
    assert found.observations.num_rows == 10
    assert sum(read) <= pages.ROWS_READ_MIN


async def test_page_has_the_named_columns_and_ids(cluster: Any) -> None:
    await cluster.ingest(make_observations(50))
    found = await page(cluster, columns=("station",), limit=5)
    assert found.observations.column_names == ["station", *ID]


async def test_first_page_without_a_node_is_incomplete_or_partial(cluster: Any) -> None:
    whole = make_observations(300)
    await cluster.ingest(whole)
    complete = await page(cluster)
    cluster.network.away.add("b")
    with pytest.raises(IncompleteAnswer):
        await page(cluster)
    partial = await page(cluster, accepts_missing=True)
    gone = partial.missing
    assert gone
    tables, start = [partial.observations], partial.following
    while start is not None:
        partial = await page(cluster, start=start)
        tables.append(partial.observations)
        start = partial.following
    assert {p for p, _, _ in ids(tables)}.isdisjoint(gone)
    with pytest.raises(IncompleteAnswer):
        await rest(cluster, complete)


async def test_page_of_dropped_commits_is_refused(cluster: Any) -> None:
    for batch in range(2):
        await cluster.ingest(make_observations(300, batch), batch=batch)
    shard = cluster["b"].catalog.shard("nam")
    partition = next(p for p, journal in shard.journals.items() if journal.last_sequence == 2)
    before = await page(cluster, limit=5)
    shard.journals[partition].seal()
    await cluster.ingest(make_observations(300, 2), batch=2)
    shard.drop(partition, 2)
    with pytest.raises(DataExpired) as caught:
        await rest(cluster, before)
    assert caught.value.details == {"partitions": [partition], "until": [2]}
    again = await all_pages(cluster)
    assert (partition, 1) not in {(p, s) for p, s, _ in ids(again)}


async def test_page_with_a_wrong_limit_or_start_is_refused(cluster: Any) -> None:
    await cluster.ingest(make_observations(50))
    for limit in (0, pages.PAGE_ROWS_MAX + 1):
        with raises(InputError, parameter="limit", bound=pages.PAGE_ROWS_MAX):
            await page(cluster, limit=limit)
    found = await page(cluster, limit=1)
    assert found.following is not None
    ahead = {p: s + 1 for p, s in found.following.frontier.items()}
    with pytest.raises(InputError):
        await page(
            cluster, start=PageStart(type(found.following.frontier)(ahead), found.following.dropped)
        )
