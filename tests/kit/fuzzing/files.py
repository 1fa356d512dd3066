"""Files that users bring, each format forced: what the first bytes say does not decide."""

from __future__ import annotations

import atexit
import csv
import functools
import gzip
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzzing.targets import SLOW_APART_S, Target
from galileo.formats import Mapping, Source, open_source
from galileo.formats.subprocess_reader import ReaderPool
from galileo.model.times import TIME_TYPE
from galileo.optional_imports import library

ROWS_MAX = 200_000
"""A file may claim many rows; so many are read of it."""
APART = ("netcdf", "grib")
APART_BYTES_MAX = 1 << 30


@functools.cache
def scratch() -> Path:
    memory = Path("/dev/shm")
    held = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
    atexit.register(held.cleanup)
    return Path(held.name)


@functools.cache
def _apart() -> ReaderPool:
    return ReaderPool(memory_bytes_max=APART_BYTES_MAX, timeout_s=SLOW_APART_S / 2)


def _opened(path: Path, format: str) -> Source:
    if format not in APART:
        return open_source(path, format=format)
    reader = _apart().opener(format)(path, Mapping())
    return Source(path, reader, format=format, mapping=Mapping(), schema=None)


def _reading(format: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        path = scratch() / "input"
        path.write_bytes(data)
        rows = 0
        for batch in _opened(path, format).batches():
            batch.validate(full=True)
            rows += batch.num_rows
            if rows > ROWS_MAX:
                break

    return read


def _table() -> pa.Table:
    return pa.table(
        {
            "latitude": [40.0, 41.25, -3.5],
            "longitude": [-105.0, 179.5, 0.25],
            "time": pa.array([0, 3_600_000_000, 10**15], pa.int64()).cast(TIME_TYPE),
            "temperature": [280.5, None, 300.0],
            "station": ["KDEN", None, "a,b"],
            "level": [1, 2, None],
        }
    )


def _csvs() -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["lat", "lon", "time", "t", "station"])
    writer.writerow([40.0, -105.0, "2014-03-01T00:00:00Z", 280.5, "KDEN"])
    writer.writerow([41.0, -104.0, "2014-03-01T01:00:00Z", "", "a,b"])
    yield text.getvalue().encode()
    yield text.getvalue().replace(",", ";").encode()
    yield gzip.compress(text.getvalue().encode())


def _geojsons() -> Iterator[bytes]:
    def feature(*position: float, **properties: object) -> dict[str, object]:
        geometry = {"type": "Point", "coordinates": position}
        return {"type": "Feature", "geometry": geometry, "properties": properties}

    when = "2014-03-01T00:00:00Z"
    features = [feature(-105, 40, time=when, t=1.5), feature(1, 2, 3, time=when, t=None)]
    yield json.dumps({"type": "FeatureCollection", "features": features}).encode()


def _parquets() -> Iterator[bytes]:
    for compression in ("none", "snappy", "zstd"):
        sink = io.BytesIO()
        pq.write_table(_table(), sink, compression=compression)
        yield sink.getvalue()


def _arrows() -> Iterator[bytes]:
    for make in (pa.ipc.new_file, pa.ipc.new_stream):
        for compression in (None, "lz4"):
            sink = io.BytesIO()
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with make(sink, _table().schema, options=options) as writer:
                writer.write_table(_table())
            yield sink.getvalue()


def _netcdfs() -> Iterator[bytes]:
    netCDF4 = library("netCDF4", purpose="fuzzing NetCDF")
    for kind in ("NETCDF3_CLASSIC", "NETCDF4"):
        path = scratch() / f"seed-{kind}"
        with netCDF4.Dataset(path, "w", format=kind) as file:
            for name, values in (("time", [0.0, 6.0]), ("lat", [40.0, 41.0]), ("lon", [1.0, 2.0])):
                file.createDimension(name, len(values))
                file.createVariable(name, "f8", (name,))[:] = values
            file["time"].units = "hours since 2014-03-01"
            file["lat"].units, file["lon"].units = "degrees_north", "degrees_east"
            variable = file.createVariable("t", "f4", ("time", "lat", "lon"))
            variable.units = "K"
            variable[:] = np.arange(8).reshape(2, 2, 2)
        yield path.read_bytes()


def _gribs() -> Iterator[bytes]:
    eccodes = library("eccodes", purpose="fuzzing GRIB")
    for sample in ("regular_ll_sfc_grib1", "regular_ll_sfc_grib2"):
        handle = eccodes.codes_grib_new_from_samples(sample)
        try:
            eccodes.codes_set(handle, "Ni", 4)
            eccodes.codes_set(handle, "Nj", 3)
            eccodes.codes_set(handle, "iDirectionIncrementInDegrees", 10)
            eccodes.codes_set(handle, "jDirectionIncrementInDegrees", 10)
            eccodes.codes_set(handle, "latitudeOfLastGridPointInDegrees", 40)
            eccodes.codes_set(handle, "longitudeOfLastGridPointInDegrees", 30)
            eccodes.codes_set_values(handle, np.linspace(270, 300, 12))
            yield eccodes.codes_get_message(handle)
        finally:
            eccodes.codes_release(handle)


TARGETS = tuple(
    Target(
        name,
        f"{words} files of observations",
        _reading(name.removesuffix("-file")),
        seeds,
        size,
        is_apart=name in APART,
    )
    for name, words, seeds, size in (
        ("csv", "CSV", _csvs, 2048),
        ("geojson", "GeoJSON", _geojsons, 2048),
        ("parquet", "Parquet", _parquets, 8192),
        ("arrow-file", "Arrow and Feather", _arrows, 8192),
        ("netcdf", "NetCDF", _netcdfs, 32768),
        ("grib", "GRIB", _gribs, 4096),
    )
)
