"""The memory of a gateway after large requests."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

import galileo
from galileo.local_services import LocalGateway

ROWS = 1_000_000
KEPT_MIB_MAX = 48
WITHIN_S = 60.0
TIMEOUT_S = 120.0


@pytest.mark.slow(60)
def test_an_idle_gateway_gives_back_the_memory_of_large_bodies(
    cluster: galileo.LocalCluster, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """The body is refused at its last row, after all others have been decoded."""
    name = fresh_name("rain")
    cluster.client().create_dataset(galileo.Schema(name, [galileo.Feature("amount")]))
    head = b"latitude,longitude,time,amount\n"
    body = head + b"40.25,8.5,2026-05-02T12:00:00Z,1.5\n" * ROWS + b"much,8.5,2026-05-02,1\n"

    def post(data: bytes) -> int:
        where = urlsplit(gateway.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
        connection.request("POST", f"/collections/{name}/items", data, {"Content-Type": "text/csv"})
        status = connection.getresponse().status
        connection.close()
        return status

    with LocalGateway(cluster.addresses, log=tmp_path / "gateway.log") as gateway:
        assert post(head + b"much,1,2,3\n") == http.HTTPStatus.BAD_REQUEST
        process = psutil.Process(gateway.pid)
        before = process.memory_info().rss
        assert post(body) == http.HTTPStatus.BAD_REQUEST
        until = time.monotonic() + WITHIN_S
        while (kept_mib := (process.memory_info().rss - before) / 2**20) > KEPT_MIB_MAX:
            assert time.monotonic() < until, f"{kept_mib:.0f} MiB are kept"
            time.sleep(0.5)
