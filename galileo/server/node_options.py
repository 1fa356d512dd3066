"""The options of a node's parts, from its configuration."""

from __future__ import annotations

import math
from pathlib import Path

from galileo.ccq.options import ContinuousOptions
from galileo.clock import Clock
from galileo.config import Config, StorageSection
from galileo.dht.membership import Membership, MembershipOptions
from galileo.dht.topology import Topology
from galileo.election.ranking import MEMORY_RESERVE_BYTES
from galileo.node.compaction_runner import CompactionRunnerOptions
from galileo.node.retention_runner import RetentionRunnerOptions
from galileo.node.scrub_runner import CALM_S, ScrubOptions
from galileo.node.storage_node import NodeOptions
from galileo.rpc.admission import BULK_BYTES_MAX, Admission
from galileo.server.cgroup_memory import memory
from galileo.storage.compaction import CompactionOptions
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

RESERVED_PART = 4
"""Divisor of the cache budget: the free memory that another CCQ requires at most."""
BULK_PART = 4
"""Divisor of the memory: the part for bulk requests."""


def admission() -> Admission:
    bulk_bytes_max = min(BULK_BYTES_MAX, memory().total // BULK_PART)
    return Admission(bulk_bytes_max=bulk_bytes_max)


def membership(config: Config, *, run: int) -> Membership:
    names = [node.name for node in config.topology.nodes if node.name != config.node.name]
    options = MembershipOptions(
        heartbeat_interval_s=config.membership.heartbeat_interval_s,
        failure_timeout_s=config.membership.failure_timeout_s,
    )
    return Membership(config.node.name, names, run=run, options=options)


def names_by_group(topology: Topology) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(node.name for node in group.nodes) for group in topology.groups)


def open_store(config: Config, clock: Clock) -> Store:
    """Opens the directory of a node; errors as `Store.open`."""
    return Store.open(
        Path(config.node.directory),
        JournalOptions(
            segment_bytes_max=config.storage.segment_bytes_max,
            durability="none" if config.storage.durability == "none" else "fsync",
        ),
        wall=clock.wall,
    )


def machine_options(config: Config) -> ContinuousOptions:
    return ContinuousOptions(
        groups=names_by_group(config.topology),
        racks=config.topology.fault_domains,
        cycle_timeout_s=config.evaluator.cycle_timeout_s,
        cache_bytes_max=config.limits.cache_bytes_max,
        spill_bytes_max=config.limits.spill_bytes_max,
        labels_max=config.limits.answer_labels_max,
    )


def memory_reserve_bytes(config: Config) -> int:
    """The free memory that a coordinator requires, less if the cache budget is small."""
    return min(MEMORY_RESERVE_BYTES, config.limits.cache_bytes_max // RESERVED_PART)


def node_options(config: Config) -> NodeOptions:
    return NodeOptions(
        batch_rows_max=config.limits.batch_rows_max,
        commit_queue_max=config.limits.commit_queue_max,
        merging=_merging(config.storage),
        samplers_are_allowed=config.samplers.uploads == "sandboxed",
    )


def _merging(storage: StorageSection) -> CompactionRunnerOptions | None:
    if not storage.compaction:
        return None
    return CompactionRunnerOptions(
        CompactionOptions(
            bytes_min=storage.compaction_bytes_min, bytes_max=storage.compaction_bytes_max
        ),
        bytes_per_s=storage.compaction_bytes_per_s,
        interval_s=storage.compaction_interval_s,
    )


def retention_options(storage: StorageSection, clock: Clock) -> RetentionRunnerOptions:
    return RetentionRunnerOptions(
        check_s=storage.retention_check_s,
        min_age_s=storage.retention_min_age_s,
        wall=clock.wall,
        monotonic=clock.monotonic,
    )


def scrub_options(storage: StorageSection, clock: Clock) -> ScrubOptions:
    """With an interval of less than some minutes, for trials, the first read waits less, too."""
    period_s = storage.scrub_days * 86_400 or math.inf
    return ScrubOptions(
        period_s=period_s,
        calm_s=min(CALM_S, period_s / 10),
        wall=clock.wall,
        monotonic=clock.monotonic,
    )
