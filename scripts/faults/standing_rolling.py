"""Every node drained, stopped and started again, here or on another machine, under a stream."""

from __future__ import annotations

import time
from collections.abc import Callable

from fault_injection.ccq_readers import WatchReader
from fault_injection.nodes import wait_until
from fault_injection.requirements import SIGNALS

from faults.registry import Scenario, Trial
from faults.standing_world import World, standing, wait_for_updates
from galileo.local_node import LocalNode

DRAIN_S = 60.0
UPDATES_S = 60.0
ROW = "nodes restarted, replaced, added"
GAP_MAX_S = 15.0
"""Without an update, for readers of whom nothing is stopped; a bound for a busy machine, far above
anything that was measured."""


def roll(trial: Trial) -> None:
    """One round restarts all nodes."""
    with standing(trial) as world:
        began = time.monotonic()
        for _ in trial.each_round():
            for node in world.cluster.nodes:
                trial.say(f"drain, stop and start {node.name}")
                restart(trial, world, node)
        note_gaps(trial, world, began)


def replace(trial: Trial) -> None:
    """One round brings each node to another machine, as far as an address and a copy make one."""

    def elsewhere(world: World, node: LocalNode) -> None:
        world.cluster.relocate(node.name)

    with standing(trial) as world:
        began = time.monotonic()
        for _ in trial.each_round():
            for node in world.cluster.nodes:
                trial.say(f"drain and stop {node.name}, copy its directory, start it elsewhere")
                restart(trial, world, node, meanwhile=elsewhere)
        note_gaps(trial, world, began)


def restart(
    trial: Trial,
    world: World,
    node: LocalNode,
    *,
    meanwhile: Callable[[World, LocalNode], None] | None = None,
    absent: str = "",
) -> None:
    """As an operator does it: the next node waits until this one is whole again.

    `absent` names a node that does not run yet.
    """
    world.client.drain(node.name)
    wait_until(lambda: _is_drained(world, node), what=f"{node.name} to drain", timeout_s=DRAIN_S)
    began = time.monotonic()
    node.stop()
    if meanwhile is not None:
        meanwhile(world, node)
    stopped = time.monotonic()
    node.restart()
    trial.note_longest("longest stop, ms", stopped - began)
    trial.note_longest("longest start, ms", time.monotonic() - stopped)
    trial.counts["restarts"] += 1
    wait_for_updates(world, timeout_s=UPDATES_S)
    wait_until(lambda: _are_up(world, absent), what="all nodes to be up")


def _are_up(world: World, absent: str) -> bool:
    return all(one.state == "up" for one in world.client.status().nodes if one.name != absent)


def _is_drained(world: World, node: LocalNode) -> bool:
    found = next(one for one in world.client.status().nodes if one.name == node.name)
    return found.state == "draining" and not found.ccqs_coordinated


def note_gaps(trial: Trial, world: World, began: float, *, max_s: float = GAP_MAX_S) -> None:
    """The longest time without an update to readers in this process."""
    for reader in world.readers:
        if isinstance(reader, WatchReader):
            gap_s = reader.deliveries.longest_gap_s(began)
            trial.note_longest(f"longest gap by {reader.way}, ms", gap_s)
            told = f"reader by {reader.way} had no update for {gap_s:.1f} s"
            trial.expect(gap_s < max_s, told)


_HOLDS = (
    "the readers are handed every label once, in order, no frontier is ahead of what was handed "
    "out, and updates go on meanwhile"
)

SCENARIOS = (
    Scenario(
        "rolling-restart",
        f"each node in turn drained, stopped with SIGTERM and started again: {_HOLDS}",
        (SIGNALS,),
        1,
        roll,
        is_lasting=True,
        row=ROW,
    ),
    Scenario(
        "node-replacement",
        "each node in turn drained, stopped and started at another address with a copy of its "
        f"directory, the others going on with the files that they have: {_HOLDS}",
        (SIGNALS,),
        1,
        replace,
        is_lasting=True,
        row=ROW,
    ),
)
