"""Channels of real nodes, compared with loops over all pairs: what has to be new."""

from __future__ import annotations

from typing import Any

import pytest
from channel_rounds import TEMPLATE, Rounds

from galileo.model.channel import Channel
from galileo.node import channel_observations

MODES: list[dict[str, Any]] = [
    {"new": "observations"},
    {"new": "both"},
    {"new": "either"},
    {"new": "either", "leave": True},
]


LIMITS = [
    {},
    {"galileo.node.channel_observations.ROWS_MAX": 3},
    {"galileo.node.channel_executor.BYTES_MAX": 1},
]
MIXES = [
    pytest.param(mode, limits, marks=() if number == index < 2 else pytest.mark.slow)
    for index, mode in enumerate(MODES)
    for number, limits in enumerate(LIMITS)
]


@pytest.mark.parametrize(("mode", "limits"), MIXES)
async def test_rounds_tell_what_loops_over_all_pairs_find(
    cluster: Any, mode: dict[str, Any], limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(name, value)
    world = Rounds(cluster, Channel("alerts", "nam", TEMPLATE, **mode), seed=LIMITS.index(limits))
    await world.begin()
    total = 0
    for number in range(8):
        for _ in range(world.chance.randrange(3)):
            await world.subscribe(world.chance.randint(1, 8))
        for _ in range(world.chance.randrange(3)):
            await world.observe(world.chance.randint(1, 6))
        await world.execute()
        delivered, due = await world.delivered(), world.due()
        assert delivered == due, f"round {number}"
        total += delivered.total()
        if number % 4 == 3:  # Indices and histories are made anew, from the logs.
            await cluster.restart(world.chance.choice("abc"))
    assert total > 10


async def test_a_partition_that_is_away_is_matched_later(cluster: Any) -> None:
    world = Rounds(cluster, Channel("alerts", "nam", TEMPLATE), seed=1)
    await world.begin()
    await world.subscribe(10)
    await world.observe(20)
    world.hear()
    cluster.network.away = {"b"}
    there = cluster["b"].catalog.shard("nam").own
    for name in ("a", "c"):
        await cluster[name].channels.execute("alerts")
    heard, progress = cluster["a"].view.sequences("nam"), cluster["a"].channels.progress("alerts")
    assert there.keys() & heard.keys()
    assert progress
    for one in progress.values():
        assert all(one.cut[p] == (0 if p in there else s) for p, s in heard.items())
    cluster.network.away = set()
    await world.execute()
    assert await world.delivered() == world.due()


async def test_a_history_that_is_too_large_fails_and_says_so(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Rounds(cluster, Channel("alerts", "nam", TEMPLATE, new="either"), seed=2)
    await world.begin()
    for _ in range(4):
        await world.observe(10)
    await world.execute()
    monkeypatch.setattr(channel_observations, "HISTORY_ROWS_MAX", 5)
    for node in cluster.nodes:
        node.channels._observations._histories.clear()
    await world.subscribe(10)
    world.hear()
    for node in cluster.nodes:
        await node.channels.execute("alerts")
    progress = [one for n in cluster.nodes for one in n.channels.progress("alerts").values()]
    failures = [one.failure for one in progress if one.failure]
    assert failures
    assert all("at most 5 observations" in failure for failure in failures)
    monkeypatch.undo()
    await world.execute()
    await world.delivered()
