"""The gateway that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import galileo
from galileo.local_services import LocalGateway


@pytest.fixture(scope="session")
def gateway(cluster: galileo.LocalCluster) -> Iterator[LocalGateway]:
    with cluster.gateway() as running:
        yield running
