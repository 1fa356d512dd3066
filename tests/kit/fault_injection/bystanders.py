"""Floods in processes of their own, and their effect on others: latency of a client, memory."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fault_injection.ledger import numbered, numbered_schema
from fault_injection.trial import Trial
from galileo.client import Ccq, Client

MIB = 1 << 20
DATASET = "numbered"
FIRST = 10_000_000
"""Number of the first observation that a bystander stores; floods store none."""
ROWS = 20
PATIENCE = "30s"
PEAK_ANEW = "5"
"""Written into `clear_refs`, it lets the kernel forget the peak of a process's memory (proc(5))."""
PAUSE_S = 0.02
END_S = 240.0
SERVED_WITHIN_S = 120.0
RETRIED = (0, http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.GATEWAY_TIMEOUT)
"""HTTP statuses after which a bystander repeats a request; 0: the connection was cut."""
FLOODING = Path(__file__).parent / "flooding.py"


@contextlib.contextmanager
def repeated(*calls: Callable[[], object]) -> Iterator[list[float]]:
    """Repeat calls in turn from a thread; yield the growing list of their durations in seconds.

    Raises:
        Exception: of a call that failed.
    """
    waits_s: list[float] = []
    stopping = threading.Event()

    def repeat() -> None:
        while not stopping.wait(PAUSE_S):
            for call in calls:
                started = time.monotonic()
                call()
                waits_s.append(time.monotonic() - started)

    with ThreadPoolExecutor(1) as pool:
        repeating = pool.submit(repeat)
        try:
            yield waits_s
        finally:
            stopping.set()
            repeating.result(END_S)


def client_calls(client: Client, ccq: Ccq | None = None) -> list[Callable[[], object]]:
    """A query, an ingest and, with a continuous query, a fetch."""
    first = itertools.count(FIRST, ROWS)
    calls: list[Callable[[], object]] = [
        lambda: client.query(DATASET, "temperature > 309.8"),
        lambda: client.ingest(DATASET, numbered(next(first), ROWS)),
    ]
    if ccq is not None:
        calls.append(lambda: client.fetch(ccq.id, token=ccq.token))
    return calls


def get_page(address: str, path: str, *, trial: Trial) -> None:
    """Get a page over a new connection; count refusals, and repeat the request after one.

    Args:
        address: host:port of the server.
        path: of the page.
        trial: counts refusals as "times turned away".

    Raises:
        RuntimeError: another answer, or none in time.
    """
    until = time.monotonic() + SERVED_WITHIN_S
    host, _, port = address.rpartition(":")
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(host, int(port), timeout=SERVED_WITHIN_S)
        try:
            with contextlib.closing(connection):
                connection.request("GET", path)
                reply = connection.getresponse()
                status, text = reply.status, reply.read().decode()
        except (OSError, http.client.HTTPException):
            status, text = 0, ""
        if status == http.HTTPStatus.OK:
            return
        if status not in RETRIED or '"ready"' in text:
            raise RuntimeError(f"{path} was answered with {status}: {text}")
        trial.counts["times turned away"] += 1
        time.sleep(PAUSE_S)
    raise RuntimeError(f"{path} was not answered within {SERVED_WITHIN_S:g} s")


class Memory:
    """The resident memory of a process since this was made; the kernel keeps the peak.

    Attributes:
        before: in bytes.
    """

    def __init__(self, pid: int) -> None:
        self._directory = Path(f"/proc/{pid}")
        (self._directory / "clear_refs").write_text(PEAK_ANEW)
        self.before = self.peak = self._status("VmRSS")

    def stop(self) -> None:
        """Notes the peak; the last one that is known if the process has ended."""
        with contextlib.suppress(OSError):
            self.peak = self._status("VmHWM")

    @property
    def over_mib(self) -> float:
        """Growth since the beginning, in MiB."""
        return (self.peak - self.before) / MIB

    def _status(self, name: str) -> int:
        for line in (self._directory / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
        return self.peak


@contextlib.contextmanager
def weighed(pid: int | None) -> Iterator[Memory]:
    """Measure the memory of a running process within the block."""
    assert pid is not None, "it runs"
    memory = Memory(pid)
    try:
        yield memory
    finally:
        memory.stop()


@contextlib.contextmanager
def flooding(trial: Trial, kind: str, address: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """A running flood, by `tests/kit/fault_injection/flooding.py`; counts its work at the end.

    Raises:
        RuntimeError: it ended by itself.
    """
    command = [sys.executable, str(FLOODING), kind, address, str(count)]
    with flood_process(
        command, log=trial.directory / f"flood-{kind}.log", counts=trial.counts
    ) as process:
        yield process


@contextlib.contextmanager
def flood_process(
    command: list[str], *, log: Path, counts: Counter[str], plan: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A process that floods until its standard input ends, and then says what it did.

    Args:
        command: of the process.
        log: file of its errors.
        counts: to which the counts of its work are added, with "flood: " before their names.
        plan: first line of its standard input.

    Raises:
        RuntimeError: it ended by itself.
    """
    kit = str(FLOODING.parents[1])
    grpc = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **grpc, "PYTHONPATH": kit},
        ) as process,
    ):
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(plan)
            process.stdin.flush()
            if process.stdout.readline() != "flooding\n":
                raise RuntimeError(f"the flood ended by itself: {log.read_text()[-2_000:]}")
            yield process
            report, _ = process.communicate(timeout=SERVED_WITHIN_S)
            for name, number in json.loads(report or "{}").items():
                counts[f"flood: {name}"] += number
        finally:
            process.kill()


def quantile_ms(waits_s: list[float], share: float) -> float:
    return round(1e3 * float(np.quantile(waits_s, share)), 1) if waits_s else float("nan")


def fill(client: Client, rows: int) -> None:
    """Create the dataset and store so many observations."""
    client.create_dataset(numbered_schema(DATASET))
    for first in range(0, rows, 100_000):
        client.ingest(DATASET, numbered(first, min(100_000, rows - first)))
