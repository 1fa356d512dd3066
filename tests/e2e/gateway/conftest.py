"""The gateway of the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import galileo
from galileo.local_services import LocalGateway


@pytest.fixture(scope="module")
def gateway(cluster: galileo.LocalCluster) -> Iterator[LocalGateway]:
    with cluster.gateway() as running:
        yield running
