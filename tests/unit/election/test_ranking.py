import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.election.ranking import (
    CCQS_MAX,
    Candidate,
    UsageStatistics,
    is_suitable,
    rank,
    score,
)

GIB = 1 << 30


def candidate(round_trip_s: float = 0.01, **usage) -> Candidate:
    return Candidate(UsageStatistics(**({"memory_free_bytes": 4 * GIB} | usage)), round_trip_s)


@pytest.mark.parametrize(
    "burden",
    [
        {"cpu_share": 0.5},
        {"load": 2.0},
        {"ccq_count": 50},
        {"cache_bytes": GIB},
        {"memory_free_bytes": GIB},
        {"round_trip_s": 0.1},
    ],
)
def test_rank_any_burden_counts(burden):
    candidates = {"a": candidate(**burden), "b": candidate()}
    assert rank(candidates, need_bytes=GIB // 2) == ("b", "a")


def test_rank_equal_nodes_by_name():
    candidates = dict.fromkeys(("c", "a", "b"), candidate())
    assert rank(candidates, need_bytes=0) == ("a", "b", "c")


def test_score_no_memory_is_finite():
    full = candidate(memory_free_bytes=0)
    assert score(full, need_bytes=GIB) < 100


def test_is_suitable_uses_memory_cpu_and_count():
    good = UsageStatistics(cpu_share=0.5, memory_free_bytes=3 * GIB, ccq_count=CCQS_MAX - 1)
    assert is_suitable(good, need_bytes=2 * GIB, reserve_bytes=GIB)
    assert not is_suitable(good, need_bytes=2 * GIB + 1, reserve_bytes=GIB)
    busy = UsageStatistics(cpu_share=0.95, memory_free_bytes=3 * GIB)
    assert not is_suitable(busy, need_bytes=0)
    popular = UsageStatistics(memory_free_bytes=3 * GIB, ccq_count=CCQS_MAX)
    assert not is_suitable(popular, need_bytes=0)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 200)), min_size=2, max_size=6))
def test_rank_random_usages_equals_order_of_scores(usages):
    candidates = {
        f"n{i}": candidate(cpu_share=cpu, ccq_count=count) for i, (cpu, count) in enumerate(usages)
    }
    order = rank(candidates, need_bytes=0)
    scores = [score(candidates[node], need_bytes=0) for node in order]
    assert sorted(order) == sorted(candidates)
    assert all(a <= b for a, b in itertools.pairwise(scores))
