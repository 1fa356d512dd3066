"""What a fetch, a question asked again and a tick cost as the store grows."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from benchmarks import clusters, fetch_growth, jobs
from benchmarks.fetch_growth import EXPIRATION, INTERVAL, MATCHES_NOTHING, SETTINGS, SETTLE_S
from benchmarks.figures import Figure
from benchmarks.sizes import Bench
from benchmarks.weather import SCHEMA

import galileo
from evaluation.sizes import Sizes
from galileo.client import Ccq, Client

NODES = 3
TOLERANCE = 0.2


@dataclass(frozen=True, slots=True)
class Grown:
    """Seconds of each run at one size of the store.

    Attributes:
        results: that fetch and query bring.
        job_s: of Spark's job for a tick; `scan_s`: of its scans, without Spark.
    """

    stored: int
    results: int
    fetch_s: tuple[float, ...]
    query_s: tuple[float, ...]
    job_s: tuple[float, ...]
    scan_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class History:
    """Attributes:
    news: paths that are new in a tick.
    """

    nodes: int
    news: int
    points: tuple[Grown, ...]


@dataclass(frozen=True, slots=True)
class _Cluster:
    running: galileo.LocalCluster
    client: Client
    store: fetch_growth.Store
    nothing: Ccq


def measure(sizes: Sizes, bench: Bench) -> History:
    results, points = bench.sizes.growth_results, []
    with (
        clusters.cluster(bench.directory, nodes=NODES, settings=SETTINGS) as running,
        clusters.warm_evaluator(running),
    ):
        client = running.client(timeout=clusters.PATIENCE)
        client.create_dataset(SCHEMA)
        standing = {
            stored: _submit(client, fetch_growth.query_of(results, stored))
            for stored in bench.sizes.growth
        }
        store = fetch_growth.Store(client, seed=7)
        one = _Cluster(running, client, store, _submit(client, MATCHES_NOTHING))
        for stored, ccq in standing.items():
            points.append(_point(bench, one, ccq=ccq, stored=stored))
            client.cancel(ccq.id)
    return History(NODES, bench.sizes.tick_paths, tuple(points))


def _submit(client: Client, query: str) -> Ccq:
    return client.submit(SCHEMA.name, query, interval=INTERVAL, expiration=EXPIRATION)


def _point(bench: Bench, one: _Cluster, *, ccq: Ccq, stored: int) -> Grown:
    client, wanted = one.client, bench.sizes.growth_results
    bench.say(f"storing {stored:,} observations")
    one.store.grow(stored)
    clusters.wait_cached(client, ccq.id, token=ccq.token, reached=one.store.reached)
    time.sleep(SETTLE_S)
    query = fetch_growth.query_of(wanted, stored)
    labels = len(client.query(SCHEMA.name, query))
    if abs(labels - wanted) > TOLERANCE * wanted:
        raise AssertionError(f"expected about {wanted:,} labels, got {labels:,}")
    bench.say("fetching, asking again, and looking at what is new")
    runs = bench.sizes.runs
    fetched, again, _ = fetch_growth.compared(
        client, ccq, query, labels=labels, nothing=one.nothing, runs=runs
    )
    job = _job(bench, one, seed=stored)
    (scans,) = [peer.spread for peer in job.peers if peer.name == jobs.BARE]
    return Grown(stored, labels, fetched.values, again.values, job.spread.values, scans.values)


def _job(bench: Bench, one: _Cluster, *, seed: int) -> Figure:
    """One for what is new since everything else."""
    news = fetch_growth.observations(bench.sizes.tick_paths, np.random.default_rng(seed))
    after = one.client.query(SCHEMA.name, MATCHES_NOTHING).frontier
    return jobs.of_news(one.running, one.client, bench, news=news, after=after, dataset=SCHEMA.name)
