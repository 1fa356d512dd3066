import math
from itertools import combinations

import numpy as np
import pytest
from expected_errors import raises
from galileo_samplers import Reservoir

from galileo import samplers
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.testing.conformance import SamplerConformance, sample_labels

SEEDS = 1_000


class TestReservoir(SamplerConformance):
    def make(self):
        return Reservoir(n=20)


class TestReservoirOfACommit(SamplerConformance):
    def make(self):
        return Reservoir(n=5, scope="commit")


class TestReservoirOfMore(SamplerConformance):
    seed_matters = False

    def make(self):
        return Reservoir(n=1000)


@pytest.mark.parametrize("n", [1, 20, 853, 854, 2000])
def test_reservoir_merge_keeps_exactly_n(n):
    labels, chosen = sample_labels(), Reservoir(n=n)
    sampled = samplers.apply(chosen, labels, seed=3)
    assert len(samplers.merge(chosen, sampled, seed=3)) == min(n, len(labels))


def test_reservoir_merge_of_samples_equals_merge_of_all():
    labels, chosen = sample_labels(), Reservoir(n=30)
    left = samplers.merge(chosen, samplers.apply(chosen, labels, seed=9), seed=9)
    assert left.table.equals(samplers.merge(chosen, labels, seed=9).table)


@pytest.mark.parametrize("size", [30, 100])
def test_reservoir_labels_have_equal_chance(size, commit_of, counted, without_replacement):
    counts = counted(Reservoir(n=10), commit_of(size), seeds=SEEDS)
    without_replacement(counts, kept=10, seeds=SEEDS)


def test_reservoir_labels_of_many_commits_have_equal_chance(counted, without_replacement):
    counts = counted(Reservoir(n=100), sample_labels(), seeds=SEEDS, merging=True)
    without_replacement(counts, kept=100, seeds=SEEDS)


def test_reservoir_pairs_have_equal_chance(commit_of, chi_square_bound):
    """Each of the 21 pairs of seven labels is as likely: draws are without replacement."""
    labels = commit_of(7)
    pairs = dict.fromkeys(combinations(range(7), 2), 0)
    for seed in range(SEEDS):
        pairs[tuple(np.flatnonzero(Reservoir(n=2).sample(labels, seed=seed)))] += 1
    expected = SEEDS / len(pairs)
    statistic = sum((count - expected) ** 2 / expected for count in pairs.values())
    assert statistic < chi_square_bound(len(pairs) - 1)


def test_reservoir_mean_is_unbiased(commit_of):
    labels = commit_of(100)
    values = np.asarray(labels.rows, dtype=np.float64)
    means = [values[Reservoir(n=20).sample(labels, seed=s)].mean() for s in range(SEEDS)]
    variance = values.var(ddof=1) / 20 * (1 - 20 / 100)
    assert abs(np.mean(means) - values.mean()) < 3.719 * math.sqrt(variance / SEEDS)
    assert np.var(means) == pytest.approx(variance, rel=0.2)


def test_reservoir_smaller_sample_is_within_larger():
    labels = sample_labels()
    small, large = (Reservoir(n=n).merge(labels, seed=7) for n in (10, 40))
    assert not (small & ~large).any()


def test_reservoir_no_labels_gives_empty_mask():
    empty = LabelSet.empty(sample_labels().schema)
    assert Reservoir(n=1).sample(empty, seed=0).shape == (0,)
    assert Reservoir(n=1).merge(empty, seed=0).shape == (0,)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"n": 10**8}, "n"),
        ({"n": 1, "scope": "cluster"}, "scope"),
    ],
)
def test_reservoir_invalid_option_raises(options, option):
    with raises(InputError, option=option):
        Reservoir(**options)


def test_reservoir_is_loaded_by_name():
    assert samplers.load(samplers.sampler("reservoir", n=5)) == Reservoir(n=5, scope="global")
