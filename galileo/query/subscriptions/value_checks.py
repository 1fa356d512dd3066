"""Checks of the values of parameters, of many subscriptions at once."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.geo.regions import Floats, Mask
from galileo.model.times import TIME_MAX_US, TIME_MIN_US, column_micros, iso
from galileo.query.subscriptions.parameters import CENTRE, DISTANCE, NAME, Place
from galileo.query.subscriptions.wkb import read_points

Ints: TypeAlias = npt.NDArray[np.int64]


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


def first_fault(values: pa.Array, places: Set[Place], *, name: str) -> Fault | None:
    """The first value that is null or fits no query, whatever the other parameters are.

    Args:
        values: of one parameter.
        places: of the parameter.
        name: of the parameter.
    """
    if values.null_count:
        row = _first(np.asarray(values.is_null()))
        missing = Fault(row, f"a value of {name!r}", "none")
        return first_fault(values.slice(0, row), places, name=name) or missing
    kind = next(iter(places)).type
    if kind == "float":
        return _number_fault(np.asarray(values), is_distance=DISTANCE in places, name=name)
    if kind == "time":
        return _time_fault(column_micros(values), name=name)
    if NAME in places:
        return _name_fault(values, name=name)
    return _point_fault(read_points(values), name=name) if CENTRE in places else None


def _name_fault(texts: pa.Array, *, name: str) -> Fault | None:
    is_empty = np.asarray(pc.equal(texts, ""))
    return Fault(_first(is_empty), f"a value of {name!r}", "''") if is_empty.any() else None


def _number_fault(numbers: Floats, *, is_distance: bool, name: str) -> Fault | None:
    fits: Mask = np.isfinite(numbers)
    if is_distance:
        fits &= numbers >= 0
    if fits.all():
        return None
    row = _first(~fits)
    kind = "distance in metres, at least 0," if is_distance else "finite number"
    return Fault(row, f"a {kind} as {name!r}", f"{numbers[row]:g}")


def _time_fault(times_us: Ints, *, name: str) -> Fault | None:
    fits = (times_us >= TIME_MIN_US) & (times_us <= TIME_MAX_US)
    if fits.all():
        return None
    row = _first(~fits)
    expected = f"a time of the years 1 to 9999 as {name!r}"
    return Fault(row, expected, iso(int(times_us[row])))


def _point_fault(points: Floats, *, name: str) -> Fault | None:
    fits = np.isfinite(points[:, 0]) & np.isfinite(points[:, 1])
    if fits.all():
        return None
    return Fault(_first(~fits), f"a point as {name!r}", "another geometry")


def _first(mask: Mask) -> int:
    return int(np.argmax(mask))
