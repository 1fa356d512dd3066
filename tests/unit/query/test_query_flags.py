"""Conditions that name the flags of an int feature by their meanings."""

from __future__ import annotations

import pytest
from expected_errors import raises

from galileo.errors import UnknownFlag, UnsupportedQuery
from galileo.model.schema import Feature, Schema
from galileo.query.query import parse
from galileo.query.subscriptions.parameter_query import ParameterQuery

FLAGS = {1: "good", 2: "probably_good", 4: "bad"}
BUOYS = Schema("buoys", [Feature("qc", type="int", flags=FLAGS), Feature("n", type="int")])


@pytest.mark.parametrize(
    ("named", "numbered"),
    [
        ("qc = 'good'", "qc = 1"),
        ("'bad' = qc", "4 = qc"),
        ("qc <> 'bad'", "qc <> 4"),
        ("NOT qc = 'bad'", "qc <> 4"),
        ("qc IN ('good', 'probably_good')", "qc IN (1, 2)"),
        ("qc NOT IN ('bad', 9)", "qc NOT IN (4, 9)"),
    ],
)
def test_meanings_stand_for_the_values_of_flags(named: str, numbered: str) -> None:
    assert parse(named, BUOYS).to_json() == parse(numbered, BUOYS).to_json()


def test_unknown_meaning_is_refused_with_those_that_there_are() -> None:
    with raises(UnknownFlag, nearest="good", property="qc", meanings=[*FLAGS.values()]):
        parse("qc = 'god'", BUOYS)
    with raises(UnknownFlag, nearest=None):
        parse("qc IN ('good', 'zzz')", BUOYS)


def test_features_without_flags_are_compared_with_numbers_alone() -> None:
    with raises(UnsupportedQuery):
        parse("n = 'good'", BUOYS)


def test_templates_of_channels_name_flags() -> None:
    template = ParameterQuery("qc = 'good' AND n > :least", BUOYS)
    assert template.parameters == (("least", "float"),)
    assert template.bind({"least": 3}).to_json() == parse("qc = 1 AND n > 3", BUOYS).to_json()
