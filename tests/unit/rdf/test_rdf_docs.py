"""What docs/rdf.md shows must run and find something."""

import re
from pathlib import Path

import pytest

from galileo import rdf

TEXT = (Path(__file__).parents[3] / "docs" / "rdf.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_rdf_page_code_runs(code, weather, capsys):
    exec(compile(code, "docs/rdf.md", "exec"), {"labels": weather, "rdf": rdf})
    assert "urn:galileo:vertex:nam/" in capsys.readouterr().out


@pytest.mark.parametrize("query", blocks("sparql"))
def test_rdf_page_queries_have_results(query, weather):
    assert len(rdf.sparql(weather, query)) > 0


def test_rdf_page_names_every_term_of_graph(weather):
    graph = rdf.to_graph(weather)
    names = {str(p) for p in graph.predicates()} | {str(o) for o in graph.objects()}
    own = {name.removeprefix(rdf.NS) for name in names if name.startswith(rdf.NS)}
    assert len(own) > 20
    assert {name for name in own if f"`g:{name}`" not in TEXT} == set()


def test_rdf_page_names_every_prefix():
    assert {prefix for prefix in rdf.PREFIXES if f"`{prefix}:`" not in TEXT} == set()
