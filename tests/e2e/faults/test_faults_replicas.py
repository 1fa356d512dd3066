"""Nodes of a cluster with copies of each partition die, hang, lose their disks, and rot."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

import pytest
from fault_injection.damage import flip
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
FAULTS = 6
"""In each round."""
DOWN_S = (2.0, 6.0)
PAUSE_S = (3.0, 12.0)
BETWEEN_S = (3.0, 5.0)
WHOLE_S = 120.0
ROTTEN_BYTES_MIN = 20_000
"""A file with several frames: damage of the last one is taken for an interrupted write."""


def scenario(name: str, what: str, fault: str, *, nodes: int = 3, victims: int = 1) -> object:
    mark = pytest.mark.fault(f"replica-{name}", ROW, rounds=1, holds=f"{what}: {HOLDS}")
    return pytest.param(fault, nodes, victims, marks=mark, id=name)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("fault", "nodes", "victims"),
    [
        scenario("kill", "a leader is killed and started again", "kill"),
        scenario("disk-loss", "a leader is killed and its directory deleted", "disk loss"),
        scenario("pause", "a leader hangs for some seconds, and goes on", "pause"),
        scenario("rot", "a leader is killed, and a byte of its files changed", "rot"),
        scenario("kill-all", "all nodes are killed at one moment", "kill", victims=3),
        scenario(
            "two-of-five", "two of five directories are lost", "disk loss", nodes=5, victims=2
        ),
    ],
)
def test_replicas(trial: Trial, fault: str, nodes: int, victims: int) -> None:
    with growth_world(trial, nodes=nodes, replicas=nodes) as world:
        for _ in trial.each_round():
            for _ in range(FAULTS):
                _befall(world, fault, victims)
                if fault in ("disk loss", "rot"):
                    wait_until(lambda: _is_whole(world), what="all copies", timeout_s=WHOLE_S)


def _befall(world: GrowthWorld, fault: str, count: int) -> None:
    """Hurts some nodes at one moment, and lets them work again."""
    trial, victims = world.trial, _victims(world, count)
    with world.step(fault):
        began = time.monotonic()
        if fault == "pause":
            for node in victims:
                node.pause()
            time.sleep(trial.random.uniform(*PAUSE_S))
            for node in victims:
                node.resume()
        else:
            for node in victims:
                node.kill()
            for node in victims:
                _hurt_disk(world, node, fault)
            time.sleep(trial.random.uniform(*DOWN_S))
            for node in victims:
                node.start()
            for node in victims:
                node.wait()
        world.outages.append((began, time.monotonic()))
        time.sleep(trial.random.uniform(*BETWEEN_S))
        world.check()


def _victims(world: GrowthWorld, count: int) -> Sequence[LocalNode]:
    """Leaders if it is one, or any nodes."""
    names = sorted({*placement.owners(world.topology).values()})
    if count > 1:
        names = sorted(node.name for node in world.cluster.nodes)
    return [world.cluster.node(name) for name in world.trial.random.sample(names, count)]


def _hurt_disk(world: GrowthWorld, node: LocalNode, fault: str) -> None:
    place, random = world.cluster.directory / node.name, world.trial.random
    if fault == "disk loss":
        shutil.rmtree(place)
    elif fault == "rot":
        files = sorted(place.glob("journals/*/*/*.segment"))
        large = [file for file in files if file.stat().st_size > ROTTEN_BYTES_MIN]
        for file in random.sample(large, min(1, len(large))):
            flip(file, random.randrange(file.stat().st_size // 2))
            world.trial.counts["bytes changed"] += 1


def _is_whole(world: GrowthWorld) -> bool:
    """Whether each partition has a leader and all its copies."""
    status = world.client.status()
    return status.complete and not status.under_replicated
