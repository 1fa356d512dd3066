"""NetCDF files written with netCDF4, in the shapes that the CF conventions and WRF give them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError, InvalidObservations, UnknownProperty
from galileo.formats import Mapping, Source, netcdf, open_source, suggest_schema
from galileo.formats.netcdf import open_netcdf, windows
from galileo.formats.netcdf_grid import CoordinateGrid, decode_times

netCDF4 = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
xarray = pytest.importorskip("xarray", reason="xarray is not installed")

NAN = float("nan")


@contextmanager
def writing(path: Path, *, format: str = "NETCDF4", **dims: int | None) -> Iterator[Any]:
    with netCDF4.Dataset(path, "w", format=format) as dataset:
        for name, size in dims.items():
            dataset.createDimension(name, size)
        yield dataset


def put(dataset: Any, name: str, dims: tuple[str, ...], values: Any, **attrs: Any) -> None:
    array = np.asarray(values)
    # The classic formats have no integers of 64 bits.
    array = array.astype(np.int32) if array.dtype == np.int64 else array
    kind = attrs.pop("kind", array.dtype)
    variable = dataset.createVariable(name, kind, dims, fill_value=attrs.pop("fill", None))
    variable.setncatts(attrs)
    variable[...] = array


def put_places(
    dataset: Any, *, latitudes: Any = (10.0, 20.0), longitudes: Any = (1.0, 2.0, 3.0)
) -> None:
    put(dataset, "lat", ("lat",), latitudes, units="degrees_north")
    put(dataset, "lon", ("lon",), longitudes, units="degrees_east")


def put_times(dataset: Any, hours: Any = (0, 6), **attrs: Any) -> None:
    units = attrs.pop("units", "hours since 2020-01-01 00:00:00")
    put(dataset, "time", ("time",), hours, units=units, **attrs)


def read(path: Path, *texts: str) -> pa.Table:
    return pa.concat_tables(open_source(path, mapping=Mapping.parse(texts)).batches())


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type, misc]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.nc"


# --- shapes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET"])
def test_netcdf_rectilinear_grid_is_read(path: Path, format: str) -> None:
    values = np.arange(12.0).reshape(2, 2, 3)
    with writing(path, format=format, time=None, lat=2, lon=3) as dataset:
        put_places(dataset)
        put_times(dataset)
        put(dataset, "T2", ("time", "lat", "lon"), values, units="K", long_name="temperature")
    source = open_source(path)
    table = pa.concat_tables(source.batches())
    assert source.format == "netcdf"
    assert table.column("latitude").to_pylist() == [10.0] * 3 + [20.0] * 3 + [10.0] * 3 + [20.0] * 3
    assert table.column("longitude").to_pylist() == [1.0, 2.0, 3.0] * 4
    assert table.column("time").to_pylist() == [utc(2020, 1, 1)] * 6 + [utc(2020, 1, 1, 6)] * 6
    assert table.column("t2").to_pylist() == list(range(12))
    info = source.variables()[0]
    assert (info.name, info.about.unit, info.about.description) == ("T2", "K", "temperature")
    assert info.dims == ("time:2", "lat:2", "lon:3")
    assert suggest_schema(source, "x").features[0].unit == "K"


def test_netcdf_any_order_of_dimensions_is_the_same(path: Path) -> None:
    values = np.arange(12.0).reshape(2, 2, 3)
    with writing(path, time=2, lat=2, lon=3) as dataset:
        put_places(dataset)
        put_times(dataset)
        put(dataset, "straight", ("time", "lat", "lon"), values)
        put(dataset, "turned", ("lon", "time", "lat"), values.transpose(2, 0, 1))
    table = read(path)
    assert table.column("turned").to_pylist() == table.column("straight").to_pylist()


def test_netcdf_curvilinear_grid_is_read(path: Path) -> None:
    latitude = np.array([[10.0, 10.5], [20.0, NAN]])
    with writing(path, time=1, y=2, x=2) as dataset:
        put(dataset, "nav_lat", ("y", "x"), latitude)
        put(dataset, "nav_lon", ("y", "x"), [[1.0, 2.0], [1.5, 2.5]])
        put_times(dataset, [12])
        put(dataset, "t", ("time", "y", "x"), [[[1.0, 2.0], [3.0, 4.0]]])
    source = open_source(path)
    table = pa.concat_tables(source.batches())
    assert table.column("latitude").to_pylist() == [10.0, 10.5, 20.0]
    assert table.column("longitude").to_pylist() == [1.0, 2.0, 1.5]
    assert table.column("t").to_pylist() == [1.0, 2.0, 3.0]
    assert source.skipped == 1


def test_netcdf_wrf_output_is_read(path: Path) -> None:
    """Coordinates that change with time, texts for times, staggered grids, levels."""
    with writing(path, Time=None, south_north=2, west_east=2, west_east_stag=3) as dataset:
        dataset.createDimension("bottom_top", 2)
        dataset.createDimension("DateStrLen", 19)
        texts = np.array([list("2005-08-28_00:00:00"), list("2005-08-28_03:30:00")], dtype="S1")
        put(dataset, "Times", ("Time", "DateStrLen"), texts)
        place = ("Time", "south_north", "west_east")
        latitude = np.arange(8.0).reshape(2, 2, 2)
        put(dataset, "XLAT", place, latitude, units="degree_north")
        put(dataset, "XLONG", place, -latitude, units="degree_east")
        stag = ("Time", "south_north", "west_east_stag")
        put(dataset, "XLAT_U", stag, np.zeros((2, 2, 3)), units="degree_north")
        put(dataset, "XLONG_U", stag, np.zeros((2, 2, 3)), units="degree_east")
        xtime = "minutes since 2005-08-28 00:00:00"
        put(dataset, "XTIME", ("Time",), [0.0, 210.0], units=xtime)
        at = {"coordinates": "XLONG XLAT XTIME"}
        put(dataset, "T2", place, 280 + latitude, **at)
        put(dataset, "QVAPOR", ("Time", "bottom_top", *place[1:]), np.ones((2, 2, 2, 2)), **at)
        put(dataset, "U", stag, np.zeros((2, 2, 3)), coordinates="XLONG_U XLAT_U XTIME")
    table = read(path)
    assert table.column_names[3:] == ["t2", "qvapor_bottom_top_0", "qvapor_bottom_top_1"]
    assert table.column("latitude").to_pylist() == list(range(8))
    assert table.column("t2").to_pylist() == [280.0 + i for i in range(8)]
    moments = [utc(2005, 8, 28)] * 4 + [utc(2005, 8, 28, 3, 30)] * 4
    assert table.column("time").to_pylist() == moments
    assert read(path, "t=T2", "time=XTIME").column("time").to_pylist() == moments


def test_netcdf_stations_and_trajectories_are_read(path: Path) -> None:
    with writing(path, obs=3) as dataset:
        put(dataset, "lat", ("obs",), [1.0, 2.0, 3.0], standard_name="latitude")
        put(dataset, "lon", ("obs",), [4.0, 5.0, 6.0], standard_name="longitude")
        seconds = np.array([0.0, 0.25, NAN])
        put(dataset, "time", ("obs",), seconds, units="seconds since 2020-01-01 00:00:00")
        put(dataset, "t", ("obs",), [7.0, 8.0, 9.0])
    source = open_source(path)
    table = pa.concat_tables(source.batches())
    assert table.column("t").to_pylist() == [7.0, 8.0]
    moments = table.column("time").to_pylist()
    assert moments == [utc(2020, 1, 1), utc(2020, 1, 1) + dt.timedelta(milliseconds=250)]
    assert source.skipped == 1


def test_netcdf_single_point_is_read(path: Path) -> None:
    with writing(path, time=2) as dataset:
        put(dataset, "latitude", (), 50.0, units="degrees_north")
        put(dataset, "longitude", (), 8.0, units="degrees_east")
        put_times(dataset)
        put(dataset, "t", ("time",), [1.0, 2.0])
    table = read(path)
    assert table.column("latitude").to_pylist() == [50.0, 50.0]
    assert table.column("t").to_pylist() == [1.0, 2.0]


def test_netcdf_valid_time_is_preferred_to_start(path: Path) -> None:
    """As cfgrib writes forecasts: scalar start, steps, and the valid times."""
    with writing(path, step=2, lat=1, lon=1) as dataset:
        put_places(dataset, latitudes=[1.0], longitudes=[2.0])
        since = "seconds since 1970-01-01"
        start = {"units": since, "standard_name": "forecast_reference_time"}
        put(dataset, "time", (), 0, **start)
        put(dataset, "step", ("step",), [0.0, 6.0], units="hours", standard_name="forecast_period")
        put(dataset, "valid_time", ("step",), [0, 21600], units=since, standard_name="time")
        put(dataset, "t", ("step", "lat", "lon"), [[[1.0]], [[2.0]]])
    assert read(path).column("time").to_pylist() == [utc(1970, 1, 1), utc(1970, 1, 1, 6)]


def test_netcdf_levels_are_variables_unless_single(path: Path) -> None:
    values = np.arange(8.0).reshape(1, 2, 2, 2)
    with writing(path, time=1, level=2, lat=2, lon=2, height=1) as dataset:
        put_places(dataset, longitudes=[1.0, 2.0])
        put_times(dataset, [0])
        put(dataset, "level", ("level",), [850.0, 500.0], units="hPa")
        put(dataset, "t", ("time", "level", "lat", "lon"), values)
        put(dataset, "w", ("time", "height", "lat", "lon"), np.ones((1, 1, 2, 2)))
    assert read(path).column_names[3:] == ["t_level_850", "t_level_500", "w"]
    table = read(path, "upper=t@level:500", "speed=hypot(t@level:850, t@level:500)")
    assert table.column("upper").to_pylist() == [4.0, 5.0, 6.0, 7.0]
    assert table.column("speed").to_pylist()[1] == pytest.approx(math.hypot(1, 5))
    with raises(InputError, expected="one_variable", variable="t"):
        read(path, "t=t")


def test_netcdf_levels_that_are_equal_are_numbered(path: Path) -> None:
    with writing(path, time=1, level=2, lat=1, lon=1) as dataset:
        put_places(dataset, latitudes=[10.0], longitudes=[1.0])
        put_times(dataset, [0])
        put(dataset, "level", ("level",), [850.0, 850.0], units="hPa")
        put(dataset, "t", ("time", "level", "lat", "lon"), [[[[1.0]], [[2.0]]]])
    [row] = read(path).to_pylist()
    assert (row["t_level_0"], row["t_level_1"]) == (1.0, 2.0)


def test_netcdf_mapped_constant_field_is_repeated(path: Path) -> None:
    with writing(path, time=2, lat=1, lon=2) as dataset:
        put_places(dataset, latitudes=[1.0], longitudes=[1.0, 2.0])
        put_times(dataset)
        put(dataset, "height", ("lat", "lon"), [[100.0, 200.0]])
        put(dataset, "t", ("time", "lat", "lon"), [[[1.0, 2.0]], [[3.0, 4.0]]])
    assert read(path).column_names[3:] == ["t"]
    table = read(path, "t=t", "height=height")
    assert table.column("height").to_pylist() == [100.0, 200.0, 100.0, 200.0]


# --- values ----------------------------------------------------------------------------------


def test_netcdf_missing_value_of_any_kind_is_null(path: Path) -> None:
    with writing(path, time=1, lat=2, lon=3) as dataset:
        put_places(dataset)
        put_times(dataset, [0])
        dims = ("time", "lat", "lon")
        put(dataset, "always", dims, np.ones((1, 2, 3)))
        base = np.arange(6.0).reshape(1, 2, 3)
        put(dataset, "filled", dims, np.where(base == 1, -999.0, base), fill=-999.0)
        put(dataset, "named", dims, np.where(base == 2, -1e20, base), missing_value=-1e20)
        put(dataset, "unwritten", dims, np.where(base == 3, netCDF4.default_fillvals["f8"], base))
        put(dataset, "ranged", dims, base, valid_min=0.0, valid_max=4.0)
        put(dataset, "counted", dims, base.astype(np.int32), valid_range=np.int32([1, 9]))
        packed = dataset.createVariable("packed", "i2", dims, fill_value=np.int16(-32767))
        packed.setncatts({"scale_factor": 0.5, "add_offset": 10.0, "valid_range": np.int16([0, 8])})
        packed[...] = np.ma.masked_equal(10.0 + base, 10.0)
    with netCDF4.Dataset(path) as dataset:
        expected = {name: dataset[name][:].ravel() for name in dataset.variables}
    table = read(path)
    for name in ("filled", "named", "unwritten", "ranged", "counted", "packed"):
        assert table.column(name).to_pylist() == expected[name].tolist(), name
        assert table.column(name).null_count == 1 + (name == "packed"), name


@pytest.mark.parametrize(
    ("packing", "stored", "values"),
    [
        ({"scale_factor": 0.5, "add_offset": 10.0}, [2, -32767, 4], [11.0, None, 12.0]),
        ({"scale_factor": np.float32(0.01)}, [2, -32767, 4], [0.02, None, 0.04]),
        ({"add_offset": 10.0}, [2, -32767, 4], [12.0, None, 14.0]),
        ({"scale_factor": 0.5, "valid_range": [1.0, 2.0]}, [1, 3, 5], [None, 1.5, None]),
        ({"scale_factor": 0.5, "valid_max": 2.0}, [1, 3, 5], [0.5, 1.5, None]),
        ({"scale_factor": -0.5, "valid_min": np.int16(2)}, [1, 3, 5], [None, -1.5, -2.5]),
        (
            {"scale_factor": 0.5, "_Unsigned": "true", "valid_range": np.int16([0, -6])},
            [1, -6, -2],
            [0.5, 32765.0, None],
        ),
        ({"_Unsigned": "true"}, [1, -32767, -2], [1.0, None, 65534.0]),
        ({"valid_range": "0, 100"}, [1, 3, 5], [1, 3, 5]),
        ({"valid_range": np.int16([7])}, [1, 3, 5], [1, 3, 5]),
        ({"valid_min": "none"}, [1, 3, 5], [1, 3, 5]),
        ({"valid_min": np.int16(9), "valid_max": np.int16(-9)}, [1, 3, 5], [1, 3, 5]),
    ],
)
def test_netcdf_packed_missing_values_and_bounds_are_null(
    path: Path, packing: dict[str, Any], stored: list[int], values: list[float | None]
) -> None:
    with writing(path, time=1, lat=1, lon=3) as dataset:
        put_places(dataset, latitudes=(10.0,))
        put_times(dataset, hours=(0,))
        dims = ("time", "lat", "lon")
        put(dataset, "other", dims, np.ones((1, 1, 3)))
        packed = dataset.createVariable("packed", "i2", dims)
        packed.setncatts(packing)
        packed.set_auto_maskandscale(False)
        packed[...] = np.array(stored, dtype=np.int16)
    assert read(path)["packed"].to_pylist() == [
        None if value is None else pytest.approx(value) for value in values
    ]


@pytest.mark.parametrize("kind", [np.int32, np.float64])
def test_netcdf_unwritten_coordinates_are_skipped(path: Path, kind: Any) -> None:
    with writing(path, time=3, lat=2, lon=3) as dataset:
        put_places(dataset, latitudes=(10.0, netCDF4.default_fillvals["f8"]))
        fill = netCDF4.default_fillvals[np.dtype(kind).str[1:]]
        put_times(dataset, np.array([0, fill, 6], dtype=kind))
        put(dataset, "t", ("time", "lat", "lon"), np.arange(18.0).reshape(3, 2, 3))
    table = read(path)
    assert table.column("t").to_pylist() == [0, 1, 2, 12, 13, 14]
    assert set(table.column("latitude").to_pylist()) == {10.0}
    assert set(table.column("time").to_pylist()) == {utc(2020, 1, 1), utc(2020, 1, 1, 6)}


def test_netcdf_integers_of_64_bits_with_missing_values_are_exact(path: Path) -> None:
    number, dims = 2**53 + 1, ("time", "lat", "lon")
    with writing(path, time=1, lat=1, lon=3) as dataset:
        put_places(dataset, latitudes=[1.0])
        put_times(dataset, [0])
        default = netCDF4.default_fillvals["i8"]
        for name, missing, attrs in (
            ("filled", -1, {"fill_value": -1}),
            ("unwritten", default, {}),
            ("ranged", -5, {}),
        ):
            variable = dataset.createVariable(name, "i8", dims, **attrs)
            variable.set_auto_mask(False)
            variable[...] = np.array([[[number, missing, -7]]])
        put(dataset, "other", dims, [[[1.0, 2.0, 3.0]]])
        dataset["ranged"].valid_min = np.int64(-7)
        dataset["ranged"].setncattr("missing_value", np.array([-5.0, 1e300, 0.5]))
    table = read(path)
    for name in ("filled", "unwritten", "ranged"):
        assert table[name].to_pylist() == [number, None, -7], name


def test_netcdf_truth_values_are_bool_feature(path: Path) -> None:
    with writing(path, time=1, lat=1, lon=3) as dataset:
        put_places(dataset, latitudes=[1.0])
        put_times(dataset, [0])
        put(dataset, "wet", ("time", "lat", "lon"), np.int8([[[0, 1, 1]]]), dtype="bool")
    assert suggest_schema(open_source(path), "x").features[0].type == "bool"
    assert read(path)["wet"].to_pylist() == [False, True, True]


def test_netcdf_coordinates_without_attribute_are_no_features(path: Path) -> None:
    with writing(path, obs=3) as dataset:
        put(dataset, "lat", ("obs",), [1.0, 2.0, 3.0], units="degrees_north")
        put(dataset, "lon", ("obs",), [1.0, 2.0, 3.0], units="degrees_east")
        put(dataset, "time", ("obs",), [0.0, 1.0, 2.0], units="hours since 2020-01-01")
        put(dataset, "temp", ("obs",), [1.0, 2.0, 3.0])
    assert open_source(path).features == {"temp": "temp"}


def test_netcdf_whole_numbers_are_int_feature(path: Path) -> None:
    with writing(path, time=1, lat=2, lon=3) as dataset:
        put_places(dataset)
        put_times(dataset, [0])
        put(dataset, "count", ("time", "lat", "lon"), np.arange(6, dtype=np.int16).reshape(1, 2, 3))
    source = open_source(path)
    assert suggest_schema(source, "x").features[0].type == "int"
    assert read(path).column("count").to_pylist() == list(range(6))


# --- times -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("units", "calendar", "number", "moment"),
    [
        ("days since 1900-01-01", "standard", 0.5, utc(1900, 1, 1, 12)),
        ("hours since 1-1-1 00:00:0.0", "gregorian", 17067072.0, utc(1948, 1, 1)),
        ("minutes since 2020-01-01 00:00 +01:00", "standard", 60, utc(2020, 1, 1)),
        ("days since 2001-01-01", "noleap", 365 * 3 + 59, utc(2004, 3, 1)),
        ("days since 2001-01-01", "360_day", 45, utc(2001, 2, 16)),
        ("days since 1960-01-01", "proleptic_gregorian", -1, utc(1959, 12, 31)),
    ],
)
def test_netcdf_times_in_any_unit_and_calendar_are_converted(
    path: Path, units: str, calendar: str, number: float, moment: dt.datetime
) -> None:
    with writing(path, time=1, lat=1, lon=1) as dataset:
        put_places(dataset, latitudes=[1.0], longitudes=[1.0])
        put_times(dataset, [number], units=units, calendar=calendar)
        put(dataset, "t", ("time", "lat", "lon"), [[[1.0]]])
    assert read(path).column("time").to_pylist() == [moment]


ZONES = {
    "": 0,
    "Z": 0,
    " UTC": 0,
    " GMT": 0,
    " 0:00": 0,
    **{
        f" {sign}{text}": minutes * (1 if sign == "+" else -1)
        for text, minutes in {"6": 360, "06": 360, "6:00": 360, "0530": 330, "05:30": 330}.items()
        for sign in "+-"
    },
}


@pytest.mark.parametrize(
    "clock", ["", " 15", "T15", " 15:05", " 5:5:9", " 15:15:42.5", "T15:15:42"]
)
@pytest.mark.parametrize("date", ["1992-10-8", "1992-10-08"])
def test_netcdf_reference_time_is_read_as_a_whole(date: str, clock: str) -> None:
    """Against a dumb reading: the date, the parts of the clock and the minutes of the zone."""
    parts = [float(part) for part in clock.strip(" T").split(":") if part]
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    variable = xarray.Variable((), 0.0)
    for zone, minutes in ZONES.items():
        if not clock and zone == " 0:00":  # This would be an hour and a minute.
            continue
        variable.attrs["units"] = f"hours since {date}{clock}{zone}"
        wanted = utc(1992, 10, 8) + dt.timedelta(seconds=seconds - 60 * minutes)
        assert decode_times(np.array([0.0]), named(variable)).to_pylist() == [wanted], zone


@pytest.mark.parametrize(
    "units",
    [
        *(
            "hours since 2000-01-01 00:00 EST",
            "hours since 2000-01-01 0600",
            "hours since 20000101",
        ),
        *("hours since 2000-01-01 00:00:00 foo", "days since yesterday", "hours since", "K", "3"),
        *("hours since 2000-01-01 00:00:61", "months since 2000-01-01", "years since 2000-01-01"),
        *(
            "hours since 2000-13-01",
            "hours since 2000-01-01 12:00:00 +99:00",
            "fs since 2000-01-01",
        ),
    ],
)
def test_netcdf_reference_time_with_a_rest_is_refused(units: str) -> None:
    variable = named(xarray.Variable((), 0.0, {"units": units}))
    with raises(InvalidObservations, expected="times", variable="time"):
        decode_times(np.array([0.0]), variable)


@pytest.mark.parametrize("calendar", ["tai", "utc", "TAI", "mars", 3])
def test_netcdf_calendar_that_is_not_utc_is_refused(calendar: Any) -> None:
    attrs = {"units": "seconds since 2016-12-31 23:59:30", "calendar": calendar}
    with raises(InvalidObservations, expected="times", variable="time"):
        decode_times(np.array([0.0]), named(xarray.Variable((), 0.0, attrs)))


@pytest.mark.parametrize("word", ["ns", "nanoseconds"])
def test_netcdf_nanoseconds_become_the_microsecond_they_lie_in(word: str) -> None:
    numbers = np.array([-1, 0, 999, 1000, 1_400_000_000_123_456_789])
    variable = named(xarray.Variable((), 0, {"units": f"{word} since 1970-01-01"}))
    assert decode_times(numbers, variable).cast(pa.int64()).to_pylist() == list(numbers // 1000)


def test_netcdf_times_that_are_no_dates_are_refused() -> None:
    variable = named(xarray.Variable(("time",), np.array([float("nan")], dtype=object)))
    with raises(InvalidObservations, expected="times", variable="time"):
        decode_times(variable.to_numpy(), variable)


def named(variable: Any) -> Any:
    return xarray.DataArray(variable, name="time")


@pytest.mark.parametrize("name", ["s", "blank", "flag", "lat"])
def test_netcdf_mapped_coordinate_of_another_type_is_refused(path: Path, name: str) -> None:
    with writing(path, time=1, lat=1, lon=1, length=3) as dataset:
        put_places(dataset, latitudes=[1.0], longitudes=[1.0])
        put_times(dataset, [0])
        put(dataset, "s", ("lat", "length"), [[b"a", b"b", b"c"]])
        dataset.createVariable("blank", str, ("lat",))[:] = np.array([""], dtype=object)
        put(dataset, "flag", ("lat",), np.int8([1]), dtype="bool")
        put(dataset, "t", ("time", "lat", "lon"), [[[1.0]]])
    with raises(InvalidObservations, expected="times", variable=name):
        read(path, f"time={name}", "t=t")
    if name != "lat":
        with raises(InputError, expected="degrees", variable=name):
            read(path, f"latitude={name}", "t=t")


def test_netcdf_day_outside_calendar_raises(path: Path) -> None:
    with writing(path, time=1, lat=1, lon=1) as dataset:
        put_places(dataset, latitudes=[1.0], longitudes=[1.0])
        put_times(dataset, [59], units="days since 2001-01-01", calendar="360_day")
        put(dataset, "t", ("time", "lat", "lon"), [[[1.0]]])
    with raises(InvalidObservations, expected="times", variable="time"):
        read(path)


def test_netcdf_no_times_needs_constant_time(path: Path) -> None:
    with writing(path, lat=2, lon=3) as dataset:
        put_places(dataset)
        put(dataset, "t", ("lat", "lon"), np.ones((2, 3)))
    with raises(InputError, expected="coordinate", variable="time"):
        open_source(path)
    table = read(path, "time=@2012-03-01T06:00Z")
    assert table.column("time").to_pylist() == [utc(2012, 3, 1, 6)] * 6
    assert table.column_names[3:] == ["t"]


# --- what cannot be read ----------------------------------------------------------------------


def test_netcdf_groups_and_variables_off_the_grid_are_left_out(path: Path) -> None:
    with writing(path, time=2, lat=2, lon=3, level=5, length=3) as dataset:
        put_places(dataset)
        put_times(dataset)
        put(dataset, "t", ("time", "lat", "lon"), np.ones((2, 2, 3)))
        put(dataset, "u", ("time", "level", "lat", "lon"), np.ones((2, 5, 2, 3)))
        put(dataset, "name", ("lat", "length"), np.full((2, 3), b"a"))
        put(dataset, "mean", ("time",), [1.0, 2.0])
        dataset.createGroup("more")
    assert open_source(path).left_out() == ["name", "mean", "group more"]
    chosen = open_source(path, mapping=Mapping.parse(["t=t"])).left_out()
    assert chosen == ["u (5 levels)", "name", "mean", "group more"]


def test_netcdf_file_without_features_names_its_variables(path: Path) -> None:
    with writing(path, time=2, lat=2, lon=3, zone=4) as dataset:
        put_places(dataset)
        put_times(dataset)
        put(dataset, "zonal", ("time", "zone"), np.ones((2, 4)))
    with pytest.raises(InputError) as refused:
        assert open_source(path).features
    assert refused.value.message.endswith("nothing, and without usable values zonal")


@pytest.mark.parametrize("in_child", [True, False])
def test_netcdf_file_without_places_can_be_looked_at(path: Path, in_child: bool) -> None:
    with writing(path, time=2) as dataset:
        put_times(dataset)
        put(dataset, "t", ("time",), [1.0, 2.0], units="K")
    with raises(InputError, expected="coordinate", variable="latitude"):
        open_source(path)
    reader = open_source(path, is_place_needed=False) if in_child else open_netcdf(path, Mapping())
    error = reader.place_error if isinstance(reader, Source) else reader.coordinates.error
    assert error is not None
    assert error.details["variable"] == "latitude"
    found = {variable.name: (variable.about.unit, variable.dims) for variable in reader.variables()}
    assert found["t"] == ("K", ("time:2",))
    assert found.keys() == {"t", "time"}


def test_netcdf_file_of_groups_is_refused_with_their_names(path: Path) -> None:
    with writing(path) as dataset:
        dataset.createGroup("PRODUCT")
    with pytest.raises(InputError) as refused:
        open_source(path)
    assert refused.value.message.endswith("No group has them: PRODUCT")


def test_netcdf_distances_on_a_map_are_named(path: Path) -> None:
    with writing(path, time=1, y=1, x=1) as dataset:
        put_times(dataset, [0])
        put(dataset, "y", ("y",), [1e6], standard_name="projection_y_coordinate", units="m")
        put(dataset, "x", ("x",), [1e6], standard_name="projection_x_coordinate", units="m")
        put(dataset, "t", ("time", "y", "x"), [[[1.0]]])
    with pytest.raises(InputError) as refused:
        open_source(path)
    assert "y and x are distances on a map" in refused.value.message


def test_netcdf_mistake_of_the_reader_is_no_error_of_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(path, time=1, lat=1, lon=1) as dataset:
        put_places(dataset, latitudes=[1.0], longitudes=[1.0])
        put_times(dataset, [0])
        put(dataset, "t", ("time", "lat", "lon"), [[[1.0]]])
        dataset["t"].scale_factor = [1.0, 2.0]
    with raises(InputError, expected="whole_file", format="NetCDF"):  # xarray's ValueError
        open_source(path)
    with writing(path, time=1, lat=1, lon=1) as dataset:
        put_places(dataset, latitudes=[1.0], longitudes=[1.0])
    monkeypatch.setattr(netcdf, "RELATED", 3)
    with pytest.raises(TypeError, match="not iterable"):
        open_source(path)


# --- coordinates that have to be named -------------------------------------------------------


def test_netcdf_mapped_coordinates_are_used(path: Path) -> None:
    with writing(path, a=2, b=2) as dataset:
        put(dataset, "north", ("a",), [1.0, 2.0])
        put(dataset, "east", ("b",), [3.0, 4.0])
        put(dataset, "when", (), 3.0, units="days since 2020-01-01")
        put(dataset, "t", ("a", "b"), np.ones((2, 2)))
    with raises(InputError, expected="coordinate", variable="latitude"):
        open_source(path)
    table = read(path, "latitude=north", "longitude=east", "t=t")
    assert table.column("latitude").to_pylist() == [1.0, 1.0, 2.0, 2.0]
    assert set(table.column("time").to_pylist()) == {utc(2020, 1, 4)}
    with raises(UnknownProperty, nearest="north", variable="nort"):
        read(path, "latitude=nort", "longitude=east", "t=t")


def test_netcdf_damaged_file_raises(path: Path) -> None:
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 100)
    with raises(InputError, expected="whole_file", format="NetCDF"):
        open_source(path)


# --- slabs -----------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5), max_size=3), st.integers(1, 70))
def test_netcdf_windows_random_shape_cover_rows_once(shape: list[int], rows_max: int) -> None:
    dims = tuple("abc"[: len(shape)])
    grid = CoordinateGrid("lat", "lon", "time", None, dims, tuple(shape), dims)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    parts = [
        numbers[tuple(window[dim] for dim in dims)].ravel()
        for window in windows(grid, rows_max=rows_max)
    ]
    assert np.concatenate(parts).tolist() == list(range(math.prod(shape)))
    assert max(len(part) for part in parts) <= rows_max


@pytest.mark.parametrize("values_max", [1, 7, 30, 1000])
def test_netcdf_slabs_of_any_size_give_same_rows(path: Path, values_max: int) -> None:
    generator = np.random.default_rng(1)
    with writing(path, time=3, y=4, x=5) as dataset:
        put(dataset, "lat", ("y", "x"), generator.uniform(0, 1, (4, 5)))
        put(dataset, "lon", ("time", "y", "x"), generator.uniform(0, 1, (3, 4, 5)))
        put_times(dataset, [0, 1, 2])
        put(dataset, "t", ("time", "y", "x"), generator.uniform(0, 1, (3, 4, 5)))
        put(dataset, "s", ("time", "y", "x"), generator.uniform(0, 1, (3, 4, 5)))
    whole, parts = (
        open_netcdf(path, Mapping()),
        open_netcdf(path, Mapping(), slab_values_max=values_max),
    )
    names = [*whole.coordinates.roles, *(one.name for one in whole.variables())]
    [table] = whole.scan(names)
    assert pa.concat_tables(parts.scan(names)).equals(table)


def test_netcdf_variable_is_read_once_in_a_pass(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(path, time=2, lat=2, lon=3) as dataset:
        put_places(dataset)
        put_times(dataset)
        put(dataset, "t", ("time", "lat", "lon"), np.ones((2, 2, 3)), valid_min=0.0)
    reader = open_netcdf(path, Mapping())
    read_names = []
    wrapper = xarray.backends.netCDF4_.NetCDF4ArrayWrapper
    original = wrapper._getitem

    def counting(self: Any, key: Any) -> Any:
        read_names.append(self.variable_name)
        return original(self, key)

    monkeypatch.setattr(wrapper, "_getitem", counting)
    assert sum(table.num_rows for table in reader.scan(["t"])) == 12
    assert read_names.count("t") == 1


def test_netcdf_classic_file_too_short_raises(path: Path) -> None:
    with writing(path, format="NETCDF3_CLASSIC", time=2, lat=2, lon=3) as dataset:
        put_places(dataset)
        put_times(dataset)
        put(dataset, "t", ("time", "lat", "lon"), np.zeros((2, 2, 3)))
    data = path.read_bytes()
    length = b"lon\0" + (3).to_bytes(4)
    assert length in data
    path.write_bytes(data.replace(length, b"lon\0" + (1 << 24).to_bytes(4), 1))
    with raises(InputError, expected="whole_file", format="NetCDF"):
        read(path)


def test_netcdf_units_in_capitals_and_mapped_place_are_used(path: Path) -> None:
    with writing(path, time=2) as dataset:
        put(dataset, "when", ("time",), [0.0, 24.0], units="HOURS SINCE 2020-01-01")
        put(dataset, "t", ("time",), [1.0, -9999.0])
        put(dataset, "u", ("time",), [1.0, 2.0])
    mapping = Mapping.of(["latitude=39.1", "longitude=-105", "t=t", "u=u / 2"], missing="t=-9999")
    source = open_source(path, mapping=mapping)
    assert pa.concat_tables(source.batches()).to_pylist() == [
        {"latitude": 39.1, "longitude": -105.0, "time": utc(2020, 1, 1), "t": 1.0, "u": 0.5},
        {"latitude": 39.1, "longitude": -105.0, "time": utc(2020, 1, 2), "t": None, "u": 1.0},
    ]
