from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.client.curvilinear_grid import contiguous, walk
from galileo.client.grids import find_grid
from galileo.errors import InputError, MissingExtra
from galileo.model.times import times_from_micros

SCHEMA = galileo.Schema(
    "nam",
    [
        galileo.Feature("temperature", "K"),
        galileo.Feature("count", type="int"),
        galileo.Feature("name", type="text"),
        galileo.Feature("wet", type="bool"),
    ],
)
HOUR_US = 3_600_000_000


def table(latitude: Any, longitude: Any, hours: Any, seed: int = 0) -> pa.Table:
    """Observations at the positions at every hour, in no order; values say where they belong."""
    points = np.array([(a, o, h) for h in hours for a, o in zip(latitude, longitude, strict=True)])
    points = np.random.default_rng(seed).permutation(points)
    micros = points[:, 2].astype(np.int64) * HOUR_US
    return pa.table(
        {
            "latitude": points[:, 0],
            "longitude": points[:, 1],
            "time": times_from_micros(micros),
            "temperature": 1e6 * points[:, 0] + points[:, 1] + 1e-3 * points[:, 2],
            "count": points[:, 2].astype(np.int64),
            "name": pa.array([f"{lat:.4f}" for lat in points[:, 0]]),
            "wet": points[:, 0] > 0,
        }
    )


def lambert(rows: int, columns: int) -> tuple[Any, Any]:
    """Positions of a conic grid, shape (rows, columns)."""
    x, y = np.meshgrid(np.linspace(-2e6, 2e6, columns), np.linspace(0, 3e6, rows))
    cone = np.sin(np.radians(25.0))
    rho = 6.37e6 / np.tan(np.radians(25.0))
    distance = np.hypot(x, rho - y)
    longitude = -95.0 + np.degrees(np.arctan2(x, rho - y)) / cone
    power = (distance / rho) ** (1 / cone) * np.tan(np.radians(90 - 25) / 2)
    return 90 - 2 * np.degrees(np.arctan(power)), longitude


def test_to_xarray_of_a_rectangular_grid_finds_its_axes() -> None:
    latitude, longitude = np.meshgrid([30.0, 31.0, 33.5], [-100.0, -99.5, -97.0], indexing="ij")
    found = galileo.to_xarray(table(latitude.ravel(), longitude.ravel(), [3, 6]), SCHEMA)
    assert dict(found.sizes) == {"time": 2, "latitude": 3, "longitude": 3}
    assert found.temperature.dims == ("time", "latitude", "longitude")
    assert found["count"].dtype == np.int64
    assert found.wet.dtype == bool
    assert found.temperature.attrs == {"units": "K"}
    assert found.latitude.attrs["units"] == "degrees_north"
    assert found.attrs["title"] == "nam"
    assert found.time.dt.hour.values.tolist() == [3, 6]
    at = found.sel(latitude=31.0, longitude=-97.0, time="1970-01-01T06:00")
    assert float(at.temperature) == pytest.approx(31e6 - 97 + 6e-3)
    assert at.name.item() == "31.0000"


def test_to_xarray_of_a_grid_with_holes_has_missing_values() -> None:
    latitude, longitude = np.meshgrid([0.0, 1.0, 2.0], [5.0, 6.0, 7.0], indexing="ij")
    found = galileo.to_xarray(table(latitude.ravel()[1:], longitude.ravel()[1:], [0]))
    hole = found.isel(latitude=0, longitude=0, time=0)
    assert np.isnan(hole.temperature)
    assert np.isnan(hole["count"])
    assert hole.name.item() is None
    assert hole.wet.item() is None
    assert int(found.temperature.count()) == 8
    assert "units" not in found.temperature.attrs


def test_to_xarray_of_a_curvilinear_grid_finds_its_axes() -> None:
    latitude, longitude = lambert(13, 17)
    found = galileo.to_xarray(table(latitude.ravel(), longitude.ravel(), [0, 1]), SCHEMA)
    assert dict(found.sizes) == {"time": 2, "y": 13, "x": 17}
    np.testing.assert_array_equal(found.latitude.values, latitude)
    np.testing.assert_array_equal(found.longitude.values, longitude)
    np.testing.assert_allclose(found.temperature[0], 1e6 * latitude + longitude)
    assert found.longitude.attrs["units"] == "degrees_east"


def test_to_xarray_of_a_part_of_a_curvilinear_grid() -> None:
    latitude, longitude = lambert(20, 20)
    inside = (latitude > 30) & (latitude < 42) & (longitude > -105) & (longitude < -85)
    found = galileo.to_xarray(table(latitude[inside], longitude[inside], [0]))
    assert found.temperature.dims == ("time", "y", "x")
    there = found.temperature.notnull().values[0]
    assert there.sum() == inside.sum()
    expected = 1e6 * found.latitude.values + found.longitude.values
    np.testing.assert_allclose(found.temperature.values[0][there], expected[there])


