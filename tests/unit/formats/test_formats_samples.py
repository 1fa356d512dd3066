"""Real files, each compared with an independent reading of it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.formats import Mapping, Source, open_source, suggest_schema
from galileo.model.observations import normalise
from galileo.model.schema import Schema
from galileo.optional_imports import library

NAM_CSV = "nam211_20180917T00Z_f000.csv.gz"
NAM_GRIB = "nam.t00z.awp21100.tm00.grib2"
ERA5 = "era5-2mt-2019-03-uk.grib"
WRF = "wrf_g212_20050807T00Z_f000-f024.nc"
GFS = "gfs2p5_20110110T12Z_f120_four_features.csv.gz"
ASOS = "asos_superstorm_1993-03-12.csv.gz"
HURDAT = "hurdat2_storms_1975-2024.csv.gz"
EXTRAS = {NAM_GRIB: "eccodes", ERA5: "eccodes", WRF: "netCDF4"}
EARTHQUAKES = "usgs_earthquakes_week_2018-02.geojson"


def opened(path: Path, *texts: str) -> Source:
    return open_source(path, mapping=Mapping.parse(texts))


def frame_of(source: Source) -> pd.DataFrame:
    """All batches, checked to fit the schema that the file suggests."""
    table = pa.concat_tables(source.batches())
    normalise(suggest_schema(source, "sample"), table)
    return table.to_pandas()


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(
        np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    )


def moments(texts: Any) -> pd.DatetimeIndex:
    return pd.DatetimeIndex(pd.to_datetime(texts, utc=True)).as_unit("us")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(NAM_GRIB, marks=pytest.mark.slow),
        pytest.param(ERA5, marks=pytest.mark.slow),
        WRF,
        GFS,
        NAM_CSV,
        ASOS,
        HURDAT,
        EARTHQUAKES,
    ],
)
def test_sample_batches_repeat_and_fit_suggested_schema(sample_data: Path, name: str) -> None:
    if name in EXTRAS and importlib.util.find_spec(EXTRAS[name]) is None:
        pytest.skip(f"{EXTRAS[name]} is not installed")
    first = opened(sample_data / name)
    schema: Schema = suggest_schema(first, "sample")
    second = open_source(sample_data / name, schema=schema)
    rows = 0
    for one, two in zip(first.batches(50_000), second.batches(50_000), strict=True):
        assert one.equals(two)
        rows += normalise(schema, two).num_rows
    assert first.rows in (None, rows + first.skipped)


# --- CSV and GeoJSON -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [GFS, NAM_CSV])
def test_sample_model_csv_equals_pandas(sample_data: Path, name: str) -> None:
    found = frame_of(opened(sample_data / name))
    expected = pd.read_csv(sample_data / name, float_precision="round_trip")
    assert list(found.columns[3:]) == list(expected.columns[3:])
    assert_same(found["latitude"], expected["lat"])
    assert_same(found["longitude"], expected["lon"])
    assert (moments(found["time"]) == moments(expected["time"])).all()
    for column in expected.columns[3:]:
        assert_same(found[column], expected[column])


def test_sample_surface_stations_equal_pandas(sample_data: Path) -> None:
    texts = ("temperature=fahrenheit_to_kelvin(tmpf)", "humidity=relh", "station=station")
    found = frame_of(opened(sample_data / ASOS, *texts))
    expected = pd.read_csv(sample_data / ASOS, float_precision="round_trip", low_memory=False)
    assert len(found) == len(expected) == 9938
    np.testing.assert_allclose(found["temperature"], (expected["tmpf"] + 459.67) / 1.8, rtol=1e-12)
    assert_same(found["humidity"], expected["relh"])
    assert found["station"].tolist() == expected["station"].tolist()
    assert (moments(found["time"]) == moments(expected["valid"])).all()


def test_sample_stations_without_mapped_value_are_skipped(sample_data: Path) -> None:
    source = opened(sample_data / ASOS, "gust=gust")
    expected = pd.read_csv(sample_data / ASOS, low_memory=False)["gust"].dropna()
    assert_same(frame_of(source)["gust"], expected)
    assert source.skipped == 9938 - len(expected) > 0


def test_sample_storm_tracks_equal_pandas(sample_data: Path) -> None:
    texts = ("time=year,month,day,hour", "storm=name", "wind=wind", "category=category")
    found = frame_of(opened(sample_data / HURDAT, *texts))
    expected = pd.read_csv(sample_data / HURDAT, keep_default_na=False, na_values=["NA"])
    assert_same(found["wind"], expected["wind"])
    assert_same(found["category"], expected["category"])
    assert found["storm"].tolist() == expected["name"].tolist()
    assert_same(found["longitude"], expected["long"])
    parts = pd.to_datetime(expected[["year", "month", "day", "hour"]])
    assert (moments(found["time"]) == moments(parts)).all()
    assert frame_of(opened(sample_data / HURDAT))["time"].equals(found["time"])


def test_sample_earthquakes_equal_json(sample_data: Path) -> None:
    found = frame_of(opened(sample_data / EARTHQUAKES))
    features = json.loads((sample_data / EARTHQUAKES).read_text())["features"]
    expected = pd.DataFrame([feature["properties"] for feature in features])
    positions = np.array([feature["geometry"]["coordinates"] for feature in features])
    assert_same(found[["longitude", "latitude", "elevation"]], positions)
    assert (moments(found["time"]) == moments(expected["time"].astype("datetime64[ms]"))).all()
    for column in ("mag", "nst", "gap", "tsunami"):
        assert_same(found[column], expected[column])
    assert found["place"].tolist() == expected["place"].tolist()
    schema = suggest_schema(opened(sample_data / EARTHQUAKES), "quakes")
    indexed = [feature.name for feature in schema.indexed]
    assert "mag" in indexed
    assert not {"url", "detail", "title", "code"} & set(indexed)


# --- GRIB ------------------------------------------------------------------------------------


def needed_eccodes() -> Any:
    if importlib.util.find_spec("eccodes") is None:
        pytest.skip("ecCodes is not installed")
    return library("eccodes", purpose="this test")


@contextmanager
def several_fields_a_message(eccodes: Any) -> Iterator[None]:
    eccodes.codes_grib_multi_support_on()
    try:
        yield
    finally:
        eccodes.codes_grib_multi_support_off()


def fields(path: Path) -> Iterator[tuple[Any, Any]]:
    """Every field of a file as ecCodes' own reading loop gives them."""
    eccodes = needed_eccodes()
    with several_fields_a_message(eccodes), path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            yield lambda key, h=handle: eccodes.codes_get(h, key), handle
            eccodes.codes_release(handle)


