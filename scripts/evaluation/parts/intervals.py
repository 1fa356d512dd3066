"""How old results are, by the update interval, while blocks of 8 KB come in."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import clusters, freshness
from benchmarks.sizes import Bench

from evaluation.sizes import Sizes


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


def measure(sizes: Sizes, bench: Bench) -> Freshness:
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
