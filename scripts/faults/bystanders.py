"""Somebody who means well, while others do not: how long he waits, and what the node takes.

The well-behaved client asks, stores and fetches over and over from a thread of this process, whose
floods run in others. The node's memory is read from the kernel meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import psutil
from fault_injection.ledger import numbered, numbered_schema

from faults.registry import Trial
from galileo.client import Ccq, Client

MIB = 1 << 20
DATASET = "numbered"
FIRST = 10_000_000
"""Number of the first observation that the well-behaved client stores; floods use none."""
ROWS = 20
PATIENCE = "30s"
LOOK_S = 0.01
PAUSE_S = 0.02
READY_S = 120.0


@dataclass(slots=True)
class Bystander(threading.Thread):
    """A client that asks, stores and fetches in turn.

    Attributes:
        waits_s: of each call, in seconds.
        failure: of a call that failed for good; there must be none.
    """

    client: Client
    ccq: Ccq | None = None
    waits_s: list[float] = field(default_factory=list)
    failure: BaseException | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _stored: int = 0

    def __post_init__(self) -> None:
        threading.Thread.__init__(self, daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        try:
            while not self._stopping.wait(PAUSE_S):
                for call in (self._ask, self._store, self._fetch):
                    started = time.monotonic()
                    call()
                    self.waits_s.append(time.monotonic() - started)
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self._stopping.set()
        self.join(120.0)
        if self.is_alive():
            raise TimeoutError("the well-behaved client was not answered within two minutes")

    def _ask(self) -> None:
        self.client.query(DATASET, "temperature > 309.8")

    def _store(self) -> None:
        self.client.ingest(DATASET, numbered(FIRST + self._stored, ROWS))
        self._stored += ROWS

    def _fetch(self) -> None:
        if self.ccq is not None:
            self.client.fetch(self.ccq.id, token=self.ccq.token)


class Memory(threading.Thread):
    """The resident memory of a process, looked at a hundred times a second.

    Attributes:
        before: in bytes; `peak` at most since.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._stopping = threading.Event()
        self.before = self.peak = self._process.memory_info().rss

    def run(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while not self._stopping.wait(LOOK_S):
                self.peak = max(self.peak, self._process.memory_info().rss)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    @property
    def over_mib(self) -> float:
        """What it took beyond what it had, in MiB."""
        return (self.peak - self.before) / MIB


@contextlib.contextmanager
def asked(client: Client, ccq: Ccq | None = None) -> Iterator[Bystander]:
    """A well-behaved client within the block.

    Raises:
        RuntimeError: a call of his failed.
    """
    bystander = Bystander(client, ccq)
    bystander.start()
    try:
        yield bystander
    finally:
        bystander.stop()
    if bystander.failure is not None:
        raise RuntimeError("the well-behaved client was not served") from bystander.failure


@contextlib.contextmanager
def weighed(pid: int | None) -> Iterator[Memory]:
    """The memory of a process that runs, within the block."""
    assert pid is not None, "it runs"
    memory = Memory(pid)
    memory.start()
    try:
        yield memory
    finally:
        memory.stop()


@contextlib.contextmanager
def flooding(
    trial: Trial, kind: str, address: str, count: int, *, module: str = "faults.flooding"
) -> Iterator[subprocess.Popen[str]]:
    """A flood at its height, by a process of its own; it tells `trial` what it did at the end.

    Raises:
        RuntimeError: it ended by itself.
    """
    command = [sys.executable, "-m", module, kind, address, str(count)]
    log = trial.directory / f"flood-{kind}.log"
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "flooding\n":
                raise RuntimeError(f"the flood ended by itself: {log.read_text()[-2_000:]}")
            yield process
            told, _ = process.communicate(timeout=READY_S)
            for name, count_ in json.loads(told or "{}").items():
                trial.counts[f"flood: {name}"] += count_
        finally:
            process.kill()


def p99_ms(waits_s: list[float]) -> float:
    return round(1e3 * float(np.quantile(waits_s, 0.99)), 1) if waits_s else float("nan")


def p50_ms(waits_s: list[float]) -> float:
    return round(1e3 * float(np.median(waits_s)), 1) if waits_s else float("nan")


def fill(client: Client, rows: int) -> None:
    client.create_dataset(numbered_schema(DATASET))
    for first in range(0, rows, 100_000):
        client.ingest(DATASET, numbered(first, min(100_000, rows - first)))
