"""A node that starts with an older log than its records of continuous queries say."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from set_record import SetRecord

import galileo
from galileo.ccq.model import CcqDefinition, Holder, Record
from galileo.ccq.records import encode
from galileo.clock import SystemClock
from galileo.config import Config, from_dict
from galileo.cursor import Cursor
from galileo.node.log_regression import LogRegression
from galileo.server.node_process import NodeProcess

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


def record(name: str, retrieved: int, **options: Any) -> Record:
    """A record of a query whose readers have retrieved so many commits; n only holds labels."""
    made = CcqDefinition(name, SCHEMA.name, "", interval_s=1.0, expires_at=4e9)
    holder = Holder("n", 1, Cursor(), Cursor({0: 100}))
    at = Cursor({0: retrieved})
    return Record(made, 1, ("elsewhere",), at, holders=(holder,), **options)


async def losses_after_start(
    config: Config, *records: Record, ingests: bool = False
) -> list[LogRegression]:
    """What a node of this configuration says while it serves; it keeps records before it ends."""
    node, stop = NodeProcess(config, clock=SystemClock()), asyncio.Event()
    serving = asyncio.create_task(node.run(stop))
    table = node._records.table
    try:
        async with galileo.AsyncClient(config.listen, timeout="60s") as client:
            if ingests:
                await client.create_dataset(SCHEMA)
                rows = {"latitude": [1.0], "longitude": [2.0], "time": [0], "rain": [3.0]}
                frame = pd.DataFrame(rows).astype({"time": "datetime64[ns, UTC]"})
                await client.ingest(SCHEMA.name, frame)
            assert await client.count(SCHEMA.name) == 1
            async with asyncio.timeout(60):
                while table._listing is not None:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)
            [status] = (await client.status()).nodes
        found = node.node.view.losses.known
        assert status.lost == tuple(map(str, found))
        await table.change_all([SetRecord(one.id, encode(one)) for one in records])
        return found
    finally:
        stop.set()
        await serving


async def test_node_start_with_an_older_log_reports_a_regression(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    first = record("ccq-1", retrieved=1)
    ended = replace(record("ccq-2", retrieved=9, ended="cancelled", ended_at=1.0), nodes=("n",))
    assert await losses_after_start(config, first, ended, ingests=True) == []
    assert await losses_after_start(config, record("ccq-3", retrieved=5)) == []
    assert await losses_after_start(config) == [LogRegression("n", SCHEMA.name, 0, had=5, has=1)]
    assert "commits are lost: partition 0 of dataset 'air' at node n" in caplog.text
