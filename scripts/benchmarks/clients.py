"""Many clients at once: they ingest, ask, stream, read and fetch from one node."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Peer, Spread
from benchmarks.memory import Growth
from benchmarks.sizes import Bench
from benchmarks.streaming import DATASET, fill
from benchmarks.worker import READY, SHARES

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
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(_worker(running, share, seconds=seconds, seed=100 * number))
            for number, share in enumerate(shares)
        ]
        stack.enter_context(watch or contextlib.nullcontext())
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            output, _ = process.communicate()
            told = json.loads(output)
            if told["errors"]:
                raise AssertionError(f"{len(told['errors'])} calls failed: {told['errors'][:5]}")
            for name, values in told["took"].items():
                took[name] += values
    return took


@contextlib.contextmanager
def _worker(
    running: galileo.LocalCluster, clients: int, *, seconds: float, seed: int
) -> Iterator[subprocess.Popen[str]]:
    """A process of clients that are ready."""
    words = (running.addresses[0], DATASET, str(clients), str(seconds), str(seed))
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != READY:
                raise AssertionError("expected clients to get ready, they failed")
            yield process
        except BaseException:
            process.kill()
            raise


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
