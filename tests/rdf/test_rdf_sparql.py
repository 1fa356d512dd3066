import math
import threading

import pytest
from rdflib import Graph, Literal

from galileo import rdf
from galileo.errors import (
    Cancelled,
    DeadlineExceeded,
    InputError,
    QuerySyntaxError,
    UnsupportedQuery,
)

ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a ?b ?c . ?d ?e ?f . ?g ?h ?i . ?j ?k ?l }"

QUERIES = {
    "values": "SELECT ?p ?t { ?p f:temperature ?t FILTER(?t > 137.0) }",
    "optional": "SELECT ?p ?s ?r { ?p a g:Path OPTIONAL { ?p f:station ?s } OPTIONAL {"
    " ?p f:raining ?r } }",
    "path": "SELECT ?v { ?d a g:Dataset ; g:parentOf+ ?v }",
    "steps": "SELECT ?h ?n { ?c a g:Cell ; g:value ?h ; g:parentOf/g:parentOf/g:value ?n }",
    "inverse": "SELECT ?p ?h { ?p g:sequence 2 ; ^g:parentOf+ ?c . ?c a g:Cell ; g:value ?h }",
    "group": "SELECT ?h (AVG(?t) AS ?m) (COUNT(?p) AS ?n) { ?p g:geohash ?h ;"
    " f:temperature ?t } GROUP BY ?h",
    "having": "SELECT ?b (SUM(?o) AS ?n) { ?p g:block ?b ; g:observations ?o } GROUP"
    " BY ?b HAVING (SUM(?o) > 60)",
    "distinct": "SELECT DISTINCT ?u ?q { ?v g:feature ?x . ?x g:name ?u OPTIONAL { ?x"
    " qudt:hasUnit ?q } }",
    "union": "SELECT ?p { { ?p f:level 2 } UNION { ?p f:raining true } }",
    "minus": "SELECT ?p { ?p a g:Path MINUS { ?p f:station ?s } }",
    "exists": "SELECT ?p { ?p a g:Path FILTER NOT EXISTS { ?p f:temperature ?t } }",
    "times": "SELECT ?p { ?p g:time ?t FILTER(?t >= '1970-01-01T02:00:00Z'^^xsd:dateTime) }",
    "texts": "SELECT ?p { ?p f:station ?s FILTER(STRSTARTS(?s, 'K') || REGEX(?s, 'quo\"te')) }",
    "blocks": "SELECT ?b ?w { ?b a g:Block ; g:bucket ?t . ?c g:parentOf ?t ;"
    " geo:hasGeometry/geo:asWKT ?w }",
    "values list": "SELECT ?p { VALUES ?h { '9xj' 'dr5' } ?p g:geohash ?h ; g:partition 1 }",
    "order": "SELECT ?p ?t { ?p f:temperature ?t } ORDER BY DESC(?t) ?p LIMIT 5",
}


def plain(term):
    if term is None:
        return None
    value = term.toPython() if isinstance(term, Literal) else str(term)
    value = str(value) if type(value).__module__.startswith("rdflib") else value
    return float(value) if type(value).__name__ == "Decimal" else value


