"""The conformance tests pass for a sampler that keeps the rule, and fail for one that does not."""

from unittest import SkipTest

import numpy as np
import pyarrow as pa
import pytest

from galileo.geo import geohash
from galileo.samplers import label_hashes
from galileo.testing.conformance import (
    SamplerConformance,
    Verdict,
    sample_labels,
    sample_observations,
    verdicts,
)


class EveryThird:
    """Keeps the rule and ignores its seed."""

    def sample(self, labels, *, seed):
        return labels.rows % 3 == 0


class TestEveryThird(SamplerConformance):
    seed_matters = False

    def make(self):
        return EveryThird()


class WrongType(EveryThird):
    def sample(self, labels, *, seed):
        return super().sample(labels, seed=seed).astype(np.int8)


class WrongLength(EveryThird):
    def sample(self, labels, *, seed):
        return super().sample(labels, seed=seed)[1:]


class ByPosition:
    def sample(self, labels, *, seed):
        return np.arange(len(labels)) % 3 == seed % 3


class AcrossCommits:
    """Keeps the smallest hashes of everything that a call happens to see."""

    def sample(self, labels, *, seed):
        hashes = label_hashes(labels, seed=seed)
        return hashes <= np.partition(hashes, len(hashes) // 10)[len(hashes) // 10]


class Forgetful:
    """Depends on how often it was called."""

    def __init__(self):
        self.calls = 0

    def sample(self, labels, *, seed):
        self.calls += 1
        return label_hashes(labels, seed=self.calls) < np.uint64(2**62)


class Seeded:
    def sample(self, labels, *, seed):
        return label_hashes(labels, seed=seed) < np.uint64(2**62)


def checks_of(made, *, seed_matters):
    attributes = {"make": lambda self: made(), "seed_matters": seed_matters}
    return type("Checks", (SamplerConformance,), attributes)()


@pytest.mark.parametrize(
    ("made", "seed_matters", "check", "match"),
    [
        (object, False, "test_it_is_a_sampler", "no method"),
        (WrongType, False, "test_it_returns_a_mask_of_one_boolean_per_label", "booleans, got int8"),
        (WrongLength, False, "test_it_returns_a_mask_of_one_boolean_per_label", "booleans, got"),
        (Forgetful, True, "test_it_is_deterministic", "second call"),
        (ByPosition, True, "test_the_order_of_the_labels_does_not_matter", "another order"),
        (AcrossCommits, True, "test_the_grouping_of_commits_does_not_matter", "at a time"),
        (EveryThird, True, "test_the_seed_matters_or_is_declared_not_to", "no seed changed"),
        (Seeded, False, "test_the_seed_matters_or_is_declared_not_to", "a seed changed"),
    ],
)
def test_conformance_faulty_sampler_fails(made, seed_matters, check, match):
    checks = checks_of(made, seed_matters=seed_matters)
    with pytest.raises(AssertionError, match=match):
        getattr(checks, check)()


def test_conformance_without_make_raises():
    with pytest.raises(NotImplementedError, match="override make"):
        SamplerConformance().make()


def test_sample_labels_have_several_shuffled_commits():
    labels = sample_labels()
    identities = set(zip(labels.partitions, labels.sequences, labels.rows, strict=True))
    assert len(identities) == len(labels) == 854
    assert len(set(zip(labels.partitions, labels.sequences, strict=True))) == 8
    assert (np.diff(labels.partitions) != 0).sum() > 100
    assert labels.table.column("temperature").null_count > 0


# --- samples of many commits -----------------------------------------------------------------


class Draw:
    """Keeps the smallest hash of each commit, and then of everything."""

    scope = "global"
    regroups = True

    def sample(self, labels, *, seed):
        hashes = label_hashes(labels, seed=seed)
        commits = labels.partitions.astype(np.int64) << 32 | labels.sequences
        least = [hashes[commits == commit].min() for commit in commits]
        return hashes == np.array(least)

    def merge(self, labels, *, seed):
        hashes = label_hashes(labels, seed=seed)
        return hashes == hashes.min()


class TestDraw(SamplerConformance):
    def make(self):
        return Draw()


class NoMerge(Seeded):
    scope = "global"


class NoScope(Seeded):
    scope = "everywhere"


class MergedByPosition(Draw):
    def merge(self, labels, *, seed):
        return np.arange(len(labels)) == 0


class MergedByHalves(Draw):
    """Keeps half of what it sees: twice is a quarter."""

    def merge(self, labels, *, seed):
        hashes = label_hashes(labels, seed=seed)
        return hashes <= np.median(hashes)


class MergedAtOnce(MergedByHalves):
    regroups = False


class MergedByChance(Draw):
    calls = 0

    def merge(self, labels, *, seed):
        MergedByChance.calls += 1
        return label_hashes(labels, seed=MergedByChance.calls) < np.uint64(2**63)


class MergedToNumbers(Draw):
    def merge(self, labels, *, seed):
        return np.flatnonzero(super().merge(labels, seed=seed))


@pytest.mark.parametrize(
    ("made", "check", "match"),
    [
        (NoMerge, "test_its_scope_is_one_that_it_can_keep", "needs regroups and merge"),
        (NoScope, "test_its_scope_is_one_that_it_can_keep", "expected a scope of"),
        (MergedByPosition, "test_the_order_in_which_samples_are_merged_does_not_matter", "order"),
        (MergedByHalves, "test_samples_can_be_merged_in_groups_if_it_says_so", "regroups = False"),
        (MergedByChance, "test_merging_is_deterministic", "second call"),
        (MergedToNumbers, "test_merging_is_deterministic", "booleans of merge, got int64"),
    ],
)
def test_conformance_faulty_merge_fails(made, check, match):
    with pytest.raises(AssertionError, match=match):
        getattr(checks_of(made, seed_matters=True), check)()


@pytest.mark.parametrize(
    ("made", "reason"), [(MergedAtOnce, "merged at once"), (Seeded, "nothing is merged")]
)
def test_conformance_unpromised_property_is_skipped(made, reason):
    checks = checks_of(made, seed_matters=True)
    with pytest.raises(SkipTest, match=reason):
        checks.test_samples_can_be_merged_in_groups_if_it_says_so()


def test_verdicts_have_outcome_of_each_check():
    class Checks(SamplerConformance):
        def make(self):
            return WrongType()

        def test_of_its_own(self):
            raise ZeroDivisionError("by nothing")

    found = {one.check: one for one in verdicts(Checks)}
    assert len(found) == 13
    mask = found["it returns a mask of one boolean per label"]
    assert (mask.outcome, mask.message.split("\n")[0]) == ("failed", "expected booleans, got int8")
    own = found["of its own"]
    assert (own.outcome, own.message) == ("failed", "ZeroDivisionError: by nothing")
    assert found["merging is deterministic"].outcome == "skipped"
    assert found["it is a sampler"] == Verdict("it is a sampler", "passed")


# --- samplers that look at observations ------------------------------------------------------


class Crowded:
    """Keeps labels with many observations, and others by chance."""

    needs_observations = True

    def sample(self, labels, *, observations, seed):
        counts = np.bincount(observations.column("label").to_numpy(), minlength=len(labels))
        return (counts > 6) | (label_hashes(labels, seed=seed) < np.uint64(2**62))


class TestCrowded(SamplerConformance):
    def make(self):
        return Crowded()


class TestWarmDraw(SamplerConformance):
    """It looks at observations first, and what it kept is merged."""

    def make(self):
        return WarmDraw()


class WarmDraw(Draw):
    needs_observations = True

    def sample(self, labels, *, observations, seed):
        return super().sample(labels, seed=seed) | Crowded().sample(
            labels, observations=observations, seed=seed
        )


class ByPlaceAmongObservations(Crowded):
    def sample(self, labels, *, observations, seed):
        mask = np.zeros(len(labels), dtype=bool)
        mask[observations.column("label").to_numpy()[::100]] = True
        return mask


class AcrossObservations(Crowded):
    """Keeps labels with a pressure above the mean of whatever it is shown."""

    def sample(self, labels, *, observations, seed):
        pressure = observations.column("pressure").to_numpy()
        number = observations.column("label").to_numpy()
        return np.bincount(number[pressure > pressure.mean()], minlength=len(labels)) > 0


class CountsWhatIsThere(Crowded):
    def sample(self, labels, *, observations, seed):
        return np.bincount(observations.column("label").to_numpy()) > 6


@pytest.mark.parametrize(
    ("made", "check", "match"),
    [
        (ByPlaceAmongObservations, "test_the_order_of_the_labels_does_not_matter", "order"),
        (AcrossObservations, "test_the_grouping_of_commits_does_not_matter", "at a time"),
        (CountsWhatIsThere, "test_labels_may_have_no_observations", "there is none of it"),
    ],
)
def test_conformance_faulty_observing_sampler_fails(made, check, match):
    with pytest.raises(AssertionError, match=match):
        getattr(checks_of(made, seed_matters=True), check)()


def test_sample_observations_match_their_labels():
    labels = sample_labels()
    table = sample_observations(labels)
    number = table.column("label").to_numpy()
    assert np.bincount(number).tolist() == labels.table.column("rows").to_pylist()
    west, south, east, north = geohash.bounds(labels.cells, 5)
    latitude, longitude = (table.column(n).to_numpy() for n in ("latitude", "longitude"))
    assert ((south[number] <= latitude) & (latitude < north[number])).all()
    assert ((west[number] <= longitude) & (longitude < east[number])).all()
    micros = table.column("time").cast(pa.int64()).to_numpy() - labels.buckets[number]
    assert ((micros >= 0) & (micros < 3_600_000_000)).all()
    assert table.column("station").to_pylist() == [
        labels.table.column("station")[place].as_py() for place in number
    ]
    shuffled = labels.table.take(pa.array(np.random.default_rng(3).permutation(len(labels))))
    again = sample_observations(type(labels)(labels.schema, shuffled))
    assert sorted(again.column("latitude").to_pylist()) == sorted(latitude.tolist())
