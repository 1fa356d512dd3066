"""What docs/rdf.md shows must run and find something."""

import re
from pathlib import Path

import pytest

from galileo import rdf

TEXT = (Path(__file__).parents[3] / "docs" / "rdf.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_the_code_runs(code, weather, capsys):
    exec(compile(code, "docs/rdf.md", "exec"), {"labels": weather, "rdf": rdf})
    assert "urn:galileo:vertex:nam/" in capsys.readouterr().out


@pytest.mark.parametrize("query", blocks("sparql"))
def test_the_questions_have_answers(query, weather):
    assert len(rdf.sparql(weather, query)) > 0


def test_every_name_in_the_graph_is_documented(weather):
    graph = rdf.to_graph(weather)
    names = {str(p) for p in graph.predicates()} | {str(o) for o in graph.objects()}
    own = {name.removeprefix(rdf.NS) for name in names if name.startswith(rdf.NS)}
    assert len(own) > 20
    assert {name for name in own if f"`g:{name}`" not in TEXT} == set()


def test_every_prefix_is_documented():
    assert {prefix for prefix in rdf.PREFIXES if f"`{prefix}:`" not in TEXT} == set()
