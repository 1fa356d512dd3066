"""Channels of replicated partitions while nodes crash and lose their disks, judged from outside.

The same worlds as in `simulator.channel_world`, with real threads and in real time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from channel_audit import TEMPLATES
from simulator.channel_world import LIMITS, ChannelWorld, Plan

STEPS = 8


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 2), *(pytest.param(seed, STEPS, marks=pytest.mark.slow) for seed in range(1, 24))],
)
async def test_replicas_execute_a_channel_once_whatever_fails(
    tmp_path: Path, seed: int, steps: int
) -> None:
    plan = Plan(
        template=TEMPLATES[seed % 2], limits=LIMITS[seed % 3], is_kept=seed % 4 == 3, faults=steps
    )
    world = ChannelWorld(tmp_path, seed, plan)
    await world.play()
    assert world.audit.certain, "nothing was promised"
