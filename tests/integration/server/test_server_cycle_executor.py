"""Cycles in columns: what is asked, and how answers come back to each CCQ."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.ccq import events as ccq
from galileo.ccq.model import CcqDefinition
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.cycle import (
    Answers,
    CycleAnswer,
    CycleRequest,
    ItemFailure,
    MatchBatch,
    MatchedPartitions,
    Matches,
)
from galileo.dht.topology import Group, NodeInfo, Topology
from galileo.errors import Failure, SamplerFailed, Unavailable
from galileo.hashing import digest, split_digests
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.model.times import times_from_micros
from galileo.node.storage_node import NodeOptions, StorageNode
from galileo.packing import Compression
from galileo.samplers import SamplerSpec
from galileo.server import cycle_executor
from galileo.server.cycle_executor import CycleExecutor
from galileo.spark import task
from galileo.spark.options import EvaluatorOptions
from galileo.spark.task import Job
from galileo.storage.store import Store

SCHEMA = Schema("air", [Feature("t", "K")], geohash_precision=2)
EVERYWHERE = ""
WEST = '{"op":"like","args":[{"property":"geohash"},"9%"]}'
EAST = '{"op":"like","args":[{"property":"geohash"},"w%"]}'
KNOWN = Cursor(dict.fromkeys(range(4), 10))


class Evaluator:
    """Takes requests down, and answers each item with the commits past its cursor up to 10."""

    def __init__(self) -> None:
        self.requests: list[CycleRequest] = []
        self.stood: list[tuple[str, str, list[str]]] = []
        self.unknown: set[bytes] = set()
        self.failing: set[bytes] = set()
        self.dropped = EMPTY_CURSOR
        self.away = False

    async def register_queries(self, node: str, dataset: str, texts: list[str]) -> None:
        if self.away:
            raise Unavailable("away")
        self.stood.append((node, dataset, texts))

    async def evaluate(self, requests: Sequence[CycleRequest]) -> Answers:
        """Runs the requests as a task does, against nodes that answer here."""
        self.requests.extend(requests)
        job = Job(1, tuple(requests), 1, EvaluatorOptions(Path()))
        answers: list[list[CycleAnswer]] = [[] for _ in requests]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "_scanner", lambda _: self)
            for number, answer in task.run(job, 0):
                answers[number].append(answer)
        return tuple(map(tuple, answers))

    def fetch(self, requests: Sequence[CycleRequest], *, timeout_s: float) -> list[Matches]:
        return [self._matches(request) for request in requests]

    def _matches(self, request: CycleRequest) -> Matches:
        names = split_digests(request.digests.tobytes())
        lost, failed = (
            np.array([i for i, name in enumerate(names) if name in some], dtype=np.uint32)
            for some in (self.unknown, self.failing)
        )
        failures = (ItemFailure(failed, SamplerFailed("no")),)
        return Matches((self._part(request, names),), lost, failures)

    def _part(self, request: CycleRequest, names: list[bytes]) -> MatchedPartitions:
        partitions = request.partitions.tolist()
        rows = labels({p: range(1, 11) for p in partitions})
        after = request.cursor_rows
        pairs = [
            (item, row)
            for item, cursor in enumerate(request.cursors.tolist())
            if names[item] not in self.unknown
            for row, (p, s) in enumerate(
                zip(rows.partitions.tolist(), rows.sequences.tolist(), strict=True)
            )
            if s > max(after[cursor, partitions.index(p)], self.dropped[p])
        ]
        answered = [item for item in range(len(request)) if names[item] not in self.unknown]
        items, places = np.array([*pairs, (0, 0)], dtype=np.uint32)[:-1].T
        return MatchedPartitions(
            np.array(answered, dtype=np.uint32),
            Cursor(dict.fromkeys(partitions, 10)),
            MatchBatch.of(items, places, rows.table),
            self.dropped,
        )


def labels(commits: dict[int, range]) -> LabelSet:
    """One label in each commit."""
    pairs = [(p, s) for p, sequences in commits.items() for s in sequences]
    partitions, sequences = np.array(pairs).T
    count = len(pairs)
    arrays = [
        pa.array(np.arange(count), pa.uint64()),
        times_from_micros(np.arange(count)),
        pa.array(np.arange(count) / 2),
        pa.array(np.arange(count), pa.int32()),
        pa.array(np.ones(count), pa.int32()),
        pa.array(partitions, pa.int32()),
        pa.array(sequences, pa.int64()),
    ]
    return LabelSet(SCHEMA, pa.Table.from_arrays(arrays, schema=SCHEMA.label_schema))


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Node a of two; a owns the west (partitions 0 and 1), b the east (2 and 3)."""
    directory: Path = tmp_path_factory.mktemp("cycling")
    a, b = (NodeInfo(name, f"127.0.0.1:{port}") for port, name in enumerate("ab", start=1))
    topology = Topology("test", (Group("one", (a,)), Group("two", (b,))), (("", 0), ("h", 1)), 2)
    store = Store.open(directory, wall=lambda: 1e9)
    node = StorageNode("a", topology, store=store, peers=SimpleNamespace(), options=NodeOptions())
    node.catalog.adopt(SCHEMA)
    node.view.update_sequences("air", KNOWN)
    return node


