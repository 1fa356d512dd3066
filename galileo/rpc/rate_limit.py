"""Rate limits of principals: concurrent calls, and calls and bytes per second.

Each rate has a token bucket, which holds up to one second's worth. A call above the rate waits up
to `WAIT_MAX_S`; beyond that it fails with `Throttled`, which names the delay. A call may overdraw
the bucket, because its size is known only after it was received; the next calls wait for that.
Requests and answers of streams wait as long as necessary, and flow control slows the sender.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from google.protobuf.message import Message

from galileo.errors import Throttled
from galileo.model.quotas import KINDS, NO_RATE, Quotas
from galileo.rpc.access import ANONYMOUS, Principal, Role, is_node_call
from galileo.rpc.error_mapping import Context, refuse
from galileo.rpc.quotas import QuotaResolver
from galileo.wire.v1 import cluster_pb2
from galileo.wire.zero_copy import Bulk

WAIT_MAX_S = 1.0
"""A call that would have to wait longer is rejected."""
BURST_S = 1.0
"""Unused capacity is kept for this long."""
CALLS_RETRY_S = 0.5
METERS_MAX = 20_000
UNCOUNTED = -1.0
COUNTED = dict.fromkeys(("ccqs_max", "datasets_max"), "cluster")
COUNTED |= dict.fromkeys(("calls_max", "calls_per_s", "bytes_in_per_s", "bytes_out_per_s"), "node")
"""Where the usage of a quota is counted; other quotas apply to each query by itself."""


class TokenBucket:
    """A token bucket that may be overdrawn.

    Args:
        rate: per second.
        monotonic: clock in seconds.
    """

    def __init__(self, rate: float, monotonic: Callable[[], float]) -> None:
        self.rate = rate
        self._monotonic = monotonic
        self._left = rate * BURST_S
        self._at = monotonic()

    @property
    def used(self) -> float:
        """The used part of one second's worth."""
        return self.rate * BURST_S - self._filled()

    def wait_s(self) -> float:
        """Seconds until the bucket is no longer overdrawn."""
        return max(0.0, -self._filled() / self.rate)

    def take(self, amount: float) -> None:
        self._left = self._filled() - amount

    def _filled(self) -> float:
        now = self._monotonic()
        self._left = min(self._left + (now - self._at) * self.rate, self.rate * BURST_S)
        self._at = now
        return self._left


class PrincipalUsage:
    """The usage of this node by one principal.

    Attributes:
        calls: its active calls.
        buckets: token buckets of its rate quotas, by name.
    """

    def __init__(self, quotas: Quotas, *, name: str, monotonic: Callable[[], float]) -> None:
        self.calls = 0
        self._monotonic = monotonic
        self._whose = repr(name) if name else "callers without a name"
        self.use(quotas)

    def use(self, quotas: Quotas) -> None:
        """Replaces the quotas."""
        self.quotas = quotas
        self.buckets = {
            quota: TokenBucket(rate, self._monotonic)
            for quota in _RATES
            if (rate := getattr(quotas, quota)) < NO_RATE
        }

    def begin(self, request: Any) -> float:
        """Counts a call until `end`; returns the seconds that it has to wait.

        Raises:
            Throttled: the call is rejected and not counted.
        """
        if self.calls >= self.quotas.calls_max:
            raise self._throttled("calls_max", self.quotas.calls_max, CALLS_RETRY_S)
        wait_s = self.charge_request(request) if self.buckets else 0.0
        self.calls += 1
        return wait_s

    def charge_request(self, request: Any, *, wait_max_s: float = WAIT_MAX_S) -> float:
        """Charges one request; returns the seconds that it has to wait.

        Raises:
            Throttled: the wait exceeds `wait_max_s`; nothing is charged.
        """
        if not self.buckets:
            return 0.0
        wait_s = 0.0
        for quota, bucket in self.buckets.items():
            needed_s = bucket.wait_s()
            if needed_s > wait_max_s:
                raise self._throttled(quota, bucket.rate, needed_s)
            wait_s = max(wait_s, needed_s)
        if "calls_per_s" in self.buckets:
            self.buckets["calls_per_s"].take(1)
        if "bytes_in_per_s" in self.buckets:
            self.buckets["bytes_in_per_s"].take(size_of(request))
        return wait_s

    def end(self) -> None:
        """Ends a call."""
        self.calls -= 1

    def answer(self, reply: Any) -> float:
        """Charges one response; returns the seconds that the next one has to wait."""
        bucket = self.buckets.get("bytes_out_per_s")
        if bucket is None:
            return 0.0
        bucket.take(size_of(reply))
        return bucket.wait_s()

    def _throttled(self, quota: str, bound: float, after_s: float) -> Throttled:
        kind = "calls at a time" if quota == "calls_max" else _RATES[quota]
        return Throttled(
            f"expected at most {bound:,.10g} {kind} of {self._whose} at a node (quota {quota}), "
            f"got more; try again in {after_s:.2g} s, or ask an administrator for another quota",
            after_s=round(after_s, 3),
            quota=quota,
            bound=bound,
        )


