from __future__ import annotations

import numpy as np
import pytest

from galileo.errors import InputError
from galileo.formats import Mapping
from galileo.formats.mapping import Expression, parse_expression


def test_texts_become_a_mapping() -> None:
    mapping = Mapping.parse(["wind = hypot(u10, v10)", "latitude=Lat", "time=y,m,d", "t=a=b"])
    assert mapping == Mapping(
        features=(("wind", "hypot(u10, v10)"), ("t", "a=b")), latitude="Lat", time="y,m,d"
    )


def test_a_time_after_an_at_sign_is_that_of_every_row() -> None:
    mapping = Mapping.parse(["time=@2012-03-01T06:00Z"])
    assert mapping == Mapping(constant_time="2012-03-01T06:00Z")


@pytest.mark.parametrize("text", ["temperature", "=t", "temperature=", " = "])
def test_a_text_that_maps_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a mapping such as"):
        Mapping.parse([text])


def test_a_feature_mapped_twice_is_refused() -> None:
    with pytest.raises(InputError, match="got t again"):
        Mapping.parse(["t=a", "t=b"])


def test_expressions() -> None:
    assert parse_expression(" t@surface ") == Expression("", ("t@surface",))
    assert parse_expression("wind_speed( u , v )") == Expression("wind_speed", ("u", "v"))
    assert str(parse_expression("hypot(a,b)")) == "hypot(a, b)"


def test_parentheses_in_a_column_name_are_no_call() -> None:
    assert parse_expression("Temp (C)") == Expression("", ("Temp (C)",))


@pytest.mark.parametrize("text", ["hypot(u)", "celsius_to_kelvin(a, b)", "hypot(u,)", "hypot()"])
def test_a_wrong_number_of_arguments_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"expected [12] variables"):
        parse_expression(text)


def test_functions_compute_what_they_say() -> None:
    evaluate = {
        text: parse_expression(f"{text}(a{', b' * (text in ('hypot', 'wind_speed'))})").evaluate
        for text in ("hypot", "wind_speed", "celsius_to_kelvin", "fahrenheit_to_kelvin")
    }
    u, v = np.array([3.0, np.nan, -5.0]), np.array([4.0, 1.0, 12.0])
    for name in ("hypot", "wind_speed"):
        np.testing.assert_array_equal(evaluate[name](u, v), [5.0, np.nan, 13.0])
    np.testing.assert_allclose(evaluate["celsius_to_kelvin"](np.array([-40.0])), [233.15])
    np.testing.assert_allclose(
        evaluate["fahrenheit_to_kelvin"](np.array([-40.0, 32.0, 212.0])), [233.15, 273.15, 373.15]
    )
