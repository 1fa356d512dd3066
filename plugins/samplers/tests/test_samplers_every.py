from collections import defaultdict

import numpy as np
import pytest
from expected_errors import raises
from galileo_samplers import EveryNth
from hypothesis import given
from hypothesis import strategies as st

from galileo import samplers
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.testing.conformance import SamplerConformance, sample_labels

SEEDS = 1_000


class TestEveryBucket(SamplerConformance):
    def make(self):
        return EveryNth(n=6)


class TestEveryBucketFromAStart(SamplerConformance):
    seed_matters = False

    def make(self):
        return EveryNth(n=6, start=2)


class TestEveryLabel(SamplerConformance):
    def make(self):
        return EveryNth(n=3, of="labels")


class TestEveryLabelOfACell(SamplerConformance):
    def make(self):
        return EveryNth(n=2, of="labels", per="cell")


def series_one_by_one(labels, per):
    """The places of the labels of each series, in the order of time."""
    found = defaultdict(list)
    columns = (labels.partitions, labels.sequences, labels.cells, labels.buckets, labels.rows)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for place, (partition, sequence, cell, bucket, row) in enumerate(rows):
        key = (partition, sequence) + ((cell,) if per == "cell" else ())
        found[key].append((bucket, cell, row, place))
    return [[place for *_, place in sorted(members)] for members in found.values()]


@given(st.integers(1, 40), st.sampled_from(["commit", "cell", None]), st.integers(0, 2**64 - 1))
def test_every_random_options_equal_loop_over_labels(n, per, seed):
    labels = sample_labels()
    mask = EveryNth(n=n, of="labels", per=per).sample(labels, seed=seed)
    hashes = samplers.label_hashes(labels, seed=seed).tolist()
    kept = set()
    for places in series_one_by_one(labels, per):
        kept |= set(places[hashes[places[0]] % n :: n])
    assert set(np.flatnonzero(mask)) == kept


@given(st.integers(1, 60), st.integers(0, 2**64 - 1))
def test_every_of_buckets_keeps_whole_buckets(n, seed):
    labels = sample_labels()
    mask = EveryNth(n=n).sample(labels, seed=seed)
    hours = labels.buckets // 3_600_000_000
    assert set(hours[mask] % n) <= {seed % n}
    assert not set(hours[mask]) & set(hours[~mask])
    assert EveryNth(n=1).sample(labels, seed=seed).all()


def test_every_bucket_has_equal_chance(counted):
    """The start is the seed's remainder: over 1,000 seeds in a row each comes as often, exactly."""
    counts = counted(EveryNth(n=8), sample_labels(), seeds=SEEDS)
    assert (counts == SEEDS / 8).all()


def test_every_label_has_equal_chance(commit_of, counted, chi_square_bound):
    """Counts of the five classes of places, which the start chooses between."""
    labels = commit_of(100)
    counts = counted(EveryNth(n=5, of="labels"), labels, seeds=SEEDS)
    assert counts.sum() == 20 * SEEDS
    (places,) = series_one_by_one(labels, "commit")
    by_class = [set(counts[places[start::5]].tolist()) for start in range(5)]
    assert all(len(one) == 1 for one in by_class)
    expected = SEEDS / 5
    statistic = sum((one.pop() - expected) ** 2 / expected for one in by_class)
    assert statistic < chi_square_bound(4)


def test_every_starts_of_commits_are_independent(chi_square_bound):
    labels, n = sample_labels(), 4
    series = [places for places in series_one_by_one(labels, "commit") if len(places) >= n]
    both = np.zeros((n, n))
    for seed in range(SEEDS):
        mask = EveryNth(n=n, of="labels").sample(labels, seed=seed)
        first, second = (int(np.argmax(mask[places])) for places in series[:2])
        both[first, second] += 1
    expected = SEEDS / n**2
    assert ((both - expected) ** 2 / expected).sum() < chi_square_bound(n**2 - 1)


def test_every_no_labels_gives_empty_mask():
    empty = LabelSet.empty(sample_labels().schema)
    for of in ("buckets", "labels"):
        assert EveryNth(n=3, of=of).sample(empty, seed=0).shape == (0,)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"n": 0}, "n"),
        ({"n": 2, "of": "rows"}, "of"),
        ({"n": 2, "of": "labels", "per": "node"}, "per"),
        ({"n": 2, "per": "cell"}, "per"),
        ({"n": 2, "start": 2}, "start"),
        ({"n": 2, "start": True}, "start"),
        ({"n": 2, "start": 0.5}, "start"),
    ],
)
def test_every_invalid_option_raises(options, option):
    with raises(InputError, option=option):
        EveryNth(**options)


def test_every_is_loaded_by_name():
    assert samplers.load(samplers.sampler("every", n=3, start=1)) == EveryNth(n=3, start=1)
