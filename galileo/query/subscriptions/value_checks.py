"""Checks of the values of parameters, of many subscriptions at once."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from galileo.geo.regions import Mask
from galileo.model.times import TIME_MAX_US, TIME_MIN_US, column_micros, iso
from galileo.query.subscriptions.parameters import CENTRE, DISTANCE, NAME, ParameterPlace
from galileo.query.subscriptions.wkb import read_points


@dataclass(frozen=True, slots=True)
class Fault:
    """The first wrong row.

    Attributes:
        row: its number.
        expected: what was expected there.
        got: what came instead, or why it does not fit.
    """

    row: int
    expected: str
    got: str


def fitting(values: pa.Array, places: Set[ParameterPlace]) -> Mask:
    """Mask of the values that are there and fit a query, whatever the other parameters are.

    Args:
        values: of one parameter.
        places: of the parameter.
    """
    mask: Mask = np.array(values.is_valid(), dtype=np.bool_)
    mask[mask] = _fit(values.drop_null(), places)
    return mask


def first_fault(values: pa.Array, places: Set[ParameterPlace], *, name: str) -> Fault | None:
    """The first value that is null or fits no query, whatever the other parameters are.

    Args:
        values: of one parameter.
        places: of the parameter.
        name: of the parameter.
    """
    fits = fitting(values, places)
    if fits.all():
        return None
    row = int(np.argmin(fits))
    if not values[row].is_valid:
        return Fault(row, f"a value of {name!r}", "none")
    kind = next(iter(places)).type
    if kind == "float":
        is_distance = DISTANCE in places
        expected = "distance in metres, at least 0," if is_distance else "finite number"
        return Fault(row, f"a {expected} as {name!r}", f"{values[row].as_py():g}")
    if kind == "time":
        time_us = int(column_micros(values.slice(row, 1))[0])
        return Fault(row, f"a time of the years 1 to 9999 as {name!r}", iso(time_us))
    if NAME in places:
        return Fault(row, f"a value of {name!r}", "''")
    return Fault(row, f"a point as {name!r}", "another geometry")


def _fit(values: pa.Array, places: Set[ParameterPlace]) -> Mask:
    """Mask of the values that fit, none of which is null."""
    kind = next(iter(places)).type
    if kind == "float":
        numbers = np.asarray(values, dtype=np.float64)
        fits: Mask = np.isfinite(numbers)
        return fits & (numbers >= 0) if DISTANCE in places else fits
    if kind == "time":
        times_us = column_micros(values)
        return (times_us >= TIME_MIN_US) & (times_us <= TIME_MAX_US)
    if NAME in places:
        return np.asarray(pc.not_equal(values, ""), dtype=np.bool_)
    if CENTRE in places:
        return np.asarray(np.isfinite(read_points(values)).all(axis=1))
    return np.ones(len(values), dtype=np.bool_)