@pytest.mark.slow
def test_sample_grib_of_many_levels_equals_eccodes(sample_data: Path) -> None:
    eccodes = needed_eccodes()
    path = sample_data / NAM_GRIB
    source = opened(path)
    variables = source.variables()
    found = frame_of(source)
    count = 0
    for get, handle in fields(path):
        variable, column = variables[count], found[found.columns[3 + count]]
        assert variable.name.split("@")[0] in (get("shortName"), "param_0_3_196")
        assert_same(column, eccodes.codes_get_array(handle, "values"))
        count += 1
    assert count == len(variables) == 181
    assert set(found["time"]) == {pd.Timestamp("2018-09-17T00:00Z")}


def test_sample_grib_by_names_equals_csv(sample_data: Path) -> None:
    """The CSV file was made from the same forecast by other tools, and rounded."""
    texts = (
        "temperature=2t",
        "humidity=r@heightAboveGround:2",
        "wind=wind_speed(10u, 10v)",
        "gust=gust@surface",
        "orography=orog",
    )
    needed_eccodes()
    found = frame_of(opened(sample_data / NAM_GRIB, *texts))
    expected = pd.read_csv(sample_data / NAM_CSV)
    np.testing.assert_allclose(found["latitude"], expected["lat"], atol=1e-5)
    np.testing.assert_allclose(found["longitude"] - 360, expected["lon"], atol=1e-5)
    for ours, theirs in zip(found.columns[3:], expected.columns[3:], strict=True):
        np.testing.assert_allclose(found[ours], expected[theirs], atol=0.051)


@pytest.mark.slow
def test_sample_grib_ambiguous_name_raises(sample_data: Path) -> None:
    needed_eccodes()
    with raises(InputError, expected="one_variable", variable="t") as caught:
        frame_of(opened(sample_data / NAM_GRIB, "t=t"))
    assert "t@isobaricInhPa:100" in caught.value.details["candidates"]


@pytest.mark.slow
def test_sample_grib_of_month_equals_eccodes(sample_data: Path) -> None:
    eccodes = needed_eccodes()
    source = opened(sample_data / ERA5)
    found = pa.concat_tables(source.batches())
    steps, points = 744, 1617
    assert source.rows == found.num_rows == steps * points
    shaped = {n: found.column(n).to_numpy().reshape(steps, points) for n in found.column_names}
    for step, (get, handle) in enumerate(fields(sample_data / ERA5)):
        date, hour = str(get("validityDate")), get("validityTime") // 100
        moment = np.datetime64(f"{date[:4]}-{date[4:6]}-{date[6:]}T{hour:02d}")
        assert (shaped["time"][step] == moment).all()
        assert_same(shaped["t2m"][step], eccodes.codes_get_array(handle, "values"))
        if step in (0, steps - 1):
            assert_same(shaped["latitude"][step], eccodes.codes_get_array(handle, "latitudes"))
            assert_same(shaped["longitude"][step], eccodes.codes_get_array(handle, "longitudes"))


# --- NetCDF ----------------------------------------------------------------------------------


def test_sample_netcdf_forecast_equals_netcdf4(sample_data: Path) -> None:
    netcdf4 = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    source = opened(sample_data / WRF, "t=temperature_2m", "wind=hypot(u10, v10)")
    found = frame_of(source)
    with netcdf4.Dataset(sample_data / WRF) as dataset:
        raw = {n: np.ma.filled(v[:].astype(float), np.nan) for n, v in dataset.variables.items()}
    wind = np.hypot(raw["u10"], raw["v10"])
    present = ~(np.isnan(raw["temperature_2m"]) & np.isnan(wind))
    assert source.rows == present.size
    assert source.skipped == (~present).sum() > 0
    assert_same(found["t"], raw["temperature_2m"][present])
    np.testing.assert_allclose(found["wind"], wind[present], rtol=1e-12)
    for ours, theirs in (("latitude", "lat"), ("longitude", "lon")):
        assert_same(found[ours], np.broadcast_to(raw[theirs], present.shape)[present])
    start = pd.Timestamp("2005-08-07T00:00Z")
    steps = np.broadcast_to(raw["time"][:, None, None], present.shape)[present]
    assert (moments(found["time"]) == start + pd.to_timedelta(steps, unit="h")).all()
