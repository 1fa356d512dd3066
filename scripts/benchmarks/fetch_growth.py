"""Fetching a cached result while the store grows, against asking the same query again.

The paper's Fig. 6: standard queries against retrievals of continuous ones. Three nodes; at each
size of the store there is a query that 10,000 of its paths match, spread over all of it. Its
features are drawn without regard to place and time, so nothing but looking finds them. Timed is
the whole answer in one process's hands: what is fetched, from the first token on, is all that the
query has found so far, unpacked; asked again is the same text, and the same labels come. How long a
fetch takes that finds nothing stands beside both: what the call costs, however little it brings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import galileo
from benchmarks import clusters
from benchmarks.figures import Figure, Goal, Peer, Spread, in_turn
from benchmarks.sizes import Bench
from benchmarks.weather import LATITUDES, LONGITUDES, SCHEMA, START_US
from galileo.client import Ccq, Client
from galileo.cursor import Cursor
from galileo.model.times import MICROS, times_from_micros

INTERVAL, EXPIRATION = "1s", "2h"
BATCH_ROWS = 65_536
DECIMALS = 4
RUN_S = 0.2
SETTLE_S = 5.0
"""While nodes merge what they have just stored."""
SETTINGS = {"limits": {"cache_bytes_max": 1 << 30}}
OF_A_QUERY = 0.1
MATCHES_NOTHING = "humidity > 101"


def measure(bench: Bench) -> Iterator[Figure]:
    sizes = bench.sizes
    with (
        clusters.cluster(bench.directory, nodes=3, settings=SETTINGS) as running,
        clusters.warm_evaluator(running),
    ):
        client = running.client(timeout=clusters.PATIENCE)
        client.create_dataset(SCHEMA)
        ccqs = {
            stored: client.submit(
                SCHEMA.name,
                query_of(sizes.growth_results, stored),
                interval=INTERVAL,
                expiration=EXPIRATION,
            )
            for stored in sizes.growth
        }
        nothing = client.submit(
            SCHEMA.name, MATCHES_NOTHING, interval=INTERVAL, expiration=EXPIRATION
        )
        store = Store(client, seed=7)
        for stored in sizes.growth:
            bench.say(f"storing {stored:,} observations")
            store.grow(stored)
            ccq = ccqs[stored]
            clusters.wait_cached(client, ccq.id, token=ccq.token, reached=store.reached)
            time.sleep(SETTLE_S)
            yield _figure(bench, client, ccq, stored, nothing=nothing)


def query_of(results: int, stored: int) -> str:
    """What so many of `stored` observations match, on average: humidity is 100·√U."""
    least = 100.0 * np.sqrt(1.0 - results / stored)
    return f"humidity > {least:.6f}"


class Store:
    """Observations of random weather, more and more of them."""

    def __init__(self, client: Client, *, seed: int) -> None:
        self.reached = Cursor()
        self._client = client
        self._generator = np.random.default_rng(seed)
        self._stored = 0

    def grow(self, stored: int) -> None:
        missing, self._stored = stored - self._stored, stored
        batches = (
            observations(min(BATCH_ROWS, missing - start), self._generator)
            for start in range(0, missing, BATCH_ROWS)
        )
        receipt = self._client.ingest(SCHEMA.name, batches, batch_rows=BATCH_ROWS)
        self.reached = self.reached.join(receipt.reached)


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


def _figure(bench: Bench, client: Client, ccq: Ccq, stored: int, *, nothing: Ccq) -> Figure:
    query = query_of(bench.sizes.growth_results, stored)
    labels = len(client.query(SCHEMA.name, query))
    if not 0.8 * bench.sizes.growth_results < labels < 1.2 * bench.sizes.growth_results:
        raise AssertionError(f"expected about {bench.sizes.growth_results} labels, got {labels}")
    fetched, again, empty = compared(
        client, ccq, query, labels=labels, nothing=nothing, runs=bench.sizes.runs
    )
    peers = (Peer("the same query asked again", again), Peer("a fetch of nothing", empty))
    name = f"fetch {labels:,} cached labels, {stored:,} stored"
    return Figure(name, "s", fetched, peers, (Goal("at most", OF_A_QUERY, of_peer=True),))


def compared(
    client: Client, ccq: Ccq, query: str, *, labels: int, nothing: Ccq, runs: int
) -> tuple[Spread, Spread, Spread]:
    """Seconds of a fetch of all that `ccq` has cached, of `query`, and of a fetch of nothing.

    Args:
        client: of the cluster.
        ccq: has cached as many `labels`.
        query: its text.
        labels: that fetch and query have to bring.
        nothing: a continuous query that has found nothing.
        runs: of each.
    """

    def fetch() -> galileo.Update:
        update = client.fetch(ccq.id, token=ccq.token)
        if len(update.labels) != labels:
            raise AssertionError(f"expected {labels:,} labels, got {len(update.labels):,}")
        return update

    def fetch_nothing() -> None:
        if len(client.fetch(nothing.id, token=nothing.token).labels):
            raise AssertionError(f"expected nothing of {MATCHES_NOTHING}, got labels")

    fetched, again, empty = in_turn(
        fetch,
        lambda: client.query(SCHEMA.name, query),
        fetch_nothing,
        runs=runs,
        run_s=RUN_S,
    )
    return fetched, again, empty
