"""Makes `scripts/benchmarks` importable, as `scripts/bench` does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))


@pytest.fixture
def bench_environment() -> dict[str, str]:
    """The environment in which `scripts/bench` runs pytest."""
    return {**os.environ, "PYTHONPATH": str(SCRIPTS)}
