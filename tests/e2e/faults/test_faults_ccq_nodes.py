"""Restart, relocate and add nodes, and move partitions, while continuous queries are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from fault_injection.ccq_readers import WatchReader
from fault_injection.ccq_world import World, ccq_world, wait_for_updates
from fault_injection.moves import move_somehow
from fault_injection.nodes import has_shares, left_behind
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.client import Client
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import GalileoError, TransientError, Unavailable
from galileo.local_node import LocalNode

HOLDS = (
    "the readers are handed every label once, in order, no frontier is ahead of what was handed "
    "out, and updates go on meanwhile"
)
DRAIN_S = 60.0
UPDATES_S = 60.0
ROW = "nodes restarted, replaced, added"
GAP_MAX_S = 15.0
"""Without an update, for readers of whom nothing is stopped; a bound for a busy machine, far above
anything that was measured."""


@pytest.mark.fault(
    "rolling-restart",
    "nodes restarted, replaced, added",
    rounds=1,
    lasting=True,
    holds=f"each node in turn drained, stopped with SIGTERM and started again: {HOLDS}",
)
def test_rolling_restart(trial: Trial) -> None:
    """One round restarts all nodes."""
    with ccq_world(trial) as world:
        began = time.monotonic()
        for _ in trial.each_round():
            for node in world.cluster.nodes:
                trial.say(f"drain, stop and start {node.name}")
                restart(trial, world, node)
        note_gaps(trial, world, began)


@pytest.mark.fault(
    "node-replacement",
    "nodes restarted, replaced, added",
    rounds=1,
    lasting=True,
    holds="each node in turn drained, stopped and started at another address with a copy of its "
    f"directory, the others going on with the files that they have: {HOLDS}",
)
def test_node_replacement(trial: Trial) -> None:
    """One round brings each node to another machine, as far as an address and a copy make one."""

    def elsewhere(world: World, node: LocalNode) -> None:
        world.cluster.relocate(node.name)

    with ccq_world(trial) as world:
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
) -> None:
    """As an operator does it: the next node waits until this one is whole again."""
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
    wait_until(lambda: _are_up(world), what="all nodes to be up")


def _are_up(world: World) -> bool:
    return all(one.state == "up" for one in world.client.status().nodes)


def _is_drained(world: World, node: LocalNode) -> bool:
    found = next(one for one in world.client.status().nodes if one.name == node.name)
    return found.state == "draining" and not found.ccqs_coordinated


def note_gaps(trial: Trial, world: World, began: float, *, max_s: float = GAP_MAX_S) -> None:
    """The longest time without an update to readers in this process."""
    for reader in world.readers:
        if isinstance(reader, WatchReader):
            gap_s = reader.deliveries.longest_gap_s(began)
            trial.note_longest(f"longest gap by {reader.way}, ms", gap_s)
            trial.expect(gap_s < max_s, f"no update by {reader.way} for {gap_s:.1f} s")


DOWN_S = (0.0, 1.5)
JOIN_S = 120.0
TIDY_S = 60.0
UPDATES_S = 60.0
MOVES_GAP_MAX_S = 60.0
"""Without an update; some of it is the start of nodes that were killed."""


@pytest.mark.fault(
    "node-addition",
    "nodes restarted, replaced, added",
    rounds=6,
    lasting=True,
    holds="a node is added and gets its share, and partitions "
    "are moved from it and back while one of the two nodes is killed at random moments: the "
    "readers are handed every label once, in order, no frontier is ahead of what was handed "
    "out, each partition is at one node, and no copy is left behind",
)
def test_node_addition(trial: Trial) -> None:
    """Adds a node, then in each round moves a partition to or fro, perhaps with a kill amid it."""
    with ccq_world(trial) as world:
        began = time.monotonic()
        new = _joined(trial, world)
        mover = world.cluster.client(timeout="60s")
        wait_until(lambda: has_shares(mover), what="the share of the new node", timeout_s=JOIN_S)
        trial.expect(bool(_partitions_of(mover, new)), f"{new.name} has nothing")
        for _ in trial.each_round():
            partition = trial.random.choice(_movable(mover, world, new))
            move_somehow(trial, world.cluster, mover, partition)
            wait_for_updates(world, timeout_s=UPDATES_S)
        wait_until(lambda: has_shares(mover), what="the pinned nodes to lead", timeout_s=JOIN_S)
        note_gaps(trial, world, began, max_s=MOVES_GAP_MAX_S)
        wait_until(lambda: _is_tidy(mover, world), what="old copies to go", timeout_s=TIDY_S)


def _joined(trial: Trial, world: World) -> LocalNode:
    """As an operator adds one: no other node is restarted."""
    new = world.cluster.join(group=0)
    new.start()
    new.wait()
    wait_until(lambda: _is_complete(world.client, nodes=4), what="the new node to be known")
    trial.say(f"{new.name} has joined")
    return new


def _is_complete(client: Client, *, nodes: int) -> bool:
    found = client.status()
    return found.complete and len(found.nodes) == nodes


def _movable(client: Client, world: World, new: LocalNode) -> Sequence[int]:
    topology = Topology.from_json(client.topology_json())
    group = topology.groups.index(topology.group_of(new.name))
    count = topology.partitions_per_group
    return range(group * count, (group + 1) * count)


def _partitions_of(client: Client, node: LocalNode) -> frozenset[int]:
    topology = Topology.from_json(client.topology_json())
    return placement.partitions_by_node(topology)[node.name]


def _is_tidy(client: Client, world: World) -> bool:
    """Whether no node has a copy that it should not have."""
    return not left_behind(Topology.from_json(client.topology_json()), world.cluster)


@pytest.mark.fault(
    "membership",
    "nodes restarted, replaced, added",
    rounds=4,
    lasting=True,
    holds="a node joins, partitions move to it, and another node is removed, while any node is "
    "killed at random moments of the joining and of the removal: both end by themselves when the "
    "nodes are back, and the readers are handed every label once, in order",
)
def test_membership(trial: Trial) -> None:
    """One round adds a node and removes one, and kills a node amid each."""
    with ccq_world(trial) as world:
        began = time.monotonic()
        for _ in trial.each_round():
            _join_amid_a_kill(trial, world)
            mover = world.cluster.client(timeout="60s")
            wait_until(lambda m=mover: has_shares(m), what="the shares", timeout_s=JOIN_S)
            _remove_amid_a_kill(trial, world)
            wait_for_updates(world, timeout_s=UPDATES_S)
        note_gaps(trial, world, began, max_s=MOVES_GAP_MAX_S)
        mover = world.cluster.client(timeout="60s")
        wait_until(lambda: _is_tidy(mover, world), what="old copies to go", timeout_s=TIDY_S)


def _join_amid_a_kill(trial: Trial, world: World) -> None:
    count = len(world.cluster.nodes)
    new = world.cluster.join(group=trial.random.randrange(2))
    began = time.monotonic()
    new.start()
    _kill_amid(trial, world, trial.random.choice(world.cluster.nodes))
    client = world.cluster.client(timeout="60s")
    wait_until(
        lambda: _is_complete(client, nodes=count + 1), what=f"{new.name} to join", timeout_s=JOIN_S
    )
    trial.note_longest("longest join, ms", time.monotonic() - began)
    trial.counts["nodes joined"] += 1


def _remove_amid_a_kill(trial: Trial, world: World) -> None:
    client = world.cluster.client(timeout="60s")
    groups = Topology.from_json(client.topology_json()).groups
    group = trial.random.choice([group for group in groups if len(group.nodes) > 1])
    leaving = world.cluster.node(trial.random.choice(group.nodes).name)
    trial.say(f"remove {leaving.name} of {group.name}")
    removing = threading.Thread(target=_remove, args=(trial, world, leaving.name), daemon=True)
    began = time.monotonic()
    removing.start()
    victim = trial.random.choice([leaving, *world.cluster.nodes])
    _kill_amid(trial, world, victim)
    removing.join(JOIN_S)
    trial.expect(not removing.is_alive(), f"the removal of {leaving.name} does not end")
    leaving.wait_stopped()  # It may have been started again amid its removal, and then ends itself.
    trial.note_longest("longest removal, ms", time.monotonic() - began)
    trial.counts["nodes removed"] += 1
    count = len(world.cluster.nodes)
    client = world.cluster.client(timeout="60s")
    wait_until(lambda: _is_complete(client, nodes=count), what="all nodes to be up")


def _kill_amid(trial: Trial, world: World, victim: LocalNode) -> None:
    time.sleep(trial.random.uniform(0.0, 3.0))
    trial.say(f"kill {victim.name}")
    trial.counts["kills"] += 1
    victim.kill()
    time.sleep(trial.random.uniform(*DOWN_S))
    if victim in world.cluster.nodes:
        try:
            victim.restart()
        except Unavailable as error:
            trial.expect("was removed" in str(error), f"{victim.name} does not start: {error}")


def _remove(trial: Trial, world: World, name: str) -> None:
    while True:
        try:
            return world.cluster.remove(name)
        except TransientError:
            trial.counts["removals asked again"] += 1
        except GalileoError as error:
            trial.expect(False, f"removing {name}: {error!r}")
            return
