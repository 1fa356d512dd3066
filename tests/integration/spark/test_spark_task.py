"""One task: calls of uploaded samplers, and a worker that cannot record traces."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from galileo.cursor import Cursor
from galileo.errors import Unavailable
from galileo.match_batch import MatchBatch, MatchedPartitions, MatchResponse
from galileo.samplers import SamplerSpec
from galileo.spark import task
from galileo.spark.job import Job, JobLimits, NodeQuery, merge_rows, to_batches
from galileo.spark.node_scanner import NodeAnswer
from galileo.spark.sampler_calls import WAIT_S, BackgroundCalls
from galileo.tracing import TracingOptions

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
def job(make_group, make_labels, schema, free, monkeypatch):
    """A job of two datasets with an uploaded sampler for each item; its nodes have answered."""
    groups = tuple(
        replace(
            make_group("a", "b", sampler=spec.to_json()), schema_json=schema.to_json(), dataset=name
        )
        for spec, name in zip(SPECS, ("air", "sea"), strict=True)
    )
    items, labels = np.arange(2, dtype=np.uint32), make_labels(0, range(1, 3), rows=2)
    matches = MatchBatch.of(
        np.repeat(items, len(labels)), np.tile(np.arange(len(labels)), 2), labels.table
    )
    answer = MatchResponse((MatchedPartitions(items, Cursor({0: 2}), matches),))
    node_answers = [
        NodeAnswer(NodeQuery(number, np.array([0]), items), answer, "node:1") for number in (0, 1)
    ]

    class Nodes:
        def fetch(self, *_, **__):
            return node_answers

    class Cache:
        def load(self, *_, **__):
            return Sleeper(free)

    calls = BackgroundCalls()
    monkeypatch.setattr(task, "_scanner", lambda _: Nodes())
    monkeypatch.setattr(task, "_sampler_cache", lambda *_: Cache())
    monkeypatch.setattr(task, "_background_calls", lambda: calls)
    return Job(number=1, groups=groups, node_requests=(), tasks=1, limits=JobLimits(1.0, 1.0))


def answered_items(job):
    (batch,) = to_batches(task.run(job, 0))
    outcomes = merge_rows(batch, 2)
    assert not any(outcome.failures for outcome in outcomes)
    items = [b"".join(part.answered for part in outcome.parts) for outcome in outcomes]
    return [np.frombuffer(data, np.uint32).tolist() for data in items]


def test_run_waits_once_for_all_uploaded_samplers(job, free, monkeypatch):
    waits = []
    wait = BackgroundCalls.wait

    def recording_wait(self, calls, *, timeout_s=WAIT_S):
        calls = list(calls)
        waits.append(len(calls))
        wait(self, calls, timeout_s=60 if free.is_set() else 0.01)

    monkeypatch.setattr(BackgroundCalls, "wait", recording_wait)
    assert answered_items(job) == [[], []], "items that wait for a sampler keep their cursors"
    assert waits == [4], "once, for both items of both datasets"
    free.set()
    assert [sorted(items) for items in answered_items(job)] == [[0, 1], [0, 1]]
    assert waits == [4, 4]


def test_run_too_many_calls_start_with_another_in_each_job(job, free, monkeypatch):
    free.set()
    calls = BackgroundCalls(calls_max=2)
    monkeypatch.setattr(task, "_background_calls", lambda: calls)
    start, started = BackgroundCalls.start, []

    def recording_start(self, key, make):
        started.append(key)
        return start(self, key, make)

    monkeypatch.setattr(BackgroundCalls, "start", recording_start)
    for number in (0, 1):
        answered_items(replace(job, number=number))
    assert len(set(started)) == 4
    assert started[4:] == started[2:4] + started[:2]


def test_items_whose_installed_sampler_is_tried_again_keep_their_cursors(job, monkeypatch):
    def unreadable(*_, **__):
        raise Unavailable("the node of the observations is away")

    monkeypatch.setattr(task, "_sample", unreadable)
    spec = SamplerSpec("installed", {}, 1).to_json()
    groups = tuple(replace(group, samplers_json=(spec,)) for group in job.groups)
    assert answered_items(replace(job, groups=groups)) == [[], []]


@pytest.fixture
def untraceable(monkeypatch):
    """A worker that lacks OpenTelemetry."""
    monkeypatch.delitem(sys.modules, "galileo.tracing.recording", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    task._start_tracing.cache_clear()
    yield
    task._start_tracing.cache_clear()


@pytest.mark.usefixtures("untraceable")
def test_run_without_opentelemetry_warns_once(monkeypatch, caplog):
    class Nodes:
        def fetch(self, *_, **__):
            return []

    monkeypatch.setattr(task, "_scanner", lambda _: Nodes())
    limits = JobLimits(1.0, 1.0, tracing=TracingOptions("http://127.0.0.1:4317"))
    job = Job(number=1, groups=(), node_requests=(), tasks=1, limits=limits)
    for _ in range(3):
        assert list(task.run(job, 0)) == []
    (warning,) = caplog.records
    assert "records no traces" in warning.message
    assert "galileo-store[otel]" in warning.message


def test_uploaded_call_of_other_cursors_is_another_call(job, free):
    """Else the result of earlier cursors would be taken for that of later ones."""
    keys = []
    for sequence in (0, 0, 1):
        (group, _) = job.groups
        after = np.full_like(group.after, sequence)
        changed = replace(job, groups=(replace(group, after=after), job.groups[1]))
        (answer, _) = task._scanner(None).fetch()
        keys.append(
            task._uploaded_call(
                SPECS[0], None, answer=answer, item=0, job=changed, part=answer.answer.parts[0]
            ).key
        )
    assert keys[0] == keys[1] != keys[2]


def test_uploaded_call_delivers_no_label_that_retention_dropped_meanwhile(job, make_labels, schema):
    """The same range is named as gone."""
    labels = make_labels(0, range(1, 4), rows=2)
    (answer, _) = task._scanner(None).fetch()
    part = replace(answer.answer.parts[0], dropped=Cursor({0: 2}))
    call = task._uploaded_call(SPECS[0], lambda: labels, answer=answer, item=0, job=job, part=part)
    (result,) = task._run_calls([call], turn=0)
    assert result.part.matches.rows.column("sequence").unique().to_pylist() == [3]
