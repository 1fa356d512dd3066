import math

import numpy as np
import pytest
from expected_errors import raises
from galileo_samplers import Uniform

from galileo import samplers
from galileo.errors import InputError
from galileo.testing.conformance import SamplerConformance, sample_labels


class TestUniformTenth(SamplerConformance):
    def make(self):
        return Uniform(fraction=0.1)


class TestUniformAll(SamplerConformance):
    seed_matters = False

    def make(self):
        return Uniform(fraction=1.0)


@pytest.fixture(scope="module")
def many():
    """About 17,000 labels."""
    base = sample_labels()
    tables = []
    for number in range(20):
        table = base.table
        at = table.schema.get_field_index("sequence")
        moved = np.asarray(base.sequences) + 10 * number
        tables.append(table.set_column(at, table.schema.field(at), [moved]))
    parts = [type(base)(base.schema, table) for table in tables]
    return type(base).concat(base.schema, parts)


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(5))
def test_uniform_count_is_binomial(many, fraction, seed):
    expected, deviation = len(many) * fraction, math.sqrt(len(many) * fraction * (1 - fraction))
    count = int(Uniform(fraction=fraction).sample(many, seed=seed).sum())
    assert abs(count - expected) < 4 * deviation


def test_uniform_labels_have_equal_chance(commit_of, counted, chi_square_bound):
    """Counts over 1,000 seeds against their binomials; and how many are kept of each seed."""
    labels, share, seeds = commit_of(250), 0.2, 1_000
    counts = counted(Uniform(fraction=share), labels, seeds=seeds)
    statistic = ((counts - seeds * share) ** 2).sum() / (seeds * share * (1 - share))
    assert statistic < chi_square_bound(len(labels))
    sizes = [Uniform(fraction=share).sample(labels, seed=seed).sum() for seed in range(seeds)]
    spread = len(labels) * share * (1 - share)
    assert abs(np.mean(sizes) - len(labels) * share) < 3.719 * math.sqrt(spread / seeds)
    assert np.var(sizes) == pytest.approx(spread, rel=0.2)


def test_uniform_fraction_1_keeps_all(many):
    assert Uniform(fraction=1).sample(many, seed=3).all()


def test_uniform_smaller_fraction_is_within_larger(many):
    small = Uniform(fraction=0.1).sample(many, seed=7)
    large = Uniform(fraction=0.3).sample(many, seed=7)
    assert not (small & ~large).any()


def test_uniform_two_seeds_are_independent(many):
    both = Uniform(fraction=0.5).sample(many, seed=1) & Uniform(fraction=0.5).sample(many, seed=2)
    deviation = math.sqrt(len(many) * 0.25 * 0.75)
    assert abs(int(both.sum()) - len(many) / 4) < 4 * deviation


@pytest.mark.parametrize("column", ["row", "sequence", "partition"])
def test_uniform_any_part_of_identity_has_equal_chance(many, column, chi_square_bound):
    """Chi-square of kept labels over 16 classes."""
    classes = many.table.column(column).to_numpy() % 16
    sizes = np.bincount(classes, minlength=16)
    kept = np.bincount(classes[Uniform(fraction=0.2).sample(many, seed=11)], minlength=16)
    expected = 0.2 * sizes[sizes > 0]
    statistic = ((kept[sizes > 0] - expected) ** 2 / (expected * 0.8)).sum()
    assert statistic < chi_square_bound(len(expected))


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, float("nan"), "0.1", True, None])
def test_uniform_invalid_fraction_raises(fraction):
    with raises(InputError, option="fraction"):
        Uniform(fraction=fraction)


def test_uniform_is_loaded_by_name():
    spec = samplers.sampler("uniform", fraction=0.25, seed=5)
    loaded = samplers.load(samplers.SamplerSpec.from_json(spec.to_json()))
    assert loaded == Uniform(fraction=0.25)
    labels = sample_labels()
    thinned = samplers.apply(loaded, labels, seed=spec.seed)
    assert 0 < len(thinned) < len(labels)
    with raises(
        InputError, expected="known_option", sampler="uniform", option="share", nearest=None
    ):
        samplers.load(samplers.sampler("uniform", share=0.25))