def cycling(node, evaluator, *, dead=()) -> CycleExecutor:
    return CycleExecutor(
        node,
        evaluate=evaluator.evaluate,
        register_queries=evaluator.register_queries,
        is_dead=lambda name: name in dead,
        failure_of=lambda error: Failure(error.kind, error.message),
    )


def item(number: int, query: str, after: Cursor = EMPTY_CURSOR, **changes) -> ccq.CycleItem:
    made = CcqDefinition(f"c{number}", "air", query, 1.0, 1e12, **changes)
    news = tuple(p for p, s in KNOWN.items() if s > after[p])
    return ccq.CycleItem(made, number + 1, after, news)


async def cycle(made: CycleExecutor, *items: ccq.CycleItem) -> list[ccq.CycleResult]:
    finished = await made.run(ccq.StartCycle(7, items))
    assert finished.cycle_id == 7
    assert [(one.ccq_id, one.term, one.after) for one in finished.results] == [
        (one.ccq.id, one.term, one.after) for one in items
    ]
    return list(finished.results)


def found(result: ccq.CycleResult) -> list[tuple[int, int]]:
    if result.labels is None:
        return []
    own = result.labels.labels()
    return list(zip(own.partitions.tolist(), own.sequences.tolist(), strict=True))


def commits(after: Cursor, partitions) -> list[tuple[int, int]]:
    return [(p, s) for p in sorted(partitions) for s in range(after[p] + 1, 11)]


CURSORS = st.builds(Cursor, st.dictionaries(st.integers(0, 3), st.integers(0, 10), max_size=4))


@examples(20)
@given(
    asked=st.lists(
        st.tuples(st.sampled_from([EVERYWHERE, WEST, EAST]), CURSORS, st.booleans()),
        min_size=1,
        max_size=12,
    ),
    pruned_items_max=st.sampled_from([0, 1_000]),
)
def test_cycle_returns_new_commits_of_each_query(node, asked, pruned_items_max):
    owned = {EVERYWHERE: range(4), WEST: range(2), EAST: range(2, 4)}
    items = [
        item(n, query, after, compression=Compression.LZ4 if lz4 else Compression.NONE)
        for n, (query, after, lz4) in enumerate(asked)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle_executor, "PRUNED_ITEMS_MAX", pruned_items_max)
        results = asyncio.run(cycle(cycling(node, Evaluator()), *items))
    for (query, after, _), result in zip(asked, results, strict=True):
        assert found(result) == commits(after, owned[query])
        assert after.join(result.reached) == KNOWN
        assert (result.failure, result.gone) == (None, EMPTY_CURSOR)


@pytest.fixture
def unpruned(monkeypatch):
    """Cycles do not use the feature graph, as large ones."""
    monkeypatch.setattr(cycle_executor, "PRUNED_ITEMS_MAX", 0)


