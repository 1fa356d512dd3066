"""Each attribute of a NetCDF file, damaged in turn: what xarray reads, or an error of ours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from galileo.errors import GalileoError, InternalError
from galileo.formats import open_source

netCDF4 = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
xarray = pytest.importorskip("xarray", reason="xarray is not installed")

DIMS = {"time": 2, "lat": 2, "lon": 2}
VARIABLES: dict[str, tuple[str, tuple[str, ...], Any, dict[str, Any]]] = {
    "time": ("f8", ("time",), [0, 6], {"units": "hours since 2014-03-01", "calendar": "standard"}),
    "lat": ("f8", ("lat",), [40, 41], {"units": "degrees_north", "standard_name": "latitude"}),
    "lon": ("f4", ("lon",), [1, 2], {"units": "degrees_east", "long_name": "longitude"}),
    "crs": ("i4", (), 0, {"grid_mapping_name": "latitude_longitude"}),
    "packed": (
        "i2",
        tuple(DIMS),
        np.arange(8).reshape(2, 2, 2),
        {"scale_factor": 0.5, "add_offset": 10.0, "valid_min": np.int16(1), "grid_mapping": "crs"},
    ),
    "plain": ("f4", tuple(DIMS), np.arange(8).reshape(2, 2, 2), {"units": "K"}),
    "whole": ("i8", tuple(DIMS), 2**53 + np.arange(8).reshape(2, 2, 2), {"missing_value": -7}),
}
NAMES = (
    *("units", "calendar", "standard_name", "long_name", "description", "axis", "positive"),
    *("scale_factor", "add_offset", "missing_value", "valid_min", "valid_max", "valid_range"),
    *("_Unsigned", "dtype", "coordinates", "bounds", "climatology", "geometry", "grid_mapping"),
    *("cell_measures", "formula_terms", "ancillary_variables", "node_coordinates", "cell_methods"),
    *("flag_values", "flag_meanings", "compress", "featureType", "actual_range", "time_origin"),
    *("node_count", "part_node_count", "interior_ring", "leap_month", "month_lengths"),
    *("sample_dimension", "instance_dimension", "cf_role", "_CoordinateAxisType"),
)
ODD: tuple[Any, ...] = (
    *(3, -1.5, np.nan, np.int8(1), np.uint64(2**64 - 1), 1e300),
    *([1, 2], [0.5, np.nan], np.array([], dtype=np.int32), ["a", "b"]),
    *("", " ", "true", "a b c", "lat lon", "crs:", "crs: lat lon", "area: nope", ": :", "0.1"),
    *("days since yesterday", "hours since 2000-01-01 12 EST", "ü\n%s{}", "x" * 5000),
)


def cases() -> Iterator[tuple[str, str, int]]:
    for variable, name in itertools.product(VARIABLES, NAMES):
        for number in range(len(ODD)):
            yield variable, name, number


def write(path: Path, damaged: str, name: str, value: Any) -> None:
    with netCDF4.Dataset(path, "w") as dataset:
        for dim, size in DIMS.items():
            dataset.createDimension(dim, size)
        for variable, (kind, dims, values, attrs) in VARIABLES.items():
            created = dataset.createVariable(variable, kind, dims)
            created.set_auto_maskandscale(False)
            created[...] = values
            created.setncatts(attrs | ({name: value} if variable == damaged else {}))


def read(path: Path) -> pa.Table | None:
    """The rows as Galileo reads them; None if it refuses the file."""
    try:
        source = open_source(path)
        batches = list(source.batches())
        source.samples([variable.name for variable in source.all_variables()])
        assert source.left_out() is not None
    except InternalError:
        raise
    except GalileoError:
        return None
    return pa.concat_tables(batches) if batches else source_columns(source.features)


def source_columns(features: dict[str, str]) -> pa.Table:
    return pa.table({name: [] for name in ("latitude", "longitude", "time", *features)})


def agrees(ours: pa.Table, path: Path) -> bool:
    """Whether all of our values are xarray's, at the same places and times."""
    options = {"decode_coords": False, "decode_timedelta": False, "decode_times": False}
    with xarray.open_dataset(path, **options) as dataset:
        names = [name for name in ("packed", "plain", "whole") if name in ours.schema.names]
        frame = dataset[names].to_dataframe().reset_index()
        kept = {name: dataset["time"].attrs.get(name) for name in ("units", "calendar")}
        time = dataset["time"].variable.to_base_variable()
        time.attrs = {name: text for name, text in kept.items() if text is not None}
        times = xarray.conventions.decode_cf_variable("time", time).to_numpy()
        stamps = dict(zip(dataset["time"].to_numpy(), times.astype("datetime64[us]"), strict=True))
        places = zip(frame["time"].map(stamps), frame["lat"], frame["lon"], strict=True)
        rows = {place: row for row, place in enumerate(places)}
        columns = (ours[name].to_pylist() for name in ("latitude", "longitude"))
        ours_us = ours["time"].to_numpy().astype("datetime64[us]")
        chosen = [rows[place] for place in zip(ours_us, *columns, strict=True)]
        for name in names:
            is_ranged = any(key.startswith("valid") for key in dataset[name].attrs)
            wanted = frame[name].to_numpy()[chosen]
            for value, theirs in zip(ours[name].to_pylist(), wanted, strict=True):
                # A null is NaN in xarray, or beyond the valid range, which xarray does not know.
                # xarray rounds integers of 64 bits that have a missing value.
                assert (is_ranged or np.isnan(theirs)) if value is None else theirs == float(value)
    return True


def check(path: Path, damaged: str, name: str, number: int) -> bool:
    write(path, damaged, name, ODD[number])
    ours = read(path)
    return ours is None or not len(ours) or agrees(ours, path)


def checked(path: Path, chosen: list[tuple[str, str, int]]) -> int:
    for case in chosen:
        try:
            assert check(path, *case)
        except Exception as error:
            error.add_note(f"attribute {case[1]} of {case[0]} is {ODD[case[2]]!r}")
            raise
    return len(chosen)


@pytest.mark.filterwarnings("ignore")  # xarray warns of odd attributes.
@pytest.mark.slow
def test_netcdf_some_damaged_attributes_are_as_in_xarray_or_refused(tmp_path: Path) -> None:
    assert checked(tmp_path / "file.nc", list(cases())[::401]) > 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_netcdf_many_damaged_attributes_are_as_in_xarray_or_refused(tmp_path: Path) -> None:
    """Every attribute and every odd value, on each variable in turn."""
    assert checked(tmp_path / "file.nc", list(cases())[::37]) > 150
