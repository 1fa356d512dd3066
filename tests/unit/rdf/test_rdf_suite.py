"""One suite of queries, answered by this engine and by rdflib's own, which share no code."""

from __future__ import annotations

import io
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from rdflib import Graph, Literal

from galileo import rdf

TEXT = (Path(__file__).parent / "queries.rq").read_text()
QUERIES = dict(re.findall(r"^# (.+)\n((?:[^#\n].*\n)+)", TEXT, re.MULTILINE))
EMPTY = {"no solution"}


def canonical(term):
    """Terms by meaning: numbers by value, whatever their type and spelling."""
    if not isinstance(term, Literal):
        return str(term)
    value = term.toPython()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return ("number", f"{float(value):.9g}")
    return (str(value), str(term.datatype).replace("None", "string"))


def solutions(result):
    """The rows as a multiset, whatever the order of rows and columns."""
    return Counter(
        frozenset((str(name), canonical(value)) for name, value in row.asdict().items())
        for row in result
    )


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


def test_query_suite_is_complete():
    names = re.findall(r"^# ([a-z].*)\n(?!#)", TEXT, re.MULTILINE)
    assert list(QUERIES) == names
    assert len(QUERIES) >= 60


@pytest.mark.parametrize("name", QUERIES)
def test_sparql_query_of_suite_equals_rdflib(graph, naive, name):
    ours, theirs = graph.sparql(QUERIES[name]), naive.query(QUERIES[name])
    if theirs.type == "ASK":
        assert bool(ours) is theirs.askAnswer
    elif theirs.type == "SELECT":
        read = type(theirs).parse(source=io.BytesIO(ours.serialise("json")), format="json")
        assert solutions(read) == solutions(theirs)
        assert list(map(str, read.vars)) == list(map(str, theirs.vars))
        assert (len(ours) == 0) == (name in EMPTY)
    else:
        found = {tuple(map(canonical, triple)) for triple in ours.to_graph()}
        assert found == {tuple(map(canonical, triple)) for triple in theirs.graph}
        assert len(ours) == len(theirs.graph) > 0
