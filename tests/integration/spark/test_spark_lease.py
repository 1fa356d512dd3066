from __future__ import annotations

import pytest

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
