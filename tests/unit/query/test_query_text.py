"""Conditions as text: the text of a query parses to the same query."""

from __future__ import annotations

import cql2
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import QuerySyntaxError
from galileo.query.cql_syntax import read
from galileo.query.cql_text import quoted, to_text
from galileo.query.feature_predicates import like_parts
from galileo.query.template import Template

TEXTS = [
    "temperature > 303 AND (humidity < 35 OR NOT wet = true)",
    "temperature * 2 + 1 > 3",
    "-(a - 2) % 3 > 1",
    "(a + 1) * (b - 2) / 3 = 4",
    "T_DURING(datetime, INTERVAL('2012-01-01T00:00:00Z', '2012-01-02T00:00:00Z'))",
    "T_AFTER(datetime, INTERVAL('..', '2012-01-02'))",
    "datetime > TIMESTAMP('2012-01-01T00:00:00Z') OR datetime = DATE('2012-01-01')",
    "CASEI(station) = CASEI('it''s') AND station LIKE 'K%' AND a IN (1, 2)",
    "S_INTERSECTS(geometry, BBOX(1, 2, 3, 4)) AND a BETWEEN 1 AND 2 AND b IS NULL",
    "S_WITHIN(geometry, POLYGON((0 0, 1 0, 1 1, 0 0)))",
]


@pytest.mark.parametrize("text", TEXTS)
def test_to_text_any_query_round_trips(text: str) -> None:
    tree = cql2.parse_text(text).to_json()
    assert cql2.parse_text(to_text(tree)).to_json() == tree


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"'it\'s'", "it's"),
        (r"'it''s'", "it's"),
        (r"'\a\b\t\n\v\f\r'", "\a\b\t\n\v\f\r"),
        (r"'C:\\new'", r"C:\new"),
        (r"'\\'", "\\"),
        (r"'\\''\''", r"\''"),
        (r"'100\%'", r"100\%"),
        ("'_x _'", "_x _"),
    ],
)
def test_read_escapes_in_texts_stand_for_characters(literal: str, value: str) -> None:
    tree = read(f"s = {literal} AND CASEI(s) IN ('a', CASEI({literal})) AND n > 1")
    first, second, third = tree["args"]
    assert first["args"][1] == value
    assert second["args"][1] == ["a", {"op": "casei", "args": [value]}]
    assert third["args"] == [{"property": "n"}, 1]


def test_read_escapes_of_like_stay_in_its_pattern() -> None:
    (_, casei) = read(r"CASEI(s) LIKE CASEI('it\'s\n 100\% \_ \\ \x')")["args"]
    assert casei["args"] == ["it's\n 100\\% \\_ \\\\ \\x"]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (r"s = 'a\'b' AND s = 'C:\dir'", 22),
        (r"s = 'a\'", 6),
        (r"s = 'a\\b' OR s = 'a\'", 20),
        (r"s = 'a\'b' AND _x !", 18),
        (r"_x = 'a\'b' ! _y", 12),
        ("s = '\uffff'", 5),
    ],
)
def test_read_error_beside_escapes_has_position(text: str, position: int) -> None:
    with raises(QuerySyntaxError, position=position) as caught:
        read(text)
    line, caret = caught.value.message.splitlines()[-2:]
    assert "\uffff" in text or line == f"  {text}"
    assert caret.index("^") == position + 2


def test_read_names_begin_with_an_underscore() -> None:
    tree = read("""_x = 1 AND __y._z IN ('_a') AND "_q" IS NULL AND S_INTERSECTS(_g, POINT(1 2))""")
    names = [part["args"][0]["property"] for part in tree["args"]]
    assert names == ["_x", "__y._z", "_q", "_g"]


def test_template_parameters_within_escaped_texts_are_text() -> None:
    assert Template(r"s = 'a\' :no' AND s = :_yes AND n = :x").parameters == ("_yes", "x")


texts = st.text(st.sampled_from(list("ab'\\\"%_\n:(,é")), max_size=8)


@given(texts)
def test_quoted_text_is_read_as_it_was(text: str) -> None:
    assert read(f"s = {quoted(text)} AND n = 1")["args"][0]["args"][1] == text


@given(texts)
def test_to_text_of_a_pattern_matches_the_same(pattern: str) -> None:
    try:
        parts = like_parts(pattern)
    except ValueError:
        return
    tree = {"op": "like", "args": [{"property": "s"}, {"op": "casei", "args": [pattern]}]}
    again = read(to_text(tree))
    assert like_parts(again["args"][1]["args"][0]) == parts
