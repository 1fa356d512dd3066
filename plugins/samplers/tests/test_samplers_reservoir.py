import math
from itertools import combinations

import numpy as np
import pytest
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
def test_it_is_exactly_n_of_everything(n):
    labels, chosen = sample_labels(), Reservoir(n=n)
    sampled = samplers.apply(chosen, labels, seed=3)
    assert len(samplers.merge(chosen, sampled, seed=3)) == min(n, len(labels))


def test_what_is_left_of_commits_is_what_all_of_it_gives():
    labels, chosen = sample_labels(), Reservoir(n=30)
    left = samplers.merge(chosen, samplers.apply(chosen, labels, seed=9), seed=9)
    assert left.table.equals(samplers.merge(chosen, labels, seed=9).table)


@pytest.mark.parametrize("size", [30, 100])
def test_no_label_is_favoured(size, commit_of, counted, without_replacement):
    counts = counted(Reservoir(n=10), commit_of(size), seeds=SEEDS)
    without_replacement(counts, kept=10, seeds=SEEDS)


def test_no_label_of_many_commits_is_favoured(counted, without_replacement):
    counts = counted(Reservoir(n=100), sample_labels(), seeds=SEEDS, merging=True)
    without_replacement(counts, kept=100, seeds=SEEDS)


def test_no_pair_is_favoured(commit_of, chi_square_bound):
    """Each of the 21 pairs of seven labels is as likely: draws are without replacement."""
    labels = commit_of(7)
    pairs = dict.fromkeys(combinations(range(7), 2), 0)
    for seed in range(SEEDS):
        pairs[tuple(np.flatnonzero(Reservoir(n=2).sample(labels, seed=seed)))] += 1
    expected = SEEDS / len(pairs)
    statistic = sum((count - expected) ** 2 / expected for count in pairs.values())
    assert statistic < chi_square_bound(len(pairs) - 1)


def test_the_mean_of_a_sample_is_unbiased_with_the_variance_that_is_said(commit_of):
    labels = commit_of(100)
    values = np.asarray(labels.rows, dtype=np.float64)
    means = [values[Reservoir(n=20).sample(labels, seed=s)].mean() for s in range(SEEDS)]
    variance = values.var(ddof=1) / 20 * (1 - 20 / 100)
    assert abs(np.mean(means) - values.mean()) < 3.719 * math.sqrt(variance / SEEDS)
    assert np.var(means) == pytest.approx(variance, rel=0.2)


def test_the_smaller_sample_is_within_the_larger():
    labels = sample_labels()
    small, large = (Reservoir(n=n).merge(labels, seed=7) for n in (10, 40))
    assert not (small & ~large).any()


def test_an_empty_set_gives_an_empty_mask():
    empty = LabelSet.empty(sample_labels().schema)
    assert Reservoir(n=1).sample(empty, seed=0).shape == (0,)
    assert Reservoir(n=1).merge(empty, seed=0).shape == (0,)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n": 0}, "expected n as a whole number from 1"),
        ({"n": 1.5}, "expected n as a whole number"),
        ({"n": True}, "expected n as a whole number"),
        ({"n": 10**8}, "expected n as a whole number from 1 to 10000000"),
        ({"n": 1, "scope": "cluster"}, r"expected a scope of \['commit', 'node', 'global'\]"),
    ],
)
def test_wrong_options_are_refused_at_once(options, match):
    with pytest.raises(InputError, match=match):
        Reservoir(**options)


def test_it_is_found_by_name():
    assert samplers.load(samplers.sampler("reservoir", n=5)) == Reservoir(n=5, scope="global")
