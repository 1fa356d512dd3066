from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.wire.value_json import CHARACTERS_MAX, values_from_json, values_to_json

plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)


@given(st.lists(plain | st.text()).map(tuple))
def test_values_to_json_plain_values_round_trip(values: tuple[object, ...]) -> None:
    back = values_from_json(values_to_json(values))
    assert back == values
    assert [type(value) for value in back] == [type(value) for value in values]


@pytest.mark.parametrize(
    "moment",
    [
        dt.datetime(2012, 3, 1, 6, tzinfo=dt.UTC),
        pd.Timestamp("2012-03-01T07:00:00+01:00"),
        np.datetime64("2012-03-01T06:00:00.000000000"),
        np.datetime64("2012-03-01T06"),
    ],
)
def test_values_to_json_instants_become_texts(moment: object) -> None:
    assert values_from_json(values_to_json(["9x", moment])) == ("9x", "2012-03-01T06:00:00Z")


def test_values_to_json_numpy_scalars_become_plain() -> None:
    values = (np.int64(7), np.bool_(True), np.float32(0.5), np.str_("a"))
    assert values_from_json(values_to_json(values)) == (7, True, 0.5, "a")


def test_values_from_json_empty_text_is_empty() -> None:
    assert values_from_json("") == ()


def test_values_from_json_long_text_is_not_parsed() -> None:
    with raises(InputError, bound=CHARACTERS_MAX):
        values_from_json("[" * (CHARACTERS_MAX + 1))


@pytest.mark.parametrize("text", ["{}", "[[1]]", "[{}]", "7", "[1", '"a"'])
def test_values_from_json_other_text_raises(text: str) -> None:
    with raises(InputError, expected="json_list"):
        values_from_json(text)


def test_values_to_json_other_object_raises() -> None:
    with raises(InputError, expected="time"):
        values_to_json([object()])
