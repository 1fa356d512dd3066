"""The parts of the evaluation: how each is measured, and how it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.sizes import Bench

from evaluation.page import further, paper
from evaluation.page.section import Section
from evaluation.parts import (
    failures,
    history,
    intervals,
    label_sizes,
    node_memory,
    retrieval,
    scaling,
    streamed,
)
from evaluation.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Part:
    """One part.

    Attributes:
        name: as `--only` takes it.
        title: its heading on the page.
        kind: class of its result.
        measure: takes it.
        tell: what is said of a result.
        about_s: how long it takes on two quiet cores, in seconds; shown, nothing depends on it.
    """

    name: str
    title: str
    kind: type[Any]
    measure: Callable[[Sizes, Bench], Any]
    tell: Callable[[Any], Section]
    about_s: int


PARTS = (
    Part(
        "retrieval",
        "Fig. 6: retrieval time by the number of results",
        retrieval.Retrieval,
        retrieval.measure,
        paper.tell_retrieval,
        60,
    ),
    Part(
        "labels",
        "Table I: size of a label",
        label_sizes.AllSizes,
        label_sizes.measure,
        paper.tell_labels,
        20,
    ),
    Part(
        "memory",
        "Fig. 7: memory of the nodes with ten continuous queries",
        node_memory.ClusterMemory,
        node_memory.measure,
        paper.tell_memory,
        100,
    ),
    Part(
        "streaming",
        "Table II: retrievals while blocks stream in",
        streamed.Streaming,
        streamed.measure,
        paper.tell_streaming,
        150,
    ),
    Part(
        "scaling",
        "From one node to eight",
        scaling.Scaling,
        scaling.measure,
        further.tell_scaling,
        120,
    ),
    Part(
        "freshness",
        "How old results are, by the update interval",
        intervals.Freshness,
        intervals.measure,
        further.tell_freshness,
        140,
    ),
    Part(
        "failover",
        "When a coordinator is killed",
        failures.Failover,
        failures.measure,
        further.tell_failover,
        90,
    ),
    Part(
        "history",
        "Cost against the size of the store",
        history.History,
        history.measure,
        further.tell_history,
        180,
    ),
)
