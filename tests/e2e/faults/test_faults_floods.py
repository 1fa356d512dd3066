"""Floods: a server gets far too many requests, must bound its memory and still serve others.

Floods of a node over gRPC and of its metrics over HTTP. A bystander makes calls of its own before,
during and after each; its wait for a page includes all attempts.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from fault_injection.bystanders import (
    DATASET,
    FLOODING,
    MIB,
    PATIENCE,
    client_calls,
    fill,
    flooding,
    get_page,
    quantile_ms,
    repeated,
    weighed,
)
from fault_injection.trial import Trial
from hostile_soak import UNAVAILABLE, Site, Soak

from galileo.cluster import LocalCluster, free_ports

ROWS, METRICS_ROWS = 200_000, 20_000
HOSTILE, HOSTILE_MINUTES = 100, 0.5
LASTS_S = 6.0
"""Of each flood, for every round."""
BEFORE_S = 4.0
WAIT_MAX_S = 20.0
"""99th percentile of a bystander's waits: the flood takes processors of the same machine, too."""
SLOW_READERS = "slow or stopped reader"
PAGES = ("/metrics", "/ready", "/live")

Calls = list[Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Flood:
    """One flood.

    Attributes:
        kind: of `tests/kit/fault_injection/flooding.py`.
        count: of connections or calls at a time.
        does: in words.
        over_mib_max: that the server may take for it.
        row: of the table of faults.
        has_ccq: whether there is a continuous query, which takes an evaluator.
        is_stopped: whether the flooding process is stopped meanwhile, and so reads nothing.
        over_http: whether it is the port of metrics that is flooded.
    """

    kind: str
    count: int
    does: str
    over_mib_max: int
    row: str = "floods"
    has_ccq: bool = False
    is_stopped: bool = False
    over_http: bool = False


NODE_FLOODS = (
    Flood("idle", 2_000, "2,000 connections that say nothing more", 200),
    Flood("mute", 1_000, "1,000 connections that begin HTTP/2 byte by byte", 200),
    Flood("churn", 100, "connections opened and closed as fast as it goes", 200),
    Flood("resets", 8, "calls begun and taken back at once", 300),
    Flood("headers", 8, "headers that never end", 1_000),
    Flood("settings", 8, "settings and pings whose answers nothing reads", 200),
    Flood("calls", 10_000, "10,000 calls at a time over one connection", 400),
    Flood("queries", 2_000, "2,000 queries at a time", 600),
    Flood("streams", 64, "watches that ask without end and wait for nothing", 400, has_ccq=True),
    Flood("watchers", 4_000, "4,000 readers that watch one query", 600, has_ccq=True),
    Flood(
        "readers",
        400,
        "400 readers of everything that stop reading, and are stopped",
        800,
        row=SLOW_READERS,
        is_stopped=True,
    ),
    Flood("uploads", 48, "requests of 60 MB, 48 at a time", 3_000),
    Flood("halves", 100, "2,000 requests that are begun and never end", 200),
    Flood("pages", 200, "metrics over HTTP, asked for and half asked for", 100, over_http=True),
)
METRICS_FLOODS = (
    Flood("silent", 1_000, "1,000 connections to metrics that say nothing", 100),
    Flood("slow", 500, "500 requests for metrics, byte by byte", 100),
    Flood("endless_heads", 50, "headers to metrics that never end", 100),
)


def scenarios(floods: tuple[Flood, ...], *, of: str = "") -> list[object]:
    """Each flood with its mark."""

    def marked(flood: Flood) -> object:
        holds = (
            f"the node takes at most {flood.over_mib_max} MiB for it, and another client is served"
        )
        mark = pytest.mark.fault(
            f"flood-{of}{flood.kind.replace('_', '-')}",
            flood.row,
            rounds=1,
            holds=f"{flood.does}: {holds}",
        )
        return pytest.param(flood, marks=mark, id=f"{of}{flood.kind}")

    return [marked(flood) for flood in floods]


@pytest.mark.parametrize("flood", scenarios(NODE_FLOODS))
def test_flood(trial: Trial, flood: Flood) -> None:
    with metered_cluster(trial, rows=ROWS) as (cluster, metrics):
        (node,) = cluster.nodes
        ccq = None
        if flood.has_ccq:
            patient = cluster.client(timeout="300s")
            ccq = patient.submit(DATASET, "temperature > 300", interval="1s", expiration="1h")
            patient.fetch(ccq.id, token=ccq.token, wait=1.0)
        calls = client_calls(cluster.client(timeout=PATIENCE), ccq)
        address = metrics if flood.over_http else node.address
        play(trial, flood, pid=node.pid, address=address, calls=calls)
        trial.expect(node.running, "the node is dead")


@pytest.mark.parametrize("flood", scenarios(METRICS_FLOODS, of="metrics-"))
def test_flood_of_metrics(trial: Trial, flood: Flood) -> None:
    with metered_cluster(trial, rows=METRICS_ROWS) as (cluster, address):
        (node,) = cluster.nodes
        calls = [partial(get_page, address, page, trial=trial) for page in PAGES]
        with repeated(*client_calls(cluster.client(timeout=PATIENCE))) as waits_s:
            play(trial, flood, pid=node.pid, address=address, calls=[*calls])
        trial.expect(node.running, "the node is dead")
        trial.counts["calls over gRPC"] += len(waits_s)
        trial.figures["p99 of gRPC, ms"] = quantile_ms(waits_s, 0.99)


@pytest.mark.fault(
    "hostile-connections",
    "floods",
    rounds=1,
    holds=f"{HOSTILE} hostile connections of all kinds to a gateway and a node: a writer, a "
    "follower and a map are served, without a 503",
)
def test_hostile_connections(trial: Trial) -> None:
    with Site(trial.directory) as site:
        soak = Soak(site, trial.say)
        for _ in trial.each_round():
            soak.run(connections=HOSTILE, minutes=HOSTILE_MINUTES, seed=trial.random.randrange(99))
        for (name, phase), (notes, _) in soak.figures.items():
            waits_s = [took_s for _, took_s in notes]
            trial.figures[f"p50 of the {name} {phase}, ms"] = quantile_ms(waits_s, 0.5)
            trial.figures[f"longest of the {name} {phase}, ms"] = quantile_ms(waits_s, 1.0)
            trial.expect(bool(waits_s), f"the {name} was not served {phase}")
            trial.expect(UNAVAILABLE not in dict(notes), f"the {name} got 503 {phase}")


def play(trial: Trial, flood: Flood, *, pid: int | None, address: str, calls: Calls) -> None:
    """Holds a flood while a bystander makes calls, and judges its waits and the memory taken."""
    with repeated(*calls) as before:
        time.sleep(BEFORE_S)
    during: list[float] = []
    with weighed(pid) as memory, flooding(trial, flood.kind, address, flood.count) as process:
        for _ in trial.each_round():
            with stopped(process) if flood.is_stopped else contextlib.nullcontext():
                with repeated(*calls) as waits_s:
                    time.sleep(LASTS_S)
                during += waits_s
    figures, over_mib = trial.figures, memory.over_mib
    figures["memory before, MiB"] = round(memory.before / MIB)
    figures["memory over that, MiB"] = round(over_mib)
    for when, waits_s in (("before", before), ("during", during)):
        figures[f"p50 {when}, ms"] = quantile_ms(waits_s, 0.5)
        figures[f"p99 {when}, ms"] = quantile_ms(waits_s, 0.99)
    trial.counts["calls of another client"] += len(during)
    most = flood.over_mib_max
    trial.expect(over_mib <= most, f"it took {over_mib:.0f} MiB more, {most} are allowed")
    trial.expect(bool(during), "the other client was not served at all")
    slow_s = quantile_ms(during, 0.99) / 1e3
    trial.expect(slow_s <= WAIT_MAX_S, f"the other client waited {slow_s:.1f} s")
    with repeated(*calls) as later:
        time.sleep(BEFORE_S)
    figures["p99 after, ms"] = quantile_ms(later, 0.99)


@contextlib.contextmanager
def metered_cluster(trial: Trial, *, rows: int) -> Iterator[tuple[LocalCluster, str]]:
    """A cluster of one node with so many observations, and the address of its metrics."""
    metrics = f"127.0.0.1:{free_ports(1)[0]}"
    settings = {"metrics": {"address": metrics}}
    with LocalCluster(1, 1, trial.directory / "cluster", settings=settings) as cluster:
        fill(cluster.client(timeout=PATIENCE), rows)
        yield cluster, metrics


@contextlib.contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_flood_that_fails_exits_with_the_error_while_its_input_is_open() -> None:
    command = [sys.executable, str(FLOODING), "watchers", "127.0.0.1:1", "4"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as flood:
        try:
            assert flood.wait(120) == 1
            assert flood.stderr is not None
            assert "UNAVAILABLE" in flood.stderr.read()
        finally:
            flood.kill()
