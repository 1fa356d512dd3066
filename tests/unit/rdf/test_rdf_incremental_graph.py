"""A graph that grew is the graph that is built at once."""

import itertools
import threading
import time

import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo import rdf
from galileo.errors import Cancelled, DeadlineExceeded, InputError
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema

ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"
ALL = "CONSTRUCT { ?s ?p ?o } WHERE { ?s ?p ?o }"
COUNT = "SELECT (COUNT(?p) AS ?n) { ?p a g:Path }"


def lines(data):
    return sorted(data.splitlines())


def at_once(labels):
    return lines(rdf.sparql(labels, ALL).triples)


def identities(labels):
    return set(zip(labels.partitions, labels.sequences, labels.rows, strict=True))


@examples(25)
@given(st.data())
def test_ntriples_random_union_equals_union_of_triples(label_sets, data):
    """What makes growing right: a triple never depends on other labels."""
    one, other = data.draw(label_sets), data.draw(label_sets)
    both = LabelSet.concat(one.schema, [one, other])
    parts = {*b"".join(rdf.ntriples(one)).splitlines(), *b"".join(rdf.ntriples(other)).splitlines()}
    assert set(b"".join(rdf.ntriples(both)).splitlines()) == parts


@examples(5)
@given(st.data())
def test_incremental_graph_random_pieces_equals_one_graph(weather, data):
    """In any pieces, some of them come again, with questions between."""
    cuts = sorted({0, len(weather), *data.draw(st.lists(st.integers(0, len(weather)), max_size=4))})
    pieces = [weather.slice(a, b) for a, b in itertools.pairwise(cuts)]
    order = data.draw(st.permutations(range(len(pieces))))
    again = data.draw(st.lists(st.sampled_from(range(len(pieces))), max_size=3))
    held = set()
    with rdf.IncrementalGraph(weather.schema) as graph:
        for number in [*order, *again]:
            expected = identities(pieces[number]) - held
            assert graph.add(pieces[number]) == len(expected)
            held |= expected
            assert graph.sparql(COUNT).rows == [{"n": len(held)}]
        assert lines(graph.sparql(ALL).triples) == at_once(weather)
        assert identities(graph.labels) == identities(weather)
        assert len(graph) == len(weather)


def test_incremental_graph_add_before_query_is_loaded(weather):
    with rdf.IncrementalGraph(weather.schema) as graph:
        assert graph.add(weather.slice(0, 50)) == 50
        assert graph.add(weather.slice(40, 60)) == 10
        assert graph.sparql(COUNT).rows == [{"n": 60}]


def test_incremental_graph_add_or_timeout_reloads_nothing(weather):
    with rdf.IncrementalGraph(weather.schema) as graph:
        graph.add(weather.slice(0, 100))
        graph.load()
        process = graph._engine._process
        with pytest.raises(DeadlineExceeded):
            graph.sparql(ENDLESS, timeout_s=0.2)
        graph.add(weather.slice(100, 200))
        assert graph.sparql(COUNT).rows == [{"n": 200}]
        assert graph._engine._process is process


def test_incremental_graph_lost_process_is_rebuilt(weather):
    with rdf.IncrementalGraph(weather.schema) as graph:
        graph.add(weather.slice(0, 100))
        graph.load()
        graph._engine._process.end()
        graph.add(weather.slice(100, 150))
        assert graph.sparql(COUNT).rows == [{"n": 150}]
        assert lines(graph.sparql(ALL).triples) == at_once(weather.slice(0, 150))


def test_incremental_graph_full_raises_and_still_answers(weather):
    with rdf.IncrementalGraph(weather.schema, labels_max=100) as graph:
        graph.add(weather.slice(0, 90))
        with raises(InputError, expected="labels", bound=100):
            graph.add(weather.slice(90, 101))
        assert graph.sparql(COUNT).rows == [{"n": 90}]
        assert graph.add(weather.slice(80, 100)) == 10


def test_incremental_graph_labels_of_other_dataset_raises(weather):
    other = Schema("other", [Feature("level")])
    with rdf.IncrementalGraph(other) as graph, raises(InputError, expected="labels_of_schema"):
        graph.add(weather)


def test_incremental_graph_many_small_additions_are_combined(weather):
    with rdf.IncrementalGraph(weather.schema) as graph:
        for number in range(0, 200, 2):
            graph.add(weather.slice(number, number + 2))
        assert len(graph._parts) < 40
        assert graph.sparql(COUNT).rows == [{"n": 200}]


@pytest.mark.slow
def test_incremental_graph_concurrent_queries_see_whole_additions(weather):
    """Each addition has ten labels, so every count is a multiple of ten, and none goes back."""
    with rdf.IncrementalGraph(weather.schema) as graph:
        graph.load()

        def add():
            for number in range(0, 200, 10):
                graph.add(weather.slice(number, number + 10))

        adding = threading.Thread(target=add)
        adding.start()
        counts = []
        while not counts or counts[-1] < 200:
            counts.append(graph.sparql(COUNT).rows[0]["n"])
        adding.join()
        assert counts == sorted(counts)
        assert {count % 10 for count in counts} == {0}


def test_incremental_graph_cancel_stops_query_and_stays_open(weather):
    with rdf.IncrementalGraph(weather.schema) as graph:
        graph.add(weather)
        graph.load()
        caught = []

        def ask():
            try:
                graph.sparql(ENDLESS)
            except Cancelled as error:
                caught.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        deadline = time.monotonic() + 60
        while graph._engine._process._busy != "query":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        graph.cancel()
        thread.join(timeout=60)
        assert len(caught) == 1
        assert graph.sparql(COUNT).rows == [{"n": 200}]
