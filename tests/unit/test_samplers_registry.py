"""Samplers: how they are named, found, constructed and held to their contract."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo import samplers
from galileo.errors import InputError, UnknownSampler
from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.model.schema import Feature, Schema
from galileo.samplers import SamplerSpec, label_hashes, sampler

SCHEMA = Schema("s", [Feature("t")])

options = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(max_size=8), max_size=4
)
specs = st.builds(SamplerSpec, st.text(max_size=8), options, st.integers(0, 2**63 - 1))


class EveryOther:
    """Keeps the labels whose row is even, or odd when asked."""

    def __init__(self, *, odd: bool = False) -> None:
        if not isinstance(odd, bool):
            raise InputError(f"expected odd to be a bool, got {odd!r}")
        self._remainder = int(odd)

    def sample(self, labels: LabelSet, *, seed: int) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = labels.rows % 2 == self._remainder
        return mask


class Answering:
    """Returns what it was given, whatever that is."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def sample(self, labels: LabelSet, *, seed: int) -> npt.NDArray[np.bool_]:
        answer: npt.NDArray[np.bool_] = self._answer
        return answer


class NotASampler:
    pass


@pytest.fixture
def installed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real distribution on the path, whose entry points name the classes of this module."""
    info = tmp_path / "everyother-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: everyother\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{samplers.ENTRY_POINTS}]\n"
        "everyother = everyother_module:EveryOther\n"
        "nosampler = everyother_module:NotASampler\n"
    )
    (tmp_path / "everyother_module.py").write_text(
        "import sys\n"
        f"home = sys.modules[{__name__!r}]\n"
        "EveryOther, NotASampler = home.EveryOther, home.NotASampler\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "everyother_module", raising=False)
    assert "everyother" in metadata.entry_points(group=samplers.ENTRY_POINTS).names


def label_set(*places: tuple[int, int, int]) -> LabelSet:
    rows = [
        {"cell": 1, "bucket": 0, "t": 1.0, "rows": 1, "partition": p, "sequence": s, "row": r}
        for p, s, r in places
    ]
    return LabelSet(SCHEMA, pa.Table.from_pylist(rows, schema=SCHEMA.label_schema))


LABELS = label_set((0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 3))


# --- specifications --------------------------------------------------------------------------


@given(specs)
def test_sampler_spec_json_round_trip_is_equal(spec: SamplerSpec) -> None:
    again = SamplerSpec.from_json(spec.to_json())
    assert again == spec
    assert hash(again) == hash(spec)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "{}",
        '{"name":"a","options":{}}',
        '{"name":"a","options":5,"seed":1}',
        '{"name":"a","options":{},"seed":"x"}',
        '{"name":"a","options":{},"seed":Infinity}',
        '{"name":"a","options":{},"seed":NaN}',
    ],
)
def test_sampler_spec_from_json_other_text_raises(text: str) -> None:
    with raises(InputError, expected="sampler_spec"):
        SamplerSpec.from_json(text)


def test_sampler_without_seed_draws_one() -> None:
    assert sampler("uniform", seed=7, fraction=0.1) == SamplerSpec("uniform", {"fraction": 0.1}, 7)
    drawn = {sampler("uniform").seed for _ in range(8)}
    assert len(drawn) == 8
    assert all(0 <= seed < 2**63 for seed in drawn)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x"])
def test_sampler_option_of_other_type_raises(value: object) -> None:
    with raises(InputError, expected="json", sampler="uniform"):
        sampler("uniform", option=value)


# --- the registry ----------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_load_installed_sampler_is_constructed() -> None:
    even = samplers.load(SamplerSpec("everyother"))
    odd = samplers.load(SamplerSpec("everyother", {"odd": True}))
    assert samplers.apply(even, LABELS, seed=1).rows.tolist() == [0, 0]
    assert samplers.apply(odd, LABELS, seed=1).rows.tolist() == [1, 3]


@pytest.mark.usefixtures("installed")
def test_load_unknown_sampler_raises_with_nearest() -> None:
    with raises(UnknownSampler, sampler="evryother", nearest="everyother"):
        samplers.load(SamplerSpec("evryother"))


@pytest.mark.usefixtures("installed")
def test_load_unlike_sampler_raises_without_nearest() -> None:
    with raises(UnknownSampler, sampler="zzzzzz", nearest=None):
        samplers.load(SamplerSpec("zzzzzz"))


@pytest.mark.usefixtures("installed")
def test_load_unknown_or_invalid_option_raises() -> None:
    with raises(
        InputError, expected="known_option", sampler="everyother", option="even", nearest=None
    ):
        samplers.load(SamplerSpec("everyother", {"even": True}))
    with pytest.raises(InputError):  # of the sampler's own making
        samplers.load(SamplerSpec("everyother", {"odd": 1}))


@pytest.mark.usefixtures("installed")
def test_load_class_without_sample_raises() -> None:
    with raises(InputError, expected="sample", sampler="nosampler"):
        samplers.load(SamplerSpec("nosampler"))


# --- what a sampler may answer ---------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", [[1, 0, 1, 0], [True], [[True] * 4], None], ids=["int", "short", "nested", "none"]
)
def test_apply_result_of_other_type_raises(answer: Any) -> None:
    with raises(InputError, expected="booleans"):
        samplers.apply(Answering(answer), LABELS, seed=1)


def test_apply_mask_keeps_its_labels() -> None:
    kept = samplers.apply(Answering([False, True, False, True]), LABELS, seed=1)
    assert kept.rows.tolist() == [1, 3]


def test_apply_no_labels_calls_no_sampler() -> None:
    assert len(samplers.apply(Answering("never asked"), LabelSet.empty(SCHEMA), seed=1)) == 0


# --- hashes ----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 9)), unique=True),
    st.integers(0, 2**64 - 1),
    st.randoms(use_true_random=False),
)
def test_label_hashes_random_labels_depend_on_label_and_seed(
    places: list[tuple[int, int, int]], seed: int, shuffler: Any
) -> None:
    hashes = dict(zip(places, label_hashes(label_set(*places), seed=seed).tolist(), strict=True))
    assert len(set(hashes.values())) == len(places)
    shuffled = shuffler.sample(places, len(places))
    again = label_hashes(label_set(*shuffled), seed=seed).tolist()
    assert again == [hashes[place] for place in shuffled]


def test_label_hashes_are_uniform_and_differ_between_seeds() -> None:
    found = label_set(*((p, s, r) for p in range(4) for s in range(1, 26) for r in range(100)))
    one, other = (label_hashes(found, seed=seed) for seed in (1, 2))
    share = np.histogram(one / 2.0**64, bins=10, range=(0, 1))[0] / len(found)
    assert np.abs(share - 0.1).max() < 0.015
    assert (one == other).sum() == 0
    both = ((one < 2**63) & (other < 2**63)).mean()
    assert abs(both - 0.25) < 0.02


def test_label_uniforms_keep_order_of_hashes() -> None:
    found = label_set(*((0, s, r) for s in range(1, 6) for r in range(1000)))
    uniforms = samplers.label_uniforms(found, seed=3)
    assert (np.argsort(uniforms) == np.argsort(label_hashes(found, seed=3))).all()
    assert abs(uniforms.mean() - 0.5) < 4 * np.sqrt(1 / 12 / len(found))


@pytest.mark.parametrize("bits", [0, 2**64 - 1, 2**63])
def test_label_uniforms_extreme_hashes_stay_inside(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = np.full(len(LABELS), bits, dtype=np.uint64)
    monkeypatch.setattr(samplers, "label_hashes", lambda labels, seed: hashes)
    uniforms = samplers.label_uniforms(LABELS, seed=1)
    assert (uniforms > 0).all()
    assert (uniforms < 1).all()


def test_positions_are_centres_of_cells() -> None:
    cells = geohash.encode([10.0, -89.9, 89.9], [20.0, -179.9, 179.9], SCHEMA.geohash_precision)
    table = label_set((0, 1, 0), (0, 1, 1), (0, 1, 2)).table.set_column(
        0, SCHEMA.label_schema.field(0), [cells]
    )
    latitude, longitude = samplers.positions(LabelSet(SCHEMA, table))
    assert (geohash.encode(latitude, longitude, SCHEMA.geohash_precision) == cells).all()
    west, south, east, north = geohash.bounds(cells, SCHEMA.geohash_precision)
    assert latitude.tolist() == ((south + north) / 2).tolist()
    assert longitude.tolist() == ((west + east) / 2).tolist()


# --- samples of many commits -----------------------------------------------------------------


class FirstRows(EveryOther):
    """Of everything the label with the smallest row."""

    scope: str = "global"
    regroups = True

    def merge(self, labels: LabelSet, *, seed: int) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = labels.rows == labels.rows.min()
        return mask


def test_merge_sampler_without_scope_changes_nothing() -> None:
    assert samplers.scope_of(EveryOther()) == "commit"
    assert samplers.merge(EveryOther(), LABELS, seed=1) is LABELS
    assert samplers.merge(FirstRows(), LABELS, seed=1).rows.tolist() == [0, 0]
    assert len(samplers.merge(FirstRows(), LabelSet.empty(SCHEMA), seed=1)) == 0


def test_merge_keeps_class_of_labels() -> None:
    class Found(LabelSet):
        pass

    kept = samplers.merge(FirstRows(), Found(SCHEMA, LABELS.table, missing=[4]), seed=1)
    assert type(kept) is Found
    assert kept.missing == (4,)


@pytest.mark.parametrize(
    ("scope", "base", "expected"),
    [("everywhere", FirstRows, "scope"), ("node", EveryOther, "merge")],
)
def test_construct_invalid_scope_raises(scope: str, base: type, expected: str) -> None:
    with raises(InputError, expected=expected):
        samplers.construct(type("Made", (base,), {"scope": scope}), SamplerSpec("x"))


def test_merge_result_of_other_type_raises() -> None:
    made = FirstRows()
    made.merge = lambda labels, *, seed: np.arange(2)  # type: ignore[method-assign,misc]
    with raises(InputError, expected="booleans"):
        samplers.merge(made, LABELS, seed=1)


def test_merged_labels_by_spec_are_sampled() -> None:
    spec = sampler("reservoir", n=2, seed=5)
    kept = samplers.merged(spec, LABELS)
    hashes = label_hashes(LABELS, seed=5)
    assert sorted(label_hashes(kept, seed=5).tolist()) == sorted(hashes.tolist())[:2]
    with pytest.raises(UnknownSampler):
        samplers.merged(sampler("nothing"), LABELS)
