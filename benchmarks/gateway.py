"""The HTTP gateway: pages, a large file, and what readers that take nothing cost it and a node."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Spread
from benchmarks.processes import Growth, processor_seconds
from benchmarks.sizes import Bench
from galileo import Feature, LocalCluster, Schema
from galileo.client import Client
from galileo.local_services import LocalGateway
from galileo.model.times import micros

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
WATCHED = "notes"
EVENTS = 5
EVENT_INTERVAL = "1s"
ROUND_S = 8.0
"""From one event to the next, however many readers there are, so that nodes have equal times."""
START_US = micros(clusters.START)
PROGRAM = "benchmarks.event_readers"


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
        yield from _readers(bench, running, client)


def _running(pid: int | None) -> int:
    if pid is None:
        raise RuntimeError("expected a process that runs, got one that has ended")
    return pid


def _readers(bench: Bench, running: LocalCluster, client: Client) -> Iterator[Figure]:
    """Events of one query for many readers: how long they take, and what they cost."""
    count = bench.sizes.gateway_readers
    client.create_dataset(Schema(WATCHED, [Feature("note", type="text")]))
    ccq = client.submit(WATCHED, interval=EVENT_INTERVAL, expiration="1h")
    # One caller has half of the streams, which are three quarters of the connections.
    arguments = ("--connections", str(3 * count + 100))
    log = bench.directory / f"gateway-{time.monotonic_ns()}.log"
    with LocalGateway(running.addresses, log=log, arguments=arguments) as gateway:
        url = f"{gateway.url}/ccqs/{ccq.id}/events"
        node = _running(running.nodes[0].pid)
        client.ingest(WATCHED, _notes("first"))
        with clusters.child(PROGRAM, url, 1) as one:
            _rounds(client, one, node, "alone", 1)
            _, alone = _rounds(client, one, node, "one", EVENTS)
        with Growth(gateway.pid) as growth, clusters.child(PROGRAM, url, count) as many:
            begun = processor_seconds(gateway.pid or 0)
            took, together = _rounds(client, many, node, "many", EVENTS)
            spent = (processor_seconds(gateway.pid or 0) - begun) / EVENTS
    yield Figure(
        f"an event of 4 KB to {count:,} readers, from the first to the last",
        "s",
        Spread.of(took),
        goals=(Goal("at most", 1.5),),
    )
    yield Figure(
        f"processor time of a gateway in {ROUND_S:g} s with an event to {count:,} readers",
        "s",
        Spread.of([spent]),
    )
    yield Figure(
        f"memory of a gateway for each of {count:,} readers",
        "B",
        Spread.of([growth.bytes / count]),
        goals=(Goal("at most", 40.0 * 1024),),
    )
    yield Figure(
        f"processor time of the node with {count:,} readers, as a multiple of that with one",
        "times",
        Spread.of([together / alone]),
        goals=(Goal("at most", 1.1),),
    )


def _rounds(
    client: Client, readers: subprocess.Popen[str], node: int, name: str, count: int
) -> tuple[list[float], float]:
    """Seconds of each of some events, and the node's processor time."""
    if readers.stdin is None or readers.stdout is None:
        raise RuntimeError("expected readers with pipes")
    took, begun = [], processor_seconds(node)
    for number in range(count):
        until = time.monotonic() + ROUND_S
        text = f"{name}-{number}-"
        client.ingest(WATCHED, _notes(text))
        print(text, file=readers.stdin, flush=True)
        first, last = map(float, readers.stdout.readline().split())
        took.append(last - first)
        time.sleep(max(0.0, until - time.monotonic()))
    return took, processor_seconds(node) - begun


def _notes(text: str) -> pa.Table:
    """Observations whose labels are an event of about 4 KB."""
    rows = 10
    return pa.table(
        {
            "latitude": np.full(rows, 40.0),
            "longitude": np.full(rows, -105.0),
            "time": pa.array([START_US] * rows, pa.timestamp("us", "UTC")),
            "note": [f"{text}{number}" for number in range(rows)],
        }
    )


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
