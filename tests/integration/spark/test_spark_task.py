"""One task: calls of uploaded samplers, and a worker that cannot record traces."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from galileo.cursor import Cursor
from galileo.cycle import MatchBatch, MatchedPartitions, Matches
from galileo.errors import Unavailable
from galileo.samplers import SamplerSpec
from galileo.spark import sampling, task
from galileo.spark.options import EvaluatorOptions
from galileo.spark.task import Job
from galileo.spark.uploaded_samplers import WAIT_S, BackgroundCalls
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
def job(make_group, make_labels, free, monkeypatch):
    """A job of two datasets with an uploaded sampler for each item; its nodes have answered."""
    requests = tuple(
        replace(make_group("a", "b", sampler=spec.to_json()), dataset=name)
        for spec, name in zip(SPECS, ("air", "sea"), strict=True)
    )
    items, labels = np.arange(2, dtype=np.uint32), make_labels(0, range(1, 3), rows=2)
    matches = MatchBatch.of(
        np.repeat(items, len(labels)), np.tile(np.arange(len(labels)), 2), labels.table
    )
    answer = Matches((MatchedPartitions(items, Cursor({0: 2}), matches),))

    class Nodes:
        def fetch(self, requests=("one",), **_):
            return [answer for _ in requests]

    class Cache:
        def load(self, *_, **__):
            return Sleeper(free)

    calls = BackgroundCalls()
    monkeypatch.setattr(task, "_scanner", lambda _: Nodes())
    monkeypatch.setattr(sampling, "_sampler_cache", lambda *_: Cache())
    monkeypatch.setattr(sampling, "_background_calls", lambda: calls)
    return Job(number=1, requests=requests, tasks=1, options=EvaluatorOptions(Path()))


def answered_items(job):
    numbers, answers = zip(*task.run(job, 0), strict=True)
    assert numbers == (0, 1)
    assert not any(answer.failures for answer in answers)
    return [[item for part in answer.parts for item in part.items.tolist()] for answer in answers]


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
    monkeypatch.setattr(sampling, "_background_calls", lambda: calls)
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

    monkeypatch.setattr(sampling, "_sample", unreadable)
    spec = SamplerSpec("installed", {}, 1).to_json()
    requests = tuple(replace(one, samplers_json=(spec,)) for one in job.requests)
    assert answered_items(replace(job, requests=requests)) == [[], []]


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
    options = EvaluatorOptions(Path(), tracing=TracingOptions("http://127.0.0.1:4317"))
    job = Job(number=1, requests=(), tasks=1, options=options)
    for _ in range(3):
        assert list(task.run(job, 0)) == []
    (warning,) = caplog.records
    assert "records no traces" in warning.message
    assert "galileo-store[otel]" in warning.message


def test_uploaded_call_of_other_cursors_is_another_call(job, free):
    """Else the result of earlier cursors would be taken for that of later ones."""
    keys = []
    for sequence in (0, 0, 1):
        request = job.requests[0]
        changed = replace(request, after=np.full_like(request.after, sequence))
        (scan,) = Job(1, (changed,), 1, job.options).of_task(0)
        (part,) = task._scanner(None).fetch()[0].parts
        keys.append(sampling._uploaded_call(SPECS[0], None, scan=scan, item=0, part=part).key)
    assert keys[0] == keys[1] != keys[2]


def test_uploaded_call_delivers_no_label_that_retention_dropped_meanwhile(job, make_labels):
    """The same range is named as gone."""
    labels = make_labels(0, range(1, 4), rows=2)
    scan = job.of_task(0)[0]
    (part,) = task._scanner(None).fetch()[0].parts
    part = replace(part, dropped=Cursor({0: 2}))
    call = sampling._uploaded_call(SPECS[0], lambda: labels, scan=scan, item=0, part=part)
    sampling.finish_calls([call], turn=0)
    (result,) = scan.parts
    assert result.matches.rows.column("sequence").unique().to_pylist() == [3]


def test_run_packs_labels_in_commit_order_as_each_item_asks(job, free):
    """One pack for all items of a compression; several nodes' labels are in it together."""
    free.set()
    request = replace(job.requests[0], is_compressed=np.array([False, True]), samplers_json=())
    plain = replace(request, samplers=np.zeros(2, dtype=np.uint32))
    answers = dict(task.run(replace(job, requests=(plain, job.requests[1])), 0))
    packs = answers[0].packs
    assert len(packs.data) == 2, "one for each compression"
    for labels in packs.labels(plain.schema).values():
        own = labels.labels()
        assert own.sequences.tolist() == [1, 1, 2, 2]
        assert own.rows.tolist() == [0, 1, 0, 1]
    shared = answers[1].packs
    assert (len(shared.data), shared.items.tolist()) == (1, [0, 1])


def test_run_commit_above_the_bound_fails_its_item_alone(job, free, monkeypatch):
    free.set()
    monkeypatch.setattr(task, "RESULT_BYTES_MAX", 60)
    request = replace(job.requests[0], samplers=np.zeros(2, dtype=np.uint32))
    ((_, answer),) = task.run(replace(job, requests=(request,)), 0)
    kinds = {failure.error.kind for failure in answer.failures}
    failed = [item for failure in answer.failures for item in failure.items.tolist()]
    assert (kinds, sorted(failed)) == ({"message_too_large"}, [0, 1])
    assert len(answer.packs.items) == 0
