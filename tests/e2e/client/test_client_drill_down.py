"""Drill-down over a real cluster: children in any order of levels, page by page, and walks."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.client.analytics_results import Vertex
from galileo.client.graph_path import levels_of, parse_vertex, value_texts
from galileo.errors import InputError
from galileo.model.schema import Feature, Schema

LEVELS = ["geohash", "datetime", "temperature", "count", "station", "wet"]


@given(
    order=st.none()
    | st.permutations(LEVELS).flatmap(lambda all_: st.integers(1, 6).map(lambda n: list(all_)[:n])),
    depth=st.integers(0, 5),
    pick=st.integers(0, 2999),
    limit=st.sampled_from([1, 3, 10_000]),
    as_text=st.booleans(),
)
@examples(80)
def test_children_equal_those_of_the_observations(
    client: galileo.Client,
    explored: Any,
    order: list[str] | None,
    depth: int,
    pick: int,
    limit: int,
    as_text: bool,
) -> None:
    """Below the vertex of some observation, in any order of levels, in pages of any size."""
    names = order or LEVELS
    rows = list(zip(*(explored.levels[name] for name in names), strict=True))
    depth = min(depth, len(names) - 1)
    prefix = rows[pick][:depth]
    wanted = Counter(row[depth] for row in rows if row[:depth] == prefix)

    vertex = "/".join(map(text_of, prefix)) if as_text and prefix != ("",) else prefix
    counts: dict[Any, int] = {}
    after, pages = None, 0
    while pages < 4:
        page = client.children(explored.name, vertex, order=order, limit=limit, after=after)
        assert page.complete
        assert page.level == names[depth]
        assert len(page) <= limit
        rows = page.to_arrow().to_pylist()
        assert not counts.keys() & {row["value"] for row in rows}
        counts |= {row["value"]: row["observations"] for row in rows}
        assert all(1 <= row["paths"] <= row["observations"] for row in rows)
        after, pages = page.last, pages + 1 if page.more else 4
    ascending = sorted(value for value in wanted if value is not None)
    inorder = ascending + [None] * (None in wanted)
    assert list(counts) == inorder[: len(counts)]
    assert all(wanted[value] == count for value, count in counts.items())
    assert page.more is (len(counts) < len(wanted))


def text_of(value: Any) -> str:
    if value is None:
        return "~"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value).replace("%", "%25").replace("/", "%2F").replace("~", "%7E")


def test_tree_visits_every_vertex_once(client: galileo.Client, explored: Any) -> None:
    walked = list(client.tree(explored.name, order=["wet", "station", "count"]))
    rows = list(zip(*(explored.levels[name] for name in ("wet", "station", "count")), strict=True))
    paths = {row[:depth] for row in rows for depth in (1, 2, 3)}
    assert len(walked) == len(paths)
    assert {vertex.path for vertex in walked} == paths
    assert [vertex.path for vertex in walked[:2]] == [(False,), (False, "")]
    assert sum(v.observations for v in walked if len(v.path) == 3) == len(rows)
    for vertex in walked[:8]:
        assert "/".join(map(text_of, vertex.path)) == vertex.text
    top = list(client.tree(explored.name, order=["wet", "station", "count"], depth=1))
    assert [vertex.value for vertex in top] == [False, True, None]
    below = list(client.tree(explored.name, "true/beta%2F2", order=["wet", "station", "count"]))
    assert below == [v for v in walked if v.path[:2] == (True, "beta/2") and len(v.path) == 3]


def test_tree_can_be_closed_early(client: galileo.Client, explored: Any) -> None:
    walk = client.tree(explored.name)
    first: Vertex = next(iter(walk))
    assert (first.level, len(first.path)) == ("geohash", 1)
    walk.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("vertex", "keywords", "details"),
    [
        (["9xj"], {}, {"level": "geohash"}),
        (["9x", "2014-03-01", "warm"], {}, {"level": "temperature", "expected": "float"}),
        ("", {"order": ["note"]}, {"parameter": "order"}),
        ("", {"order": "geohash"}, {"parameter": "order"}),
        ("1", {"order": ["note", "count"]}, {"level": "note"}),
        ("", {"after": 3.5}, {"expected": "string"}),
        ([object()], {}, {}),
        (["9x", "2014-03-01", 1.0, 1, "a", True], {}, {"bound": 5}),
    ],
)
def test_children_of_an_invalid_vertex_or_level_are_refused(
    client: galileo.Client,
    explored: Any,
    vertex: Any,
    keywords: dict[str, Any],
    details: dict[str, Any],
) -> None:
    with raises(InputError, **details):
        client.children(explored.name, vertex, **keywords)


def test_tree_of_depth_zero_is_refused(client: galileo.Client, explored: Any) -> None:
    with raises(InputError, parameter="depth"):
        list(client.tree(explored.name, depth=0))


# --- client graph path ---------------------------------------------------------------------------


SCHEMA = Schema(
    "obs",
    [
        Feature("t"),
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("wet", type="bool"),
        Feature("note", type="text", indexed=False),
    ],
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "t": st.none() | st.floats(allow_nan=False),
    "count": st.none() | st.integers(-(2**63), 2**63 - 1),
    "station": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    "wet": st.none() | st.booleans(),
}


@given(
    st.permutations(list(VALUES)).flatmap(
        lambda order: st.tuples(st.just(order), st.tuples(*(VALUES[level] for level in order)))
    )
)
def test_parse_vertex_inverts_value_texts(made: tuple[list[str], tuple[Any, ...]]) -> None:
    order, path = made
    texts = [
        value_texts(pa.array([value], SCHEMA.feature(level).arrow_type), SCHEMA, level=level)
        for level, value in zip(order, path, strict=True)
    ]
    vertex = "/".join(text[0].as_py() for text in texts)
    assert parse_vertex(vertex, SCHEMA, order=order) == path


def test_parse_vertex_of_root_and_levels() -> None:
    assert levels_of(SCHEMA) == ("geohash", "datetime", "t", "count", "station", "wet")
    assert parse_vertex("", SCHEMA, order=levels_of(SCHEMA)) == ()
    vertex = "9xjqb/2012-03-01T06:00:00Z/~/7"
    assert parse_vertex(vertex, SCHEMA, order=levels_of(SCHEMA)) == (
        *("9xjqb", "2012-03-01T06:00:00Z"),
        *(None, 7),
    )


@pytest.mark.parametrize(
    ("vertex", "order", "details"),
    [
        ("1/2", ["t"], {"bound": 1}),
        ("warm", ["t"], {"expected": "float"}),
        ("1.5", ["count"], {"expected": "int"}),
        ("yes", ["wet"], {"expected": "bool"}),
        ("a", ["note"], {"level": "note"}),
    ],
)
def test_parse_vertex_of_an_invalid_text_is_refused(
    vertex: str, order: list[str], details: dict[str, Any]
) -> None:
    with raises(InputError, **details):
        parse_vertex(vertex, SCHEMA, order=order)
