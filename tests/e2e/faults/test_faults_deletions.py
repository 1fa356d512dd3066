"""Observations without a key are deleted by conditions while nodes are killed and stopped."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from fault_injection.corrections import (
    BETWEEN_S,
    DATASET,
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
from fault_injection.deletions import SCHEMA, Deleter, Ledger, Producer, Reader, numbers_on_disk
from fault_injection.nodes import PATIENCE, WHOLE_S, is_whole
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.cluster import LocalCluster

PRODUCERS, DELETERS = 3, 2
DELETIONS_BETWEEN = 8
HIGH = "level > 0"
LABEL = ("partition", "sequence", "row", "rows")


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "deletions-kills",
    "crash",
    rounds=6,
    holds="a node is killed, hangs, or is killed with its neighbour, in turn, while conditions "
    "delete observations of a dataset without a key: what a deletion has acknowledged is in no "
    "later answer, what no condition matches is never gone, all copies are equal in the end, and "
    "who follows a continuous query has what a query finds",
)
def test_deletions_kills(trial: Trial) -> None:
    place = trial.directory / "cluster"
    cluster = LocalCluster(3, 1, place, partitions_per_group=4, replicas=3)
    ledger, faults = Ledger(), itertools.cycle(KILLS)
    chances = (random.Random(trial.random.random()) for _ in itertools.count())
    producers = [Producer(ledger, number, next(chances)) for number in range(PRODUCERS)]
    deleters = [Deleter(ledger, next(chances)) for _ in range(DELETERS)]
    reader = Reader(ledger)
    with cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_dataset(SCHEMA)
        ccq = client.submit(DATASET, HIGH, interval="1s", expiration="1d")
        alarm = Alarm(HIGH, ccq.id, ccq.token, LABEL, reads_at=False)
        await_evaluation(trial, client, producers[0], alarm)
        with working(cluster, [*producers, *deleters, reader, alarm]):
            for number in trial.each_round():
                await_turns(deleters, DELETIONS_BETWEEN)
                time.sleep(trial.random.uniform(*BETWEEN_S))
                befall(trial, cluster.nodes, number, next(faults))
                wait_until(lambda: is_whole(client), what="all copies", timeout_s=WHOLE_S)
        judge_alarm(trial, client, alarm)
        reader.turn(client)
        differ = [one for node in client.status().nodes for one in node.diverged]
        trial.expect(not differ, f"copies differ: {differ[:3]}")
    commits = judge_disks(trial, [place / node.name for node in cluster.nodes], 3)
    ledger.check(numbers_on_disk(commits), time.monotonic(), "the disks")
    judge_workers(trial, "batches", producers)
    judge_workers(trial, "deletions", deleters)
    judge_workers(trial, "answers read", [reader])
    judge_workers(trial, "updates", [alarm])
    trial.counts["deleted"] += reader.deleted
    trial.expect(reader.deleted > 0, "nothing was deleted")
