"""Ranking of nodes by usage statistics and round-trip time (paper, IV.B)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEMORY_RESERVE_BYTES = 64 << 20
"""Memory of a suitable node that stays free next to the expected cache."""
CPU_SHARE_MAX = 0.9
"""Above it a node is busy."""
CCQS_MAX = 100_000
"""Most CCQs of one node."""

# Each term of a score is about 0 to 1 before weighting.
MEMORY_WEIGHT = 4.0
"""Weight of the share of the free memory that the CCQ's cache would take. It is the largest one,
since a coordinator without memory must hand its CCQ off."""
CPU_WEIGHT = 2.0
"""Weight of the share of all cores in use."""
LOAD_WEIGHT = 1.0
"""Weight of the runnable threads per core, at most 4."""
CCQS_WEIGHT, CCQS_TYPICAL = 1.0, 20.0
"""Weight of the coordinated CCQs, per `CCQS_TYPICAL`; spreads CCQs over idle nodes."""
LATENCY_WEIGHT, LATENCY_TYPICAL_S = 0.5, 0.05
"""Weight of the round-trip time, per `LATENCY_TYPICAL_S`, at most 4."""


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
class Candidate:
    """A node's answer to the poll and how long it took."""

    usage: UsageStatistics
    round_trip_s: float


_BURDEN_MAX = 4.0
_MEMORY_MIN_BYTES = 1


def is_suitable(
    usage: UsageStatistics,
    *,
    need_bytes: int,
    reserve_bytes: int = MEMORY_RESERVE_BYTES,
    cpu_share_max: float = CPU_SHARE_MAX,
) -> bool:
    """Whether a node can take one more CCQ whose cache is expected to need `need_bytes`."""
    return (
        not usage.is_draining
        and usage.memory_free_bytes >= need_bytes + reserve_bytes
        and usage.cpu_share <= cpu_share_max
        and usage.ccq_count < CCQS_MAX
    )


def score(candidate: Candidate, *, need_bytes: int) -> float:
    """Expected load of the node; lower is better."""
    usage = candidate.usage
    memory = (need_bytes + usage.cache_bytes) / max(usage.memory_free_bytes, _MEMORY_MIN_BYTES)
    latency = candidate.round_trip_s / LATENCY_TYPICAL_S
    return (
        MEMORY_WEIGHT * min(memory, _BURDEN_MAX)
        + CPU_WEIGHT * usage.cpu_share
        + LOAD_WEIGHT * min(usage.load, _BURDEN_MAX)
        + CCQS_WEIGHT * usage.ccq_count / CCQS_TYPICAL
        + LATENCY_WEIGHT * min(latency, _BURDEN_MAX)
    )


def rank(candidates: Mapping[str, Candidate], *, need_bytes: int) -> tuple[str, ...]:
    """The nodes, best first; equal ones by name, so that all pollers agree."""
    scores = {node: score(one, need_bytes=need_bytes) for node, one in candidates.items()}
    return tuple(sorted(scores, key=lambda node: (scores[node], node)))
