from __future__ import annotations

from pathlib import Path

import pytest
from expected_errors import raises

from galileo.errors import InputError
from galileo.formats import FORMATS, open_source
from galileo.formats.detection import detect


@pytest.mark.parametrize(
    ("name", "start", "format"),
    [
        ("x", b"PAR1....", "parquet"),
        ("x", b"ARROW1\0\0", "arrow"),
        ("x", b"\xff\xff\xff\xff\0\0", "arrow"),
        ("x", b"CDF\x01", "netcdf"),
        ("x", b"CDF\x02", "netcdf"),
        ("x.csv", b"\x89HDF\r\n\x1a\n", "netcdf"),
        ("x", b"GRIB\0\0\0\2", "grib"),
        ("x.grb2", b"\r\r\n042", "grib"),
        ("x.csv", b"lat,lon", "csv"),
        ("x.TSV", b"lat,lon", "csv"),
        ("x.csv.gz", b"\x1f\x8b", "csv"),
        ("x.geojson", b"{", "geojson"),
        ("x.json.gz", b"\x1f\x8b", "geojson"),
        ("x.json", b'{"type"', "geojson"),
        ("x.json", b"\xef\xbb\xbf \n[{", "ndjson"),
        ("x.geojson", b"[{", "geojson"),
        ("x.ndjson", b"{", "ndjson"),
        ("x.jsonl.gz", b"\x1f\x8b", "ndjson"),
    ],
)
def test_detect_uses_first_bytes_then_suffix(
    tmp_path: Path, name: str, start: bytes, format: str
) -> None:
    path = tmp_path / name
    path.write_bytes(start)
    assert detect(path) == format
    assert format in FORMATS


@pytest.mark.parametrize("name", ["x", "x.dat", "x.gz", "x.grib2.gz", "x.nc.gz"])
def test_detect_unknown_file_raises(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"12345678")
    with raises(InputError, expected="known_format"):
        open_source(path)


def test_open_source_format_overrides_detection(tmp_path: Path) -> None:
    path = tmp_path / "points.dat"
    path.write_text("lat,lon,time,t\n1,2,2020-01-01,3\n")
    assert open_source(path, format="csv").rows == 1
    with raises(InputError, expected="format", format="excel"):
        open_source(path, format="excel")


def test_open_source_missing_file_raises(tmp_path: Path) -> None:
    with raises(InputError, expected="file"):
        open_source(tmp_path / "none.csv")
