"""The projection against published corners, a real file's grid and PROJ."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.generate import GRID_211, GRID_218, LambertGrid
from galileo.optional_imports import library

# NCEP Office Note 388, table B: latitude and longitude of the corners (1,1), (nx,1), (1,ny) and
# (nx,ny).
CORNERS = {
    GRID_218: [(12.190, -133.459), (14.342, -65.127), (54.564, -152.878), (57.328, -49.420)],
    GRID_211: [(12.190, -133.459), (14.335, -65.091), (54.536, -152.856), (57.290, -49.385)],
}


@pytest.mark.parametrize("grid", [GRID_218, GRID_211], ids=["218", "211"])
def test_lambert_grid_corners_equal_published(grid: LambertGrid) -> None:
    latitude, longitude = grid.points()
    ends = [(0, 0), (0, -1), (-1, 0), (-1, -1)]
    found = [(latitude[end], longitude[end]) for end in ends]
    np.testing.assert_allclose(found, CORNERS[grid], atol=0.001)


def test_lambert_grid_218_has_published_size() -> None:
    latitude, _ = GRID_218.points()
    assert latitude.shape == (428, 614)
    assert latitude.size == 262_792


def test_lambert_grid_stride_takes_points_of_full_grid() -> None:
    full, thinned = GRID_218.points(), GRID_218.points(stride=7)
    for whole, part in zip(full, thinned, strict=True):
        np.testing.assert_allclose(part, whole[::7, ::7], atol=1e-12)


@given(st.floats(5, 75), st.floats(-179, -11))
def test_lambert_grid_random_place_round_trips(latitude: float, longitude: float) -> None:
    back = GRID_218.latitude_longitude(*GRID_218.xy(latitude, longitude))
    np.testing.assert_allclose(back, (latitude, longitude), atol=1e-9)


def test_lambert_grid_longitude_to_360_is_same() -> None:
    west, east = GRID_218.xy(40.0, -100.0), GRID_218.xy(40.0, 260.0)
    np.testing.assert_allclose(east, west, atol=1e-6)


def test_lambert_grid_equals_proj() -> None:
    pyproj = pytest.importorskip("pyproj", reason="pyproj is not installed")
    proj = pyproj.Proj(proj="lcc", lat_1=25, lat_2=25, lat_0=25, lon_0=-95, R=6_371_229)
    latitude, longitude = GRID_218.points(stride=20)
    x, y = proj(longitude, latitude)
    np.testing.assert_allclose(GRID_218.xy(latitude, longitude), (x, y), atol=1e-3)


def test_lambert_grid_equals_real_forecast(sample_data: Path) -> None:
    if importlib.util.find_spec("eccodes") is None:
        pytest.skip("ecCodes is not installed")
    eccodes = library("eccodes", purpose="this test")
    with (sample_data / "nam.t00z.awp21100.tm00.grib2").open("rb") as file:
        handle = eccodes.codes_grib_new_from_file(file)
    # Like grid 211, but the file rounds the spacing to whole metres.
    spacing_m = eccodes.codes_get(handle, "DxInMetres")
    grid = dataclasses.replace(GRID_211, spacing_m=spacing_m)
    latitude = eccodes.codes_get_array(handle, "latitudes")
    longitude = eccodes.codes_get_array(handle, "longitudes")
    eccodes.codes_release(handle)
    ours = grid.points()
    assert abs(spacing_m - GRID_211.spacing_m) <= 0.5
    np.testing.assert_allclose(ours[0].ravel(), latitude, atol=1e-6)
    np.testing.assert_allclose(ours[1].ravel() % 360, longitude, atol=1e-6)
