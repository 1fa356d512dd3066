"""Readers of a continuous query that record every answer: by watching, by fetching, and in a
process that can be killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from fault_injection.delivery import Deliveries
from galileo.client import Ccq, Client, Spool
from galileo.errors import CcqCancelled, SamplerFailed, TransientError
from galileo.wire import token as tokens

FETCH_WAIT_S, PAUSE_S = 5.0, 0.2


class WatchReader(threading.Thread):
    """Watches a CCQ until that is cancelled.

    Attributes:
        deliveries: recorded answers.
        failure: an error that ended it before the end of the CCQ.
        samplings_failed: number of errors that the sampler was too slow, because its process was
            stopped.
    """

    way = "watch"

    def __init__(self, client: Client, ccq: Ccq) -> None:
        super().__init__(daemon=True)
        self.ccq = ccq
        self.deliveries = Deliveries()
        self.deliveries.begin(ccq.initial)
        self.failure: BaseException | None = None
        self.samplings_failed = 0
        self._client = client

    def run(self) -> None:
        try:
            self._read()
        except CcqCancelled:
            return
        except BaseException as error:
            self.failure = error

    def count(self) -> int:
        """Labels so far.

        Raises:
            RuntimeError: it has ended before the CCQ.
        """
        self.close()
        return len(self.deliveries)

    def close(self) -> None:
        """Stop before the end of the CCQ.

        Raises:
            RuntimeError: it had ended before.
        """
        if self.failure is not None:
            raise RuntimeError(f"the reader by {self.way} failed") from self.failure

    def _read(self) -> None:
        token = self.ccq.token
        while True:
            try:
                for update in self._client.watch(self.ccq.id, token=token):
                    self.deliveries.take(update)
                    token = update.token
            except SamplerFailed:
                self.samplings_failed += 1


class FetchReader(WatchReader):
    """Fetches a CCQ again and again; receives the frontier of empty answers too."""

    way = "fetch"

    def _read(self) -> None:
        token = self.ccq.token
        while True:
            try:
                update = self._client.fetch(self.ccq.id, token=token, wait=FETCH_WAIT_S)
            except TransientError:
                continue
            except SamplerFailed:
                self.samplings_failed += 1
                time.sleep(PAUSE_S)
                continue
            self.deliveries.take(update)
            token = update.token


class SpoolReader:
    """Watches a CCQ into a spool, in a process of its own: `galileo ccq watch ID --spool FILE`.

    Attributes:
        deliveries: contents of the spool after each kill.
    """

    way = "spool"

    def __init__(self, addresses: Sequence[str], ccq: Ccq, spool: Path) -> None:
        self.ccq = ccq
        self.deliveries = Deliveries()
        self.deliveries.begin(ccq.initial)
        self.samplings_failed = 0
        self._nodes = [word for address in addresses for word in ("--node", address)]
        self._path = spool
        self._log = spool.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self._seen = 0

    def start(self) -> None:
        begin = [] if self._path.exists() and self._held() else ["--token", self.ccq.token]
        words = ["ccq", "watch", self.ccq.id, "--spool", str(self._path), *begin, "--json"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "galileo", *self._nodes, "--timeout", "120s", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
            )

    def count(self) -> int:
        """Labels so far.

        Raises:
            RuntimeError: the process has ended by itself; with its last output.
        """
        if self._process is not None and self._process.poll() is not None:
            raise self._ended(self._process.returncode)
        with Spool(self._path) as spool:
            return len(spool) + len(self.ccq.initial)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and record the contents of the spool.

        Raises:
            RuntimeError: the process had ended by itself; with its last output.
        """
        if self._process is None:
            return
        ended = self._process.poll()
        self.end()
        self._note()
        if ended is not None:
            raise self._ended(ended)

    def end(self) -> None:
        """Send SIGKILL without reading the spool."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Kill the process for the last time."""
        self.kill()

    def _ended(self, code: int) -> RuntimeError:
        said = self._log.read_text(errors="replace")[-2_000:]
        return RuntimeError(f"the watching process ended by itself ({code}): {said}")

    def _held(self) -> str:
        with Spool(self._path) as spool:
            return spool.token

    def _note(self) -> None:
        with Spool(self._path) as spool:
            if not spool.token:
                return
            cursor = tokens.decode(spool.token, ccq_id=self.ccq.id)
            parts = [update.labels for update in spool.updates(after=self._seen)]
            self._seen = spool.last_number
            labels = type(self.ccq.initial).concat(self.ccq.initial.schema, parts)
            self.deliveries.take_stored(labels, cursor)


Reader = WatchReader | SpoolReader
