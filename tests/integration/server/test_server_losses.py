"""A node that starts with an older log than its records of continuous queries say."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pandas as pd
import pytest

import galileo
from galileo.ccq.model import Ccq, Ending, Record
from galileo.clock import SystemClock
from galileo.config import Config, from_dict
from galileo.cursor import Cursor
from galileo.node.log_regression import LogRegression
from galileo.server.driver import RECORD_KIND
from galileo.server.main import NodeProcess
from galileo.server.peer_messaging import TAGGED
from galileo.storage.store import Store

SCHEMA = galileo.Schema("air", [galileo.Feature("rain", "mm")], geohash_precision=2)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cluster = {
        "groups": [{"name": "g", "nodes": [{"name": "n", "address": address}]}],
        "partitions_per_group": 1,
    }
    return from_dict({"node": {"name": "n", "directory": str(tmp_path)}, "cluster": cluster})


async def losses_after_start(config: Config, *, ingests: bool = False) -> list[LogRegression]:
    """What a node of this configuration says while it serves."""
    node, stop = NodeProcess(config, clock=SystemClock()), asyncio.Event()
    serving = asyncio.create_task(node.run(stop))
    try:
        async with galileo.AsyncClient(config.listen, timeout="60s") as client:
            if ingests:
                await client.create_dataset(SCHEMA)
                rows = {"latitude": [1.0], "longitude": [2.0], "time": [0], "rain": [3.0]}
                frame = pd.DataFrame(rows).astype({"time": "datetime64[ns, UTC]"})
                await client.ingest(SCHEMA.name, frame)
            assert await client.count(SCHEMA.name) == 1
            [status] = (await client.status()).nodes
        found = node.node.view.losses.known
        assert status.lost == tuple(map(str, found))
        return found
    finally:
        stop.set()
        await serving


def save(directory: Path, name: str, retrieved: int, *, ended: bool = False) -> None:
    """A record of a query whose readers have retrieved so many commits, and which is over soon."""
    made = Ccq(name, SCHEMA.name, "", interval_s=1.0, expires_at=1.0)
    ending: Ending | None = "cancelled" if ended else None
    record = Record(made, 1, "elsewhere", Cursor({0: retrieved}), ended=ending, ended_at=1.0)
    with Store.open(directory, wall=lambda: 0.0) as store:
        store.save_batch(RECORD_KIND, {name: TAGGED.encode(record)})


async def test_node_start_with_an_older_log_reports_a_regression(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await losses_after_start(config, ingests=True) == []
    save(tmp_path, "ccq-1", retrieved=1)
    save(tmp_path, "ccq-2", retrieved=9, ended=True)
    assert await losses_after_start(config) == []
    save(tmp_path, "ccq-3", retrieved=5)
    assert await losses_after_start(config) == [LogRegression("n", SCHEMA.name, 0, had=5, has=1)]
    assert "commits are lost: partition 0 of dataset 'air' at node n" in caplog.text
