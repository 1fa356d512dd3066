from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from galileo.spark import evaluator
from galileo.spark.evaluator import Lease


class SetClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        raise AssertionError("a lease must not depend on the wall clock")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def test_lease_expires_after_idle_time_and_renews_at_calls(clock):
    lease = Lease(clock, idle_s=60.0)
    clock.now += 60.0
    assert not lease.expired
    lease.renew()
    clock.now += 60.0
    assert not lease.expired
    clock.now += 0.1
    assert lease.expired


async def test_evaluator_with_a_job_outlives_its_lease(clock, monkeypatch):
    """A cycle that takes longer than the idle time is no reason to end."""
    monkeypatch.setattr(evaluator, "_CHECK_INTERVAL_S", 0.0)
    queue = SimpleNamespace(idle=False)
    lease = Lease(clock, idle_s=60.0)
    clock.now += 61.0
    waiting = asyncio.create_task(evaluator._until_expired(queue, lease))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    queue.idle = True
    await asyncio.wait_for(waiting, 60)
