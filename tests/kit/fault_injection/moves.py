"""Moves of partitions between nodes, some of which a kill befalls."""

from __future__ import annotations

import threading
import time

from waiting import wait_until

from fault_injection.trial import Trial
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.dht import placement
from galileo.dht.topology import Topology
from galileo.errors import GalileoError, TransientError

DELAY_S = (0.0, 0.5)
"""From the beginning of a move to the kill that befalls it."""
DOWN_S = (0.0, 1.5)
MOVE_S, NEWS_S = 60.0, 30.0
KILLED = 0.75
"""Share of the moves that a kill befalls."""


def move_somehow(trial: Trial, cluster: LocalCluster, mover: Client, partition: int) -> None:
    """To another node of its group; what a kill ends is begun again until it is done."""
    topology = Topology.from_json(mover.topology_json())
    source = placement.owner(topology, partition)
    others = [node.name for node in topology.group_of(source).nodes if node.name != source]
    to = trial.random.choice(others)
    victim = trial.random.choice([source, to]) if trial.random.random() < KILLED else None
    trial.say(f"move {partition} from {source} to {to}, kill {victim}")
    moving = threading.Thread(target=_move, args=(trial, mover, partition, to), daemon=True)
    began = time.monotonic()
    moving.start()
    if victim is not None:
        time.sleep(trial.random.uniform(*DELAY_S))
        trial.counts["kills amid a move" if moving.is_alive() else "kills after a move"] += 1
        cluster.node(victim).kill()
        time.sleep(trial.random.uniform(*DOWN_S))
        cluster.node(victim).restart()
    moving.join(MOVE_S)
    trial.expect(not moving.is_alive(), f"the move of partition {partition} does not end")
    trial.note_longest("longest move, ms", time.monotonic() - began)
    trial.counts["moves"] += 1
    wait_until(
        lambda: _owners(cluster, partition) == {to},
        what=f"all to know that partition {partition} is at {to}",
        timeout_s=NEWS_S,
    )


def _move(trial: Trial, mover: Client, partition: int, to: str) -> None:
    while True:
        try:
            for _ in mover.move(partition, to=to):
                pass
            return
        except TransientError:
            trial.counts["moves begun again"] += 1
        except GalileoError as error:
            trial.expect(False, f"moving partition {partition} to {to}: {error!r}")
            return


def _owners(cluster: LocalCluster, partition: int) -> set[str]:
    """By the word of each node."""
    found = set()
    for address in cluster.addresses:
        with Client(address, timeout="10s") as client:
            found.add(placement.owner(Topology.from_json(client.topology_json()), partition))
    return found
