"""Reports like those of a network of weather stations, made up.

The stations have fixed places, scattered over the plains and the foothills. The weather is plane
waves on top of a fixed course of latitude, season, time of day and altitude. Any hour can be
computed by itself.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from galileo.errors import InputError
from galileo.generate.lambert import Floats
from galileo.model.schema import Feature, Schema
from galileo.model.times import HOUR_US, MICROS, Duration, Instant, micros, times_from_micros

STATIONS = 400
SOUTH, NORTH, WEST, EAST = 31.0, 47.0, -108.0, -92.0
MINUTES_LATE_MAX = 10
"""A station reports at some minute of its own past the hour."""

_YEAR_H = 365.2425 * 24.0
_WAVES = 12
_KM_PER_DEGREE = 111.2
_LAPSE_K_PER_M = 0.0065


class StationsLike:
    """Stations that each report once an hour.

    Args:
        seed: equal seeds make equal networks under equal weather.
        stations: how many.
    """

    def __init__(self, seed: int = 0, *, stations: int = STATIONS) -> None:
        if stations < 1:
            raise InputError(f"expected at least 1 station, got {stations}", option="stations")
        generator = np.random.default_rng(seed)
        self._latitude = np.round(generator.uniform(SOUTH, NORTH, stations), 4)
        self._longitude = np.round(generator.uniform(WEST, EAST, stations), 4)
        # The land rises to the west.
        rise = (EAST - self._longitude) / (EAST - WEST)
        self._altitude_m = 200 + 1600 * rise**2 + generator.uniform(0, 150, stations)
        self._minute = generator.integers(0, MINUTES_LATE_MAX, stations)
        self._names = pa.array([f"st{number:04d}" for number in range(stations)])
        self._phases = self._waves(generator)

    def schema(
        self, name: str = "stations", *, geohash_precision: int = 4, time_bucket: Duration = "1h"
    ) -> Schema:
        features = [
            Feature("temperature", unit="K"),
            Feature("humidity", unit="%"),
            Feature("wind_speed", unit="m/s"),
            Feature("station", type="text"),
        ]
        return Schema(name, features, geohash_precision=geohash_precision, time_bucket=time_bucket)

    def reports(self, time: Instant) -> pa.Table:
        """The reports of one hour, one from each station; `time` is the beginning of the hour."""
        moment_us = micros(time)
        air, moisture, wind = self._fields(moment_us / HOUR_US)
        times_us = moment_us + self._minute * 60 * MICROS
        return pa.table(
            [
                pa.array(self._latitude),
                pa.array(self._longitude),
                times_from_micros(times_us),
                pa.array(np.round(air, 1)),
                pa.array(np.round(moisture)),
                pa.array(np.round(wind, 1)),
                self._names,
            ],
            schema=self.schema().observation_schema,
        )

    def _waves(self, generator: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        """For three fields: phases at the stations, shape (fields, waves, stations), the angular
        frequency of each wave in radians per hour, and its share.
        """
        length_km = 1200 * np.exp(generator.normal(0.0, 0.4, (3, _WAVES)))
        towards = generator.uniform(0, 2 * np.pi, (3, _WAVES))
        k = 2 * np.pi / length_km
        east_km = self._longitude * np.cos(np.radians(39.0)) * _KM_PER_DEGREE
        north_km = self._latitude * _KM_PER_DEGREE
        at = (
            (k * np.cos(towards))[..., None] * east_km
            + (k * np.sin(towards))[..., None] * north_km
            + generator.uniform(0, 2 * np.pi, (3, _WAVES, 1))
        )
        speed_km_h = 35 * generator.normal(1.0, 0.3, (3, _WAVES))
        return at, k * np.cos(towards) * speed_km_h, np.full(_WAVES, np.sqrt(2 / _WAVES))

    def _fields(self, hour: float) -> tuple[Floats, Floats, Floats]:
        """Temperature in K, humidity in % and wind speed in m/s at the stations."""
        at, omega, share = self._phases
        front, moisture, gusts = np.cos(at - (omega * hour)[..., None]).transpose(0, 2, 1) @ share
        solar_h = hour % 24.0 + self._longitude / 15.0
        daily = 6.0 * np.cos(2 * np.pi * (solar_h - 15.0) / 24.0)
        season = -np.cos(2 * np.pi * (hour / _YEAR_H - 24 / 365))
        level = 296.0 - 0.6 * (self._latitude - 31.0) + 11.0 * season
        air = level - _LAPSE_K_PER_M * self._altitude_m + 4.5 * front + daily
        humidity = np.clip(58.0 - 4.0 * daily - 6.0 * front + 14.0 * moisture, 4.0, 100.0)
        wind = np.abs(4.5 + 2.6 * gusts + 0.25 * daily)
        return air, humidity, wind