@pytest.mark.usefixtures("unpruned")
async def test_cycle_registers_queries_once_and_shares_cursors(node):
    evaluator = Evaluator()
    made = cycling(node, evaluator)
    after = Cursor(dict.fromkeys(range(4), 9))
    items = [item(n, (WEST, EAST, EVERYWHERE)[n % 3], after) for n in range(30)]
    results = await cycle(made, *items)
    (request,) = evaluator.requests
    assert len(request.cursor_rows) == 3
    assert len({id(result.reached) for result in results}) == 3
    assert Counter(node for node, _, _ in evaluator.stood) == {"a": 1, "b": 1}
    assert {(n, t) for n, _, texts in evaluator.stood for t in texts} == {
        ("a", WEST), ("a", EVERYWHERE), ("b", EAST), ("b", EVERYWHERE)
    }  # fmt: skip
    await cycle(made, *items)
    assert len(evaluator.stood) == 2, "they are known by now"


async def test_cycle_registers_forgotten_queries_again(node):
    evaluator = Evaluator()
    made = cycling(node, evaluator)
    evaluator.unknown = {digest(WEST)}
    unknown, other = await cycle(made, item(0, WEST), item(1, EVERYWHERE))
    assert (found(unknown), found(other)) == ([], commits(EMPTY_CURSOR, range(4)))
    assert unknown.reached == Cursor({2: 10, 3: 10}), "its partitions stand still"
    evaluator.unknown, evaluator.stood = set(), []
    (again,) = await cycle(made, item(0, WEST))
    assert found(again) == commits(EMPTY_CURSOR, range(2))
    assert evaluator.stood == [("a", "air", [WEST])]


async def test_cycle_registers_queries_at_an_unreachable_node_later(node):
    evaluator = Evaluator()
    made = cycling(node, evaluator)
    evaluator.away = True
    await cycle(made, item(0, WEST))
    evaluator.away = False
    await cycle(made, item(0, WEST))
    assert evaluator.stood == [("a", "air", [WEST])]


@pytest.mark.parametrize("limit", [("TEXTS_BYTES_MAX", 150), ("TEXTS_MAX", 3)])
async def test_cycle_bounds_the_bytes_and_the_number_of_registered_texts(node, limit, monkeypatch):
    monkeypatch.setattr(cycle_executor, *limit)
    evaluator = Evaluator()
    queries = [WEST.replace("9%", f"9{letter}%") for letter in "bcdefgh"]
    made = cycling(node, evaluator)
    await cycle(made, *(item(n, query) for n, query in enumerate(queries)))
    assert [len(texts) for _, _, texts in evaluator.stood] == [3, 3, 1]


async def test_cycle_with_one_failed_item_returns_the_others(node):
    evaluator = Evaluator()
    evaluator.failing = {digest(WEST)}
    failed, other = await cycle(cycling(node, evaluator), item(0, WEST), item(1, EVERYWHERE))
    assert failed.failure is not None
    assert (failed.failure.kind, failed.labels) == ("sampler_failed", None)
    assert found(other) == commits(EMPTY_CURSOR, range(4))


async def test_cycle_names_commits_that_retention_deleted(node):
    evaluator = Evaluator()
    evaluator.dropped = Cursor({0: 4, 2: 6})
    behind, past = await cycle(
        cycling(node, evaluator), item(0, WEST), item(1, WEST, Cursor({0: 5, 1: 5}))
    )
    assert behind.gone == Cursor({0: 4})
    assert found(behind) == commits(Cursor({0: 4}), range(2))
    assert past.gone == EMPTY_CURSOR


async def test_cycle_skips_dead_nodes(node):
    evaluator = Evaluator()
    (result,) = await cycle(cycling(node, evaluator, dead={"b"}), item(0, EVERYWHERE))
    assert evaluator.requests[0].addresses == ("127.0.0.1:1",)
    assert found(result) == commits(EMPTY_CURSOR, range(2))
    assert result.reached == Cursor({0: 10, 1: 10})


