"""Many clients at once: they ingest, query, stream, read and fetch from one node.

`python -m benchmarks.clients ADDRESS DATASET CLIENTS SECONDS SEED` is a process of some clients,
each with its own connection and thread. It says when they are ready, waits for a line, lets them
work, and prints the seconds of each call as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

import galileo
from benchmarks import clusters
from benchmarks.clusters import DATASET, FIRST_HOUR, SMALL, fill
from benchmarks.figures import Figure, Peer, Spread
from benchmarks.processes import Growth
from benchmarks.sizes import Bench
from galileo.client import Client, Update
from galileo.generate import NamLike

CLIENTS_PER_PROCESS = 5
ALONE_SHARE = 0.2
"""Of the time that all clients work, for one that works alone before."""
PROBE_S = 0.05
NAMES = {
    "ingest": "an ingest of 500 observations",
    "query": "a small query",
    "stream": "a large query, streamed",
    "read": "a small query and its observations",
    "fetch": "a fetch of a continuous query",
}


def measure(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    with (
        clusters.cluster(bench.directory, nodes=1) as running,
        clusters.warm_evaluator(running),
    ):
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, DATASET)
        fill(client, bench, labels=sizes.preload_rows)
        bench.say("one client alone")
        alone = _work(running, clients=1, seconds=ALONE_SHARE * sizes.clients_s)
        bench.say(f"{sizes.clients} clients for {sizes.clients_s:g} s")
        with Growth(running.nodes[0].pid) as growth, _probing(client) as waits:
            watch = _Watch(growth, seconds=sizes.clients_s)
            together = _work(running, clients=sizes.clients, seconds=sizes.clients_s, watch=watch)
    bench.say(f"{sum(map(len, together.values())):,} calls, no error")
    for name in SHARES:
        yield from _figures(name, together[name], alone[name], clients=sizes.clients)
    yield from watch.figures()
    yield Figure("what the node lets a call wait that does nothing", "s", Spread.of(waits))


class _Watch:
    """Notes the node's memory when the work begins, half-way, and when it has ended."""

    def __init__(self, growth: Growth, *, seconds: float) -> None:
        self._growth = growth
        self._timer = threading.Timer(seconds / 2, self._half_way)
        self._bytes: dict[str, int] = {}

    def __enter__(self) -> None:
        self._bytes["when they begin"] = self._growth.now()
        self._timer.start()

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        self._bytes["at the end"] = self._growth.now()
        self._bytes["at most"] = self._growth.peak

    def _half_way(self) -> None:
        self._bytes["half-way"] = self._growth.now()

    def figures(self) -> Iterator[Figure]:
        for when, size in self._bytes.items():
            yield Figure(f"memory of the node {when}", "B", Spread.of([size]))


def _figures(
    name: str, together: list[float], alone: list[float], *, clients: int
) -> Iterator[Figure]:
    """Median and 99th percentile; the runs are the calls."""
    for share, title in ((0.5, "p50"), (0.99, "p99")):
        peer = Peer("the same of one client alone", Spread.of([_quantile(alone, share)]))
        value = Spread.of([_quantile(together, share)])
        yield Figure(f"{NAMES[name]}, {clients} clients: {title}", "s", value, (peer,))


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _work(
    running: galileo.LocalCluster,
    *,
    clients: int,
    seconds: float,
    watch: contextlib.AbstractContextManager[None] | None = None,
) -> dict[str, list[float]]:
    """Seconds of all calls of so many clients, spread over processes; any error is one here."""
    shares = [min(CLIENTS_PER_PROCESS, clients - n) for n in range(0, clients, CLIENTS_PER_PROCESS)]
    took: dict[str, list[float]] = defaultdict(list)
    words = (running.addresses[0], DATASET)
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                clusters.child("benchmarks.clients", *words, share, seconds, 100 * number)
            )
            for number, share in enumerate(shares)
        ]
        stack.enter_context(watch or contextlib.nullcontext())
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            output, _ = process.communicate()
            report = json.loads(output)
            if report["errors"]:
                raise AssertionError(
                    f"{len(report['errors'])} calls failed: {report['errors'][:5]}"
                )
            for name, values in report["took"].items():
                took[name] += values
    return took


@contextlib.contextmanager
def _probing(client: galileo.Client) -> Iterator[list[float]]:
    """Calls that do nothing, again and again: they wait for the node's event loop alone."""
    waits: list[float] = []
    ending = threading.Event()

    def probe() -> None:
        while not ending.wait(PROBE_S):
            started = time.perf_counter()
            client.topology_json()
            waits.append(time.perf_counter() - started)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield waits
    finally:
        ending.set()
        thread.join()


INGEST_ROWS = 500
INTERVAL, EXPIRATION = "1s", "1h"
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
    print(clusters.READY, flush=True)
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
