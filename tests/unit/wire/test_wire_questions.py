"""Questions as messages of the analytics service."""

from __future__ import annotations

import math

import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.model.grouping import KEYS_MAX, CellKey, FeatureKey, Grouping, WindowKey
from galileo.node.analyses import ANALYSES
from galileo.query import questions
from galileo.wire.questions import question_from_pb, question_to_pb
from galileo.wire.v1 import analytics_pb2

QUESTIONS = [
    questions.Aggregate(Grouping(())),
    questions.Aggregate(
        Grouping((CellKey(10), WindowKey(7), FeatureKey("n")), (("t", ("mean", "max")), ("n", ())))
    ),
    questions.Latest(CellKey(25)),
    questions.Latest(FeatureKey("station")),
    questions.FindNearest(1.5, -7.0, 3, None),
    questions.FindNearest(1.5, -7.0, 3, 0.0),
    questions.FindNearest(1.5, -7.0, 3, math.inf),
    questions.Summarise("t"),
    questions.Summarise("t", bins=0),
    questions.Summarise("t", edges=()),
    questions.Summarise("t", edges=(0.0, 1.5)),
    questions.Describe(),
    questions.ListChildren(),
    questions.ListChildren("[1]", ("geohash", "t"), 7, "[null]"),
    questions.Explain(),
    questions.Version(),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=repr)
def test_question_is_received_as_it_was_sent(question: questions.Question) -> None:
    sent = question_to_pb(question).SerializeToString()
    assert question_from_pb(analytics_pb2.AnalyseRequest.FromString(sent)) == question


def test_every_question_of_the_protocol_has_an_analysis() -> None:
    [kinds] = analytics_pb2.AnalyseRequest.DESCRIPTOR.oneofs
    assert {kind.__name__ for kind in ANALYSES} == {f.message_type.name for f in kinds.fields}
    assert {type(question) for question in QUESTIONS} == set(ANALYSES)


def test_request_without_a_question_is_refused() -> None:
    with raises(InputError, parameter="question"):
        question_from_pb(analytics_pb2.AnalyseRequest(dataset="nam"))


def test_grouping_of_too_many_keys_is_refused_before_they_are_read() -> None:
    empty = analytics_pb2.GroupKey()  # Reading it raises another error.
    aggregate = analytics_pb2.Aggregate(by=[empty] * (KEYS_MAX + 1))
    with raises(InputError, parameter="by", bound=KEYS_MAX):
        question_from_pb(analytics_pb2.AnalyseRequest(aggregate=aggregate))
