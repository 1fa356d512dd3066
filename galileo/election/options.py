"""Options of the machine of duties: all its limits and delays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from galileo.election.machine import ElectionOptions


@dataclass(frozen=True, slots=True)
class DutyOptions:
    """All times are in seconds.

    Attributes:
        ordinal: of this node in the cluster; never reused for another node, below `NODES_MAX`.
        groups: node names by group; this node's group is among them.
        racks: the rack of each node; empty: each node is a rack of its own.
        succession_pause_s: between attempts to transfer one duty.
        successions_max: elections of successors at a time.
        record_replicas: nodes that keep a record, besides the coordinator.
        surplus_s: how long a record that this node need not have stays at least after its last
            change; longer than messages are under way.
        copies_min: nodes that have the record on disk before a submission is answered, as far as so
            many of those that share it are alive.
        usage_ttl_s: how long the answer to a poll serves further elections.
        polled_first: nodes in the first round of an election.
        coordinated_max: duties that this node accepts.
        submit_timeout_s: after it a submission is refused.
        locate_timeout_s: for the peers' answers about an unknown duty.
        retry_s: pause before a request is repeated; also the advice to clients.
        takeover_stagger_s: delay of each further node in a failover.
        resume_check_s: how long a restarted coordinator waits for messages of a successor.
        sync_interval_s: of digests, and of saving and announcing progress.
        flushed_max: records with progress that are saved and announced at a time; a late one makes
            a successor work more.
        expiry_grace_s: how long other nodes wait for the coordinator to end an expired duty.
        tombstone_slack_s: how long past its expiry the end of a duty is remembered.
        tombstone_max_s: the longest that an end is remembered.
    """

    ordinal: int
    groups: tuple[tuple[str, ...], ...]
    racks: Mapping[str, str] = field(default_factory=dict)
    election: ElectionOptions = field(default_factory=ElectionOptions)
    succession_pause_s: float = 10.0
    successions_max: int = 4
    record_replicas: int = 3
    surplus_s: float = 60.0
    copies_min: int = 3
    usage_ttl_s: float = 1.0
    polled_first: int = 4
    coordinated_max: int = 100_000
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
