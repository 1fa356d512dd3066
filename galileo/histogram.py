"""Histograms of durations, as Prometheus defines and reads them.

An observation costs a binary search of a dozen bounds; only the counts need memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

LAG_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""From the lag of a normal cycle to a coordinator that was down for half an hour."""
DISK_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
"""From a disk with a write cache to a disk that hangs."""
LOOP_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class DurationHistogram:
    """A histogram of durations; one writer at a time, any readers.

    Args:
        bounds: upper bounds of the buckets in seconds, ascending; the last bucket is unbounded.

    Attributes:
        sum_s: sum of all durations in seconds.
    """

    __slots__ = ("_counts", "bounds", "sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum_s = 0.0
        self._counts = array("Q", bytes(8 * (len(bounds) + 1)))

    def observe(self, duration_s: float) -> None:
        """Adds a duration; a negative one (of a clock that was set back) counts as 0."""
        duration_s = max(duration_s, 0.0)
        self._counts[bisect_left(self.bounds, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, the last one for "+Inf"."""
        names = [*map(str, self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """The lines of a metric with its values, in the text format of Prometheus.

        Args:
            name: of the metric.
            labels: such as `route="items"`.
        """
        for bound, value in self.cumulative():
            yield f'{name}_bucket{{{labels},le="{bound}"}} {value:g}'
        yield f"{name}_sum{{{labels}}} {self.sum_s}"
        yield f"{name}_count{{{labels}}} {self.count}"


def metric_head(name: str, text: str, kind: str) -> tuple[str, str]:
    """The lines before those of a metric, in the text format of Prometheus."""
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"
