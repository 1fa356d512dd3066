"""Jobs that fail, on an engine that runs in a thread and answers at once.

What Spark itself does with such jobs is in `test_spark_evaluator.py`.
"""

from __future__ import annotations

import pytest

from galileo.errors import Bug, Cancelled, SamplerFailed
from galileo.spark.jobs import EngineLost, Run

POISON = "poison"


def labels(outcomes) -> list[str]:
    return [b"".join(outcome.labels).decode() for outcome in outcomes]


@pytest.mark.parametrize("place", range(7))
def test_the_item_that_kills_its_job_fails_alone(engine, jobs, work, place):
    queries = [f"q{n}" for n in range(7)]
    queries[place] = POISON
    found = jobs.evaluate(Run(work(*queries), "t"))
    assert isinstance(found[place].error, Bug)
    assert "a task failed" in found[place].error.message
    rest = found[:place] + found[place + 1 :]
    assert labels(rest) == [query for query in queries if query != POISON]
    assert len([size for size in engine.sizes if size]) <= 7


def test_a_killer_with_a_sampler_is_the_samplers_fault(jobs, work):
    (found,) = jobs.evaluate(Run(work(POISON, sampler="{}"), "t"))
    assert isinstance(found.error, SamplerFailed)


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
    assert jobs.evaluate(Run(work(), "t")) == []
