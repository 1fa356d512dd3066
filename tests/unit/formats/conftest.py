"""What the formats' own readers do is tested where a test can reach into them: in this process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from galileo.formats import detection
from galileo.formats.grib import open_grib
from galileo.formats.netcdf import open_netcdf
from galileo.formats.zarr import open_zarr


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, opener in (("grib", open_grib), ("netcdf", open_netcdf), ("zarr", open_zarr)):
        known = replace(detection.READERS[name], open=opener)
        monkeypatch.setitem(detection.READERS, name, known)
