"""Jobs that fail, on an engine that runs in a thread and answers at once.

What Spark itself does with such jobs is in `test_spark_evaluator.py`.
"""

from __future__ import annotations

import pytest

from galileo.errors import Cancelled, InternalError, SamplerFailed
from galileo.spark.jobs import EngineLost, Run
from galileo.spark.tick import NOTHING, Outcome, Work

POISON = "poison"


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("cut", [0, 3, 7])
def test_the_item_that_kills_its_job_fails_alone(engine, jobs, make_group, echoed, place, cut):
    queries = [f"q{n}" for n in range(7)]
    queries[place] = POISON
    groups = (make_group(*queries[:cut]), make_group(), make_group(*queries[cut:]))
    found = jobs.evaluate(Run(Work(groups), "t"))
    (failure,) = [failure for outcome in found for failure in outcome.failures]
    assert failure.error.kind == InternalError.kind
    assert "a task failed" in failure.error.message
    expected = [None if query == POISON else query for query in queries]
    assert echoed(found, *queries) == [expected[:cut], [], expected[cut:]]
    assert len([size for size in engine.sizes if size]) <= 7


def test_a_killer_with_a_sampler_is_the_samplers_fault(jobs, work):
    (found,) = jobs.evaluate(Run(work(POISON, sampler="{}"), "t"))
    assert [failure.error.kind for failure in found.failures] == [SamplerFailed.kind]


def test_a_run_that_was_called_off_ends_without_a_job(engine, jobs, work):
    run = Run(work("a"), "t")
    jobs.cancel(run)
    with pytest.raises(Cancelled):
        jobs.evaluate(run)
    assert engine.sizes == []


def test_a_lost_engine_is_not_asked_again(engine, jobs, work):
    engine.living = False
    with pytest.raises(EngineLost):
        jobs.evaluate(Run(work("a", "b"), "t"))
    assert engine.sizes == [2, 0], "the job, and one without work"
    with pytest.raises(EngineLost):
        jobs.warm_up()


def test_a_failing_job_without_items_ends(engine, jobs, work):
    engine.failing = {"t"}
    assert jobs.evaluate(Run(work(), "t")) == [Outcome()]
    assert jobs.evaluate(Run(NOTHING, "t")) == []
