"""Usage of a node (CPU, memory, load), for elections and the status."""

from __future__ import annotations

import os

import psutil

from galileo.ccq.machine import Continuous
from galileo.clock import Clock
from galileo.election.ranking import UsageStatistics
from galileo.node.storage_node import StorageNode
from galileo.server.cgroup_memory import memory
from galileo.wire.codec import cursor_to_pb, held_to_pb
from galileo.wire.v1 import cluster_pb2

LOSSES_MAX = 20
DAMAGES_MAX = 20
"""CCQs that a status lists."""


class Usage:
    """Measures with psutil; CPU is the usage since the last measurement."""

    def __init__(self, clock: Clock, *, cache_bytes_max: int) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._process = psutil.Process()
        self._cache_bytes_max = cache_bytes_max
        self._cpu_share = 0.0
        psutil.cpu_percent(interval=None)

    def measure(self, machine: Continuous) -> UsageStatistics:
        """Measures the usage; `memory_free_bytes` is the free part of the cache budget."""
        self._cpu_share = psutil.cpu_percent(interval=None) / 100
        cached = machine.usage.cache_bytes
        budget = max(self._cache_bytes_max - cached, 0)
        return UsageStatistics(
            cpu_share=self._cpu_share,
            memory_free_bytes=min(memory().available, budget),
            load=psutil.getloadavg()[0] / (psutil.cpu_count() or 1),
            ccq_count=len(machine.coordinated),
            cache_bytes=cached,
        )

    def status(self, node: StorageNode, machine: Continuous) -> cluster_pb2.NodeStatus:
        datasets = [
            cluster_pb2.DatasetStatus(
                dataset=facts.dataset,
                rows=facts.rows,
                paths=facts.paths,
                bytes_on_disk=facts.bytes_on_disk,
                graph_bytes=facts.graph_bytes,
                sequences=cursor_to_pb(facts.sequences),
                retention_json=facts.retention.to_json() if facts.retention else "",
                dropped=cursor_to_pb(facts.dropped),
                held=held_to_pb(facts.held),
            )
            for facts in node.facts()
        ]
        return cluster_pb2.NodeStatus(
            name=node.name,
            group=node.topology.group_of(node.name).name,
            address=node.topology.by_name[node.name].address,
            state="draining" if machine.usage.is_draining else "up",
            cpu_share=self._cpu_share,
            memory_bytes=self._process.memory_info().rss,
            memory_free_bytes=memory().available,
            load=psutil.getloadavg()[0],
            uptime_s=self._clock.monotonic() - self._started,
            datasets=datasets,
            stopped=node.stopped(),
            ccqs_coordinated=len(machine.coordinated),
            ccqs_overloaded=sum(
                led.cycles.is_overloaded(self._clock.monotonic())
                for led in machine.coordinated.values()
            ),
            cache_bytes=machine.usage.cache_bytes,
            held_bytes=machine.cached_bytes,
            spilled_bytes=machine.state.cache_usage.spilled_bytes,
            pid=os.getpid(),
            wall_s=self._clock.wall(),
            partitions=sorted(node.partitions),
            lost=[str(one) for one in node.view.losses.known[:LOSSES_MAX]],
            topology_version=node.topology.version,
            damaged=node.damaged()[:DAMAGES_MAX],
            diverged=node.diverged()[:DAMAGES_MAX],
            channels_failing=node.channels.failures()[:DAMAGES_MAX],
            under_replicated=node.replicas.under_replicated,
            pending=node.pending,
            replica_lag=node.replicas.gauges().lag,
        )
