"""Options of the continuous-query machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ContinuousOptions:
    """What differs between clusters; the delays and other limits are constants of the modules.

    Attributes:
        groups: node names by group; this node's group is among them.
        racks: the rack of each node; empty: each node is a rack of its own.
        cycle_timeout_s: seconds after which a cycle counts as failed; a late result is still used.
        cache_bytes_max: memory of all caches of this node.
        spill_bytes_max: size of all their files.
        labels_max: bound of `FetchRequested.labels_max`.
    """

    groups: tuple[tuple[str, ...], ...]
    racks: Mapping[str, str] = field(default_factory=dict)
    cycle_timeout_s: float = 60.0
    cache_bytes_max: int = 256 << 20
    spill_bytes_max: int = 1 << 30
    labels_max: int = 1_000_000
