"""How long a continuous query has no coordinator when that one is killed."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import failover
from benchmarks.sizes import Bench

from evaluation.sizes import Sizes
from galileo.model.times import seconds


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


def measure(sizes: Sizes, bench: Bench) -> Failover:
    figure, *_ = failover.measure(bench)
    (wait,) = figure.peers
    return Failover(
        failover.NODES,
        wait.spread.median,
        seconds(failover.INTERVAL),
        figure.spread.values,
    )
