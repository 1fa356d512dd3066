"""Options of the continuous-query machine: all its limits and delays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from galileo.ccq.cache import CHUNKS_COMPACTED, LABELS_FEW
from galileo.ccq.thresholds import ThresholdWeights
from galileo.election.machine import ElectionOptions


@dataclass(frozen=True, slots=True)
class ContinuousOptions:
    """All times are in seconds.

    Attributes:
        ordinal: of this node in the cluster; never reused for another node, below `NODES_MAX`.
        groups: node names by group; this node's group is among them.
        racks: the rack of each node; empty: each node is a rack of its own.
        cycle_timeout_s: after it a cycle counts as failed; a late result is still used.
        cycle_retry_s: pause after a failed cycle, doubled up to `cycle_retry_max_s`.
        failures_before_error: failures of a CCQ at one cursor before its readers get the error.
        cycle_items_max: CCQs in one cycle; the others wait for the next tick.
        cache_bytes_max: memory of all caches of this node.
        spill_bytes_max: size of all their files.
        spill_idle_s: a CCQ whose readers come no more often than this may be spilled.
        spills_max: files that are written at a time.
        spill_retry_s: pause after a failed write of a file.
        load_ahead_s: packs are loaded so long before readers are expected.
        full_check_s: interval of checks of the memory budget, besides after each cycle.
        holders_max: nodes that may keep ranges of one CCQ, besides its coordinator.
        handed_off_cache_ttl_s: the longest that a node keeps a handed-off cache.
        holder_timeout_s: for a holder's answer; then its range is rescanned.
        succession_pause_s: between attempts to hand one CCQ off.
        successions_max: elections of successors at a time.
        weights: of the thresholds of caches.
        chunks_compacted: small chunks of a cache that are packed as one.
        labels_few: labels of a cache up to which it is rarely compacted.
        record_replicas: nodes that keep a record, besides the coordinator.
        surplus_s: how long a record that this node need not have stays at least after its last
            change; longer than messages are under way.
        copies_min: nodes that have the record on disk before a submission is answered, as far as so
            many of those that share it are alive.
        usage_ttl_s: how long the answer to a poll serves further elections.
        polled_first: nodes in the first round of an election.
        batch_polled_first: the same for a batch of submissions.
        batch_share_min: CCQs of a batch below which it is not divided among coordinators.
        coordinated_max: CCQs that this node accepts.
        fetches_max: open fetches at a time.
        backfills_max: rescans at a time, for each CCQ.
        labels_max: bound of `FetchRequested.labels_max`.
        confirm_timeout_s: for the owners' confirmation of a token that is ahead of known commits.
        backfill_timeout_s: for the rescan for a token older than the cache.
        submit_timeout_s: after it a submission is refused.
        locate_timeout_s: for the peers' answers about an unknown CCQ.
        retry_s: pause before a request is repeated; also the advice to clients.
        takeover_stagger_s: delay of each further node in a failover.
        resume_check_s: how long a restarted coordinator waits for messages of a successor.
        sync_interval_s: of digests, and of saving and announcing retrieved cursors.
        flushed_max: retrieved cursors that are saved and announced at a time; a late one makes a
            successor evaluate more, and retention wait.
        expiry_grace_s: how long other nodes wait for the coordinator to end an expired CCQ.
        tombstone_slack_s: how long past its expiry the end of a CCQ is remembered.
        tombstone_max_s: the longest that an end is remembered.
    """

    ordinal: int
    groups: tuple[tuple[str, ...], ...]
    racks: Mapping[str, str] = field(default_factory=dict)
    election: ElectionOptions = field(default_factory=ElectionOptions)
    cycle_timeout_s: float = 60.0
    cycle_retry_s: float = 0.5
    cycle_retry_max_s: float = 30.0
    failures_before_error: int = 3
    cycle_items_max: int = 100_000
    cache_bytes_max: int = 256 << 20
    spill_bytes_max: int = 1 << 30
    spill_idle_s: float = 60.0
    spills_max: int = 4
    spill_retry_s: float = 10.0
    load_ahead_s: float = 5.0
    full_check_s: float = 0.5
    holders_max: int = 4
    handed_off_cache_ttl_s: float = 3600.0
    holder_timeout_s: float = 5.0
    succession_pause_s: float = 10.0
    successions_max: int = 4
    weights: ThresholdWeights = field(default_factory=ThresholdWeights)
    chunks_compacted: int = CHUNKS_COMPACTED
    labels_few: int = LABELS_FEW
    record_replicas: int = 3
    surplus_s: float = 60.0
    copies_min: int = 3
    usage_ttl_s: float = 1.0
    polled_first: int = 4
    batch_polled_first: int = 16
    batch_share_min: int = 25
    coordinated_max: int = 100_000
    fetches_max: int = 10_000
    backfills_max: int = 32
    labels_max: int = 1_000_000
    confirm_timeout_s: float = 1.0
    backfill_timeout_s: float = 30.0
    submit_timeout_s: float = 10.0
    locate_timeout_s: float = 2.0
    retry_s: float = 0.5
    takeover_stagger_s: float = 1.0
    resume_check_s: float = 1.0
    sync_interval_s: float = 1.0
    flushed_max: int = 1_024
    expiry_grace_s: float = 30.0
    tombstone_slack_s: float = 600.0
    tombstone_max_s: float = 30 * 86400.0
