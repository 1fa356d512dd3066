"""Known-wrong variants of continuous queries over replicas, each of which must be convicted."""

from __future__ import annotations

from dataclasses import dataclass, field

from galileo.replication.machine import Replica
from simulator.replica_cluster import ReplicaConduct
from simulator.replica_mutants import REPLICA_MUTANTS
from simulator.replicated_node import ScanConduct


@dataclass(frozen=True, slots=True)
class ReplicatedVariant:
    """The machine of replicas, and mistakes of its driver and of scans."""

    machine: type[Replica] = Replica
    conduct: ReplicaConduct | None = None
    scans: ScanConduct = field(default_factory=ScanConduct)


def _scanning(**mistakes: bool) -> ReplicatedVariant:
    return ReplicatedVariant(scans=ScanConduct(**mistakes))


def _replicating(name: str) -> ReplicatedVariant:
    return ReplicatedVariant(*REPLICA_MUTANTS[name])


REPLICATED_VARIANTS = {
    "production": ReplicatedVariant(),
    "scans_uncommitted": _scanning(reads_uncommitted=True),
    "advances_to_end_of_log": _scanning(reaches_end=True),
    "scans_without_lease": _scanning(ignores_lease=True),
    "completes_stale_answers": _scanning(completes_answers=True),
    "scans_other_epochs": _scanning(reads_other_epochs=True),
    "follows_uncommitted": _scanning(follows_uncommitted=True),
    "completes_ranges": _scanning(completes_ranges=True),
    "leads_before_it_is_open": _scanning(announces_early=True),
    "forgets_batches": ReplicatedVariant(conduct=ReplicaConduct(forgets_batches=True)),
    "stores_batches_again": _replicating("stores_batches_again"),
    "publishes_appended": _replicating("publishes_appended"),
    "takes_own_log": _replicating("takes_own_log"),
    "counts_one_less": _replicating("counts_one_less"),
}