@pytest.mark.parametrize(
    "centre",
    [(90.0, 0.0), (-90.0, 0.0), (10.0, 180.0), (0.0, 0.0)],
    ids=["pole", "south pole", "antimeridian", "equator"],
)
def test_walk_finds_grids_at_poles_and_antimeridian(centre: tuple[float, float]) -> None:
    """A square about a point, laid on the sphere by a gnomonic projection."""
    x, y = np.meshgrid(np.linspace(-0.3, 0.3, 12), np.linspace(-0.2, 0.2, 9))
    phi, lam = np.radians(centre)
    up = np.array([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)])
    east = np.array([-np.sin(lam), np.cos(lam), 0.0])
    north = np.cross(up, east)
    space = up + x[..., None] * east + y[..., None] * north
    space /= np.linalg.norm(space, axis=-1, keepdims=True)
    latitude = np.degrees(np.arcsin(space[..., 2])).ravel()
    longitude = np.degrees(np.arctan2(space[..., 1], space[..., 0])).ravel()
    order = np.random.default_rng(1).permutation(latitude.size)
    found = walk(latitude[order], longitude[order])
    assert found is not None
    assert sorted((found.rows, found.columns)) == [9, 12]
    back = np.empty((found.rows, found.columns))
    back[found.row, found.column] = order
    lines = back if back.shape == (9, 12) else back.T
    assert set(np.abs(np.diff(lines, axis=1)).ravel()) == {1.0}
    assert set(np.abs(np.diff(lines, axis=0)).ravel()) == {12.0}


def test_to_xarray_across_the_antimeridian_is_contiguous() -> None:
    latitude, longitude = np.meshgrid([0.0, 1.0], [178.0, 179.0, -180.0, -179.0], indexing="ij")
    found = galileo.to_xarray(table(latitude.ravel(), longitude.ravel(), [0]))
    assert found.longitude.values.tolist() == [178.0, 179.0, 180.0, 181.0]
    assert found.temperature.notnull().all()


@given(st.lists(st.floats(-180, 179.99), min_size=1, max_size=8))
def test_contiguous_longitudes_have_the_least_span(values: list[float]) -> None:
    given_, moved = np.array(values), contiguous(np.array(values))
    np.testing.assert_allclose((moved - given_) % 360, 0, atol=1e-9)
    starts = [np.where(given_ < start, given_ + 360, given_) for start in given_]
    assert np.ptp(moved) <= min(np.ptp(one) for one in starts) + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_to_xarray_of_scattered_stations_is_points(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = galileo.to_xarray(
        table(rng.uniform(30, 40, 60), rng.uniform(-100, -90, 60), range(4)), SCHEMA
    )
    assert dict(found.sizes) == {"observation": 240}
    assert found.latitude.dims == ("observation",)
    assert set(found.coords) == {"latitude", "longitude", "time"}
    assert found.attrs["featureType"] == "point"


def test_find_grid_of_duplicate_points_is_none() -> None:
    latitude, longitude = np.meshgrid([0.0, 1.0], [5.0, 6.0], indexing="ij")
    once = table(latitude.ravel(), longitude.ravel(), [0])
    assert find_grid(once) is not None
    assert find_grid(pa.concat_tables([once, once.slice(0, 1)])) is None


def test_find_grid_of_sparse_times_is_none() -> None:
    size = 80  # 41 million values, of which 6,400 would be there
    latitude, longitude = np.meshgrid(np.arange(size) / 2, np.arange(size) / 2, indexing="ij")
    scanned = pa.table(
        {
            "latitude": latitude.ravel(),
            "longitude": longitude.ravel(),
            "time": times_from_micros(np.arange(size * size) * HOUR_US),
        }
    )
    assert find_grid(scanned) is None
    assert find_grid(scanned.slice(0, 3_200)) is not None  # 10 million


def test_to_xarray_of_no_rows_is_empty() -> None:
    found = galileo.to_xarray(SCHEMA.observation_schema.empty_table(), SCHEMA)
    assert dict(found.sizes) == {"observation": 0}


def test_to_xarray_of_points_keeps_missing_values() -> None:
    rows = SCHEMA.observation_schema.empty_table().slice(0)
    full = pa.concat_tables(
        [rows, table([1.0, 2.0], [3.0, 5.0], [0]).cast(SCHEMA.observation_schema)]
    )
    full = full.set_column(4, "count", pa.array([None, 7], pa.int64()))
    found = galileo.to_xarray(full)
    assert np.isnan(found["count"].values[0])
    assert found["count"].values[1] == 7


def test_to_xarray_without_a_coordinate_is_refused() -> None:
    with raises(InputError):
        galileo.to_xarray(pa.table({"latitude": [1.0], "longitude": [2.0]}))


def test_to_xarray_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with raises(MissingExtra, extra="formats"):
        galileo.to_xarray(pa.table({}))


def test_to_xarray_of_a_forecast_restores_its_grid(sample_data: Path) -> None:
    with xr.open_dataset(sample_data / "wrf_g212_20050807T00Z_f000-f024.nc") as forecast:
        piece = forecast.isel(time=slice(0, 2), y=slice(20, 60), x=slice(30, 90)).load()
    rows = piece.temperature_2m.size
    times = np.repeat(piece.time.values, piece.lat.size).astype("datetime64[us]").astype(np.int64)
    order = np.random.default_rng(0).permutation(rows)
    stored = pa.table(
        {
            "latitude": np.tile(piece.lat.values.ravel(), 2)[order],
            "longitude": np.tile(piece.lon.values.ravel(), 2)[order],
            "time": times_from_micros(times[order]),
            "t": piece.temperature_2m.values.ravel().astype(np.float64)[order],
        }
    )
    found = galileo.to_xarray(stored)
    np.testing.assert_array_equal(found.latitude.values, piece.lat.values)
    np.testing.assert_array_equal(found.t.values, piece.temperature_2m.values.astype(np.float64))
