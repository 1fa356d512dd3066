"""A graph to which features are added equals one that had them from the beginning."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from parameters import keep_quick

from galileo.cursor import Cursor
from galileo.errors import InputError
from galileo.graph.columns import Commits
from galileo.graph.feature_graph import FeatureGraph
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.synopsis import Synopsis, SynopsisDelta
from galileo.model import paths as model_paths
from galileo.model.grouping import FeatureKey, Grouping
from galileo.model.schema import Feature, Schema
from galileo.model.times import TIME_TYPE
from galileo.query.query import parse

BASE = Schema("air", [Feature("heat"), Feature("note", type="text", indexed=False)])
MORE = [
    Feature("gust"),
    Feature("count", type="int"),
    Feature("remark", type="text", indexed=False),
    Feature("site", type="text"),
    Feature("wet", type="bool"),
]
WIDEST = BASE.with_features(MORE)
VALUES: dict[str, list[Any]] = {
    "float": [1.5, -2.0, None],
    "int": [3, -4, None],
    "text": ["a", "b", None],
    "bool": [True, False, None],
}
QUERIES = [
    "heat > 0",
    "gust > 0",
    "NOT (gust > 0)",
    "gust IS NULL",
    "count < 0 OR heat < 0",
    "site = 'a' AND wet = TRUE",
    "site IS NULL AND NOT (count IS NULL)",
    "heat IS NULL",
]


def batch_of(schema: Schema, chance: random.Random) -> pa.RecordBatch:
    """The paths of a commit."""
    rows, columns = chance.randint(1, 9), []
    for name in schema.observation_schema.names:
        feature = schema.feature(name)
        if feature is not None:
            values = [chance.choice(VALUES[feature.type]) for _ in range(rows)]
            columns.append(pa.array(values, feature.arrow_type))
        elif name == "time":
            times = [chance.randrange(86_400) * 1_000_000 for _ in range(rows)]
            columns.append(pa.array(times, pa.int64()).cast(TIME_TYPE))
        else:
            columns.append(pa.array([chance.uniform(0, 9) for _ in range(rows)]))
    table = pa.table(columns, schema=schema.observation_schema)
    return model_paths.index(schema, table)[1]


def padded(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The same paths as rows of a wider schema."""
    return pa.RecordBatch.from_pylist(batch.to_pylist(), schema=schema.path_schema)


def ordered(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["sequence"], row["row"]))


def usable(schema: Schema) -> list[str]:
    names = {feature.name for feature in WIDEST.features} - {f.name for f in schema.features}
    return [text for text in QUERIES if not any(name in text for name in names)]


@pytest.mark.parametrize("seed", keep_quick(range(12), 0))
def test_graph_with_added_features_equals_one_that_had_them(seed: int) -> None:
    chance, schemas = random.Random(seed), [BASE]
    grown = MetadataGraph(BASE, memtable_paths_max=40, block_paths=8)
    whole = MetadataGraph(WIDEST, memtable_paths_max=40, block_paths=8)
    for sequence in range(1, 61):
        batch = batch_of(chance.choice(schemas), chance)
        grown.insert(batch, partition=sequence % 3, sequence=sequence)
        whole.insert(padded(batch, WIDEST), partition=sequence % 3, sequence=sequence)
        added = schemas[-1].added
        if chance.random() < 0.08 and added < len(MORE):
            schemas.append(schemas[-1].with_features(MORE[added : added + 2]))
            grown.add_features(schemas[-1])
        if chance.random() < 0.1:
            grown.maintain()
        if sequence % 10:
            continue
        for schema in schemas:  # Queries of earlier schemas go on.
            for text in usable(schema):
                query, every = parse(text, schema), parse(text, WIDEST)
                after = Cursor({0: chance.randrange(60)})
                expected = whole.scan(every, after=after).select(schema.label_schema.names)
                labels = grown.scan(query, after=after)
                assert labels.schema == schema.label_schema
                assert ordered(labels) == ordered(expected)
                pieces = [p for p in grown.scan_pieces(query, labels_max=7, after=after) if p]
                of_pieces = pa.Table.from_batches(pieces, schema=schema.label_schema)
                assert ordered(of_pieces) == ordered(expected)
    assert len(schemas) > 1, "nothing was added"


def test_graph_describes_groups_and_sums_up_features_that_were_added() -> None:
    graph, chance = MetadataGraph(BASE, memtable_paths_max=8), random.Random(1)
    for sequence in range(1, 9):
        graph.insert(batch_of(BASE, chance), partition=0, sequence=sequence)
    paths = graph.count()
    graph.add_features(WIDEST)
    description = graph.describe(frozenset([0]))
    assert description.texts["site"].nulls == description.observations
    assert description.numbers["gust"].missing == description.observations
    graph.insert(batch_of(WIDEST, chance), partition=0, sequence=9)
    query = parse("", WIDEST)
    described = graph.describe(frozenset([0]))
    assert graph.summarise(query, "count").missing == described.numbers["count"].missing
    grouping = Grouping((FeatureKey("wet"),), ())
    pieces = [piece for piece in graph.group_pieces(query, grouping) if piece is not None]
    counted = sum(int(piece.observations.sum()) for piece in pieces)
    assert counted == described.observations
    assert graph.children((), order=["wet"]).num_rows > 0
    assert graph.count() > paths


