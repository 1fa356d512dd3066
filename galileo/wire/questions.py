"""Codec of questions to the analytics service.

A question has the name of its message. One with the same fields as its message needs no code here.
"""

from __future__ import annotations

from typing import Any

from galileo.errors import InputError
from galileo.model.grouping import CellKey, FeatureKey, Grouping, Key, WindowKey, check_counts
from galileo.query import questions
from galileo.query.questions import Question
from galileo.wire.alike import alike
from galileo.wire.v1 import analytics_pb2


def question_to_pb(question: Question) -> analytics_pb2.AnalyseRequest:
    """A request with a question, without what it is about."""
    match question:
        case questions.Aggregate(grouping):
            message: Any = grouping_to_pb(grouping)
        case questions.Latest(key):
            message = analytics_pb2.Latest(by=key_to_pb(key))
        case questions.Summarise(feature, bins, edges):
            message = analytics_pb2.Summarise(feature=feature, bins=bins)
            if edges is not None:
                message.edges.CopyFrom(analytics_pb2.Edges(edges=edges))
        case _:
            message = alike(getattr(analytics_pb2, type(question).__name__), question)
    [field] = [one for one in _QUESTION.fields if one.message_type is message.DESCRIPTOR]
    return analytics_pb2.AnalyseRequest(**{field.name: message})


def question_from_pb(request: analytics_pb2.AnalyseRequest) -> Question:
    """The question of a request.

    Raises:
        InputError: it has none, or one with a key that is none.
    """
    kind = request.WhichOneof("question")
    if kind is None:
        raise InputError("expected a question, got none", parameter="question")
    message = getattr(request, kind)
    match message:
        case analytics_pb2.Aggregate():
            return questions.Aggregate(grouping_from_pb(message))
        case analytics_pb2.Latest():
            return _latest(message)
        case analytics_pb2.FindNearest():
            return _nearest(message)
        case analytics_pb2.Summarise():
            return _summarise(message)
        case _:
            question: Question = alike(getattr(questions, type(message).__name__), message)
            return question


def grouping_to_pb(grouping: Grouping) -> analytics_pb2.Aggregate:
    return analytics_pb2.Aggregate(
        by=[key_to_pb(key) for key in grouping.keys],
        statistics=[
            analytics_pb2.GroupStatistics(feature=name, statistics=statistics)
            for name, statistics in grouping.statistics
        ],
    )


def grouping_from_pb(message: analytics_pb2.Aggregate) -> Grouping:
    """The grouping of a message; `Grouping.check` says whether a dataset has it.

    Raises:
        InputError: a key is empty, a feature is named twice, or there are too many.
    """
    count = sum(len(one.statistics) for one in message.statistics)
    check_counts(keys=len(message.by), features=len(message.statistics), statistics=count)
    named = [one.feature for one in message.statistics]
    if len(set(named)) < len(named):
        raise InputError(
            f"expected statistics of each feature once, got those of {', '.join(named)}",
            parameter="statistics",
        )
    return Grouping(
        tuple(key_from_pb(key) for key in message.by),
        tuple((one.feature, tuple(one.statistics)) for one in message.statistics),
    )


def key_to_pb(key: Key) -> analytics_pb2.GroupKey:
    if isinstance(key, CellKey):
        return analytics_pb2.GroupKey(cell_bits=key.bits)
    if isinstance(key, WindowKey):
        if key.months:
            return analytics_pb2.GroupKey(window_months=key.months)
        return analytics_pb2.GroupKey(window_us=key.width_us)
    return analytics_pb2.GroupKey(feature=key.name)


def key_from_pb(key: analytics_pb2.GroupKey) -> Key:
    match key.WhichOneof("key"):
        case "cell_bits":
            return CellKey(key.cell_bits)
        case "window_us":
            return WindowKey(key.window_us)
        case "window_months":
            return WindowKey(months=key.window_months)
        case "feature":
            return FeatureKey(key.feature)
    raise InputError("expected a cell, a window or a feature as key, got none", parameter="by")


def _latest(message: analytics_pb2.Latest) -> questions.Latest:
    key = key_from_pb(message.by)
    if isinstance(key, WindowKey):
        raise InputError("expected a cell or a feature, got a window", parameter="by")
    return questions.Latest(key)


def _nearest(message: analytics_pb2.FindNearest) -> questions.FindNearest:
    within_m = message.within_m if message.HasField("within_m") else None
    return alike(questions.FindNearest, message, within_m=within_m)


def _summarise(message: analytics_pb2.Summarise) -> questions.Summarise:
    return questions.Summarise(
        message.feature,
        message.bins if message.HasField("bins") else None,
        tuple(message.edges.edges) if message.HasField("edges") else None,
    )


_QUESTION = analytics_pb2.AnalyseRequest.DESCRIPTOR.oneofs_by_name["question"]
