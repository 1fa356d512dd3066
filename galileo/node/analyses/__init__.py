"""Answers to the questions of `galileo.query.questions`: one module for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from galileo.node.analyses.aggregate import AggregateAnalysis
from galileo.node.analyses.analysis import Analysis
from galileo.node.analyses.children import ChildrenAnalysis
from galileo.node.analyses.describe import DescribeAnalysis
from galileo.node.analyses.explain import ExplainAnalysis
from galileo.node.analyses.latest import LatestAnalysis
from galileo.node.analyses.nearest import NearestAnalysis
from galileo.node.analyses.summarise import SummariseAnalysis
from galileo.node.analyses.version import VersionAnalysis
from galileo.query import Query, questions
from galileo.query.questions import Question

ANALYSES: Mapping[type[Question], type[Analysis[Any]]] = MappingProxyType(
    {
        questions.Aggregate: AggregateAnalysis,
        questions.ListChildren: ChildrenAnalysis,
        questions.Describe: DescribeAnalysis,
        questions.Explain: ExplainAnalysis,
        questions.Latest: LatestAnalysis,
        questions.FindNearest: NearestAnalysis,
        questions.Summarise: SummariseAnalysis,
        questions.Version: VersionAnalysis,
    }
)
"""How each question is answered."""


def analysis_of(question: Question, query: Query) -> Analysis[Any]:
    """The analysis that answers a question about what matches a query.

    Raises:
        InputError: the dataset has no answer to it.
    """
    return ANALYSES[type(question)](question, query)
