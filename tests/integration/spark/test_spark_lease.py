from __future__ import annotations

from types import SimpleNamespace

import pytest

from galileo.spark.evaluator import EvaluatorService


class SetClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        raise AssertionError("a lease must not depend on the wall clock")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def queue():
    return SimpleNamespace(idle=True)


@pytest.fixture
def service(clock, queue) -> EvaluatorService:
    jobs = SimpleNamespace(evaluations=2, empty_jobs=1)
    return EvaluatorService(queue, jobs, idle_s=60.0, clock=clock)


async def test_lease_expires_after_idle_time_and_renews_at_calls(clock, service):
    clock.now += 60.0
    assert not service.is_over
    assert (await service.ping()).evaluations == 2
    clock.now += 60.0
    assert not service.is_over
    clock.now += 0.1
    assert service.is_over


def test_evaluator_with_a_job_outlives_its_lease(clock, queue, service):
    """A cycle that takes longer than the idle time is no reason to end."""
    queue.idle = False
    clock.now += 61.0
    assert not service.is_over
    queue.idle = True
    assert service.is_over
