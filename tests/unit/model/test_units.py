"""Units: words of UDUNITS, what they are converted to, and what is refused."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from expected_errors import raises

from galileo.errors import IncompatibleUnits, UnknownUnit
from galileo.model import units
from galileo.model.schema import Feature
from galileo.model.units import check_units, converted, is_converted, is_known

pytest.importorskip("cf_units")


@pytest.mark.parametrize(
    "unit", ["K", "degC", "°C", "m s-1", "m/s", "kg m**-2 s**-1", "1", "1e-3", "dBZ", "µg/m3"]
)
def test_units_of_udunits_are_known(unit: str) -> None:
    check_units([Feature("t", unit=unit)])
    assert is_known(unit)


@pytest.mark.parametrize(
    ("unit", "nearest"),
    [
        *[("Kelvni", "kelvin"), ("metrs", "metre"), ("psu", "1e-3")],
        *[("mph", "mile/hour"), ("kt", "knot"), ("(0 - 1)", None), ("unknown", None)],
    ],
)
def test_unknown_unit_is_refused_with_the_nearest(unit: str, nearest: str | None) -> None:
    with raises(UnknownUnit, unit=unit, nearest=nearest, feature="t"):
        check_units([Feature("ok", unit="K"), Feature("t", unit=unit)])


@pytest.mark.parametrize(
    ("unit", "wanted", "scale", "offset"),
    [
        *[("degF", "K", 5 / 9, 459.67 * 5 / 9), ("degC", "K", 1.0, 273.15)],
        *[("knot", "m s-1", 1852 / 3600, 0.0), ("km", "m", 1000.0, 0.0), ("%", "1", 0.01, 0.0)],
    ],
)
def test_units_are_converted(unit: str, wanted: str, scale: float, offset: float) -> None:
    assert is_converted(unit, Feature("t", unit=wanted), source="t")
    values = np.append(np.linspace(-100, 100, 1001), np.nan)
    expected = values * scale + offset
    np.testing.assert_allclose(converted(values, unit, wanted), expected, rtol=1e-12, atol=1e-9)


def test_values_in_the_same_unit_or_none_stay_as_they_are() -> None:
    speed = Feature("u", unit="m/s")
    assert not is_converted("m s**-1", speed, source="u")
    assert not is_converted("", speed, source="u")
    assert not is_converted("psu", speed, source="u")
    assert not is_converted("K", Feature("u"), source="u")
    assert not is_converted("K", Feature("u", unit="m", type="text"), source="u")


def test_incompatible_units_are_refused_with_both() -> None:
    with raises(IncompatibleUnits, unit="K", got="m", feature="t"):
        is_converted("m", Feature("t", unit="K"), source="depth")


def test_without_the_library_units_are_neither_checked_nor_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cf_units", None)
    units._cf_units.cache_clear()
    try:
        check_units([Feature("t", unit="no unit at all")])
        assert not is_converted("m", Feature("t", unit="K"), source="t")
    finally:
        units._cf_units.cache_clear()


def test_units_are_parsed_in_many_threads_at_once() -> None:
    texts = [f"{prefix}{unit}" for prefix in ("k", "m", "c") for unit in ("m", "g", "Pa")] * 20
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(is_known, texts))
