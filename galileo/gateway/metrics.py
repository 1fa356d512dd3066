"""Metrics of a gateway, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from galileo.histogram import DurationHistogram, metric_head

REQUEST_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class GatewayMetrics:
    """Counts requests by route and status.

    Attributes:
        connections: the number of open ones.
        readers: the number of readers of events.
    """

    def __init__(self) -> None:
        self.connections: Callable[[], int] = lambda: 0
        self.readers: Callable[[], int] = lambda: 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._durations: defaultdict[str, DurationHistogram] = defaultdict(
            lambda: DurationHistogram(REQUEST_BOUNDS_S)
        )

    def record(self, route: str, status: int, duration_s: float) -> None:
        """Records a request that ended; status 0 if its client disconnected."""
        self._requests[route, status] += 1
        self._durations[route].observe(duration_s)

    def exposed(self) -> str:
        """All metrics."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        name = "galileo_gateway_connections"
        yield from metric_head(name, "Open connections", "gauge")
        yield f"{name} {self.connections()}"
        name = "galileo_gateway_readers"
        yield from metric_head(name, "Readers of events of continuous queries", "gauge")
        yield f"{name} {self.readers()}"
        name = "galileo_gateway_requests_total"
        yield from metric_head(name, "Requests, by route and status; 0: the client left", "counter")
        for (route, status), count in sorted(self._requests.items()):
            yield f'{name}{{route="{route}",status="{status}"}} {count}'
        name = "galileo_gateway_request_seconds"
        yield from metric_head(name, "Time from a whole request to its whole answer", "histogram")
        for route, histogram in sorted(self._durations.items()):
            yield from histogram.lines(name, f'route="{route}"')
