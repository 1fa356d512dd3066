"""The fields of a GRIB file: variable, level, times, member and grid of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np

from galileo.errors import InputError
from galileo.formats.grib_split import MessageOffset, message_offsets, read_fields
from galileo.formats.variables import Qualifiers, qualified_name
from galileo.model.feature_metadata import (
    LONG_NAME,
    STANDARD_NAME,
    UNITS,
    FeatureMetadata,
    from_attributes,
)
from galileo.model.times import MICROS, micros

DIGITS = "0123456789"
POINTS_MAX = 100_000_000
"""Points of a field: 800 MB of values. A damaged message can claim any number."""
_STEP_UNITS_S = {0: 60, 1: 3600, 13: 1}
_HOURS = 1
_MONTHS = {3: 1, 4: 12, 5: 120, 6: 360, 7: 1200}
"""Months of the units of steps that are months, years, decades, normals and centuries."""
_HOURS_OF_MONTH = 720
"""As ecCodes counts them."""


@dataclass(frozen=True, slots=True, order=True)
class FieldStep:
    """The common properties of a table's rows: times in microseconds, member, grid."""

    reference_us: int
    valid_us: int
    member: int
    grid: str


@dataclass(frozen=True, slots=True)
class Field:
    """A field: the name of its variable, its step, and its position in the file."""

    name: str
    step: FieldStep
    place: MessageOffset
    number: int
    points: int
    interval: Qualifiers
    aliases: tuple[str, ...]
    about: FeatureMetadata


@contextmanager
def open_fields(eccodes: Any, message: bytes) -> Iterator[Any]:
    """An ecCodes handle of a message, released at the end."""
    handle = eccodes.codes_new_from_message(message)
    try:
        yield handle
    finally:
        eccodes.codes_release(handle)


def scan(eccodes: Any, file: BinaryIO, *, needs_time: bool) -> tuple[list[Field], list[str]]:
    """The fields of a file, with names that are unique within a step, and those without points."""
    fields = list(_fields(eccodes, file, needs_time=needs_time))
    others = dict.fromkeys(name for name in fields if isinstance(name, str))
    return _disambiguate([field for field in fields if isinstance(field, Field)]), list(others)


def _fields(eccodes: Any, file: BinaryIO, *, needs_time: bool) -> Iterator[Field | str]:
    for place in message_offsets(file):
        for number, message in enumerate(read_fields(file, place)):
            with open_fields(eccodes, message) as handle:
                try:
                    field = _field(
                        eccodes, handle, place=place, number=number, needs_time=needs_time
                    )
                except (TypeError, ValueError) as error:
                    raise InputError(
                        f"expected numbers and dates in the GRIB message at byte {place.offset}, "
                        f"got other values: {error}; check or replace the file"
                    ) from error
                yield field


def _field(
    eccodes: Any, handle: Any, *, place: MessageOffset, number: int, needs_time: bool
) -> Field | str:
    def get(key: str, default: Any = "", kind: type | None = None) -> Any:
        try:
            return eccodes.codes_get(handle, key, kind)
        except eccodes.KeyValueNotFoundError:
            return default

    base, alias = _names(get)
    if (grid := get("gridType", "unknown")) in ("unknown", "sh"):  # Or spherical harmonics.
        return f"{base} (grid type {grid})"
    if needs_time and not get("validityDate"):
        raise InputError(
            f"expected a valid time in the GRIB message at byte {place.offset}, got none",
            remedy="time_of_all",
            expected="valid_time",
            offset=place.offset,
        )
    points = int(get("numberOfPoints"))
    if not 0 < points <= POINTS_MAX:
        raise InputError(
            f"expected 1 to {POINTS_MAX:,} points in the GRIB message at byte {place.offset}, got "
            f"{points:,}",
            expected="points",
            bound=POINTS_MAX,
            offset=place.offset,
        )
    reference_us = _time_us(get("dataDate"), get("dataTime")) + get("second", 0) * MICROS
    return Field(
        name=qualified_name(base, ((get("typeOfLevel", "unknown"), _level(get)),)),
        step=FieldStep(
            reference_us=reference_us,
            valid_us=_valid_us(get, reference_us),
            member=int(get("perturbationNumber", 0)),
            grid=get("md5GridSection"),
        ),
        place=place,
        number=number,
        points=points,
        interval=_interval(get),
        aliases=tuple(dict.fromkeys((alias, base.lstrip(DIGITS)))) if alias != base else (),
        about=_about(get),
    )


