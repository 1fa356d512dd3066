import math

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from galileo_samplers import Thinning, thinning
from hypothesis import example, given
from hypothesis import strategies as st

from galileo import samplers
from galileo.errors import InputError
from galileo.geo import geohash
from galileo.geo.circles import EARTH_RADIUS_M
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.testing.conformance import SamplerConformance, sample_labels

SEEDS = 300


class TestThinning(SamplerConformance):
    def make(self):
        return Thinning(distance_m=200_000)


class TestThinningOfACommit(SamplerConformance):
    def make(self):
        return Thinning(distance_m=50_000, scope="commit")


def placed(latitudes, longitudes, precision=7, commits=1):
    """Labels at places, dealt out to commits in turn."""
    size = len(latitudes)
    schema = Schema("places", [Feature("x")], geohash_precision=precision)
    columns = {
        "cell": geohash.encode(latitudes, longitudes, precision),
        "bucket": pa.array(np.zeros(size, dtype=np.int64)).cast(pa.timestamp("us", tz="UTC")),
        "x": np.zeros(size),
        "row": np.arange(size, dtype=np.int32),
        "rows": np.ones(size, dtype=np.int32),
        "partition": np.zeros(size, dtype=np.int32),
        "sequence": 1 + np.arange(size) % commits,
    }
    return LabelSet(schema, pa.table(columns, schema=schema.label_schema))


def metres(one, other):
    """The distance of two places by the haversines, which are good at small ones, too."""
    (north, east), (south, west) = np.radians(one), np.radians(other)
    half = math.sin((south - north) / 2) ** 2
    half += math.cos(north) * math.cos(south) * math.sin((west - east) / 2) ** 2
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(min(1.0, half)))


def thinned_one_by_one(labels, distance_m, *, seed):
    """The rows to keep, each compared with all that were kept before."""
    places = list(zip(*(part.tolist() for part in samplers.positions(labels)), strict=True))
    kept = []
    for row in np.argsort(samplers.label_hashes(labels, seed=seed)).tolist():
        if all(metres(places[row], places[other]) >= distance_m for other in kept):
            kept.append(row)
    return set(kept)


somewhere = st.tuples(st.floats(-90, 90), st.floats(-180, 180))
near_a_pole = st.tuples(st.floats(89.9, 90), st.floats(-180, 180))
near_the_antimeridian = st.tuples(st.floats(-1, 1), st.floats(179, 180) | st.floats(-180, -179))
in_a_town = st.tuples(st.floats(47.3, 47.4), st.floats(8.5, 8.6))
places = st.lists(
    st.one_of(somewhere, near_a_pole, near_the_antimeridian, in_a_town), min_size=1, max_size=60
)
distances = st.sampled_from([0.5, 10.0, 300.0, 5e3, 4e4, 2.5e5, 3e6, 1.2e7, 2e7])


@given(places, distances, st.integers(0, 2**64 - 1))
@example([(90.0, 0.0), (90.0, 180.0), (-90.0, 5.0)], 1000.0, 1)
@example([(0.0, 180.0), (0.0, -180.0), (0.0, 179.9999)], 1000.0, 1)
def test_thinning_random_places_equal_one_by_one(points, distance_m, seed):
    labels = placed(*zip(*points, strict=True))
    mask = Thinning(distance_m=distance_m).merge(labels, seed=seed)
    assert set(np.flatnonzero(mask)) == thinned_one_by_one(labels, distance_m, seed=seed)


@given(places, distances, st.integers(1, 4))
def test_thinning_sample_commits_are_independent(points, distance_m, commits):
    labels = placed(*zip(*points, strict=True), commits=commits)
    mask = Thinning(distance_m=distance_m).sample(labels, seed=5)
    for sequence in range(1, commits + 1):
        own = labels.sequences == sequence
        alone = Thinning(distance_m=distance_m).merge(labels.where(own), seed=5)
        assert mask[own].tolist() == alone.tolist()


def test_thinning_chunked_pairs_give_same_mask(monkeypatch):
    labels = sample_labels()
    expected = Thinning(distance_m=80_000).merge(labels, seed=2)
    monkeypatch.setattr(thinning, "_PAIRS_MAX", 50)
    assert (Thinning(distance_m=80_000).merge(labels, seed=2) == expected).all()


def test_thinning_merge_keeps_distance_without_gaps():
    """Each dropped label has a kept one within twice the distance."""
    labels, chosen = sample_labels(), Thinning(distance_m=150_000)
    left = samplers.merge(chosen, samplers.apply(chosen, labels, seed=4), seed=4)
    kept, everything = (
        list(zip(*(part.tolist() for part in samplers.positions(one)), strict=True))
        for one in (left, labels)
    )
    for number, one in enumerate(kept):
        assert all(metres(one, other) >= 150_000 for other in kept[:number])
    assert all(min(metres(one, other) for other in kept) < 300_000 for one in everything)


def test_thinning_exclusive_labels_have_equal_chance(counted, chi_square_bound):
    """Eight within a town: one is kept, and each one time in eight."""
    labels = placed(47.3 + np.arange(8) / 1000, np.full(8, 8.5))
    counts = counted(Thinning(distance_m=10_000), labels, seeds=SEEDS)
    assert counts.sum() == SEEDS
    assert ((counts - SEEDS / 8) ** 2 / (SEEDS / 8)).sum() < chi_square_bound(7)


def test_thinning_crowded_label_has_smaller_chance(counted):
    """In a chain of three the middle is kept one time in three, the ends two times."""
    labels = placed(np.zeros(3), np.array([0.0, 0.01, 0.02]))
    counts = counted(Thinning(distance_m=1_500), labels, seeds=SEEDS)
    deviation = math.sqrt(SEEDS * 2 / 9)
    assert np.abs(counts - np.array([2, 1, 2]) * SEEDS / 3).max() < 3.719 * deviation
    assert counts[0] == counts[2]


def test_thinning_earth_radius_equals_store():
    assert thinning.EARTH_RADIUS_M == EARTH_RADIUS_M


def test_thinning_no_labels_gives_empty_mask():
    empty = LabelSet.empty(sample_labels().schema)
    assert Thinning(distance_m=1).sample(empty, seed=0).shape == (0,)
    assert Thinning(distance_m=1).merge(empty, seed=0).shape == (0,)


@pytest.mark.parametrize("distance_m", [0, -1, float("nan"), 2.1e7, "1km", True, None])
def test_thinning_invalid_distance_raises(distance_m):
    with raises(InputError, option="distance_m"):
        Thinning(distance_m=distance_m)


def test_thinning_is_loaded_by_name():
    spec = samplers.sampler("thinning", distance_m=5e3, scope="node")
    assert samplers.load(spec) == Thinning(distance_m=5e3, scope="node")
