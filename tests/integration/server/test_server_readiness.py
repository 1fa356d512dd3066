from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from expected_errors import raises

from galileo.dht.membership import GossipArrived, Membership, MembershipTicked
from galileo.errors import ConfigError
from galileo.server.monitoring import Monitoring
from galileo.server.readiness import Readiness, ReadinessChecks


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Checks:
    def __init__(self, directory: Path, *peers: str) -> None:
        self.clock = Clock()
        self.members = Membership("a", peers)
        self.members.step(MembershipTicked(), 0.0)
        self.checks = ReadinessChecks(
            directory,
            unheard=lambda: self.members.never_heard,
            clock=self.clock,
            lag_max_s=2.0,
        )

    def wrong(self) -> list[str]:
        return [name for name, why in self.checks.look().checks.items() if why]


def test_readiness_without_peers_is_ready(tmp_path: Path) -> None:
    made = Checks(tmp_path)
    made.checks.probe_disk()
    assert made.checks.look().is_ready
    assert list(tmp_path.iterdir()) == [], "the probe leaves nothing"


def test_readiness_waits_until_peers_report_or_are_dead(tmp_path: Path) -> None:
    made = Checks(tmp_path, "b", "c")
    assert "b, c" in made.checks.look().checks["peers"]
    other = Membership("b", "ab", run=1)
    made.members.step(GossipArrived("b", other.heartbeat("a")), 0.1)
    assert "yet from c" in made.checks.look().checks["peers"]
    for now in (0.9, 1.8, 2.5):
        made.members.step(MembershipTicked(), now)
    assert "c" in made.members.dead
    assert made.checks.look().is_ready


def test_readiness_with_a_late_event_loop_fails(tmp_path: Path) -> None:
    made = Checks(tmp_path)
    made.checks.record_lag(2.5)
    assert made.wrong() == ["event loop"]
    made.checks.record_lag(0.1)
    assert made.wrong() == []


def test_readiness_with_an_unwritable_disk_fails(tmp_path: Path) -> None:
    made = Checks(tmp_path / "gone")
    made.checks.probe_disk()
    assert "cannot be written to" in made.checks.look().checks["disk"]
    (tmp_path / "gone").mkdir()
    made.checks.probe_disk()
    assert made.wrong() == []


def test_readiness_with_a_hanging_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stuck, begun = Checks(tmp_path), threading.Event(), threading.Event()

    def hang(**options: object) -> None:
        begun.set()
        stuck.wait(60)
        raise OSError("it came back")

    monkeypatch.setattr("tempfile.TemporaryFile", hang)
    probing = threading.Thread(target=made.checks.probe_disk)
    probing.start()
    assert begun.wait(60)
    assert made.wrong() == []
    made.clock.now = 6.0
    assert made.checks.look().checks["disk"] == "a write has not come back for 6 s"
    stuck.set()
    probing.join()
    assert "it came back" in made.checks.look().checks["disk"]


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10.0) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_monitoring_of_an_unready_node_answers_live(tmp_path: Path) -> None:
    readiness = Readiness({"disk": "it is full"})
    served = Monitoring("127.0.0.1:0", measure=lambda: [], look=lambda: readiness)
    url = f"http://127.0.0.1:{served.port}"
    try:
        assert await asyncio.to_thread(status_of, url + "/ready") == 503
        assert await asyncio.to_thread(status_of, url + "/live") == 200
    finally:
        await asyncio.to_thread(served.close)


async def test_monitoring_with_a_blocked_event_loop_is_not_live() -> None:
    served = Monitoring(
        "127.0.0.1:0", measure=lambda: [], look=lambda: Readiness({}), answer_within_s=0.1
    )
    url = f"http://127.0.0.1:{served.port}"
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(status_of, url + "/live")
        try:
            assert asked.result(60) == 503, "which keeps the loop from everything else meanwhile"
        finally:
            await asyncio.to_thread(served.close)


async def test_monitoring_at_a_used_address_is_refused() -> None:
    served = Monitoring("127.0.0.1:0", measure=lambda: [], look=lambda: Readiness({}))
    try:
        with raises(ConfigError, key="metrics.address"):
            Monitoring(f"127.0.0.1:{served.port}", measure=lambda: [], look=lambda: Readiness({}))
    finally:
        await asyncio.to_thread(served.close)
