"""Counters that writers increase by conditional writes, while nodes are killed and stopped."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from fault_injection.nodes import PATIENCE, is_whole
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.errors import Conflict, GalileoError, TransientError
from galileo.local_node import LocalNode
from galileo.model.table import Table

COUNTERS = ("a", "b", "c", "d")
WRITERS = 6
BETWEEN_S = (1.0, 4.0)
PAUSE_S = (3.0, 8.0)
WHOLE_S = 120.0
HOLDS = (
    "writers read a counter, and store the next value on condition that it has not changed: no two "
    "acknowledged writes count from one value, and none is lost"
)


@dataclass
class Counts:
    """What writers know: the values that were acknowledged, and those that may be stored."""

    acknowledged: dict[str, list[int]] = field(
        default_factory=lambda: {key: [] for key in COUNTERS}
    )
    uncertain: dict[str, list[int]] = field(default_factory=lambda: {key: [] for key in COUNTERS})
    conflicts: int = 0
    errors: list[GalileoError] = field(default_factory=list)

    def increase(self, client: Client, key: str) -> None:
        try:
            seen = client.table("counters", keys=[key])
            value = (seen.rows["value"].to_pylist() or [0])[0] + 1
        except TransientError:
            return
        try:
            row = {"id": [key], "value": [value]}
            client.upsert("counters", row, unchanged_since=seen.cursor)
        except Conflict:
            self.conflicts += 1
        except TransientError:
            self.uncertain[key].append(value)
        except GalileoError as error:
            self.errors.append(error)
        else:
            self.acknowledged[key].append(value)

    def __len__(self) -> int:
        return sum(map(len, self.acknowledged.values()))


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "conditional-writes",
    "crash",
    rounds=9,
    holds=f"a node is killed, hangs, or is killed with its neighbour, in turn: {HOLDS}",
)
def test_conditional_writes(trial: Trial) -> None:
    cluster = LocalCluster(3, 1, trial.directory / "cluster", partitions_per_group=4, replicas=3)
    faults, counts = itertools.cycle(("kill", "pause", "kill two")), Counts()
    with cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_table(Table("counters", {"id": "text", "value": "int"}, key="id"))
        with _writing(cluster, counts):
            for number in trial.each_round():
                before = len(counts)
                wait_until(lambda b=before: len(counts) > b + 20, what="acknowledgements")  # type: ignore[misc]
                time.sleep(trial.random.uniform(*BETWEEN_S))
                _befall(trial, cluster.nodes, number, next(faults))
                wait_until(lambda: is_whole(client), what="all copies", timeout_s=WHOLE_S)
        _judge(trial, client, counts)


def _befall(trial: Trial, nodes: list[LocalNode], number: int, fault: str) -> None:
    trial.counts[fault] += 1
    victims = [nodes[number % 3]] + ([nodes[(number + 1) % 3]] if fault == "kill two" else [])
    for victim in victims:
        victim.pause() if fault == "pause" else victim.kill()
    time.sleep(trial.random.uniform(*PAUSE_S))
    for victim in victims:
        victim.resume() if fault == "pause" else victim.restart()


@contextlib.contextmanager
def _writing(cluster: LocalCluster, counts: Counts) -> Iterator[None]:
    """Writers that increase counters within the block, half of all calls the same one."""
    is_over = threading.Event()

    def write(number: int) -> None:
        with cluster.client(timeout="5s") as client:
            for turn in itertools.count(number):
                if is_over.is_set():
                    return
                key = COUNTERS[0] if turn % 2 else COUNTERS[turn // 2 % len(COUNTERS)]
                counts.increase(client, key)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        is_over.set()
        for writer in writers:
            writer.join()


def _judge(trial: Trial, client: Client, counts: Counts) -> None:
    rows = {row["id"]: row["value"] for row in client.table("counters").rows.to_pylist()}
    for key in COUNTERS:
        values, uncertain = counts.acknowledged[key], counts.uncertain[key]
        trial.expect(len(set(values)) == len(values), f"{key}: a value was acknowledged twice")
        missing = {*range(1, rows[key] + 1)} - {*values}
        foreign = missing - {*uncertain}
        trial.expect(
            not foreign, f"{key}: stored, and no writer has sent it: {sorted(foreign)[:5]}"
        )
        trial.expect(max(values) <= rows[key], f"{key}: {max(values)} was lost: {rows[key]}")
        trial.counts["acknowledged"] += len(values)
        trial.counts["unanswered"] += len(uncertain)
    trial.counts["conflicts"] += counts.conflicts
    trial.expect(not counts.errors, f"unexpected: {counts.errors[:3]}")
