"""Ctrl-C at a program that waits for a long answer: the nodes stop, and the client goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest

from galileo.labels import to_ipc
from galileo.node import local_scan, row_reader, select
from galileo.wire.v1 import cluster_pb2, storage_pb2
from galileo.wire.zero_copy import Bulk

ROWS = 5_000
PAUSE_S = 0.05
LONG_PAUSE_S = 0.5
TIMEOUT_S = 100.0
CALLS = {
    "query": "client.query('nam')",
    "query, piece by piece": "[len(batch) for batch in client.query_batches('nam')]",
    "read": "client.read(labels, exact=False)",
    "read, piece by piece": "[t.num_rows for t in client.read_batches(labels, exact=False)]",
    "select": "client.select('nam')",
}
PROGRAM = """
import signal, sys, galileo

# A shell starts what runs in the background with this one ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
client = galileo.connect(sys.argv[1])
labels = client.query("nam")
for call in sys.stdin:
    print("begin", flush=True)
    try:
        eval(compile(call, "call", "eval"))
        print("end", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


class Work:
    """How often nodes took the next step of an answer; each takes `pause_s` longer than it must.

    Steps go no further while `go` is not set.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.pause_s = 0.0
        self.go = threading.Event()
        self.go.set()

    def slowed(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.steps += 1
            self.go.wait(TIMEOUT_S)
            time.sleep(self.pause_s)
            return step(*args)

        return counted

    async def begun(self, before: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.steps < before + 6:  # noqa: ASYNC110 - threads count
                await asyncio.sleep(0.01)

    async def ended(self) -> int:
        """How many steps there were when for a while there was none."""
        while True:
            before = self.steps
            await asyncio.sleep(2 * self.pause_s)
            if self.steps == before:
                return before


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    made = Work()
    for place, name in (
        (local_scan._IncrementalScan, "step"),
        (row_reader, "read_parts"),
        (select, "_step"),
    ):
        monkeypatch.setattr(place, name, made.slowed(getattr(place, name)))
    return made


@pytest.fixture
def limits() -> dict[str, float]:
    """Queries run in many small steps."""
    return {
        "STEP_BYTES_MAX": 1 << 12,
        "SMALL_BYTES_MAX": 1,
        "ROWS_PER_PIECE": 64,
        "STEP_S": 0.0,
        "LABELS_PER_PART": 64,
    }


@pytest.fixture
async def child(
    company: Any, make_observations: Callable[..., Any]
) -> AsyncIterator[asyncio.subprocess.Process]:
    text = company.schema.to_json()
    await company["a"].cluster.CreateDataset(cluster_pb2.CreateDatasetRequest(schema_json=text))
    request = Bulk(
        storage_pb2.IngestRequest(dataset="nam", producer="p"),
        pa.py_buffer(to_ipc(make_observations(ROWS))),
    )
    await company["a"].storage.Ingest(request)
    address = company.topology.by_name["a"].address
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, address, stdin=pipe, stdout=pipe
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0


async def read_line(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    line = await asyncio.wait_for(child.stdout.readline(), TIMEOUT_S)
    return line.decode().strip()


async def asked(child: asyncio.subprocess.Process, call: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{call}\n".encode())
    assert await read_line(child) == "begin"


@pytest.mark.slow
async def test_interrupted_client_call_stops_work_at_the_nodes(
    child: asyncio.subprocess.Process, work: Work
) -> None:
    for name, call in CALLS.items():
        before, work.pause_s = work.steps, 0.0
        await asked(child, call)
        assert await read_line(child) == "end", name
        whole = work.steps - before
        assert whole > 40, f"{name} takes a while"
        before, work.pause_s = work.steps, PAUSE_S
        await asked(child, call)
        await work.begun(before)
        work.go.clear()  # The program may take its time until it hears of the signal.
        child.send_signal(signal.SIGINT)
        assert await read_line(child) == "interrupted", name
        work.pause_s = LONG_PAUSE_S
        work.go.set()
        assert await work.ended() - before < whole / 2, name
