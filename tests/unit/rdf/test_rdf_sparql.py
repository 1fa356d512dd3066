import math
import threading

import pytest
from expected_errors import raises

from galileo import rdf
from galileo.errors import (
    Cancelled,
    DeadlineExceeded,
    InputError,
    QuerySyntaxError,
    UnsupportedQuery,
)

ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"


@pytest.fixture(scope="module")
def graph(weather):
    with rdf.open_labels(weather) as opened:
        yield opened


def test_sparql_ask_gives_truth(graph):
    assert graph.sparql("ASK { ?p f:level 2 }")
    assert not graph.sparql("ASK { ?p f:level 99 }")


def test_sparql_describe_gives_triples_of_vertex(graph):
    described = graph.sparql("DESCRIBE <urn:galileo:vertex:nam>").to_graph()
    assert len(described) >= 8


def test_sparql_filter_by_geometry_finds_cells(graph):
    text = """SELECT DISTINCT ?h {
        ?c a g:Cell ; g:value ?h ; geo:hasGeometry/geo:asWKT ?w
        FILTER(geof:sfIntersects(?w, "POINT (-105 40)"^^geo:wktLiteral)) }"""
    assert graph.sparql(text).rows == [{"h": "9xj"}]


def test_sparql_own_prefix_replaces_given_one(graph):
    text = "PREFIX g: <urn:galileo:ns:> PREFIX q: <urn:galileo:feature:> SELECT * { ?p q:level 2 }"
    assert len(graph.sparql(text)) == len(graph.sparql("SELECT * { ?p f:level 2 }"))


def test_sparql_endless_query_raises_deadline_exceeded(graph):
    with raises(DeadlineExceeded, bound=0.3):
        graph.sparql(ENDLESS, timeout_s=0.3)
    assert graph.sparql("ASK { ?p a g:Path }")


def test_sparql_rows_beyond_rows_max_raises(graph, weather):
    text = "SELECT ?p { ?p a g:Path }"
    assert len(graph.sparql(text, rows_max=len(weather))) == len(weather)
    with raises(InputError, expected="rows"):
        graph.sparql(text, rows_max=len(weather) - 1)
    triples = "CONSTRUCT WHERE { ?p a g:Path }"
    assert len(graph.sparql(triples, rows_max=len(weather))) == len(weather)
    with raises(InputError, expected="rows"):
        graph.sparql(triples, rows_max=len(weather) - 1)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SELECT * { SERVICE <http://127.0.0.1:1/> { ?s ?p ?o } }", UnsupportedQuery),
        ("SELECT * FROM <http://127.0.0.1:1/> { ?s ?p ?o }", UnsupportedQuery),
        ("LOAD <http://127.0.0.1:1/>", UnsupportedQuery),
        ("DELETE WHERE { ?s ?p ?o }", UnsupportedQuery),
        ("INSERT DATA { <urn:a> <urn:b> <urn:c> }", UnsupportedQuery),
        ("CLEAR ALL", UnsupportedQuery),
        ("SELECT * { ?s ?p }", QuerySyntaxError),
        ("SELECT * { ?s nope:p ?o }", QuerySyntaxError),
        ("", QuerySyntaxError),
    ],
)
def test_sparql_unsupported_query_raises(graph, text, error):
    before = graph.sparql("SELECT (COUNT(*) AS ?n) { ?s ?p ?o }").rows
    with pytest.raises(error):
        graph.sparql(text)
    assert graph.sparql("SELECT (COUNT(*) AS ?n) { ?s ?p ?o }").rows == before


@pytest.mark.parametrize(
    ("text", "prefix", "line", "column"),
    [
        ("SELECT * { ?s nope:p ?o }", "nope", 1, 15),
        ("PREFIX a: <urn:a>\nSELECT * {\n  ?s a:b '''b:c'''; a:d 1, :e }", "", 3, 28),
        ("SELECT * { ?s <urn:a> 'x'^^foo:bar }", "foo", 1, 28),
        ("SELECT * { <a> galileo:b ?s }", "galileo", 1, 16),
    ],
)
def test_sparql_unknown_prefix_raises_with_position(graph, text, prefix, line, column):
    with pytest.raises(QuerySyntaxError) as caught:
        graph.sparql(text)
    message = caught.value.message
    assert f"prefix '{prefix}:' at line {line}, column {column} is not declared; " in message
    assert "g:, f:, geo:, " in message
    assert len(message) < 300
    assert text[caught.value.details["position"] :].startswith(f"{prefix}:")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT ?s {\n?s ?p ?o", "line 2, column 9, or a little before, in"),
        ("SELECT * { ?s ?p ?o } ORDER BY", "line 1, column 31, or a little before, in"),
        ("SELECT * { ?s <urn:a b> ?o }", "line 1, column 24, or a little before, in"),
        ("SELECT ?x { ?s ?p ?o } GROUP BY ?s", "; The SELECT contains a variable that is unbound"),
    ],
)
def test_sparql_syntax_error_is_one_short_line(graph, text, reason):
    with pytest.raises(QuerySyntaxError) as caught:
        graph.sparql(text)
    message = caught.value.message
    assert reason in message
    assert len(message) < 300
    assert "\n" not in message
    assert "u{" not in message


@pytest.mark.parametrize(
    ("option", "value"), [("timeout_s", 0), ("timeout_s", math.nan), ("rows_max", 0)]
)
def test_sparql_invalid_limit_raises(graph, option, value):
    with raises(InputError, option=option):
        graph.sparql("ASK {}", **{option: value})


def test_sparql_hostile_texts_stay_literals(mixed):
    nasty = '" . <urn:evil> <urn:evil> "x" .\n<urn:evil> <urn:evil> <urn:evil> .\\'
    labels = mixed([{"station": nasty}, {"station": "/p0.1.0> <urn:evil> <urn:evil> ."}])
    with rdf.open_labels(labels) as graph:
        assert not graph.sparql("ASK { ?s <urn:evil> ?o }")
        stations = {row["s"] for row in graph.sparql("SELECT ?s { ?p f:station ?s }").rows}
    assert nasty in stations


def test_sparql_any_source_gives_same_answer(weather, graph):
    text = "SELECT (COUNT(?p) AS ?n) { ?p a g:Path }"
    for source in (weather, rdf.to_graph(weather), graph):
        assert rdf.sparql(source, text).rows == [{"n": len(weather)}]
    with raises(InputError, expected="labels_or_graph"):
        rdf.sparql([], text)


def test_sparql_own_triples_join_with_labels(weather):
    graph = rdf.to_graph(weather)
    graph.update("INSERT DATA { <urn:galileo:vertex:nam/9xj> <urn:x:name> 'Boulder' }")
    text = "SELECT DISTINCT ?n { ?c <urn:x:name> ?n ; g:parentOf+ ?p . ?p a g:Path }"
    assert rdf.sparql(graph, text).rows == [{"n": "Boulder"}]


def test_graph_rdf_is_cached(graph):
    assert graph.rdf() is graph.rdf()


def test_sparql_concurrent_queries_share_graph(graph, weather):
    counts = []

    def ask():
        counts.append(graph.sparql("SELECT (COUNT(?p) AS ?n) { ?p a g:Path }").rows[0]["n"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [len(weather)] * 8


def test_graph_close_ends_running_query(weather):
    graph = rdf.open_labels(weather)
    graph.sparql("ASK {}")
    caught = []

    def ask():
        try:
            graph.sparql(ENDLESS)
        except Cancelled as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    graph.close()
    thread.join(timeout=60)
    assert len(caught) == 1
    with pytest.raises(Cancelled):
        graph.sparql("ASK {}")
    graph.close()
