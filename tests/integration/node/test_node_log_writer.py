"""Errors that the writer of replicated logs reports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from galileo.errors import PartitionReadOnly
from galileo.model.table import Table
from galileo.node.replication.log_writer import LogWriter, WriteReport
from galileo.node.table_shard import TableShard

TABLE = Table("ships", {"id": "int"}, key="id")
ERROR = PartitionReadOnly("the disk is full")


class Machines:
    """Takes reports."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.reports: asyncio.Queue[WriteReport] = asyncio.Queue()

    def on_written(self, reports: Sequence[WriteReport]) -> None:
        for report in reports:
            self.reports.put_nowait(report)


def refuse(*_: Any) -> None:
    raise ERROR


async def test_restarts_of_a_log_that_are_done_together_all_count() -> None:
    """Its machine waits until as many are done as it has asked for."""
    gate = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(gate.wait, 60)
        machines: Any = Machines()
        restarted = list[tuple[int, bytes]]()
        writer = LogWriter(
            TableShard(TABLE),
            machines=machines,
            open_journal=refuse,
            restart_journal=lambda *log: restarted.append(log),
            executor=executor,
            syncing=executor,
            waiting_max=1,
        )
        for log_start in (b"one", b"two"):
            writer.restart(3, log_start)
        writer.write(3, Any, b"")  # type: ignore[arg-type]
        gate.set()
        async with asyncio.timeout(60):
            report = await machines.reports.get()
    assert restarted == [(3, b"two")]
    assert report.cuts == writer.cuts_asked(3) == 2


@pytest.mark.parametrize("step", ["restart", "write"])
async def test_a_log_that_cannot_be_made_is_reported(step: str) -> None:
    """There is no journal then: the one before is gone, and another cannot be made."""
    with ThreadPoolExecutor(1) as executor:
        machines: Any = Machines()
        writer = LogWriter(
            TableShard(TABLE),
            machines=machines,
            open_journal=refuse,
            restart_journal=refuse,
            executor=executor,
            syncing=executor,
            waiting_max=1,
        )
        if step == "restart":
            writer.restart(3, b"")
        else:
            writer.write(3, Any, b"")  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            report = await machines.reports.get()
    assert (report.partition, report.error) == (3, ERROR)
    assert (report.end, report.published) == (0, 0)
