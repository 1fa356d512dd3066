"""Description of a caller for itself: identity, quotas and usage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from galileo.model.quotas import KINDS
from galileo.rpc.access import ANONYMOUS, Principal, Role
from galileo.rpc.rate_limit import Metering, PrincipalUsage
from galileo.wire.v1 import cluster_pb2

UNCOUNTED = -1.0
COUNTED = {"ccqs_max": "cluster", **dict.fromkeys(("calls_max", "calls_per_s"), "node")}
COUNTED |= dict.fromkeys(("bytes_in_per_s", "bytes_out_per_s"), "node")
"""Where the usage of a quota is counted; other quotas apply to each query by itself."""


class Callers:
    """Describes callers.

    Args:
        metering: of the node.
        owned_by: the number of continuous queries of an owner.
    """

    def __init__(self, metering: Metering, *, owned_by: Callable[[str], int]) -> None:
        self._metering = metering
        self._owned_by = owned_by

    def describe(self, principal: Principal) -> cluster_pb2.Caller:
        """Describes a principal, with its quotas; a node has none."""
        is_named = principal is not ANONYMOUS
        caller = cluster_pb2.Caller(
            name=principal.name,
            roles=sorted(principal.roles) if is_named else (),
            datasets=principal.datasets,
            expires_at=principal.expires_at if principal.expires_at < inf else 0.0,
        )
        if not (is_named and Role.NODE in principal.roles):
            caller.quotas.extend(self._quotas(principal))
        return caller

    def _quotas(self, principal: Principal) -> Iterator[cluster_pb2.Quota]:
        meter = self._metering.meter(principal)
        for name in KINDS:
            bound, used = getattr(meter.quotas, name), self._used(name, principal, meter)
            counted = COUNTED.get(name, "query")
            yield cluster_pb2.Quota(name=name, bound=bound, used=used, counted=counted)

    def _used(self, name: str, principal: Principal, meter: PrincipalUsage) -> float:
        if name == "ccqs_max":
            return self._owned_by(principal.name)
        if name == "calls_max":
            return meter.calls
        bucket = meter.buckets.get(name)
        return UNCOUNTED if bucket is None else max(0.0, bucket.used)
