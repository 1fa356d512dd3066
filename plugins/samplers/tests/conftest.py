"""Labels to sample, and bounds for what chance may do.

Every sampler is held to its statistics over the seeds 0 to 999. By chance a chi-square may be off
with a probability of 1 in 10,000 (the 99.99 % point), a mean of 1 in 5,000 (on both sides). There
are some fifty of them, so of a sampler without bias any would fail for less than one choice of
seeds in a hundred (Bonferroni). The seeds are fixed: what passes once passes always.
"""

import math

import numpy as np
import pytest
from hypothesis import settings

from galileo.testing.conformance import sample_labels

settings.register_profile("samplers", settings.default, deadline=None)
settings.load_profile("samplers")

NORMAL_QUANTILE = 3.719
"""Of 0.9999: a fixed seed that fails by chance would be one in ten thousand."""


@pytest.fixture(scope="session")
def chi_square_bound():
    """The 99.99 % point for degrees of freedom; Wilson and Hilferty, PNAS 17 (1931)."""

    def bound(degrees):
        spread = 2 / (9 * degrees)
        return degrees * (1 - spread + NORMAL_QUANTILE * math.sqrt(spread)) ** 3

    return bound


@pytest.fixture(scope="session")
def commit_of():
    """`commit_of(30)`: the commit of the sample labels that has so many."""
    labels = sample_labels()
    places = np.stack([labels.partitions, labels.sequences])
    found, sizes = np.unique(places, axis=1, return_counts=True)

    def of(size):
        partition, sequence = found[:, list(sizes).index(size)]
        return labels.where((labels.partitions == partition) & (labels.sequences == sequence))

    return of


@pytest.fixture(scope="session")
def counted():
    """How often each label is kept over seeds."""

    def over(sampler, labels, *, seeds, merging=False):
        choose = sampler.merge if merging else sampler.sample
        return sum(choose(labels, seed=seed).astype(np.int64) for seed in range(seeds))

    return over


@pytest.fixture(scope="session")
def without_replacement(chi_square_bound):
    """Fails where some of equal labels, of which so many are kept for each seed, are favoured.

    Draws without replacement shrink the statistic of a chi-square by (N - 1) / N.
    """

    def judge(counts, *, kept, seeds):
        size = len(counts)
        assert counts.sum() == kept * seeds
        if kept == size:
            return
        share = kept / size
        spread = seeds * share * (1 - share)
        statistic = ((counts - seeds * share) ** 2).sum() / spread * (size - 1) / size
        assert statistic < chi_square_bound(size - 1)

    return judge
