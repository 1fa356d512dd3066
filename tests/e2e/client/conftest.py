"""A dataset all over the world that tests explore and none changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import galileo
from galileo.geo import geohash
from galileo.model.schema import Feature, Schema

Fresh = Callable[[str], str]

START = pd.Timestamp("2014-03-01", tz="UTC")
STATIONS = ["alpha", "beta/2", "gamma~", ""]
LEVELS = ["geohash", "datetime", "temperature", "count", "station", "wet"]
# CQL2, and the same in pandas; each matches features alone, so labels are exact.
QUERIES: list[tuple[str, Callable[[pd.DataFrame], pd.Series]]] = [
    ("", lambda f: f["latitude"] > -100),
    ("temperature > 280", lambda f: f["temperature"] > 280),
    ("count < 0 OR station = 'alpha'", lambda f: (f["count"] < 0) | (f["station"] == "alpha")),
    ("temperature IS NULL", lambda f: f["temperature"].isna()),
    ("NOT (wet = true)", lambda f: f["wet"] == False),  # noqa: E712
    ("temperature > 1000", lambda f: f["temperature"] > 1000),
]


def schema(name: str) -> Schema:
    features = [
        Feature("temperature", "K"),
        Feature("count", type="int"),
        Feature("station", type="text"),
        Feature("wet", type="bool"),
        Feature("note", type="text", indexed=False),
    ]
    return Schema(name, features, geohash_precision=2, time_bucket="6h")


def frame(rows: int = 3000, seed: int = 0) -> pd.DataFrame:
    """All over the world, thick about a pole and the antimeridian, many at one place."""
    rng = np.random.default_rng(seed)

    def some(values: Any, dtype: str) -> pd.Series:
        return pd.Series(values, dtype=dtype).mask(pd.Series(rng.random(rows) < 0.1))

    latitude, longitude = rng.uniform(-90, 90, rows), rng.uniform(-180, 180, rows)
    thick = np.arange(rows) % 3
    latitude[thick == 1] = np.clip(rng.normal(89, 1, rows), -90, 90)[thick == 1]
    longitude[thick == 2] = ((rng.normal(180, 2, rows) + 180) % 360 - 180)[thick == 2]
    latitude[:60], longitude[:60] = 12.5, -180.0
    latitude[60:70] = 90.0
    return pd.DataFrame(
        {
            "latitude": np.round(latitude, 2),
            "longitude": np.round(longitude, 2),
            "time": START + pd.to_timedelta(rng.integers(0, 48 * 60, rows), unit="min"),
            "temperature": some(np.round(rng.uniform(250, 310, rows)), "Float64"),
            "count": some(rng.integers(-3, 4, rows), "Int64"),
            "station": some(rng.choice(STATIONS, rows), "string"),
            "wet": some(rng.random(rows) < 0.5, "boolean"),
            "note": pd.Series([f"{number:05}" for number in range(rows)], dtype="string"),
        }
    )


def levels_of(data: pd.DataFrame) -> dict[str, list[Any]]:
    """One value per observation; None where one is missing."""
    cells = geohash.encode(data["latitude"].to_numpy(), data["longitude"].to_numpy(), 2)
    found: dict[str, list[Any]] = {"geohash": geohash.to_text(cells, 2).to_pylist()}
    found["datetime"] = data["time"].dt.floor("6h").tolist()
    for name in LEVELS[2:]:
        column = data[name].astype(object)
        found[name] = column.where(column.notna(), None).tolist()
    return found


class Stored:
    """A dataset with all of `frame` in it; `levels` are the values of each level of its tree."""

    def __init__(self, name: str, frame: pd.DataFrame) -> None:
        self.name = name
        self.frame = frame
        self.levels = levels_of(frame)
        self.queries = [text for text, _ in QUERIES]

    def matching(self, number: int) -> pd.DataFrame:
        return self.frame[QUERIES[number][1](self.frame).fillna(False).astype(bool)]


@pytest.fixture(scope="session")
def explored(client: galileo.Client, fresh_name: Fresh) -> Stored:
    name, data = fresh_name("explored"), frame()
    client.create_dataset(schema(name))
    client.ingest(name, data, batch_rows=700)
    return Stored(name, data)


@pytest.fixture(scope="session")
def make_explored() -> tuple[Callable[[str], Schema], Callable[..., pd.DataFrame]]:
    """The schema by a name, and `frame(rows, seed)`."""
    return schema, frame
