"""Made-up reports of stations: reproducible, plausible, correlated in space and time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.generate import StationsLike
from galileo.model.observations import normalise

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
