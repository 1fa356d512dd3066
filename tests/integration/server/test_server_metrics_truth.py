"""What a real node exports follows what is true of it, seen from outside: clocks, kernel, readers.

Nothing here is a race: where a value lies between two bounds, both were measured around it by a
clock that all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

import galileo
from galileo.cluster import free_ports
from galileo.server.cgroup_memory import memory
from galileo.server.health import HEALTH_INTERVAL_S
from galileo.spark.runtime_dir import RuntimeDir

WITHIN_S = 300.0
AWAY_S = 2.0
BLOCKED_S = 2.5
MIB = 1 << 20


@dataclass(frozen=True)
class Scrape:
    """Values by sample and labels, and between which moments they were read."""

    values: dict[tuple[str, frozenset[tuple[str, str]]], float]
    began: float
    ended: float

    def value(self, sample: str, **labels: str) -> float:
        [found] = [
            value
            for (name, of), value in self.values.items()
            if name == sample and frozenset(labels.items()) <= of
        ]
        return found


class Node:
    def __init__(self, cluster: galileo.LocalCluster, port: int) -> None:
        self.cluster = cluster
        self.client = cluster.client()
        self.port = port
        pid = cluster.nodes[0].pid
        assert pid is not None
        self.pid = pid

    def scrape(self) -> Scrape:
        began = time.monotonic()
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=WITHIN_S) as reply:
            text = reply.read().decode()
        values = {
            (one.name, frozenset(one.labels.items())): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }
        return Scrape(values, began, time.monotonic())


@pytest.fixture(scope="module")
def node(evaluator: dict[str, Any]) -> Iterator[Node]:
    [port] = free_ports(1)
    settings = {"metrics": {"address": f"127.0.0.1:{port}"}, "evaluator": evaluator}
    with galileo.LocalCluster(nodes=1, groups=1, settings=settings) as running:
        yield Node(running, port)


def await_that(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@contextlib.contextmanager
def stopped(*processes: psutil.Process) -> Iterator[None]:
    for one in processes:
        one.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGCONT)


def observations(rows: int, first: int = 0) -> pd.DataFrame:
    times = pd.Timestamp("2014-03-01", tz="UTC") + pd.to_timedelta(range(first, first + rows), "s")
    columns = {"latitude": 40.0, "longitude": -105.0, "time": times, "rain": 1.0}
    frame = pd.DataFrame(columns, index=range(rows))
    frame["rain"] += frame.index + first
    return frame


def schema(name: str) -> galileo.Schema:
    return galileo.Schema(name, [galileo.Feature("rain", "mm")], geohash_precision=2)


@pytest.mark.slow
def test_the_frontier_ages_while_the_evaluator_is_away_and_is_young_again_after(
    node: Node, evaluator: dict[str, Any]
) -> None:
    node.client.create_dataset(schema("aging"))
    made = node.client.submit("aging", "rain > 0", interval="100ms", expiration="1h")

    def age_in(scrape: Scrape) -> float:
        return scrape.value("galileo_ccq_frontier_age_seconds", ccq=made.id)

    def matched() -> float:
        return node.scrape().value("galileo_ccq_labels_matched_total", ccq=made.id)

    node.client.ingest("aging", observations(10))
    some = len(node.client.query("aging", "rain > 0"))
    assert some > 0
    await_that(lambda: matched() == some, "the evaluator is warm")
    await_that(lambda: age_in(node.scrape()) == 0, "nothing lies beyond the cache")
    process = RuntimeDir(Path(evaluator["directory"])).holder()
    assert process is not None
    lag_before = node.scrape().value("galileo_ccq_lag_seconds_sum", ccq=made.id)
    with stopped(process):
        began = time.monotonic()
        node.client.ingest("aging", observations(10, first=100_000))
        await_that(lambda: age_in(node.scrape()) > 0, "something lies beyond it")
        first = node.scrape()
        time.sleep(AWAY_S)
        last = node.scrape()
        assert 0 < age_in(first) <= first.ended - began, "not older than what it is the age of"
        assert matched() == some
        grown = age_in(last) - age_in(first)
        assert last.began - first.ended <= grown <= last.ended - first.began
        assert age_in(last) >= AWAY_S
    everything = len(node.client.query("aging", "rain > 0"))
    assert everything > some
    await_that(lambda: matched() == everything, "the evaluator is back")
    await_that(lambda: age_in(node.scrape()) == 0, "nothing lies beyond the cache any more")
    after = node.scrape()
    lag = after.value("galileo_ccq_lag_seconds_sum", ccq=made.id) - lag_before
    assert AWAY_S <= lag <= after.ended - began, "the lag of that cycle is the age that it ended"
    node.client.cancel(made.id)


@pytest.mark.slow
def test_a_loop_that_is_blocked_is_late_by_as_much(node: Node) -> None:
    def late(scrape: Scrape) -> float:
        """How often by more than a second."""
        return scrape.value("galileo_loop_lag_seconds_count") - scrape.value(
            "galileo_loop_lag_seconds_bucket", le="1.0"
        )

    before = node.scrape()
    with stopped(psutil.Process(node.pid)):
        time.sleep(BLOCKED_S)
    await_that(lambda: late(node.scrape()) > late(before), "the loop comes to what was due")
    after = node.scrape()
    sums = [one.value("galileo_loop_lag_seconds_sum") for one in (before, after)]
    lag_s = sums[1] - sums[0]
    # What was due next may have been due an interval after the stop, and no later.
    assert BLOCKED_S - HEALTH_INTERVAL_S <= lag_s <= after.ended - before.began + HEALTH_INTERVAL_S
    looks = after.value("galileo_loop_lag_seconds_count") - before.value(
        "galileo_loop_lag_seconds_count"
    )
    assert 0 < looks <= (after.ended - before.began) / HEALTH_INTERVAL_S + 1


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def agrees(read: Callable[[], float], exported: Callable[[Scrape], float], node: Node) -> float:
    """Waits for a scrape whose value lies within 2 MiB of the truths just before and after it.

    A truth may change and change back between the three, so one scrape that differs shows nothing;
    an exported value that is not the truth differs each time.
    """
    deadline = time.monotonic() + WITHIN_S
    compared = []
    while time.monotonic() < deadline:
        truths, scrape = [read()], node.scrape()
        truths.append(read())
        if abs(truths[1] - truths[0]) <= MIB:
            value = exported(scrape)
            compared.append((value, truths))
            if min(truths) - 2 * MIB <= value <= max(truths) + 2 * MIB:
                return value
    assert not compared, f"exported value and truths around it, in bytes: {compared[-1]}"
    pytest.skip("the machine does not hold still for one scrape")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_resident_memory_is_what_the_kernel_says_and_grows_with_what_is_held(node: Node) -> None:
    def reported(scrape: Scrape) -> float:
        return scrape.value("process_resident_memory_bytes")

    before = agrees(lambda: resident(node.pid), reported, node)
    node.client.create_dataset(schema("large"))
    for part in range(2):
        node.client.ingest("large", observations(100_000, first=100_000 * part))
    after = agrees(lambda: resident(node.pid), reported, node)
    assert after > before
    assert node.scrape().value("galileo_dataset_rows", dataset="large") == 200_000


def test_available_memory_and_the_disk_are_those_of_the_machine(node: Node) -> None:
    available = "galileo_memory_available_bytes"
    agrees(lambda: memory().available, lambda scrape: scrape.value(available), node)
    disk = psutil.disk_usage(str(node.cluster.directory))
    assert node.scrape().value("galileo_disk_size_bytes") == disk.total


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
def test_open_files_are_counted(node: Node) -> None:
    host, _, port = node.cluster.addresses[0].rpartition(":")

    def opened() -> float:
        return node.scrape().value("process_open_fds")

    few = opened()
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=WITHIN_S))
        await_that(lambda: opened() >= few + 25, "each connection is a file")
        kernel = len(list(Path(f"/proc/{node.pid}/fd").iterdir()))
        await_that(lambda: abs(opened() - kernel) <= 5, "as many as the kernel says")
    await_that(lambda: opened() <= few + 10, "they are closed")
