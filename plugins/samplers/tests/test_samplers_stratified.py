import math
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from galileo_samplers import Stratified
from hypothesis import given
from hypothesis import strategies as st

from galileo import samplers
from galileo.errors import InputError
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.model.times import seconds
from galileo.testing.conformance import SamplerConformance, sample_labels


class TestByCell(SamplerConformance):
    def make(self):
        return Stratified(by="cell", precision=2, per_stratum=3)


class TestByTime(SamplerConformance):
    def make(self):
        return Stratified(by="time", width="6h", fraction=0.2)


class TestByInterval(SamplerConformance):
    def make(self):
        return Stratified(by="feature", feature="temperature", edges=[280, 290.5], per_stratum=5)


class TestByText(SamplerConformance):
    def make(self):
        return Stratified(by="feature", feature="station", per_stratum=2)


class TestByTruth(SamplerConformance):
    def make(self):
        return Stratified(by="feature", feature="raining", fraction=0.3)


class TestAllOfEachStratum(SamplerConformance):
    seed_matters = False

    def make(self):
        return Stratified(by="cell", precision=5, fraction=1.0)


def strata_one_by_one(labels, options):
    """The stratum of each label, found label by label."""
    if options["by"] == "cell":
        return [text[: options["precision"]] for text in labels.geohashes().to_pylist()]
    if options["by"] == "time":
        width_us = round(seconds(options["width"]) * 1e6)
        return [math.floor(bucket / width_us) for bucket in labels.buckets.tolist()]
    values = labels.table.column(options["feature"]).to_pylist()
    if options.get("edges") is None:
        return values
    return [v if v is None else sum(v >= edge for edge in options["edges"]) for v in values]


def sampled_one_by_one(labels, options, *, seed):
    """The rows to keep, found with dicts and sorting."""
    groups = defaultdict(list)
    hashes = samplers.label_hashes(labels, seed=seed).tolist()
    strata = strata_one_by_one(labels, options)
    commits = zip(labels.partitions.tolist(), labels.sequences.tolist(), strict=True)
    for row, (commit, stratum) in enumerate(zip(commits, strata, strict=True)):
        groups[(*commit, stratum)].append((hashes[row], row))
    kept = set()
    for members in groups.values():
        quota = options.get("per_stratum") or math.ceil(
            round(options["fraction"] * len(members), 9)
        )
        kept |= {row for _, row in sorted(members)[:quota]}
    return kept


by_cell = st.fixed_dictionaries({"by": st.just("cell"), "precision": st.integers(1, 5)})
by_time = st.fixed_dictionaries(
    {"by": st.just("time"), "width": st.sampled_from(["1h", "90m", "1d", 7200, 1.5])}
)


def by_interval_of(name, numbers):
    edges = st.lists(numbers, min_size=1, max_size=6, unique=True).map(sorted)
    return st.fixed_dictionaries(
        {"by": st.just("feature"), "feature": st.just(name), "edges": edges}
    )


by_interval = by_interval_of("temperature", st.integers(2600, 3100).map(lambda x: x / 10))
by_interval |= by_interval_of("level", st.integers(-1, 4))  # edges that are values, too
by_value = st.fixed_dictionaries(
    {"by": st.just("feature"), "feature": st.sampled_from(["level", "station", "raining"])}
)
amount = st.fixed_dictionaries({"per_stratum": st.integers(1, 12)}) | st.fixed_dictionaries(
    {"fraction": st.sampled_from([0.01, 0.1, 0.3, 1 / 3, 0.7, 1.0])}
)
every_option = st.builds(
    lambda a, b: {**a, **b}, by_cell | by_time | by_interval | by_value, amount
)


