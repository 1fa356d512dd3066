"""From terms back to labels, against one label at a time."""

import json

import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st
from rdflib import Graph

from galileo import rdf
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.model.times import TIME_MAX_US
from galileo.query import parse
from galileo.rdf import labels_from_terms, to_rdf
from galileo.rdf.terms import BLOCK, VERTEX


@pytest.fixture(scope="module")
def graph(weather):
    with rdf.open_labels(weather) as opened:
        yield opened


def names_of(labels):
    """All names of each label, one by one: of its vertices, its block, and itself."""
    paths = zip(*(column.to_pylist() for column in to_rdf.vertex_paths(labels)), strict=True)
    blocks, texts = labels.blocks().to_pylist(), labels.texts().to_pylist()
    return [
        {*(VERTEX + path for path in chain), BLOCK + block, block, text}
        for chain, block, text in zip(paths, blocks, texts, strict=True)
    ]


def rows_of(labels):
    return list(zip(labels.partitions, labels.sequences, labels.rows, strict=True))


@given(st.data())
def test_find_labels_random_terms_equals_test_of_each_label(weather, data):
    labels = weather.slice(0, 40)
    names = names_of(labels)
    known = st.sampled_from(sorted(set().union(*names)))
    chosen = data.draw(st.lists(known | st.sampled_from(["", "nam", "x", VERTEX, None])))
    found = labels_from_terms.find_labels(labels, {"x": pa.array(chosen, pa.string())})
    expected = [row for row, mine in zip(rows_of(labels), names, strict=True) if mine & set(chosen)]
    assert rows_of(found) == expected


@pytest.mark.parametrize(
    "text",
    [
        "SELECT ?p { ?p f:level 2 }",
        "SELECT ?label { ?p f:level 2 ; g:label ?label }",
        "SELECT ?p ?t { ?p f:level 2 OPTIONAL { ?p f:temperature ?t } }",
        "SELECT ?v { ?p f:level 2 . ?v g:parentOf ?p }",
    ],
)
def test_result_labels_equal_matching_labels(graph, weather, text):
    found = graph.sparql(text).labels()
    levels = weather.table.column("level").to_pylist()
    expected = [row for row, level in zip(rows_of(weather), levels, strict=True) if level == 2]
    assert set(expected) <= set(rows_of(found))
    if "?v" not in text:
        assert rows_of(found) == expected


def test_result_labels_of_cell_or_dataset_are_all_below(graph, weather):
    cell = graph.sparql("SELECT ?c { ?c a g:Cell ; g:value '9xj' }").labels()
    assert set(cell.geohashes().to_pylist()) == {"9xj"}
    assert len(graph.sparql("SELECT ?d { ?d a g:Dataset }").labels()) == len(weather)


def test_result_blocks_are_distinct(graph, weather):
    answer = graph.sparql("SELECT ?b { ?p f:level 2 ; g:block ?b }")
    blocks = answer.blocks()
    assert blocks == sorted({row["b"] for row in answer.rows})
    assert blocks == sorted(set(answer.labels().blocks().to_pylist()))


def test_result_labels_several_columns_raises_without_name(graph):
    answer = graph.sparql(
        "SELECT ?c ?p ?h { ?c g:value '9xj' ; g:parentOf+ ?p . ?p f:temperature ?h }"
    )
    with raises(InputError, expected="one_variable"):
        answer.labels()
    assert len(answer.labels("c")) > len(answer.labels("?p")) > 0
    assert len(answer.labels("h")) == 0
    with raises(InputError, expected="variable", variable="nope"):
        answer.labels("nope")


def test_result_labels_unknown_terms_raises(graph):
    with raises(InputError, expected="one_variable"):
        graph.sparql("SELECT ?t ?l { ?p f:temperature ?t ; f:level ?l }").labels()
    assert len(graph.sparql("SELECT ?p ?q { ?p f:level 99 . ?q f:level 98 }").labels()) == 0
    with raises(InputError, expected="solutions"):
        graph.sparql("ASK {}").labels()


def test_result_labels_of_plain_triples_raises():
    with raises(InputError, expected="labels"):
        rdf.sparql(Graph(), "SELECT ?p { ?p ?q ?r }").labels()


@given(st.integers(0, 200), st.integers(0, 200))
def test_sub_query_random_labels_matches_their_blocks_only(weather, start, stop):
    some = weather.slice(min(start, stop), max(start, stop))
    if not len(some):
        with raises(InputError, expected="blocks", bound=10000):
            labels_from_terms.sub_query(some)
        return
    query = parse(labels_from_terms.sub_query(some), weather.schema)
    matches = query.match_paths({"cell": weather.cells, "bucket": weather.buckets})
    found = set(weather.where(matches).blocks().to_pylist())
    assert found == set(some.blocks().to_pylist())


def test_sub_query_last_bucket_of_calendar_is_matched(mixed):
    last_us = TIME_MAX_US + 1 - 3_600_000_000
    labels = mixed([{"bucket": last_us}, {"bucket": 0}])
    for row in (0, 1):
        query = parse(labels_from_terms.sub_query(labels.slice(row, row + 1)), labels.schema)
        found = query.match_paths({"cell": labels.cells, "bucket": labels.buckets})
        assert found.tolist() == [row == 0, row == 1]


def test_sub_query_keeps_query_of_labels(weather):
    asked = LabelSet(
        weather.schema, weather.table, query='{"op":">","args":[{"property":"level"},1]}'
    )
    with rdf.open_labels(asked) as graph:
        text = graph.sparql("SELECT ?c { ?c a g:Cell ; g:value '9xj' }").query()
    tree = json.loads(text)
    assert tree["op"] == "and"
    assert tree["args"][1] == json.loads(asked.query)
    parse(text, weather.schema)
