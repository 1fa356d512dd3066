"""Nodes of a cluster with copies of each partition die and hang; their disks fail in each way."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from fault_injection.damage import flip, frames
from fault_injection.disks import LoopDisk
from fault_injection.growth_world import GrowthWorld, growth_world
from fault_injection.ledger import Ledger, numbered_schema
from fault_injection.nodes import cut_power, is_whole, node_disks, send
from fault_injection.requirements import ATTACHING, LOOP_DISK, Need
from fault_injection.strace import SYNC, fault, injecting
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.dht import placement
from galileo.local_node import LocalNode
from galileo.storage.verify import verify

ROW = "disks lost, leaders replaced"
HOLDS = (
    "producers, queries and 101 continuous queries go on; every acknowledged observation is stored "
    "once, on each disk; a complete answer has all that was acknowledged before; every label is "
    "delivered once"
)
MIXED = ("kill", "disk loss", "pause", "rot")
FAULTS = 6
"""In each round."""
DOWN_S = (2.0, 6.0)
PAUSE_S = (3.0, 12.0)
BETWEEN_S = (3.0, 5.0)
WHOLE_S = 120.0
SYNC_S = (0.05, 0.5)
"""What each sync of a slow disk takes."""
ROTTEN_BYTES_MIN = 20_000
"""A file with several frames: damage of the last one is taken for an interrupted write."""


ARCHIVE, ARCHIVE_BATCHES = "archive", 12
SCRUB_S = 4.0
FOUND_S = 60.0


def scenario(
    name: str,
    phrase: str,
    what: str,
    *,
    nodes: int = 3,
    victims: int = 1,
    needs: tuple[Need, ...] = (),
) -> object:
    holds = f"{phrase}: {HOLDS}"
    mark = pytest.mark.fault(f"replica-{name}", ROW, rounds=1, needs=needs, holds=holds)
    return pytest.param(what, nodes, victims, marks=mark, id=name)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("what", "nodes", "victims"),
    [
        scenario("kill", "a leader is killed and started again", "kill"),
        scenario("disk-loss", "a leader is killed and its directory deleted", "disk loss"),
        scenario("pause", "a leader hangs for some seconds, and goes on", "pause"),
        scenario("rot", "a leader is killed, and a byte of its files changed", "rot"),
        scenario("kill-all", "all nodes are killed at one moment", "kill", victims=3),
        scenario(
            "two-of-five", "two of five directories are lost", "disk loss", nodes=5, victims=2
        ),
        scenario(
            "power-cut",
            "all nodes lose their power at one moment, and their file systems what was not synced",
            "power cut",
            victims=3,
            needs=(LOOP_DISK,),
        ),
        scenario("mixed", "leaders are hurt in one of these ways, drawn anew each time", "mixed"),
        scenario(
            "slow-disk",
            "each sync of a leader takes up to half a second",
            "slow disk",
            needs=(ATTACHING,),
        ),
    ],
)
def test_replicas(trial: Trial, what: str, nodes: int, victims: int) -> None:
    with (
        node_disks(trial.directory, nodes if what == "power cut" else 0) as disks,
        growth_world(trial, nodes=nodes, replicas=nodes) as world,
    ):
        for _ in trial.each_round():
            for _ in range(FAULTS):
                _befall(world, what, victims, disks)
                if what in ("disk loss", "rot", "mixed"):
                    wait_until(lambda: is_whole(world.client), what="all copies", timeout_s=WHOLE_S)


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "replica-rot-unread",
    ROW,
    rounds=1,
    holds=f"bytes change that no query reads: found by the scrub, and copied again. {HOLDS}",
)
def test_replicas_rot_that_no_query_reads(trial: Trial) -> None:
    settings = {"storage": {"scrub_days": SCRUB_S / 86_400}}
    with growth_world(trial, nodes=3, replicas=3, settings=settings) as world:
        world.client.create_dataset(numbered_schema(ARCHIVE))
        archive = Ledger(ARCHIVE)
        send(archive, world.client, batches=ARCHIVE_BATCHES)
        wait_until(lambda: is_whole(world.client), what="all copies", timeout_s=WHOLE_S)
        for _ in trial.each_round():
            for _ in range(FAULTS):
                _rot_unread(world)
        for node in world.cluster.nodes:
            damages = verify(world.cluster.directory / node.name).damages
            trial.expect(not damages, f"{node.name} has {damages[:3]} at the end")
        differ = [one for node in world.client.status().nodes for one in node.diverged]
        trial.expect(not differ, f"copies differ: {differ[:3]}")
        trial.judge(archive.audit(world.client), "the archive")
        world.client.drop_dataset(ARCHIVE)  # What is on the disks is judged without it.


def _rot_unread(world: GrowthWorld) -> None:
    """Changes a byte of observations on the disk of a running node, and waits for the repair."""
    random = world.trial.random
    place = world.cluster.directory / random.choice(world.cluster.nodes).name
    files = sorted(place.glob(f"journals/{ARCHIVE}/*/*.segment"))
    file = random.choice([one for one in files if one.stat().st_size])
    offset, header = random.choice(frames(file))
    aside = set(place.glob("damaged/*"))
    with world.step("hidden rot"):
        flip(file, offset + header.observations_offset + random.randrange(header.rows * 8))
        wait_until(
            lambda: len(set(place.glob("damaged/*")) - aside) == 1,
            what=f"the scrub to find damage of {file}",
            timeout_s=FOUND_S,
        )
        wait_until(lambda: is_whole(world.client), what="all copies", timeout_s=WHOLE_S)
        world.check()
    world.trial.counts["bytes changed"] += 1


def _befall(world: GrowthWorld, what: str, count: int, disks: Mapping[str, LoopDisk]) -> None:
    """Hurts some nodes at one moment, and lets them work again."""
    what = world.trial.random.choice(MIXED) if what == "mixed" else what
    trial, victims = world.trial, _victims(world, count)
    with world.step(what):
        began = time.monotonic()
        if what == "slow disk":
            _slow_down(world, victims)
        elif what == "pause":
            for node in victims:
                node.pause()
            time.sleep(trial.random.uniform(*PAUSE_S))
            for node in victims:
                node.resume()
        else:
            if what == "power cut":
                cut_power(trial, victims, disks)
            for node in victims:
                node.kill()
            for node in victims:
                _hurt_disk(world, node, what)
            for disk in disks.values():
                disk.repair()
            time.sleep(trial.random.uniform(*DOWN_S))
            for node in victims:
                node.start()
            for node in victims:
                node.wait()
        world.outages.append((began, time.monotonic()))
        time.sleep(trial.random.uniform(*BETWEEN_S))
        world.check()


def _slow_down(world: GrowthWorld, victims: Sequence[LocalNode]) -> None:
    trial = world.trial
    delay_us = round(trial.random.uniform(*SYNC_S) * 1e6)
    with ExitStack() as stack:
        for node in victims:
            assert node.pid is not None
            faults = fault(SYNC, f"delay_enter={delay_us}", when="1+")
            stack.enter_context(injecting(node.pid, faults, trace=Path(os.devnull)))
        time.sleep(trial.random.uniform(*PAUSE_S))


def _victims(world: GrowthWorld, count: int) -> Sequence[LocalNode]:
    """Leaders if it is one, or any nodes."""
    names = sorted({*placement.owners(world.topology).values()})
    if count > 1:
        names = sorted(node.name for node in world.cluster.nodes)
    return [world.cluster.node(name) for name in world.trial.random.sample(names, count)]


def _hurt_disk(world: GrowthWorld, node: LocalNode, what: str) -> None:
    place, random = world.cluster.directory / node.name, world.trial.random
    if what == "disk loss":
        shutil.rmtree(place)
    elif what == "rot":
        files = sorted(place.glob("journals/*/*/*.segment"))
        large = [file for file in files if file.stat().st_size > ROTTEN_BYTES_MIN]
        for file in random.sample(large, min(1, len(large))):
            flip(file, random.randrange(file.stat().st_size // 2))
            world.trial.counts["bytes changed"] += 1
