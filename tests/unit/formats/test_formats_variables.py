from __future__ import annotations

import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError, UnknownProperty
from galileo.formats.variables import (
    VariableInfo,
    default_features,
    feature_name,
    qualified_name,
    resolve,
    split_name,
)
from galileo.model.schema import Feature

LEVELS = [
    VariableInfo("t@surface"),
    VariableInfo("t@isobaricInhPa:850"),
    VariableInfo("t@isobaricInhPa:500"),
    VariableInfo("2t@heightAboveGround:2", aliases=("t2m", "t")),
    VariableInfo("tp@surface@accum@over:6"),
    VariableInfo("tp@surface@accum@over:3"),
]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("t@surface", "t@surface"),
        ("t@surface:0", "t@surface"),
        ("t@isobaricInhPa:850", "t@isobaricInhPa:850"),
        ("2t", "2t@heightAboveGround:2"),
        ("t2m", "2t@heightAboveGround:2"),
        ("t@heightAboveGround:2", "2t@heightAboveGround:2"),
        ("t2m@heightAboveGround", "2t@heightAboveGround:2"),
        ("tp@over:3", "tp@surface@accum@over:3"),
    ],
)
def test_resolve_full_or_short_name(text: str, name: str) -> None:
    assert resolve(LEVELS, text).name == name


def test_resolve_ambiguous_name_lists_candidates() -> None:
    candidates = ["t@surface", "t@isobaricInhPa:850", "t@isobaricInhPa:500"]
    with raises(InputError, expected="one_variable", variable="t", candidates=candidates):
        resolve(LEVELS, "t")
    with raises(InputError, expected="one_variable", variable="t@isobaricInhPa"):
        resolve(LEVELS, "t@isobaricInhPa")


def test_resolve_unknown_name_suggests_the_nearest() -> None:
    with raises(UnknownProperty, nearest="t@surface", variable="t@surfce"):
        resolve(LEVELS, "t@surfce")


def test_resolve_many_candidates_names_first_twelve() -> None:
    names = [f"t@level:{number}" for number in range(1, 41)]
    with raises(InputError, expected="one_variable", variable="t", candidates=names[:12]):
        resolve([VariableInfo(name) for name in names], "t")


def test_resolve_a_name_that_several_variables_have_raises() -> None:
    with raises(InputError, expected="unique", variable="t"):
        resolve([VariableInfo("t"), VariableInfo("t")], "t")


def test_default_features_unambiguous_names_are_short() -> None:
    assert [feature for feature, _ in default_features(LEVELS)] == [
        "t_surface",
        "t_isobaricinhpa_850",
        "t_isobaricinhpa_500",
        "t2m",
        "tp_surface_accum_over_6",
        "tp_surface_accum_over_3",
    ]


def test_default_features_equal_names_are_numbered() -> None:
    infos = [VariableInfo("Temp (C)"), VariableInfo("temp_c"), VariableInfo("TEMP C")]
    assert [f for f, _ in default_features(infos)] == ["temp_c_2", "temp_c", "temp_c_3"]


def test_default_features_none_or_too_many_raises() -> None:
    with raises(InputError, expected="features", bound=256):
        default_features([VariableInfo("t", default=False)])
    with raises(InputError, expected="features", bound=256):
        default_features([VariableInfo(f"v{number}") for number in range(300)])


@given(st.text(max_size=100))
def test_feature_name_of_any_text_is_valid(text: str) -> None:
    assert Feature(feature_name(text)).name == feature_name(text).lower()


@given(
    st.text("abcT2", min_size=1),
    st.lists(st.tuples(st.text("xy", min_size=1), st.text("0189-.", max_size=5)), max_size=3),
)
def test_split_name_inverts_qualified_name(base: str, pairs: list[tuple[str, str]]) -> None:
    assert split_name(qualified_name(base, tuple(pairs))) == (base, tuple(pairs))
