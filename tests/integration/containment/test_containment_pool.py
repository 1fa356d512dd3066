"""Contained samplers that are kept: how many, for whom, and until when."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest

from galileo.containment import ContainedSamplers, unavailable_reason
from galileo.errors import InputError, Overloaded
from galileo.sampler_package import archive_of
from galileo.samplers import SamplerSpec
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
def pool() -> Iterator[ContainedSamplers]:
    if (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    made = ContainedSamplers(samplers_max=2)
    yield made
    made.close()
    assert len(made) == 0


def pid_of(pool: ContainedSamplers, n: int, *, owner: str = "", seed: int = 0) -> int:
    with pool.lease(EVERY, spec(n, seed=seed), owner=owner) as sampler:
        assert sampler.sample(LABELS, seed=1).sum() == (LABELS.rows % n == 0).sum()
        assert sampler.pid is not None
        return sampler.pid


def test_a_process_serves_many_calls_of_one_owner(pool: ContainedSamplers) -> None:
    first = pid_of(pool, 2)
    assert pid_of(pool, 2, seed=9) == first
    assert pid_of(pool, 2, owner="other") != first
    assert pid_of(pool, 2) == first
    assert len(pool) == 2


@pytest.mark.slow
def test_the_longest_unused_is_ended_for_a_new_one(pool: ContainedSamplers) -> None:
    first, second = pid_of(pool, 1), pid_of(pool, 2)
    assert pid_of(pool, 1) == first
    third = pid_of(pool, 3)
    assert not psutil.pid_exists(second)
    assert psutil.pid_exists(first)
    assert psutil.pid_exists(third)


@pytest.mark.slow
def test_those_at_work_are_not_ended_and_bound_what_is_new(pool: ContainedSamplers) -> None:
    with pool.lease(EVERY, spec(1)) as one, pool.lease(EVERY, spec(2)):
        with (
            pytest.raises(Overloaded, match="at most 2 sent samplers") as refused,
            pool.lease(EVERY, spec(3)),
        ):
            pass
        assert refused.value.details["after_s"] > 0
        assert len(one.sample(LABELS, seed=1)) == len(LABELS)
    assert pid_of(pool, 3)


def test_what_is_revoked_is_ended_when_it_comes_back(pool: ContainedSamplers) -> None:
    idle = pid_of(pool, 1)
    with pool.lease(EVERY, spec(2)) as lent:
        pool.remove(OTHER.digest)
        assert len(pool) == 2
        pool.remove(EVERY.digest)
        assert len(pool) == 0
        assert not psutil.pid_exists(idle)
        assert len(lent.sample(LABELS, seed=1)) == len(LABELS)
        pid = lent.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_what_did_not_start_takes_no_room(pool: ContainedSamplers) -> None:
    for _ in range(3):
        with pytest.raises(InputError, match="expected n from 1"), pool.lease(EVERY, spec(0)):
            pass
    assert len(pool) == 0


def test_threads_that_ask_at_once_start_one_process(pool: ContainedSamplers) -> None:
    pids: list[int] = []
    threads = [threading.Thread(target=lambda: pids.append(pid_of(pool, 2))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 4
    assert len(set(pids)) == 1
