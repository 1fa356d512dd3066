"""Queries and observations and observations cluster around fifty places."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.model.schema import Feature, Schema
from galileo.model.times import iso, micros, times_from_micros

HUBS = 50
SPREAD_DEGREES = 1.0
START_US = micros("2012-03-01T00:00:00Z")
HOURS = 96
HOUR_US = 3_600_000_000
CORNERS = 6
RADIUS_DEGREES = (0.05, 0.15)
BOX_DEGREES = 0.2
BOX_HOURS = 24
BOX_KELVIN = 5.0

Floats = npt.NDArray[np.float64]


def schema(name: str) -> Schema:
    return Schema(name, [Feature("temperature", "K")], geohash_precision=5, time_bucket="1h")


class World:
    """The same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        hubs = np.random.default_rng(0)
        self._hubs = hubs.uniform((-120.0, 27.0), (-70.0, 47.0), (HUBS, 2))

    def places(self, count: int) -> Floats:
        """Longitudes and latitudes, shape (count, 2)."""
        hubs = self._hubs[self._random.integers(0, HUBS, count)]
        return hubs + self._random.normal(0.0, SPREAD_DEGREES, (count, 2))

    def observations(self, count: int) -> pa.Table:
        places = self.places(count)
        seconds = self._random.integers(0, HOURS * 3_600, count)
        columns = {
            "latitude": places[:, 1],
            "longitude": places[:, 0],
            "time": times_from_micros(START_US + seconds * 1_000_000),
            "temperature": self._random.uniform(280.0, 305.0, count),
        }
        return pa.table(columns, schema=schema("x").observation_schema)

    def polygons(self, count: int) -> list[str]:
        """As WKT; each has six corners and is some twenty kilometres wide."""
        centres = self.places(count)[:, None, :]
        angles = np.linspace(0.0, 2.0 * np.pi, CORNERS, endpoint=False)
        radii = self._random.uniform(*RADIUS_DEGREES, (count, 1))
        radii = radii * self._random.uniform(0.7, 1.3, (count, CORNERS))
        corners = centres + radii[..., None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return [_wkt(ring) for ring in np.round(corners, 5).tolist()]

    def boxes(self, count: int) -> list[str]:
        """As CQL2: a box, a day, and five kelvins."""
        corners = self.places(count)
        hours = self._random.integers(0, HOURS - BOX_HOURS, count)
        kelvins = self._random.uniform(280.0, 300.0, count)
        rows = zip(corners.tolist(), hours.tolist(), kelvins.tolist(), strict=True)
        return [_box(*corner, hour=hour, kelvin=kelvin) for corner, hour, kelvin in rows]


def _wkt(ring: list[list[float]]) -> str:
    return "POLYGON(({}))".format(", ".join(f"{x} {y}" for x, y in [*ring, ring[0]]))


def _box(west: float, south: float, *, hour: int, kelvin: float) -> str:
    east, north = west + BOX_DEGREES, south + BOX_DEGREES
    first, last = (iso(START_US + h * HOUR_US) for h in (hour, hour + BOX_HOURS))
    return (
        f"S_INTERSECTS(geometry, BBOX({west:.4f}, {south:.4f}, {east:.4f}, {north:.4f})) "
        f"AND T_INTERSECTS(datetime, INTERVAL('{first}', '{last}')) "
        f"AND temperature BETWEEN {kelvin:.2f} AND {kelvin + BOX_KELVIN:.2f}"
    )
