"""Jobs that fail, on an engine that runs in a thread and answers at once.

What Spark itself does with such jobs is in `test_spark_evaluator.py`.
"""

from __future__ import annotations

import pytest

from galileo.errors import Cancelled, InternalError, SamplerFailed
from galileo.spark.job_queue import EngineLost, Run
from galileo.spark.task import FAILED

POISON = "poison"


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("cut", [0, 3, 7])
def test_evaluate_item_that_fails_its_job_fails_alone(engine, jobs, make_group, echoed, place, cut):
    queries = [f"q{n}" for n in range(7)]
    queries[place] = POISON
    groups = (make_group(*queries[:cut]), make_group(), make_group(*queries[cut:]))
    found = jobs.evaluate(Run(groups, "t"))
    (failure,) = [one for answers in found for answer in answers for one in answer.failures]
    assert (failure.error.kind, failure.error.message) == (InternalError.kind, FAILED)
    expected = [None if query == POISON else query for query in queries]
    assert echoed(found, *queries) == [expected[:cut], [], expected[cut:]]
    assert len([size for size in engine.sizes if size]) <= 7


def test_evaluate_failed_job_of_sampler_is_sampler_failed(jobs, job_request):
    ((found,),) = jobs.evaluate(Run(job_request(POISON, sampler="{}"), "t"))
    assert [failure.error.kind for failure in found.failures] == [SamplerFailed.kind]


def test_evaluate_cancelled_run_starts_no_job(engine, jobs, job_request):
    run = Run(job_request("a"), "t")
    jobs.cancel(run)
    with pytest.raises(Cancelled):
        jobs.evaluate(run)
    assert engine.sizes == []


def test_evaluate_lost_engine_is_not_used_again(engine, jobs, job_request):
    engine.lost = "Spark ended"
    with pytest.raises(EngineLost):
        jobs.evaluate(Run(job_request("a", "b"), "t"))
    assert engine.sizes == [2, 0], "the job, and one without work"
    with pytest.raises(EngineLost):
        jobs.warm_up()


def test_evaluate_failed_job_without_items_returns(engine, jobs, job_request):
    engine.failing = {"t"}
    assert jobs.evaluate(Run(job_request(), "t")) == [[]]
    assert jobs.evaluate(Run((), "t")) == []
