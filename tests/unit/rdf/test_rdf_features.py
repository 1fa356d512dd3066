"""Names of features in SPARQL that the dataset does not have."""

from __future__ import annotations

import warnings

import pytest

from galileo import rdf
from galileo.errors import GalileoWarning
from galileo.labels import LabelSet
from galileo.rdf import sparql_lexer


def test_sparql_unknown_feature_warns_with_nearest(weather: LabelSet) -> None:
    with rdf.open_labels(weather) as graph:
        with pytest.warns(GalileoWarning, match="did you mean f:temperature") as caught:
            answer = graph.sparql("SELECT ?t { ?p f:temprature ?t }")
        assert len(answer) == 0
        assert len(caught) == 1
        with pytest.warns(GalileoWarning, match="no indexed feature 'remark'"):
            graph.sparql("ASK { ?p f:remark ?t }")
        with warnings.catch_warnings(action="error"):
            graph.sparql("SELECT ?t { ?p f:temperature ?t ; f:level 2 }")


def test_incremental_graph_unknown_feature_warns(weather: LabelSet) -> None:
    with rdf.IncrementalGraph(weather.schema) as graph:
        graph.add(weather)
        with pytest.warns(GalileoWarning, match="f:sizze matches nothing"):
            graph.sparql("ASK { ?p f:sizze ?t }")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ASK { ?p f:a ?t ; f:b 2 ; f:a ?u }", ["a", "b"]),
        ("ASK { ?p ?q 'f:a' } # f:b", []),
        ("PREFIX f: <http://example.org/> ASK { ?p f:a ?t }", []),
        ("PREFIX f: <urn:galileo:feature:> ASK { ?p f:a ?t }", ["a"]),
        ("ASK { ?p g:geohash ?t }", []),
    ],
)
def test_names_of_prefix_gives_names_in_text(text: str, names: list[str]) -> None:
    assert sparql_lexer.names_of(text, prefix="f") == names
