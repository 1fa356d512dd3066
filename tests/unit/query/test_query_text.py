"""Conditions as text: the text of a query parses to the same query."""

from __future__ import annotations

import cql2
import pytest

from galileo.query.cql_text import to_text

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
