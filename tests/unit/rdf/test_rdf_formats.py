"""Answers in each W3C format, read by rdflib."""

from __future__ import annotations

import io
import warnings

import pytest
from rdflib import Graph
from rdflib.plugins.sparql.results.csvresults import CSVResultParser
from rdflib.plugins.sparql.results.jsonresults import JSONResultParser
from rdflib.plugins.sparql.results.tsvresults import TSVResultParser
from rdflib.plugins.sparql.results.xmlresults import XMLResultParser

from galileo import rdf

READERS = {
    "json": JSONResultParser,
    "xml": XMLResultParser,
    "csv": CSVResultParser,
    "tsv": TSVResultParser,
}


@pytest.fixture(scope="module")
def graph(weather):
    with rdf.open_labels(weather) as opened:
        opened.load()
        yield opened


@pytest.mark.parametrize("form", READERS)
def test_solutions_in_any_format_equal_rows(graph, form):
    answer = graph.sparql(
        "SELECT ?p ?t ?s { ?p g:sequence 2 ; g:time ?t OPTIONAL { ?p f:station ?s } }"
    )
    found = READERS[form]().parse(io.BytesIO(answer.serialise(form)))
    plain = {"p": str, "t": lambda term: str(term)[:13], "s": str}

    def row(values):
        return tuple(
            "" if value in (None, "") else plain[name](value) for name, value in values.items()
        )

    read = [{str(name): binding.get(name) for name in found.vars} for binding in found.bindings]
    expected = [{**one, "t": one["t"].isoformat()} for one in answer.rows]
    if form == "csv":  # which has no way to write line ends within rdflib's reading
        assert len(read) == len(expected)
    assert sorted(map(row, read)) == sorted(map(row, expected))
    assert len(read) > 20


@pytest.mark.parametrize("form", ["json", "xml"])
@pytest.mark.parametrize(
    ("text", "truth"), [("ASK { ?p a g:Path }", True), ("ASK { ?p f:level 99 }", False)]
)
def test_ask_gives_boolean_document(graph, form, text, truth):
    document = graph.sparql(text).serialise(form)
    assert READERS[form]().parse(io.BytesIO(document)).askAnswer is truth


@pytest.mark.parametrize("form", ["turtle", "nt", "xml", "json-ld"])
def test_triples_in_any_format_are_equal(graph, form):
    answer = graph.sparql("CONSTRUCT { ?c g:value ?v } { ?c a g:Cell ; g:value ?v }")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # rdflib's JSON-LD parser warns
        read = Graph(bind_namespaces="none").parse(data=answer.serialise(form), format=form)
    assert set(read) == set(answer.to_graph())
    assert len(read) == 3


def test_description_has_triples(graph):
    data = graph.sparql(f"DESCRIBE <{rdf.VERTEX}nam>").serialise("turtle")
    assert len(Graph(bind_namespaces="none").parse(data=data, format="turtle")) >= 8
