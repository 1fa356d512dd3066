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
        made = self.make()
        assert isinstance(made, Sampler), f"{made!r} has no method sample(labels, *, seed)"

    def test_it_returns_a_mask_of_one_boolean_per_label(self) -> None:
        given = self._given()
        for part in (given, given.taken(np.arange(1))):
            mask = part.shown_to(self.make(), seed=1)
            assert isinstance(mask, np.ndarray), f"expected a NumPy array, got {type(mask)}"
            assert mask.dtype == np.bool_, f"expected booleans, got {mask.dtype}"
            count = len(part.labels)
            assert mask.shape == (count,), f"expected {count} booleans, got {mask.shape}"

    def test_it_is_deterministic(self) -> None:
        given, one = self._given(), self.make()
        for seed in SEEDS:
            first = given.kept(one, seed=seed)
            assert given.kept(one, seed=seed) == first, "a second call chose otherwise"
            assert given.kept(self.make(), seed=seed) == first, "a new instance chose otherwise"

    def test_the_order_of_the_labels_does_not_matter(self) -> None:
        given, made = self._given(), self.make()
        expected = given.kept(made, seed=1)
        for number in range(5):
            order = np.random.default_rng(number).permutation(len(given.labels))
            found = given.taken(order).kept(made, seed=1)
            assert found == expected, "the same labels in another order gave another choice"

    def test_the_grouping_of_commits_does_not_matter(self) -> None:
        given, made = self._given(), self.make()
        commits = _commits(given.labels)
        expected = given.kept(made, seed=1)
        for size in (1, 2, 3, len(commits) - 1):
            groups = [commits[at : at + size] for at in range(0, len(commits), size)]
            found = [given.taken(np.concatenate(rows)).kept(made, seed=1) for rows in groups]
            assert set().union(*found) == expected, (
                f"sampled {size} commits at a time, other labels are kept than all at once: "
                "the choice must depend on labels of the same commit only"
            )

    def test_labels_may_have_no_observations(self) -> None:
        given = self._given()
        if given.observations is None:
            raise SkipTest("it does not look at observations")
        halves = given.observations.filter(
            pa.array(given.observations.column(LABEL).to_numpy() % 2 == 0)
        )
        for some in (halves, halves.slice(0, 0)):
            mask = Given(given.labels, some).shown_to(self.make(), seed=1)
            assert np.shape(mask) == (len(given.labels),), (
                "where a label has no observation that matches exactly, there is none of it"
            )

    def test_the_seed_matters_or_is_declared_not_to(self) -> None:
        given, made = self._given(), self.make()
        choices = {frozenset(given.kept(made, seed=seed)) for seed in SEEDS}
        if self.seed_matters:
            assert len(choices) > 1, "no seed changed anything; declare seed_matters = False"
        else:
            assert len(choices) == 1, "a seed changed the choice; declare seed_matters = True"

    def test_the_store_accepts_what_it_returns(self) -> None:
        given, made = self._given(), self.make()
        for seed in SEEDS:
            assert set(identities(given.thinned(made, seed=seed))) == given.kept(made, seed=seed)

    def test_its_scope_is_one_that_it_can_keep(self) -> None:
        made = self.make()
        scope = scope_of(made)
        assert scope in get_args(Scope), f"expected a scope of {get_args(Scope)}, got {scope!r}"
        if scope != "commit":
            assert isinstance(made, MergingSampler), (
                f"a scope {scope!r} needs regroups and merge(labels, *, seed)"
            )

    def test_the_order_in_which_samples_are_merged_does_not_matter(self) -> None:
        made, samples = self._samples()
        expected = merged(made, samples, seed=1)
        for number in range(5):
            order = np.random.default_rng(number).permutation(len(samples))
            found = merged(made, _taken(samples, order), seed=1)
            assert found == expected, "the same samples in another order were merged otherwise"

    def test_merging_is_deterministic(self) -> None:
        made, samples = self._samples()
        for seed in SEEDS:
            first = merged(made, samples, seed=seed)
            assert merged(made, samples, seed=seed) == first, "a second call chose otherwise"
            again = merged(self._merging(), samples, seed=seed)
            assert again == first, "a new instance chose otherwise"

    def test_samples_can_be_merged_in_groups_if_it_says_so(self) -> None:
        made, samples = self._samples()
        if not made.regroups:
            raise SkipTest("regroups is False: everything is merged at once")
        commits = _commits(samples)
        expected = merged(made, samples, seed=1)
        for size in (1, 2, 3, len(commits)):
            groups = [commits[at : at + size] for at in range(0, len(commits), size)]
            parts = [_taken(samples, np.concatenate(rows)) for rows in groups]
            thinner = [merge(made, part, seed=1) for part in parts]
            found = merged(made, LabelSet.concat(samples.schema, thinner), seed=1)
            assert found == expected, (
                f"merged {size} commits at a time and then again, other labels are kept than all "
                "at once: declare regroups = False"
            )

    def _given(self) -> Given:
        labels = self.labels()
        is_observing = needs_observations(self.make())
        return Given(labels, self.observations(labels) if is_observing else None)

    def _merging(self) -> MergingSampler:
        made = self.make()
        if scope_of(made) == "commit" or not isinstance(made, MergingSampler):
            raise SkipTest("its scope is a commit: nothing is merged")
        return made

    def _samples(self) -> tuple[MergingSampler, LabelSet]:
        """The sampler, and what it keeps of each commit."""
        made = self._merging()
        return made, self._given().thinned(made, seed=1)


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What a sampler is shown.

    Attributes:
        labels: whole commits.
        observations: of the labels; None for a sampler that does not look at them.
    """

    labels: LabelSet
    observations: pa.Table | None = None

    def shown_to(self, chosen: Sampler, *, seed: int) -> Any:
        """Whatever the sampler answers."""
        labels = shown(chosen, self.labels)
        if self.observations is None:
            return chosen.sample(labels, seed=seed)
        observing: Any = chosen
        return observing.sample(labels, observations=self.observations, seed=seed)

    def kept(self, chosen: Sampler, *, seed: int) -> set[Identity]:
        """Identities of the labels that a sampler keeps."""
        return set(identities(self.labels.where(np.asarray(self.shown_to(chosen, seed=seed)))))

    def thinned(self, chosen: Sampler, *, seed: int) -> LabelSet:
        """What the store makes of the answer."""
        return apply(chosen, self.labels, seed=seed, observations=self.observations)

    def taken(self, rows: npt.NDArray[np.int64]) -> Given:
        """Some of the labels in another order, with their observations."""
        labels = _taken(self.labels, rows)
        if self.observations is None:
            return Given(labels)
        place = np.full(len(self.labels), -1)
        place[rows] = np.arange(len(rows))
        numbers = place[self.observations.column(LABEL).to_numpy()]
        order = np.argsort(numbers, kind="stable")[int((numbers < 0).sum()) :]
        return Given(labels, _numbered(self.observations.take(pa.array(order)), numbers[order]))


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
    return _taken(labels, rng.permutation(size))


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


def merged(chosen: MergingSampler, samples: LabelSet, *, seed: int) -> set[Identity]:
    """Identities of the labels that are left when samples are merged."""
    mask = np.asarray(chosen.merge(shown(chosen, samples), seed=seed))
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


def _taken(labels: LabelSet, rows: npt.NDArray[np.int64]) -> LabelSet:
    return LabelSet(labels.schema, labels.table.take(pa.array(rows)))
