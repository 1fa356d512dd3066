"""Wall clocks of nodes that jump by an hour while standing queries are answered."""

from __future__ import annotations

import asyncio
import time

from faults.registry import Scenario, Trial
from faults.standing_world import (
    DATASET,
    INTERVAL,
    World,
    standing,
    three_nodes,
    wait_for_updates,
)
from galileo.client import Ccq
from galileo.cluster import LocalCluster
from galileo.spark.launcher import EvaluatorHandle
from galileo.spark.options import EvaluatorOptions
from galileo.testing.faults.clocks import READ_AGAIN_S, WallClock
from galileo.testing.faults.needs import CLOCKS

JUMPS_S = (3_600.0, -3_600.0, 0.0)
SHORT = "20m"
"""An expiration that a jump passes."""
KILLED = 0.5
"""Share of the later jumps after which a node is killed, and starts with its wrong clock."""
UPDATES_S = 300.0


def jumps(trial: Trial) -> None:
    """First without restarts, beside a query that is to outlive the jumps; then with restarts.

    A node reckons from its clock once when an expiration comes, when it first sees the query. One
    that starts with a wrong clock is wrong about it by as much, so the second part is without it.
    """
    cluster, clocks = three_nodes(trial), {}
    for node in cluster.nodes:
        clocks[node.name] = WallClock(trial.directory / f"{node.name}.time")
        node.prefix = clocks[node.name].prefix
    asyncio.run(_start_evaluator(cluster))
    with standing(trial, cluster) as world:
        short = world.client.submit(
            DATASET, "temperature > 1000", interval=INTERVAL, expiration=SHORT
        )
        for number in trial.each_round():
            _jump(trial, clocks)
            if 2 * number > trial.rounds and trial.random.random() < KILLED:
                node = trial.random.choice(world.cluster.nodes)
                node.kill()
                node.restart()
                trial.counts["restarts"] += 1
            wait_for_updates(world, timeout_s=UPDATES_S)
            if 2 * number <= trial.rounds < 2 * (number + 1):
                _end(trial, world, short)


async def _start_evaluator(cluster: LocalCluster) -> None:
    """With a true clock: a JVM does not start under libfaketime."""
    async with EvaluatorHandle(EvaluatorOptions(cluster.evaluator_directory)) as handle:
        await handle.ensure(timeout_s=UPDATES_S)


def _jump(trial: Trial, clocks: dict[str, WallClock]) -> None:
    name, offset_s = trial.random.choice([*clocks]), trial.random.choice(JUMPS_S)
    trial.say(f"the clock of {name} jumps to {offset_s:+.0f} s")
    clocks[name].jump(offset_s)
    trial.counts[f"jumps to {offset_s:+.0f} s"] += 1
    time.sleep(1.5 * READ_AGAIN_S)


def _end(trial: Trial, world: World, short: Ccq) -> None:
    """A clock that jumps has ended nothing whose time has not come."""
    alive = {one.id for one in world.client.list_ccqs()}
    trial.expect(short.id in alive, f"a query with an expiration of {SHORT} has ended before it")
    trial.counts["outlived jumps"] += short.id in alive
    if short.id in alive:
        world.client.cancel(short.id)


SCENARIOS = (
    Scenario(
        "clock-jumps",
        "wall clocks of nodes jump by an hour, either way, while they run and before they start: "
        "no result changes and nothing expires",
        (CLOCKS,),
        6,
        jumps,
    ),
)
