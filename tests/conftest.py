"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "galileo", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("galileo")


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """Directory of real sample files; the test is skipped where there is none."""
    named = os.environ.get("GALILEO_SAMPLE_DATA")
    path = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no sample files: set GALILEO_SAMPLE_DATA to a directory that holds them")
    return path