def _about(get: Any) -> FeatureMetadata:
    """Unit, name, and the standard name, which ecCodes knows for some parameters."""
    unit, name, standard_name = (get(key) for key in ("units", "name", "cfName"))
    named = {STANDARD_NAME: standard_name} if standard_name != "unknown" else {}
    return from_attributes({UNITS: unit, LONG_NAME: name} | named)


def _names(get: Any) -> tuple[str, str]:
    """Short name and CF name; unknown parameters are named by their numbers.

    The short name can begin with the level, `2t`; the CF name then ends with it, `t2m`.
    """
    base = get("shortName", "unknown")
    if base != "unknown":
        return base, get("cfVarName", base)
    keys = ("discipline", "parameterCategory", "parameterNumber")
    if get("edition") == 1:
        keys = ("centre", "table2Version", "indicatorOfParameter")
    base = "_".join(["param", *(str(get(key)) for key in keys)])
    return base, base


def _level(get: Any) -> str:
    """The level, or both bounds of a layer, bottom last; empty for level 0.

    As fractions: as whole numbers, the soil from 0 to 0.1 m and from 0.1 to 0.4 m are both at 0.
    """
    top, bottom = (get(key, None, float) for key in ("topLevel", "bottomLevel"))
    if top == bottom or top is None or bottom is None:
        level = get("level", 0.0, float)
        return f"{level:.10g}" if level else ""
    return f"{top:.10g}-{bottom:.10g}"


def _interval(get: Any) -> Qualifiers:
    """Qualifiers for the interval of an accumulation or mean; empty for an instant."""
    kind = get("stepType", "instant")
    if kind == "instant":
        return ()
    start, end = get("startStep", 0), get("endStep", 0)
    # Steps of other than whole hours are texts with their unit, such as "90m".
    whole = isinstance(start, int) and isinstance(end, int)
    return ((kind, ""), ("over", str(end - start) if whole else f"{start}-{end}"))


def _time_us(date: int, clock: int) -> int:
    """Microseconds of YYYYMMDD and HHMM."""
    year, month, day = date // 10000, date // 100 % 100, date % 100
    return micros(f"{year:04d}-{month:02d}-{day:02d}T{clock // 100:02d}:{clock % 100:02d}")


def _valid_us(get: Any, reference_us: int) -> int:
    """The valid time, exact to the second and by the calendar; the reference time if none is known.

    ecCodes' valid time leaves out seconds, counts 30 days for a month and 365 for a year, and is
    wrong for some steps below zero.
    """
    if not get("validityDate"):
        return reference_us
    interval_second = get("secondOfEndOfOverallTimeInterval", None)
    if interval_second is not None:
        end_us = _time_us(get("validityDate"), get("validityTime"))
        return end_us + int(interval_second * (interval_second < 60)) * MICROS
    months = _MONTHS.get(get("indicatorOfUnitOfTimeRange"))
    if months is not None:
        end = get("endStep") // _HOURS_OF_MONTH if get("stepUnits") == _HOURS else get("endStep")
        return _add_months(reference_us, months * get("forecastTime", end))
    unit_s = _STEP_UNITS_S.get(get("stepUnits"))
    if unit_s is not None:
        return reference_us + int(str(get("endStep")).rstrip("ms")) * unit_s * MICROS
    return _time_us(get("validityDate"), get("validityTime")) + int(get("second", 0)) * MICROS


def _add_months(time_us: int, months: int) -> int:
    """The same day and time of a later month, or the last day of a month that is shorter."""
    time = np.datetime64(time_us, "us")
    month = time.astype("datetime64[M]")
    day = time.astype("datetime64[D]")
    last = (month + months + 1).astype("datetime64[D]") - 1
    later = min((month + months).astype("datetime64[D]") + (day - month), last)
    return int((later + (time - day)).astype(np.int64))


def _disambiguate(fields: Sequence[Field]) -> list[Field]:
    """Adds the interval, then a number, to names of fields with the same variable and step."""
    counts = Counter((field.name, field.step) for field in fields)
    clashing = {name for (name, _), count in counts.items() if count > 1}
    seen = Counter[tuple[str, FieldStep]]()
    result: list[Field] = []
    for field in fields:
        name = qualified_name(field.name, field.interval if field.name in clashing else ())
        seen[name, field.step] += 1
        number = seen[name, field.step]
        name = qualified_name(name, (("number", str(number)),) if number > 1 else ())
        result.append(replace(field, name=name))
    return result
