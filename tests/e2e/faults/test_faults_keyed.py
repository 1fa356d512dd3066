"""Observations of a keyed dataset are replaced and deleted while nodes are killed and stopped."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
import pytest
from fault_injection.nodes import PATIENCE, is_whole
from fault_injection.trial import Trial
from waiting import wait_until

from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError, TransientError
from galileo.local_node import LocalNode
from galileo.model.schema import Feature, Schema

WRITERS, KEYS = 5, 30
"""Each writer has so many keys of its own."""
BATCH = 6
BETWEEN_S = (1.0, 4.0)
PAUSE_S = (3.0, 8.0)
WHOLE_S = 120.0
WRITES_BETWEEN = 20
START = dt.datetime(2014, 3, 1, tzinfo=dt.UTC)
FEATURES = [
    Feature("station", type="text"),
    Feature("value", type="int"),
    Feature("level", type="int"),
]
HIGH, LEVELS = "level > 4", 10
"""A query, and how many levels values go through."""
SCHEMA = Schema("buoys", FEATURES, key="station", geohash_precision=2, time_bucket="1h")
HOLDS = (
    "writers replace and delete observations: at the end each key is as the last acknowledged "
    "write left it, and who has followed the changes has the same; at each of its cursors the "
    "observations are what it has; and who follows a continuous query has what matches at each "
    "token"
)
Rows: TypeAlias = dict[str, int]
"""The value of each station."""


@pytest.mark.timeout(0)
@pytest.mark.fault(
    "keyed-kills",
    "crash",
    rounds=9,
    holds=f"a node is killed, hangs, or is killed with its neighbour, in turn: {HOLDS}",
)
def test_keyed_kills(trial: Trial) -> None:
    cluster = LocalCluster(3, 1, trial.directory / "cluster", partitions_per_group=4, replicas=3)
    faults = itertools.cycle(("kill", "pause", "kill two"))
    with cluster:
        client = cluster.client(timeout=PATIENCE)
        client.create_dataset(SCHEMA)
        writers = [Writer(number, trial.random.random()) for number in range(WRITERS)]
        ccq = client.submit("buoys", HIGH, interval="1s", expiration="1d")
        follower, alarm = Follower(), Alarm(ccq.id, ccq.token)
        with _running(cluster, writers, follower, alarm):
            for number in trial.each_round():
                _await_writes(writers)
                time.sleep(trial.random.uniform(*BETWEEN_S))
                _befall(trial, cluster.nodes, number, next(faults))
                wait_until(lambda: is_whole(client), what="all copies", timeout_s=WHOLE_S)
        _judge(trial, client, writers, follower)
        _judge_alarm(trial, client, alarm)


def _befall(trial: Trial, nodes: list[LocalNode], number: int, fault: str) -> None:
    trial.counts[fault] += 1
    victims = [nodes[number % 3]] + ([nodes[(number + 1) % 3]] if fault == "kill two" else [])
    for victim in victims:
        victim.pause() if fault == "pause" else victim.kill()
    time.sleep(trial.random.uniform(*PAUSE_S))
    for victim in victims:
        victim.resume() if fault == "pause" else victim.restart()


def _await_writes(writers: list[Writer]) -> None:
    before = sum(writer.acknowledged for writer in writers)
    wait_until(
        lambda: sum(writer.acknowledged for writer in writers) > before + WRITES_BETWEEN,
        what="acknowledgements",
    )


def observations(values: dict[str, int]) -> pa.Table:
    """Of stations that have a place and an hour each; a value moves an observation in its hour."""
    numbers = [int(station.replace("-", "")) for station in values]
    return pa.table(
        {
            "latitude": [-80.0 + number * 7 % 160 for number in numbers],
            "longitude": [-170.0 + number * 11 % 340 for number in numbers],
            "time": [
                START + dt.timedelta(hours=number % 24, microseconds=value)
                for number, value in zip(numbers, values.values(), strict=True)
            ],
            "station": [*values],
            "value": pa.array([*values.values()], pa.int64()),
            "level": pa.array([value % LEVELS for value in values.values()], pa.int64()),
        }
    )


def values_of(rows: pa.Table) -> Rows:
    values = dict(zip(rows["station"].to_pylist(), rows["value"].to_pylist(), strict=True))
    assert len(values) == rows.num_rows, "a key is there twice"
    return values


@dataclass
class Writer:
    """Sends one write after the other, each until it is acknowledged or all is over.

    Attributes:
        rows: as the acknowledged writes have left them.
        pending: values of a write that is not acknowledged; of a deletion None.
        acknowledged: how many writes.
        repeats: how often a write was sent again.
    """

    number: int
    seed: float
    rows: Rows = field(default_factory=dict)
    pending: dict[str, int | None] = field(default_factory=dict)
    acknowledged: int = 0
    repeats: int = 0
    errors: list[Exception] = field(default_factory=list)

    def run(self, cluster: LocalCluster, is_over: threading.Event) -> None:
        chance = random.Random(f"{self.seed}-{self.number}")
        with cluster.client(timeout="5s") as client:
            for batch in itertools.count():
                values = {
                    f"{self.number}-{key:03}": batch
                    for key in chance.sample(range(KEYS), chance.randint(1, BATCH))
                }
                is_deletion = chance.random() < 0.3
                self.pending = dict.fromkeys(values) if is_deletion else {**values}
                if not self._write(client, batch, values, is_deletion, is_over):
                    return
                self.rows = {key: row for key, row in self.rows.items() if key not in values}
                self.rows |= {} if is_deletion else values
                self.pending = {}
                self.acknowledged += 1

    def _write(
        self, client: Client, batch: int, values: Rows, is_deletion: bool, is_over: threading.Event
    ) -> bool:
        """Whether a write was acknowledged."""
        send = client.delete if is_deletion else client.ingest
        while not is_over.is_set():
            try:
                rows = observations(values)
                send("buoys", rows, producer=f"writer-{self.number}", first_batch=batch)
            except TransientError:
                self.repeats += 1
            except Exception as error:
                self.errors.append(error)
                return False
            else:
                return True
        return False


@dataclass
class Follower:
    """Applies the changes from one cursor to the next.

    Attributes:
        rows: that it has.
        cursor: up to which.
        steps: how often it has asked for changes.
        compared: how often the observations at its cursor were read.
    """

    rows: Rows = field(default_factory=dict)
    cursor: Cursor = EMPTY_CURSOR
    steps: int = 0
    compared: int = 0
    errors: list[Exception] = field(default_factory=list)

    def turn(self, client: Client) -> None:
        self.step(client)
        self.compare(client)

    def step(self, client: Client) -> None:
        changes = client.changes("buoys", self.cursor)
        assert changes.cursor.covers(self.cursor), f"{changes.cursor} is behind {self.cursor}"
        changed = values_of(changes.rows)
        deleted = {*changes.rows.filter(changes.rows["deleted"])["station"].to_pylist()}
        kept = {key: value for key, value in self.rows.items() if key not in changed}
        self.rows = kept | {key: value for key, value in changed.items() if key not in deleted}
        self.cursor, self.steps = changes.cursor, self.steps + 1

    def compare(self, client: Client) -> None:
        at = values_of(client.select("buoys", at=self.cursor))
        assert at == self.rows, f"at {self.cursor}: {at.items() ^ self.rows.items()}"
        self.compared += 1


@dataclass
class Alarm:
    """Follows a continuous query, and folds its updates by key.

    Attributes:
        ccq_id: of the query.
        token: of what it has.
        rows: the values that match.
        updates: how many had labels or withdrew some.
        withdrawn: labels in all.
        compared: how often what matches at a token was read.
    """

    ccq_id: str
    token: str
    rows: Rows = field(default_factory=dict)
    updates: int = 0
    withdrawn: int = 0
    compared: int = 0
    errors: list[Exception] = field(default_factory=list)

    def turn(self, client: Client) -> None:
        self.step(client)

    def step(self, client: Client) -> Cursor:
        update = client.fetch(self.ccq_id, token=self.token, wait="2s")
        assert update.withdrawn is not None
        old, new = (
            dict(zip(table["station"].to_pylist(), table["value"].to_pylist(), strict=True))
            for table in (update.withdrawn.table, update.labels.table)
        )
        kept = {} if update.reset else self.rows
        self.rows = {key: value for key, value in kept.items() if key not in old} | new
        self.token = update.token
        self.updates += update.is_news
        self.withdrawn += len(old)
        if not update.more and not update.labels.missing:
            at = update.labels.frontier
            known = values_of(client.select("buoys", HIGH, at=at))
            assert known == self.rows, f"at {at}: {known.items() ^ self.rows.items()}"
            self.compared += 1
        return update.labels.frontier


def _follow(reader: Follower | Alarm, cluster: LocalCluster, is_over: threading.Event) -> None:
    """A reader takes turns until the end, or until it fails."""
    with cluster.client(timeout="5s") as client:
        while not is_over.is_set():
            try:
                reader.turn(client)
            except TransientError:
                continue
            except Exception as error:
                reader.errors.append(error)
                return


@contextlib.contextmanager
def _running(
    cluster: LocalCluster, writers: list[Writer], follower: Follower, alarm: Alarm
) -> Iterator[None]:
    """Writers and those who follow them work within the block."""
    is_over = threading.Event()
    threads = [
        *(threading.Thread(target=each.run, args=(cluster, is_over)) for each in writers),
        *(
            threading.Thread(target=_follow, args=(each, cluster, is_over))
            for each in (follower, alarm)
        ),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _judge(trial: Trial, client: Client, writers: list[Writer], follower: Follower) -> None:
    trial.expect(not follower.errors, f"the follower has failed: {follower.errors[:1]}")
    try:
        follower.turn(client)
    except (GalileoError, AssertionError) as error:
        trial.expect(False, f"the follower at the end: {error!r}")
    rows = follower.rows  # An unanswered write may come later than this.
    for writer in writers:
        for key in (f"{writer.number}-{key:03}" for key in range(KEYS)):
            known = writer.rows.get(key)
            possible, value = {known, writer.pending.get(key, known)}, rows.get(key)
            trial.expect(value in possible, f"{key}: expected one of {possible}, got {value}")
        trial.counts["acknowledged"] += writer.acknowledged
        trial.counts["repeated"] += writer.repeats
        trial.counts["unanswered"] += bool(writer.pending)
        trial.expect(not writer.errors, f"a writer was refused: {writer.errors[:1]}")
    trial.counts["followed"] += follower.steps
    trial.counts["compared"] += follower.compared


def _judge_alarm(trial: Trial, client: Client, alarm: Alarm) -> None:
    trial.expect(not alarm.errors, f"the alarm has failed: {alarm.errors[:1]}")
    until = client.version("buoys", require_complete=True).cursor
    try:
        wait_until(lambda: alarm.step(client).covers(until), what="the last update")
    except (GalileoError, AssertionError) as error:
        trial.expect(False, f"the alarm at the end: {error!r}")
    trial.expect(alarm.withdrawn > 0, "nothing was withdrawn")
    trial.counts["updates"] += alarm.updates
    trial.counts["withdrawn"] += alarm.withdrawn
    trial.counts["alarm compared"] += alarm.compared
