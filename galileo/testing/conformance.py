"""What every sampler must do, as tests to inherit.

    class TestEveryNth(SamplerConformance):
        def make(self) -> Sampler:
            return EveryNth(n=10)

pytest then checks the rule on which exactly-once rests for sampled queries: the decision about
a label depends on the labels of the same commit, the options and the seed, and on nothing else
(`galileo.samplers`); and where samples are merged, that the way there changes nothing. The checks
run on `sample_labels()` unless `labels` is overridden, and a sampler that looks at observations
gets `sample_observations()` with them unless `observations` is. `verdicts` runs them without
pytest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args
from unittest import SkipTest

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.samplers import (
    LABEL,
    MergingSampler,
    Sampler,
    Scope,
    apply,
    merge,
    needs_observations,
    scope_of,
    shown,
)

SEEDS = (0, 1, 2, 3, 0x9E3779B97F4A7C15, 2**64 - 1)
HOUR_US = 3_600_000_000
START_US = 1_330_581_600_000_000  # 2012-03-01T06:00:00Z
COMMIT_SIZES = (1, 2, 7, 30, 64, 100, 250, 400)

Identity = tuple[int, int, int]


class SamplerConformance:
    """Tests of one sampler with one set of options; subclass it with a name on `Test`.

    Attributes:
        seed_matters: whether another seed may give another choice. A sampler that ignores its
            seed says False, and is then held to it.
    """

    seed_matters: ClassVar[bool] = True

    def make(self) -> Sampler:
        """A new sampler with the options to test."""
        raise NotImplementedError("override make() to return the sampler that is to be tested")

    def labels(self) -> LabelSet:
        """Whole commits, several of them, in no particular order."""
        return sample_labels()

    def observations(self, labels: LabelSet) -> pa.Table:
        """Those behind the labels, for a sampler that looks at them; see `ObservingSampler`."""
        return sample_observations(labels)

    def test_it_is_a_sampler(self) -> None:
        sampler = self.make()
        assert isinstance(sampler, Sampler), f"{sampler!r} has no method sample(labels, *, seed)"

    def test_it_returns_a_mask_of_one_boolean_per_label(self) -> None:
        data = self._input()
        for part in (data, data.take(np.arange(1))):
            mask = part.mask_of(self.make(), seed=1)
            assert isinstance(mask, np.ndarray), f"expected a NumPy array, got {type(mask)}"
            assert mask.dtype == np.bool_, f"expected booleans, got {mask.dtype}"
            count = len(part.labels)
            assert mask.shape == (count,), f"expected {count} booleans, got {mask.shape}"

    def test_it_is_deterministic(self) -> None:
        data, sampler = self._input(), self.make()
        for seed in SEEDS:
            first = data.keep(sampler, seed=seed)
            assert data.keep(sampler, seed=seed) == first, "a second call chose otherwise"
            assert data.keep(self.make(), seed=seed) == first, "a new instance chose otherwise"

    def test_the_order_of_the_labels_does_not_matter(self) -> None:
        data, sampler = self._input(), self.make()
        expected = data.keep(sampler, seed=1)
        for number in range(5):
            order = np.random.default_rng(number).permutation(len(data.labels))
            assert data.take(order).keep(sampler, seed=1) == expected, (
                "the same labels in another order gave another choice"
            )

    def test_the_grouping_of_commits_does_not_matter(self) -> None:
        data, sampler = self._input(), self.make()
        commits = _commits(data.labels)
        expected = data.keep(sampler, seed=1)
        for size in (1, 2, 3, len(commits) - 1):
            groups = [commits[at : at + size] for at in range(0, len(commits), size)]
            samples = [data.take(np.concatenate(rows)).keep(sampler, seed=1) for rows in groups]
            assert set().union(*samples) == expected, (
                f"sampled {size} commits at a time, other labels are kept than all at once: "
                "the choice must depend on labels of the same commit only"
            )

    def test_labels_may_have_no_observations(self) -> None:
        data = self._input()
        if data.observations is None:
            raise SkipTest("it does not look at observations")
        halves = data.observations.filter(
            pa.array(data.observations.column(LABEL).to_numpy() % 2 == 0)
        )
        for some in (halves, halves.slice(0, 0)):
            mask = SamplerInput(data.labels, some).mask_of(self.make(), seed=1)
            assert np.shape(mask) == (len(data.labels),), (
                "where a label has no observation that matches exactly, there is none of it"
            )

    def test_the_seed_matters_or_is_declared_not_to(self) -> None:
        data, sampler = self._input(), self.make()
        choices = {frozenset(data.keep(sampler, seed=seed)) for seed in SEEDS}
        if self.seed_matters:
            assert len(choices) > 1, "no seed changed anything; declare seed_matters = False"
        else:
            assert len(choices) == 1, "a seed changed the choice; declare seed_matters = True"

    def test_the_store_accepts_what_it_returns(self) -> None:
        data, sampler = self._input(), self.make()
        for seed in SEEDS:
            assert set(identities(data.sample(sampler, seed=seed))) == data.keep(sampler, seed=seed)

    def test_its_scope_is_one_that_it_can_keep(self) -> None:
        sampler = self.make()
        scope = scope_of(sampler)
        assert scope in get_args(Scope), f"expected a scope of {get_args(Scope)}, got {scope!r}"
        if scope != "commit":
            assert isinstance(sampler, MergingSampler), (
                f"a scope {scope!r} needs regroups and merge(labels, *, seed)"
            )

    def test_the_order_in_which_samples_are_merged_does_not_matter(self) -> None:
        sampler, samples = self._samples()
        expected = merged(sampler, samples, seed=1)
        for number in range(5):
            order = np.random.default_rng(number).permutation(len(samples))
            assert merged(sampler, _take(samples, order), seed=1) == expected, (
                "the same samples in another order were merged otherwise"
            )

    def test_merging_is_deterministic(self) -> None:
        sampler, samples = self._samples()
        for seed in SEEDS:
            first = merged(sampler, samples, seed=seed)
            assert merged(sampler, samples, seed=seed) == first, "a second call chose otherwise"
            again = merged(self._merging(), samples, seed=seed)
            assert again == first, "a new instance chose otherwise"

    def test_samples_can_be_merged_in_groups_if_it_says_so(self) -> None:
        sampler, samples = self._samples()
        if not sampler.regroups:
            raise SkipTest("regroups is False: everything is merged at once")
        commits = _commits(samples)
        expected = merged(sampler, samples, seed=1)
        for size in (1, 2, 3, len(commits)):
            groups = [commits[at : at + size] for at in range(0, len(commits), size)]
            parts = [_take(samples, np.concatenate(rows)) for rows in groups]
            thinner = [merge(sampler, part, seed=1) for part in parts]
            labels = LabelSet.concat(samples.schema, thinner)
            assert merged(sampler, labels, seed=1) == expected, (
                f"merged {size} commits at a time and then again, other labels are kept than all "
                "at once: declare regroups = False"
            )

    def _input(self) -> SamplerInput:
        labels = self.labels()
        is_observing = needs_observations(self.make())
        return SamplerInput(labels, self.observations(labels) if is_observing else None)

    def _merging(self) -> MergingSampler:
        sampler = self.make()
        if scope_of(sampler) == "commit" or not isinstance(sampler, MergingSampler):
            raise SkipTest("its scope is a commit: nothing is merged")
        return sampler

    def _samples(self) -> tuple[MergingSampler, LabelSet]:
        """The sampler, and what it keeps of each commit."""
        sampler = self._merging()
        return sampler, self._input().sample(sampler, seed=1)


@dataclass(frozen=True, slots=True, eq=False)
class SamplerInput:
    """The arguments of a call of a sampler.

    Attributes:
        labels: whole commits.
        observations: of the labels; None for a sampler that does not look at them.
    """

    labels: LabelSet
    observations: pa.Table | None = None

    def mask_of(self, sampler: Sampler, *, seed: int) -> Any:
        """The return value of the sampler."""
        labels = shown(sampler, self.labels)
        if self.observations is None:
            return sampler.sample(labels, seed=seed)
        observing: Any = sampler
        return observing.sample(labels, observations=self.observations, seed=seed)

    def keep(self, sampler: Sampler, *, seed: int) -> set[Identity]:
        """Identities of the labels that a sampler keeps."""
        return set(identities(self.labels.where(np.asarray(self.mask_of(sampler, seed=seed)))))

    def sample(self, sampler: Sampler, *, seed: int) -> LabelSet:
        """The sample as the store takes it."""
        return apply(sampler, self.labels, seed=seed, observations=self.observations)

    def take(self, rows: npt.NDArray[np.int64]) -> SamplerInput:
        """Some of the labels in another order, with their observations."""
        labels = _take(self.labels, rows)
        if self.observations is None:
            return SamplerInput(labels)
        place = np.full(len(self.labels), -1)
        place[rows] = np.arange(len(rows))
        numbers = place[self.observations.column(LABEL).to_numpy()]
        order = np.argsort(numbers, kind="stable")[int((numbers < 0).sum()) :]
        return SamplerInput(
            labels, _numbered(self.observations.take(pa.array(order)), numbers[order])
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one check; the message says why it did not pass."""

    check: str
    outcome: Literal["passed", "skipped", "failed"]
    message: str = ""


