"""Files read by a process of their own: the same values, and every end of it is an error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected_errors import raises

from galileo.errors import InputError, MissingExtra
from galileo.formats import detection
from galileo.formats.detection import open_source
from galileo.formats.grib import open_grib
from galileo.formats.grid_options import GridOptions
from galileo.formats.mapping import Mapping
from galileo.formats.netcdf import open_netcdf
from galileo.formats.reader import Reader
from galileo.formats.subprocess_reader import ReaderPool
from galileo.formats.zarr import open_zarr

xarray = pytest.importorskip("xarray")
netCDF4 = pytest.importorskip("netCDF4")
pytest.importorskip("pyproj")  # Before ecCodes; see `galileo.optional_imports`.
eccodes = pytest.importorskip("eccodes")

EMPTY = Mapping()


@pytest.fixture(scope="module")
def readers() -> Iterator[ReaderPool]:
    made = ReaderPool(memory_bytes_max=2 << 30, timeout_s=60)
    yield made
    made.acquire().end()


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    path = tmp_path / "w.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, values in (("time", [0.0, 6.0]), ("lat", [40.0, 41.0]), ("lon", [1.0, 2.0])):
            file.createDimension(name, len(values))
            file.createVariable(name, "f8", (name,))[:] = values
        file["time"].units = "hours since 2014-03-01"
        file["lat"].units, file["lon"].units = "degrees_north", "degrees_east"
        for name in ("t", "q"):
            file.createVariable(name, "f4", ("time", "lat", "lon"))[:] = np.arange(8).reshape(
                2, 2, 2
            )
    return path


@pytest.fixture
def field(tmp_path: Path) -> Path:
    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    path = tmp_path / "f.grib2"
    try:
        path.write_bytes(eccodes.codes_get_message(handle))
    finally:
        eccodes.codes_release(handle)
    return path


def all_of(reader: Reader) -> list[Any]:
    names = [one.name for one in reader.variables()]
    scanned = list(reader.scan([*reader.coordinates.roles, *names]))
    return [reader.rows, list(reader.variables()), reader.coordinates, *scanned]


def test_subprocess_reader_values_equal_direct_reader(
    readers: ReaderPool, weather: Path, field: Path
) -> None:
    netcdf = readers.opener("netcdf")(weather, EMPTY)
    assert all_of(netcdf) == all_of(open_netcdf(weather, EMPTY))
    grib = readers.opener("grib")(field, EMPTY)
    assert all_of(grib) == all_of(open_grib(field, EMPTY))
    assert all_of(netcdf) == all_of(open_netcdf(weather, EMPTY)), "after another file"
    with xarray.open_dataset(weather, decode_cf=False) as dataset:
        dataset.to_zarr(weather.with_suffix(".zarr"), consolidated=False)
    store = weather.with_suffix(".zarr")
    assert all_of(readers.opener("zarr")(store, EMPTY)) == all_of(open_zarr(store, EMPTY))
    grid = Mapping(grid=GridOptions(rows=["lat"], group="/"))
    assert all_of(readers.opener("netcdf")(weather, grid)) == all_of(open_netcdf(weather, grid))


def test_reader_pool_reuses_a_process(readers: ReaderPool, weather: Path, field: Path) -> None:
    first = readers.acquire()
    readers.release(first)
    all_of(readers.opener("netcdf")(weather, EMPTY))
    all_of(readers.opener("grib")(field, EMPTY))
    again = readers.acquire()
    readers.release(again)
    assert again is first


def test_reader_pool_reads_relative_paths_after_a_change_of_directory(
    readers: ReaderPool, weather: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = readers.opener("netcdf")
    assert opened(weather, EMPTY).variables()
    monkeypatch.chdir(weather.parent)
    assert opened(Path(weather.name), EMPTY).variables()


@pytest.mark.slow
def test_reader_pool_interleaved_files_are_read(readers: ReaderPool, weather: Path) -> None:
    one, other = (readers.opener("netcdf")(weather, EMPTY) for _ in range(2))
    expected = list(open_netcdf(weather, EMPTY).scan(["t"]))
    begun = one.scan(["t"])
    first = next(begun)
    assert list(other.scan(["t"])) == expected
    assert [first, *begun] == expected
    unfinished = one.scan(["t"])
    next(unfinished)
    del unfinished
    assert list(one.scan(["t"])) == expected


def readers_with(
    monkeypatch: pytest.MonkeyPatch, directory: Path, *, module: str, code: str
) -> ReaderPool:
    """Readers whose processes find other code where a library is."""
    directory.mkdir()
    (directory / f"{module}.py").write_text(code)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    )
    return ReaderPool(timeout_s=60)


@pytest.mark.slow
def test_subprocess_reader_native_crash_raises_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: Path
) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    readers = readers_with(monkeypatch, tmp_path / "x", module="eccodes", code=code)
    with raises(InputError, expected="readable_file"):
        readers.opener("grib")(field, EMPTY)
    monkeypatch.undo()
    all_of(readers.opener("grib")(field, EMPTY))
    readers.acquire().end()


def test_subprocess_reader_library_output_is_not_in_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: Path
) -> None:
    code = "import os; os.write(1, b'noise'); raise ImportError('hidden')"
    readers = readers_with(monkeypatch, tmp_path / "x", module="eccodes", code=code)
    with raises(MissingExtra, package="eccodes", extra="formats"):
        readers.opener("grib")(field, EMPTY)
    readers.acquire().end()


@pytest.mark.slow
def test_subprocess_reader_stopped_process_raises_input_error(weather: Path) -> None:
    readers = ReaderPool()
    source = readers.opener("netcdf")(weather, EMPTY)
    process = readers.acquire()
    process._socket.settimeout(0.5)
    os.kill(process._child.pid, signal.SIGSTOP)
    readers.release(process)
    with raises(InputError, expected="readable_file"):
        list(source.scan(["t"]))
    assert process._child.wait(60) == -signal.SIGKILL


@pytest.mark.slow
def test_subprocess_reader_too_much_memory_raises_input_error(tmp_path: Path) -> None:
    path = tmp_path / "large.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, size in (("lat", 6_000), ("lon", 6_000)):
            file.createDimension(name, size)
            file.createVariable(name, "f8", (name,), zlib=True)[:] = np.linspace(-80, 80, size)
        file["lat"].units, file["lon"].units = "degrees_north", "degrees_east"
        file.createVariable("t", "f4", ("lat", "lon"), zlib=True, fill_value=0.0)
    mapping = Mapping(constant_time="2014-03-01T00:00:00Z")
    readers = ReaderPool(memory_bytes_max=400 << 20)
    try:
        with raises(InputError, expected="readable_file"):
            all_of(readers.opener("netcdf")(path, mapping))
    finally:
        readers.acquire().end()


def test_subprocess_reader_refusal_keeps_class_and_message(
    readers: ReaderPool, tmp_path: Path
) -> None:
    path = tmp_path / "x.grib"
    path.write_bytes(b"no messages")
    with raises(InputError, expected="messages"):
        readers.opener("grib")(path, EMPTY)
    with pytest.raises(FileNotFoundError):
        readers.opener("grib")(tmp_path / "none.grib", EMPTY)


@pytest.mark.parametrize(
    ("name", "start", "module"), [("x.grib", b"GRIB", "eccodes"), ("x.nc", b"CDF\x01", "xarray")]
)
def test_subprocess_reader_missing_extra_raises_with_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, start: bytes, module: str
) -> None:
    path = tmp_path / name
    path.write_bytes(start)
    code = "raise ImportError('hidden')"
    readers = readers_with(monkeypatch, tmp_path / "hidden", module=module, code=code)
    for format in ("grib", "netcdf"):
        known = replace(detection.READERS[format], open=readers.opener(format))
        monkeypatch.setitem(detection.READERS, format, known)
    with raises(MissingExtra, extra="formats", package=module):
        open_source(path)
    readers.acquire().end()


@pytest.mark.slow
def test_reader_worker_orphaned_in_read_ends(tmp_path: Path) -> None:
    path = tmp_path / "a fifo without a writer"
    os.mkfifo(path)
    request = {"path": str(path), "format": "grib", "mapping": asdict(EMPTY)}
    command = [sys.executable, "-P", "-m", "galileo.formats.reader_worker", str(2 << 30), "0.5"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            assert child.wait(60) == -signal.SIGALRM
        finally:
            child.kill()
