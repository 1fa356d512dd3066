import math

import numpy as np
import pytest
from expected_errors import raises
from galileo_samplers import Weighted

from galileo import samplers
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.testing.conformance import SamplerConformance, sample_labels

SEEDS = 1_000


class TestWeighted(SamplerConformance):
    def make(self):
        return Weighted(feature="temperature", n=20)


class TestWeightedOfACommit(SamplerConformance):
    def make(self):
        return Weighted(feature="level", n=3, scope="commit")


class TestWeightedByScale(SamplerConformance):
    def make(self):
        return Weighted(feature="temperature", scale=1000)


def weights_of(labels, feature):
    values = labels.table.column(feature).to_pylist()
    return np.array([0.0 if value is None else float(value) for value in values])


def included_one_by_one(weights, n):
    """The probability of each label to be among n, by going through all draws."""
    found = np.zeros(len(weights))

    def draw(chance, left, depth):
        total = weights[left].sum()
        for one in left:
            share = chance * weights[one] / total
            found[one] += share
            if depth > 1:
                draw(share, [other for other in left if other != one], depth - 1)

    draw(1.0, [one for one in range(len(weights)) if weights[one] > 0], n)
    return found


@pytest.mark.parametrize("n", [1, 2, 3])
def test_weighted_chances_equal_successive_draws(n, commit_of, counted, chi_square_bound):
    labels = commit_of(7)
    levels = np.array([1, 2, 3, 4, 5, 6, 50], dtype=np.int64)[labels.rows]
    at = labels.table.schema.get_field_index("level")
    table = labels.table.set_column(at, labels.table.schema.field(at), [levels])
    labels = LabelSet(labels.schema, table)
    counts = counted(Weighted(feature="level", n=n), labels, seeds=SEEDS)
    assert counts.sum() == n * SEEDS
    chances = included_one_by_one(levels.astype(float), n)
    statistic = ((counts - SEEDS * chances) ** 2 / (SEEDS * chances * (1 - chances))).sum()
    assert statistic < chi_square_bound(7)


def test_weighted_scale_gives_known_chances(commit_of, counted, chi_square_bound):
    labels = commit_of(100)
    chances = np.minimum(1, weights_of(labels, "level") / 4)
    counts = counted(Weighted(feature="level", scale=4), labels, seeds=SEEDS)
    possible = (chances > 0) & (chances < 1)
    assert (counts[chances == 0] == 0).all()
    expected = SEEDS * chances[possible]
    statistic = ((counts[possible] - expected) ** 2 / (expected * (1 - chances[possible]))).sum()
    assert statistic < chi_square_bound(int(possible.sum()))


def test_weighted_total_is_unbiased(commit_of):
    """Horvitz and Thompson's estimator, and its variance."""
    labels = commit_of(100)
    chances = np.minimum(1, weights_of(labels, "level") / 4)
    values = weights_of(labels, "temperature") * (chances > 0)
    totals = []
    for seed in range(SEEDS):
        kept = Weighted(feature="level", scale=4).sample(labels, seed=seed)
        totals.append((values[kept] / chances[kept]).sum())
    inside = chances > 0
    variance = (values[inside] ** 2 * (1 - chances[inside]) / chances[inside]).sum()
    assert abs(np.mean(totals) - values.sum()) < 3.719 * math.sqrt(variance / SEEDS)
    assert np.var(totals) == pytest.approx(variance, rel=0.2)


def test_weighted_merge_of_samples_equals_merge_of_all():
    labels, chosen = sample_labels(), Weighted(feature="temperature", n=30)
    left = samplers.merge(chosen, samplers.apply(chosen, labels, seed=9), seed=9)
    assert len(left) == 30
    assert left.table.equals(samplers.merge(chosen, labels, seed=9).table)


def test_weighted_zero_weight_is_never_kept():
    labels = sample_labels()
    weights = weights_of(labels, "level")
    assert (weights == 0).sum() > 200
    mask = Weighted(feature="level", n=1000).merge(labels, seed=1)
    assert (mask == (weights > 0)).all()


def test_weighted_infinite_weight_is_first_and_negative_never():
    labels = sample_labels()
    values = np.full(len(labels), -1.0)
    values[::2] = 1.0
    values[:6:2] = np.inf
    at = labels.table.schema.get_field_index("temperature")
    table = labels.table.set_column(at, labels.table.schema.field(at), [values])
    labels = LabelSet(labels.schema, table)
    mask = Weighted(feature="temperature", n=10).merge(labels, seed=1)
    assert mask.sum() == 10
    assert mask[:6:2].all()
    assert not mask[1::2].any()


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"n": 5}, "feature"),
        ({"feature": 5, "n": 5}, "feature"),
        ({"feature": "level"}, "n"),
        ({"feature": "level", "n": 5, "scale": 5}, "n"),
        ({"feature": "level", "n": 0}, "n"),
        ({"feature": "level", "scale": 0}, "scale"),
        ({"feature": "level", "scale": 1, "scope": "global"}, "scope"),
        ({"feature": "level", "n": 1, "scope": "x"}, "scope"),
    ],
)
def test_weighted_invalid_option_raises(options, option):
    with raises(InputError, option=option):
        samplers.load(samplers.SamplerSpec("weighted", options))


@pytest.mark.parametrize(
    ("feature", "expected"), [("station", "numeric_feature"), ("pressure", "indexed_feature")]
)
def test_weighted_option_unfit_for_dataset_raises(feature, expected):
    with raises(InputError, expected=expected):
        Weighted(feature=feature, n=1).sample(sample_labels(), seed=0)
