"""Nodes of a cluster with three copies of each partition die, hang, and lose their disks."""

from __future__ import annotations

import shutil
import time

import pytest
from fault_injection.growth_world import GrowthWorld, growth_world
from fault_injection.nodes import wait_until
from fault_injection.trial import Trial

from galileo.dht import placement
from galileo.local_node import LocalNode

ROW = "disks lost, leaders replaced"
HOLDS = (
    "producers, queries and 101 continuous queries go on; every acknowledged observation is stored "
    "once, on each disk; a complete answer has all that was acknowledged before; every label is "
    "delivered once"
)
NODES = REPLICAS = 3
FAULTS = 6
"""In each round."""
DOWN_S = (2.0, 6.0)
PAUSE_S = (3.0, 12.0)
BETWEEN_S = (3.0, 5.0)
WHOLE_S = 120.0


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "replica-kill",
    ROW,
    rounds=1,
    holds=f"a node is killed and started again, the leader of some partitions or not: {HOLDS}",
)
def test_replica_kill(trial: Trial) -> None:
    with growth_world(trial, nodes=NODES, replicas=REPLICAS) as world:
        for _ in trial.each_round():
            for _ in range(FAULTS):
                _befall(world, "kill")


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "replica-disk-loss",
    ROW,
    rounds=1,
    holds="a node is killed, its directory deleted, and it is started again: it gets all copies "
    f"anew; {HOLDS}",
)
def test_replica_disk_loss(trial: Trial) -> None:
    with growth_world(trial, nodes=NODES, replicas=REPLICAS) as world:
        for _ in trial.each_round():
            for _ in range(FAULTS):
                _befall(world, "disk loss")
                wait_until(lambda: _is_whole(world), what="all copies", timeout_s=WHOLE_S)


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "replica-pause",
    ROW,
    rounds=1,
    holds=f"a node hangs for some seconds, others lead in its place, and it goes on: {HOLDS}",
)
def test_replica_pause(trial: Trial) -> None:
    with growth_world(trial, nodes=NODES, replicas=REPLICAS) as world:
        for _ in trial.each_round():
            for _ in range(FAULTS):
                _befall(world, "pause")


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "replica-kill-all",
    ROW,
    rounds=1,
    holds=f"all nodes are killed at one moment, and started again: {HOLDS}",
)
def test_replica_kill_all(trial: Trial) -> None:
    with growth_world(trial, nodes=NODES, replicas=REPLICAS) as world:
        for _ in trial.each_round():
            for _ in range(2):
                with world.step("kill of all"):
                    began = time.monotonic()
                    for node in world.cluster.nodes:
                        node.kill()
                    time.sleep(trial.random.uniform(*DOWN_S))
                    for node in world.cluster.nodes:
                        node.start()
                    for node in world.cluster.nodes:
                        node.wait()
                    world.outages.append((began, time.monotonic()))
                    _settle(world)


def _befall(world: GrowthWorld, fault: str) -> None:
    """Hurts a node, in turn one that leads partitions and any one."""
    trial, node = world.trial, _victim(world)
    with world.step(fault):
        began = time.monotonic()
        if fault == "pause":
            node.pause()
            time.sleep(trial.random.uniform(*PAUSE_S))
            node.resume()
        else:
            node.kill()
            if fault == "disk loss":
                shutil.rmtree(world.cluster.directory / node.name)
            time.sleep(trial.random.uniform(*DOWN_S))
            node.start()
            node.wait()
        world.outages.append((began, time.monotonic()))
        _settle(world)


def _victim(world: GrowthWorld) -> LocalNode:
    leaders = sorted({*placement.owners(world.topology).values()})
    name = world.trial.random.choice(leaders)
    return world.cluster.node(name)


def _settle(world: GrowthWorld) -> None:
    time.sleep(world.trial.random.uniform(*BETWEEN_S))
    world.check()


def _is_whole(world: GrowthWorld) -> bool:
    """Whether each partition has a leader and as many voters as it should."""
    status = world.client.status()
    return status.complete and not any(node.under_replicated for node in status.nodes)
