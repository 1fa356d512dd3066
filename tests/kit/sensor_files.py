"""Small files in the shape in which sensors and models deliver them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import netCDF4
import numpy as np

from galileo.optional_imports import library

Attributes: TypeAlias = dict[str, Any]

LEVELS = 5
_TIME: Attributes = {"standard_name": "time", "axis": "T"}
_LATITUDE: Attributes = {"units": "degrees_north", "standard_name": "latitude", "axis": "Y"}
_LONGITUDE: Attributes = {"units": "degrees_east", "standard_name": "longitude", "axis": "X"}
_KELVIN = {"units": "K", "standard_name": "air_temperature"}
_GRID = ("latitude", "longitude")
_RUN = {"standard_name": "forecast_reference_time", "units": "hours since 2024-01-10"}
_ARGO_DAYS = {"units": "days since 1950-01-01 00:00:00 UTC", "conventions": "Relative julian days"}
_IOOS_FLAGS: Attributes = {
    "flag_values": np.arange(10, dtype="i1"),
    "flag_meanings": "no_qc_performed good_data probably_good_data "
    "bad_data_that_are_potentially_correctable bad_data value_changed not_used not_used_2 "
    "interpolated_value missing_value",
}


def _put(
    file: Any,
    name: str,
    dims: Sequence[str],
    values: Any,
    *,
    fill: Any = None,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    array = np.asarray(values)
    variable = file.createVariable(name, array.dtype, tuple(dims), fill_value=fill)
    variable.setncatts(attributes or {})
    if fill is not None and array.dtype.kind == "f":
        array = np.where(np.isnan(array), array.dtype.type(fill), array)
    variable[...] = array


def _characters(texts: Sequence[str], width: int) -> Any:
    padded = [text.ljust(width).encode() for text in texts]
    return np.array(padded, f"S{width}").view("S1").reshape(len(texts), width)


def write_argo(path: Path) -> None:
    """A core profile file of Argo (Argo user's manual 3.41, section 2.2) with two profiles."""
    random = np.random.default_rng(1)
    known = np.arange(LEVELS) < [[LEVELS], [3]]
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.setncatts({"Conventions": "Argo-3.1 CF-1.6", "featureType": "trajectoryProfile"})
        sizes = {"N_PROF": 2, "N_LEVELS": LEVELS, "N_PARAM": 3, "STRING8": 8, "DATE_TIME": 14}
        for dim, size in sizes.items():
            file.createDimension(dim, size)
        file.createDimension("N_HISTORY", None)
        for name, value in {"LATITUDE": 31.5, "LONGITUDE": -40.25}.items():
            about = _LATITUDE if name == "LATITUDE" else _LONGITUDE
            degrees = {**about, "units": about["units"].replace("degrees", "degree")}
            _put(file, name, ["N_PROF"], [value, value + 0.5], fill=99999.0, attributes=degrees)
        days = {**_ARGO_DAYS, **_TIME, "resolution": 0.0}
        _put(file, "JULD", ["N_PROF"], [27030.25, 27040.5], fill=999999.0, attributes=days)
        _put(file, "JULD_LOCATION", ["N_PROF"], [27030.25, 27040.5], attributes=_ARGO_DAYS)
        for name in ("JULD_QC", "POSITION_QC"):
            table = {"conventions": "Argo reference table 2"}
            _put(file, name, ["N_PROF"], np.array([b"1", b"1"]), fill=b" ", attributes=table)
        _put(file, "PLATFORM_NUMBER", ["N_PROF", "STRING8"], _characters(["6901472"] * 2, 8))
        _put(file, "CYCLE_NUMBER", ["N_PROF"], np.array([1, 2], "i4"), fill=99999)
        _put(file, "DIRECTION", ["N_PROF"], np.array([b"A", b"A"]), fill=b" ")
        _put(file, "DATE_CREATION", ["DATE_TIME"], _characters(["20240110000000"], 14)[0])
        about = {
            "PRES": {"units": "decibar", "standard_name": "sea_water_pressure", "axis": "Z"},
            "TEMP": {"units": "degree_Celsius", "standard_name": "sea_water_temperature"},
            "PSAL": {"units": "psu", "standard_name": "sea_water_salinity"},
        }
        for name, attributes in about.items():
            values = random.uniform(2, 30, (2, LEVELS)).round(3)
            if name == "PRES":
                values = np.cumsum(values + 20, axis=1)
            for suffix in ("", "_ADJUSTED"):
                adjusted = np.where(known, values if not suffix else values + 0.001, np.nan)
                dims = ["N_PROF", "N_LEVELS"]
                long_name = {"long_name": name.lower(), "C_format": "%9.3f"}
                _put(
                    file,
                    name + suffix,
                    dims,
                    adjusted.astype("f4"),
                    fill=99999.0,
                    attributes={**attributes, **long_name},
                )
                flags = np.where(known, b"1", b" ")
                flags[0, 1] = b"4"
                table = {"conventions": "Argo reference table 2", "long_name": "quality flag"}
                _put(file, f"{name}{suffix}_QC", dims, flags, fill=b" ", attributes=table)


def write_adcp(path: Path) -> None:
    """Currents of a buoy of NDBC in bins of depth, at one place."""
    random = np.random.default_rng(2)
    shape = (4, LEVELS, 1, 1)
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.setncatts({"Conventions": "CF-1.0", "station": "41001", "institution": "NOAA NDBC"})
        sizes = {"time": None, "depth": LEVELS, "latitude": 1, "longitude": 1}
        for dim, size in sizes.items():
            file.createDimension(dim, size)
        hours = np.array([1704844800 + 3600 * n for n in range(4)], "i4")
        since = {**_TIME, "units": "seconds since 1970-01-01 00:00:00 UTC"}
        _put(file, "time", ["time"], hours, attributes=since)
        down = {"units": "m", "positive": "down", "standard_name": "depth", "axis": "Z"}
        _put(file, "depth", ["depth"], np.arange(LEVELS, dtype="f4") * 16 + 26, attributes=down)
        _put(file, "latitude", ["latitude"], np.array([34.7], "f4"), attributes=_LATITUDE)
        _put(file, "longitude", ["longitude"], np.array([-72.73], "f4"), attributes=_LONGITUDE)
        for name, direction in {"u": "eastward", "v": "northward"}.items():
            values = random.uniform(-80, 80, shape).round(1).astype("f4")
            values[1, 3] = np.nan
            about = {"units": "cm s-1", "standard_name": f"{direction}_sea_water_velocity"}
            _put(file, name, [*sizes], values, fill=99.0, attributes=about)


def write_glider(path: Path) -> None:
    """One profile of a glider, as the IOOS National Glider Data Assembly Center takes it (v3.0)."""
    random, count = np.random.default_rng(3), 6
    with netCDF4.Dataset(path, "w") as file:
        file.setncatts({"Conventions": "CF-1.6, ACDD-1.3", "featureType": "trajectoryProfile"})
        file.createDimension("time", count)
        file.createDimension("traj_strlen", 19)
        name = _characters(["ru29-20240105T1200Z"], 19)[0]
        role = {"cf_role": "trajectory_id", "long_name": "Trajectory/Deployment Name"}
        _put(file, "trajectory", ["traj_strlen"], name, attributes=role)
        since = {**_TIME, "units": "seconds since 1970-01-01T00:00:00Z", "calendar": "gregorian"}
        seconds = 1704844800.0 + 5 * np.arange(count)
        _put(file, "time", ["time"], seconds, fill=-999.0, attributes=since)
        identity = {"cf_role": "profile_id", "long_name": "Profile ID"}
        _put(file, "profile_id", [], np.int32(7), fill=-999, attributes=identity)
        _put(file, "profile_time", [], seconds.mean(), fill=-999.0, attributes=since)
        _put(file, "profile_lat", [], 39.2, fill=-999.0, attributes=_LATITUDE)
        _put(file, "profile_lon", [], -73.6, fill=-999.0, attributes=_LONGITUDE)
        coordinates = {
            "lat": (_LATITUDE, 39.2 + 0.001 * np.arange(count)),
            "lon": (_LONGITUDE, -73.6 + 0.001 * np.arange(count)),
        }
        for name, (about, values) in coordinates.items():
            _put(file, name, ["time"], values, fill=-999.0, attributes=about)
        down = {"units": "m", "positive": "down", "standard_name": "depth", "axis": "Z"}
        depths = (np.arange(count) * 4.0 + 1.5).astype("f4")
        _put(file, "depth", ["time"], depths, fill=-999.0, attributes=down)
        _put(file, "platform", [], np.int32(1), attributes={"type": "platform", "id": "ru29"})
        _put(file, "instrument_ctd", [], np.int32(1), attributes={"type": "instrument"})
        about = {
            "temperature": {"units": "Celsius", "standard_name": "sea_water_temperature"},
            "salinity": {"units": "1e-3", "standard_name": "sea_water_practical_salinity"},
        }
        for name, attributes in about.items():
            values = random.uniform(5, 30, count).round(4).astype("f4")
            values[4] = np.nan if name == "salinity" else values[4]
            at = {"coordinates": "time lat lon depth", "ancillary_variables": f"{name}_qc"}
            _put(file, name, ["time"], values, fill=-999.0, attributes={**attributes, **at})
            flags = np.array([1, 1, 4, 1, 1, 2], "i1")
            status = {"standard_name": f"{attributes['standard_name']} status_flag", **_IOOS_FLAGS}
            _put(file, f"{name}_qc", ["time"], flags, fill=np.int8(-127), attributes=status)


def write_stations(path: Path) -> None:
    """Time series of three stations in a contiguous ragged array (CF 1.11, section H.2.4)."""
    counts, random = np.array([3, 1, 2], "i4"), np.random.default_rng(4)
    with netCDF4.Dataset(path, "w") as file:
        file.setncatts({"Conventions": "CF-1.11", "featureType": "timeSeries"})
        file.createDimension("station", 3)
        file.createDimension("obs", 6)
        file.createDimension("name_strlen", 8)
        names = _characters(["Alp", "Brunnen", "Chur"], 8)
        role = {"cf_role": "timeseries_id", "long_name": "station name"}
        _put(file, "station_name", ["station", "name_strlen"], names, attributes=role)
        _put(file, "lat", ["station"], [46.8, 46.99, 46.85], attributes=_LATITUDE)
        _put(file, "lon", ["station"], [9.8, 8.6, 9.53], attributes=_LONGITUDE)
        sample = {"sample_dimension": "obs", "long_name": "number of observations"}
        _put(file, "row_size", ["station"], counts, attributes=sample)
        days = {**_TIME, "units": "days since 2024-01-01 00:00:00"}
        _put(file, "time", ["obs"], [9.0, 9.25, 9.5, 9.0, 9.0, 9.25], attributes=days)
        values = random.uniform(265, 275, 6).round(1).astype("f4")
        at = {"units": "K", "standard_name": "air_temperature"}
        at["coordinates"] = "time lat lon station_name"
        _put(file, "temperature", ["obs"], values, fill=-999.0, attributes=at)


def write_members(path: Path) -> None:
    """Two times of an ensemble of three members."""
    values = np.arange(36.0, dtype="f4").reshape(2, 3, 2, 3) / 4 + 270
    with netCDF4.Dataset(path, "w") as file:
        _put_grid(file, hours=[0.0, 6.0])
        file.createDimension("number", 3)
        member = {"standard_name": "realization", "units": "1"}
        _put(file, "number", ["number"], np.arange(3, dtype="i4"), attributes=member)
        _put(file, "t2m", ["time", "number", *_GRID], values, attributes=_KELVIN)


def write_run(path: Path, *, start: int) -> None:
    """A run of a forecast that starts at an hour of the day, with steps of six hours."""
    values = np.arange(18.0, dtype="f4").reshape(3, 2, 3) / 4 + 270 + start
    with netCDF4.Dataset(path, "w") as file:
        _put_grid(file, hours=[start + 0.0, start + 6.0, start + 12.0])
        _put(file, "forecast_reference_time", [], float(start), attributes=_RUN)
        _put(file, "t2m", ["time", *_GRID], values, attributes=_KELVIN)


def _put_grid(file: Any, *, hours: Sequence[float]) -> None:
    file.Conventions = "CF-1.11"
    coordinates = {
        "time": (hours, {**_TIME, "units": "hours since 2024-01-10"}),
        "latitude": ([47.0, 46.0], _LATITUDE),
        "longitude": ([8.0, 9.0, 10.0], _LONGITUDE),
    }
    for name, (values, attributes) in coordinates.items():
        file.createDimension(name, len(values))
        _put(file, name, [name], values, attributes=attributes)


def write_member_messages(path: Path) -> None:
    """Three members of an ensemble, each a message of GRIB."""
    eccodes = library("eccodes", purpose="this test")
    with path.open("wb") as file:
        for number in range(3):
            handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
            keys = {
                **{"Ni": 3, "Nj": 2, "dataDate": 20240110, "dataTime": 0, "step": 6},
                "latitudeOfFirstGridPointInDegrees": 47.0,
                "latitudeOfLastGridPointInDegrees": 46.0,
                "longitudeOfFirstGridPointInDegrees": 8.0,
                "longitudeOfLastGridPointInDegrees": 10.0,
                "iDirectionIncrementInDegrees": 1.0,
                "jDirectionIncrementInDegrees": 1.0,
                **{"productDefinitionTemplateNumber": 1, "shortName": "2t"},
                **{"perturbationNumber": number, "bitsPerValue": 16},
            }
            for key, value in keys.items():
                eccodes.codes_set(handle, key, value)
            values = 270.0 + number + np.arange(6.0) / 4
            eccodes.codes_set_array(handle, "values", values)
            file.write(eccodes.codes_get_message(handle))
            eccodes.codes_release(handle)
