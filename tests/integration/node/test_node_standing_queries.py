"""Standing queries on real nodes: equal to scans, whatever does not fit one answer comes later."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from cycle_requests import cycle_request
from node_cluster import SCHEMA, make_observations

from galileo.cursor import Cursor
from galileo.cycle import NOT_REQUESTED
from galileo.errors import UnknownDataset, UnknownProperty
from galileo.hashing import digest
from galileo.labels import LabelSet
from galileo.node import standing_queries
from galileo.node.standing_queries import Matching, Registry
from galileo.query import parse

TEXTS = (
    "true",
    "temperature > 280",
    "temperature BETWEEN 270 AND 290 AND geohash LIKE '9%'",
    "S_INTERSECTS(geometry, BBOX(-120, 30, -80, 50))",
    "temperature IS NULL",
    "temperature > 1000",
    "NOT (temperature > 280) OR S_INTERSECTS(geometry, BBOX(100, -40, 160, 0))",
)


@pytest.fixture
def texts():
    """The queries as canonical JSON."""
    return [parse(text, SCHEMA).to_json() for text in TEXTS]


@pytest.fixture
def matching(cluster):
    """`matching(node)`: of one node, with a thread of its own."""
    with ThreadPoolExecutor(1) as executor:
        yield lambda node: Matching(cluster[node].catalog, executor=executor)


def task_of(texts, *, partitions, after, cursors=None):
    return cycle_request(
        SCHEMA, texts, after=after, partitions=partitions, cursors=cursors, dataset="nam"
    )


async def fill(cluster, *, batches=4, rows=120):
    for batch in range(batches):
        await cluster.ingest(make_observations(rows, seed=batch), batch=batch)


def owned(cluster, node):
    return sorted(cluster[node].catalog.shard("nam").journals)


def found_in(answer):
    """For each answered item the identities of its labels."""
    found = {int(item): set() for part in answer.parts for item in part.items}
    for part in answer.parts:
        for item, table in part.matches.split():
            labels = LabelSet(SCHEMA, table)
            columns = (labels.partitions, labels.sequences, labels.rows)
            mine = list(zip(*(column.tolist() for column in columns), strict=True))
            assert found[item].isdisjoint(mine)
            assert len(set(mine)) == len(mine)
            found[item] |= set(mine)
    return found


def expected(cluster, node, text, after):
    shard = cluster[node].catalog.shard("nam")
    table = shard.graph.scan(parse(text, SCHEMA), after=Cursor(after), partitions=frozenset(after))
    labels = LabelSet(SCHEMA, table)
    columns = (labels.partitions, labels.sequences, labels.rows)
    return set(zip(*(column.tolist() for column in columns), strict=True))


async def test_match_equals_a_scan_of_each_query(cluster, matching, texts):
    await fill(cluster)
    partitions = owned(cluster, "a")
    made = matching("a")
    after = [
        [0] * len(partitions),
        [2] * len(partitions),
        [NOT_REQUESTED, *[1] * (len(partitions) - 1)],
    ]
    cursors = [number % 3 for number in range(len(texts))]
    await made.register_queries("nam", texts)
    answer = await made.match(task_of(texts, partitions=partitions, after=after, cursors=cursors))
    assert (len(answer.unknown), answer.failures) == (0, ())
    published = cluster["a"].catalog.shard("nam").published()
    assert [part.reached for part in answer.parts] == [
        Cursor({p: published[p] for p in partitions})
    ]
    assert found_in(answer) == {
        item: expected(
            cluster,
            "a",
            text,
            {
                p: s
                for p, s in zip(partitions, after[cursors[item]], strict=True)
                if s != NOT_REQUESTED
            },
        )
        for item, text in enumerate(texts)
    }


async def test_match_of_unregistered_queries_names_them(cluster, matching, texts):
    await fill(cluster, batches=1)
    made = matching("a")
    wrong = '{"op":">","args":[{"property":"pressure"},1]}'
    await made.register_queries("nam", [texts[0], wrong])
    asked = [texts[1], texts[0], wrong, texts[1], wrong]
    task = task_of(asked, partitions=owned(cluster, "a"), after=[[0] * len(owned(cluster, "a"))])
    answer = await made.match(task)
    assert answer.unknown.tolist() == [0, 3]
    assert [part.items.tolist() for part in answer.parts] == [[1]]
    (failure,) = answer.failures
    assert failure.items.tolist() == [2, 4]
    assert isinstance(failure.error, UnknownProperty)
    await made.register_queries("nam", texts)
    again = await made.match(task)
    assert len(again.unknown) == 0
    assert [part.items.tolist() for part in again.parts] == [[0, 1, 3]]


@pytest.mark.parametrize("pairs_max", [1, 50, 300])
async def test_match_above_pairs_max_continues_in_later_answers(
    cluster, matching, texts, pairs_max, monkeypatch
):
    """An answer is bounded, makes progress, and with the others says everything once."""
    await fill(cluster)
    partitions = owned(cluster, "a")
    monkeypatch.setattr(standing_queries, "PAIRS_MAX", pairs_max)
    made = matching("a")
    await made.register_queries("nam", texts)
    cursors = {item: dict.fromkeys(partitions, 0) for item in range(len(texts))}
    cursors[3] = dict.fromkeys(partitions, 2)
    start = {item: dict(cursor) for item, cursor in cursors.items()}
    found = {item: set() for item in cursors}
    until = {p: cluster["a"].catalog.shard("nam").published()[p] for p in partitions}
    answers = 0
    while any(cursor != until for cursor in cursors.values()):
        after = [[cursors[item][p] for p in partitions] for item in cursors]
        task = task_of(texts, partitions=partitions, after=after, cursors=[*cursors])
        answer = await made.match(task)
        before = {item: dict(cursor) for item, cursor in cursors.items()}
        for item, identities in found_in(answer).items():
            assert found[item].isdisjoint(identities)
            found[item] |= identities
        for part in answer.parts:
            assert len(part.matches) <= max(pairs_max, 120)
            for item in part.items.tolist():
                for p in partitions:
                    cursors[item][p] = max(cursors[item][p], part.reached[p])
        assert cursors != before, "no progress"
        answers += 1
    assert answers > (pairs_max < 300)
    assert found == {item: expected(cluster, "a", texts[item], start[item]) for item in found}


async def test_registry_when_full_evicts_least_recently_used(texts):
    registry = Registry(SCHEMA, queries_max=10)
    many = [parse(f"temperature > {number}", SCHEMA).to_json() for number in range(30)]
    registry.learn(texts[0])
    for text in many:
        registry.learn(text)
        assert registry.slots([digest(texts[0])])[0] >= 0, "asked for all the time"
        assert len(registry) <= 10
        assert registry.slots([digest(text)])[0] >= 0
    assert registry.slots([digest(many[0])])[0] == -1
    small = Registry(SCHEMA, text_bytes_max=500)
    for text in many:
        small.learn(text)
    assert sum(small.slots([digest(text)])[0] >= 0 for text in many) == len(small)
    kept = sum(len(text) for text in many if small.slots([digest(text)])[0] >= 0)
    assert 200 < kept <= 500, "room of evicted queries is used again"


async def test_registry_learns_one_text_from_many_threads_once(texts):
    registry = Registry(SCHEMA)
    await asyncio.gather(*(asyncio.to_thread(registry.learn, texts[2]) for _ in range(8)))
    assert len(registry) == len(registry.standing) == 1


async def test_register_queries_of_an_unknown_dataset_is_refused(cluster, matching):
    with pytest.raises(UnknownDataset):
        await matching("a").register_queries("name", ["true"])