def canonical(rows):
    """Rows in an order of their own, with floats rounded and numbers of one kind."""

    def cell(value):
        if isinstance(value, float):
            return f"{value:.9g}"
        return (
            f"{value:.9g}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        )

    return sorted(tuple(cell(value) for value in row) for row in rows)


@pytest.fixture(scope="module")
def graph(weather):
    with rdf.open_labels(weather) as opened:
        yield opened


@pytest.fixture(scope="module")
def naive(weather):
    """The same triples in rdflib's own store, which its own engine queries."""
    graph = Graph(bind_namespaces="none")
    graph.parse(data=b"".join(rdf.ntriples(weather)).decode(), format="nt")
    for prefix, namespace in rdf.PREFIXES.items():
        graph.bind(prefix, namespace)
    return graph


@pytest.mark.parametrize("name", QUERIES)
def test_both_engines_find_the_same(graph, naive, name):
    result = graph.sparql(QUERIES[name])
    found = naive.query(QUERIES[name])
    order = [result.variables.index(str(variable)) for variable in found.vars]
    expected = canonical([plain(term) for term in row] for row in found)
    got = [tuple(row.values()) for row in result.rows]
    assert canonical([row[i] for i in order] for row in got) == expected
    assert len(expected) > 0


def test_ask_answers_yes_and_no(graph):
    assert graph.sparql("ASK { ?p f:level 2 }")
    assert not graph.sparql("ASK { ?p f:level 99 }")


def test_construct_makes_the_same_triples(graph, naive):
    where = "{ ?c a g:Cell ; g:parentOf+ ?v . ?v g:value ?t ; g:feature ?x }"
    text = f"CONSTRUCT {{ ?c <urn:x:has> ?t }} WHERE {where}"
    made = graph.sparql(text)
    expected = {(str(s), str(o)) for s, _, o in naive.query(text).graph}
    assert {(str(s), str(o)) for s, _, o in made.to_graph()} == expected
    assert len(made) == len(made.to_graph())


def test_describe_names_what_is_known_about_a_vertex(graph):
    described = graph.sparql("DESCRIBE <urn:galileo:vertex:nam>").to_graph()
    assert len(described) >= 8


def test_cells_can_be_asked_for_by_geometry(graph):
    text = """SELECT DISTINCT ?h {
        ?c a g:Cell ; g:value ?h ; geo:hasGeometry/geo:asWKT ?w
        FILTER(geof:sfIntersects(?w, "POINT (-105 40)"^^geo:wktLiteral)) }"""
    assert graph.sparql(text).rows == [{"h": "9xj"}]


def test_own_prefixes_may_be_declared_over_the_given_ones(graph):
    text = "PREFIX g: <urn:galileo:ns:> PREFIX q: <urn:galileo:feature:> SELECT * { ?p q:level 2 }"
    assert len(graph.sparql(text)) == len(graph.sparql("SELECT * { ?p f:level 2 }"))


def test_a_query_that_never_ends_is_cut_and_the_next_one_answered(graph):
    with pytest.raises(DeadlineExceeded, match=r"0\.3 s"):
        graph.sparql(ENDLESS, timeout_s=0.3)
    assert graph.sparql("ASK { ?p a g:Path }")


def test_an_answer_of_exactly_the_bound_passes_and_one_more_does_not(graph, weather):
    text = "SELECT ?p { ?p a g:Path }"
    assert len(graph.sparql(text, rows_max=len(weather))) == len(weather)
    with pytest.raises(InputError, match="199 rows"):
        graph.sparql(text, rows_max=len(weather) - 1)
    triples = "CONSTRUCT WHERE { ?p a g:Path }"
    assert len(graph.sparql(triples, rows_max=len(weather))) == len(weather)
    with pytest.raises(InputError, match="199 rows"):
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
def test_what_is_no_query_of_this_graph_is_refused(graph, text, error):
    before = graph.sparql("SELECT (COUNT(*) AS ?n) { ?s ?p ?o }").rows
    with pytest.raises(error):
        graph.sparql(text)
    assert graph.sparql("SELECT (COUNT(*) AS ?n) { ?s ?p ?o }").rows == before


@pytest.mark.parametrize("limits", [{"timeout_s": 0}, {"timeout_s": math.nan}, {"rows_max": 0}])
def test_limits_that_mean_nothing_are_refused(graph, limits):
    with pytest.raises(InputError, match="expected a"):
        graph.sparql("ASK {}", **limits)


def test_texts_cannot_break_out_of_their_literals(mixed):
    nasty = '" . <urn:evil> <urn:evil> "x" .\n<urn:evil> <urn:evil> <urn:evil> .\\'
    labels = mixed([{"station": nasty}, {"station": "/p0.1.0> <urn:evil> <urn:evil> ."}])
    with rdf.open_labels(labels) as graph:
        assert not graph.sparql("ASK { ?s <urn:evil> ?o }")
        stations = {row["s"] for row in graph.sparql("SELECT ?s { ?p f:station ?s }").rows}
    assert nasty in stations


def test_one_shot_answers_for_labels_graphs_and_open_graphs(weather, graph):
    text = "SELECT (COUNT(?p) AS ?n) { ?p a g:Path }"
    for source in (weather, rdf.to_graph(weather), graph):
        assert rdf.sparql(source, text).rows == [{"n": len(weather)}]
    with pytest.raises(InputError, match="list"):
        rdf.sparql([], text)


def test_a_graph_of_the_users_own_joins_with_the_labels(weather):
    graph = rdf.to_graph(weather)
    graph.update("INSERT DATA { <urn:galileo:vertex:nam/9xj> <urn:x:name> 'Boulder' }")
    text = "SELECT DISTINCT ?n { ?c <urn:x:name> ?n ; g:parentOf+ ?p . ?p a g:Path }"
    assert rdf.sparql(graph, text).rows == [{"n": "Boulder"}]


def test_the_rdflib_graph_is_made_once(graph):
    assert graph.rdf() is graph.rdf()


def test_threads_share_one_graph(graph, weather):
    counts = []

    def ask():
        counts.append(graph.sparql("SELECT (COUNT(?p) AS ?n) { ?p a g:Path }").rows[0]["n"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [len(weather)] * 8


def test_closing_ends_a_query_that_runs(weather):
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
    thread.join(timeout=20)
    assert len(caught) == 1
    with pytest.raises(Cancelled):
        graph.sparql("ASK {}")
    graph.close()
