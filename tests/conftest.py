"""What every test may ask for."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import galileo

settings.register_profile(
    "galileo",
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("galileo")

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """Directory of real sample files; the test is skipped where there is none."""
    named = os.environ.get("GALILEO_SAMPLE_DATA")
    path = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no sample files: set GALILEO_SAMPLE_DATA to a directory that holds them")
    return path


@pytest.fixture(scope="session")
def cluster() -> Iterator[galileo.LocalCluster]:
    """Three node processes in two groups, for all tests that leave every node running.

    A test uses datasets of its own (`fresh_name`) and cancels the continuous queries it submits.
    """
    with galileo.LocalCluster(nodes=3, groups=2) as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster: galileo.LocalCluster) -> galileo.Client:
    """A blocking client of `cluster`; closed with it."""
    return cluster.client()


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """`fresh_name("nam")`: a dataset name that no other test of this session has."""
    return lambda stem: f"{stem}-{next(_NUMBERS)}"
