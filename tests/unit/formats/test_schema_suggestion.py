"""What is chosen for a new dataset by its first rows: cells, buckets and the index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from galileo.formats import GridOptions, Mapping, open_source, suggest_schema
from galileo.formats.schema_suggestion import ROWS_MIN, Choice, suggest
from galileo.model.observations import normalise
from galileo.model.paths import index as index_rows
from galileo.model.schema import Schema

HOUR_US = 3_600_000_000
START_US = 1_400_000_000_000_000 // HOUR_US * HOUR_US
BYTES_MAX = 38
"""Of a row of a grid with one float32 feature, of which 28 are its columns."""
PATH_BYTES = 28
OPEN: dict[str, Any] = {"precision": None, "bucket": None, "index": None, "key": ()}

Columns = dict[str, npt.NDArray[Any]]


def grid(
    rng: np.random.Generator,
    places: tuple[int, int],
    times: int,
    *,
    spacing: float = 0.25,
    hours: int = 1,
) -> Columns:
    """The rows of a grid that begins at 40° N, 0° E, time after time, with a smooth field."""
    height, width = places
    time, y, x = (each.ravel() for each in np.indices((times, height, width)))
    smooth = np.sin(y / height * 3) + np.cos(x / width * 5) + rng.normal(0, 0.01, len(time))
    return {
        "latitude": -80 + y * spacing,
        "longitude": x * spacing,
        "time": (START_US + time * hours * HOUR_US).astype("datetime64[us]"),
        "t2m": (280 + 10 * smooth).astype(np.float32),
    }


def stations(rng: np.random.Generator, places: int, times: int) -> Columns:
    """Hourly reports of stations, in the order of time."""
    time, station = (each.ravel() for each in np.indices((times, places)))
    latitude, longitude = rng.uniform(30, 50, places), rng.uniform(-120, -80, places)
    return {
        "latitude": latitude[station],
        "longitude": longitude[station],
        "time": (START_US + time * HOUR_US).astype("datetime64[us]"),
        "temperature": rng.normal(280, 10, len(time)),
    }


def track(rng: np.random.Generator, rows: int) -> Columns:
    """A ship that reports every minute."""
    return {
        "latitude": np.clip(np.cumsum(rng.normal(0, 0.003, rows)), -80, 80),
        "longitude": np.cumsum(rng.normal(0.001, 0.002, rows)) % 360 - 180,
        "time": (START_US + np.arange(rows) * 60_000_000).astype("datetime64[us]"),
        "temperature": rng.normal(280, 10, rows),
        "speed": np.round(rng.uniform(0, 20, rows), 1),
    }


Suggested = Callable[..., tuple[Schema, dict[str, Choice]]]


@pytest.fixture
def suggested(tmp_path: Path) -> Suggested:
    """What is suggested for a file of some columns; checks what is said of the paths."""

    def suggested(
        columns: Columns, *, mapping: str = "", **options: Any
    ) -> tuple[Schema, dict[str, Choice]]:
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table(columns), path)
        source = open_source(path, mapping=Mapping.parse(mapping.split()))
        schema, choices = suggest(source, "x", **OPEN | options)
        if len(columns["time"]) >= ROWS_MIN and not options.get("key"):
            said = f"a path has {rows_of_paths(columns, schema):,.1f} of the first "
            assert all(choice.reason.startswith(said) for choice in choices)
        return schema, {choice.option: choice for choice in choices}

    return suggested


def rows_of_paths(columns: Columns, schema: Schema) -> float:
    """Rows of a path in the first commit, as nodes would store it."""
    names = {*columns} & {*schema.observation_schema.names}
    first = pa.table({name: columns[name] for name in columns if name in names}).slice(0, 65_536)
    return first.num_rows / index_rows(schema, normalise(schema, first))[1].num_rows


def indexed(schema: Schema) -> list[str]:
    return [feature.name for feature in schema.indexed]


@pytest.mark.parametrize("seed", range(12))
def test_paths_of_random_grids_take_little_room(suggested: Suggested, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spacing = float(rng.choice([0.02, 0.1, 0.25, 0.5, 1.125]))
    places, hours = (int(rng.integers(17, 80)), int(rng.integers(17, 80))), int(2**seed)
    times = ROWS_MIN // (places[0] * places[1]) + int(rng.integers(1, 40))
    columns = grid(rng, places, times, spacing=spacing, hours=hours)
    schema, choices = suggested(columns)
    assert [*choices] == ["precision", "bucket", "index"]
    assert indexed(schema) == []
    assert 28 + PATH_BYTES / rows_of_paths(columns, schema) <= BYTES_MAX
    assert "with t2m; conditions" in choices["index"].reason


def test_global_grid_gets_large_cells_and_short_buckets(suggested: Suggested) -> None:
    columns = grid(np.random.default_rng(1), (140, 320), 2, spacing=1.125, hours=6)
    schema, choices = suggested(columns)
    assert (schema.geohash_precision, schema.time_bucket_us) == (2, HOUR_US)
    assert choices["precision"].reason.endswith(" on average, and 1.0 with 5")


def test_grid_keeps_what_has_few_values_in_a_block(suggested: Suggested) -> None:
    rng = np.random.default_rng(2)
    columns = grid(rng, (60, 60), 12)
    rows = len(columns["time"])
    columns |= {
        "land": (columns["longitude"] > 5).astype(np.float32),
        "ice": np.choose(
            (columns["latitude"] > -75) + rng.integers(0, 2, rows), [np.nan, 0.0, -0.0]
        ),
        "count": rng.integers(0, 1 << 40, rows),
        "model": np.full(rows, "gfs"),
        "day": rng.uniform(size=rows) > 2,
    }
    schema, choices = suggested(columns)
    assert indexed(schema) == ["land", "ice", "model", "day"]
    assert choices["index"].value == "land, ice, model, day"
    assert "with t2m, count; conditions" in choices["index"].reason


@pytest.mark.parametrize("count", [1, 20, 90])
def test_long_series_keep_fine_cells_and_get_wide_buckets(suggested: Suggested, count: int) -> None:
    columns = stations(np.random.default_rng(3), count, 12_000 // count + 200)
    schema, choices = suggested(columns)
    assert (schema.geohash_precision, schema.time_bucket_us) == (5, 24 * HOUR_US)
    assert choices["bucket"].reason.endswith("and 1.0 with 1h")
    assert indexed(schema) == []


def test_stations_with_names_keep_fine_cells(suggested: Suggested) -> None:
    columns = stations(np.random.default_rng(4), 1_000, 60)
    columns |= {"station": columns["latitude"].astype(str)}
    schema, _ = suggested(columns)
    assert (schema.geohash_precision, schema.time_bucket_us) == (5, 48 * HOUR_US)
    assert indexed(schema) == ["station"]


def test_rounded_measurements_of_stations_stay_indexed(suggested: Suggested) -> None:
    columns = stations(np.random.default_rng(5), 50, 400)
    columns["temperature"] = np.round(columns["temperature"], 1)
    schema, choices = suggested(columns)
    assert (schema.geohash_precision, schema.time_bucket_us) == (5, HOUR_US)
    assert choices["index"].value == "temperature"


@pytest.mark.parametrize("seed", range(3))
def test_tracks_are_no_worse_than_in_the_finest_blocks(suggested: Suggested, seed: int) -> None:
    columns = track(np.random.default_rng(seed), 20_000)
    schema, _ = suggested(columns)
    finest = Schema("x", schema.features)
    assert rows_of_paths(columns, schema) >= rows_of_paths(columns, finest)
    assert "speed" in indexed(schema)


@pytest.mark.parametrize("rows", [0, 1, ROWS_MIN - 1])
def test_few_rows_decide_nothing(suggested: Suggested, rows: int) -> None:
    columns = {
        name: column[:rows]
        for name, column in grid(np.random.default_rng(6), (100, 100), 1).items()
    }
    schema, choices = suggested(columns)
    assert schema == Schema("x", schema.features, geohash_precision=5, time_bucket="1h")
    assert indexed(schema) == ["t2m"]
    assert {choice.reason for choice in choices.values()} == {
        f"{rows:,} rows are too few to choose by"
    }


def test_each_option_that_is_given_holds(suggested: Suggested) -> None:
    columns = grid(np.random.default_rng(7), (100, 100), 2)
    schema, choices = suggested(columns, precision=7)
    assert (schema.geohash_precision, [*choices]) == (7, ["bucket", "index"])
    schema, choices = suggested(columns, bucket="10m")
    assert (schema.time_bucket_us, [*choices]) == (HOUR_US // 6, ["precision", "index"])
    schema, choices = suggested(columns, index=["t2m"])
    assert (indexed(schema), [*choices]) == (["t2m"], ["precision", "bucket"])
    schema, choices = suggested(columns, index=[])
    assert (indexed(schema), [*choices]) == ([], ["precision", "bucket"])
    assert suggested(columns, precision=4, bucket="2h", index=["t2m"])[1] == {}
    schema, choices = suggested(columns, mapping="t2m=t2m")
    assert (indexed(schema), schema.geohash_precision) == (["t2m"], 5)
    assert choices["index"].reason.startswith("a path has 1.0 ")


def test_keyed_datasets_keep_the_finest_blocks(suggested: Suggested) -> None:
    columns = stations(np.random.default_rng(8), 20, 1_000)
    columns |= {"station": columns["latitude"].astype(str)}
    schema, choices = suggested(columns, key=["station"])
    assert (schema.geohash_precision, schema.time_bucket_us) == (5, HOUR_US)
    assert indexed(schema) == ["temperature", "station"]
    assert "keyed dataset" in choices["precision"].reason


def test_levels_as_rows_and_flags_stay_indexed(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    rng, path = np.random.default_rng(9), tmp_path / "levels.nc"
    dims, shape = ("time", "level", "lat", "lon"), (2, 4, 50, 50)
    dataset = xr.Dataset(
        {
            "t": (dims, rng.normal(280, 10, shape).astype(np.float32)),
            "qc": (dims, rng.integers(0, 2, shape).astype(np.int8)),
        },
        {
            "time": ("time", [0, 6], {"units": "hours since 2014-03-01"}),
            "level": ("level", [1000.0, 850, 500, 250], {"units": "hPa", "axis": "Z"}),
            "lat": ("lat", 40 + np.arange(50) * 0.1, {"units": "degrees_north"}),
            "lon": ("lon", np.arange(50) * 0.1, {"units": "degrees_east"}),
        },
    )
    dataset.qc.attrs |= {"flag_values": np.int8([0, 1]), "flag_meanings": "good bad"}
    dataset.to_netcdf(path)
    source = open_source(path, mapping=Mapping.of((), (), grid=GridOptions(rows=("level",))))
    assert indexed(suggest_schema(source, "x")) == ["qc", "level"]