def verdicts(checks: type[SamplerConformance]) -> Sequence[Verdict]:
    """Runs the checks of a conformance class, those that it adds among them, in alphabetic order.

    Whatever a check raises is its verdict.
    """
    names = [name for name in dir(checks) if name.startswith("test_")]
    return [_verdict(checks(), name) for name in names]


def _verdict(checks: SamplerConformance, name: str) -> Verdict:
    words = name.removeprefix("test_").replace("_", " ")
    try:
        getattr(checks, name)()
    except SkipTest as reason:
        return Verdict(words, "skipped", str(reason))
    except AssertionError as error:
        return Verdict(words, "failed", str(error))
    except Exception as error:
        return Verdict(words, "failed", f"{type(error).__name__}: {error}")
    return Verdict(words, "passed")


def sample_labels(*, seed: int = 0) -> LabelSet:
    """Labels of eight commits of unequal size in three partitions, shuffled.

    The dataset `conformance` has geohashes of precision 5, hourly buckets, and the features
    temperature (K), level (int), station (text) and raining (bool), all with missing values; and
    pressure (Pa), which is not indexed, so that only observations have it.
    """
    rng = np.random.default_rng(seed)
    schema = Schema(
        "conformance",
        [
            Feature("temperature", "K"),
            Feature("level", "m", type="int"),
            Feature("station", type="text"),
            Feature("raining", type="bool"),
            Feature("pressure", "Pa", indexed=False),
        ],
    )
    commits = np.repeat(np.arange(len(COMMIT_SIZES)), COMMIT_SIZES)
    size = len(commits)
    latitude, longitude = rng.uniform(30, 42, size), rng.uniform(-110, -90, size)
    columns = {
        "cell": geohash.encode(latitude, longitude, schema.geohash_precision),
        "bucket": START_US + rng.integers(0, 48, size) * HOUR_US,
        "temperature": pa.array(rng.normal(285, 8, size), mask=rng.random(size) < 0.1),
        "level": pa.array(rng.integers(0, 4, size), mask=rng.random(size) < 0.1),
        "station": pa.array(rng.choice(["KDEN", "KBOU", "K/AB"], size), mask=commits % 3 == 1),
        "raining": pa.array(rng.random(size) < 0.5, mask=rng.random(size) < 0.1),
        "row": np.concatenate([np.arange(count) for count in COMMIT_SIZES]),
        "rows": rng.integers(1, 9, size),
        "partition": commits % 3,
        "sequence": 1 + commits // 3,
    }
    fields = {name: _column(columns[name], schema.label_schema.field(name)) for name in columns}
    labels = LabelSet(schema, pa.table(fields, schema=schema.label_schema))
    return _take(labels, rng.permutation(size))


