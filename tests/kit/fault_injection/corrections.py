"""Clients of a dataset that is corrected while nodes fail: writers, and readers that follow it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from waiting import wait_until

from fault_injection.damage import Commits, data_of, read_all
from fault_injection.trial import Trial
from galileo.client import Client
from galileo.cluster import LocalCluster
from galileo.cursor import Cursor
from galileo.errors import GalileoError, TransientError
from galileo.local_node import LocalNode

TIMEOUT = "5s"
DATASET = "buoys"
KILLS = ("kill", "pause", "kill two")
BETWEEN_S, DOWN_S = (1.0, 4.0), (3.0, 8.0)


@dataclass(kw_only=True)
class Worker:
    """Takes turns in a thread, until all is over or it fails.

    Attributes:
        turns: that were taken.
        repeats: how often a turn was cut off, and taken again.
        errors: the error that ended it.
    """

    turns: int = 0
    repeats: int = 0
    errors: list[Exception] = field(default_factory=list)

    def turn(self, client: Client) -> None:
        raise NotImplementedError

    def run(self, cluster: LocalCluster, is_over: threading.Event) -> None:
        with cluster.client(timeout=TIMEOUT) as client:
            while not is_over.is_set() and not self.errors:
                try:
                    self.turn(client)
                    self.turns += 1
                except TransientError:
                    self.repeats += 1
                except Exception as error:
                    self.errors.append(error)


@contextlib.contextmanager
def working(cluster: LocalCluster, workers: Sequence[Worker]) -> Iterator[None]:
    """The workers take turns within the block."""
    is_over = threading.Event()
    threads = [threading.Thread(target=one.run, args=(cluster, is_over)) for one in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def await_turns(workers: Iterable[Worker], count: int) -> None:
    """Waits until the workers have taken so many turns more, or one has failed."""
    workers = [*workers]
    until = sum(one.turns for one in workers) + count
    wait_until(
        lambda: sum(one.turns for one in workers) >= until or any(one.errors for one in workers),
        what=f"{count} turns",
    )


def await_evaluation(trial: Trial, client: Client, writer: Worker, alarm: Alarm) -> None:
    """Waits until the alarm has the first write; before nodes are busy, as this starts Spark."""
    writer.turn(client)
    writer.turns += 1
    alarm.catch_up(client)
    trial.say("the first write was evaluated")


def befall(trial: Trial, nodes: Sequence[LocalNode], number: int, fault: str) -> None:
    """Kills or stops the node whose turn it is, perhaps with the next one, and lets them go on."""
    trial.counts[fault] += 1
    victims = [nodes[(number + more) % len(nodes)] for more in range(1 + (fault == "kill two"))]
    for victim in victims:
        victim.pause() if fault == "pause" else victim.kill()
    time.sleep(trial.random.uniform(*DOWN_S))
    for victim in victims:
        victim.resume() if fault == "pause" else victim.restart()


def judge_workers(trial: Trial, kind: str, workers: Sequence[Worker]) -> None:
    """Counts what the workers of a kind did, and complains if one has failed."""
    trial.counts[kind] += sum(one.turns for one in workers)
    trial.counts["repeated"] += sum(one.repeats for one in workers)
    failures = [repr(error) for one in workers for error in one.errors]
    trial.expect(not failures, f"{kind}: one has failed: {failures[:1]}")


def held(rows: pa.Table, names: Sequence[str]) -> dict[tuple[Any, ...], Any]:
    """The last of some columns by the others."""
    columns = zip(*(rows[name].to_pylist() for name in names), strict=True)
    found = {tuple(key): value for *key, value in columns}
    assert len(found) == rows.num_rows, "a key is there twice"
    return found


@dataclass
class Alarm(Worker):
    """Follows a continuous query, and folds its updates.

    Attributes:
        query: the condition.
        ccq_id: of the query.
        token: of what it has.
        names: the columns that identify an observation or a label, and one of its value.
        reads_at: whether to compare with what matches at each frontier; of a keyed dataset.
        rows: what matches, by what identifies it.
        updates: how many had labels or withdrew some.
        withdrawn: labels in all.
        compared: how often what matches at a frontier was read.
    """

    query: str
    ccq_id: str
    token: str
    names: Sequence[str]
    reads_at: bool
    rows: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    updates: int = 0
    withdrawn: int = 0
    compared: int = 0

    def turn(self, client: Client) -> None:
        self.step(client)

    def step(self, client: Client) -> Cursor:
        update = client.fetch(self.ccq_id, token=self.token, wait="2s")
        assert update.withdrawn is not None
        old, new = (held(one.table, self.names) for one in (update.withdrawn, update.labels))
        kept = {} if update.reset else self.rows
        self.rows = {key: value for key, value in kept.items() if key not in old} | new
        self.token = update.token
        self.updates += update.is_news
        self.withdrawn += len(old)
        if self.reads_at and not update.more and not update.labels.missing:
            at = update.labels.frontier
            self._compare(client.select(DATASET, self.query, at=at), f"at {at}")
        return update.labels.frontier

    def catch_up(self, client: Client) -> None:
        """Follows until nothing is left, and compares with what a query finds."""
        until = client.version(DATASET, require_complete=True).cursor
        wait_until(lambda: self.step(client).covers(until), what="the last update")
        self._compare(client.query(DATASET, self.query).table, "at the end")

    def _compare(self, matching: pa.Table, when: str) -> None:
        known = held(matching, self.names)
        differ = [*(known.items() ^ self.rows.items())]
        assert not differ, f"{when}, {len(differ)} differ: {differ[:5]}"
        self.compared += 1


def judge_alarm(trial: Trial, client: Client, alarm: Alarm) -> None:
    try:
        alarm.catch_up(client)
    except (GalileoError, AssertionError, TimeoutError) as error:
        trial.expect(False, f"the alarm at the end: {error!r}")
    trial.expect(alarm.withdrawn > 0, "nothing was withdrawn")
    trial.counts["withdrawn"] += alarm.withdrawn
    trial.counts["alarm compared"] += alarm.compared


def judge_disks(trial: Trial, directories: Sequence[Path], copies: int) -> Commits:
    """Reads the disks of nodes that have stopped: each commit is on as many, and the same."""
    readings = [read_all(directory) for directory in directories]
    refusals = [refusal for reading in readings for refusal in reading.refusals]
    trial.expect(not refusals, f"reading was refused: {refusals[:3]}")
    stored = [data_of(reading.commits) for reading in readings]
    commits = {place: both for one in stored for place, both in one.items()}
    for place, both in commits.items():
        found = [one[place] for one in stored if place in one]
        same = [all(a.equals(b) for a, b in zip(one, both, strict=True)) for one in found]
        trial.expect(all(same), f"the copies of commit {place} differ")
        trial.expect(len(same) == copies, f"commit {place} is on {len(same)} of {copies} disks")
    trial.counts["commits on disks"] += len(commits)
    return commits