@given(every_option, st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_stratified_random_options_equal_loop_over_labels(options, seed, data_seed):
    labels = sample_labels(seed=data_seed)
    mask = Stratified(**options).sample(labels, seed=seed)
    assert set(np.flatnonzero(mask).tolist()) == sampled_one_by_one(labels, options, seed=seed)


@given(every_option)
def test_stratified_every_stratum_is_represented(options):
    labels = sample_labels()
    mask = Stratified(**options).sample(labels, seed=1)
    strata = strata_one_by_one(labels, options)
    keys = list(zip(labels.partitions.tolist(), labels.sequences.tolist(), strata, strict=True))
    assert {key for key, keep in zip(keys, mask.tolist(), strict=True) if keep} == set(keys)


@pytest.mark.parametrize("size", [{"per_stratum": 10}, {"fraction": 0.15}])
def test_stratified_labels_of_stratum_have_equal_chance(
    size, commit_of, counted, without_replacement
):
    labels, seeds = commit_of(250), 1_000
    counts = counted(Stratified(by="feature", feature="level", **size), labels, seeds=seeds)
    strata = np.array(strata_one_by_one(labels, {"by": "feature", "feature": "level"}), dtype=float)
    strata[np.isnan(strata)] = -1
    for stratum in set(strata.tolist()):
        own = counts[strata == stratum]
        kept = size.get("per_stratum", math.ceil(0.15 * len(own)))
        without_replacement(own, kept=kept, seeds=seeds)


def test_stratified_fraction_is_exact():
    """And not eight, though the product is 7.000000000000001."""
    labels = sample_labels()
    commit = labels.where((labels.partitions == 2) & (labels.sequences == 2))
    assert len(commit) == 100
    assert 0.07 * 100 > 7
    assert Stratified(by="time", width="30d", fraction=0.07).sample(commit, seed=1).sum() == 7


def test_stratified_no_labels_gives_empty_mask():
    empty = LabelSet.empty(sample_labels().schema)
    for options in ({"by": "cell", "precision": 1}, {"by": "feature", "feature": "station"}):
        assert Stratified(**options, per_stratum=1).sample(empty, seed=0).shape == (0,)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"by": "colour", "per_stratum": 1}, "by"),
        ({"by": "cell", "per_stratum": 1}, "precision"),
        ({"by": "cell", "precision": 0, "per_stratum": 1}, "precision"),
        ({"by": "cell", "precision": 2.5, "per_stratum": 1}, "precision"),
        ({"by": "cell", "precision": 2, "width": "1h", "per_stratum": 1}, "width"),
        ({"by": "time", "per_stratum": 1}, "width"),
        ({"by": "time", "width": "soon", "per_stratum": 1}, "width"),
        ({"by": "time", "width": -5, "per_stratum": 1}, "width"),
        ({"by": "time", "width": float("inf"), "per_stratum": 1}, "width"),
        ({"by": "feature", "per_stratum": 1}, "feature"),
        ({"by": "feature", "feature": "x", "edges": [2, 1], "per_stratum": 1}, "edges"),
        ({"by": "feature", "feature": "x", "edges": [], "per_stratum": 1}, "edges"),
        ({"by": "feature", "feature": "x", "edges": "12", "per_stratum": 1}, "edges"),
        ({"by": "cell", "precision": 2}, "per_stratum"),
        ({"by": "cell", "precision": 2, "per_stratum": 1, "fraction": 0.5}, "per_stratum"),
        ({"by": "cell", "precision": 2, "per_stratum": 0}, "per_stratum"),
        ({"by": "cell", "precision": 2, "fraction": 0}, "fraction"),
    ],
)
def test_stratified_invalid_option_raises(options, option):
    with raises(InputError, option=option):
        Stratified(**options)


@pytest.mark.parametrize(
    ("options", "details"),
    [
        ({"by": "cell", "precision": 6}, {"option": "precision", "bound": 5}),
        (
            {"by": "feature", "feature": "pressure"},
            {"expected": "indexed_feature", "feature": "pressure"},
        ),
        (
            {"by": "feature", "feature": "station", "edges": [1]},
            {"expected": "numeric_feature", "option": "edges"},
        ),
    ],
)
def test_stratified_option_unfit_for_dataset_raises(options, details):
    with raises(InputError, **details):
        Stratified(**options, per_stratum=1).sample(sample_labels(), seed=0)


