"""The HTTP gateway: pages, a large file, and what readers that take nothing cost it and a node."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Spread
from benchmarks.processes import Growth, processor_seconds
from benchmarks.sizes import Bench
from galileo.local_gateway import LocalGateway

DATASET = "nam"
PAGE = f"/collections/{DATASET}/items?limit=10"
FILE = f"/collections/{DATASET}/items?f=csv"
CLIENTS = 16
PAGES = 200
"""Of each client."""
STOPPED = 16
SETTLE_S = 3.0
"""Until what stopped readers are sent has filled all buffers."""
TIMEOUT_S = 120.0
MIB = 1 << 20
RECEIVED_BYTES = 4_096
"""Of the buffer of a reader that takes nothing."""


def measure(bench: Bench) -> Iterator[Figure]:
    rows = bench.sizes.gateway_rows
    with clusters.cluster(bench.directory, nodes=1) as running, running.gateway() as gateway:
        client = running.client(timeout=clusters.PATIENCE)
        clusters.create_dataset(running, client, DATASET)
        client.ingest(DATASET, clusters.forecast(rows, stride=1))
        processes = {"gateway": gateway.pid, "node": running.nodes[0].pid}
        _pages(gateway, PAGES // 4)
        before = {name: processor_seconds(_running(pid)) for name, pid in processes.items()}
        alone = _pages(gateway, PAGES)
        for name, pid in processes.items():
            spent_s = processor_seconds(_running(pid)) - before[name]
            yield Figure(
                f"processor time of the {name} for such a page", "s", Spread.of([spent_s / PAGES])
            )
        yield Figure(
            "a page of 10 observations, one client",
            "s",
            Spread.of(alone),
            goals=(Goal("at most", 4e-3),),
        )
        rates = [_pages_of_many(gateway) for _ in range(bench.sizes.runs)]
        yield Figure(
            f"pages of 10 observations, {CLIENTS} clients",
            "pages/s",
            Spread.of(rates),
            goals=(Goal("at least", 400.0),),
        )
        yield from _files(gateway, rows, runs=bench.sizes.runs)
        yield from _stopped(gateway, processes)


def _running(pid: int | None) -> int:
    if pid is None:
        raise RuntimeError("expected a process that runs, got one that has ended")
    return pid


def _connection(gateway: LocalGateway) -> http.client.HTTPConnection:
    where = urlsplit(gateway.url)
    return http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)


def _pages(gateway: LocalGateway, count: int) -> list[float]:
    """Seconds of each of `count` pages, over one connection."""
    connection, times = _connection(gateway), []
    for _ in range(count):
        begun = time.perf_counter()
        connection.request("GET", PAGE)
        reply = connection.getresponse()
        reply.read()
        times.append(time.perf_counter() - begun)
        _expect_ok(reply)
    connection.close()
    return times


def _pages_of_many(gateway: LocalGateway) -> float:
    """Pages a second of clients at the same time."""
    threads = [threading.Thread(target=_pages, args=(gateway, PAGES)) for _ in range(CLIENTS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return CLIENTS * PAGES / (time.perf_counter() - begun)


def _files(gateway: LocalGateway, rows: int, *, runs: int) -> Iterator[Figure]:
    """The first byte of a file of everything, and what the gateway's memory grows by."""
    firsts, grown = [], []
    for _ in range(runs):
        connection = _connection(gateway)
        with Growth(gateway.pid) as growth:
            begun = time.perf_counter()
            connection.request("GET", FILE)
            reply = connection.getresponse()
            reply.read(1)
            firsts.append(time.perf_counter() - begun)
            while reply.read(MIB):
                pass
        connection.close()
        _expect_ok(reply)
        grown.append(growth.bytes)
    yield Figure(
        f"first byte of a file of {rows:,} observations",
        "s",
        Spread.of(firsts),
        goals=(Goal("at most", 60e-3),),
    )
    yield Figure(
        "memory that such a file takes",
        "B",
        Spread.of(grown),
        goals=(Goal("at most", 128.0 * MIB),),
    )


def _stopped(gateway: LocalGateway, processes: dict[str, int | None]) -> Iterator[Figure]:
    """Memory for each reader that begins such a file and takes nothing."""
    where = urlsplit(gateway.url)
    with contextlib.ExitStack() as stack:
        growths = {name: stack.enter_context(Growth(pid)) for name, pid in processes.items()}
        readers = [stack.enter_context(socket.socket()) for _ in range(STOPPED)]
        for reader in readers:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
            reader.connect((where.hostname, where.port))
            reader.sendall(f"GET {FILE} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
        time.sleep(SETTLE_S)
    goals = {"gateway": (Goal("at most", 2.0 * MIB),)}
    for name, growth in growths.items():
        yield Figure(
            f"memory of the {name} for each reader that takes nothing of such a file",
            "B",
            Spread.of([growth.bytes / STOPPED]),
            goals=goals.get(name, ()),
        )


def _expect_ok(reply: http.client.HTTPResponse) -> None:
    if reply.status != 200:
        raise RuntimeError(f"expected an answer with status 200, got {reply.status}")
