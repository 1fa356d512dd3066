from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from galileo.errors import ConfigError
from galileo.formats.optional import library

SCRIPT = """
from galileo.formats.optional import library
eccodes = library("eccodes", purpose="this test")
handle = eccodes.codes_grib_new_from_samples("polar_stereographic_pl_grib2")
assert len(eccodes.codes_get_array(handle, "latitudes"))
eccodes.codes_release(handle)
import pyproj
x, y = pyproj.Transformer.from_crs(4326, 3857).transform(50.0, 8.0)
assert abs(x - 890555.926) < 0.001, x
"""


def test_what_is_installed_is_imported() -> None:
    assert library("json", purpose="this test").loads("1") == 1


def test_what_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigError, match="this test needs the package 'no_such_module'"):
        library("no_such_module", purpose="this test")


def test_eccodes_and_pyproj_live_in_one_process() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("eccodes", "pyproj")):
        pytest.skip("ecCodes or pyproj is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
