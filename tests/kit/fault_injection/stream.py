"""A stream of numbered observations that no fault stops: what fails waits and is sent again."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pyarrow as pa

from fault_injection.ledger import numbered
from galileo.client import Client
from galileo.errors import GalileoError, TransientError

RETRIES_TOGETHER = 3
WAITING_MAX = 2_000
RETRY_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How fast observations come.

    Attributes:
        rows: in a batch.
        pause_s: between two batches.
    """

    rows: int = 100
    pause_s: float = 0.1


class Stream(threading.Thread):
    """Sends batches until it is stopped, then those that wait until all are stored.

    A batch whose rows a dead node keeps is refused and sent again later under its name, newest
    first, so rows of live nodes get through, late ones come late, and nothing is stored twice.

    Args:
        client: with a short timeout, so that a dead node does not hold up what live ones keep.
        dataset: of `numbered_schema`.
        options: how fast.

    Attributes:
        failure: the error that ended it early; there must be none.
        sent: observations stored.
        retried: attempts that were refused and made again.
    """

    def __init__(self, client: Client, dataset: str, options: StreamOptions | None = None) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self.sent = self.retried = 0
        self._client = client
        self._dataset = dataset
        self._options = options or StreamOptions()
        self._waiting: dict[str, pa.Table] = {}
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            number = 0
            while not self._stopping.wait(self._options.pause_s):
                if len(self._waiting) < WAITING_MAX:
                    rows = self._options.rows
                    self._waiting[f"stream-{number}"] = numbered(number * rows, rows)
                    number += 1
                self._send_some()
            while self._waiting:
                self._send_some()
        except BaseException as error:
            self.failure = error

    def finish(self, timeout_s: float = 180.0) -> None:
        """Lets everything that waits be stored.

        Raises:
            GalileoError, RuntimeError: what ended the stream before.
            TimeoutError: it is not stored in time.
        """
        self._stopping.set()
        self.join(timeout_s)
        if self.is_alive():
            left = len(self._waiting)
            raise TimeoutError(f"{left} batches were not stored within {timeout_s:.0f} s")
        if isinstance(self.failure, GalileoError):
            raise self.failure
        if self.failure is not None:
            raise RuntimeError("the stream failed") from self.failure

    def _send_some(self) -> None:
        waiting = self._waiting
        for producer in list(reversed(waiting))[:RETRIES_TOGETHER]:
            try:
                receipt = self._client.ingest(self._dataset, waiting[producer], producer=producer)
            except TransientError:
                self.retried += 1
                self._stopping.wait(RETRY_PAUSE_S)
                continue
            self.sent += receipt.rows
            del waiting[producer]
