"""Readers whose commits were lost, at real nodes: each gets an error once, and goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cycle_requests import cycle_request
from node_cluster import make_observations
from set_back import EarlierLogs, begin_history

from galileo.cursor import EMPTY_CURSOR, Cursor, continued, lost_positions
from galileo.errors import HistoryChanged, PartitionMoved
from galileo.model.forks import first_of
from galileo.model.rows import RowOptions
from galileo.model.table import Table
from galileo.node.peers import TableTask
from galileo.node.select import CursorRange
from galileo.node.standing_queries import Matching
from galileo.query import parse

HISTORY = 7
TABLE = Table("beds", {"id": "int", "beds": "int"}, key="id").spread(8)


@dataclass(frozen=True, slots=True)
class Loss:
    """A cluster all of whose logs were set back.

    Attributes:
        kept: the last commits that are still there.
        read: those that readers had read.
        until: those that are there now, with the ones of the later history.
    """

    cluster: Any
    kept: Cursor
    read: Cursor
    until: Cursor


async def ingest(cluster: Any, rows: pa.Table, batch: int) -> Cursor:
    reached: Cursor = (await cluster.ingest(rows, batch=batch)).reached
    return reached


@pytest.fixture(params=[True, False], ids=["new_commits", "no_new_commits"])
async def loss(cluster: Any, request: pytest.FixtureRequest) -> Loss:
    earlier = EarlierLogs(cluster, "nam")
    kept = await ingest(cluster, make_observations(200, seed=0), 0)
    await earlier.save()
    read = (await ingest(cluster, make_observations(200, seed=1), 1)).join(kept)
    read = (await ingest(cluster, make_observations(200, seed=2), 2)).join(read)
    await earlier.restore(*"abc", history=HISTORY)
    until = kept
    if request.param:
        until = await ingest(cluster, make_observations(200, seed=3), 3)
        assert until == Cursor(dict.fromkeys(kept, first_of(HISTORY)))
    return Loss(cluster, kept, read, until)


async def select(cluster: Any, after: Cursor, until: Cursor, *, at: str = "a") -> list[str]:
    commits = CursorRange(frozenset(until), after, until)
    options, query = RowOptions(("station",)), parse("", cluster.schema)
    found = cluster[at].selection.select(query, options, commits=commits)
    return [name async for table in found for name in table["station"].to_pylist()]


def assert_names_all(error: HistoryChanged, loss: Loss) -> None:
    assert {one.partition: one.common for one in lost_positions(error)} == dict(loss.kept)


@pytest.mark.parametrize("at", "ab")
async def test_select_after_lost_commits_fails_once(loss: Loss, at: str) -> None:
    with pytest.raises(HistoryChanged) as caught:
        await select(loss.cluster, loss.read, loss.until, at=at)
    assert_names_all(caught.value, loss)
    following = continued(loss.read, caught.value)
    rows = await select(loss.cluster, following, loss.until, at=at)
    assert {row.split("-")[0] for row in rows} == ({"3"} if loss.until != loss.kept else set())
    assert len(rows) == len(set(rows)) == (200 if loss.until != loss.kept else 0)


async def test_select_up_to_lost_commits_fails_once(loss: Loss) -> None:
    with pytest.raises(HistoryChanged) as caught:
        await select(loss.cluster, EMPTY_CURSOR, loss.read)
    assert_names_all(caught.value, loss)
    rows = await select(loss.cluster, EMPTY_CURSOR, continued(loss.read, caught.value))
    assert sorted(rows) == sorted(f"0-{number}" for number in range(200))


async def test_readers_of_what_is_kept_get_no_error(loss: Loss) -> None:
    assert len(await select(loss.cluster, EMPTY_CURSOR, loss.kept)) == 200
    assert len(await loss.cluster.ask("temperature > 280")) > 0
    after = await select(loss.cluster, loss.kept, loss.until)
    assert len(after) == (200 if loss.until != loss.kept else 0)


async def test_position_of_a_later_history_waits_for_the_node(loss: Loss) -> None:
    shard = loss.cluster["a"].catalog.shards["nam"]
    partition, later = next(iter(shard.own)), first_of(HISTORY + 1)
    with pytest.raises(PartitionMoved):
        shard.check_history([partition], {partition: later})
    begin_history(loss.cluster["a"], HISTORY + 1)
    shard.check_history([partition], {partition: later})


@pytest.mark.parametrize("limit", [7, 10_000])
async def test_pages_go_on_without_what_is_lost(cluster: Any, limit: int) -> None:
    earlier, query = EarlierLogs(cluster, "nam"), parse("", cluster.schema)
    await ingest(cluster, make_observations(40, seed=0), 0)
    await earlier.save()
    await ingest(cluster, make_observations(40, seed=1), 1)
    page = await cluster["a"].paging.page(query, limit=9)
    found, errors = [page.observations], 0
    await earlier.restore(*"abc", history=HISTORY)
    start = page.following
    await ingest(cluster, make_observations(40, seed=2), 2)
    while start is not None:
        try:
            page = await cluster["b"].paging.page(query, limit=limit, start=start)
        except HistoryChanged as error:
            start, errors = start.continued(error), errors + 1
        else:
            found.append(page.observations)
            start = page.following
    assert errors == 1
    kept = {f"0-{number}" for number in range(40)}
    names = [name for table in found for name in table["station"].to_pylist()]
    assert len(names) == len(set(names))
    assert kept <= set(names), "a page misses what is kept"
    assert set(names) - kept <= set(found[0]["station"].to_pylist()), "read before it was lost"


async def test_pages_cross_a_jump(loss: Loss) -> None:
    query, start, names = parse("", loss.cluster.schema), None, list[str]()
    while True:
        page = await loss.cluster["c"].paging.page(query, limit=33, start=start)
        names += page.observations["station"].to_pylist()
        start = page.following
        if start is None:
            break
    batches = (0, 3) if loss.until != loss.kept else (0,)
    assert sorted(names) == sorted(f"{batch}-{row}" for batch in batches for row in range(200))


async def test_ids_of_lost_commits_are_refused(cluster: Any) -> None:
    earlier = EarlierLogs(cluster, "nam")
    kept = await ingest(cluster, make_observations(200, seed=0), 0)
    await earlier.save()
    await ingest(cluster, make_observations(200, seed=1), 1)
    labels = await cluster.ask()
    await earlier.restore("b", history=HISTORY)
    lost = set(cluster["b"].catalog.shards["nam"].own)
    for batch in (1, 2):  # Later with commits behind the jump.
        with pytest.raises(HistoryChanged) as caught:
            await cluster.read(labels, at="a")
        assert {one.partition for one in lost_positions(caught.value)} == lost
        await ingest(cluster, make_observations(200, seed=batch + 1), batch + 1)
    assert (await cluster.read(labels.until(kept))).num_rows == 200


async def upsert(cluster: Any, number: int) -> Cursor:
    columns = [np.arange(40), np.full(40, number), np.zeros(40, dtype=np.bool_)]
    rows = pa.table(columns, schema=TABLE.observation_schema)
    answer = await cluster["a"].ingest.ingest("beds", rows, producer="p", batch=number)
    reached: Cursor = answer.reached
    return reached


async def test_readers_of_tables_fail_once(cluster: Any) -> None:
    earlier = EarlierLogs(cluster, "beds")
    await cluster["a"].create_dataset(TABLE)
    kept = await upsert(cluster, 0)
    await earlier.save()
    read = (await upsert(cluster, 1)).join(kept)
    await earlier.restore(*"abc", history=HISTORY)
    tables = cluster["c"].tables
    for is_new in (False, True):
        expected = [2] * 40 if is_new else []
        if is_new:
            await upsert(cluster, 2)
        with pytest.raises(HistoryChanged) as caught:
            await tables.read_all(TableTask("beds", after=read))
        assert {one.partition: one.common for one in lost_positions(caught.value)} == dict(kept)
        after = continued(read, caught.value)
        changes = await tables.read_all(TableTask("beds", after=after))
        assert changes.rows["beds"].to_pylist() == expected
        with pytest.raises(HistoryChanged) as caught:
            await tables.read_all(TableTask("beds", until=read))
        at = await tables.read_all(TableTask("beds", until=continued(read, caught.value)))
        assert at.rows["beds"].to_pylist() == [0] * 40


async def test_standing_queries_fail_by_cursor(loss: Loss) -> None:
    node = loss.cluster["a"]
    own = sorted(node.catalog.shards["nam"].own)[:2]
    texts = [parse(text, loss.cluster.schema).to_json() for text in ("true", "temperature > 280")]
    rows = [[loss.kept[p] for p in own], [loss.read[own[0]], loss.kept[own[1]]]]
    task = cycle_request(
        loss.cluster.schema,
        texts * 2,
        after=rows,
        partitions=own,
        cursors=[0, 1, 1, 0],
        dataset="nam",
    )
    with ThreadPoolExecutor(1) as executor:
        matching = Matching(node.catalog, executor=executor)
        await matching.register_queries("nam", texts)
        answer = await matching.match(task)
    answered = sorted(set(np.concatenate([part.items for part in answer.parts]).tolist()))
    if loss.until == loss.kept:  # Nothing follows what is lost, and there is nothing to cache.
        assert (answer.failures, answered) == ((), [0, 1, 2, 3])
        return
    (failure,) = answer.failures
    assert (failure.items.tolist(), answered) == ([1, 2], [0, 3])
    assert isinstance(failure.error, HistoryChanged)
    (lost,) = lost_positions(failure.error)
    assert (lost.partition, lost.common) == (own[0], loss.kept[own[0]])
    assert lost.until == first_of(HISTORY) - 1


async def test_holds_count_at_the_last_common_commit(loss: Loss) -> None:
    shard = loss.cluster["a"].catalog.shards["nam"]
    first, second = sorted(shard.own)[:2]
    read = Cursor({first: loss.read[first], second: loss.kept[second]})
    assert shard.kept(read) == Cursor({p: loss.kept[p] for p in (first, second)})
    elsewhere = Cursor({first: first_of(HISTORY - 1), second: loss.kept[second]})
    assert shard.kept(elsewhere) == Cursor({second: loss.kept[second]}), "of no history of the log"
