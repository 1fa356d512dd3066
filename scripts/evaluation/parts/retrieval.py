"""How long standard and continuous queries take by the number of their results (paper, Fig. 6).

Three nodes with random weather, in which only looking finds anything. For each number of results
there is a query; a continuous one, submitted before, has cached them all. Both are timed in turn
in the hands of the same client, unpacked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks import clusters, fetch_growth
from benchmarks.fetch_growth import EXPIRATION, INTERVAL, MATCHES_NOTHING, SETTINGS, SETTLE_S
from benchmarks.sizes import Bench
from benchmarks.weather import SCHEMA

from evaluation.sizes import Sizes
from galileo.client import Ccq, Client

NODES = 3
TOLERANCE = 0.3
SLACK = 50
"""Results more or less that a small query may have, since the weather is random."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Seconds of each run, for one number of results."""

    results: int
    standard_s: tuple[float, ...]
    continuous_s: tuple[float, ...]
    nothing_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Retrieval:
    nodes: int
    stored: int
    points: tuple[Retrieved, ...]


def measure(sizes: Sizes, bench: Bench) -> Retrieval:
    with (
        clusters.cluster(bench.directory, nodes=NODES, settings=SETTINGS) as running,
        clusters.warm_evaluator(running),
    ):
        client = running.client(timeout=clusters.PATIENCE)
        client.create_dataset(SCHEMA)
        asked = {wanted: _query(wanted, sizes.stored) for wanted in sizes.results}
        standing = {wanted: _submit(client, query) for wanted, query in asked.items()}
        nothing = _submit(client, MATCHES_NOTHING)
        bench.say(f"storing {sizes.stored:,} observations")
        store = fetch_growth.Store(client, seed=7)
        store.grow(sizes.stored)
        for ccq in standing.values():
            clusters.wait_cached(client, ccq.id, token=ccq.token, reached=store.reached)
        time.sleep(SETTLE_S)
        points = []
        for wanted, ccq in standing.items():
            labels = _expected(client, asked[wanted], wanted)
            bench.say(f"asking for {labels:,} results")
            taken = fetch_growth.compared(
                client, ccq, asked[wanted], labels=labels, nothing=nothing, runs=bench.sizes.runs
            )
            continuous, standard, empty = (spread.values for spread in taken)
            points.append(Retrieved(labels, standard, continuous, empty))
    return Retrieval(NODES, sizes.stored, tuple(points))


def _query(wanted: int, stored: int) -> str:
    return fetch_growth.query_of(wanted, stored) if wanted else MATCHES_NOTHING


def _submit(client: Client, query: str) -> Ccq:
    return client.submit(SCHEMA.name, query, interval=INTERVAL, expiration=EXPIRATION)


def _expected(client: Client, query: str, wanted: int) -> int:
    """The number of labels that are really found, which must be about what is wanted."""
    labels = len(client.query(SCHEMA.name, query))
    if abs(labels - wanted) > TOLERANCE * wanted + SLACK * bool(wanted):
        raise AssertionError(f"expected about {wanted:,} labels of {query!r}, got {labels:,}")
    return labels
