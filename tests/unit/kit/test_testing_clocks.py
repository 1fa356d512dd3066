"""Wall clocks of other processes that jump; monotonic ones, and that of this process, do not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from fault_injection.clocks import READ_AGAIN_S, WallClock, faketime_missing
from running_clock import RunningClock
from stopped_clock import StoppedClock

import galileo

HOUR_S = 3_600.0
TELL = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _needed() -> None:
    missing = faketime_missing()
    if missing is not None:
        pytest.skip(missing)


def test_wall_clock_jump_changes_wall_time_only(tmp_path: Path) -> None:
    clock = WallClock(tmp_path / "clock")
    with subprocess.Popen(
        [*clock.prefix, sys.executable, "-c", TELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def read_clocks() -> tuple[float, float]:
            """How far off both clocks are."""
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            wall, monotonic = map(float, process.stdout.readline().split())
            return wall - time.time(), monotonic - time.monotonic()

        for offset_s in (HOUR_S, -HOUR_S):
            clock.jump(offset_s)
            time.sleep(1.2 * READ_AGAIN_S)
            off = read_clocks()
            assert off == pytest.approx((offset_s, 0.0), abs=30.0)
        process.stdin.close()


def _seconds_of_an_ingest(client: galileo.Client, count: int) -> float:
    """Of the one in the middle of so many.

    Waits by the monotonic clock once lasted a second and more in a process with such a clock.
    """
    row = {"latitude": 1.0, "longitude": 2.0, "time": "2014-03-01T00:00:00Z", "level": 0.5}
    took_s = []
    for _ in range(count):
        started = time.monotonic()
        client.ingest("gauges", pd.DataFrame([row]))
        took_s.append(time.monotonic() - started)
    return sorted(took_s)[count // 2]


@pytest.mark.slow
def test_wall_clock_jump_of_node_ends_no_ccq(tmp_path: Path) -> None:
    """Its expiration is computed once, when the node first sees it (docs/dev/protocol.md)."""
    clock = WallClock(tmp_path / "clock")
    cluster = galileo.LocalCluster(nodes=1, groups=1, directory=tmp_path / "cluster")
    cluster.nodes[0].prefix = clock.prefix
    with cluster:
        client = cluster.client(timeout="60s")
        client.create_dataset(galileo.Schema("gauges", [galileo.Feature("level")]))
        assert _seconds_of_an_ingest(client, 60) < 0.9, "calls wait for others than themselves"
        ccq = client.submit("gauges", "level > 1", interval="1s", expiration="20m")
        before = client.status().nodes[0].uptime_s
        clock.jump(HOUR_S)
        time.sleep(1.5 * READ_AGAIN_S)
        assert [one.id for one in client.list_ccqs()] == [ccq.id]
        assert client.fetch(ccq.id, token=ccq.token).token == ccq.token
        assert before < client.status().nodes[0].uptime_s < HOUR_S / 2
        again = client.submit("gauges", "level > 2", interval="1s", expiration="20m")
        assert again.info.expires_at > ccq.info.expires_at + HOUR_S / 2


# --- running clock -------------------------------------------------------------------------------


def test_running_clock_stands_still_while_the_main_thread_waits_for_a_processor() -> None:
    now, waited = StoppedClock(), StoppedClock()
    clock = RunningClock(now, waited)
    now.now = 10.0
    assert clock.monotonic() == 10.0
    now.now, waited.now = 15.0, 4.0
    assert clock.monotonic() == 11.0


def test_running_clock_never_decreases_when_a_wait_is_counted_late() -> None:
    now, waited = StoppedClock(), StoppedClock()
    clock = RunningClock(now, waited)
    now.now = 10.0
    assert clock.monotonic() == 10.0
    now.now, waited.now = 11.0, 5.0
    assert clock.monotonic() == 10.0