async def test_cycle_pruned_by_placement_calls_no_node(node):
    evaluator = Evaluator()
    after = Cursor({0: 10, 1: 10})
    (result,) = await cycle(cycling(node, evaluator), item(0, WEST, after))
    assert not evaluator.requests
    assert result.reached == Cursor({2: 10, 3: 10})


async def test_cycle_sends_each_sampler_once(node):
    evaluator = Evaluator()
    one, other = (SamplerSpec("uniform", {"fraction": f}, 1) for f in (0.1, 0.2))
    items = [item(n, WEST, sampler=spec) for n, spec in enumerate([None, one, other, one])]
    await cycle(cycling(node, evaluator), *items)
    (request,) = evaluator.requests
    assert request.samplers_json == (one.to_json(), other.to_json())
    assert request.samplers.tolist() == [0, 1, 2, 1]


@pytest.mark.usefixtures("unpruned")
async def test_cycle_of_two_datasets_keeps_cursors_apart(node):
    sea = Schema("sea", SCHEMA.features, geohash_precision=SCHEMA.geohash_precision)
    node.catalog.adopt(sea)
    node.view.update_sequences("sea", Cursor(dict.fromkeys(range(4), 20)))
    air = item(0, WEST)
    other = replace(air, ccq=replace(air.ccq, id="c1", dataset="sea"), term=2)
    results = await cycle(cycling(node, Evaluator()), air, other)
    assert [one.reached[3] for one in results] == [10, 20], "what placement rules out is certain"


async def test_cycle_leaves_later_commits_to_the_next_one(node, monkeypatch):
    evaluator = Evaluator()
    answered = evaluator._part

    def part(request, names):
        return replace(answered(request, names), reached=Cursor(dict.fromkeys(range(4), 7)))

    monkeypatch.setattr(evaluator, "_part", part)
    (result,) = await cycle(cycling(node, evaluator), item(0, EVERYWHERE, Cursor({0: 2})))
    assert found(result) == [(p, s) for p in range(4) for s in range(3 if p == 0 else 1, 8)]


async def test_cycle_skips_items_of_unknown_datasets(node):
    """It was dropped, or has not been heard of; the queries of others go on."""
    gone, known = item(0, EVERYWHERE), item(1, EVERYWHERE)
    gone = replace(gone, ccq=replace(gone.ccq, dataset="air@7"))
    made = cycling(node, Evaluator())
    finished = await made.run(ccq.StartCycle(7, (gone, known)))
    assert [one.ccq_id for one in finished.results] == ["c1"]
    assert found(finished.results[0]) == commits(EMPTY_CURSOR, range(4))
    assert (await made.run(ccq.StartCycle(8, (gone,)))).results == ()


async def test_cycle_of_queries_with_different_features_has_a_group_for_each(node, monkeypatch):
    grown = Schema("grown", SCHEMA.features, geohash_precision=SCHEMA.geohash_precision)
    wider = grown.with_features([Feature("gust")])
    node.catalog.adopt(wider)
    node.view.update_sequences("grown", KNOWN)
    evaluator = Evaluator()
    answered = evaluator._part

    def part(request, names):
        made = answered(request, names)
        matches, schema = made.matches, request.schema
        rows = [row | {"gust": 1.5} for row in matches.rows.to_pylist()]
        table = pa.Table.from_pylist(rows, schema=schema.label_schema)
        return replace(made, matches=MatchBatch.of(matches.items, matches.places, table))

    monkeypatch.setattr(evaluator, "_part", part)
    items = [item(n, WEST, added=added) for n, added in enumerate([0, 1, 0, 2])]
    items = [replace(one, ccq=replace(one.ccq, dataset="grown")) for one in items]
    finished = await cycling(node, evaluator).run(ccq.StartCycle(7, tuple(items)))
    assert [request.schema for request in evaluator.requests] == [grown, wider]
    results = {one.ccq_id: one for one in finished.results}
    assert results.keys() == {"c0", "c1", "c2"}, "features that are not known yet wait"
    for name, schema in (("c0", grown), ("c1", wider), ("c2", grown)):
        assert found(results[name]) == commits(EMPTY_CURSOR, range(2))
        assert results[name].labels.labels().table.schema == schema.label_schema
