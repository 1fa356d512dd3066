"""Times of queries and of fetches, by the number of results and by the size of the store.

Fig. 6 of the paper, and its continuation to larger stores. Three nodes with random weather, in
which only looking finds anything. For each query a continuous one, submitted before, has cached all
results. Both are timed in turn in the hands of the same client, unpacked.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from benchmarks import fetch_growth, jobs
from benchmarks.evaluation import plots
from benchmarks.evaluation.page import Block, extent, picture, seconds, table, times
from benchmarks.evaluation.plots import Axes, Line
from benchmarks.evaluation.sizes import Sizes
from benchmarks.figures import Figure, digits
from benchmarks.sizes import Bench
from benchmarks.weather import SCHEMA


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


def measure_retrieval(sizes: Sizes, bench: Bench) -> Retrieval:
    with fetch_growth.opened(bench) as store:
        ccqs = {wanted: store.submit(wanted, sizes.stored) for wanted in sizes.results}
        store.grow(sizes.stored, *ccqs.values())
        points = []
        for wanted, ccq in ccqs.items():
            labels, *taken = store.compared(ccq, wanted)
            continuous, standard, empty = (spread.values for spread in taken)
            points.append(Retrieved(labels, standard, continuous, empty))
    return Retrieval(fetch_growth.NODES, sizes.stored, tuple(points))


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


def measure_history(sizes: Sizes, bench: Bench) -> History:
    results, points = bench.sizes.growth_results, []
    with fetch_growth.opened(bench) as store:
        ccqs = {stored: store.submit(results, stored) for stored in bench.sizes.growth}
        for stored, ccq in ccqs.items():
            store.grow(stored, ccq)
            labels, fetched, again, _ = store.compared(ccq, results)
            job = _job(bench, store, seed=stored)
            (scans,) = [peer.spread for peer in job.peers if peer.name == jobs.BARE]
            runs = (spread.values for spread in (fetched, again, job.spread, scans))
            points.append(Grown(stored, labels, *runs))
            store.client.cancel(ccq.id)
    return History(fetch_growth.NODES, bench.sizes.tick_paths, tuple(points))


def _job(bench: Bench, store: fetch_growth.Store, *, seed: int) -> Figure:
    """One for what is new since everything else."""
    news = fetch_growth.observations(bench.sizes.tick_paths, np.random.default_rng(seed))
    after = store.client.query(SCHEMA.name, fetch_growth.MATCHES_NOTHING).frontier
    return jobs.of_news(
        store.running, store.client, bench, news=news, after=after, dataset=SCHEMA.name
    )


def tell_retrieval(taken: Retrieval) -> Block:
    median = statistics.median
    most = taken.points[-1]
    rows = [
        (
            f"{one.results:,}",
            seconds(one.standard_s),
            extent(one.standard_s),
            seconds(one.continuous_s),
            extent(one.continuous_s),
            digits(median(one.standard_s) / median(one.continuous_s)),
        )
        for one in taken.points
    ]
    head = ("results", "standard", "lowest to highest", "continuous", "lowest to highest", "ratio")
    results = [float(one.results) for one in taken.points]
    drawn = [
        _milliseconds("standard query", results, [one.standard_s for one in taken.points]),
        _milliseconds("continuous query", results, [one.continuous_s for one in taken.points]),
    ]
    axes = Axes(f"{taken.stored:,} stored observations", "results", "ms, median")
    return Block(
        [
            *table(head, rows, left=0),
            "",
            picture("paper-retrieval.svg", "Retrieval time by the number of results"),
            "",
            f"At {most.results:,} results the standard query takes "
            f"{times(median(most.standard_s), median(most.continuous_s))} what the fetch takes. "
            f"A fetch that brings nothing takes {seconds(most.nothing_s)}: what a call costs.",
        ],
        {"paper-retrieval.svg": lambda: plots.lines(axes, drawn)},
        [
            (
                f"Fig. 6: continuous query, {most.results:,} results",
                "not stated as a number",
                f"{seconds(most.continuous_s)}; the standard query {seconds(most.standard_s)}",
            )
        ],
    )


def _milliseconds(name: str, x: list[float], runs: list[tuple[float, ...]]) -> Line:
    y, low, high = ([1e3 * f(one) for one in runs] for f in (statistics.median, min, max))
    return Line(name, x, y, low, high)


def tell_history(taken: History) -> Block:
    ways = ("fetch", "asked again", "a tick's scans", "a tick's job on Spark")
    runs = [(one.fetch_s, one.query_s, one.scan_s, one.job_s) for one in taken.points]
    medians = [[statistics.median(way) for way in point] for point in runs]
    rows = [
        (f"{one.stored:,}", f"{one.results:,}", *map(seconds, point))
        for one, point in zip(taken.points, runs, strict=True)
    ]
    x = [float(one.stored) for one in taken.points]
    drawn = [
        Line(name, x, [1e3 * point[number] for point in medians])
        for number, name in enumerate(ways)
    ]
    axes = Axes(
        f"{taken.nodes} nodes",
        "stored observations",
        "ms, median",
        log_x=True,
        log_y=True,
        x_ticks=x,
    )
    grown = [times(last, first) for first, last in zip(medians[0], medians[-1], strict=True)]

    def by_size(way: int) -> str:
        return ", ".join(f"{row[2 + way]} at {row[0]}" for row in rows)

    return Block(
        [
            *table(("stored", "results", *ways), rows, left=0),
            "",
            picture("paper-history.svg", "Times by the number of stored observations"),
            "",
            f"While the store grows {digits(x[-1] / x[0])} times, a fetch takes {grown[0]} what it "
            f"took, a tick's scans {grown[2]}, its job {grown[3]}, and the query asked again "
            f"{grown[1]}.",
        ],
        {"paper-history.svg": lambda: plots.lines(axes, drawn)},
        [
            (
                f"A tick's job with {taken.news:,} new observations, by what is stored",
                "left out",
                by_size(3),
            ),
            ("A fetch, by what is stored", "left out", by_size(0)),
        ],
    )
