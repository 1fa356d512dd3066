"""How old results are by the update interval, and how long a killed coordinator is missed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import clusters, failover, freshness
from benchmarks.evaluation import plots
from benchmarks.evaluation.page import Block, extent, picture, seconds, table
from benchmarks.evaluation.plots import Axes, Line
from benchmarks.evaluation.sizes import Sizes
from benchmarks.figures import digits, quantity
from benchmarks.sizes import Bench
from galileo.model import times


@dataclass(frozen=True, slots=True)
class Fresh:
    """Seconds from the acknowledgement of each batch to its update, at one interval."""

    interval_s: float
    lags_s: tuple[float, ...]
    blocks_per_s: float


@dataclass(frozen=True, slots=True)
class Freshness:
    nodes: int
    blocks_per_s_meant: int
    seconds: float
    points: tuple[Fresh, ...]


def measure_freshness(sizes: Sizes, bench: Bench) -> Freshness:
    points = []
    with (
        clusters.cluster(bench.directory, nodes=freshness.NODES) as running,
        clusters.warm_evaluator(running),
    ):
        for number, interval_s in enumerate(sizes.fresh_intervals_s):
            bench.say(f"an interval of {interval_s:g} s")
            dataset = f"fresh-{number}"
            stream = freshness.streamed(bench, running, dataset=dataset, interval_s=interval_s)
            points.append(Fresh(interval_s, stream.lags_s, stream.blocks_per_s))
    return Freshness(
        freshness.NODES, bench.sizes.fresh_blocks_per_s, bench.sizes.fresh_s, tuple(points)
    )


@dataclass(frozen=True, slots=True)
class Failover:
    """Attributes:
    failure_timeout_s: what the failure detector waits.
    interval_s: of the query.
    taken_s: of each kill, until an answer has what was ingested right after it.
    """

    nodes: int
    failure_timeout_s: float
    interval_s: float
    taken_s: tuple[float, ...]


def measure_failover(sizes: Sizes, bench: Bench) -> Failover:
    figure, *_ = failover.measure(bench)
    (wait,) = figure.peers
    return Failover(
        failover.NODES,
        wait.spread.median,
        times.seconds(failover.INTERVAL),
        figure.spread.values,
    )


def tell_freshness(taken: Freshness) -> Block:
    p99 = [_quantile(one.lags_s, 0.99) for one in taken.points]
    rows = [
        (
            f"{one.interval_s:g} s",
            quantity(one.blocks_per_s, "blocks/s"),
            seconds(one.lags_s),
            quantity(_quantile(one.lags_s, 0.95), "s"),
            quantity(p99_s, "s"),
            quantity(max(one.lags_s), "s"),
            digits(p99_s / one.interval_s),
        )
        for one, p99_s in zip(taken.points, p99, strict=True)
    ]
    head = (
        *("interval", "taken", "median lag", "95th percentile", "99th percentile", "longest"),
        "99th over the interval",
    )
    x = [one.interval_s for one in taken.points]
    drawn = [
        Line("99th percentile", x, p99),
        Line("median", x, [statistics.median(one.lags_s) for one in taken.points]),
        Line("the interval", x, x, dashed=True),
    ]
    axes = Axes(
        f"{taken.blocks_per_s_meant:,} blocks of 8 KB a second meant",
        "update interval, s",
        "lag, s",
        log_x=True,
        log_y=True,
        x_ticks=x,
    )
    return Block(
        [*table(head, rows), "", picture("paper-freshness.svg", "Lag by the update interval")],
        {"paper-freshness.svg": lambda: plots.lines(axes, drawn)},
        [
            (
                "Lag of an update, 99th percentile",
                "left out",
                ", ".join(f"{row[4]} at {row[0]}" for row in rows),
            )
        ],
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share))


def tell_failover(taken: Failover) -> Block:
    kills = len(taken.taken_s)
    axes = Axes(f"{kills} kills of a coordinator", "s until an answer has what came later", "%")
    marked = {"what the failure detector waits": taken.failure_timeout_s}
    p95 = quantity(_quantile(taken.taken_s, 0.95), "s")
    return Block(
        [
            *table(
                ("kills", "median", "95th percentile", "lowest to highest"),
                [(f"{kills}", seconds(taken.taken_s), p95, extent(taken.taken_s))],
                left=0,
            ),
            "",
            picture("paper-failover.svg", "Share of kills by the time until the next answer"),
            "",
            f"The failure detector waits {taken.failure_timeout_s:g} s after a node's last "
            "heartbeat; election, first cycle and the reader's way to the new coordinator are the "
            "rest.",
        ],
        {"paper-failover.svg": lambda: plots.steps(axes, taken.taken_s, marked=marked)},
        [
            (
                "Kill of a coordinator until the next new answer",
                "left out",
                f"{seconds(taken.taken_s)}, at most {quantity(max(taken.taken_s), 's')} "
                f"in {kills} kills",
            )
        ],
    )
