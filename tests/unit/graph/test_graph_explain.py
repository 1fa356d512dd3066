from __future__ import annotations

import json

import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph.explain import COMMITS
from galileo.graph.metadata_graph import MetadataGraph
from galileo.query.query import parse


def _graph(world, commits, *, size=50):
    graph = MetadataGraph(world.schema, memtable_paths_max=100, block_paths=10)
    for sequence in range(1, commits + 1):
        graph.insert(world.batch(sequence, size), partition=0, sequence=sequence)
    return graph


@given(commits=st.integers(0, 9), text=st.integers(0, 20), after=st.integers(0, 9))
@examples(80)
def test_explain_random_history_equals_scan(world, query_texts, commits, text, after):
    graph, query = _graph(world, commits), parse(query_texts[text], world.schema)
    cursor = Cursor({0: after})
    explanation = graph.explain(query, after=cursor)
    assert explanation.found == graph.scan(query, after=cursor).num_rows
    assert explanation.paths == graph.count() == 50 * commits
    assert explanation.runs == graph.runs + commits % 2
    assert explanation.runs_pruned == sum(last <= after for last in _last_of_each(commits))
    assert explanation.found <= explanation.paths_examined <= explanation.paths
    assert explanation.zones_scanned <= explanation.zones <= -(-explanation.paths // 10)
    assert min(explanation.plan_s, explanation.sift_s, explanation.gather_s) >= 0
    for step in explanation.steps:
        assert 0 <= step.passed <= step.tested <= explanation.paths_examined
        assert step.condition == COMMITS or parse(json.loads(step.condition), world.schema)


def _last_of_each(commits):
    """The last sequence of each run and of the head, which take two commits each."""
    return [min(first + 1, commits) for first in range(1, commits + 1, 2)]


def test_explain_pruned_runs_are_not_examined(world):
    graph = _graph(world, 8)
    explanation = graph.explain(parse("temperature > 400", world.schema))
    assert (explanation.runs, explanation.runs_pruned, explanation.zones) == (4, 0, 40)
    assert (explanation.zones_scanned, explanation.paths_examined, explanation.steps) == (0, 0, ())
    explanation = graph.explain(parse("", world.schema), after=Cursor({0: 6}))
    assert (explanation.runs_pruned, explanation.zones, explanation.found) == (3, 10, 100)


def test_explain_cells_are_searched_before_other_tests(world):
    graph = _graph(world, 8)
    explanation = graph.explain(parse("geohash LIKE '9xj%' AND gusts = 3", world.schema))
    assert 0 < explanation.cells_tested <= explanation.paths_examined < explanation.paths
    assert graph.explain(parse("gusts = 3", world.schema)).cells_tested == 0


@pytest.mark.parametrize(("after", "named"), [(EMPTY_CURSOR, False), (Cursor({0: 3}), True)])
def test_explain_cursor_within_run_has_commit_step(world, after, named):
    explanation = _graph(world, 8).explain(parse("gusts >= 0", world.schema), after=after)
    assert (COMMITS in {step.condition for step in explanation.steps}) == named
