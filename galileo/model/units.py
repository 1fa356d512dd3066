"""Units as words of UDUNITS, by which the CF conventions define them (CF 1.11, section 3.1).

cf-units reads them, which is part of the extra `formats`; where it is not installed, every unit
counts as known, and none is converted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from galileo.errors import IncompatibleUnits, MissingExtra, UnknownUnit
from galileo.model.schema import NUMBERS, Feature, nearest_name
from galileo.optional_imports import library

Floats = npt.NDArray[np.float64]

UNITS_KEPT = 1_024
"""Units that are parsed once."""
USUAL = (
    *("kelvin", "K", "degC", "celsius", "degF", "fahrenheit", "m", "meter", "metre", "km", "cm"),
    *("mm", "inch", "foot", "mile", "m s-1", "m/s", "km/h", "knot", "s", "second", "minute"),
    *("hour", "day", "year", "Pa", "hPa", "kPa", "bar", "mbar", "decibar", "percent", "%"),
    *("degree", "degrees_north", "degrees_east", "radian", "kg", "gram", "kg m-2", "kg m-3"),
    *("kg m-2 s-1", "kg kg-1", "g kg-1", "W m-2", "J kg-1", "joule", "watt", "volt", "ampere"),
    *("hertz", "newton", "mole", "mol m-3", "micromole/kg", "ug m-3", "mg m-3", "ppm", "ppb"),
    *("S m-1", "mS cm-1", "lux", "liter", "count", "1", "1e-3", "dBZ", "dobson", "becquerel"),
)
"""What an unknown unit may be a misspelling of."""
_MISREAD = {
    **{"psu": "1e-3", "PSU": "1e-3", "kn": "knot", "kts": "knot"},
    **{"kt": "knot", "KT": "knot", "mph": "mile/hour", "MPH": "mile/hour"},
}
"""Usual words that UDUNITS lacks, or reads as kilotonnes and milliphots."""

_LOCK = threading.RLock()  # UDUNITS is not made for threads.


def check_units(features: Iterable[Feature]) -> None:
    """Raises UnknownUnit if a feature has a unit that UDUNITS does not know; "" is no unit."""
    for feature in features:
        if not is_known(feature.unit):
            close = _MISREAD.get(feature.unit) or nearest_name(feature.unit, USUAL)
            hint = f"; did you mean {close!r}?" if close else "."
            raise UnknownUnit(
                f"expected a unit of UDUNITS, such as 'K' or 'm s-1', for feature "
                f"{feature.name!r}, got {feature.unit!r}{hint} Other words may stand in its "
                "description",
                feature=feature.name,
                unit=feature.unit,
                nearest=close,
            )


def is_known(unit: str) -> bool:
    """Whether UDUNITS knows a unit; "" is none."""
    return not unit or _cf_units() is None or _parsed(unit) is not None


def is_converted(unit: str, feature: Feature, *, source: str) -> bool:
    """Whether values in a unit have to be converted to that of their feature.

    They are taken as they are if one of both is "" or unknown.

    Args:
        unit: of the values.
        feature: that they become.
        source: where they come from, for the message.

    Raises:
        IncompatibleUnits: they cannot be converted.
    """
    wanted = feature.unit
    if unit == wanted or not (unit and wanted) or feature.type not in NUMBERS:
        return False
    if _cf_units() is None or not (is_known(unit) and is_known(wanted)):
        return False
    with _LOCK:
        if _parsed(unit) == _parsed(wanted):  # Such as "m/s" and "m s-1".
            return False
        if _parsed(unit).is_convertible(_parsed(wanted)):
            return True
    raise IncompatibleUnits(
        f"expected {source} in a unit that can be converted to {wanted!r}, that of feature "
        f"{feature.name!r}, got {unit!r}; use other values, or correct their unit",
        feature=feature.name,
        unit=wanted,
        got=unit,
    )


def converted(values: Floats, unit: str, other: str) -> Floats:
    """Values in one unit as values in another; NaN stays."""
    with _LOCK:
        return np.asarray(_parsed(unit).convert(values, _parsed(other)), dtype=np.float64)


@lru_cache(UNITS_KEPT)
def _parsed(unit: str) -> Any:
    """The unit of cf-units; None if UDUNITS does not know it."""
    cf_units = _cf_units()
    if unit in _MISREAD or not unit.isprintable():
        return None
    try:
        with _LOCK, cf_units.suppress_errors():
            parsed = cf_units.Unit(unit)
    except ValueError:
        return None
    return None if parsed.is_unknown() or parsed.is_no_unit() else parsed


@lru_cache(1)
def _cf_units() -> Any:
    """The library; None where it is not installed."""
    try:
        return library("cf_units", purpose="units")
    except MissingExtra:
        return None
