"""All scenarios there are."""

from __future__ import annotations

from faults import (
    standing_clocks,
    standing_kills,
    standing_network,
    storage_calls,
    storage_damage,
    storage_disks,
    storage_drops,
    storage_kills,
)
from faults.registry import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *storage_kills.SCENARIOS,
    *storage_calls.SCENARIOS,
    *storage_drops.SCENARIOS,
    *storage_damage.SCENARIOS,
    *storage_disks.SCENARIOS,
    *standing_kills.SCENARIOS,
    *standing_clocks.SCENARIOS,
    *standing_network.SCENARIOS,
)
