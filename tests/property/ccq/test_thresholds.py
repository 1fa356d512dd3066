"""How much each cache may hold: within the budget, and moved the right way by each thing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from galileo.ccq.thresholds import MemoryBudget, free_capacity, thresholds

sizes = st.integers(0, 1 << 40)
shares = st.floats(0.0, 1.0)
means = st.builds(MemoryBudget, budget_bytes=sizes, memory_bytes=sizes, cpu_share=shares)
fetches = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20)


@given(means, fetches)
def test_thresholds_random_fetches_stay_within_budget(means, fetches):
    found = thresholds(means, fetches)
    assert len(found) == len(fetches)
    assert (found >= 0).all()
    assert found.sum() <= free_capacity(means) <= means.allowance <= means.budget_bytes


@given(means, fetches, sizes)
def test_thresholds_larger_budget_lowers_none(means, fetches, more):
    before = thresholds(means, fetches)
    richer = replace(means, budget_bytes=means.budget_bytes + more)
    roomier = replace(means, memory_bytes=means.memory_bytes + more)
    assert (thresholds(richer, fetches) >= before).all()
    assert (thresholds(roomier, fetches) >= before).all()


@given(means, fetches, shares)
def test_thresholds_busier_node_raises_none(means, fetches, share):
    calmer, busier = sorted((share, means.cpu_share))
    before = thresholds(replace(means, cpu_share=calmer), fetches)
    assert (thresholds(replace(means, cpu_share=busier), fetches) <= before).all()


@given(means, fetches, st.data(), st.floats(0.0, 1e6))
def test_thresholds_more_fetches_gain_alone(means, fetches, data, more):
    which = data.draw(st.integers(0, len(fetches) - 1))
    before = thresholds(means, fetches)
    after = thresholds(means, [f + more * (i == which) for i, f in enumerate(fetches)])
    others = np.arange(len(fetches)) != which
    # A sum of shares is rounded; what that is worth of a large budget is a few bytes.
    slack = 1 + (means.budget_bytes >> 48)
    assert after[which] >= before[which] - slack
    assert (after[others] <= before[others] + slack).all()


@given(means, fetches, st.floats(0.0, 1e6))
def test_thresholds_another_ccq_lowers_others(means, fetches, newcomer):
    before = thresholds(means, fetches)
    after = thresholds(means, [*fetches, newcomer])[:-1]
    assert (after <= before).all()
    if free_capacity(means) > 1000 * len(fetches):
        assert (after < before).all()


def test_thresholds_known_weights_give_known_shares() -> None:
    idle = MemoryBudget(5_000, 1 << 40)
    assert free_capacity(idle) == 4_000
    assert free_capacity(MemoryBudget(8_000, 4_000, cpu_share=1.0)) == 2_400
    # A query of half the greatest popularity has 2.5 shares, one that is never fetched 1.
    assert thresholds(idle, [10.0, 0.0]).tolist() == [2857, 1142]
