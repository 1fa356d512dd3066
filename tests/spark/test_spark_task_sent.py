"""What a task does about sent samplers of all its nodes and datasets together."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from galileo.cursor import Cursor
from galileo.matches import Answered, MatchAnswer, Matches
from galileo.samplers import SamplerSpec
from galileo.spark import task
from galileo.spark.beside import PATIENCE_S, Beside
from galileo.spark.scans import Delta
from galileo.spark.tick import Ask, Tick, TickLimits, outcomes_of, packed

SPECS = [SamplerSpec("sent", {}, 1, archive=f"{number:064}") for number in range(2)]


class Sleeper:
    """A sampler that keeps everything, as soon as it may."""

    scope = "commit"

    def __init__(self, free):
        self.free = free

    def sample(self, labels, *, seed):
        assert self.free.wait(60)
        return np.ones(len(labels), dtype=bool)


@pytest.fixture
def free():
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def tick(make_group, make_labels, schema, free, monkeypatch):
    """A tick of two datasets, whose nodes have answered, with a sent sampler for each item."""
    groups = tuple(
        replace(
            make_group("a", "b", sampler=spec.to_json()), schema_json=schema.to_json(), dataset=name
        )
        for spec, name in zip(SPECS, ("air", "sea"), strict=True)
    )
    items, labels = np.arange(2, dtype=np.uint32), make_labels(0, range(1, 3), rows=2)
    matches = Matches.of(
        np.repeat(items, len(labels)), np.tile(np.arange(len(labels)), 2), labels.table
    )
    answer = MatchAnswer((Answered(items, Cursor({0: 2}), matches),))
    deltas = [Delta(Ask(number, np.array([0]), items), answer, "node:1") for number in (0, 1)]

    class Nodes:
        def fetch(self, *_, **__):
            return deltas

    class Sent:
        def load(self, *_, **__):
            return Sleeper(free)

    beside_this = Beside()
    monkeypatch.setattr(task, "_scanner", lambda _: Nodes())
    monkeypatch.setattr(task, "_sent", lambda *_: Sent())
    monkeypatch.setattr(task, "_beside", lambda: beside_this)
    return Tick(number=1, groups=groups, shares=(), tasks=1, limits=TickLimits(1.0, 1.0))


def answered(tick):
    (batch,) = packed(task.run(tick, 0))
    outcomes = outcomes_of(batch, 2)
    assert not any(outcome.failures for outcome in outcomes)
    items = [
        b"".join(part.answered for part in outcome.parts if part.items) for outcome in outcomes
    ]
    return [np.frombuffer(one, np.uint32).tolist() for one in items]


def test_a_task_waits_once_for_all_that_was_sent(tick, free, monkeypatch):
    waits = []
    settle = Beside.settle

    def settled(self, calls, *, patience_s=PATIENCE_S):
        calls = list(calls)
        waits.append(len(calls))
        settle(self, calls, patience_s=60 if free.is_set() else 0.01)

    monkeypatch.setattr(Beside, "settle", settled)
    assert answered(tick) == [[], []], "who waits for a sampler stays where it is"
    assert waits == [4], "once, for both items of both datasets"
    free.set()
    assert [sorted(items) for items in answered(tick)] == [[0, 1], [0, 1]]
    assert waits == [4, 4]


def test_others_are_the_first_with_each_turn(tick, free, monkeypatch):
    free.set()
    monkeypatch.setattr(task, "CALLS_MAX", 2)
    begin, begun = Beside.begin, []

    def noted(self, key, make):
        begun.append(key)
        return begin(self, key, make)

    monkeypatch.setattr(Beside, "begin", noted)
    for number in (0, 1):
        answered(replace(tick, number=number))
    assert len(set(begun)) == 4
    assert begun[4:] == begun[2:4] + begun[:2]
