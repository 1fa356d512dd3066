"""The source of a node's metrics: reads them from its components on demand, on the event loop.

The numbers of continuous queries and partitions with metrics of their own are bounded; the others
appear only in sums.
"""

from __future__ import annotations

import heapq
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from galileo.ccq.coordinator import Coordinator
from galileo.ccq.machine import Continuous
from galileo.ccq.stats import LabelCounts
from galileo.config import Config
from galileo.histogram import DurationHistogram
from galileo.model.schema import name_of_key
from galileo.model.system import SYSTEM_TABLES
from galileo.node.storage_node import StorageNode
from galileo.server.audit import Audit
from galileo.server.ccq_records import CcqRecords
from galileo.server.cgroup_memory import memory
from galileo.server.driver import Driver
from galileo.server.metrics import Measured


class CallCounts(Protocol):
    """`rpc.call_log.CallTracker`."""

    refused: Counter[str]

    def counts(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class NodeView:
    """The components of a node from which metrics and diagnostics are read.

    Attributes:
        loop_lag: the lag of the event loop.
        version: of this package.
        ccqs: the records of continuous queries.
        audit: the audit log, if enabled.
    """

    config: Config
    node: StorageNode
    machine: Continuous
    driver: Driver
    calls: CallCounts
    loop_lag: DurationHistogram
    ccqs: CcqRecords
    version: str
    audit: Audit | None = None


def measurements(parts: NodeView, *, now: float, is_ready: bool) -> list[Measured]:
    """All of a node's metrics.

    Args:
        parts: the node's components.
        now: monotonic time of the machine.
        is_ready: whether the node is ready.
    """
    return [
        ("galileo_ready", (), float(is_ready)),
        *_node(parts),
        *_replicas(parts.node),
        *_scrub(parts.node),
        *_elections_and_labels(parts.machine),
        *_ccqs(parts, now),
        *_channels(parts.node),
        *_datasets(parts.node),
        *_partitions(parts.node, partitions_max=parts.config.metrics.partitions_max),
    ]


def _node(parts: NodeView) -> Iterator[Measured]:
    config, node = parts.config, parts.node
    group = node.topology.group_of(node.name).name
    yield "galileo_build_info", (parts.version, node.name, group, node.topology.cluster), 1.0
    yield "galileo_loop_lag_seconds", (), parts.loop_lag
    yield "galileo_events_waiting", (), parts.driver.events_waiting
    for method, count in sorted(parts.calls.counts().items()):
        yield "galileo_calls_under_way", (method,), count
    for kind, count in sorted(parts.calls.refused.items()):
        yield "galileo_calls_refused", (kind,), count
    if parts.audit is not None:
        yield "galileo_audit_failures", (), parts.audit.failed
    yield "galileo_peers", ("alive",), len(parts.driver.members.alive)
    yield "galileo_peers", ("dead",), len(parts.driver.members.dead)
    yield "galileo_memory_available_bytes", (), memory().available
    disk = shutil.disk_usage(Path(config.node.directory))
    yield "galileo_disk_free_bytes", (), disk.free
    yield "galileo_disk_size_bytes", (), disk.total
    yield "galileo_cache_bytes", (), parts.machine.state.cache_usage.bytes
    yield "galileo_cache_held_bytes", (), parts.machine.cached_bytes
    yield "galileo_cache_limit_bytes", (), config.limits.cache_bytes_max
    yield "galileo_spilled_bytes", (), parts.machine.state.cache_usage.spilled_bytes
    yield "galileo_spilled_limit_bytes", (), config.limits.spill_bytes_max


def _replicas(node: StorageNode) -> Iterator[Measured]:
    replicas = node.replicas
    now, counts = replicas.gauges(), replicas.counts
    yield "galileo_replicas", ("leading",), now.leading
    yield "galileo_replicas", ("following",), now.following
    yield "galileo_replicas", ("learning",), now.learning
    yield "galileo_under_replicated", (), len(replicas.under_replicated)
    yield "galileo_leaderless", (), len(replicas.leaderless)
    yield "galileo_replica_lag_commits", (), now.lag
    yield "galileo_terms_led", (), counts.terms_led
    yield "galileo_replica_bytes_sent", (), counts.frame_bytes_sent
    yield "galileo_logs_set_aside", (), counts.logs_set_aside
    yield "galileo_replicas_diverged", (), len(replicas.comparison.diverged)


def _scrub(node: StorageNode) -> Iterator[Measured]:
    yield "galileo_damaged_files", (), len(node.damaged())
    if node.scrub is not None:
        yield "galileo_scrub_bytes", (), node.scrub.counts.bytes
        yield "galileo_scrub_damages", (), node.scrub.counts.damages
        if (age_s := node.scrub.age_s) is not None:
            yield "galileo_scrub_age_seconds", (), age_s


def _elections_and_labels(machine: Continuous) -> Iterator[Measured]:
    counts = machine.state.counts
    yield "galileo_elections", (), counts.elections
    yield "galileo_elections_failed", (), counts.elections_failed
    yield "galileo_cycle_seconds", (), counts.cycles
    yield "galileo_cycles_failed", (), counts.cycles_failed
    yield "galileo_lag_seconds", (), counts.labels.lag
    yield from _labels("galileo_labels", (), counts.labels)


def _labels(stem: str, labels: tuple[str, ...], counts: LabelCounts) -> Iterator[Measured]:
    yield f"{stem}_matched", labels, counts.matched
    yield f"{stem}_delivered", labels, counts.delivered
    yield f"{stem}_served_again", labels, counts.served_again
    yield f"{stem}_late", labels, counts.late


# --- continuous queries ----------------------------------------------------------------------


def _ccqs(parts: NodeView, now: float) -> Iterator[Measured]:
    led = parts.machine.coordinated
    yield "galileo_ccqs", ("coordinated",), len(led)
    overloaded = sum(one.cycles.is_overloaded(now) for one in led.values())
    yield "galileo_ccqs", ("overloaded",), overloaded
    failing = sum(one.cycles.failure is not None for one in led.values())
    yield "galileo_ccqs", ("failing",), failing
    section = parts.config.metrics
    shown = shown_ccqs(
        led.values(), named=section.ccq_id_list, others_max=section.ccqs_max, now=now
    )
    yield "galileo_ccqs_shown", (), len(shown)
    for one in shown:
        yield from _ccq(one, now)


def shown_ccqs(
    led: Iterable[Coordinator], *, named: tuple[str, ...], others_max: int, now: float
) -> list[Coordinator]:
    """The configured queries, and the others with the oldest frontiers."""
    all_led = list(led)
    first = [one for one in all_led if one.ccq.id in named]
    others = (one for one in all_led if one.ccq.id not in named)
    return [
        *first,
        *heapq.nsmallest(others_max, others, key=lambda o: (-o.cycles.age_s(now), o.ccq.id)),
    ]


def _ccq(led: Coordinator, now: float) -> Iterator[Measured]:
    labels = (led.ccq.id, name_of_key(led.ccq.dataset))
    cycles = led.cycles
    yield "galileo_ccq_frontier_age_seconds", labels, cycles.age_s(now)
    yield "galileo_ccq_interval_seconds", labels, led.ccq.interval_s
    yield "galileo_ccq_lag_seconds", labels, led.counts.lag
    yield "galileo_ccq_cycle_seconds", labels, (cycles.over, cycles.over_s)
    yield "galileo_ccq_cycles_failed", labels, cycles.failed
    yield "galileo_ccq_failing", labels, float(cycles.failure is not None)
    yield from _labels("galileo_ccq_labels", labels, led.counts)
    yield "galileo_ccq_cache_bytes", labels, led.cache.bytes
    yield "galileo_ccq_spilled_bytes", labels, led.cache.spilled_bytes


# --- channels --------------------------------------------------------------------------------


def _channels(node: StorageNode) -> Iterator[Measured]:
    executor = node.channels
    yield "galileo_channel_execution_seconds", (), executor.durations
    for key, channel in sorted(node.catalog.channels.items()):
        labels, progress = (channel.name,), list(executor.progress(key).values())
        subscriptions = sum(len(one.index) for one in progress)
        yield "galileo_channel_subscriptions", labels, subscriptions
        index_bytes = sum(one.index.nbytes for one in progress)
        yield "galileo_channel_index_bytes", labels, index_bytes
        behind = max((executor.behind(key, one) for one in progress), default=0)
        yield "galileo_channel_behind_commits", labels, behind
        failing = sum(bool(one.failure) for one in progress)
        yield "galileo_channel_failing", labels, failing


# --- stored data -----------------------------------------------------------------------------


def _datasets(node: StorageNode) -> Iterator[Measured]:
    for facts in node.facts():
        labels = (name_of_key(facts.dataset),)
        yield "galileo_dataset_rows", labels, facts.rows
        yield "galileo_dataset_paths", labels, facts.paths
        yield "galileo_dataset_disk_bytes", labels, facts.bytes_on_disk
        yield "galileo_dataset_graph_bytes", labels, facts.graph_bytes
        yield "galileo_dataset_held_bytes", labels, sum(one.bytes for one in facts.held)


def _partitions(node: StorageNode, *, partitions_max: int) -> Iterator[Measured]:
    """Partitions; read-only ones and those with waiting commits come first, system tables last."""
    waiting = node.catalog.waiting()
    journals = [
        (
            not journal.stopped,
            -waiting.get((dataset, partition), 0),
            dataset in SYSTEM_TABLES,
            dataset,
            partition,
        )
        for dataset, shard in node.catalog.shards.items()
        for partition, journal in shard.journals.items()
    ]
    shown = heapq.nsmallest(partitions_max, journals)
    yield "galileo_commit_log_fsync_seconds", (), node.store.log.syncs
    yield "galileo_partitions_shown", (), len(shown)
    for _, few, _, dataset, partition in shown:
        journal = node.catalog.shards[dataset].journals.get(partition)
        if journal is None:
            continue  # It has just moved away.
        labels = (dataset, str(partition))
        yield "galileo_partition_sequence", labels, journal.last_sequence
        yield "galileo_partition_fsync_seconds", labels, journal.syncs
        yield "galileo_partition_waiting_commits", labels, -few
        yield "galileo_partition_stopped", labels, float(journal.stopped is not None)
