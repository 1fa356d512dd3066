"""Health of a node: its metrics, readiness and diagnostics, and the tasks that collect them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from grpc_health.v1 import health, health_pb2

from galileo.clock import Clock
from galileo.server.diagnostics import Diagnostics
from galileo.server.metric_source import NodeView, measurements
from galileo.server.metrics import Measured
from galileo.server.monitoring import Monitoring
from galileo.server.peer_messaging import PeerMessenger
from galileo.server.readiness import PROBE_INTERVAL_S, ReadinessChecks

HEALTH_INTERVAL_S = 0.5
STARTING_INTERVAL_S = 0.02
"""Interval of checks until the node is ready for the first time."""
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

log = logging.getLogger(__name__)


class HealthMonitor:
    """Readiness, metrics and condition of one node.

    Args:
        parts: the node's components.
        mail: knows which peers have answered.
        clock: wall and monotonic clock.

    Attributes:
        conditions: for `galileo doctor`.
    """

    def __init__(self, parts: NodeView, *, mail: PeerMessenger, clock: Clock) -> None:
        self._parts = parts
        self._mail = mail
        self._clock = clock
        self._readiness = ReadinessChecks(
            Path(parts.config.node.directory),
            unheard=self._unheard,
            clock=clock,
            lag_max_s=parts.config.membership.failure_timeout_s,
        )
        self.conditions = Diagnostics(lambda: parts, look=self._readiness.look, clock=clock)

    def serve(self) -> Monitoring | None:
        """Serves metrics, readiness and liveness over HTTP, if configured.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        address = self._parts.config.metrics.address
        if not address:
            return None
        return Monitoring(address, measure=self._measurements, look=self._readiness.look)

    async def run(self, healthy: health.aio.HealthServicer) -> None:
        """Updates gRPC's health service with the readiness of the node; runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._probe_disk())
            group.create_task(self._tell(healthy))

    async def _tell(self, healthy: health.aio.HealthServicer) -> None:
        was_ready, pause_s = False, STARTING_INTERVAL_S
        while True:
            readiness = self._readiness.look()
            if readiness.is_ready != was_ready:
                was_ready, pause_s = readiness.is_ready, HEALTH_INTERVAL_S
                reasons = "; ".join(
                    f"{name}: {why}" for name, why in readiness.checks.items() if why
                )
                log.info("ready" if was_ready else f"not ready: {reasons}")
                await healthy.set("", SERVING if was_ready else NOT_SERVING)
            due = self._clock.monotonic() + pause_s
            await asyncio.sleep(pause_s)
            lag_s = self._clock.monotonic() - due
            self._parts.loop_lag.observe(lag_s)
            self._readiness.record_lag(lag_s)

    async def _probe_disk(self) -> None:
        while True:
            await asyncio.to_thread(self._readiness.probe_disk)
            await asyncio.sleep(PROBE_INTERVAL_S)

    def _measurements(self) -> list[Measured]:
        is_ready = self._readiness.look().is_ready
        return measurements(self._parts, now=self._clock.monotonic(), is_ready=is_ready)

    def _unheard(self) -> list[str]:
        """The peers that have neither sent a heartbeat nor replied to one, and are not dead."""
        unheard = self._parts.driver.members.never_heard
        return [one for one in unheard if not self._mail.has_answered(one)]
