"""Made-up forecasts: reproducible, plausible, correlated, of the right size and quick."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from parameters import keep_quick

from galileo.errors import InputError
from galileo.generate import GRID_218, NamLike
from galileo.model.observations import normalise

WINTER, SPRING, SUMMER = "2012-01-20T12:00Z", "2012-03-01T06:00Z", "2012-07-15T18:00Z"
STRIDE = 4


@pytest.fixture(scope="module")
def nam() -> NamLike:
    return NamLike(seed=7, stride=STRIDE)


def column(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy()


def test_nam_forecast_covers_grid() -> None:
    nam = NamLike()
    table = nam.forecast(SPRING)
    assert table.num_rows == nam.rows == 262_792


def test_nam_forecast_is_normalised(nam: NamLike) -> None:
    table = nam.forecast(SPRING)
    assert normalise(nam.schema(), table).equals(table)
    assert [f.unit for f in nam.schema("other").features] == ["K", "%", "m/s", "m"]


def test_nam_forecast_points_equal_grid(nam: NamLike) -> None:
    latitude, longitude = GRID_218.points(stride=STRIDE)
    table = nam.forecast(SPRING)
    np.testing.assert_array_equal(column(table, "latitude"), latitude.ravel())
    np.testing.assert_array_equal(column(table, "longitude"), longitude.ravel())


def test_nam_same_seed_gives_same_forecasts() -> None:
    one, two = NamLike(seed=3, stride=8), NamLike(seed=3, stride=8)
    first = [one.forecast(moment) for moment in (WINTER, SPRING, SUMMER)]
    second = [two.forecast(moment) for moment in (SUMMER, SPRING, WINTER)]
    assert all(a.equals(b) for a, b in zip(first, reversed(second), strict=True))


def test_nam_other_seed_gives_other_forecast() -> None:
    assert (
        not NamLike(seed=1, stride=8)
        .forecast(SPRING)
        .equals(NamLike(seed=2, stride=8).forecast(SPRING))
    )


@pytest.mark.parametrize("stride", [5, 9])
def test_nam_stride_thins_same_forecast(stride: int) -> None:
    whole = NamLike(seed=5).forecast(SPRING)
    thinned = NamLike(seed=5, stride=stride).forecast(SPRING)
    for name in ("temperature", "snow_depth"):
        full = column(whole, name).reshape(428, 614)[::stride, ::stride].ravel()
        np.testing.assert_allclose(column(thinned, name), full, atol=0.11)


@pytest.mark.parametrize("seed", keep_quick(range(5), 0, 1))
@pytest.mark.parametrize("moment", [WINTER, SPRING, SUMMER])
def test_nam_values_are_plausible(seed: int, moment: str) -> None:
    table = NamLike(seed=seed, stride=STRIDE).forecast(moment)
    temperature, humidity = column(table, "temperature"), column(table, "humidity")
    wind, snow = column(table, "wind_speed"), column(table, "snow_depth")
    assert 225 < temperature.min() < temperature.max() < 322
    assert 270 < np.median(temperature) < 305
    assert 3 <= humidity.min() < np.quantile(humidity, 0.05) < 55
    assert 60 < np.median(humidity) < 85
    assert humidity.max() == 100
    assert 0 <= wind.min() < np.median(wind) < 9
    assert 9 < np.quantile(wind, 0.99) < wind.max() < 45
    assert snow.min() == 0
    assert snow.max() < 5


@pytest.mark.parametrize("seed", range(3))
def test_nam_snow_lies_where_cold(seed: int) -> None:
    nam = NamLike(seed=seed, stride=STRIDE)
    winter, summer = nam.forecast(WINTER), nam.forecast(SUMMER)
    snowy = column(winter, "snow_depth") > 0
    assert 0.1 < snowy.mean() < 0.5
    assert column(winter, "temperature")[snowy].max() < 291
    assert column(winter, "temperature")[snowy].mean() < 267
    assert (column(summer, "snow_depth") > 0).mean() < 0.01


def test_nam_humidity_and_temperature_are_opposed(nam: NamLike) -> None:
    day = [nam.forecast(f"2012-05-03T{hour:02d}:00Z") for hour in range(0, 24, 3)]
    temperature = np.array([column(table, "temperature") for table in day])
    humidity = np.array([column(table, "humidity") for table in day])
    over_time = [
        np.corrcoef(temperature[:, point], humidity[:, point])[0, 1]
        for point in range(0, temperature.shape[1], 997)
    ]
    assert np.median(over_time) < -0.6
    assert np.corrcoef(temperature.ravel(), humidity.ravel())[0, 1] < -0.1


def test_nam_neighbours_correlate(nam: NamLike) -> None:
    now, later, far = (
        column(nam.forecast(moment), "temperature").reshape(107, 154)
        for moment in ("2012-05-03T00:00Z", "2012-05-03T01:00Z", "2012-05-07T12:00Z")
    )
    spread = now.std()
    assert np.abs(np.diff(now, axis=1)).mean() < 0.1 * spread
    assert np.abs(later - now).mean() < 0.2 * spread
    assert np.abs(far - now).mean() > 2 * np.abs(later - now).mean()


def test_nam_afternoon_and_south_are_warmer(nam: NamLike) -> None:
    night, afternoon = nam.forecast("2012-05-03T10:00Z"), nam.forecast("2012-05-03T21:00Z")
    at_95_west = np.abs(column(night, "longitude") + 95) < 5
    warming = column(afternoon, "temperature") - column(night, "temperature")
    assert warming[at_95_west].mean() > 3
    south = column(night, "latitude") < 25
    north = column(night, "latitude") > 50
    temperature = column(night, "temperature")
    assert temperature[south].mean() > temperature[north].mean() + 15


def test_nam_stream_equals_forecasts(nam: NamLike) -> None:
    batches = list(nam.stream("2012-03-01T22:00Z", hours=3, rows_per_batch=10_000))
    assert [batch.num_rows for batch in batches] == [10_000, nam.rows - 10_000] * 3
    moments = ("2012-03-01T22:00Z", "2012-03-01T23:00Z", "2012-03-02T00:00Z")
    assert pa.concat_tables(batches).equals(
        pa.concat_tables([nam.forecast(moment) for moment in moments])
    )


def test_nam_invalid_size_raises(nam: NamLike) -> None:
    with raises(InputError, option="stride"):
        NamLike(stride=0)
    with raises(InputError, option="rows_per_batch"):
        next(nam.stream(SPRING, hours=1, rows_per_batch=0))
