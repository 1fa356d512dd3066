"""Some clients in a process of their own, each with its own connection and thread, all at work.

`python -m benchmarks.worker ADDRESS DATASET CLIENTS SECONDS SEED` says when they are ready, waits
for a line, lets them work, and prints what each call took, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pyarrow as pa

import galileo
from galileo.client import Client, Update
from galileo.generate import NamLike

READY = "ready"
INGEST_ROWS = 500
INTERVAL, EXPIRATION = "1s", "1h"
FIRST_HOUR = "T_BEFORE(datetime, TIMESTAMP('2014-03-01T01:00:00Z'))"
SMALL = f"S_INTERSECTS(geometry, BBOX(-105, 38, -102, 41)) AND {FIRST_HOUR}"
WARM = "temperature > 300"
LATER = "2014-03-02T00:00:00Z"
"""What is ingested meanwhile is of another time than what is asked for, so answers are known."""
SHARES = {"ingest": 0.3, "query": 0.35, "stream": 0.05, "read": 0.15, "fetch": 0.15}


class Worker:
    """One client: draws what it does next, and checks what it gets.

    Attributes:
        took: seconds of each call, by what it did.
        errors: what failed; nothing should.
    """

    def __init__(self, client: Client, dataset: str, *, seed: int) -> None:
        self.took: dict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []
        self._client = client
        self._dataset = dataset
        self._random = np.random.default_rng(seed)
        self._forecast = NamLike(seed=seed, stride=4).forecast(LATER)
        self._small = len(client.query(dataset, SMALL))
        self._hour = len(client.query(dataset, FIRST_HOUR))
        ccq = client.submit(dataset, WARM, interval=INTERVAL, expiration=EXPIRATION)
        self._ccq, self._token = ccq.id, ccq.token
        self._updates: list[Update] = []
        self._calls: dict[str, Callable[[], None]] = {
            "ingest": self._ingest,
            "query": self._query,
            "stream": self._stream,
            "read": self._read,
            "fetch": self._fetch,
        }

    def work(self, seconds: float) -> None:
        ending = time.monotonic() + seconds
        while time.monotonic() < ending:
            name = str(self._random.choice(list(SHARES), p=list(SHARES.values())))
            started = time.perf_counter()
            try:
                self._calls[name]()
            except Exception as error:
                self.errors.append(f"{name}: {error!r}")
            self.took[name].append(time.perf_counter() - started)

    def finish(self) -> None:
        """Whatever was fetched was new."""
        self._client.cancel(self._ccq)
        if not self._updates:
            return
        table = pa.concat_tables([update.labels.table for update in self._updates])
        found = table.group_by(["partition", "sequence", "row"]).aggregate([])
        if found.num_rows != table.num_rows:
            self.errors.append(f"fetch: {table.num_rows - found.num_rows} labels came twice")

    def _ingest(self) -> None:
        start = int(self._random.integers(0, self._forecast.num_rows - INGEST_ROWS))
        receipt = self._client.ingest(self._dataset, self._forecast.slice(start, INGEST_ROWS))
        _expect(INGEST_ROWS, receipt.rows)

    def _query(self) -> None:
        _expect(self._small, len(self._client.query(self._dataset, SMALL)))

    def _stream(self) -> None:
        batches = self._client.query_batches(self._dataset, FIRST_HOUR)
        _expect(self._hour, sum(map(len, batches)))

    def _read(self) -> None:
        labels = self._client.query(self._dataset, SMALL)
        _expect(int(np.sum(labels.table.column("rows").to_numpy())), labels.table.num_rows)
        table = self._client.read(labels, exact=False)
        _expect(labels.table.num_rows, table.num_rows)

    def _fetch(self) -> None:
        update = self._client.fetch(self._ccq, token=self._token)
        self._token = update.token
        self._updates.append(update)


def _expect(wanted: int, got: int) -> None:
    if wanted != got:
        raise AssertionError(f"expected {wanted:,}, got {got:,}")


def main(address: str, dataset: str, clients: int, seconds: float, seed: int) -> None:
    connected = [galileo.connect(address, timeout="30s") for _ in range(clients)]
    workers = [Worker(c, dataset, seed=seed + n) for n, c in enumerate(connected)]
    print(READY, flush=True)
    sys.stdin.readline()
    threads = [threading.Thread(target=worker.work, args=(seconds,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in workers:
        worker.finish()
    took: dict[str, list[float]] = defaultdict(list)
    for worker in workers:
        for name, values in worker.took.items():
            took[name] += values
    errors = [error for worker in workers for error in worker.errors]
    print(json.dumps({"took": took, "errors": errors}))
    for client in connected:
        client.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
