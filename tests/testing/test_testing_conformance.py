"""The conformance tests pass for a sampler that keeps the rule, and fail for one that does not."""

import numpy as np
import pytest

from galileo.samplers import label_hashes
from galileo.testing.conformance import SamplerConformance, sample_labels


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
def test_a_sampler_that_breaks_the_rule_is_found_out(made, seed_matters, check, match):
    checks = checks_of(made, seed_matters=seed_matters)
    with pytest.raises(AssertionError, match=match):
        getattr(checks, check)()


def test_what_is_tested_must_be_named():
    with pytest.raises(NotImplementedError, match="override make"):
        SamplerConformance().make()


def test_the_sample_labels_hold_several_shuffled_commits():
    labels = sample_labels()
    identities = set(zip(labels.partitions, labels.sequences, labels.rows, strict=True))
    assert len(identities) == len(labels) == 854
    assert len(set(zip(labels.partitions, labels.sequences, strict=True))) == 8
    assert (np.diff(labels.partitions) != 0).sum() > 100
    assert labels.table.column("temperature").null_count > 0
