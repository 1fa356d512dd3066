"""NetCDF and GRIB files as other programs write them: the right rows, or a clear error.

Values and times are compared with xarray and ecCodes; what these read otherwise stands here.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import GalileoError, InputError, InvalidObservations
from galileo.formats import open_source, suggest_schema
from galileo.model.observations import normalise
from galileo.optional_imports import library

for extra in ("netCDF4", "xarray", "eccodes"):
    if importlib.util.find_spec(extra) is None:
        pytest.skip(f"{extra} is not installed", allow_module_level=True)
netCDF4 = library("netCDF4", purpose="this test")
xarray = library("xarray", purpose="this test")
eccodes = library("eccodes", purpose="this test")

FOLDER = Path(os.environ.get("GALILEO_SAMPLE_DATA", "")) / "trial-inputs"
FILES = [
    path for part in ("nc/*", "grib/*", "user/*.nc") for path in sorted(FOLDER.glob(part))
] or [pytest.param(None, marks=pytest.mark.skip("set GALILEO_SAMPLE_DATA to the sample files"))]

Refusal = tuple[type[GalileoError], dict[str, Any]]
TIMES: Refusal = (InvalidObservations, {"expected": "times", "variable": "time"})
DEGREES: Refusal = (InvalidObservations, {"expected": "degrees", "column": "longitude", "row": 0})
NO_TIME: Refusal = (InputError, {"expected": "coordinate", "variable": "time"})
NO_PLACE: Refusal = (InputError, {"expected": "coordinate", "variable": "latitude"})
NO_VALUES: Refusal = (InputError, {"expected": "features"})
LIBRARY: Refusal = (InputError, {"expected": "whole_file", "format": "NetCDF"})

REFUSED: dict[str, Refusal] = {
    **dict.fromkeys(("attr_calendar_number.nc", "attr_calendar_unknown.nc"), TIMES),
    **dict.fromkeys(("attr_scale_bad_text.nc", "attr_scale_text.nc"), NO_VALUES),
    "attr_scale_vector.nc": LIBRARY,
    "attr_time_units_number.nc": NO_TIME,
    **dict.fromkeys(("common_year.nc", "months.nc", "years.nc"), TIMES),
    **dict.fromkeys(("far.nc", "matlab.nc", "secs60.nc", "year0.nc"), TIMES),
    **dict.fromkeys(("standard_tai.nc", "utc_cal.nc"), TIMES),
    "lon_539.nc": DEGREES,
    "uint64.nc": (InvalidObservations, {"column": "v", "row": 0}),
    "ukv_chan9.grib2": (InputError, {"expected": "valid_time", "offset": 0}),
}
"""Files that are refused, with the class and details of the error."""

ROWS = {
    "CRM032_test1.nc": 0,  # Its only time was never written.
    "attr_add_offset_nan.nc": 0,  # All values are NaN.
    "empty_unlimited.nc": 0,
    "u4.nc": 0,  # Its only time is what the library writes for none.
    "bounds.nc": 8,
    "fill_and_missing.nc": 6,
    "hours_frac_days.nc": 960,
    "hours_frac_days_f4.nc": 120,
    "int64_fill.nc": 7,
    "minutes_f4.nc": 100,
    "packed.nc": 7,
    "seconds_frac.nc": 1000,
    "six_hourly_1800.nc": 400,
    "ten_min_days.nc": 4320,
    "three_hour_since1.nc": 400,
    "time_default_fill.nc": 8,
    "time_i4_default_fill.nc": 4,
    "valid_range.nc": 6,
    "valid_range_text.nc": 8,
    "15_track.nc": 155,
    "16_profiles.nc": 20,
    **dict.fromkeys(("dsg_contiguous_ragged.nc", "dsg_indexed_ragged.nc"), 4),
    "groups.nc": 8,
    **dict.fromkeys(("day360.nc", "noleap.nc", "trajectory.nc"), 3),
    **dict.fromkeys(("day360_ok.nc", "julian.nc", "std_pre1582.nc"), 2),
    **dict.fromkeys(("hour_only.nc", "iso_T_Z.nc", "mixed_dims.nc", "ncep.nc"), 2),
    **dict.fromkeys(("short_date.nc", "tz_minus.nc", "tz_plus.nc", "utc_word.nc"), 2),
    **dict.fromkeys(("collide_u_U.nc", "epoch_ms.nc", "epoch_ns.nc", "epoch_us.nc"), 1),
    **dict.fromkeys(("gregorian_cap.nc", "i2_days.nc", "i4_seconds.nc", "msec.nc"), 1),
    **dict.fromkeys(("negative.nc", "proleptic.nc"), 1),
    "dsg_orthogonal.nc": 6,
    "missing_vector.nc": 5,
    **dict.fromkeys(("case_T_t.nc", "dim_order.nc", "flags.nc", "int64.nc"), 8),
    **dict.fromkeys(("lat_over_90.nc", "lon_0_and_360.nc", "member_dim.nc", "reftime.nc"), 8),
    **dict.fromkeys(("root_and_group.nc", "since_decoy.nc", "string_var.nc"), 8),
    **dict.fromkeys(("two_latitudes.nc", "unsigned.nc"), 8),
    "real_9999_with_bitmap.grib": 23,
    **dict.fromkeys(
        (
            *("alternate_rows.grib", "constant_field.grib", "g1_century.grib"),
            *("g2_hourly_step.grib", "g2_month_step.grib", "g2_seconds_ref.grib"),
            *("g2_step_minutes.grib", "g2_step_seconds.grib", "g2_year_1850.grib"),
            *("j_consecutive.grib", "lon_-180_to_135.grib", "lon_0_to_315.grib"),
            *("lon_0_to_minus_45_(fnl_like).grib", "lon_180_to_135.grib"),
        ),
        24,
    ),
}
"""Rows of the files that are read; of those with one odd attribute that are not named, 8."""

LEFT_OUT = {
    "root_and_group.nc": ["group sub"],
    "string_var.nc": ["s"],
    "two_latitudes.nc": ["lat_v"],
    "reftime.nc": ["reftime", "forecast_period"],
    "mixed_dims.nc": ["temp"],
    "dsg_orthogonal.nc": [],
}

GRIB_TIMES = {
    "g1_century.grib": dt.datetime(2000, 1, 1, 6),
    "g2_hourly_step.grib": dt.datetime(2014, 3, 2, 18),
    "g2_month_step.grib": dt.datetime(2014, 5, 1),
    "g2_seconds_ref.grib": dt.datetime(2014, 3, 1, 6, 30, 45),
    "g2_step_minutes.grib": dt.datetime(2014, 3, 1, 8),
    "g2_step_seconds.grib": dt.datetime(2014, 3, 1, 7, 0, 5),
    "g2_year_1850.grib": dt.datetime(1850, 1, 1),
}
"""Valid times; of the others 2007-03-23 12:00."""

NETCDF_TIMES = {
    "tz_minus.nc": dt.datetime(1992, 10, 8, 21, 15, 42, 500000),
    "tz_plus.nc": dt.datetime(1999, 12, 31, 18, 30),
    "hour_only.nc": dt.datetime(2000, 1, 1, 12),
}
"""First times that cftime alone reads otherwise."""


def rows_of(name: str) -> int:
    """Raises KeyError for a file without an expectation."""
    return 8 if name.startswith("attr_") and name not in ROWS else ROWS[name]


@pytest.mark.filterwarnings("ignore")  # xarray warns of odd attributes.
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name if path else "")
def test_foreign_grid_is_read_right_or_refused(path: Path) -> None:
    if path.name in REFUSED:
        cls, details = REFUSED[path.name]
        with raises(cls, **details):
            stored(path)
    else:
        check(path)


def stored(path: Path) -> pa.Table:
    """The rows as a dataset takes them."""
    source = open_source(path)
    schema = suggest_schema(source, "foreign")
    tables = [normalise(schema, batch) for batch in source.bound_to(schema).batches()]
    return pa.concat_tables(tables) if tables else pa.table(schema.observation_schema.empty_table())


def check(path: Path) -> None:
    table, source = stored(path), open_source(path)
    assert table.num_rows == rows_of(path.name)
    assert source.left_out() == LEFT_OUT.get(path.name, [])
    if "grib" in path.suffix:
        check_grib(path, table)
    elif table.num_rows:
        check_netcdf(path, table, source.features)


def check_netcdf(path: Path, table: pa.Table, features: dict[str, str]) -> None:
    """Sums and counts of each variable, and the distinct times, against xarray and cftime."""
    with netCDF4.Dataset(path) as root:
        file = root["PRODUCT"] if path.name == "groups.nc" else root
        is_bool = path.name == "attr_dtype_attr.nc"
        for feature, text in features.items():
            base, _, level = text.partition("@")
            if pa.types.is_string(table[feature].type):
                written = netCDF4.chartostring(file[base][:]).tolist()
                assert {*table[feature].to_pylist()} == {*written}
                continue
            values = np.ma.filled(np.ma.asarray(file[base][:], dtype=np.float64), np.nan)
            if level:
                dim, _, index = level.partition(":")
                values = values.take(int(index), axis=file[base].dimensions.index(dim))
            if file[base].dimensions[0] == "time":
                values = values[~np.ma.getmaskarray(file["time"][:])]
            values = values.astype(bool).astype(float) if text == "v" and is_bool else values
            column = table[feature].drop_null().cast(pa.float64(), safe=False).to_numpy()
            assert len(column) == np.count_nonzero(~np.isnan(values)), feature
            np.testing.assert_allclose(np.sort(column), np.sort(values[~np.isnan(values)].ravel()))
        first = table["time"][0].as_py().replace(tzinfo=None)
        if path.name in NETCDF_TIMES:
            assert first == NETCDF_TIMES[path.name]
            return
        variable = file["JULD" if path.name == "16_profiles.nc" else "time"]
        units = variable.units.lower().replace("nanoseconds", "microseconds")
        numbers = variable[:] // 1000 if "nanoseconds" in variable.units else variable[:]
        calendar = getattr(variable, "calendar", "standard")
        dates = netCDF4.num2date(np.ma.compressed(np.atleast_1d(numbers)), units, calendar)
        assert first == dt.datetime.fromisoformat(min(date.isoformat() for date in dates))


def check_grib(path: Path, table: pa.Table) -> None:
    """Points and values against ecCodes' iterator."""
    with path.open("rb") as file:
        handle = eccodes.codes_grib_new_from_file(file)
    eccodes.codes_set(handle, "missingValue", -1e300)
    points = np.array(
        [(p["lat"], p["lon"], p["value"]) for p in eccodes.codes_grib_get_data(handle)]
    )
    eccodes.codes_release(handle)
    points = points[points[:, 2] != -1e300]
    points[:, 1] = np.where(points[:, 1] > 180, points[:, 1] - 360, points[:, 1])
    ours = np.column_stack([table[name] for name in table.column_names if name != "time"])
    np.testing.assert_allclose(ours, points)
    time = GRIB_TIMES.get(path.name, dt.datetime(2007, 3, 23, 12))
    assert {each.replace(tzinfo=None) for each in table["time"].to_pylist()} == {time}
