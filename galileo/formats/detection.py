"""Detects the format of a file and opens it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from galileo.errors import InputError
from galileo.formats.arrow_files import open_arrow, open_parquet
from galileo.formats.csv import open_delimited
from galileo.formats.geojson import open_geojson
from galileo.formats.mapping import Mapping
from galileo.formats.reader import Reader
from galileo.formats.source import Source
from galileo.formats.subprocess_reader import ReaderPool
from galileo.model.schema import Schema

ISOLATED_FORMATS = ReaderPool()
"""Runs readers whose native libraries a damaged file can crash."""
READERS: dict[str, Callable[[Path, Mapping], Reader]] = {
    "arrow": open_arrow,
    "csv": open_delimited,
    "geojson": open_geojson,
    "grib": ISOLATED_FORMATS.opener("grib"),
    "netcdf": ISOLATED_FORMATS.opener("netcdf"),
    "parquet": open_parquet,
}
FORMATS = tuple(READERS)

_MAGIC = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"\xff\xff\xff\xff", "arrow"),
    (b"CDF\x01", "netcdf"),
    (b"CDF\x02", "netcdf"),
    (b"CDF\x05", "netcdf"),
    (b"\x89HDF\r\n\x1a\n", "netcdf"),
    (b"GRIB", "grib"),
)
_SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".geojson", ".json"), "geojson"),
    **dict.fromkeys((".grib", ".grib1", ".grib2", ".grb", ".grb2"), "grib"),
}


def open_source(
    path: Path | str,
    *,
    mapping: Mapping | None = None,
    schema: Schema | None = None,
    format: str | None = None,
) -> Source:
    """Opens a file of observations.

    Args:
        path: of the file; it and its directory may be read-only.
        mapping: of variables to features; None takes all variables of the largest grid, or, with
            a schema, those with the names of its features.
        schema: of the dataset for the observations; determines features and types.
        format: one of `FORMATS`; None detects it.

    Raises:
        InputError: there is no such file, its format is unknown, it is damaged, or it has no
            places or times.
        MissingExtra: the format needs `galileo-store[formats]`, which is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file at {path}")
    name = format or detect(path)
    if name not in READERS:
        raise InputError(f"expected a format of {', '.join(FORMATS)}, got {name!r}")
    mapping = mapping or Mapping()
    return Source(path, READERS[name](path, mapping), format=name, mapping=mapping, schema=schema)


def detect(path: Path) -> str:
    """The format of a file by its first bytes, else by its suffix (without `.gz`).

    Raises:
        InputError: both are unknown, or a format is compressed that must not be.
    """
    with path.open("rb") as file:
        start = file.read(8)
    by_magic = next((name for magic, name in _MAGIC if start.startswith(magic)), None)
    if by_magic:
        return by_magic
    suffix = path.suffix.lower()
    compressed = suffix == ".gz"
    by_suffix = _SUFFIXES.get(Path(path.stem).suffix.lower() if compressed else suffix)
    if by_suffix is None or (compressed and by_suffix == "grib"):
        raise InputError(
            f"cannot detect the format of {path}: give it as one of {', '.join(FORMATS)}; "
            "only CSV and GeoJSON may be compressed by gzip"
        )
    return by_suffix
