"""Floods: a node is asked far too much, and must neither fill its memory nor forget the others."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fault_injection.requirements import SIGNALS

from faults.bystanders import (
    DATASET,
    PATIENCE,
    Memory,
    asked,
    fill,
    flooding,
    p50_ms,
    p99_ms,
    weighed,
)
from faults.registry import Scenario, Trial
from galileo.client import Ccq
from galileo.cluster import LocalCluster, free_ports

MIB = 1 << 20
ROWS = 200_000
LASTS_S = 6.0
"""Of each flood, for every round."""
BEFORE_S = 4.0
WAIT_MAX_S = 20.0
"""The well-behaved client waits at most so long for one of a hundred of his calls: the floods take
the processors of this machine, too."""
AFTER_S = 15.0


@dataclass(frozen=True, slots=True)
class Flood:
    """One flood.

    Attributes:
        kind: of `faults.flooding`.
        count: of connections or calls at a time.
        does: in words.
        over_mib_max: that the node may take for it.
        row: of the table of faults.
        watched: whether a continuous query stands, which takes an evaluator.
        stopped: whether the flooding process is stopped meanwhile, and so reads nothing.
        over_http: whether it is the port of metrics that is flooded.
    """

    kind: str
    count: int
    does: str
    over_mib_max: int
    row: str = "floods"
    watched: bool = False
    stopped: bool = False
    over_http: bool = False

    def scenario(self) -> Scenario:
        holds = (
            f"the node takes at most {self.over_mib_max} MiB for it, and another client is served"
        )
        return Scenario(
            f"flood-{self.kind}", f"{self.does}: {holds}", (SIGNALS,), 1, self.run, row=self.row
        )

    def run(self, trial: Trial) -> None:
        metrics = f"127.0.0.1:{free_ports(1)[0]}"
        cluster = LocalCluster(
            1, 1, trial.directory / "cluster", settings={"metrics": {"address": metrics}}
        )
        with cluster:
            client = cluster.client(timeout=PATIENCE)
            fill(client, ROWS)
            ccq = _standing(cluster) if self.watched else None
            before = _calm(cluster, ccq)
            (node,) = cluster.nodes
            address = metrics if self.over_http else node.address
            with weighed(node.pid) as memory:
                during = self._flood(trial, cluster, address, ccq)
                trial.expect(node.running, "the node is dead")
            judge(trial, memory, before, during, over_mib_max=self.over_mib_max)
            with asked(cluster.client(timeout=PATIENCE), ccq) as later:
                time.sleep(BEFORE_S)
            trial.figures["p99 after, ms"] = p99_ms(later.waits_s)

    def _flood(
        self, trial: Trial, cluster: LocalCluster, address: str, ccq: Ccq | None
    ) -> list[float]:
        waits: list[float] = []
        with flooding(trial, self.kind, address, self.count) as process:
            for _ in trial.each_round():
                with _stopped(process) if self.stopped else contextlib.nullcontext():
                    with asked(cluster.client(timeout=PATIENCE), ccq) as bystander:
                        time.sleep(LASTS_S)
                    waits += bystander.waits_s
        return waits


def judge(
    trial: Trial, memory: Memory, before: list[float], during: list[float], *, over_mib_max: int
) -> None:
    """Notes what a flood cost in memory and in waits of another client; complains of too much."""
    figures = trial.figures
    figures["memory before, MiB"] = round(memory.before / MIB)
    figures["memory over that, MiB"] = round(memory.over_mib)
    figures["p50 before, ms"], figures["p99 before, ms"] = p50_ms(before), p99_ms(before)
    figures["p50 during, ms"], figures["p99 during, ms"] = p50_ms(during), p99_ms(during)
    trial.counts["calls of another client"] += len(during)
    told = f"it took {memory.over_mib:.0f} MiB more, {over_mib_max} are allowed"
    trial.expect(memory.over_mib <= over_mib_max, told)
    trial.expect(bool(during), "the other client was not served at all")
    slow = p99_ms(during) / 1e3
    trial.expect(slow <= WAIT_MAX_S, f"the other client waited {slow:.1f} s")


def _standing(cluster: LocalCluster) -> Ccq:
    """A continuous query that has had its first cycle."""
    client = cluster.client(timeout="300s")
    ccq = client.submit(DATASET, "temperature > 300", interval="1s", expiration="1h")
    client.fetch(ccq.id, token=ccq.token, wait=1.0)
    return ccq


def _calm(cluster: LocalCluster, ccq: Ccq | None) -> list[float]:
    with asked(cluster.client(timeout=PATIENCE), ccq) as bystander:
        time.sleep(BEFORE_S)
    return bystander.waits_s


@contextlib.contextmanager
def _stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


FLOODS = (
    Flood("idle", 2_000, "2,000 connections that say nothing more", 200),
    Flood("mute", 1_000, "1,000 connections that begin HTTP/2 byte by byte", 200),
    Flood("churn", 100, "connections opened and closed as fast as it goes", 200),
    Flood("resets", 8, "calls begun and taken back at once", 300),
    Flood("headers", 8, "headers that never end", 1_000),
    Flood("settings", 8, "settings and pings whose answers nobody reads", 200),
    Flood("calls", 10_000, "10,000 calls at a time over one connection", 400),
    Flood("queries", 2_000, "2,000 queries at a time", 600),
    Flood("streams", 64, "watches that ask without end and wait for nothing", 400, watched=True),
    Flood("watchers", 4_000, "4,000 readers that watch one query", 600, watched=True),
    Flood(
        "readers",
        400,
        "400 readers of everything that stop reading, and are stopped",
        800,
        row="slow or stopped reader",
        stopped=True,
    ),
    Flood("uploads", 48, "requests of 60 MB, 48 at a time", 2_000),
    Flood("halves", 100, "2,000 requests that are begun and never end", 200),
    Flood("pages", 200, "metrics over HTTP, asked for and half asked for", 100, over_http=True),
)

SCENARIOS = tuple(flood.scenario() for flood in FLOODS)