def test_stratified_is_loaded_by_name():
    spec = samplers.sampler("stratified", by="cell", precision=3, per_stratum=2, seed=9)
    loaded = samplers.load(samplers.SamplerSpec.from_json(spec.to_json()))
    assert loaded == Stratified(by="cell", precision=3, per_stratum=2)


# --- strata of everything, and quotas by name ------------------------------------------------


class TestMergedByCell(SamplerConformance):
    def make(self):
        return Stratified(by="cell", precision=2, per_stratum=4)


class TestMergedByName(SamplerConformance):
    def make(self):
        return Stratified(by="feature", feature="station", quotas={"KDEN": 9, "~": 2})


QUOTAS = [
    ({"by": "cell", "precision": 2}, {"9x": 3, "9v": 0}),
    ({"by": "time", "width": "1d"}, {"2012-03-01T00:00:00Z": 2, "2012-03-03T00:00:00Z": 5}),
    ({"by": "feature", "feature": "station"}, {"K/AB": 4, "~": 1}),
    ({"by": "feature", "feature": "level"}, {"0": 4, "3": 2}),
    ({"by": "feature", "feature": "raining"}, {"true": 4, "false": 2}),
    (
        {"by": "feature", "feature": "temperature", "edges": [273.15, 290]},
        {"below": 1, "273.15": 2, "290": 3, "~": 4},
    ),
]


def names_one_by_one(labels, options):
    """The name by which a quota is given, found label by label."""
    if options["by"] == "time":
        days = labels.buckets // 86_400_000_000
        return [f"2012-03-0{1 + day - 15400}T00:00:00Z" for day in days.tolist()]
    if options["by"] == "cell":
        return strata_one_by_one(labels, options)
    values = labels.table.column(options["feature"]).to_pylist()
    if "edges" in options:
        names = {None: "~", 0: "below", 1: "273.15", 2: "290"}
        return [names[number] for number in strata_one_by_one(labels, options)]
    texts = {None: "~", True: "true", False: "false"} if options["feature"] == "raining" else {}
    return [texts.get(value, "~" if value is None else str(value)) for value in values]


@pytest.mark.parametrize(("options", "quotas"), QUOTAS)
@pytest.mark.parametrize("otherwise", [None, 6])
def test_stratified_quotas_are_kept_per_stratum(options, quotas, otherwise):
    labels = sample_labels()
    chosen = Stratified(**options, quotas=quotas, per_stratum=otherwise)
    left = samplers.merge(chosen, samplers.apply(chosen, labels, seed=2), seed=2)
    names = names_one_by_one(labels, options)
    assert set(quotas) <= set(names)
    expected = {name: min(names.count(name), quotas.get(name, otherwise or 0)) for name in names}
    found = names_one_by_one(left, options)
    assert {name: found.count(name) for name in expected} == expected


def test_stratified_close_edges_have_distinct_names():
    labels = sample_labels()
    values = labels.table.column("temperature").drop_null().to_numpy()
    middle = float(np.median(values))
    edges = [middle, middle + 1e-6, middle + 2e-6, 1_013_251.0]
    names = [repr(edge) for edge in edges[:3]] + ["1013251"]
    chosen = Stratified(
        by="feature", feature="temperature", edges=edges, quotas={names[0]: 1, names[2]: 10_000}
    )
    left = samplers.merge(chosen, labels, seed=3).table.column("temperature").to_pylist()
    assert sum(value < edges[1] for value in left) == (1 if middle in values else 0)
    assert sum(value >= edges[2] for value in left) == int((values >= edges[2]).sum()) > 0
    assert Stratified(by="feature", feature="x", edges=edges, quotas={names[3]: 1})


