"""Metrics of a worker, in the text format of Prometheus."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator

from galileo.histogram import DurationHistogram, metric_head

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ACCEPTED, FAILED, DEAD = "accepted", "failed", "dead"


class WorkerMetrics:
    """Counts deliveries by channel and broker."""

    def __init__(self) -> None:
        self._attempts: Counter[tuple[str, str, str]] = Counter()
        self._notifications: Counter[tuple[str, str, str]] = Counter()
        self._gone: Counter[tuple[str, str]] = Counter()
        self._failing: set[tuple[str, str]] = set()
        self._durations: defaultdict[tuple[str, str], DurationHistogram] = defaultdict(
            lambda: DurationHistogram(BOUNDS_S)
        )

    def count(
        self,
        channel: str,
        broker: str,
        outcome: str,
        *,
        notifications: int,
        took_s: float | None = None,
    ) -> None:
        """Counts an attempt, and the notifications that it settles."""
        self._attempts[channel, broker, outcome] += 1
        self._notifications[channel, broker, outcome] += notifications
        if outcome == FAILED:
            self._failing.add((channel, broker))
        else:
            self._failing.discard((channel, broker))
        if took_s is not None:
            self._durations[channel, broker].observe(took_s)

    def count_gone(self, channel: str, broker: str, executions: int) -> None:
        """Counts executions whose notifications were deleted before they were pushed."""
        self._gone[channel, broker] += executions

    def end(self, channel: str, broker: str) -> None:
        """Forgets that a pair fails: this worker pushes for it no more."""
        self._failing.discard((channel, broker))

    def exposed(self) -> str:
        """All metrics."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        name = "galileo_worker_attempts_total"
        yield from metric_head(
            name, "Requests to endpoints and dead letters, by outcome", "counter"
        )
        yield from _counts(name, self._attempts)
        name = "galileo_worker_notifications_total"
        yield from metric_head(name, "Notifications that are accepted, or dead letters", "counter")
        yield from _counts(name, self._notifications)
        name = "galileo_worker_gone_total"
        yield from metric_head(name, "Executions that were deleted before delivery", "counter")
        for pair, count in sorted(self._gone.items()):
            yield f"{name}{{{_labels(*pair)}}} {count}"
        name = "galileo_worker_failing"
        yield from metric_head(
            name, "Brokers of channels whose endpoint takes nothing now", "gauge"
        )
        yield f"{name} {len(self._failing)}"
        name = "galileo_worker_delivery_seconds"
        yield from metric_head(name, "Duration of accepted requests to endpoints", "histogram")
        for (channel, broker), histogram in sorted(self._durations.items()):
            yield from histogram.lines(name, _labels(channel, broker))


def _counts(name: str, counts: Counter[tuple[str, str, str]]) -> Iterator[str]:
    for (channel, broker, outcome), count in sorted(counts.items()):
        yield f'{name}{{{_labels(channel, broker)},outcome="{outcome}"}} {count}'


def _labels(channel: str, broker: str) -> str:
    values = {"channel": channel, "broker": broker}
    return ",".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items()
    )
