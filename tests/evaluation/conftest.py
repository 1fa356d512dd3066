"""Makes `scripts/evaluation` importable, as `scripts/paper` does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
KIT = Path(__file__).parents[1] / "kit"
sys.path.insert(0, str(SCRIPTS))


@pytest.fixture
def evaluation_environment() -> dict[str, str]:
    """The environment in which `python -m evaluation` runs."""
    paths = [str(SCRIPTS), str(KIT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
