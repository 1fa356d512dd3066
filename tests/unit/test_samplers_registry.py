"""Samplers: how they are named, found, constructed and held to their contract."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
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
def test_a_specification_survives_json(spec: SamplerSpec) -> None:
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
def test_text_that_is_no_specification_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"expected a sampler as `SamplerSpec.to_json` gives it"):
        SamplerSpec.from_json(text)


def test_a_seed_is_drawn_where_none_is_given() -> None:
    assert sampler("uniform", seed=7, fraction=0.1) == SamplerSpec("uniform", {"fraction": 0.1}, 7)
    drawn = {sampler("uniform").seed for _ in range(8)}
    assert len(drawn) == 8
    assert all(0 <= seed < 2**63 for seed in drawn)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x"])
def test_options_are_json(value: object) -> None:
    with pytest.raises(InputError, match="expected JSON values as options of sampler 'uniform'"):
        sampler("uniform", option=value)


# --- the registry ----------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_an_installed_sampler_is_found_and_constructed() -> None:
    even = samplers.load(SamplerSpec("everyother"))
    odd = samplers.load(SamplerSpec("everyother", {"odd": True}))
    assert samplers.apply(even, LABELS, seed=1).rows.tolist() == [0, 0]
    assert samplers.apply(odd, LABELS, seed=1).rows.tolist() == [1, 3]


@pytest.mark.usefixtures("installed")
def test_an_unknown_sampler_is_named_with_the_nearest() -> None:
    with pytest.raises(
        UnknownSampler, match=r"sampler 'evryother' is not installed; .* Installed: .*everyother"
    ) as caught:
        samplers.load(SamplerSpec("evryother"))
    assert "; did you mean 'everyother'? Installed: " in caught.value.message


@pytest.mark.usefixtures("installed")
def test_an_unknown_sampler_like_no_other_has_no_hint() -> None:
    with pytest.raises(UnknownSampler) as caught:
        samplers.load(SamplerSpec("zzzzzz"))
    assert "'zzzzzz' is not installed. Installed: " in caught.value.message


@pytest.mark.usefixtures("installed")
def test_options_that_a_sampler_does_not_take_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"'everyother' has no option 'even'.*; its options are odd"
    ):
        samplers.load(SamplerSpec("everyother", {"even": True}))
    with pytest.raises(InputError, match="expected odd to be a bool, got 1"):
        samplers.load(SamplerSpec("everyother", {"odd": 1}))


@pytest.mark.usefixtures("installed")
def test_a_class_that_cannot_sample_is_refused() -> None:
    with pytest.raises(InputError, match=r"sampler 'nosampler' has no method sample\(labels"):
        samplers.load(SamplerSpec("nosampler"))


# --- what a sampler may answer ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "came"),
    [
        ([1, 0, 1, 0], r"int64 of shape \(4,\)"),
        ([True], r"bool of shape \(1,\)"),
        ([[True] * 4], r"bool of shape \(1, 4\)"),
        (None, r"object of shape \(\)"),
    ],
)
def test_an_answer_that_is_no_mask_is_refused(answer: Any, came: str) -> None:
    with pytest.raises(InputError, match=f"to return 4 booleans, got {came}"):
        samplers.apply(Answering(answer), LABELS, seed=1)


def test_a_mask_keeps_its_labels() -> None:
    kept = samplers.apply(Answering([False, True, False, True]), LABELS, seed=1)
    assert kept.rows.tolist() == [1, 3]


def test_no_labels_need_no_sampler() -> None:
    assert len(samplers.apply(Answering("never asked"), LabelSet.empty(SCHEMA), seed=1)) == 0


# --- hashes ----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 9)), unique=True),
    st.integers(0, 2**64 - 1),
    st.randoms(use_true_random=False),
)
def test_a_hash_depends_on_the_label_and_the_seed_alone(
    places: list[tuple[int, int, int]], seed: int, shuffler: Any
) -> None:
    hashes = dict(zip(places, label_hashes(label_set(*places), seed=seed).tolist(), strict=True))
    assert len(set(hashes.values())) == len(places)
    shuffled = shuffler.sample(places, len(places))
    again = label_hashes(label_set(*shuffled), seed=seed).tolist()
    assert again == [hashes[place] for place in shuffled]


def test_hashes_are_uniform_and_differ_between_seeds() -> None:
    found = label_set(*((p, s, r) for p in range(4) for s in range(1, 26) for r in range(100)))
    one, other = (label_hashes(found, seed=seed) for seed in (1, 2))
    share = np.histogram(one / 2.0**64, bins=10, range=(0, 1))[0] / len(found)
    assert np.abs(share - 0.1).max() < 0.015
    assert (one == other).sum() == 0
    both = ((one < 2**63) & (other < 2**63)).mean()
    assert abs(both - 0.25) < 0.02


def test_uniforms_are_the_hashes_between_zero_and_one() -> None:
    found = label_set(*((0, s, r) for s in range(1, 6) for r in range(1000)))
    uniforms = samplers.label_uniforms(found, seed=3)
    assert (np.argsort(uniforms) == np.argsort(label_hashes(found, seed=3))).all()
    assert abs(uniforms.mean() - 0.5) < 4 * np.sqrt(1 / 12 / len(found))


@pytest.mark.parametrize("bits", [0, 2**64 - 1, 2**63])
def test_no_uniform_is_zero_or_one(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = np.full(len(LABELS), bits, dtype=np.uint64)
    monkeypatch.setattr(samplers, "label_hashes", lambda labels, seed: hashes)
    uniforms = samplers.label_uniforms(LABELS, seed=1)
    assert (uniforms > 0).all()
    assert (uniforms < 1).all()


def test_positions_are_the_centres_of_cells() -> None:
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


def test_only_samplers_with_a_scope_merge() -> None:
    assert samplers.scope_of(EveryOther()) == "commit"
    assert samplers.merge(EveryOther(), LABELS, seed=1) is LABELS
    assert samplers.merge(FirstRows(), LABELS, seed=1).rows.tolist() == [0, 0]
    assert len(samplers.merge(FirstRows(), LabelSet.empty(SCHEMA), seed=1)) == 0


def test_a_merged_sample_is_of_the_class_that_came() -> None:
    class Found(LabelSet):
        pass

    kept = samplers.merge(FirstRows(), Found(SCHEMA, LABELS.table, missing=[4]), seed=1)
    assert type(kept) is Found
    assert kept.missing == (4,)


@pytest.mark.parametrize(
    ("scope", "base", "match"),
    [
        ("everywhere", FirstRows, "expected a scope of .*'global'.* of 'x', got 'everywhere'"),
        ("node", EveryOther, "'x' has scope 'node', and so needs regroups and merge"),
    ],
)
def test_a_scope_that_cannot_be_kept_is_refused(scope: str, base: type, match: str) -> None:
    with pytest.raises(InputError, match=match):
        samplers.construct(type("Made", (base,), {"scope": scope}), SamplerSpec("x"))


def test_a_merge_that_gives_no_mask_is_refused() -> None:
    made = FirstRows()
    made.merge = lambda labels, *, seed: np.arange(2)  # type: ignore[method-assign,misc]
    with pytest.raises(InputError, match=r"to return 4 booleans, got int64 of shape \(2,\)"):
        samplers.merge(made, LABELS, seed=1)


def test_what_was_fetched_is_merged_by_its_specification() -> None:
    spec = sampler("reservoir", n=2, seed=5)
    kept = samplers.merged(spec, LABELS)
    hashes = label_hashes(LABELS, seed=5)
    assert sorted(label_hashes(kept, seed=5).tolist()) == sorted(hashes.tolist())[:2]
    with pytest.raises(UnknownSampler):
        samplers.merged(sampler("nothing"), LABELS)