_RATES = {
    "calls_per_s": "calls a second",
    "bytes_in_per_s": "bytes of requests a second",
    "bytes_out_per_s": "bytes of answers a second",
}


class Metering:
    """The usage of all principals of this node.

    Args:
        allowances: resolves quotas.
        monotonic: clock in seconds.
        meters_max: beyond it, the least recently used idle meters are dropped.
    """

    def __init__(
        self,
        allowances: QuotaResolver,
        *,
        monotonic: Callable[[], float],
        meters_max: int = METERS_MAX,
    ) -> None:
        self._meters_max = meters_max
        self._allowances = allowances
        self._monotonic = monotonic
        self._meters: OrderedDict[str, PrincipalUsage] = OrderedDict()

    def meter(self, principal: Principal) -> PrincipalUsage:
        """The usage of a principal; starts anew when its quotas have changed."""
        name, quotas = principal.name, self._allowances.of(principal)
        usage = self._meters.get(name)
        if usage is None:
            self._forget_some()
            usage = self._meters[name] = PrincipalUsage(
                quotas, name=name, monotonic=self._monotonic
            )
        elif usage.quotas is not quotas and usage.quotas != quotas:
            usage.use(quotas)
        self._meters.move_to_end(name)
        return usage

    def meter_of(self, principal: Principal, method: str) -> PrincipalUsage | None:
        """The usage that counts a call; None for calls of nodes."""
        return None if is_node_call(principal, method) else self.meter(principal)

    def _forget_some(self) -> None:
        if len(self._meters) < self._meters_max:
            return
        for name in [name for name, usage in self._meters.items() if not usage.calls]:
            del self._meters[name]
            if len(self._meters) <= self._meters_max // 2:
                return


@asynccontextmanager
async def metered(
    meter: PrincipalUsage | None, request: Any, context: Context
) -> AsyncIterator[Any]:
    """Waits until a call may begin, or refuses it; counts it for the block.

    Yields:
        The request; for a stream, an iterator that paces its requests.
    """
    if meter is None:
        yield request
        return
    is_many = hasattr(request, "__aiter__")
    try:
        wait_s = meter.begin(None if is_many else request)
    except Throttled as error:
        await refuse(context, error)
    try:
        if wait_s:
            await asyncio.sleep(wait_s)
        yield _each(meter, request) if is_many and meter.buckets else request
    finally:
        meter.end()


async def _each(meter: PrincipalUsage, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Paces the requests of a stream."""
    async for request in requests:
        wait_s = meter.charge_request(request, wait_max_s=float("inf"))
        if wait_s:
            await asyncio.sleep(wait_s)
        yield request


def size_of(message: Any) -> int:
    """Approximate encoded size of a message."""
    if isinstance(message, Bulk):
        return int(message.head.ByteSize()) + int(message.observations.size)
    return message.ByteSize() if isinstance(message, Message) else 0


class CallerDescriptions:
    """Describes callers.

    Args:
        metering: of the node.
        owned_by: what a principal owns of each quota that is not of calls.
    """

    def __init__(
        self, metering: Metering, *, owned_by: Callable[[str], Awaitable[Mapping[str, int]]]
    ) -> None:
        self._metering = metering
        self._owned_by = owned_by

    async def describe(self, principal: Principal, with_quotas: bool) -> cluster_pb2.Caller:
        """Describes a principal, with its quotas if they are wanted; a node has none."""
        is_named = principal is not ANONYMOUS
        caller = cluster_pb2.Caller(
            name=principal.name,
            roles=sorted(principal.roles) if is_named else (),
            datasets=principal.datasets,
            expires_at=principal.expires_at if principal.expires_at < inf else 0.0,
            brokers=principal.own_brokers if principal.is_bounded else (),
        )
        if with_quotas and not (is_named and Role.NODE in principal.roles):
            owned = await self._owned_by(principal.name)
            caller.quotas.extend(self._quotas(principal, owned))
        return caller

    def _quotas(
        self, principal: Principal, owned: Mapping[str, int]
    ) -> Iterator[cluster_pb2.Quota]:
        meter = self._metering.meter(principal)
        for name in KINDS:
            bound, used = getattr(meter.quotas, name), _used(name, owned, meter)
            counted = COUNTED.get(name, "query")
            yield cluster_pb2.Quota(name=name, bound=bound, used=used, counted=counted)


def _used(name: str, owned: Mapping[str, int], meter: PrincipalUsage) -> float:
    if name in owned:
        return owned[name]
    if name == "calls_max":
        return meter.calls
    bucket = meter.buckets.get(name)
    return UNCOUNTED if bucket is None else max(0.0, bucket.used)
