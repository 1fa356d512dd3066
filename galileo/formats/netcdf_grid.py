"""The coordinate variables of a NetCDF file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.errors import InputError, InvalidObservations
from galileo.formats.columns import COORDINATE_UNITS, USUAL_NAMES
from galileo.formats.expressions import Literal, parse
from galileo.formats.grid_options import LEAD_TIME, REFERENCE_TIME, RUN_ATTRIBUTES
from galileo.formats.mapping import Mapping
from galileo.formats.netcdf_samples import attribute, is_sampled, row_dimensions, verticals
from galileo.formats.variables import format_names, unknown_name
from galileo.model.schema import COORDINATES
from galileo.model.times import HOUR_US, MICROS, micros, time_column
from galileo.optional_imports import library

# Usual names in lower case, the best first; XLAT, XLONG, Times and XTIME are WRF's.
# x and y are often distances on a map.
_LATITUDES, _LONGITUDES = (
    tuple(name for group in USUAL_NAMES[coordinate] for name in group if name not in ("x", "y"))
    for coordinate in ("latitude", "longitude")
)
LATITUDES = (*_LATITUDES, "xlat", "xlat_m", "nav_lat")
LONGITUDES = (*_LONGITUDES, "xlong", "xlong_m", "nav_lon")
TIMES = (
    *("valid_time", "time", "times", "xtime"),
    *(name for group in USUAL_NAMES["time"][1:] for name in group if name != "valid_time"),
    "juld",  # Of Argo.
)
_DEGREES = {
    "latitude": (LATITUDES, COORDINATE_UNITS["latitude"]),
    "longitude": (LONGITUDES, COORDINATE_UNITS["longitude"]),
}
SINCE = " since "
DEFAULT_CALENDAR = "standard"
# The grammar of UDUNITS, which the CF conventions refer to. cftime ignores what it does not know.
_UNITS = re.compile(
    r"\s*(?P<unit>[a-z_]+)\s+since\s+(?P<date>[-+]?\d{1,4}(?:-\d{1,2}){0,2})"
    r"(?:(?:\s*t\s*|\s+)(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?)?"
    r"\s*(?:z|utc|gmt|(?P<sign>[-+]|(?<=\s)(?=\d{1,2}:))(?P<zone_hour>[01]?\d|2[0-3])(?::?(?P<zone_minute>[0-5]\d))?)?\s*"
)
_NANOSECONDS = {"ns", "nsec", "nsecs", "nanosec", "nanosecs", "nanosecond", "nanoseconds"}
_LEAP_CALENDARS = ("tai", "utc")


@dataclass(frozen=True, slots=True)
class CoordinateGrid:
    """The coordinate variables and their dimensions, slowest first.

    Attributes:
        latitude: name of the variable; `longitude` and `time` likewise.
        constant_us: the time of all rows in microseconds; then `time` is empty.
        dims: of time, then levels and members, then of latitude and longitude.
        shape: their sizes.
        place_dims: of latitude and longitude.
        levels: names of the coordinates of levels and members that are rows, which are features.
        is_sampled: whether the rows are those of stations, trajectories or profiles.
    """

    latitude: str
    longitude: str
    time: str
    constant_us: int | None
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    place_dims: tuple[str, ...]
    levels: tuple[str, ...] = ()
    is_sampled: bool = False

    @property
    def names(self) -> tuple[str, str, str]:
        return self.latitude, self.longitude, self.time


def find_grid(dataset: Any, mapping: Mapping) -> CoordinateGrid:
    """The coordinates of the mapping, else those that most variables share.

    Raises:
        InputError: one is missing; says how to map it.
    """
    latitude, longitude = (
        getattr(mapping, coordinate)
        or _best(dataset, coordinate, fits=partial(_is_degrees, coordinate), usual=usual)
        for coordinate, (usual, _) in _DEGREES.items()
    )
    constant = None if mapping.constant_time is None else micros(mapping.constant_time)
    time = ""
    if constant is None:
        time = mapping.time or _best(dataset, "time", fits=_is_time, usual=TIMES)
    names = [name for name in (time, latitude, longitude) if name]
    for name in names:
        if name not in dataset.variables:
            raise unknown_name("variable", name, [str(known) for known in dataset.variables])
    for name in (latitude, longitude):
        if dataset[name].dtype.kind not in "iuf":
            raise InputError(
                f"expected degrees in variable {name!r}, got values of type {dataset[name].dtype}",
                expected="degrees",
                variable=name,
            )
    time_dims = dataset[time].dims if time else ()
    place_dims = tuple(dict.fromkeys((*dataset[latitude].dims, *dataset[longitude].dims)))
    vertical = verticals(dataset, names)
    is_sample = is_sampled(dataset) or bool(mapping.grid.rows and len(place_dims) <= 1)
    rows = row_dimensions(
        dataset, mapping.grid.rows, levels=vertical, dims=[*time_dims, *place_dims]
    )
    run = [name for name in RUN_ATTRIBUTES if mapping.grid.reference_time]
    rows += tuple(d for n in run for d in dataset[n].dims if d not in (*time_dims, *place_dims))
    dims = tuple(dict.fromkeys((*time_dims, *rows, *place_dims)))
    shape = tuple(int(dataset.sizes[dim]) for dim in dims)
    levels = [n for n in vertical if is_sample or {*rows} & {*dataset[n].dims}]
    if not is_sample:
        levels += [str(n) for n, v in dataset.variables.items() if v.dims and {*v.dims} <= {*rows}]
    return CoordinateGrid(
        *(latitude, longitude, time, constant, dims, shape, place_dims),
        *(tuple(dict.fromkeys([*levels, *run])), is_sample),
    )


def with_constants(dataset: Any, mapping: Mapping) -> tuple[Any, Mapping]:
    """Adds a scalar variable for each coordinate that is a number in the mapping."""
    for coordinate in COORDINATES[:2]:
        source = getattr(mapping, coordinate)
        if source is None or source in dataset.variables:
            continue
        expression = parse(source)
        if isinstance(expression, Literal) and not isinstance(expression.value, str):
            name = f"{coordinate} of every row"
            dataset = dataset.assign_coords({name: float(expression.value)})
            mapping = replace(mapping, **{coordinate: name})  # type: ignore[arg-type]
    return dataset, mapping


def with_valid_time(dataset: Any) -> Any:
    """The dataset with the valid time, where a file has reference and lead times alone."""
    names = [_named(dataset, about["standard_name"]) for about in RUN_ATTRIBUTES.values()]
    if None in names or any(map(_is_time, map(dataset.get, dataset.variables))):
        return dataset
    reference, period = (dataset[name] for name in names)
    since = f"{attribute(period, 'units')}{SINCE}1970-01-01"
    lead = _micros(period.assign_attrs(units=since, calendar=DEFAULT_CALENDAR))
    valid, units = _micros(reference) + lead, f"microseconds{SINCE}1970-01-01"
    return dataset.assign_coords({TIMES[0]: (valid.dims, valid.values, {"units": units})})


def with_run(dataset: Any, mapping: Mapping) -> Any:
    """The dataset with the variables of `RUN_ATTRIBUTES`.

    Raises:
        InputError: no variable is the reference time of a forecast by its standard name.
    """
    name = _named(dataset, RUN_ATTRIBUTES[REFERENCE_TIME]["standard_name"])
    if name is None:
        raise InputError(
            "found no variable with the standard_name forecast_reference_time among "
            f"{format_names([str(known) for known in dataset.variables])}",
            expected="coordinate",
            variable=REFERENCE_TIME,
        )
    reference = _micros(dataset[name])
    if reference.dtype.kind == "f":
        raise InputError(
            f"expected a reference time in each place of variable {name!r}, got a missing value",
            expected="reference_time",
        )
    if mapping.constant_time is not None:
        valid = reference.copy(data=np.full(reference.shape, micros(mapping.constant_time)))
    else:
        time = mapping.time or _best(dataset, "time", fits=_is_time, usual=TIMES)
        if time not in dataset.variables:
            raise unknown_name("variable", time, [str(known) for known in dataset.variables])
        valid = _micros(dataset[time])
    return dataset.drop_vars([*RUN_ATTRIBUTES], errors="ignore").assign_coords(
        {
            name: (values.dims, values.values, RUN_ATTRIBUTES[name])
            for name, values in (
                (REFERENCE_TIME, reference // MICROS),
                (LEAD_TIME, (valid - reference) / HOUR_US),
            )
        }
    )


def _micros(variable: Any) -> Any:
    """The times of a variable in microseconds since 1970; floats with NaN if one is missing."""
    if variable.dtype.kind == "m":
        return variable.variable.astype("timedelta64[us]").astype(np.int64)
    times = decode_times(variable.values.ravel(), variable).cast(pa.int64())
    data = times.to_numpy(zero_copy_only=False).reshape(variable.shape)
    return variable.variable.copy(data=data)


def _named(dataset: Any, standard_name: str) -> Any:
    """The first variable of a standard name."""
    variables = dataset.variables.items()
    return next((n for n, v in variables if attribute(v, "standard_name") == standard_name), None)


def _best(
    dataset: Any, coordinate: str, *, fits: Callable[[Any], bool], usual: Sequence[str]
) -> str:
    """Of the matching variables, the one whose dimensions most data variables have.

    In files of stations, trajectories and profiles, what most data variables name as theirs comes
    first: samples may have places and times beside those of their profile.
    """
    names = [str(name) for name in dataset.variables if fits(dataset[name])]
    if not names:
        projected = [
            str(name)
            for name in dataset.variables
            if attribute(dataset[name], "standard_name").startswith("projection_")
        ]
        hint = f"; {' and '.join(projected)} are distances on a map" if projected else ""
        raise InputError(
            f"found no variable for the {coordinate}, with the standard_name or units of the CF "
            f"conventions, among {format_names([str(name) for name in dataset.variables])}{hint}",
            remedy="coordinate_variable",
            expected="coordinate",
            variable=coordinate,
        )
    ranks = {name: rank for rank, name in enumerate(usual)}
    named = Counter[str]()
    if is_sampled(dataset):
        for each in dataset.data_vars.values():
            named.update({*attribute(each, "coordinates").split(), *map(str, each.dims)})

    def merit(name: str) -> tuple[bool, int, int, int]:
        variable = dataset[name]
        users = sum(set(variable.dims) <= set(dataset[v].dims) for v in dataset.data_vars)
        standard = attribute(variable, "standard_name") == coordinate
        rank = -ranks.get(name.lower(), len(usual))
        return standard or name.lower() in ranks, named[name], users, rank

    return max(names, key=merit)


def _is_degrees(coordinate: str, variable: Any) -> bool:
    if variable.dtype.kind not in "iuf":
        return False
    names, units = _DEGREES[coordinate]
    name = attribute(variable, "standard_name")
    return name == coordinate or (
        not name
        and (attribute(variable, "units").lower() in units or str(variable.name).lower() in names)
    )


def _is_time(variable: Any) -> bool:
    """Whether it has valid times; reference times and steps have other standard names."""
    if attribute(variable, "standard_name") not in ("", "time"):
        return False
    if variable.dtype.kind == "S":
        return str(variable.name).lower() in TIMES
    if variable.dtype.kind == "M" or _is_cftime(variable):
        return True
    return SINCE in attribute(variable, "units").lower()


def _is_cftime(variable: Any) -> bool:
    """Whether xarray decoded its dates for a calendar other than the standard one."""
    if variable.dtype.kind != "O" or not variable.size:
        return False
    first = variable.values.flat[0]
    return type(first).__module__.partition(".")[0] == "cftime"


def decode_times(values: Any, variable: Any) -> pa.Array:
    """Decodes the values of a time variable; missing ones are null.

    Args:
        values: numbers in the units of the variable, or texts as in WRF.
        variable: has units and calendar.

    Raises:
        InvalidObservations: the units are invalid, or a date of the file's calendar, such as
            30 February, does not exist in the standard calendar.
    """
    if values.dtype.kind == "M":
        return time_column(pa.array(values.ravel(), from_pandas=True))
    unique, inverse = np.unique(values, return_inverse=True)
    known = np.ones(len(unique), np.bool_)
    if unique.dtype.kind in "fS":
        known = unique != b"" if unique.dtype.kind == "S" else np.isfinite(unique)
    texts = np.full(len(unique), None)
    try:
        texts[known] = _texts(unique[known], variable)
        times = time_column(pa.array(texts, pa.string()))
    except (InputError, AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidObservations(
            f"expected times in variable {variable.name!r}, units "
            f"{variable.attrs.get('units')!r}: {error}",
            expected="times",
            variable=str(variable.name),
        ) from error
    return times.take(pa.array(inverse.ravel()))


def _texts(values: Any, variable: Any) -> list[str]:
    """ISO 8601 texts of distinct times."""
    if values.dtype.kind == "O":
        return [date if isinstance(date, str) else date.isoformat() for date in values]
    if values.dtype.kind == "S":
        return [value.decode().strip().replace("_", "T") for value in values]
    cftime = library("cftime", purpose="reading NetCDF times")
    calendar = str(variable.attrs.get("calendar", DEFAULT_CALENDAR)).lower()
    if calendar in _LEAP_CALENDARS:
        raise ValueError(f"calendar {calendar!r} differs from UTC here by leap seconds; convert it")
    unit, reference = _unit_and_reference(str(variable.attrs.get("units", "")))
    if unit in _NANOSECONDS:
        unit, values = "microseconds", np.floor_divide(values, 1000)
    dates = cftime.num2date(values, f"{unit} since {reference}", calendar=calendar)
    return [date.isoformat() for date in np.atleast_1d(dates)]


def _unit_and_reference(units: str) -> tuple[str, str]:
    """The unit and the reference time, in a form that cftime reads as a whole."""
    match = _UNITS.fullmatch(units.lower())
    if match is None:
        raise ValueError("expected units such as 'hours since 2000-01-01 06:00:00 +01:00'")
    part = match.groupdict(default="")
    date = part["date"] + "-01" * (2 - part["date"].lstrip("-").count("-"))
    clock = f"{part['hour'] or 0}:{part['minute'] or 0}:{part['second'].rstrip('.') or 0}"
    zone = f"{part['sign'] or '+'}{part['zone_hour']:0>2}:{part['zone_minute']:0>2}"
    return part["unit"], f"{date} {clock} {zone}"
