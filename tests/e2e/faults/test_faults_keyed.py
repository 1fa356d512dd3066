"""Observations of a keyed dataset are replaced and deleted while nodes fail in several ways."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pytest
from fault_injection.corrections import (
    BETWEEN_S,
    DATASET,
    DOWN_S,
    KILLS,
    Alarm,
    await_evaluation,
    await_turns,
    befall,
    judge_alarm,
    judge_disks,
    judge_workers,
    working,
)
from fault_injection.damage import Commits
from fault_injection.moves import move_somehow
from fault_injection.nodes import (
    PATIENCE,
    WHOLE_S,
    cut_power,
    is_whole,
    left_behind,
    node_disks,
)
from fault_injection.replacements import (
    SCHEMA,
    Follower,
    Writer,
    judge_rows,
    last_values,
    values_of,
)
from fault_injection.requirements import LOOP_DISK, Need
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.cursor import Cursor
from galileo.dht.topology import Topology
from galileo.errors import GalileoError, HistoryChanged
from galileo.storage.backup import backup, restore

WRITERS = 5
PARTITIONS = 4
TURNS_BETWEEN = 20
HIGH = "level > 4"
HOLDS = (
    "writers replace and delete observations, by rows, by conditions, and if nothing has changed: "
    "at the end each key is as the last acknowledged write left it, in answers and on each disk, "
    "and who has followed the changes has the same; at each of its cursors the observations are "
    "what it has; and who follows a continuous query has what matches at each token"
)


@dataclass(slots=True)
class World:
    """A cluster with a keyed dataset, and clients that work on it.

    Attributes:
        client: for the scenario itself.
    """

    trial: Trial
    cluster: LocalCluster
    client: Client
    writers: list[Writer]
    follower: Follower
    alarm: Alarm

    def working(self) -> contextlib.AbstractContextManager[None]:
        return working(self.cluster, [*self.writers, self.follower, self.alarm])

    def await_writes(self) -> None:
        await_turns(self.writers, TURNS_BETWEEN)

    def await_whole(self) -> None:
        wait_until(lambda: is_whole(self.client), what="all copies", timeout_s=WHOLE_S)


@contextlib.contextmanager
def keyed_world(trial: Trial, *, replicas: int) -> Iterator[World]:
    """Judges what the nodes have at the end of the block, and then what is on their disks."""
    place = trial.directory / "cluster"
    cluster = LocalCluster(3, 1, place, partitions_per_group=PARTITIONS, replicas=replicas)
    with cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_dataset(SCHEMA)
        writers = [Writer(n, random.Random(trial.random.random())) for n in range(WRITERS)]
        ccq = client.submit(DATASET, HIGH, interval="1s", expiration="1d")
        alarm = Alarm(HIGH, ccq.id, ccq.token, ("station", "value"), reads_at=True)
        await_evaluation(trial, client, writers[0], alarm)
        world = World(trial, cluster, client, writers, Follower(), alarm)
        yield world
        _judge(world)
    directories = [place / node.name for node in cluster.nodes]
    judge_rows(trial, writers, last_values(judge_disks(trial, directories, replicas)), "the disks")


def _judge(world: World) -> None:
    trial, client, follower = world.trial, world.client, world.follower
    try:
        follower.turn(client)
    except (GalileoError, AssertionError) as error:
        trial.expect(False, f"the follower at the end: {error!r}")
    judge_rows(trial, world.writers, follower.rows, "the end")
    judge_alarm(trial, client, world.alarm)
    judge_workers(trial, "acknowledged", world.writers)
    judge_workers(trial, "followed", [follower])
    judge_workers(trial, "updates", [world.alarm])
    trial.counts["unanswered"] += sum(bool(one.pending) for one in world.writers)
    trial.counts["compared"] += follower.compared
    differ = [one for node in client.status().nodes for one in node.diverged]
    trial.expect(not differ, f"copies differ: {differ[:3]}")


Fault = Callable[[World, int], None]


@contextlib.contextmanager
def _killing(trial: Trial) -> Iterator[Fault]:
    faults = itertools.cycle(KILLS)
    yield lambda world, number: befall(trial, world.cluster.nodes, number, next(faults))


@contextlib.contextmanager
def _moving(trial: Trial) -> Iterator[Fault]:
    """Moves each partition in turn."""
    yield lambda world, number: move_somehow(
        trial, world.cluster, world.client, number % PARTITIONS
    )


@contextlib.contextmanager
def _cutting_power(trial: Trial) -> Iterator[Fault]:
    """All nodes lose their power at one moment, and their file systems what was not synced."""
    with node_disks(trial.directory, 3) as disks:

        def cut(world: World, number: int) -> None:
            nodes = world.cluster.nodes
            cut_power(trial, nodes, disks)
            for node in nodes:
                node.kill()
            for disk in disks.values():
                disk.repair()
            time.sleep(trial.random.uniform(*DOWN_S))
            for node in nodes:
                node.start()
            for node in nodes:
                node.wait()

        yield cut


def scenario(
    name: str,
    row: str,
    phrase: str,
    faults: object,
    *,
    rounds: int,
    replicas: int = 3,
    needs: tuple[Need, ...] = (),
) -> object:
    holds = f"{phrase}: {HOLDS}"
    mark = pytest.mark.fault(f"keyed-{name}", row, rounds=rounds, needs=needs, holds=holds)
    return pytest.param(faults, replicas, marks=mark, id=name)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("faults", "replicas"),
    [
        scenario(
            "kills",
            "crash",
            "a node is killed, hangs, or is killed with its neighbour, in turn",
            _killing,
            rounds=6,
        ),
        scenario(
            "moves",
            "nodes restarted, replaced, added",
            "partitions with one copy move between nodes, one of which is killed meanwhile",
            _moving,
            rounds=6,
            replicas=1,
        ),
        scenario(
            "power-cut",
            "power cut",
            "all nodes lose their power at one moment, and their file systems what was not synced",
            _cutting_power,
            rounds=3,
            needs=(LOOP_DISK,),
        ),
    ],
)
def test_keyed(
    trial: Trial,
    faults: Callable[[Trial], contextlib.AbstractContextManager[Fault]],
    replicas: int,
) -> None:
    with faults(trial) as befall_next, keyed_world(trial, replicas=replicas) as world:
        with world.working():
            for number in trial.each_round():
                world.await_writes()
                time.sleep(trial.random.uniform(*BETWEEN_S))
                befall_next(world, number)
                world.await_whole()
        wait_until(lambda: replicas > 1 or _is_tidy(world), what="old copies to go")


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "keyed-restore",
    "a backup is restored",
    rounds=2,
    holds="all nodes are backed up one after the other amid writes, and restored: readers of lost "
    "commits get `history_changed` once and go on, and each key is as the last commit up to the "
    f"fork left it; then {HOLDS}",
)
def test_keyed_restore(trial: Trial) -> None:
    with keyed_world(trial, replicas=3) as world:
        for number in trial.each_round():
            with world.working():
                world.await_writes()
                before = world.client.version(DATASET, require_complete=True).cursor
                backups = trial.directory / f"backups-{number}"
                for node in world.cluster.nodes:
                    source = world.cluster.directory / node.name
                    backup(source, backups / node.name, now=time.time())
                    world.await_writes()
            world.follower.turn(world.client)
            world.alarm.catch_up(world.client)
            judge_rows(trial, world.writers, world.follower.rows, "before the restore")
            judge_workers(trial, "acknowledged", world.writers)
            commits = _restore(world, backups)
            _go_on(world, commits, before)
        with world.working():
            world.await_writes()


def _restore(world: World, backups: Path) -> Commits:
    """Puts backups in place of the directories of all nodes; what these had."""
    nodes = world.cluster.nodes
    for node in nodes:
        node.stop()
    directories = [world.cluster.directory / node.name for node in nodes]
    commits = judge_disks(world.trial, directories, len(nodes))
    for directory in directories:
        shutil.rmtree(directory)
        restore(backups / directory.name, directory, now=time.time())
    for node in nodes:
        node.start()
    for node in nodes:
        node.wait()
    world.await_whole()
    return commits


def _go_on(world: World, commits: Commits, before: Cursor) -> None:
    """Readers do what the errors say, and writers go on with what is left.

    Args:
        world: whose nodes were restored.
        commits: that they had.
        before: what had been acknowledged when the backup began.
    """
    trial, client, follower, alarm = world.trial, world.client, world.follower, world.alarm
    with pytest.raises(HistoryChanged) as lost:
        follower.turn(client)
    details = lost.value.details
    common = dict(zip(details["partitions"], details["common"], strict=True))
    kept = {place: both for place, both in commits.items() if place[2] <= common.get(place[1], inf)}
    trial.counts["commits lost"] += len(commits) - len(kept)
    early = [partition for partition, last in common.items() if last < before[partition]]
    trial.expect(not early, f"commits of {early} are lost that the backups have")
    follower.cursor = details["cursor"]
    follower.rows = values_of(client.select(DATASET, at=follower.cursor))
    differ = follower.rows.items() ^ last_values(kept).items()
    trial.expect(not differ, f"after the restore, {len(differ)} differ: {[*differ][:5]}")
    with pytest.raises(HistoryChanged) as lost:
        alarm.turn(client)
    alarm.token = lost.value.details["token"]
    alarm.catch_up(client)
    world.writers[:] = [
        Writer(
            number,
            random.Random(trial.random.random()),
            {key: one for key, one in follower.rows.items() if key.startswith(f"{number}-")},
        )
        for number in range(WRITERS)
    ]


def _is_tidy(world: World) -> bool:
    return not left_behind(Topology.from_json(world.client.topology_json()), world.cluster)
