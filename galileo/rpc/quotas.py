"""Quotas of callers, and their checks for queries and continuous queries.

`galileo.rpc.rate_limit` limits calls and bytes over time.
"""

from __future__ import annotations

from functools import lru_cache

from galileo.errors import QuotaExceeded
from galileo.model.quotas import Quotas
from galileo.model.times import duration_text
from galileo.query import Query
from galileo.rpc.access import ANONYMOUS, Principal
from galileo.rpc.error_mapping import Context
from galileo.rpc.identity import Identify, anonymous

NO_BOUNDS = 1 << 62
UNBOUNDED = Quotas(
    ccqs_max=NO_BOUNDS,
    datasets_max=NO_BOUNDS,
    interval_min_s=0.0,
    expiration_max_s=float("inf"),
    vertices_max=NO_BOUNDS,
    calls_max=NO_BOUNDS,
)
"""The default without a configuration."""


class QuotaResolver:
    """Resolves the quotas of callers.

    Args:
        default: quotas of principals without their own or their roles'.
        identify: returns the caller.
    """

    def __init__(self, default: Quotas = UNBOUNDED, identify: Identify = anonymous) -> None:
        self._default = default
        self._identify = identify

    def caller(self, context: Context) -> Quotas:
        """The quotas of the caller."""
        return self.of(self._identify(context))

    def of(self, principal: Principal) -> Quotas:
        return _with_own(self._default, principal.quotas) if principal.quotas else self._default

    def bounds(self, context: Context) -> Quotas | None:
        """The quotas of an authenticated caller; None for others."""
        caller = self._identify(context)
        return None if caller is ANONYMOUS else self.of(caller)

    def check_query(self, query: Query, context: Context) -> None:
        """Raises QuotaExceeded if a query has too many vertices."""
        check_vertices(query, self.caller(context))


@lru_cache(maxsize=1024)
def _with_own(default: Quotas, own: tuple[tuple[str, float], ...]) -> Quotas:
    return default.with_overrides(dict(own))


def check_vertices(query: Query, quotas: Quotas) -> None:
    """Raises QuotaExceeded."""
    vertices = query.vertices
    if vertices > quotas.vertices_max:
        raise exceeded(
            "vertices_max",
            quotas.vertices_max,
            f"expected a query with at most {quotas.vertices_max:,} vertices, got {vertices:,}; "
            "simplify its geometries",
        )


def check_times(interval_s: float, expiration_s: float, quotas: Quotas) -> None:
    """Raises QuotaExceeded if an interval is too short or an expiration too late."""
    if interval_s < quotas.interval_min_s:
        raise exceeded(
            "interval_min_s",
            quotas.interval_min_s,
            f"expected an update interval of at least {duration_text(quotas.interval_min_s)}, "
            f"got {duration_text(interval_s)}; choose a longer one",
        )
    if expiration_s > quotas.expiration_max_s:
        raise exceeded(
            "expiration_max_s",
            quotas.expiration_max_s,
            f"expected an expiration of at most {duration_text(quotas.expiration_max_s)}, "
            f"got {duration_text(expiration_s)}; choose a shorter one and submit it again later",
        )


def exceeded(quota: str, bound: float, message: str) -> QuotaExceeded:
    advice = f"{message}, or ask an administrator for another quota {quota}"
    return QuotaExceeded(advice, quota=quota, bound=bound)
