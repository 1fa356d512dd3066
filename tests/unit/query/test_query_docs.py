"""Every example on the page about queries is a query."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from galileo.geo import regions
from galileo.model.schema import Feature, Schema
from galileo.query import binding, cql_syntax, expressions, parse

PAGE = (Path(__file__).parents[3] / "docs" / "queries.md").read_text()
EXAMPLES = re.findall(r"^ *```(?:cql2|json)\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
SCHEMA = Schema(
    "nam",
    [
        Feature("temperature", "K"),
        Feature("humidity", "%"),
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("raining", type="bool"),
    ],
)


def test_query_page_has_examples():
    assert len(EXAMPLES) == PAGE.count("```") // 2 > 15


@pytest.mark.parametrize("example", EXAMPLES)
def test_query_page_example_parses(example):
    query = parse(textwrap.dedent(example), SCHEMA)
    assert not query.everything
    assert parse(query.to_json(), SCHEMA) == query


@pytest.mark.parametrize(
    "limit",
    [
        f"{cql_syntax.TEXT_MAX:,} characters",
        f"{cql_syntax.NESTING_MAX} levels of nesting",
        f"{cql_syntax.OPERATORS_MAX:,} `AND`s and `OR`s",
        f"{binding.LIST_MAX:,}\nvalues in an `IN`",
        f"{binding.PATTERN_MAX:,} characters in a `LIKE`",
        f"{regions.VERTICES_MAX:,} vertices",
        f"{expressions.OPERATIONS_MAX} operations",
    ],
)
def test_query_page_limits_equal_code(limit):
    assert limit in PAGE
