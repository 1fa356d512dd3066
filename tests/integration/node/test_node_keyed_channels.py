"""Channels over keyed datasets of real nodes, compared with loops over dicts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from channel_rounds import TEMPLATE, KeyedRounds
from parameters import keep_quick
from retaining import Days, retention_of

from galileo.model.channel import Channel

MODES: list[dict[str, Any]] = [
    {"new": "observations"},
    {"new": "both"},
    {"new": "either"},
    {"new": "either", "leave": True},
    {"new": "none"},
]
LIMITS = {
    "galileo.node.channel_observations.ROWS_MAX": 3,
    "galileo.node.channel_executor.BYTES_MAX": 1,
}


class Cleaners:
    """Clean the dataset at all nodes, as far as readers and channels permit.

    Attributes:
        dropped: how many commits were dropped.
    """

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.clock, self.dropped = cluster, Days(), 0

    async def clean(self) -> None:
        """Cleans what is there now."""
        for node in self.cluster.nodes:
            shard = node.catalog.shard("buoys")
            for journal in shard.own.values():
                journal.seal()
            runner = retention_of(node, self.clock, set())
            try:
                for _ in range(3):  # What is there at the first time has settled at the third one.
                    await asyncio.to_thread(runner.clean, shard)
                    self.clock.now_s += 400
            finally:
                await asyncio.to_thread(runner.stop)
            self.dropped = max(self.dropped, sum(shard.dropped().values()))


async def write(world: KeyedRounds) -> None:
    for _ in range(world.chance.randrange(3)):
        await world.subscribe(world.chance.randint(1, 8))
    for _ in range(world.chance.randrange(4)):
        await world.observe(world.chance.randint(1, 8))


@pytest.mark.parametrize("mode", keep_quick(MODES, MODES[-1]))
async def test_rounds_tell_what_loops_over_dicts_find(cluster: Any, mode: dict[str, Any]) -> None:
    world = KeyedRounds(cluster, Channel("alerts", "buoys", TEMPLATE, **mode), seed=3)
    cleaners = Cleaners(cluster)
    await world.begin()
    total = left = 0
    for number in range(12):
        await write(world)
        if number % 3 == 1:  # What the last executions have seen is kept, and copied.
            world.hear()
            await cleaners.clean()
        cluster.clock.now += world.channel.period_s
        world.set_clock()
        await world.execute()
        delivered, due = await world.delivered(), world.due()
        assert delivered == due, f"round {number}"
        total += delivered.total()
        left += sum(count for (*_, is_left), count in delivered.items() if is_left)
        if world.channel.leave:
            assert world.held == world.matching()
        if number % 3 == 2:
            await cleaners.clean()
            await world.execute()
            assert not await world.delivered(), "copies are no news"
        if number % 4 == 3:  # Indices and histories are made anew, from the logs.
            await cluster.restart(world.chance.choice("abc"))
    assert total > 10
    assert cleaners.dropped
    assert bool(left) == world.channel.leave


@pytest.mark.parametrize("limit", keep_quick(LIMITS))
async def test_parts_of_what_is_new_add_up_to_what_matches(
    cluster: Any, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is replaced within a round may be delivered, and then it leaves."""
    monkeypatch.setattr(limit, LIMITS[limit])
    channel = Channel("alerts", "buoys", TEMPLATE, new="either", leave=True)
    world = KeyedRounds(cluster, channel, seed=4)
    await world.begin()
    entered = 0
    for number in range(8):
        await write(world)
        await world.execute()
        entered += (await world.delivered()).total()
        assert world.held == world.matching(), f"round {number}"
        if number % 3 == 2:
            await cluster.restart(world.chance.choice("abc"))
    assert entered > 10
