"""Map tiles of cells: made anew at each request, and unchanged."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import numpy as np

from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Spread
from benchmarks.sizes import Bench
from galileo.client import Client
from galileo.gateway.options import REQUESTS_OF_CALLER_MAX
from galileo.gateway.tile_matrix_sets import WEB_MERCATOR

DATASET = "nam"
NODES = 3
COARSE, FINE = range(4), range(5, 8)
"""Zooms: of tiles with much of a continent, and with a part of it."""
TILES = 40
"""Of each kind, each asked for once."""
LIMITS_S = {1_000_000: 0.03, 10_000_000: 0.15}
UNCHANGED_PER_S = 1_000.0
UNCHANGED_S = 5.0
BATCH_ROWS = 65_536
STATISTICS = ("mean", "max", "min", "sum", "count")


def measure(bench: Bench) -> Iterator[Figure]:
    for rows in bench.sizes.tile_rows:
        with (
            clusters.cluster(bench.directory, nodes=NODES, groups=1) as running,
            running.client(timeout=clusters.PATIENCE) as client,
        ):
            clusters.create_dataset(running, client, DATASET)
            bench.say(f"storing {rows:,} observations")
            client.ingest(DATASET, clusters.forecast(rows, stride=1), batch_rows=BATCH_ROWS)
            with running.gateway() as gateway:
                yield from _figures(gateway.url, client, rows)


def _figures(url: str, client: Client, rows: int) -> Iterator[Figure]:
    described = client.describe(DATASET)
    labels, bbox = described.paths, described.bbox or (0.0, 0.0, 0.0, 0.0)
    [row] = client.nearest(
        DATASET, latitude=(bbox[1] + bbox[3]) / 2, longitude=(bbox[0] + bbox[2]) / 2, k=1
    ).table.to_pylist()
    centre = row["latitude"], row["longitude"]
    features = [one.name for one in client.schema(DATASET).indexed if one.type == "float"]
    for name, zooms in (("with much of a continent", COARSE), ("with a part of it", FINE)):
        taken = [_seconds(url, path) for path in _paths(zooms, features, centre)]
        limit = LIMITS_S.get(rows)
        goals = () if limit is None else (Goal("at most", limit),)
        what = f"tile {name}, made anew, {labels:,} labels"
        yield Figure(what, "s", Spread.of(taken[1:]), goals=goals)
    path = f"/collections/{DATASET}/tiles/WebMercatorQuad/0/0/0"
    rates = [asyncio.run(_unchanged(url, path)) for _ in range(3)]
    goal = Goal("at least", UNCHANGED_PER_S)
    yield Figure("unchanged tile (304)", "tiles/s", Spread.of(rates), goals=(goal,))


def _paths(zooms: range, features: list[str], centre: tuple[float, float]) -> Iterator[str]:
    """Tiles, no two of which have the same place and statistics; the first is for warming up."""
    wanted = [f"{name}:{statistic}" for statistic in STATISTICS for name in features]
    pairs = itertools.product(wanted, zooms)
    for statistics, zoom in itertools.islice(pairs, TILES + 1):
        below = WEB_MERCATOR.below(np.array(centre[0]))
        row, column = int(below * 2**zoom), int((centre[1] + 180) / 360 * 2**zoom)
        yield (
            f"/collections/{DATASET}/tiles/WebMercatorQuad/{zoom}/{row}/{column}"
            f"?statistics={statistics}"
        )


def _seconds(url: str, path: str) -> float:
    """How long a tile takes over a new connection."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200 or not answer.read():
            raise AssertionError(f"expected a tile at {path}, got status {answer.status}")
    finally:
        connection.close()
    return time.perf_counter() - started


async def _unchanged(url: str, path: str) -> float:
    """Answers a second to as many connections as a caller may use."""
    where = urlsplit(url)
    etag = await _etag(url, path)
    head = f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nIf-None-Match: {etag}\r\n\r\n".encode()
    until, answers = time.perf_counter() + UNCHANGED_S, 0

    async def ask() -> None:
        nonlocal answers
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        while time.perf_counter() < until:
            writer.write(head)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 304"):
                raise AssertionError(f"expected status 304, got {answer[:40]!r}")
            answers += 1
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(REQUESTS_OF_CALLER_MAX)))
    return answers / (time.perf_counter() - started)


async def _etag(url: str, path: str) -> str:
    def ask() -> str:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return str(answer.headers["ETag"])

    return await asyncio.to_thread(ask)
