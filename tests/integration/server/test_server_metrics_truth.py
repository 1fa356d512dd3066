"""What a real node exports follows what is true of it, seen from outside: clocks, kernel, readers.

Nothing here is a race: where a value lies between two bounds, both were measured around it by a
clock that all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait_until

import galileo
from galileo.cluster import free_ports
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
def node() -> Iterator[Node]:
    """A node with an evaluator of its own, which a test stops."""
    [port] = free_ports(1)
    settings = {"metrics": {"address": f"127.0.0.1:{port}"}}
    with galileo.LocalCluster(nodes=1, groups=1, settings=settings) as running:
        yield Node(running, port)


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
def test_frontier_age_grows_while_the_evaluator_is_stopped(node: Node) -> None:
    node.client.create_dataset(schema("aging"))
    made = node.client.submit("aging", "rain > 0", interval="100ms", expiration="1h")

    def age_in(scrape: Scrape) -> float:
        return scrape.value("galileo_ccq_frontier_age_seconds", ccq=made.id)

    def matched() -> float:
        return node.scrape().value("galileo_ccq_labels_matched_total", ccq=made.id)

    node.client.ingest("aging", observations(10))
    some = len(node.client.query("aging", "rain > 0"))
    assert some > 0
    wait_until(lambda: matched() == some, "the evaluator is warm")
    wait_until(lambda: age_in(node.scrape()) == 0, "nothing lies beyond the cache")
    process = RuntimeDir(node.cluster.evaluator_directory).holder()
    assert process is not None
    lag_before = node.scrape().value("galileo_ccq_lag_seconds_sum", ccq=made.id)
    with stopped(process):
        began = time.monotonic()
        node.client.ingest("aging", observations(10, first=100_000))
        wait_until(lambda: age_in(node.scrape()) > 0, "something lies beyond it")
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
    wait_until(lambda: matched() == everything, "the evaluator is back")
    wait_until(lambda: age_in(node.scrape()) == 0, "nothing lies beyond the cache any more")
    after = node.scrape()
    lag = after.value("galileo_ccq_lag_seconds_sum", ccq=made.id) - lag_before
    assert AWAY_S <= lag <= after.ended - began, "the lag of that cycle is the age that it ended"
    node.client.cancel(made.id)


@pytest.mark.slow
def test_loop_lag_of_a_stopped_process_is_its_pause(node: Node) -> None:
    def late(scrape: Scrape) -> float:
        """How often by more than a second."""
        return scrape.value("galileo_loop_lag_seconds_count") - scrape.value(
            "galileo_loop_lag_seconds_bucket", le="1.0"
        )

    before = node.scrape()
    with stopped(psutil.Process(node.pid)):
        time.sleep(BLOCKED_S)
    wait_until(lambda: late(node.scrape()) > late(before), "the loop comes to what was due")
    after = node.scrape()
    sums = [one.value("galileo_loop_lag_seconds_sum") for one in (before, after)]
    lag_s = sums[1] - sums[0]
    # What was due next may have been due an interval after the stop, and no later.
    assert BLOCKED_S - HEALTH_INTERVAL_S <= lag_s <= after.ended - before.began + HEALTH_INTERVAL_S
    looks = after.value("galileo_loop_lag_seconds_count") - before.value(
        "galileo_loop_lag_seconds_count"
    )
    assert 0 < looks <= (after.ended - before.began) / HEALTH_INTERVAL_S + 1
