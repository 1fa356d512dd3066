"""Groups of a real cluster's observations, against pandas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

import galileo
from galileo.errors import InputError
from galileo.geo import geohash

STATISTICS = {
    "temperature": ["count", "sum", "min", "max", "mean", "std", "p90"],
    "count": ["min", "max"],
    "wet": ["sum", "mean"],
    "note": "count",
}
KEYS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "cell:1": lambda f: cells(f, 1),
    "cell:4": lambda f: cells(f, 4),
    "window:1d": lambda f: f["time"].dt.floor("1D"),
    "window:1mo": lambda f: (
        f["time"].dt.tz_localize(None).dt.to_period("M").dt.start_time.dt.tz_localize("UTC")
    ),
    "window:45m": lambda f: f["time"].dt.floor("45min"),
    "station": lambda f: f["station"],
    "count": lambda f: f["count"],
}
REGION = "S_INTERSECTS(geometry, BBOX(-95.3, -40.1, 88.7, 63.9)) AND temperature > 280"


def cells(frame: pd.DataFrame, precision: int) -> pd.Series:
    found = geohash.encode(frame["latitude"], frame["longitude"], precision)
    return pd.Series(geohash.to_text(found, precision).to_pylist(), index=frame.index)


def grouped(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The groups by pandas, ascending by their keys, with missing ones last."""
    columns = {f"key{number}": KEYS[key](frame) for number, key in enumerate(by)}
    keys = pd.DataFrame(columns, index=frame.index)
    names = list(keys.columns)
    groups = pd.concat([keys, frame.drop(columns=["time"]).add_prefix("v_")], axis=1).groupby(
        names, dropna=False
    )
    temperature, count, wet = (groups[f"v_{name}"] for name in ("temperature", "count", "wet"))
    statistics = {
        "observations": groups.size(),
        "temperature_count": temperature.count(),
        "temperature_sum": temperature.sum(min_count=1),
        "temperature_min": temperature.min(),
        "temperature_max": temperature.max(),
        "temperature_mean": temperature.mean(),
        "temperature_std": temperature.std(),
        "temperature_p90": temperature.quantile(0.9),
        "count_min": count.min(),
        "count_max": count.max(),
        "wet_sum": wet.sum(min_count=1),
        "wet_mean": wet.mean(),
        "note_count": groups["v_note"].count(),
    }
    return pd.DataFrame(statistics).reset_index().sort_values(names, ignore_index=True)


def rows(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    return [
        tuple(None if pd.isna(v) else round(v, 9) if isinstance(v, float) else v for v in row)
        for row in frame.itertuples(index=False, name=None)
    ]


@given(
    by=st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3, unique_by=lambda k: k[:4]),
    number=st.integers(0, 5),
)
@examples(15)
def test_aggregate_equals_pandas(
    client: galileo.Client, explored: Any, by: list[str], number: int
) -> None:
    found = client.aggregate(explored.name, explored.queries[number], by=by, statistics=STATISTICS)
    expected = grouped(explored.matching(number), by)
    assert found.complete
    assert rows(found.to_pandas()) == rows(expected)


def test_aggregate_of_a_region_counts_its_observations_exactly(
    client: galileo.Client, explored: Any
) -> None:
    frame = explored.frame
    inside = frame["longitude"].between(-95.3, 88.7) & frame["latitude"].between(-40.1, 63.9)
    expected = grouped(frame[inside & (frame["temperature"] > 280).fillna(False)], ["cell:1"])
    found = client.aggregate(explored.name, REGION, by=galileo.cell(1), statistics=STATISTICS)
    assert rows(found.to_pandas()) == rows(expected)
    assert found.to_arrow().column_names[0] == "geohash"
    assert sum(found.to_arrow()["observations"].to_pylist()) == client.count(explored.name, REGION)


def test_aggregate_by_bits_has_numbers_of_cells(client: galileo.Client, explored: Any) -> None:
    table = client.aggregate(explored.name, by=[galileo.cell(bits=3)]).to_arrow()
    frame = explored.frame
    eighths = geohash.encode(frame["latitude"], frame["longitude"], 1) >> np.uint64(2)
    expected = np.bincount(eighths.astype(int))
    assert dict(zip(*table.to_pydict().values(), strict=True)) == {
        cell: count for cell, count in enumerate(expected.tolist()) if count
    }


def test_aggregate_shows_its_groups(client: galileo.Client, explored: Any) -> None:
    found = client.aggregate(explored.name, by=["station", galileo.window("1d")])
    assert repr(found).startswith(f"<Aggregates: {len(found)} groups with station, time, obser")
    assert "station" in found._repr_html_()


def test_latest_shows_its_observations(client: galileo.Client, explored: Any) -> None:
    found = client.latest(explored.name, by="station")
    assert f"{len(found):,} observations" in repr(found)
    assert "Newest" in found._repr_html_()
    assert found.to_pandas()["station"].isna().sum() == 1


def test_version_is_the_same_until_something_is_committed(
    client: galileo.Client, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("version")
    client.create_dataset(galileo.Schema(name, [galileo.Feature("temperature")]))
    row = {"latitude": 1.0, "longitude": 2.0, "time": "2014-03-01T06:30:00Z", "temperature": 3.0}
    first = client.version(name)
    assert (first.schema.name, first.complete) == (name, True)
    client.ingest(name, pd.DataFrame([row]))
    second = client.version(name)
    assert second == client.version(name)
    [changed] = [p for p, v in second.partitions.items() if v != first.partitions[p]]
    counted = client.aggregate(name, "geohash LIKE 's0%'")
    assert changed in counted.partitions
    assert (counted.ranges, counted.frontier[changed]) == (
        second.ranges,
        second.partitions[changed].last,
    )


@pytest.mark.parametrize(
    ("wrong", "details"),
    [
        ({"by": ["cell:2", galileo.cell(3)]}, {"parameter": "by"}),
        ({"by": [7]}, {"parameter": "by"}),
        ({"statistics": ["temperature"]}, {"parameter": "statistics"}),
    ],
)
def test_aggregate_with_wrong_keys_or_statistics_is_refused(
    client: galileo.Client, explored: Any, wrong: dict[str, Any], details: dict[str, Any]
) -> None:
    with raises(InputError, **details):
        client.aggregate(explored.name, **wrong)
