"""Sandboxed samplers that are kept: how many, for whom, and until when."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest
from expected_errors import raises
from galileo_sandbox.pool import SandboxPool
from galileo_sandbox.probe import unavailable_reason
from processes import is_alive

from galileo.errors import InputError, Overloaded, SamplerRevoked
from galileo.sampler_package import archive_of
from galileo.sampler_runtime import SandboxLimits
from galileo.samplers import SamplerSpec, apply
from galileo.testing.conformance import sample_labels

SOURCE = b"""
from galileo.errors import InputError


class Every:
    def __init__(self, *, n):
        if n < 1:
            raise InputError("expected n from 1")
        self.n = n

    def sample(self, labels, *, seed):
        return labels.rows % self.n == 0
"""
EVERY = archive_of({"every.py": SOURCE}, name="every", entry="every:Every")
OTHER = archive_of({"every.py": SOURCE + b"\n"}, name="every", entry="every:Every")
LABELS = sample_labels()


def spec(n: int, *, seed: int = 0) -> SamplerSpec:
    return SamplerSpec("every", {"n": n}, seed)


@pytest.fixture
def pool() -> Iterator[SandboxPool]:
    if (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    made = SandboxPool(SandboxLimits(processes=2))
    yield made
    made.close()
    assert len(made) == 0


def pid_of(pool: SandboxPool, n: int, *, owner: str = "", seed: int = 0) -> int:
    with pool.lease(EVERY, spec(n, seed=seed), owner=owner) as sampler:
        assert sampler.sample(LABELS, seed=1).sum() == (LABELS.rows % n == 0).sum()
        assert sampler.pid is not None
        return sampler.pid


def test_pool_process_serves_calls_of_one_owner(pool: SandboxPool) -> None:
    first = pid_of(pool, 2)
    assert pid_of(pool, 2, seed=9) == first
    assert pid_of(pool, 2, owner="other") != first
    assert pid_of(pool, 2) == first
    assert len(pool) == 2


@pytest.mark.slow
def test_pool_full_ends_longest_unused(pool: SandboxPool) -> None:
    first, second = pid_of(pool, 1), pid_of(pool, 2)
    assert pid_of(pool, 1) == first
    third = pid_of(pool, 3)
    assert not is_alive(second)
    assert is_alive(first)
    assert is_alive(third)


@pytest.mark.slow
def test_pool_all_busy_raises_overloaded(pool: SandboxPool) -> None:
    with pool.lease(EVERY, spec(1)) as one, pool.lease(EVERY, spec(2)):
        with raises(Overloaded, bound=2) as refused, pool.lease(EVERY, spec(3)):
            pass
        assert refused.value.details["after_s"] > 0
        assert len(one.sample(LABELS, seed=1)) == len(LABELS)
    assert pid_of(pool, 3)


def test_pool_evict_ends_idle_then_busy_processes(pool: SandboxPool) -> None:
    idle = psutil.Process(pid_of(pool, 1))  # Not its number, which another process may get.
    with pool.lease(EVERY, spec(2)) as lent:
        pool.evict(OTHER.digest)
        assert len(pool) == 2
        pool.evict(EVERY.digest)
        assert len(pool) == 0
        assert not idle.is_running()
        assert len(lent.sample(LABELS, seed=1)) == len(LABELS)
        busy = psutil.Process(lent.pid)
    assert not busy.is_running()
    assert psutil.Process(pid_of(pool, 2)) != busy


def test_pool_revoke_refuses_calls_and_running_results(pool: SandboxPool) -> None:
    chosen = pool.load(EVERY, spec(2), owner="")
    other = pool.load(OTHER, spec(2), owner="")
    assert len(apply(chosen, LABELS, seed=1)) == (LABELS.rows % 2 == 0).sum()
    pid = pid_of(pool, 2)

    def revoke_during_a_call() -> None:
        with pool.lease(EVERY, spec(2)) as leased:
            pool.revoke(EVERY.digest)
            assert leased.sample(LABELS, seed=1).any()

    with pytest.raises(SamplerRevoked) as revoked:
        revoke_during_a_call()
    assert revoked.value.details["digest"] == EVERY.digest
    assert not is_alive(pid)
    with pytest.raises(SamplerRevoked):
        chosen.sample(LABELS, seed=1)
    with pytest.raises(SamplerRevoked):
        pool.load(EVERY, spec(3), owner="another")
    assert other.sample(LABELS, seed=1).any()
    assert len(pool) == 1


@pytest.mark.slow
def test_pool_failed_start_takes_no_slot(pool: SandboxPool) -> None:
    for _ in range(3):
        with raises(InputError, expected="options"), pool.lease(EVERY, spec(0)):
            pass
    assert len(pool) == 0


def test_pool_concurrent_leases_start_one_process(pool: SandboxPool) -> None:
    pids: list[int] = []
    threads = [threading.Thread(target=lambda: pids.append(pid_of(pool, 2))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 4
    assert len(set(pids)) == 1


def test_pool_takes_no_sampler_in_use_for_another_one() -> None:
    """Without processes: who has a place is decided before one starts."""
    pool = SandboxPool(SandboxLimits(processes=2))
    keys = [("digest", str(number), "") for number in range(3)]
    held = [pool._take(key, EVERY) for key in keys[:2]]
    with raises(Overloaded, bound=2):
        pool._take(keys[2], EVERY)
    assert len(pool) == 2
    pool._release(keys[1], held[1])
    assert pool._take(keys[2], EVERY).users == 1
    assert pool._take(keys[0], EVERY).users == 2
