"""Detects the format of a file and opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from galileo.errors import InputError
from galileo.formats.arrow_files import open_arrow, open_parquet
from galileo.formats.csv import open_delimited
from galileo.formats.csv_options import CsvOptions
from galileo.formats.geojson import open_geojson
from galileo.formats.grid_options import GridOptions
from galileo.formats.mapping import Mapping
from galileo.formats.ndjson import is_json_array, open_ndjson
from galileo.formats.reader import Reader
from galileo.formats.source import Source
from galileo.formats.subprocess_reader import ReaderPool
from galileo.formats.zarr import is_zarr
from galileo.model.schema import Schema

ISOLATED_FORMATS = ReaderPool()
"""Runs readers whose native libraries a damaged file can crash."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files, as messages and documents name it and as files are recognised.

    Attributes:
        title: as documents write it.
        open: opens a file.
        magic: first bytes; each recognises a file whatever its name.
        suffixes: recognise a file whose first bytes say nothing.
        is_gzip_allowed: whether files may be compressed by gzip.
        extra: of this distribution, that the reader needs.
    """

    title: str
    open: Callable[[Path, Mapping], Reader]
    magic: tuple[bytes, ...] = ()
    suffixes: tuple[str, ...] = ()
    is_gzip_allowed: bool = False
    extra: str = ""


READERS: dict[str, Format] = {
    "csv": Format(
        "CSV",
        open_delimited,
        suffixes=(".csv", ".tsv", ".txt", ".csvp", ".tsvp", ".rdb"),
        is_gzip_allowed=True,
    ),
    "geojson": Format(
        "GeoJSON", open_geojson, suffixes=(".geojson", ".json"), is_gzip_allowed=True
    ),
    "ndjson": Format(
        "JSON lines and arrays",
        open_ndjson,
        suffixes=(".ndjson", ".jsonl", ".json"),
        is_gzip_allowed=True,
    ),
    "parquet": Format("Parquet", open_parquet, magic=(b"PAR1",)),
    "arrow": Format("Arrow", open_arrow, magic=(b"ARROW1", b"\xff\xff\xff\xff")),
    "netcdf": Format(
        "NetCDF",
        ISOLATED_FORMATS.opener("netcdf"),
        magic=(b"CDF\x01", b"CDF\x02", b"CDF\x05", b"\x89HDF\r\n\x1a\n"),
        extra="formats",
    ),
    "zarr": Format(
        "Zarr", ISOLATED_FORMATS.opener("zarr"), suffixes=(".zarr", ".zip"), extra="formats"
    ),
    "grib": Format(
        "GRIB",
        ISOLATED_FORMATS.opener("grib"),
        magic=(b"GRIB",),
        suffixes=(".grib", ".grib1", ".grib2", ".grb", ".grb2"),
        extra="formats",
    ),
}
FORMATS = tuple(sorted(READERS))


def open_source(
    path: Path | str,
    *,
    mapping: Mapping | None = None,
    schema: Schema | None = None,
    format: str | None = None,
    is_place_needed: bool = True,
) -> Source:
    """Opens a file of observations.

    Args:
        path: of the file, or the directory of a Zarr store; it and its directory may be read-only.
        mapping: of variables to features; None takes all variables of the largest grid, or, with
            a schema, those with the names of its features.
        schema: of the dataset for the observations; determines features and types.
        format: one of `FORMATS`; None detects it.
        is_place_needed: whether a file without places or times is an error; else `place_error` of
            the source says what is missing, and its variables can be looked at.

    Raises:
        InputError: there is no such file, its format is unknown, it is damaged, or it has no
            places or times.
        MissingExtra: the format needs `galileo-store[formats]`, which is not installed.
    """
    path = Path(path)
    if path.is_dir() and not is_zarr(path):
        raise InputError(
            f"expected a file or a Zarr store, got the directory {path}; name its files, in Python "
            "as sorted(Path(...).rglob('*.parquet'))",
            expected="file",
        )
    if not path.exists():
        raise InputError(f"there is no file at {path}", expected="file")
    name = format or detect(path)
    if name not in READERS:
        raise InputError(
            f"expected a format of {', '.join(FORMATS)}, got {name!r}",
            expected="format",
            format=str(name),
        )
    mapping = mapping or Mapping()
    if name != "csv" and mapping.csv != CsvOptions():
        raise InputError(
            f"expected a CSV file for the options of CSV, got {READERS[name].title} in {path}",
            expected="csv",
        )
    kept = mapping.grid if name in ("netcdf", "zarr") else GridOptions()
    if name == "grib":
        kept = GridOptions(reference_time=mapping.grid.reference_time)
    if mapping.grid != kept:
        raise InputError(
            "expected NetCDF or Zarr for a group or dimensions of rows, and these or GRIB for a "
            f"reference time, got {READERS[name].title} in {path}",
            expected="grid",
        )
    reader = READERS[name].open(path, mapping)
    source = Source(path, reader, format=name, mapping=mapping, schema=schema)
    if is_place_needed and source.place_error is not None:
        raise source.place_error
    return source


def detect(path: Path) -> str:
    """The format of a file by its first bytes, else by its suffix (without `.gz`).

    Raises:
        InputError: both are unknown, or a format is compressed that must not be.
    """
    if path.is_dir():
        return "zarr"
    with path.open("rb") as file:
        start = file.read(8)
    for name, known in READERS.items():
        if start.startswith(known.magic):
            return name
    suffix, is_gzip = path.suffix.lower(), False
    if suffix == ".gz":
        suffix, is_gzip = Path(path.stem).suffix.lower(), True
    names = [
        name
        for name, known in READERS.items()
        if suffix in known.suffixes and (known.is_gzip_allowed or not is_gzip)
    ]
    if len(names) > 1:  # In JSON, the first character tells an array from a GeoJSON object.
        return "ndjson" if is_json_array(path) else "geojson"
    if names:
        return names[0]
    titles = [known.title for known in READERS.values() if known.is_gzip_allowed]
    raise InputError(
        f"cannot detect the format of {path}: give it as one of {', '.join(FORMATS)}; "
        f"only {' and '.join(titles)} may be compressed by gzip",
        expected="known_format",
    )
