"""The columns against sorting label by label."""

from collections import defaultdict

import numpy as np
from galileo_samplers import lowest as module
from galileo_samplers.lowest import codes_of, lowest, ordered
from hypothesis import given
from hypothesis import strategies as st

from galileo.testing.conformance import identities, sample_labels

LABELS = sample_labels()
SIZE = len(LABELS)


def lowest_one_by_one(priorities, groups, quotas):
    found = defaultdict(list)
    keys = zip(*(group.tolist() for group in groups), strict=True) if groups else [()] * SIZE
    rows = zip(priorities.tolist(), identities(LABELS), range(SIZE), strict=True)
    for key, row in zip(keys, rows, strict=True):
        found[key].append(row)
    return {row for members in found.values() for *_, row in sorted(members)[:quotas]}


numbers = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(numbers, st.integers(0, 3), st.integers(1, 60), st.sampled_from([1, 5, 2**40, 2**62]))
def test_lowest_random_priorities_equal_sorting(rng, depth, quota, spread):
    """With priorities that tie, and groups of few and of very many numbers."""
    priorities = rng.integers(0, rng.choice([3, 2**63]), SIZE).astype(np.uint64)
    groups = [rng.integers(0, 4, SIZE) * spread - 1 for _ in range(depth)]
    mask = lowest(LABELS, priorities, groups=groups, quotas=quota)
    assert set(np.flatnonzero(mask)) == lowest_one_by_one(priorities, groups, quota)


@given(numbers, st.integers(1, 60))
def test_lowest_float_priorities_equal_sorting(rng, quota):
    priorities = rng.exponential(size=SIZE) / rng.integers(0, 3, SIZE).clip(1e-300)
    priorities[:5] = np.inf
    groups = [LABELS.partitions]
    mask = lowest(LABELS, priorities, groups=groups, quotas=quota)
    assert set(np.flatnonzero(mask)) == lowest_one_by_one(priorities, groups, quota)


def test_lowest_quota_per_label_is_used():
    quotas = np.where(LABELS.partitions == 1, 4, 0)
    priorities = np.arange(SIZE, dtype=np.uint64)
    mask = lowest(LABELS, priorities, groups=[LABELS.partitions], quotas=quotas)
    assert mask.sum() == 4
    assert set(LABELS.partitions[mask]) == {1}


def test_codes_of_are_equal_within_groups(monkeypatch):
    groups = (LABELS.partitions, LABELS.sequences, LABELS.rows)
    expected = len(set(identities(LABELS)))
    assert len(set(codes_of(groups, size=SIZE).tolist())) == expected
    monkeypatch.setattr(module, "_CODES_MAX", 64)
    assert len(set(codes_of(groups, size=SIZE).tolist())) == expected
    order, starts = ordered(LABELS, np.zeros(SIZE, dtype=np.uint64), groups=groups)
    assert len(starts) == expected
    in_order = LABELS.table.take(order)
    assert identities(type(LABELS)(LABELS.schema, in_order)) == sorted(identities(LABELS))
