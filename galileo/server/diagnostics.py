"""Diagnostics of a node for `galileo doctor`, measured on demand."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from pathlib import Path

from galileo.ccq.coordinator import Coordinator
from galileo.clock import Clock
from galileo.rpc.internal import PROTOCOL
from galileo.server.host_checks import OPEN_FILES_COUNTED_MAX, host_condition
from galileo.server.metric_source import NodeView
from galileo.server.readiness import Readiness
from galileo.wire.v1 import cluster_pb2

TROUBLED_MAX = 20
FRESH_S = 2.0
"""Age up to which a result is reused, because measuring starts two processes."""


class Diagnostics:
    """Measures the condition of a node, one measurement at a time.

    Args:
        parts: of the node, when asked.
        look: whether it is ready.
        clock: the monotonic one is used.
    """

    def __init__(
        self, parts: Callable[[], NodeView], *, look: Callable[[], Readiness], clock: Clock
    ) -> None:
        self._parts = parts
        self._look = look
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._known: cluster_pb2.NodeCondition | None = None
        self._known_at = 0.0

    async def ask(self) -> cluster_pb2.NodeCondition:
        """Takes a second or two."""
        async with self._one_at_a_time:
            if self._known is None or self._clock.monotonic() > self._known_at + FRESH_S:
                parts = self._parts()
                self._known = await condition(parts, clock=self._clock, ready=self._look())
                self._known_at = self._clock.monotonic()
            return self._known


async def condition(
    parts: NodeView, *, clock: Clock, ready: Readiness
) -> cluster_pb2.NodeCondition:
    """Takes a second or two, most of it in a thread."""
    config = parts.config
    takes_samplers = config.samplers.uploads == "sandboxed"
    host = await asyncio.to_thread(
        host_condition, Path(config.node.directory), takes_samplers=takes_samplers
    )
    return cluster_pb2.NodeCondition(
        version=parts.version,
        protocol=PROTOCOL,
        not_ready={name: why for name, why in ready.checks.items() if why},
        disk_free_bytes=host.disk_free_bytes,
        disk_size_bytes=host.disk_size_bytes,
        sync_s=host.sync_s,
        open_files=host.open_files,
        open_files_max=min(host.open_files_max, OPEN_FILES_COUNTED_MAX),
        java=host.java,
        containment=host.containment,
        takes_samplers=takes_samplers,
        troubled=_troubled(parts, clock.monotonic()),
        cache_bytes_max=config.limits.cache_bytes_max,
        spill_bytes_max=config.limits.spill_bytes_max,
        ccqs=await parts.ccqs.total(),
        ccqs_max=config.limits.ccqs_max,
        durability=config.storage.durability,
        peers_dead=sorted(parts.driver.members.dead),
    )


def _troubled(parts: NodeView, now: float) -> list[cluster_pb2.CcqTrouble]:
    """Those that fail, then those whose cycles take too long, the worst first."""
    led = parts.machine.coordinated.values()
    failing = [one for one in led if one.cycles.failure is not None]
    slow = [one for one in led if one.cycles.failure is None and one.cycles.is_overloaded(now)]
    worst = heapq.nlargest(TROUBLED_MAX, slow, key=lambda one: one.cycles.interval_s(now))
    return [_trouble(one, now) for one in [*failing, *worst][:TROUBLED_MAX]]


def _trouble(led: Coordinator, now: float) -> cluster_pb2.CcqTrouble:
    failure = led.cycles.failure
    if failure is not None:
        return cluster_pb2.CcqTrouble(ccq_id=led.ccq.id, kind=failure.kind, message=failure.message)
    taken_s, wanted_s = led.cycles.interval_s(now), led.ccq.interval_s
    message = f"its cycles take {taken_s:.3g} s, its interval is {wanted_s:.3g} s"
    return cluster_pb2.CcqTrouble(ccq_id=led.ccq.id, message=message)