def sample_observations(labels: LabelSet, *, seed: int = 0) -> pa.Table:
    """Observations behind labels, as many as each has rows, anywhere in its cell and bucket.

    Indexed features have the label's values; others are drawn. Whatever the order of the labels,
    one label has the same observations.
    """
    schema, rng = labels.schema, np.random.default_rng(seed)
    order = np.lexsort((labels.rows, labels.sequences, labels.partitions))
    counts = labels.table.column("rows").to_numpy()[order]
    places = np.repeat(order, counts)
    west, south, east, north = geohash.bounds(labels.cells[places], schema.geohash_precision)
    size = len(places)
    micros = labels.buckets[places] + rng.integers(0, schema.time_bucket_us, size)
    columns: dict[str, Any] = {
        "latitude": south + (north - south) * rng.random(size),
        "longitude": west + (east - west) * rng.random(size),
        "time": micros,
    }
    for feature in schema.features:
        if feature.indexed:
            columns[feature.name] = labels.table.column(feature.name).take(pa.array(places))
        else:
            drawn = rng.integers(0, 2 if feature.type == "bool" else 1_000, size)
            columns[feature.name] = pa.array(drawn).cast(feature.arrow_type)
    fields = {
        field.name: _column(columns[field.name], field) for field in schema.observation_schema
    }
    table = pa.table(fields, schema=schema.observation_schema)
    by_label = np.argsort(places, kind="stable")
    return _numbered(table.take(pa.array(by_label)), places[by_label])


def _numbered(table: pa.Table, numbers: npt.NDArray[np.integer[Any]]) -> pa.Table:
    field = pa.field(LABEL, pa.int32(), nullable=False)
    if LABEL in table.column_names:
        table = table.drop_columns([LABEL])
    return table.append_column(field, pa.array(numbers, field.type))


def merged(sampler: MergingSampler, samples: LabelSet, *, seed: int) -> set[Identity]:
    """Identities of the labels that are left when samples are merged."""
    mask = np.asarray(sampler.merge(shown(sampler, samples), seed=seed))
    assert mask.dtype == np.bool_, f"expected booleans of merge, got {mask.dtype}"
    assert mask.shape == (len(samples),), (
        f"expected {len(samples)} booleans of merge, got {mask.shape}"
    )
    return set(identities(samples.where(mask)))


def identities(labels: LabelSet) -> list[Identity]:
    """Partition, commit sequence and row of each label."""
    columns = (labels.partitions, labels.sequences, labels.rows)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _column(values: Any, field: pa.Field) -> pa.Array:
    is_arrow = isinstance(values, pa.Array | pa.ChunkedArray)
    return (values if is_arrow else pa.array(values)).cast(field.type)


def _commits(labels: LabelSet) -> list[npt.NDArray[np.int64]]:
    """The rows of each commit."""
    keys = np.stack([labels.partitions, labels.sequences])
    _, inverse = np.unique(keys, axis=1, return_inverse=True)
    return [np.flatnonzero(inverse == number) for number in range(int(inverse.max()) + 1)]


def _take(labels: LabelSet, rows: npt.NDArray[np.int64]) -> LabelSet:
    return LabelSet(labels.schema, labels.table.take(pa.array(rows)))
