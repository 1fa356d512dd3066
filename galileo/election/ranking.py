"""Ranking of nodes by usage statistics and round-trip time (paper, IV.B)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsageStatistics:
    """The load of a node, by its own measurement.

    Attributes:
        cpu_share: recently used share of all its cores, 0 to 1.
        memory_free_bytes: free memory that caches could use.
        load: runnable threads per core, averaged over a minute.
        ccq_count: CCQs that it coordinates.
        cache_bytes: memory that their caches take.
        is_draining: whether it hands its CCQs off and takes no others.
    """

    cpu_share: float = 0.0
    memory_free_bytes: int = 0
    load: float = 0.0
    ccq_count: int = 0
    cache_bytes: int = 0
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the terms of a score, each of which is about 0 to 1 before weighting.

    Attributes:
        memory: share of the free memory that the CCQ's cache would take. The largest weight, since
            a coordinator without memory must hand its CCQ off.
        cpu: share of all cores in use.
        load: runnable threads per core, at most 4.
        ccqs: coordinated CCQs, per `ccqs_typical`; spreads CCQs over idle nodes.
        latency: round-trip time, per `latency_typical_s`, at most 4.
    """

    memory: float = 4.0
    cpu: float = 2.0
    load: float = 1.0
    ccqs: float = 1.0
    latency: float = 0.5
    ccqs_typical: float = 20.0
    latency_typical_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Suitability:
    """Limits within which a node is suitable for one more CCQ.

    Attributes:
        memory_reserve_bytes: must stay free next to the expected cache.
        cpu_share_max: above it the node is busy.
        ccqs_max: most CCQs of one node.
    """

    memory_reserve_bytes: int = 64 << 20
    cpu_share_max: float = 0.9
    ccqs_max: int = 100_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node's answer to the poll and how long it took."""

    usage: UsageStatistics
    round_trip_s: float


_BURDEN_MAX = 4.0
_MEMORY_MIN_BYTES = 1


def is_suitable(usage: UsageStatistics, *, need_bytes: int, limits: Suitability) -> bool:
    return (
        not usage.is_draining
        and usage.memory_free_bytes >= need_bytes + limits.memory_reserve_bytes
        and usage.cpu_share <= limits.cpu_share_max
        and usage.ccq_count < limits.ccqs_max
    )


def score(candidate: Candidate, *, need_bytes: int, weights: Weights) -> float:
    """Expected load of the node; lower is better."""
    usage = candidate.usage
    memory = (need_bytes + usage.cache_bytes) / max(usage.memory_free_bytes, _MEMORY_MIN_BYTES)
    latency = candidate.round_trip_s / weights.latency_typical_s
    return (
        weights.memory * min(memory, _BURDEN_MAX)
        + weights.cpu * usage.cpu_share
        + weights.load * min(usage.load, _BURDEN_MAX)
        + weights.ccqs * usage.ccq_count / weights.ccqs_typical
        + weights.latency * min(latency, _BURDEN_MAX)
    )


def rank(
    candidates: Mapping[str, Candidate], *, need_bytes: int, weights: Weights
) -> tuple[str, ...]:
    """The nodes, best first; equal ones by name, so that all pollers agree."""
    scores = {
        node: score(candidate, need_bytes=need_bytes, weights=weights)
        for node, candidate in candidates.items()
    }
    return tuple(sorted(scores, key=lambda node: (scores[node], node)))
