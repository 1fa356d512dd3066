"""Fetching a cached result while the store grows, against asking the same query again.

The paper's Fig. 6: standard queries against retrievals of continuous ones. Three nodes; at each
size of the store there is a query that 10,000 of its paths match, spread over all of it. Its
features are drawn without regard to place and time, so nothing but looking finds them. Timed is
the whole answer in one process's hands: what is fetched, from the first token on, is all that the
query has found so far, unpacked; asked again is the same text, and the same labels come. How long a
fetch takes that finds nothing is next to both: what the call costs, however little it brings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn
from benchmarks.sizes import Bench
from benchmarks.weather import LATITUDES, LONGITUDES, SCHEMA, START_US
from galileo.client import Ccq
from galileo.cursor import Cursor
from galileo.model.times import MICROS, times_from_micros

INTERVAL, EXPIRATION = "1s", "2h"
NODES = 3
BATCH_ROWS = 65_536
DECIMALS = 4
RUN_S = 0.2
SETTLE_S = 5.0
"""While nodes merge what they have just stored."""
SETTINGS = {"limits": {"cache_bytes_max": 1 << 30}}
OF_A_QUERY = 0.1
MATCHES_NOTHING = "humidity > 101"
TOLERANCE, SLACK = 0.3, 50
"""Results more or less that a query may have, since the weather is random: a share, and some."""


def measure(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    with opened(bench) as store:
        ccqs = {stored: store.submit(sizes.growth_results, stored) for stored in sizes.growth}
        for stored, ccq in ccqs.items():
            store.grow(stored, ccq)
            labels, fetched, again, empty = store.compared(ccq, sizes.growth_results)
            peers = (Peer("the same query asked again", again), Peer("a fetch of nothing", empty))
            name = f"fetch {labels:,} cached labels, {stored:,} stored"
            yield Figure(name, "s", fetched, peers, (Goal("at most", OF_A_QUERY, of_peer=True),))


@contextmanager
def opened(bench: Bench) -> Iterator[Store]:
    """An empty store on three nodes, with a warm evaluator."""
    with (
        clusters.cluster(bench.directory, nodes=NODES, settings=SETTINGS) as running,
        clusters.warm_evaluator(running),
    ):
        yield Store(bench, running)


class Store:
    """Observations of random weather, more and more of them, and continuous queries over them.

    Attributes:
        running, client: the cluster.
        reached: by what is stored.
    """

    def __init__(self, bench: Bench, running: galileo.LocalCluster) -> None:
        self.running = running
        self.client = running.client(timeout=clusters.PATIENCE)
        self.client.create_dataset(SCHEMA)
        self.reached = Cursor()
        self._bench = bench
        self._generator = np.random.default_rng(7)
        self._stored = 0
        self._texts: dict[str, str] = {}
        self._nothing = self._submit(MATCHES_NOTHING)

    def submit(self, results: int, stored: int) -> Ccq:
        """Submits what so many of `stored` observations match, on average."""
        least = 100.0 * np.sqrt(1.0 - results / stored)  # humidity is 100·√U
        return self._submit(f"humidity > {least:.6f}" if results else MATCHES_NOTHING)

    def grow(self, stored: int, *ccqs: Ccq) -> None:
        """Stores so many observations in all; returns when the caches of `ccqs` have them."""
        self._bench.say(f"storing {stored:,} observations")
        missing, self._stored = stored - self._stored, stored
        batches = (
            observations(min(BATCH_ROWS, missing - start), self._generator)
            for start in range(0, missing, BATCH_ROWS)
        )
        receipt = self.client.ingest(SCHEMA.name, batches, batch_rows=BATCH_ROWS)
        self.reached = self.reached.join(receipt.reached)
        for ccq in ccqs:
            clusters.wait_cached(self.client, ccq.id, token=ccq.token, reached=self.reached)
        time.sleep(SETTLE_S)

    def compared(self, ccq: Ccq, wanted: int) -> tuple[int, Spread, Spread, Spread]:
        """Labels, and seconds of a fetch of all, of the query asked again, of an empty fetch.

        Raises:
            AssertionError: there are not about `wanted` labels.
        """
        client, query = self.client, self._texts[ccq.id]
        labels = len(client.query(SCHEMA.name, query))
        if abs(labels - wanted) > TOLERANCE * wanted + SLACK * bool(wanted):
            raise AssertionError(f"expected about {wanted:,} labels of {query!r}, got {labels:,}")
        self._bench.say(f"fetching {labels:,} results, and asking again")
        fetched, again, empty = in_turn(
            lambda: self._fetch(ccq, labels),
            lambda: client.query(SCHEMA.name, query),
            lambda: self._fetch(self._nothing, 0),
            runs=self._bench.sizes.runs,
            run_s=RUN_S,
        )
        return labels, fetched, again, empty

    def _submit(self, query: str) -> Ccq:
        ccq = self.client.submit(SCHEMA.name, query, interval=INTERVAL, expiration=EXPIRATION)
        self._texts[ccq.id] = query
        return ccq

    def _fetch(self, ccq: Ccq, labels: int) -> galileo.Update:
        update = self.client.fetch(ccq.id, token=ccq.token)
        if len(update.labels) != labels:
            raise AssertionError(f"expected {labels:,} labels, got {len(update.labels):,}")
        return update


def observations(rows: int, generator: np.random.Generator) -> pa.Table:
    """As sensors report it, with four decimals."""
    features = {
        "humidity": 100.0 * np.sqrt(generator.random(rows)),
        "temperature": generator.normal(283.0, 12.0, rows),
        "wind": np.abs(generator.normal(0.0, 6.0, rows)),
        "snow": np.where(generator.random(rows) < 0.8, 0.0, generator.uniform(0.0, 2.0, rows)),
    }
    days_us = generator.integers(0, 10 * 86_400, rows) * MICROS
    columns = {
        "latitude": generator.uniform(*LATITUDES, rows),
        "longitude": generator.uniform(*LONGITUDES, rows),
        "time": times_from_micros(START_US + days_us),
    }
    return pa.table(
        columns | {name: np.round(values, DECIMALS) for name, values in features.items()}
    )