@given(every_option, st.integers(0, 2**64 - 1))
def test_stratified_merge_of_samples_equals_merge_of_all(options, seed):
    labels, chosen = sample_labels(), Stratified(**options)
    if "fraction" in options:
        assert samplers.merge(chosen, labels, seed=seed) is labels
        return
    left = samplers.merge(chosen, samplers.apply(chosen, labels, seed=seed), seed=seed)
    assert left.table.equals(samplers.merge(chosen, labels, seed=seed).table)


def test_stratified_fraction_has_scope_commit():
    chosen = Stratified(by="cell", precision=2, fraction=0.5)
    assert samplers.scope_of(chosen) == "commit"
    with raises(InputError, expected="scope_of_fraction", option="scope"):
        Stratified(by="cell", precision=2, fraction=0.5, scope="global")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"by": "cell", "precision": 2, "quotas": {"9xj": 1}}, "quotas"),
        ({"by": "cell", "precision": 2, "quotas": {"9a": 1}}, "quotas"),
        ({"by": "time", "width": "1d", "quotas": {"2012-03-01": 1}}, "quotas"),
        ({"by": "time", "width": "1d", "quotas": {"2012-03-01T06:00:00Z": 1}}, "quotas"),
        ({"by": "feature", "feature": "x", "edges": [1, 2], "quotas": {"3": 1}}, "quotas"),
        ({"by": "feature", "feature": "x", "quotas": {}}, "quotas"),
        ({"by": "feature", "feature": "x", "quotas": [5]}, "quotas"),
        ({"by": "feature", "feature": "x", "quotas": {"a": -1}}, "quotas"),
        ({"by": "feature", "feature": "x", "quotas": {"a": 1}, "fraction": 0.5}, "per_stratum"),
        ({"by": "feature", "feature": "x", "per_stratum": 1, "scope": "x"}, "scope"),
    ],
)
def test_stratified_invalid_quotas_raises(options, option):
    with raises(InputError, option=option):
        Stratified(**options)


def labels_of_32_bits(values):
    """A label for each value of a feature of 32-bit floats, in commits of their own, with flags."""
    flags = Feature("qc", type="int", flags={1: "good", 4: "bad"})
    schema = Schema("sea", [Feature("t", type="float32"), flags])
    count = len(values)
    columns = {
        "cell": np.arange(count, dtype=np.uint64),
        "t": pa.array(values, pa.float32()),
        "qc": [1 + 3 * (row % 2) for row in range(count)],
        "rows": [1] * count,
        "row": [0] * count,
    }
    names = schema.label_schema.names
    zeros = {name: [0] * count for name in names if name not in columns}
    zeros |= {"sequence": range(1, count + 1)} if "sequence" in names else {}
    table = pa.table({**zeros, **columns}).select(names).cast(schema.label_schema)
    return LabelSet(schema, table)


def test_values_of_32_bits_are_in_the_interval_that_begins_with_them():
    values = [0.1, 4.3, 4.7, 17.9, 290.7]
    labels = labels_of_32_bits(values)
    for place, value in enumerate(values):
        quotas = {f"{value:g}": 100}
        sampler = Stratified(by="feature", feature="t", edges=[value], quotas=quotas)
        assert sampler.merge(labels, seed=1).tolist() == [False] * place + [True] * (5 - place)


@pytest.mark.parametrize(
    ("feature", "quotas", "kept"),
    [("t", {"4.7": 9}, [False, True, True, False]), ("qc", {"4": 9}, [False, True, False, True])],
)
def test_values_of_32_bits_and_flags_are_strata_by_their_short_texts(feature, quotas, kept):
    labels = labels_of_32_bits([0.1, 4.7, 4.7, None])
    sampler = Stratified(by="feature", feature=feature, quotas=quotas)
    assert sampler.merge(labels, seed=1).tolist() == kept
