"""Tracks like those of tropical storms in the Atlantic, made up.

A storm is born in the trade winds, drifts west, turns north and is then carried east; its wind
grows for some days and falls off afterwards. A season is computed as a whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.errors import InputError
from galileo.generate.lambert import Floats
from galileo.model.schema import Feature, Schema
from galileo.model.times import MICROS, Duration, micros, times_from_micros

STORMS = 14
STEP_H = 6
"""Between two fixes of a track."""
DAYS_MIN, DAYS_MAX = 4, 12
CATEGORIES_M_S = (33.0, 43.0, 50.0, 58.0, 70.0)
"""Of the Saffir-Simpson scale: the least wind speed of categories 1 to 5."""

_STEPS = DAYS_MAX * 24 // STEP_H + 1
_CALM_HPA = 1013.0


class StormsLike:
    """Seasons of tropical storms, as a best-track file has them.

    Args:
        seed: equal seeds make equal seasons.
        storms: how many a season has.
    """

    def __init__(self, seed: int = 0, *, storms: int = STORMS) -> None:
        if storms < 1:
            raise InputError(f"expected at least 1 storm, got {storms}", option="storms")
        self._seed = seed
        self._storms = storms

    def schema(
        self, name: str = "storms", *, geohash_precision: int = 3, time_bucket: Duration = "6h"
    ) -> Schema:
        features = [
            Feature("wind_speed", unit="m/s"),
            Feature("pressure", unit="hPa"),
            Feature("category", type="int"),
            Feature("storm", type="text"),
        ]
        return Schema(name, features, geohash_precision=geohash_precision, time_bucket=time_bucket)

    def season(self, year: int) -> pa.Table:
        """All fixes of a year's storms, ordered by time; one storm has one every six hours."""
        generator = np.random.default_rng([self._seed, year])
        born_h = np.sort(generator.triangular(150 * 24, 252 * 24, 330 * 24, self._storms))
        born_h = np.floor(born_h / STEP_H) * STEP_H
        lives_h = 24 * generator.uniform(DAYS_MIN, DAYS_MAX, self._storms)
        age_h = np.arange(_STEPS) * float(STEP_H)
        shape = (self._storms, _STEPS)
        latitude, longitude = _track(generator, np.broadcast_to(age_h / 24, shape))
        wind = _wind(generator, age_h[None, :] / lives_h[:, None])
        hours = born_h[:, None] + age_h
        number = np.broadcast_to(np.arange(1, self._storms + 1)[:, None], shape)
        alive = (age_h <= lives_h[:, None]).ravel()
        rows = np.flatnonzero(alive)[np.argsort(hours.ravel()[alive], kind="stable")]
        start_us = micros(f"{year}-01-01")
        fixes = [column.ravel()[rows] for column in (latitude, longitude, hours, wind, number)]
        return self._table(fixes, start_us=start_us, year=year)

    def _table(self, fixes: list[npt.NDArray[np.generic]], *, start_us: int, year: int) -> pa.Table:
        latitude, longitude, hours, wind, number = fixes
        speed = np.round(wind.astype(float), 1)
        times_us = start_us + hours.astype(np.int64) * 3600 * MICROS
        names = np.char.add(f"al-{year}-", np.char.zfill(number.astype(str), 2))
        return pa.table(
            [
                pa.array(np.round(latitude.astype(float), 1)),
                pa.array(np.round(longitude.astype(float), 1)),
                times_from_micros(times_us),
                pa.array(speed),
                pa.array(np.round(_CALM_HPA - 0.0155 * speed**2 - 0.05 * speed)),
                pa.array(np.searchsorted(CATEGORIES_M_S, speed, side="right")),
                pa.array(names),
            ],
            schema=self.schema().observation_schema,
        )


def _track(generator: np.random.Generator, day: Floats) -> tuple[Floats, Floats]:
    """Latitudes and longitudes, degrees, shape (storms, steps), of storms so many days old."""
    storms = (len(day), 1)
    born_at = generator.uniform(9.0, 17.0, storms), generator.uniform(-62.0, -25.0, storms)
    turns = generator.uniform(4.0, 8.0, storms)
    # It goes west until it turns, and then ever more quickly north-east.
    beyond = np.maximum(day - turns, 0.0)
    wobble = 0.4 * np.sin(2 * np.pi * (day / 2.3 + generator.uniform(0, 1, storms)))
    north = 0.8 * day + 0.09 * day**2 + 0.35 * beyond**1.5 + wobble
    east = -4.2 * day + 3.2 * beyond**1.45
    return np.minimum(born_at[0] + north, 62.0), born_at[1] + east


def _wind(generator: np.random.Generator, life: Floats) -> Floats:
    """Speeds in m/s, shape (storms, steps); `life` runs from 0 to 1 where a storm lives."""
    storms = (len(life), 1)
    peak = np.minimum(22.0 + generator.gamma(2.0, 11.0, storms), 82.0)
    summit = generator.uniform(0.45, 0.7, storms)
    within = np.clip(life, 0.0, 1.0)
    rising = np.sin(np.pi / 2 * np.clip(within / summit, 0, 1)) ** 1.5
    falling = np.cos(np.pi / 2 * np.clip((within - summit) / (1.05 - summit), 0, 1)) ** 0.8
    gusty = generator.normal(0.0, 0.6, life.shape)
    wind: Floats = np.maximum(11.0 + (peak - 11.0) * rising * falling + gusty, 8.0)
    return wind
