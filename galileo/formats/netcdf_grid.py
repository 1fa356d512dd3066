"""The coordinate variables of a NetCDF file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from galileo.errors import InputError, InvalidObservations, UnknownProperty
from galileo.formats.columns import USUAL_NAMES, advice
from galileo.formats.expressions import Literal, parse
from galileo.formats.mapping import Mapping
from galileo.formats.variables import format_names
from galileo.model.schema import COORDINATES, nearest_name
from galileo.model.times import TIME_TYPE, micros, time_column, times_from_micros
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
)
LATITUDE_UNITS = ("degrees_north", "degree_north", "degrees_n", "degree_n", "degreesn", "degreen")
LONGITUDE_UNITS = ("degrees_east", "degree_east", "degrees_e", "degree_e", "degreese", "degreee")
SINCE = " since "
DEFAULT_CALENDAR = "standard"


@dataclass(frozen=True, slots=True)
class Grid:
    """The coordinate variables and their dimensions, slowest first.

    Attributes:
        latitude: name of the variable; `longitude` and `time` likewise.
        constant_us: the time of all rows in microseconds; then `time` is empty.
        dims: of time, then of latitude and longitude.
        shape: their sizes.
        place_dims: of latitude and longitude.
    """

    latitude: str
    longitude: str
    time: str
    constant_us: int | None
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    place_dims: tuple[str, ...]


def find_grid(dataset: Any, mapping: Mapping) -> Grid:
    """The coordinates of the mapping, else those that most variables share.

    Raises:
        InputError: one is missing; says how to map it.
    """
    latitude = mapping.latitude or _best(dataset, "latitude", fits=_is_latitude, usual=LATITUDES)
    longitude = mapping.longitude or _best(
        dataset, "longitude", fits=_is_longitude, usual=LONGITUDES
    )
    constant = None if mapping.constant_time is None else micros(mapping.constant_time)
    time = ""
    if constant is None:
        time = mapping.time or _best(dataset, "time", fits=_is_time, usual=TIMES)
    names = [name for name in (time, latitude, longitude) if name]
    for name in names:
        _check_known(dataset, name)
    dims = tuple(dict.fromkeys(dim for name in names for dim in dataset[name].dims))
    place_dims = tuple(dict.fromkeys((*dataset[latitude].dims, *dataset[longitude].dims)))
    shape = tuple(int(dataset.sizes[dim]) for dim in dims)
    return Grid(latitude, longitude, time, constant, dims, shape, place_dims)


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


def _check_known(dataset: Any, name: str) -> None:
    if name not in dataset.variables:
        names = [str(known) for known in dataset.variables]
        close = nearest_name(name, names)
        hint = f"; did you mean {close!r}?" if close else "."
        raise UnknownProperty(
            f"there is no variable {name!r}{hint} The variables are {format_names(names)}",
            nearest=close,
            variable=name,
        )


def _best(
    dataset: Any, coordinate: str, *, fits: Callable[[Any], bool], usual: Sequence[str]
) -> str:
    """Of the matching variables, the one whose dimensions most data variables have."""
    names = [str(name) for name in dataset.variables if fits(dataset[name])]
    if not names:
        raise InputError(
            f"found no variable for the {coordinate}, with the standard_name or units of the CF "
            f"conventions; name it with {advice(coordinate, 'VARIABLE')}. The variables "
            f"are {format_names([str(name) for name in dataset.variables])}",
            expected="coordinate",
            variable=coordinate,
        )
    ranks = {name: rank for rank, name in enumerate(usual)}

    def merit(name: str) -> tuple[bool, int, int]:
        variable = dataset[name]
        users = sum(set(variable.dims) <= set(dataset[v].dims) for v in dataset.data_vars)
        standard = variable.attrs.get("standard_name") == coordinate
        return standard or name.lower() in ranks, users, -ranks.get(name.lower(), len(usual))

    return max(names, key=merit)


def _is_latitude(variable: Any) -> bool:
    return _is_degrees(variable, "latitude", names=LATITUDES, units=LATITUDE_UNITS)


def _is_longitude(variable: Any) -> bool:
    return _is_degrees(variable, "longitude", names=LONGITUDES, units=LONGITUDE_UNITS)


def _is_degrees(
    variable: Any, standard_name: str, *, names: Sequence[str], units: Sequence[str]
) -> bool:
    if variable.dtype.kind not in "iuf":
        return False
    attrs = variable.attrs
    named = attrs.get("standard_name", standard_name) == standard_name
    return named and (
        "standard_name" in attrs
        or str(attrs.get("units", "")).lower() in units
        or variable.name.lower() in names
    )


def _is_time(variable: Any) -> bool:
    """Whether it has valid times; reference times and steps have other standard names."""
    if variable.attrs.get("standard_name", "time") != "time":
        return False
    if variable.dtype.kind == "S":
        return bool(variable.name.lower() in TIMES)
    if variable.dtype.kind == "M" or _is_cftime(variable):
        return True
    return SINCE in str(variable.attrs.get("units", "")).lower()


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
    known = np.ones(len(unique), dtype=np.bool_)
    if unique.dtype.kind == "f":
        known = np.isfinite(unique)
    stamps = np.zeros(len(unique), dtype=np.int64)
    try:
        stamps[known] = np.array(_texts(unique[known], variable), dtype="datetime64[us]").astype(
            np.int64
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidObservations(
            f"expected times in variable {variable.name!r}, units "
            f"{variable.attrs.get('units')!r}: {error}",
            expected="times",
            variable=str(variable.name),
        ) from error
    times = times_from_micros(stamps[inverse.ravel()])
    missing = pa.array(~known[inverse.ravel()])
    return pa.compute.if_else(missing, pa.scalar(None, TIME_TYPE), times)


def _texts(values: Any, variable: Any) -> list[str]:
    """ISO 8601 texts of distinct times."""
    if values.dtype.kind == "O":
        return [date.isoformat() for date in values]
    if values.dtype.kind == "S":
        return [value.decode().strip().replace("_", "T") for value in values]
    cftime = library("cftime", purpose="reading NetCDF times")
    calendar = variable.attrs.get("calendar", DEFAULT_CALENDAR)
    units = str(variable.attrs["units"]).lower()
    dates = cftime.num2date(values, units, calendar=calendar)
    return [date.isoformat() for date in np.atleast_1d(dates)]
