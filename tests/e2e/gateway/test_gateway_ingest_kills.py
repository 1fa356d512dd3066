"""A gateway that is killed amid a request: repeated at another one, it is stored exactly once."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import galileo
from galileo.local_services import LocalGateway

TIMEOUT_S = 120.0
ROWS = 400_000
START_US = 1_393_632_000_000_000
PARQUET = "application/vnd.apache.parquet"


def body_of(schema: galileo.Schema, *, first: int, rows: int) -> bytes:
    """Numbered observations as Parquet, several batches."""
    numbers = np.arange(first, first + rows)
    table = pa.table(
        {
            "latitude": numbers % 90 * 1.0,
            "longitude": numbers % 180 * 1.0,
            "time": START_US + numbers,
            "number": numbers,
        }
    )
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table.cast(schema.observation_schema), sink)
    return sink.getvalue()


def post(url: str, name: str, body: bytes, key: str) -> tuple[int, Any]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
    try:
        headers = {"Content-Type": PARQUET, "Idempotency-Key": key}
        connection.request("POST", f"/collections/{name}/items", body, headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


class Killed:
    """A request to a gateway that is killed when a condition holds."""

    def __init__(self, gateway: LocalGateway, name: str, body: bytes, key: str) -> None:
        self.status = 0
        self._gateway = gateway
        self._request = threading.Thread(target=self._send, args=(gateway.url, name, body, key))

    def _send(self, url: str, name: str, body: bytes, key: str) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.status, _ = post(url, name, body, key)

    def run(self, when: Callable[[], bool]) -> None:
        self._request.start()
        deadline = time.monotonic() + TIMEOUT_S
        while not when() and self._request.is_alive():
            assert time.monotonic() < deadline
        assert self._gateway.pid is not None
        os.kill(self._gateway.pid, signal.SIGKILL)
        self._request.join(TIMEOUT_S)
        self._gateway.stop()


def stored(client: galileo.Client, name: str) -> list[int]:
    return sorted(client.select(name, columns=["number"]).column("number").to_pylist())


def rows_of(client: galileo.Client, name: str) -> int:
    datasets = [one for node in client.status().nodes for one in node.datasets]
    return sum(one["rows"] for one in datasets if one["dataset"] == name)


@pytest.mark.slow
def test_request_to_a_killed_gateway_is_stored_once_when_it_is_repeated(
    cluster: galileo.LocalCluster, fresh_name: Callable[[str], str]
) -> None:
    client = cluster.client(timeout="60s")
    name = fresh_name("posted")
    schema = galileo.Schema(name, [galileo.Feature("number", type="int")], geohash_precision=1)
    client.create_dataset(schema)
    rng = random.Random(1)
    other = cluster.gateway()
    with other:
        # Amid the batches of a request.
        gateway = cluster.gateway()
        gateway.start()
        body = body_of(schema, first=0, rows=ROWS)
        Killed(gateway, name, body, "numbers:0").run(lambda: rows_of(client, name) > 0)
        assert rows_of(client, name) > 0
        status, receipt = post(other.url, name, body, "numbers:0")
        assert (status, receipt["observations"]) == (201, ROWS), receipt
        assert receipt["duplicates"] > 0, "nothing was stored before"
        assert stored(client, name) == list(range(ROWS))
        # At any moment of small requests.
        count = ROWS
        for number in range(1, 6):
            gateway = cluster.gateway()
            gateway.start()
            body = body_of(schema, first=count, rows=1_000)
            at = time.monotonic() + rng.uniform(0, 0.1)
            killed = Killed(gateway, name, body, f"numbers:{number}")
            killed.run(lambda at=at: time.monotonic() > at)  # type: ignore[misc]
            status, receipt = post(other.url, name, body, f"numbers:{number}")
            assert (status, receipt["observations"]) == (201, 1_000), receipt
            assert killed.status in (0, 201)
            assert receipt["duplicates"] == 1_000 or killed.status == 0
            count += 1_000
        assert stored(client, name) == list(range(count))
