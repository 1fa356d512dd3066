"""Who sent what, what was acknowledged, and what is there: the judge of every fault."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fault_injection.history import History
from galileo.client import Client
from galileo.errors import GalileoError
from galileo.model.schema import Feature, Schema

ROWS = 100
START_US = 1_393_632_000_000_000
DAY_US = 86_400_000_000
PAUSE_S = 0.002

Numbers = npt.NDArray[np.int64]


def numbered_schema(name: str) -> Schema:
    """Of observations that carry a number of their own; everything else follows from it."""
    features = [Feature("temperature", unit="K"), Feature("number", type="int", indexed=False)]
    return Schema(name, features, geohash_precision=4)


def numbered(first: int, rows: int) -> pa.Table:
    """Observations all over the world, numbered from `first` on."""
    numbers = np.arange(first, first + rows, dtype=np.int64)
    times = START_US + _mixed(numbers, 3) % DAY_US
    return pa.table(
        {
            "latitude": _mixed(numbers, 1) % 160_000 / 1_000.0 - 80.0,
            "longitude": _mixed(numbers, 2) % 360_000 / 1_000.0 - 180.0,
            "time": pa.array(times, pa.timestamp("us", tz="UTC")),
            "temperature": _temperature(numbers),
            "number": numbers,
        }
    )


def _mixed(numbers: Numbers, salt: int) -> Numbers:
    """Well spread, and the same for the same number."""
    mixed = (numbers.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(24)).astype(np.int64)


def _temperature(numbers: Numbers) -> npt.NDArray[np.float64]:
    return 250.0 + _mixed(numbers, 4) % 600 / 10.0


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found in place of what was acknowledged, in observations.

    Attributes:
        acknowledged: that must be there.
        doubtful: without an answer yet, or refused: each may be there once.
        found: all that is there.
        lost: acknowledged and not there.
        repeated: beyond the first of each number.
        altered: with other values than were sent.
        foreign: never sent, or never without a final answer.
    """

    acknowledged: int
    doubtful: int
    found: int
    lost: int
    repeated: int
    altered: int
    foreign: int

    @property
    def clean(self) -> bool:
        return not (self.lost or self.repeated or self.altered or self.foreign)


@dataclass(slots=True)
class Ledger:
    """Sends numbered observations and notes which ones were acknowledged; thread-safe.

    Args:
        dataset: of `numbered_schema`.
        rows: in one batch.

    Attributes:
        history: of the batches; readers may add what they read.
    """

    dataset: str
    rows: int = ROWS
    history: History = field(init=False)
    _next: Iterator[int] = field(default_factory=itertools.count)
    _acknowledged: list[int] = field(default_factory=list)
    _doubtful: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.history = History(self.rows)

    def send(self, client: Client) -> None:
        """One batch; it is acknowledged when this returns, and in doubt when it raises.

        Raises:
            GalileoError: as `Client.ingest`.
        """
        with self._lock:
            batch = next(self._next)
            self._doubtful.add(batch)
        self.history.begin_write(batch, time.monotonic())
        receipt = client.ingest(self.dataset, numbered(batch * self.rows, self.rows))
        if receipt.rows != self.rows:
            raise AssertionError(f"expected a receipt of {self.rows} rows, got {receipt}")
        self.history.end_write(batch, time.monotonic())
        with self._lock:
            self._doubtful.remove(batch)
            self._acknowledged.append(batch)

    @property
    def acknowledged(self) -> int:
        """Observations so far."""
        with self._lock:
            return len(self._acknowledged) * self.rows

    def audit(self, client: Client) -> Audit:
        """Reads everything back and compares; what was acknowledged before the call must be there.

        Raises:
            GalileoError: it cannot be read.
        """
        with self._lock:
            before = set(self._acknowledged)
        labels = client.query(self.dataset)
        if not labels.complete:
            raise AssertionError(f"expected a complete answer, {labels.missing} is missing")
        return self.compare(client.read(labels), before)

    def compare(self, table: pa.Table, acknowledged: set[int] | None = None) -> Audit:
        """The same for observations that were read; all that is acknowledged by now by default."""
        with self._lock:
            must = set(self._acknowledged) if acknowledged is None else acknowledged
            may = self._doubtful | set(self._acknowledged)
        found = table.column("number").to_numpy().astype(np.int64)
        there = np.unique(found)
        return Audit(
            acknowledged=len(must) * self.rows,
            doubtful=len(may - must) * self.rows,
            found=len(found),
            lost=len(np.setdiff1d(self._numbers(must), there)),
            repeated=len(found) - len(there),
            altered=int(np.count_nonzero(_altered(table, found))),
            foreign=len(np.setdiff1d(there, self._numbers(may))),
        )

    def _numbers(self, batches: set[int]) -> Numbers:
        starts = np.fromiter(batches, dtype=np.int64, count=len(batches)) * self.rows
        return (starts[:, None] + np.arange(self.rows)).ravel()


def _altered(table: pa.Table, numbers: Numbers) -> npt.NDArray[np.bool_]:
    """Which observations have a value that does not follow from their number."""
    sent = numbered(0, 1)
    wanted = {
        "latitude": _mixed(numbers, 1) % 160_000 / 1_000.0 - 80.0,
        "longitude": _mixed(numbers, 2) % 360_000 / 1_000.0 - 180.0,
        "time": START_US + _mixed(numbers, 3) % DAY_US,
        "temperature": _temperature(numbers),
    }
    wrong = np.zeros(len(numbers), dtype=np.bool_)
    for name, values in wanted.items():
        column = table.column(name).cast(sent.schema.field(name).type)
        held = column.cast(pa.int64()) if name == "time" else column
        wrong |= held.to_numpy() != values
    return wrong


class Producer(threading.Thread):
    """Sends batches one after the other until it is stopped.

    Attributes:
        failure: the error that ended it early; there must be none.
        calls: beginning and end of each acknowledged batch, by the monotonic clock.
    """

    def __init__(self, ledger: Ledger, client: Client, *, pause_s: float = PAUSE_S) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self.calls: list[tuple[float, float]] = []
        self._ledger = ledger
        self._client = client
        self._pause_s = pause_s
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._pause_s):
                began = time.monotonic()
                self._ledger.send(self._client)
                self.calls.append((began, time.monotonic()))
        except BaseException as error:
            self.failure = error

    def stop(self, timeout_s: float = 120.0) -> None:
        """Lets the batch that is under way come to its end.

        Raises:
            GalileoError: the failure that ended the producer before.
            TimeoutError: it does not end.
        """
        self._stopping.set()
        self.join(timeout_s)
        if self.is_alive():
            raise TimeoutError(f"a batch was not answered within {timeout_s:.0f} s")
        if isinstance(self.failure, GalileoError):
            raise self.failure
        if self.failure is not None:
            raise RuntimeError("a producer failed") from self.failure
