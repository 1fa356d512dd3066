from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.wire.value_json import values_from_json, values_to_json

plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)


@given(st.lists(plain | st.text()).map(tuple))
def test_plain_values_come_back_as_they_are(values: tuple[object, ...]) -> None:
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
def test_instants_become_texts(moment: object) -> None:
    assert values_from_json(values_to_json(["9x", moment])) == ("9x", "2012-03-01T06:00:00Z")


def test_scalars_of_numpy_become_what_they_hold() -> None:
    values = (np.int64(7), np.bool_(True), np.float32(0.5), np.str_("a"))
    assert values_from_json(values_to_json(values)) == (7, True, 0.5, "a")


def test_an_empty_text_is_no_values() -> None:
    assert values_from_json("") == ()


@pytest.mark.parametrize("text", ["{}", "[[1]]", "[{}]", "7", "[1", '"a"'])
def test_what_is_no_list_of_values_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="a JSON list of values"):
        values_from_json(text)


def test_what_is_no_value_is_refused() -> None:
    with pytest.raises(InputError, match="expected a time"):
        values_to_json([object()])
