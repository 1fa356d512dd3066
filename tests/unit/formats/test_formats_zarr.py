"""Zarr stores give the rows that xarray gives, in blocks, or an error that says what is wrong."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from expected_errors import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.formats import GridOptions, Mapping, detection, open_source, suggest_schema
from galileo.formats.netcdf import read_dataset, windows
from galileo.formats.netcdf_grid import CoordinateGrid
from galileo.formats.subprocess_reader import ReaderPool
from galileo.formats.zarr import open_zarr

zarr = pytest.importorskip("zarr")
VERSIONS = pytest.mark.parametrize("version", [2, 3])
PACKED = {"t": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1, "chunks": (2, 2, 3)}}


def grid(times: int = 5, rows: int = 3, columns: int = 4) -> xr.Dataset:
    shape, dims = (times, rows, columns), ("time", "lat", "lon")
    numbers = np.arange(float(np.prod(shape))).reshape(shape)
    about = {"units": "K", "standard_name": "air_temperature"}
    return xr.Dataset(
        {
            "t": (dims, np.where(numbers % 7 == 3, np.nan, numbers / 2), about),
            "n": (dims, numbers.astype("i8")),
            "f": (dims, numbers.astype("f4")),
        },
        {
            "time": pd.date_range("2020-01-01T06", periods=times, freq="6h"),
            "lat": np.linspace(10, 20, rows),
            "lon": np.linspace(-5, 5, columns),
        },
    )


def write(dataset: xr.Dataset, path: Path, version: int = 3, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of parts that the specification does not fix yet.
        store = zarr.storage.ZipStore(path, mode="w") if path.suffix == ".zip" else path
        dataset.to_zarr(store, zarr_format=version, consolidated=False, **options)
        if path.suffix == ".zip":
            store.close()
    return path


def rows(path: Path, **mapping: Any) -> pd.DataFrame:
    source = open_source(path, mapping=Mapping(**mapping))
    return in_order(pa.concat_tables(source.batches()).to_pandas())


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["time", "latitude", "longitude"], ignore_index=True)


def expected(dataset: xr.Dataset) -> pd.DataFrame:
    frame = dataset.to_dataframe().reset_index()
    frame = frame.rename(columns={"lat": "latitude", "lon": "longitude"})
    frame["time"] = frame["time"].dt.tz_localize("UTC").astype("datetime64[us, UTC]")
    return in_order(frame[["latitude", "longitude", "time", *sorted(dataset.data_vars)]])


def same(read: pd.DataFrame, frame: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)


@VERSIONS
@pytest.mark.parametrize("name", ["x.zarr", "store", "x.zarr.zip"])
def test_zarr_gives_the_rows_of_xarray(tmp_path: Path, version: int, name: str) -> None:
    path = write(grid(), tmp_path / name, version, encoding=PACKED)
    source = open_source(path)
    assert (source.format, source.rows) == ("zarr", 60)
    schema = suggest_schema(source, "x")
    described = {f.name: (f.type, f.unit, f.standard_name) for f in schema.features}
    assert described["t"] == ("float", "K", "air_temperature")
    assert [(described[n][0]) for n in ("n", "f")] == ["int", "float32"]
    same(rows(path), expected(grid()))


@pytest.mark.parametrize("slab", [1, 5, 24, 50, 1000])
def test_zarr_in_blocks_of_chunks_gives_each_row_once(tmp_path: Path, slab: int) -> None:
    path = write(grid(), tmp_path / "x.zarr", encoding=PACKED)
    reader = open_zarr(path, Mapping(), slab_values_max=slab)
    tables = list(reader.scan(["time", "lat", "lon", "t"]))
    assert max(table.num_rows for table in tables) <= max(1, slab)
    frame = pa.concat_tables(tables).to_pandas()
    frame = frame.rename(columns={"lat": "latitude", "lon": "longitude"})
    same(
        in_order(frame)[["latitude", "longitude", "t"]],
        expected(grid())[["latitude", "longitude", "t"]],
    )


def test_zarr_reads_each_chunk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = grid(times=24, rows=8, columns=8)[["f"]]
    path = write(dataset, tmp_path / "x.zarr", encoding={"f": {"chunks": (24, 2, 2)}})
    gets: list[str] = []
    usual = zarr.storage.LocalStore.get

    async def get(self: Any, key: str, *args: Any, **options: Any) -> Any:
        gets.append(key)
        return await usual(self, key, *args, **options)

    monkeypatch.setattr(zarr.storage.LocalStore, "get", get)
    reader = open_zarr(path, Mapping(), slab_values_max=24 * 4 * 2)
    assert sum(table.num_rows for table in reader.scan(["f"])) == 24 * 64
    chunks = [key for key in gets if key.startswith("f/c/")]
    assert len(chunks) == len(set(chunks)) == 16


def test_zarr_texts_levels_members_and_groups(tmp_path: Path) -> None:
    stations = xr.Dataset(
        {"t": (("station", "time"), [[1.0, 2.0], [3.0, np.nan]])},
        {
            "time": ("time", pd.date_range("2020-01-01", periods=2)),
            "lat": ("station", [1.0, 2.0]),
            "lon": ("station", [3.0, 4.0]),
            "name": ("station", np.array(["a", "Zürich"], object), {"cf_role": "timeseries_id"}),
        },
        {"featureType": "timeSeries"},
    )
    path = write(stations, tmp_path / "stations.zarr")
    frame = rows(path)
    assert frame[["t", "name"]].to_numpy().tolist() == [[1.0, "a"], [3.0, "Zürich"], [2.0, "a"]]

    levels = grid()[["t"]].expand_dims(level=[850.0, 500.0])
    path = write(levels, tmp_path / "levels.zarr", encoding={})
    assert len(rows(path, grid=GridOptions(rows=["level"]))) == np.isfinite(levels.t).sum()
    assert [info.name for info in open_source(path).variables()] == [
        "t@level:850",
        "t@level:500",
    ]

    path = write(grid()[["t"]], tmp_path / "groups.zarr", group="a/b")
    write(grid()[["n"]], path, group="c")
    with raises(InputError, expected="group"):
        open_source(path)
    assert len(rows(path, grid=GridOptions(group="c"))) == 60


def test_zarr_in_memory_gives_the_same_rows(tmp_path: Path) -> None:
    path = write(grid(), tmp_path / "x.zarr", encoding=PACKED)
    with xr.open_zarr(path, consolidated=False, chunks=None) as dataset:
        [table] = read_dataset(dataset, Mapping()).scan(["t", "n"])
    [file] = open_zarr(path, Mapping()).scan(["t", "n"])
    assert repr(table.to_pydict()) == repr(file.to_pydict())


def test_digest_of_a_store_is_that_of_its_content(tmp_path: Path) -> None:
    path = write(grid(), tmp_path / "x.zarr")
    digest = open_source(path).digest()
    moved = path.rename(tmp_path / "y.zarr")
    assert open_source(moved).digest() == digest
    chunk = next(moved.glob("t/c/**/0"))
    chunk.rename(chunk.with_name("9"))
    assert open_source(moved).digest() != digest


# --- wrong ones -------------------------------------------------------------------------------


def edited(path: Path, name: str, **values: Any) -> None:
    document = path / name / "zarr.json"
    about = json.loads(document.read_text())
    document.write_text(json.dumps(about | values))


@pytest.mark.parametrize(
    ("filters", "expected"), [(["vlen-utf8", "pickle"], "filters"), (["pickle"], "whole_file")]
)
def test_filter_that_can_run_code_is_refused(
    tmp_path: Path, filters: list[str], expected: str
) -> None:
    path = write(grid()[["t"]], tmp_path / "x.zarr", version=2)
    document = path / "t" / ".zarray"
    texts = {"dtype": "|O", "fill_value": None, "filters": [{"id": one} for one in filters]}
    document.write_text(json.dumps(json.loads(document.read_text()) | texts))
    with raises(InputError, expected=expected):
        open_source(path)


@pytest.mark.parametrize("version", [2, 3])
def test_damaged_store_is_refused(tmp_path: Path, version: int) -> None:
    path = write(grid()[["t"]], tmp_path / "x.zarr", version)
    for chunk in [file for file in (path / "t").rglob("*") if file.name[0].isdigit()]:
        if chunk.is_file():
            chunk.write_bytes(b"\xff" * 9)
    with raises(InputError, expected="whole_file", format="Zarr"):
        rows(path)
    for name in ("zarr.json", ".zgroup"):
        if (path / name).exists():
            (path / name).write_text("{")
    with raises(InputError, expected="whole_file", format="Zarr"):
        open_source(path)


def test_other_directories_and_archives_are_refused(tmp_path: Path) -> None:
    archive = tmp_path / "x.zip"
    archive.write_bytes(b"PK\5\6" + bytes(18))
    with raises(InputError, expected="whole_file", format="Zarr"):
        open_source(archive)
    (tmp_path / "empty").mkdir()
    with raises(InputError, expected="file"):
        open_source(tmp_path / "empty")
    path = tmp_path / "array.zarr"
    zarr.create_array(path, shape=(2,), dtype="f4")
    with raises(InputError, expected="whole_file", format="Zarr"):
        open_source(path)
    path = write(xr.Dataset({"t": ("x", [1.0])}), tmp_path / "nowhere.zarr")
    with raises(InputError, expected="coordinate"):
        open_source(path)


def test_array_without_names_of_dimensions_is_refused(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("t", shape=(2,), dtype="f4")
    with raises(InputError, expected="whole_file", format="Zarr"):
        open_source(tmp_path / "x.zarr")


@pytest.mark.slow
def test_coordinate_that_claims_more_than_memory_ends_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(grid()[["t"]], tmp_path / "x.zarr")
    edited(path, "lat", shape=[1 << 30])
    about = json.loads((path / "t" / "zarr.json").read_text())
    edited(path, "t", shape=[5, 1 << 30, 4], **{"chunk_grid": about["chunk_grid"]})
    pool = ReaderPool(memory_bytes_max=2 << 30)
    monkeypatch.setitem(detection.READERS, "zarr", detection.Format("Zarr", pool.opener("zarr")))
    with raises(InputError, expected="readable_file"):
        next(iter(open_source(path, format="zarr").batches()))


# --- windows and random stores ----------------------------------------------------------------


def slow_windows(shape: tuple[int, ...], rows_max: int) -> Iterator[np.ndarray[Any, Any]]:
    """The windows of a grid without chunks, row after row."""
    axis = 0
    while axis < len(shape) - 1 and np.prod(shape[axis + 1 :]) > rows_max:
        axis += 1
    tail = int(np.prod(shape[axis + 1 :]))
    every = np.arange(int(np.prod(shape))).reshape(-1, shape[axis] * tail)
    step = max(1, rows_max // max(1, tail)) * max(tail, 1)
    for part in every:
        for start in range(0, len(part), step):
            yield part[start : start + step]


SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def cut(shape: tuple[int, ...], **options: Any) -> list[np.ndarray[Any, Any]]:
    dims = tuple("abcd"[: len(shape)])
    grid = CoordinateGrid("a", "b", "c", None, dims, shape, dims)
    every = np.arange(int(np.prod(shape))).reshape(shape)
    return [every[tuple(window.values())] for window in windows(grid, **options)]


@given(SHAPES, st.integers(1, 60))
def test_windows_without_chunks_are_consecutive_rows(sizes: list[int], rows_max: int) -> None:
    parts = [part.ravel().tolist() for part in cut(tuple(sizes), rows_max=rows_max)]
    assert parts == [part.tolist() for part in slow_windows(tuple(sizes), rows_max)]


@given(SHAPES, st.integers(1, 60), st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_windows_have_each_row_once_and_whole_chunks(
    sizes: list[int], rows_max: int, chunk: list[int]
) -> None:
    chunks = dict(zip("abcd", chunk, strict=True))
    parts = cut(tuple(sizes), rows_max=rows_max, chunks=chunks)
    assert sorted(np.concatenate([part.ravel() for part in parts])) == [*range(np.prod(sizes))]
    assert max(part.size for part in parts) <= rows_max
    fitting = [min(size, of) for size, of in zip(sizes, chunk, strict=False)]
    if np.prod(fitting) <= rows_max:
        every = np.arange(np.prod(sizes)).reshape(sizes)
        places = [np.argwhere(every == part.ravel()[0])[0] for part in parts]
        assert all((place % fitting == 0).all() for place in places)


def test_windows_of_an_empty_grid_have_no_rows() -> None:
    assert cut((0, 3), rows_max=5) == []


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from([2, 3]),
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_stores_give_the_rows_of_xarray(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, int, int],
    chunks: tuple[int, int, int],
    version: int,
    seed: int,
    slab: int,
) -> None:
    chance = np.random.default_rng(seed)
    dataset = grid(*shape)
    values = chance.normal(size=shape)
    dataset["t"] = (dataset.t.dims, np.where(chance.random(shape) < 0.3, np.nan, values))
    chunks = tuple(min(pair) for pair in zip(shape, chunks, strict=True))  # type: ignore[assignment]
    path = tmp_path_factory.mktemp("stores") / "x.zarr"
    write(dataset, path, version, encoding={name: {"chunks": chunks} for name in ("t", "n")})
    reader = open_zarr(path, Mapping(), slab_values_max=slab)
    tables = list(reader.scan(["time", "lat", "lon", "t", "n", "f"]))
    frame = pa.concat_tables(tables).to_pandas()
    frame = frame.rename(columns={"lat": "latitude", "lon": "longitude"})
    frame["time"] = frame["time"].dt.as_unit("us")
    names = ["latitude", "longitude", "time", "t", "n", "f"]
    same(in_order(frame)[names], expected(dataset)[names])
