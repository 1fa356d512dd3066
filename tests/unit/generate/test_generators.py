"""Made-up data: reproducible, plausible, correlated in space and time."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.generate import (
    GRID_211,
    GRID_218,
    Bulletin,
    LambertGrid,
    QuakesLike,
    StationsLike,
    StormsLike,
)
from galileo.generate.quakes import AUTOMATIC, REVIEW_H_MAX, REVIEWED
from galileo.generate.storms import CATEGORIES_M_S, DAYS_MAX, DAYS_MIN, STEP_H
from galileo.model import keyed
from galileo.model.observations import normalise
from galileo.model.schema import DELETED, Schema
from galileo.optional_imports import library

HOURS = [f"2014-07-01T{hour:02}:00Z" for hour in range(24)]


@pytest.fixture(scope="module")
def stations() -> StationsLike:
    return StationsLike(seed=3)


def column(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy()


def test_stations_reports_are_normalised(stations: StationsLike) -> None:
    table = stations.reports(HOURS[6])
    assert normalise(stations.schema(), table).equals(table)
    assert table.num_rows == 400
    assert len(set(table.column("station").to_pylist())) == 400


def test_stations_report_at_own_minute(stations: StationsLike) -> None:
    first, second = (stations.reports(hour) for hour in HOURS[5:7])
    passed = column(second, "time") - column(first, "time")
    assert (passed == np.timedelta64(1, "h")).all()
    for name in ("latitude", "longitude"):
        np.testing.assert_array_equal(column(first, name), column(second, name))


def test_stations_same_seed_gives_same_reports() -> None:
    one, two = StationsLike(seed=8, stations=20), StationsLike(seed=8, stations=20)
    forth = [one.reports(hour) for hour in HOURS[:3]]
    back = [two.reports(hour) for hour in reversed(HOURS[:3])]
    assert all(a.equals(b) for a, b in zip(forth, reversed(back), strict=True))
    assert not StationsLike(seed=9, stations=20).reports(HOURS[0]).equals(forth[0])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("day", ["2014-01-20", "2014-04-10", "2014-07-01"])
def test_stations_values_are_plausible(seed: int, day: str) -> None:
    table = StationsLike(seed=seed).reports(f"{day}T20:00Z")
    temperature, humidity = column(table, "temperature"), column(table, "humidity")
    wind = column(table, "wind_speed")
    assert 235 < temperature.min() < temperature.max() < 322
    assert 0 <= humidity.min() < humidity.max() <= 100
    assert 0 <= wind.min() < wind.max() < 40


def test_stations_afternoon_is_warm_and_dry(stations: StationsLike) -> None:
    night, day = stations.reports(HOURS[11]), stations.reports(HOURS[21])
    assert column(day, "temperature").mean() > column(night, "temperature").mean() + 5
    assert column(day, "humidity").mean() < column(night, "humidity").mean() - 10


def test_stations_neighbours_correlate(stations: StationsLike) -> None:
    table = stations.reports(HOURS[12])
    place = np.stack([column(table, "latitude"), column(table, "longitude")], axis=1)
    apart = np.linalg.norm(place[:, None] - place[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1)
    temperature = column(table, "temperature")
    assert np.corrcoef(temperature, temperature[nearest])[0, 1] > 0.8


def test_stations_zero_raises() -> None:
    with raises(InputError, option="stations"):
        StationsLike(stations=0)


# --- made-up earthquakes: reproducible, in the order of publication, corrected later -------------


START = "2014-04-01"
ALARM = 3.5


def catalogue(bulletins: Iterable[Bulletin]) -> pd.DataFrame:
    """All reports in one table, with the time of publication."""
    tables, times = zip(*((one.reports, one.published) for one in bulletins), strict=True)
    published = pd.to_datetime(np.repeat(times, [table.num_rows for table in tables]))
    return pa.concat_tables(tables).to_pandas().assign(published=published)


def deletions(bulletins: Iterable[Bulletin]) -> pd.Series:
    """The time of publication of each deletion, by event."""
    return pd.Series(
        {event: pd.Timestamp(one.published) for one in bulletins for event in one.deleted}
    )


def last_word(bulletins: Iterable[Bulletin]) -> dict[str, dict[str, Any]]:
    """The latest report of each event that is not deleted."""
    events = dict[str, dict[str, Any]]()
    for bulletin in bulletins:
        events |= {row["event"]: row for row in bulletin.reports.to_pylist()}
        for event in bulletin.deleted:
            events.pop(event, None)
    return events


@pytest.fixture(scope="module")
def bulletins() -> list[Bulletin]:
    """So many that each has hardly an event twice."""
    return list(QuakesLike(seed=2, per_day=200).bulletins(START, days=20, every="10m"))


@pytest.fixture(scope="module")
def reports(bulletins: list[Bulletin]) -> pd.DataFrame:
    return catalogue(bulletins)


@pytest.fixture(scope="module")
def reviewed(reports: pd.DataFrame) -> pd.DataFrame:
    """A row for each reviewed event: columns of its first report, and with _y those of the last."""
    first, second = (reports[reports["status"] == status] for status in (AUTOMATIC, REVIEWED))
    assert first["event"].is_unique
    assert second["event"].is_unique
    both = first.merge(second, on="event", suffixes=("", "_y"))
    assert len(both) == len(second)
    return both


def keys(schema: Schema, reports: pd.DataFrame, suffix: str = "") -> npt.NDArray[np.uint64]:
    columns = {
        name: reports[name if name == "event" else f"{name}{suffix}"]
        for name in schema.observation_schema.names
    }
    return keyed.hashes_of(schema, normalise(schema, pd.DataFrame(columns)))[:, 0]


def test_quakes_bulletin_is_normalised() -> None:
    quakes = QuakesLike(seed=2)
    for bulletin in quakes.bulletins(START, days=2):
        stored = normalise(quakes.schema(), bulletin.reports).drop_columns(DELETED)
        assert stored.equals(bulletin.reports)
        assert bulletin.reports.num_rows or bulletin.deleted


def test_quakes_same_seed_gives_same_catalogue() -> None:
    one, two, other = (list(QuakesLike(seed=s).bulletins(START, days=3)) for s in (2, 2, 3))
    assert one == two
    assert one != other


def test_quakes_bulletins_come_at_intervals() -> None:
    times = [pd.Timestamp(one.published) for one in QuakesLike(1).bulletins(START, days=4)]
    assert times == sorted(set(times))
    assert all(one.hour % 6 == 0 and one.minute == 0 for one in times)


def test_quakes_bulletin_has_each_event_once() -> None:
    for bulletin in QuakesLike(1, per_day=200).bulletins(START, days=4, every="1d"):
        events = [*bulletin.reports["event"].to_pylist(), *bulletin.deleted]
        assert len(set(events)) == len(events)


def test_quakes_bulletin_interval_keeps_last_word() -> None:
    daily, hourly = (
        last_word(QuakesLike(1).bulletins(START, days=4, every=every)) for every in ("1d", "1h")
    )
    assert daily == hourly
    assert len(daily) > 200


def test_quakes_reports_follow_events(reports: pd.DataFrame) -> None:
    delay = reports["published"] - reports["time"]
    first, second = (delay[reports["status"] == status] for status in (AUTOMATIC, REVIEWED))
    assert delay.min() > pd.Timedelta(0)
    assert first.max() < pd.Timedelta("31min")
    assert second.max() <= pd.Timedelta(hours=REVIEW_H_MAX + 1)
    assert second.median() > pd.Timedelta("6h")


def test_quakes_review_changes_magnitude(reports: pd.DataFrame, reviewed: pd.DataFrame) -> None:
    assert 0.55 < len(reviewed) / reports["event"].nunique() < 0.65
    changed = reviewed["magnitude_y"] - reviewed["magnitude"]
    assert 0.2 < changed.std() < 0.3
    assert abs(changed.mean()) < 0.03
    raised = reviewed["magnitude"] >= ALARM
    assert 0.1 < (reviewed["magnitude_y"][raised] < ALARM).mean() < 0.5


def test_quakes_review_moves_events_a_little(reviewed: pd.DataFrame) -> None:
    moved_deg = (reviewed["latitude_y"] - reviewed["latitude"]).abs()
    moved_s = (reviewed["time_y"] - reviewed["time"]).dt.total_seconds().abs()
    assert 0.05 < moved_deg.mean() < 0.15
    assert moved_deg.max() < 1
    assert 1 < moved_s.mean() < 3
    assert moved_s.max() < 20


def test_quakes_review_moves_some_events_into_other_blocks(reviewed: pd.DataFrame) -> None:
    cell, bucket = (
        keys(schema, reviewed) != keys(schema, reviewed, "_y")
        for schema in (
            QuakesLike().schema(),
            QuakesLike().schema(geohash_precision=1, time_bucket="1m"),
        )
    )
    assert 0.05 < cell.mean() < 0.2
    assert 0.01 < bucket.mean() < 0.1


def test_quakes_false_events_are_deleted_after_their_report(
    bulletins: list[Bulletin], reports: pd.DataFrame
) -> None:
    deleted = deletions(bulletins)
    of_deleted = reports[reports["event"].isin(deleted.index)]
    assert len(of_deleted) == len(deleted) == sum(len(one.deleted) for one in bulletins)
    assert (of_deleted["status"] == AUTOMATIC).all()
    assert (deleted[of_deleted["event"]].to_numpy() > of_deleted["published"].to_numpy()).all()
    assert 0.02 < len(deleted) / reports["event"].nunique() < 0.06


@pytest.mark.parametrize("least", [2.5, 4.5])
def test_quakes_magnitudes_follow_law(least: float) -> None:
    quakes = QuakesLike(seed=2, per_day=200, magnitude_min=least)
    reports = catalogue(quakes.bulletins(START, days=20, every="1d"))
    magnitude = reports["magnitude"][reports["status"] == REVIEWED]
    assert magnitude.between(least, 9.0).all()
    share = (magnitude >= least + 1).mean()
    assert np.isclose(share, 0.11, atol=0.03), "a tenth for each whole magnitude, rounded"


def test_quakes_places_are_valid(reports: pd.DataFrame) -> None:
    assert reports["latitude"].between(-90, 90).all()
    assert reports["longitude"].between(-180, 180).all()
    assert reports["depth"].between(1, 680).all()


def test_quakes_without_events_publish_nothing() -> None:
    assert list(QuakesLike(per_day=1e-9).bulletins(START, days=1)) == []


@pytest.mark.parametrize(
    ("option", "value"), [("per_day", 0), ("magnitude_min", 9.5), ("magnitude_min", np.nan)]
)
def test_quakes_invalid_option_raises(option: str, value: float) -> None:
    with raises(InputError, option=option):
        QuakesLike(**{option: value})


# --- made-up seasons of storms: reproducible, with tracks and winds that a storm could have ------


@pytest.fixture(scope="module")
def season() -> pd.DataFrame:
    return StormsLike(seed=5).season(2014).to_pandas()


def test_storms_season_is_normalised() -> None:
    storms = StormsLike(seed=1)
    table = storms.season(2014)
    assert normalise(storms.schema(), table).equals(table)


def test_storms_same_seed_gives_same_season() -> None:
    one = StormsLike(seed=5)
    one.season(2013)
    assert one.season(2014).equals(StormsLike(seed=5).season(2014))
    assert not one.season(2014).equals(StormsLike(seed=6).season(2014))
    assert not one.season(2013).equals(one.season(2014).slice(0, one.season(2013).num_rows))


def test_storms_fixes_are_six_hours_apart(season: pd.DataFrame) -> None:
    assert season["time"].is_monotonic_increasing
    for _, track in season.groupby("storm"):
        steps = track["time"].diff().dropna().dt.total_seconds()
        assert (steps == STEP_H * 3600).all()
        days = (track["time"].iloc[-1] - track["time"].iloc[0]).total_seconds() / 86_400
        assert DAYS_MIN - 0.25 <= days <= DAYS_MAX


@pytest.mark.parametrize("seed", range(6))
def test_storms_tracks_have_plausible_speed(seed: int) -> None:
    season = StormsLike(seed=seed).season(2014).to_pandas()
    assert season["storm"].nunique() == 14
    assert season["latitude"].between(5, 62).all()
    assert season["longitude"].between(-105, 30).all()
    assert set(season["time"].dt.year) == {2014}
    for _, track in season.groupby("storm"):
        assert track["latitude"].iloc[-1] > track["latitude"].iloc[0]
        assert track["longitude"].iloc[4] < track["longitude"].iloc[0]
        moved = track[["latitude", "longitude"]].diff().dropna().abs().max(axis=None)
        assert moved < 8, "degrees in six hours"


def test_storms_wind_and_pressure_are_opposed(season: pd.DataFrame) -> None:
    for _, track in season.groupby("storm"):
        peak = track["wind_speed"].to_numpy().argmax()
        assert 0 < peak < len(track) - 1
    assert season[["wind_speed", "pressure"]].corr().iloc[0, 1] < -0.9
    assert season["pressure"].between(880, 1013).all()
    assert season["wind_speed"].between(8, 85).all()


def test_storms_categories_follow_scale(season: pd.DataFrame) -> None:
    for category, group in season.groupby("category"):
        number = int(str(category))
        assert number == 0 or group["wind_speed"].min() >= CATEGORIES_M_S[number - 1]
        assert number == 5 or group["wind_speed"].max() < CATEGORIES_M_S[number]
    assert season["category"].max() >= 2


def test_storms_zero_raises() -> None:
    with raises(InputError, option="storms"):
        StormsLike(storms=0)


# --- the projection against published corners, a real file's grid and PROJ -----------------------


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
