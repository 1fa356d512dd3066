"""All scenarios there are."""

from __future__ import annotations

from faults import (
    bombs,
    clients,
    floods,
    http_floods,
    standing_clocks,
    standing_delays,
    standing_kills,
    standing_limits,
    standing_moves,
    standing_network,
    standing_rolling,
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
    *standing_rolling.SCENARIOS,
    *standing_moves.SCENARIOS,
    *standing_clocks.SCENARIOS,
    *standing_network.SCENARIOS,
    *standing_delays.SCENARIOS,
    *standing_limits.SCENARIOS,
    *clients.SCENARIOS,
    *floods.SCENARIOS,
    *http_floods.SCENARIOS,
    *bombs.SCENARIOS,
)
