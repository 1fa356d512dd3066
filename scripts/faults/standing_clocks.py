"""Wall clocks of nodes that jump by an hour while standing queries are answered."""

from __future__ import annotations

import time

from fault_injection.clocks import READ_AGAIN_S, WallClock
from fault_injection.requirements import CLOCKS

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

JUMPS_S = (3_600.0, -3_600.0, 0.0)
SHORT = "20m"
"""An expiration that a jump passes."""
SHORT_FOR_S = 600.0
"""The longest that it is looked at, which is well before it comes."""
KILLED = 0.5
"""Share of the later jumps after which a node is killed, and starts with its wrong clock."""
UPDATES_S = 300.0


def jumps(trial: Trial) -> None:
    """First without restarts, beside a query that is to outlive the jumps; then with restarts.

    A node reckons from its clock once when an expiration comes, when it first sees the query. One
    that starts with a wrong clock is wrong about it by as much, so the second part is without it.
    The evaluator, its JVM and its workers have the clock of the node that started them.
    """
    cluster, clocks = three_nodes(trial), {}
    for node in cluster.nodes:
        clocks[node.name] = WallClock(trial.directory / f"{node.name}.time")
        node.prefix = clocks[node.name].prefix
    with standing(trial, cluster) as world:
        short = world.client.submit(
            DATASET, "temperature > 1000", interval=INTERVAL, expiration=SHORT
        )
        ends_at, is_over = time.monotonic() + SHORT_FOR_S, False
        for _ in trial.each_round():
            _jump(trial, clocks)
            if is_over and trial.random.random() < KILLED:
                _restart(trial, world)
            wait_for_updates(world, timeout_s=UPDATES_S)
            if not is_over and (trial.share_done >= 0.5 or time.monotonic() > ends_at):
                _end(trial, world, short)
                is_over = True
        if is_over:
            _restart(trial, world)
            wait_for_updates(world, timeout_s=UPDATES_S)


def _jump(trial: Trial, clocks: dict[str, WallClock]) -> None:
    name, offset_s = trial.random.choice([*clocks]), trial.random.choice(JUMPS_S)
    trial.say(f"the clock of {name} jumps to {offset_s:+.0f} s")
    clocks[name].jump(offset_s)
    trial.counts[f"jumps to {offset_s:+.0f} s"] += 1
    time.sleep(1.5 * READ_AGAIN_S)


def _restart(trial: Trial, world: World) -> None:
    """Kills a node, which starts with whatever its clock says by now."""
    node = trial.random.choice(world.cluster.nodes)
    trial.say(f"kill {node.name}")
    node.kill()
    node.restart()
    trial.counts["restarts"] += 1


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
        is_lasting=True,
        row="wall clock jump",
    ),
)
