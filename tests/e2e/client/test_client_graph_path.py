from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.client.graph_path import levels_of, parse_vertex, value_texts
from galileo.errors import InputError
from galileo.model.schema import Feature, Schema

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