def test_features_that_are_added_take_no_memory_in_the_paths_that_are_there() -> None:
    graph, chance = MetadataGraph(BASE, memtable_paths_max=200), random.Random(1)
    batch = pa.concat_batches([batch_of(BASE, chance) for _ in range(200)])
    counts = np.array([batch.num_rows])
    graph.insert_many(batch, Commits.of(0, [1]), counts)
    before = graph.memory_bytes()
    graph.add_features(WIDEST)
    assert graph.memory_bytes() - before < batch.num_rows


@pytest.mark.parametrize("seed", keep_quick(range(6), 0, 1))
def test_synopsis_with_added_features_prunes_as_one_that_had_them(seed: int) -> None:
    chance, schema = random.Random(seed), BASE
    grown = Synopsis(BASE, partition=0, epoch=1, entries_max=20)
    whole = Synopsis(WIDEST, partition=0, epoch=1, entries_max=20)
    for sequence in range(1, 31):
        batch = batch_of(chance.choice([BASE, schema]), chance)
        grown.add(batch, sequence)
        whole.add(padded(batch, WIDEST), sequence)
        if chance.random() < 0.15 and schema.added < len(MORE):
            schema = schema.with_features(MORE[schema.added : schema.added + 2])
            known = grown.version
            grown = grown.with_features(schema, epoch=known.epoch + 1)
            delta = grown.changes_since(known)
            assert delta.base == 0, "a receiver needs a full copy"
            sent = SynopsisDelta.from_bytes(schema, delta.to_bytes(schema))
            receiver = FeatureGraph(schema)
            assert receiver.apply(sent) == grown.version
            theirs = FeatureGraph(WIDEST)
            theirs.apply(whole.changes_since(None))
            for text in usable(schema):
                ours = receiver.candidates(parse(text, schema), [0]).maybe
                assert ours == theirs.candidates(parse(text, WIDEST), [0]).maybe
        grown.check()


def test_synopsis_delta_of_an_earlier_schema_is_read_with_nulls() -> None:
    wider = BASE.with_features([Feature("gust"), Feature("site", type="text")])
    synopsis = Synopsis(BASE, partition=0, epoch=3)
    synopsis.add(batch_of(BASE, random.Random(1)), 1)
    raw = synopsis.changes_since(None).to_bytes(BASE)
    graph = FeatureGraph(wider)
    graph.apply(SynopsisDelta.from_bytes(wider, raw))
    assert graph.candidates(parse("gust > 0", wider), [0]).pruned == {0: 1}
    assert graph.candidates(parse("site IS NULL", wider), [0]).maybe == {0}
    with pytest.raises(InputError):
        SynopsisDelta.from_bytes(
            BASE, synopsis.with_features(wider, epoch=4).changes_since(None).to_bytes(wider)
        )


def test_feature_graph_with_added_features_equals_one_that_had_them() -> None:
    wider = BASE.with_features([Feature("gust"), Feature("site", type="text")])
    narrow, wide = FeatureGraph(BASE), FeatureGraph(wider)
    for partition in range(4):
        synopsis = Synopsis(BASE, partition=partition, epoch=3)
        synopsis.add(batch_of(BASE, random.Random(partition)), 1)
        raw = synopsis.changes_since(None).to_bytes(BASE)
        narrow.apply(SynopsisDelta.from_bytes(BASE, raw))
        wide.apply(SynopsisDelta.from_bytes(wider, raw))
    grown = narrow.with_features(wider)
    assert grown.entries == wide.entries > 0
    for text in ("heat > 0", "gust > 0", "gust IS NULL", "site = 'a' OR heat < 0"):
        query = parse(text, wider)
        assert grown.candidates(query, range(4)) == wide.candidates(query, range(4))
        assert grown.estimate(query) == wide.estimate(query)


def test_graph_add_features_again_or_fewer_changes_nothing() -> None:
    chance, graph = random.Random(3), MetadataGraph(BASE)
    graph.add_features(WIDEST)
    graph.insert(batch_of(WIDEST, chance), partition=0, sequence=1)
    before = ordered(graph.scan(parse("", WIDEST)))
    for schema in (WIDEST, WIDEST.narrowed(2), BASE):
        graph.add_features(schema)
        assert graph.schema == WIDEST
        assert ordered(graph.scan(parse("", WIDEST))) == before
