"""Options of the continuous-query machine: all its limits and delays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from galileo.ccq.cache import CHUNKS_COMPACTED, LABELS_FEW


@dataclass(frozen=True, slots=True)
class ContinuousOptions:
    """All times are in seconds.

    Attributes:
        groups: node names by group; this node's group is among them.
        racks: the rack of each node; empty: each node is a rack of its own.
        save_after_s: what clients have retrieved is saved so long after it has changed.
        save_interval_s: between two looks for records to be saved.
        saved_max: records that are saved at a time, those first that wait longest.
        repair_after_s: a node that is dead for so long is replaced in the records that name it.
        repair_retry_s: until nodes are sought again where none was found.
        repaired_max: CCQs that are looked at in one step, and for which nodes are elected together.
        change_timeout_s: after it nodes are elected again for a CCQ.
        succession_pause_s: between attempts to transfer one CCQ.
        successions_max: CCQs that are transferred at a time.
        expiry_grace_s: how long other nodes wait for the coordinator to end an expired CCQ.
        tombstone_s: how long past its expiry the end of a CCQ is remembered.
        retry_s: pause before a request is repeated; also the advice to clients.
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
        chunks_compacted: small chunks of a cache that are packed as one.
        labels_few: labels of a cache up to which it is rarely compacted.
        fetches_max: open fetches at a time.
        backfills_max: rescans at a time, for each CCQ.
        labels_max: bound of `FetchRequested.labels_max`.
        confirm_timeout_s: for the owners' confirmation of a token that is ahead of known commits.
        backfill_timeout_s: for the rescan for a token older than the cache.
    """

    groups: tuple[tuple[str, ...], ...]
    racks: Mapping[str, str] = field(default_factory=dict)
    save_after_s: float = 2.0
    save_interval_s: float = 0.5
    saved_max: int = 256
    repair_after_s: float = 10.0
    repair_retry_s: float = 60.0
    repaired_max: int = 256
    change_timeout_s: float = 20.0
    succession_pause_s: float = 10.0
    successions_max: int = 4
    expiry_grace_s: float = 30.0
    tombstone_s: float = 600.0
    retry_s: float = 0.5
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
    chunks_compacted: int = CHUNKS_COMPACTED
    labels_few: int = LABELS_FEW
    fetches_max: int = 10_000
    backfills_max: int = 32
    labels_max: int = 1_000_000
    confirm_timeout_s: float = 1.0
    backfill_timeout_s: float = 30.0
