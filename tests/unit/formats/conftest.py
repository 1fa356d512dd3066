"""What the formats' own readers do is tested where a test can reach into them: in this process."""

from __future__ import annotations

import pytest

from galileo.formats import detection
from galileo.formats.grib import open_grib
from galileo.formats.netcdf import open_netcdf


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(detection.READERS, "grib", open_grib)
    monkeypatch.setitem(detection.READERS, "netcdf", open_netcdf)
