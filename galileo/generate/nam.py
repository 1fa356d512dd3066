"""Forecasts like those of the North American Mesoscale model (NAM), made up.

The grid is the real one (NCEP grid 218); the weather is sums of travelling waves, so that any
hour can be computed by itself, over a fixed climate of latitude, season, time of day and
terrain. Values are rounded as packed forecasts are, hence neighbours often share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.generate.lambert import GRID_218, Floats
from galileo.model.schema import Feature, Schema
from galileo.model.times import HOUR_US, TIME_TYPE, Duration, Instant, micros

DAY_H, YEAR_H = 24.0, 365.2425 * 24.0
ROWS_PER_BATCH = 65_536

WAVES = 48
HUMIDITY_MIN, HUMIDITY_MAX = 3.0, 100.0
FREEZING_K = 273.15
LAPSE_K_PER_M = 0.0065
# The last digit of each feature, as a forecast's packing would leave it.
DECIMALS = {"temperature": 1, "humidity": 0, "wind_speed": 1, "snow_depth": 2}


@dataclass(frozen=True, slots=True)
class Waves:
    """A smooth random field of mean 0 and variance 1: plane waves that travel.

    On a grid a plane wave is a product of one factor per row and one per column, so that the
    sum of all is one product of two small matrices.

    Attributes:
        rows: complex factors, shape (rows, waves); `columns` of shape (columns, waves).
        omega: angular frequencies, radians per hour.
    """

    rows: npt.NDArray[np.complex128]
    columns: npt.NDArray[np.complex128]
    omega: Floats

    def at(self, hour: float) -> Floats:
        """The field, shape (rows, columns), `hour` hours after 1970."""
        turned = self.rows * np.exp(-1j * np.remainder(self.omega * hour, 2 * np.pi))
        field: Floats = (turned @ self.columns.T).real
        return field


def waves(
    axes: tuple[Floats, Floats],
    *,
    generator: np.random.Generator,
    length_km: float,
    speed_m_s: float,
) -> Waves:
    """Waves of about `length_km` that drift east at about `speed_m_s`."""
    length_m = length_km * 1000 * np.exp(generator.normal(0.0, 0.5, WAVES))
    direction = generator.uniform(0, 2 * np.pi, WAVES)
    k = 2 * np.pi / length_m
    kx, ky = k * np.cos(direction), k * np.sin(direction)
    speeds = speed_m_s * generator.normal(1.0, 0.3, WAVES)
    phases = np.exp(1j * generator.uniform(0, 2 * np.pi, WAVES))
    weight = np.sqrt(2.0 / WAVES)
    return Waves(
        weight * phases * np.exp(1j * axes[1][:, None] * ky),
        np.exp(1j * axes[0][:, None] * kx),
        kx * speeds * 3600,
    )


class NamLike:
    """An endless series of hourly forecasts on NCEP grid 218.

    Args:
        seed: equal seeds make equal forecasts.
        stride: take every n-th row and column; 1 makes 262,792 points, 4 makes 16,478.
    """

    def __init__(self, seed: int = 0, stride: int = 1) -> None:
        if stride < 1:
            raise InputError(f"expected a stride of at least 1, got {stride}", option="stride")
        axes = GRID_218.axes(stride=stride)
        self._latitude, self._longitude = GRID_218.points(stride=stride)
        generator = np.random.default_rng(seed)
        spectra = {
            "front": (2200.0, 11.0),
            "moisture": (900.0, 9.0),
            "wind_u": (1500.0, 10.0),
            "wind_v": (1500.0, 10.0),
            "gusts": (250.0, 12.0),
            "snowfall": (1100.0, 0.5),
            "hills": (300.0, 0.0),
        }
        self._waves = {
            name: waves(axes, generator=generator, length_km=length, speed_m_s=speed)
            for name, (length, speed) in spectra.items()
        }
        # Kelvins of one standard deviation between air masses; the tropics have calmer weather.
        self._unrest = 5.0 * np.clip((self._latitude - 5.0) / 30.0, 0.25, 1.0)
        self._terrain = _terrain(
            self._latitude, self._longitude, hills=self._waves["hills"].at(0.0)
        )

    @property
    def rows(self) -> int:
        """Points of one forecast."""
        return int(self._latitude.size)

    def schema(
        self, name: str = "nam", *, geohash_precision: int = 5, time_bucket: Duration = "1h"
    ) -> Schema:
        features = [
            Feature("temperature", unit="K"),
            Feature("humidity", unit="%"),
            Feature("wind_speed", unit="m/s"),
            Feature("snow_depth", unit="m"),
        ]
        return Schema(name, features, geohash_precision=geohash_precision, time_bucket=time_bucket)

    def forecast(self, time: Instant) -> pa.Table:
        """All points at one time: temperature at the surface, maximum relative humidity, wind
        speed and snow depth; rows from south to north, within them from west to east.
        """
        return self._forecast(micros(time))

    def _forecast(self, moment_us: int) -> pa.Table:
        fields = self._fields(moment_us / HOUR_US)
        rounded = [np.round(fields[name], DECIMALS[name]).ravel() for name in DECIMALS]
        columns = [
            pa.array(self._latitude.ravel()),
            pa.array(self._longitude.ravel()),
            pa.repeat(pa.scalar(moment_us, TIME_TYPE), self.rows),
            *[pa.array(values) for values in rounded],
        ]
        return pa.table(columns, schema=self.schema().observation_schema)

    def stream(
        self, start: Instant, *, hours: int, rows_per_batch: int = ROWS_PER_BATCH
    ) -> Iterator[pa.Table]:
        """Forecasts of `hours` consecutive hours in batches; a batch never spans two hours."""
        if rows_per_batch < 1:
            raise InputError(
                f"expected batches of at least 1 row, got {rows_per_batch}", option="rows_per_batch"
            )
        start_us = micros(start)
        for hour in range(hours):
            table = self._forecast(start_us + hour * HOUR_US)
            for row in range(0, table.num_rows, rows_per_batch):
                yield table.slice(row, rows_per_batch)

    def _fields(self, hour: float) -> dict[str, Floats]:
        climate = self._climate(hour)
        front = self._unrest * self._waves["front"].at(hour)
        daily = self._daily(hour)
        temperature = climate + front + daily
        moisture = 9.0 * self._waves["moisture"].at(hour)
        humidity = 70.0 - 2.6 * front - 3.0 * daily + moisture
        return {
            "temperature": temperature,
            "humidity": np.clip(humidity, HUMIDITY_MIN, HUMIDITY_MAX),
            "wind_speed": self._wind_speed(hour),
            "snow_depth": self._snow_depth(hour, climate),
        }

    def _climate(self, hour: float) -> Floats:
        """Kelvins without weather and time of day; coldest in the last week of January."""
        beyond_tropics = np.maximum(self._latitude - 15.0, 0.0)
        swing = 0.32 * beyond_tropics
        season = -np.cos(2 * np.pi * (hour / YEAR_H - 24 / 365))
        level: Floats = 300.0 - 0.55 * beyond_tropics + swing * season
        return level - LAPSE_K_PER_M * self._terrain

    def _daily(self, hour: float) -> Floats:
        """Kelvins above the day's mean: warmest at 15 h local solar time, more so on high land."""
        solar = hour % DAY_H + self._longitude / 15.0
        reach = 3.0 + 2.5 * np.minimum(self._terrain / 1500.0, 1.5)
        daily: Floats = reach * np.cos(2 * np.pi * (solar - 15.0) / DAY_H)
        return daily

    def _wind_speed(self, hour: float) -> Floats:
        u = 2.5 + 3.6 * self._waves["wind_u"].at(hour)
        v = 3.6 * self._waves["wind_v"].at(hour)
        gusts = np.maximum(1.0 + 0.25 * self._waves["gusts"].at(hour), 0.2)
        speed: Floats = np.hypot(u, v) * gusts
        return speed

    def _snow_depth(self, hour: float, climate: Floats) -> Floats:
        """Metres; only where the season is below freezing, in patches that hardly move."""
        frost = FREEZING_K - climate
        fallen = 0.8 + 0.6 * self._waves["snowfall"].at(hour)
        return np.where(frost > 0, np.maximum(0.035 * frost * fallen, 0.0), 0.0)


def _terrain(latitude: Floats, longitude: Floats, *, hills: Floats) -> Floats:
    """Metres: the Rocky Mountains, the high plains and the Appalachians as smooth ridges."""
    rockies = 2000.0 * _ridge(longitude + 111.0 + 0.25 * (latitude - 40.0), width=6.5)
    rockies *= np.exp(-(((latitude - 43.0) / 14.0) ** 4))
    appalachians = 700.0 * _ridge(longitude + 80.0 - 0.8 * (latitude - 38.0), width=2.0)
    appalachians *= np.exp(-(((latitude - 39.0) / 6.0) ** 4))
    return np.maximum((rockies + appalachians) * (1.0 + 0.25 * hills), 0.0)


def _ridge(distance_deg: Floats, *, width: float) -> Floats:
    ridge: Floats = np.exp(-((distance_deg / width) ** 2))
    return ridge
