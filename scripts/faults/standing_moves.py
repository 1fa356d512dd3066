"""A node that joins under a stream, and partitions that move to it while both ends are killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from fault_injection.nodes import wait_until
from fault_injection.requirements import SIGNALS

from faults.registry import Scenario, Trial
from faults.standing_rolling import ROW, note_gaps, restart
from faults.standing_world import World, standing, wait_for_updates
from galileo.client import Client
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import GalileoError, TransientError
from galileo.local_node import LocalNode

DELAY_S = (0.0, 0.5)
"""From the beginning of a move to the kill that befalls it."""
DOWN_S = (0.0, 1.5)
TIDY_S, NEWS_S = 60.0, 30.0
UPDATES_S = 60.0
GAP_MAX_S = 60.0
"""Without an update; some of it is the start of nodes that were killed."""
KILLED = 0.75
"""Share of the moves that a kill befalls."""


def add(trial: Trial) -> None:
    """Adds a node, then in each round moves a partition to or fro, perhaps with a kill amid it."""
    with standing(trial) as world:
        began = time.monotonic()
        new = _joined(trial, world)
        mover = world.cluster.client(timeout="60s")
        for _ in trial.each_round():
            partition = trial.random.choice(_movable(mover, world, new))
            _moved_somehow(trial, world, mover, partition, new)
            wait_for_updates(world, timeout_s=UPDATES_S)
        _bring_home(trial, mover, world, new)
        note_gaps(trial, world, began, max_s=GAP_MAX_S)
        wait_until(
            lambda: not _left_behind(mover, world), what="old copies to go", timeout_s=TIDY_S
        )


def _joined(trial: Trial, world: World) -> LocalNode:
    """As an operator adds one: all files first, then a rolling restart, then the node itself."""
    new = world.cluster.join(group=0)
    for node in world.cluster.nodes[:-1]:
        trial.say(f"restart {node.name}, which then knows {new.name}")
        restart(trial, world, node, absent=new.name)
    new.restart()
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


def _moved_somehow(
    trial: Trial, world: World, mover: Client, partition: int, new: LocalNode
) -> None:
    """To the new node, or from it; what a kill ends is begun again until it is done."""
    source = world.cluster.node(_owner(mover, partition))
    others = [node for node in _group_of(mover, world, new) if node is not source]
    to = trial.random.choice(others)
    victim = trial.random.choice([source, to]) if trial.random.random() < KILLED else None
    trial.say(f"move {partition} from {source.name} to {to.name}, kill {victim and victim.name}")
    moving = threading.Thread(target=_move, args=(trial, mover, partition, to.name), daemon=True)
    began = time.monotonic()
    moving.start()
    if victim is not None:
        time.sleep(trial.random.uniform(*DELAY_S))
        trial.counts["kills amid a move" if moving.is_alive() else "kills after a move"] += 1
        victim.kill()
        time.sleep(trial.random.uniform(*DOWN_S))
        victim.restart()
    moving.join(UPDATES_S)
    trial.expect(not moving.is_alive(), f"the move of partition {partition} does not end")
    trial.note_longest("longest move, ms", time.monotonic() - began)
    trial.counts["moves"] += 1
    told = f"all to know that partition {partition} is at {to.name}"
    wait_until(lambda: _owners(world, partition) == {to.name}, what=told, timeout_s=NEWS_S)


def _move(trial: Trial, mover: Client, partition: int, to: str) -> None:
    switched = 0.0
    while True:
        try:
            for step in mover.move(partition, to=to):
                if step.stage == "switch":
                    switched = time.monotonic()
            if switched:
                trial.note_longest("longest switch, ms", time.monotonic() - switched)
            return
        except TransientError:
            trial.counts["moves begun again"] += 1
        except GalileoError as error:
            trial.expect(False, f"moving partition {partition} to {to}: {error!r}")
            return


def _bring_home(trial: Trial, mover: Client, world: World, new: LocalNode) -> None:
    """In the end the new node has the share that it is due."""
    topology = Topology.from_json(mover.topology_json())
    for partition in placement.share(topology, new.name):
        _move(trial, mover, partition, new.name)
    trial.expect(bool(_partitions_of(mover, new)), f"{new.name} has nothing")


def _partitions_of(client: Client, node: LocalNode) -> frozenset[int]:
    topology = Topology.from_json(client.topology_json())
    return placement.partitions_by_node(topology)[node.name]


def _group_of(client: Client, world: World, new: LocalNode) -> list[LocalNode]:
    group = Topology.from_json(client.topology_json()).group_of(new.name)
    return [world.cluster.node(node.name) for node in group.nodes]


def _owner(client: Client, partition: int) -> str:
    return placement.owner(Topology.from_json(client.topology_json()), partition)


def _owners(world: World, partition: int) -> set[str]:
    """By the word of each node."""
    found = set()
    for address in world.cluster.addresses:
        with Client(address, timeout="10s") as client:
            found.add(_owner(client, partition))
    return found


def _left_behind(client: Client, world: World) -> list[str]:
    """Directories of partitions at nodes that do not have them."""
    owners = placement.owners(Topology.from_json(client.topology_json()))
    return [
        str(path)
        for node in world.cluster.nodes
        for path in (world.cluster.directory / node.name / "journals").glob("*/*")
        if not path.name.isdecimal() or owners[int(path.name)] != node.name
    ]


SCENARIOS = (
    Scenario(
        "node-addition",
        "a node is added, the others restarted one by one so that they know it, and partitions "
        "are moved to it and back while one of the two nodes is killed at random moments: the "
        "readers are handed every label once, in order, no frontier is ahead of what was handed "
        "out, each partition is at one node, and no copy is left behind",
        (SIGNALS,),
        6,
        add,
        is_lasting=True,
        row=ROW,
    ),
)
