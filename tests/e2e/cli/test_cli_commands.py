"""The commands against a real cluster, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

import galileo
from galileo import errors
from galileo.cli.main import main
from galileo.cli.output import exit_status
from galileo.cluster import free_ports
from galileo.config import load

Fresh = Callable[[str], str]
Run = Callable[..., Result]

ROWS = 120


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "latitude": np.round(rng.uniform(25, 50, ROWS), 3),
            "longitude": np.round(rng.uniform(-125, -65, ROWS), 3),
            "time": [f"2014-03-01T{hour:02d}:30:00Z" for hour in rng.integers(0, 24, ROWS)],
            "temperature": np.round(rng.uniform(250, 310, ROWS), 1),
            "wind_speed": np.round(rng.uniform(0, 30, ROWS), 1),
        }
    )


WARM = int((frame()["temperature"] > 290).sum())


@pytest.fixture(scope="module")
def run(cluster: galileo.LocalCluster) -> Run:
    """`run("status", "--json")`: the result of a command, which must exit with status `fails`."""

    def ran(*words: str, fails: int = 0) -> Result:
        nodes = [word for address in cluster.addresses for word in ("--node", address)]
        done = CliRunner().invoke(main, [*nodes, *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == fails, done.output
        return done

    return ran


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "stations.csv"
    frame().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def dataset(run: Run, csv: Path, fresh_name: Fresh) -> str:
    name = fresh_name("stations")
    run("ingest", name, str(csv), "--create", "--precision", "3")
    return name


def values(done: Result) -> Any:
    return json.loads(done.stdout)


# --- create and ingest ---------------------------------------------------------------------------


def test_dataset_create_and_ingest_print_text(run: Run, csv: Path, fresh_name: Fresh) -> None:
    name = fresh_name("words")
    features = ["--feature", "temperature:K", "--feature", "wind_speed:m/s:float"]
    assert f"created dataset {name}" in run("dataset", "create", name, *features).stdout
    assert "120 observations stored\n" in run("ingest", name, str(csv)).stdout
    again = run("ingest", name, str(csv)).stdout
    assert "0 new, 120 already stored" in again


def test_dataset_create_and_ingest_print_json(run: Run, csv: Path, fresh_name: Fresh) -> None:
    name = fresh_name("json")
    schema = values(run("dataset", "create", name, "--feature", "t:K", "--bucket", "10m", "--json"))
    assert schema["features"] == [{"name": "t", "unit": "K", "type": "float", "indexed": True}]
    assert schema["time_bucket_us"] == 600_000_000
    mapped = ["--map", "t=temperature"]
    stored = values(run("--json", "ingest", name, str(csv), *mapped))
    assert (stored["rows"], stored["duplicate_rows"], stored["skipped"]) == (ROWS, 0, 0)
    assert sum(stored["reached"].values()) >= 1
    assert stored["file"] == str(csv)


def test_dataset_list_and_show_agree(run: Run, fresh_name: Fresh) -> None:
    name, other = fresh_name("listed"), fresh_name("listed")
    features = ("--feature", "temperature:K", "--feature", "station::text")
    run("dataset", "create", name, *features, "--precision", "4", "--bucket", "10m")
    run("dataset", "create", other, "--feature", "count:1:int")
    run("retention", "set", name, "--age", "30d")
    one = values(run("dataset", "show", name, "--json"))
    listed = {actual["name"]: actual for actual in values(run("dataset", "list", "--json"))}
    assert list(listed) == sorted(listed)
    assert listed[name] == one
    assert one.pop("retention") == values(run("retention", "show", name, "--json"))["retention"]
    temperature, station = one.pop("features")
    assert (temperature["name"], temperature["unit"]) == ("temperature", "K")
    assert (station["count"], station["distinct"], station["values"]) == (0, 0, {})
    assert one == {
        "name": name,
        "geohash_precision": 4,
        "time_bucket_us": 600_000_000,
        **dict.fromkeys(("observations", "paths"), 0),
        "bytes": one["bytes"],
        **dict.fromkeys(("bbox", "start", "end")),
        "complete": True,
        "missing": [],
    }
    assert listed[other]["retention"] is None
    [row] = [
        line for line in run("dataset", "list").stdout.splitlines() if line.startswith(f"{name} ")
    ]
    assert "2" in row.split()
    words = run("dataset", "show", name).stdout
    assert f"{name}: blocks of 4 geohash characters and 10m; kept for 30d" in words
    assert "temperature" in words
    assert f"did you mean '{name}'" in run("dataset", "show", name + "x", fails=2).stderr


def test_dataset_show_describes_stored_observations(run: Run, dataset: str) -> None:
    actual, stored = values(run("dataset", "show", dataset, "--json")), frame()
    assert actual["observations"] == ROWS
    west, south, east, north = actual["bbox"]
    assert west <= stored["longitude"].min() <= stored["longitude"].max() <= east
    assert south <= stored["latitude"].min() <= stored["latitude"].max() <= north
    assert actual["start"] <= stored["time"].min() <= stored["time"].max() < actual["end"]
    for feature in actual["features"]:
        column = stored[feature["name"]]
        assert (feature["count"], feature["nulls"]) == (ROWS, 0)
        assert (feature["minimum"], feature["maximum"]) == (column.min(), column.max())
        assert feature["mean"] == pytest.approx(column.mean())
    words = run("dataset", "show", dataset).stdout
    assert f"{ROWS} observations in {actual['paths']} paths" in words
    [row] = [
        line
        for line in run("dataset", "list").stdout.splitlines()
        if line.startswith(f"{dataset} ")
    ]
    assert f" {ROWS} " in row
    assert "2014-03-01" in row


def test_ingest_with_create_derives_the_schema(run: Run, dataset: str) -> None:
    found = values(run("query", dataset, "--json"))
    assert found["complete"] is True
    assert {"temperature", "wind_speed", "geohash", "time", "label"} <= set(found["labels"][0])


@pytest.mark.parametrize(
    ("column", "value"), [("time", "yesterday"), ("latitude", 91), ("longitude", "west")]
)
def test_ingest_of_an_invalid_file_creates_no_dataset(
    run: Run, tmp_path: Path, fresh_name: Fresh, column: str, value: Any
) -> None:
    name, wrong = fresh_name("unreadable"), tmp_path / "wrong.csv"
    rows = frame().astype({column: object})
    rows.loc[1, column] = value
    rows.to_csv(wrong, index=False)
    actual = run("ingest", name, str(wrong), "--create", fails=2).stderr
    assert column in actual
    assert "[unknown_dataset]" in run("query", name, fails=2).stderr
    right = tmp_path / "right.csv"
    frame().to_csv(right, index=False)
    stored = run("ingest", name, str(right), "--create").stdout
    assert f"Created dataset {name} (2 features), with blocks of 5 geohash characters" in stored
    assert "and 1h: temperature float, wind_speed float\n" in stored
    assert f"{ROWS} observations stored\n" in stored


def test_ingest_with_create_names_what_it_left_out(
    run: Run, tmp_path: Path, fresh_name: Fresh
) -> None:
    file = tmp_path / "tagged.parquet"
    frame().assign(tags=[["a"]] * ROWS).to_parquet(file)
    done = run("ingest", fresh_name("tagged"), str(file), "--create")
    assert "galileo: not taken from tagged.parquet: tags\n" in done.stderr
    mapped = ["--map", "temperature=temperature"]
    assert run("ingest", fresh_name("tagged"), str(file), "--create", *mapped).stderr == ""


def test_ingest_takes_levels_and_runs_as_rows(run: Run, tmp_path: Path, fresh_name: Fresh) -> None:
    netcdf = pytest.importorskip("netCDF4")
    path, columns, rows = tmp_path / "runs.nc", fresh_name("columns"), fresh_name("rows")
    with netcdf.Dataset(path, "w") as file:
        for dim, size in {"time": 2, "level": 300, "lat": 1, "lon": 1}.items():
            file.createDimension(dim, size)
            file.createVariable(dim, "i4", (dim,))[:] = range(size)
        reference = file.createVariable("run", "i4", ())
        reference.standard_name, reference[...] = "forecast_reference_time", 0
        reference.units = file["time"].units = "hours since 2020-01-01"
        file["lat"].units, file["lon"].units = "degrees_north", "degrees_east"
        for name, dims in (("t", ("time", "level", "lat", "lon")), ("s", ("time", "lat", "lon"))):
            file.createVariable(name, "f4", dims)[:] = 1.0
    printed = run("ingest", columns, str(path), "--create").stderr
    assert "not taken from runs.nc: t (300 levels), run; --rows DIMENSION" in printed
    options = ("--create", "--rows", "level", "--reference-time")
    assert "600 observations stored" in run("ingest", rows, str(path), *options).stdout
    assert values(run("--json", "count", rows, "level < 10 AND lead_time = 1"))["count"] == 10
    refused = run("ingest", rows, str(path), "--rows", "levels", fails=2).stderr
    assert "there is no dimension 'levels'; did you mean 'level'?" in refused


def test_ingest_says_what_was_chosen_and_left_out(
    run: Run, tmp_path: Path, fresh_name: Fresh
) -> None:
    name, path = fresh_name("buoys"), tmp_path / "buoys.csv"
    rows = "1,2,2020-01-01,0.5,,007\n" * 3 + "1,2,2020-01-01,MM,,008\n"
    path.write_text("lat,lon,time,wvht,gust,id\n" + rows)
    printed = run("ingest", name, str(path), "--create")
    assert (
        "wvht: 3 of 4 values are numbers, 1 is 'MM', so it is text; --missing MM" in printed.stderr
    )
    assert "id: values such as '007' begin with 0, so it is text" in printed.stderr
    assert "not taken from buoys.csv: gust" in printed.stderr
    printed = run("ingest", name, str(path), "--missing", "MM")
    assert "'wvht' are numbers and were stored as texts" in printed.stderr


def test_created_grid_takes_little_room_and_says_what_was_chosen(
    run: Run, tmp_path: Path, fresh_name: Fresh
) -> None:
    time, y, x = (each.ravel() for each in np.indices((4, 60, 80)))
    columns = {
        "latitude": 40 + y * 0.25,
        "longitude": x * 0.25,
        "time": (np.datetime64("2014-03-01T00", "us") + time * np.timedelta64(6, "h")),
        "t2m": np.random.default_rng(1).normal(280, 10, len(time)).astype(np.float32),
    }
    name, path = fresh_name("grid"), tmp_path / "grid.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    printed = run("ingest", name, str(path), "--create")
    [created, *choices, otherwise, stored] = printed.stdout.splitlines()
    assert created.endswith(
        " with blocks of 3 geohash characters and 1h: t2m float32 (not indexed)"
    )
    average = r"a path has (\d+\.\d) of the first 19,200 rows on average"
    patterns = [
        rf"  precision 3: {average}, and 1\.0 with 5",
        rf"  bucket 1h: {average}",
        rf"  index nothing: {average}, and 1\.0 with t2m; conditions and statistics of labels .*",
    ]
    assert all(re.fullmatch(*pair) for pair in zip(patterns, choices, strict=True))
    assert otherwise.endswith("with --precision, --bucket, --index")
    assert stored == "grid.parquet: 19,200 observations stored"
    shown = values(run("dataset", "show", name, "--json"))
    assert shown["bytes"] <= 38 * len(time), "the cluster keeps one copy"
    groups = values(run("aggregate", name, "--mean", "t2m", "--json"))
    mean = float(np.mean(columns["t2m"], dtype=np.float64))
    assert groups["groups"][0]["t2m_mean"] == pytest.approx(mean)
    assert "not indexed" in run("query", name, "t2m > 280", fails=2).stderr
    chosen = values(run("ingest", name + "2", str(path), "--create", "--index", "t2m", "--json"))
    assert [one["option"] for one in chosen["choices"]] == ["precision", "bucket"]
    assert values(run("--json", "count", name + "2", "t2m > 280"))["count"] > 0


def test_rows_without_a_place_are_named_and_create_nothing(
    run: Run, tmp_path: Path, fresh_name: Fresh
) -> None:
    name, path, good = fresh_name("nowhere"), tmp_path / "nowhere.csv", tmp_path / "good.csv"
    path.write_text("lat,lon,time,t\n" + ",2,2020-01-01,1\n" * 4)
    good.write_text("lat,lon,time,t\n1,2,2020-01-01,1\n,2,2020-01-01,1\n")
    assert "4 rows without a latitude" in run("ingest", name, str(path), "--create", fails=2).stderr
    assert "[unknown_dataset]" in run("query", name, fails=2).stderr
    stored = run("ingest", name, str(good), "--create").stdout
    assert "1 observation stored; skipped 1 row without a latitude" in stored
    printed = run("ingest", name, str(path), fails=2)
    assert "0 observations stored; skipped 4 rows without a latitude" in printed.stdout


def test_dialects_and_bad_rows_of_a_csv_file(run: Run, tmp_path: Path, fresh_name: Fresh) -> None:
    name, path, bad = fresh_name("dialects"), tmp_path / "rows.txt", tmp_path / "bad.csv"
    lines = ["Breite;Länge;Zeit;t", "48,1;11,5;01.02.2024 13:00;1.234,5", "48,1;11,5;nie;1", "1;2"]
    path.write_bytes("\n".join(lines).encode("latin-1"))
    options = ["--encoding", "latin-1", "--decimal", ",", "--time-format", "%d.%m.%Y %H:%M"]
    options += ["--map", "latitude=Breite", "--map", "longitude=Länge", "--map", "time=Zeit"]
    options += ["--time-zone", "Europe/Berlin"]
    refused = run("ingest", name, str(path), "--create", "--map", "t=t", *options, fails=2).stderr
    assert f"in line 3 of {path}" in refused or "line 4" in refused
    options += ["--bad-rows", str(bad)]
    printed = run("ingest", name, str(path), "--create", "--map", "t=t", *options)
    assert "1 observation stored" in printed.stdout
    assert f"2 bad rows were left out and written to {bad}" in printed.stderr
    assert [line.split(",")[1] for line in bad.read_text().splitlines()] == ["line", "3", "4"]
    [row] = values(run("read", name, "--json", "--columns", "time,t"))["rows"]
    assert (row["time"], row["t"]) == ("2024-02-01T12:00:00Z", 1234.5)


def test_table_survives_its_own_csv_and_counts_keys(
    run: Run, tmp_path: Path, fresh_name: Fresh
) -> None:
    name, copy = fresh_name("countries"), fresh_name("copied")
    given, exported = tmp_path / "rows.csv", tmp_path / "out.csv"
    for table in (name, copy):
        columns = ["--column", "id:text", "--column", "n:int", "--column", "note:text"]
        run("table", "create", table, *columns, "--key", "id")
    given.write_text('id,n,note\nNA,1,""\n007,NA,NULL\nNA,2," x "\n"a\nb",,\n')
    assert "4 rows, 3 keys stored" in run("table", "upsert", name, str(given)).stdout
    run("table", "show", name, "--output", str(exported))
    assert "3 rows stored" in run("table", "upsert", copy, str(exported)).stdout
    rows = [values(run("table", "show", each, "--json"))["rows"] for each in (name, copy)]
    expected = {"NA": (2, " x "), "007": (None, "NULL"), "a\nb": (None, None)}
    for found in rows:
        assert {row["id"]: (row["n"], row["note"]) for row in found} == expected


def test_pipes_are_read_as_files(run: Run, csv: Path, tmp_path: Path, fresh_name: Fresh) -> None:
    name, pipe = fresh_name("piped"), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(csv.read_bytes()))
    writer.start()
    assert f"{ROWS} observations stored" in run("ingest", name, str(pipe), "--create").stdout
    writer.join()
    assert f"0 new, {ROWS} already stored" in run("ingest", name, str(csv)).stdout


def test_error_names_the_file(run: Run, csv: Path, tmp_path: Path, fresh_name: Fresh) -> None:
    name, other = fresh_name("several"), tmp_path / "other.csv"
    other.write_text("city,location\nBern,1\n")
    refused = run("ingest", name, str(csv), str(other), "--create", fails=2).stderr
    assert f"{other}: found no column for the latitude" in refused


def test_directory_of_parquet_is_resumed_and_names_its_files(
    run: Run, tmp_path: Path, fresh_name: Fresh
) -> None:
    name, root = fresh_name("partitions"), tmp_path / "stations"
    for station in ("A1", "B2"):
        path = root / f"station={station}" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        time = pd.to_datetime(["2020-01-01T06:00Z"] * 3)
        frame = pd.DataFrame({"lat": [40.0] * 3, "lon": [-105.0] * 3, "time": time, "t": range(3)})
        frame.to_parquet(path)
    (root / "_temporary").mkdir()
    (root / "_temporary" / "part-0.parquet").write_text("no Parquet")
    done = run("ingest", name, str(root), "--create", "--index", "t,station").stdout
    for station in ("A1", "B2"):
        assert f"{root}/station={station}/part-0.parquet: 3 observations stored" in done
    assert values(run("--json", "count", name, "station = 'B2'"))["count"] == 3
    again = run("ingest", name, str(root / "station=*" / "*.parquet"))
    assert again.stdout.count("0 new, 3 already stored") == 2
    bad = root / "station=C3" / "part-0.parquet"
    bad.parent.mkdir()
    bad.write_bytes(b"PAR1")
    refused = run("ingest", name, str(root), fails=2)
    assert refused.stdout.count("0 new, 3 already stored") == 2
    assert str(bad) in refused.stderr
    listed = values(run("ingest", str(root / "station=A1"), "--list", "--json"))
    assert [row["variable"] for row in listed] == ["lat", "lon", "time", "t", "station"]
    (tmp_path / "empty").mkdir()
    refused = run("ingest", name, str(tmp_path / "empty"), fails=2)
    assert f"expected a file at {tmp_path}/empty/**/*.parquet, got none" in refused.stderr
    for pattern in ("*.csv", "no.csv"):
        refused = run("ingest", name, str(tmp_path / pattern), fails=2)
        assert f"expected a file at {tmp_path}/{pattern}, got none" in refused.stderr


def test_zarr_store_is_ingested_and_resumed(run: Run, tmp_path: Path, fresh_name: Fresh) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    name, path = fresh_name("grids"), tmp_path / "grid.zarr"
    times = pd.date_range("2020-01-01", periods=4)
    values_of = np.arange(24.0).reshape(4, 2, 3)
    xarray.Dataset(
        {"t": (("time", "lat", "lon"), values_of, {"units": "K"})},
        {"time": times, "lat": [1.0, 2.0], "lon": [3.0, 4.0, 5.0]},
    ).to_zarr(path, consolidated=False)
    assert "24 observations stored" in run("ingest", name, str(path), "--create").stdout
    assert values(run("--json", "count", name, "t > 11.5"))["count"] == 12
    moved = path.rename(tmp_path / "moved.zarr")
    assert "0 new, 24 already stored" in run("ingest", name, str(moved)).stdout
    listed = values(run("ingest", str(moved), "--list", "--json"))
    assert [row["variable"] for row in listed] == ["lat", "lon", "time", "t"]


def test_ingest_list_shows_a_file_without_places(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nowhere.csv"
    path.write_text("when,wind\n2020-01-01,3.5\n")
    listed = run("ingest", str(path), "--list", "--json")
    assert [row["variable"] for row in values(listed)] == ["when", "wind"]
    assert "found no column for the latitude" in listed.stderr


def test_ingest_list_shows_variables_of_a_file(run: Run, csv: Path) -> None:
    listed = values(run("ingest", "any", str(csv), "--list", "--json"))
    by_name = {one["variable"]: one for one in listed}
    assert by_name["temperature"]["becomes"] == "temperature"
    assert by_name["temperature"]["type"] == "float"
    assert len(by_name["temperature"]["sample"]) == 3
    assert [by_name[name]["becomes"] for name in ("latitude", "time")] == ["latitude", "time"]
    filtered = values(run("ingest", str(csv), "--list", "--filter", "WIND", "--json"))
    assert [one["variable"] for one in filtered] == ["wind_speed"]
    shown = run("ingest", "any", str(csv), "--list").stdout
    assert "wind_speed" in shown
    assert shown.split()[:4] == ["variable", "becomes", "type", "sample"], "one file needs no name"


def test_ingest_warns_of_sentinel_values(run: Run, fresh_name: Fresh, tmp_path: Path) -> None:
    file = tmp_path / "tower.csv"
    rows = [f"40,-105,2014-03-01T0{n}:00Z,{-9999 if n % 2 else n}" for n in range(8)]
    file.write_text("\n".join(["latitude,longitude,time,temp", *rows, ""]))
    warned = run("ingest", fresh_name("tower"), str(file), "--create").stderr
    assert warned.startswith("galileo: variable 'temp' is -9999 in 4 of 8 rows")
    assert "--missing -9999\n" in warned
    silent = run("ingest", fresh_name("tower"), str(file), "--create", "--missing", "-9999")
    assert silent.stderr == ""


def test_ingest_with_constants_of_position(run: Run, tmp_path: Path, fresh_name: Fresh) -> None:
    name, station = fresh_name("station"), tmp_path / "station.csv"
    station.write_text("time,temp\n2014-03-01T06:00Z,278\n2014-03-02T06:00Z,-9999\n")
    mapped = ["--map", "t=temp + 0.5", "--map", 'station="A12"', "--missing", "-9999"]
    failed = run("ingest", name, str(station), "--create", *mapped, fails=2).stderr
    assert "--map latitude=COLUMN" in failed
    place = ["--map", "latitude=39.1", "--map", "longitude=-105.5"]
    stored = values(run("ingest", name, str(station), "--create", *mapped, *place, "--json"))
    assert (stored["rows"], stored["skipped"], stored["created"]) == (1, 1, True)
    [row] = values(run("read", name, "--json"))["rows"]
    assert (row["t"], row["station"], row["latitude"]) == (278.5, "A12", 39.1)


def test_ingest_of_many_features_names_the_unindexed(
    run: Run, tmp_path: Path, fresh_name: Fresh
) -> None:
    wide, names = tmp_path / "wide.csv", [f"v{number}" for number in range(40)]
    row = ",".join(["1,2,2014-03-01", *map(str, range(40))])
    wide.write_text(f"lat,lon,time,{','.join(names)}\n{row}\n")
    done = run("ingest", fresh_name("wide"), str(wide), "--create")
    assert "  index v0, v1, v2, " in done.stdout
    assert "only the first 32 of 40 features are indexed" in done.stdout
    chosen = fresh_name("wide")
    done = run("ingest", chosen, str(wide), "--create", "--index", "v39, v0")
    assert "  index" not in done.stdout
    features = values(run("dataset", "show", chosen, "--json"))["features"]
    assert [one["name"] for one in features if one["indexed"]] == ["v0", "v39"]
    wrong = run("ingest", chosen + "2", str(wide), "--create", "--index", "v40", fails=2).stderr
    assert "there is no feature 'v40' to index" in wrong


# --- query and read ------------------------------------------------------------------------------


def test_query_with_limit_counts_all_labels(run: Run, dataset: str) -> None:
    shown = run("query", dataset, "temperature > 290", "--limit", "3").stdout
    assert f"{WARM} labels, the first 3 shown" in shown
    assert shown.count("2014-03-01") == 3
    assert "partial" not in shown


def test_query_without_matches_prints_no_labels(run: Run, dataset: str) -> None:
    assert "0 labels" in run("query", dataset, "temperature > 1000").stdout
    assert values(run("query", dataset, "temperature > 1000", "--json"))["labels"] == []


READERS: dict[str, Callable[[str], Any]] = {
    ".csv": pyarrow.csv.read_csv,
    ".parquet": pyarrow.parquet.read_table,
    ".arrow": pyarrow.feather.read_table,
}


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("command", ["query", "read"])
def test_query_and_read_write_files(
    run: Run, dataset: str, tmp_path: Path, suffix: str, command: str
) -> None:
    path = tmp_path / f"warm{suffix}"
    actual = run(command, dataset, "temperature > 290", "--output", str(path)).stdout
    assert (
        f"{WARM} {'labels' if command == 'query' else 'observations'} written to {path}" in actual
    )
    table = READERS[suffix](str(path))
    assert table.num_rows == WARM
    assert min(table.column("temperature").to_pylist()) > 290
    written = values(run(command, dataset, "--output", str(path), "--json"))
    assert written["file"] == str(path)
    assert READERS[suffix](str(path)).num_rows == written.get("rows", written.get("labels"))


@pytest.mark.parametrize("command", ["query", "read"])
def test_query_and_read_write_lines_to_standard_output(
    run: Run, dataset: str, command: str
) -> None:
    done = run(command, dataset, "temperature > 290", "--output", "-")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == WARM
    assert min(row["temperature"] for row in rows) > 290
    assert f"{WARM} " in done.stderr
    comma = run(command, dataset, "temperature > 290", "--output", "-", "--format", "csv")
    assert len(comma.stdout.splitlines()) == WARM + 1


def test_read_prints_observations_and_their_number(run: Run, dataset: str) -> None:
    shown = run("read", dataset, "temperature > 290", "--limit", "2").stdout
    assert "2 observations shown; there are more, which --all shows" in shown
    assert shown.count("2014-03-01") == 2
    assert f"\n{WARM} observations" in run("read", dataset, "temperature > 290", "--all").stdout
    assert "20 observations shown; there are more" in run("read", dataset).stdout
    rows = values(run("read", dataset, "temperature > 290", "--json"))["rows"]
    expected = frame()[frame()["temperature"] > 290]
    assert sorted(row["temperature"] for row in rows) == sorted(expected["temperature"])
    assert {row["time"] for row in rows} == set(expected["time"])


@pytest.mark.parametrize("more", [(), ("--whole-blocks",)])
def test_read_with_limit_columns_and_order(run: Run, dataset: str, more: tuple[str, ...]) -> None:
    words = ("read", dataset, "--columns", "time, temperature", "--order-by", "-time", "--json")
    actual = values(run(*words, "--limit", "5", *more))
    assert (actual["more"], actual["complete"], actual["missing"]) == (True, True, [])
    assert [list(row) for row in actual["rows"]] == [["time", "temperature"]] * 5
    expected = sorted(frame()["time"], reverse=True)[:5]
    assert [row["time"] for row in actual["rows"]] == expected
    nothing = values(run(*words, "--limit", "0", *more))
    assert (nothing["rows"], nothing["more"]) == ([], True)
    everything = values(run(*words, *more))
    assert (len(everything["rows"]), everything["more"]) == (ROWS, False)


def test_read_with_limit_and_order_writes_a_file(run: Run, dataset: str, tmp_path: Path) -> None:
    path = tmp_path / "first.parquet"
    words = ("--order-by", "time", "--limit", "7", "--columns", "time,wind_speed")
    run("read", dataset, *words, "--output", str(path))
    table = pyarrow.parquet.read_table(path)
    assert table.column_names == ["time", "wind_speed"]
    times = [f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in table.column("time").to_pylist()]
    assert times == sorted(frame()["time"])[:7]


def test_count_prints_the_exact_number(run: Run, dataset: str) -> None:
    assert run("count", dataset, "temperature > 290").stdout == f"{WARM}\n"
    assert values(run("count", dataset, "--json")) == {"count": ROWS}


def test_query_with_wide_shows_partitions(run: Run, dataset: str) -> None:
    assert "partition" not in run("query", dataset, "--limit", "1").stdout
    assert "partition" in run("query", dataset, "--limit", "1", "--wide").stdout
    assert len(values(run("query", dataset, "--limit", "4", "--json"))["labels"]) == 4


def test_read_whole_blocks_returns_more_rows(run: Run, dataset: str) -> None:
    query = "S_INTERSECTS(geometry, BBOX(-100, 30, -90, 40))"
    exact = values(run("read", dataset, query, "--json"))["rows"]
    whole = values(run("read", dataset, query, "--whole-blocks", "--json"))["rows"]
    assert 0 < len(exact) < len(whole)


# --- explore -------------------------------------------------------------------------------------


def test_sparql_selects_asks_and_constructs_triples(run: Run, dataset: str) -> None:
    count = "SELECT (COUNT(?p) AS ?n) WHERE { ?p f:temperature ?t }"
    warm = ["--query", "temperature > 290"]
    assert values(run("sparql", dataset, count, *warm, "--json")) == [{"n": WARM}]
    assert str(WARM) in run("sparql", dataset, count, *warm).stdout.split()
    ask = "ASK { ?p f:temperature ?t FILTER(?t > 1000) }"
    actual = {"boolean": False, "complete": True, "missing": []}
    assert values(run("sparql", dataset, ask, "--json")) == actual
    assert run("sparql", dataset, ask).stdout == "no\n"
    triples = "CONSTRUCT { ?p f:temperature ?t } WHERE { ?p f:temperature ?t }"
    assert len(values(run("sparql", dataset, triples, *warm, "--json"))["ntriples"]) > 100
    assert "No solutions." in run("sparql", dataset, "SELECT ?p WHERE { ?p f:no ?x }").stdout


# --- the cluster ---------------------------------------------------------------------------------


def test_status_prints_every_node(run: Run, cluster: galileo.LocalCluster, dataset: str) -> None:
    found = values(run("status", "--json"))
    assert found["complete"] is True
    assert {node["name"]: node["pid"] for node in found["nodes"]} == {
        node.name: node.pid for node in cluster.nodes
    }
    stored = [one for node in found["nodes"] for one in node["datasets"]]
    assert sum(one["rows"] for one in stored if one["dataset"] == dataset) == ROWS
    shown = run("status").stdout
    assert all(node.address in shown for node in cluster.nodes)


def test_topology_prints_groups_and_ranges(run: Run, cluster: galileo.LocalCluster) -> None:
    found = values(run("topology", "--json"))
    assert [group["name"] for group in found["groups"]] == ["group-1", "group-2"]
    shown = run("topology").stdout
    assert "0 2 4 6 8 b d f h k n q s u w y" in shown
    assert all(address in shown for address in cluster.addresses)


def test_topology_suggest_cuts_ranges_for_the_stored_data(run: Run, dataset: str) -> None:
    found = values(run("topology", "suggest", "--dataset", dataset, "--groups", "2", "--json"))
    assert found["observations"] == ROWS
    assert found["complete"] is True
    assert [group for _, group in found["ranges"]] == [0, 1]
    assert 1.0 <= found["suggested"] <= found["present"]
    shown = run("topology", "suggest", "--dataset", dataset).stdout
    table = tomllib.loads(shown)["cluster"]
    assert table == {"ranges": found["ranges"]}
    assert "galileo topology cut" in shown


def test_topology_cut_invalid_files_are_refused(
    run: Run, cluster: galileo.LocalCluster, tmp_path: Path
) -> None:
    def ranges() -> object:
        return json.loads(cluster.client().topology_json())["ranges"]

    file, before = tmp_path / "ranges.json", ranges()
    for text in ("{}", "[1]", '[["", 7]]', '[["", "north"]]', '[["9", 0]]', "no JSON"):
        file.write_text(text)
        run("topology", "cut", str(file), fails=2)
    assert ranges() == before


def test_node_address_from_the_environment_is_used(cluster: galileo.LocalCluster) -> None:
    environment = {"GALILEO_NODE": " ".join(cluster.addresses)}
    done = CliRunner().invoke(main, ["status", "--json"], env=environment)
    assert done.exit_code == 0
    assert values(done)["complete"] is True


# --- continuous queries --------------------------------------------------------------------------


def test_ccq_commands_submit_list_fetch_and_cancel(run: Run, dataset: str) -> None:
    made = values(
        run(
            "ccq",
            "submit",
            dataset,
            "temperature > 290",
            "--interval",
            "1h",
            "--expiration",
            "2h",
            "--json",
        )
    )
    assert (made["labels"], made["complete"]) == (WARM, True)
    listed = values(run("ccq", "list", "--json"))
    assert [one["dataset"] for one in listed if one["id"] == made["id"]] == [dataset]
    assert made["id"] in run("ccq", "list").stdout
    news = values(run("ccq", "fetch", made["id"], "--token", made["token"], "--json"))
    assert (news["labels"], news["token"], news["more"]) == ([], made["token"], False)
    assert "0 labels" in run("ccq", "fetch", made["id"], "--token", made["token"]).stdout
    assert f"cancelled {made['id']}" in run("ccq", "cancel", made["id"]).stdout
    over = run("ccq", "fetch", made["id"], fails=4)
    assert "[ccq_cancelled]" in over.stderr


# --- what goes wrong -----------------------------------------------------------------------------


def test_error_as_json_has_kind_and_message_of_the_text(run: Run, dataset: str) -> None:
    words = ["query", dataset, "temprature > 3"]
    text = run(*words, fails=2)
    assert text.stdout == ""
    for placed in ([*words, "--json"], ["--json", *words]):
        error = json.loads(run(*placed, fails=2).stderr)["error"]
        assert (error["kind"], error["details"]["nearest"]) == ("unknown_property", "temperature")
        assert f"galileo: {error['message']} [{error['kind']}]\n" == text.stderr


def test_command_without_a_reachable_node_exits_with_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    words = ["--node", address, "--timeout", "100ms", "status", "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 3
    error = json.loads(done.stderr)["error"]
    assert error["kind"] == "unavailable"
    assert error["details"]["addresses"] == [address]


@pytest.mark.parametrize(
    ("branch", "status"),
    [
        (errors.InputError, 2),
        (errors.TransientError, 3),
        (errors.TerminalError, 4),
        (errors.InternalError, 70),
        (errors.NotOwner, 1),
    ],
)
def test_exit_status_follows_the_branch_of_the_error(
    branch: type[errors.GalileoError], status: int
) -> None:
    family = [cls for cls in errors.by_kind().values() if issubclass(cls, branch)]
    own = {errors.IncompleteAnswer: 5}
    assert {cls: exit_status(cls("x")) for cls in family} == {
        cls: own.get(cls, status) for cls in family
    }


# --- a cluster of one's own ----------------------------------------------------------------------


def test_up_runs_a_cluster_until_interrupted(tmp_path: Path) -> None:
    [port] = free_ports(1)
    words = ["up", "--nodes", "1", "--groups", "1", "--port", str(port), "--json"]
    words += ["--set", "limits.ccqs_max=7", "--set", "samplers.uploads=sandboxed"]
    with subprocess.Popen(
        [sys.executable, "-m", "galileo", *words, "--directory", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        actual = json.loads(process.stdout.readline())
        assert actual["addresses"] == [f"127.0.0.1:{port}"]
        with galileo.connect(*actual["addresses"]) as client:
            assert client.status().complete
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert (tmp_path / "data" / "node-1").is_dir(), "its data stays"
    written = load(tmp_path / "data" / "node-1.toml", environment={})
    assert (written.limits.ccqs_max, written.samplers.uploads) == (7, "sandboxed")


@pytest.mark.parametrize("text", ["uploads", "samplers.uploads", "cluster.name=x"])
def test_up_with_an_invalid_setting_is_refused(text: str) -> None:
    done = CliRunner().invoke(main, ["up", "--set", text])
    assert done.exit_code == 2
    assert "expected section.key=value" in done.stderr
