from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_injection.damage import flip, frames
from stopped_clock import StoppedClock
from waiting import wait_until
from weather_node import BEGAN, COMMITS, commits, fill, opened

from galileo.errors import InternalError
from galileo.node.scrub_runner import KIND, NAME, ScrubOptions, ScrubRunner
from galileo.storage.compaction import CompactionOptions
from galileo.storage.scrub import ScrubState
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

DAY_S = 86_400.0


class Node:
    """An opened directory, and the scrub that runs on it."""

    def __init__(self, directory: Path, clock: StoppedClock, **changes: float) -> None:
        self.store, self.catalog = opened(directory, wall=clock)
        fast = ScrubOptions(
            bytes_per_s_min=1e12, bytes_per_s_max=1e12, calm_s=0.0, save_s=0.0, wall=clock
        )
        self.scrub = ScrubRunner(self.catalog, self.store, dataclasses.replace(fast, **changes))

    @property
    def size(self) -> int:
        return sum(j.bytes_on_disk for j in self.catalog.shard("nam").journals.values())

    def close(self) -> None:
        self.scrub.stop()
        asyncio.run(self.catalog.close())
        self.store.close()


class Waits(threading.Event):
    """Adds up how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s += timeout or 0.0
        return self.is_set()


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock(BEGAN)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return fill(tmp_path / "node")


@pytest.fixture
def start(directory: Path, clock: StoppedClock) -> Iterator[Callable[..., Node]]:
    """Starts a node on the directory; closes it at the end."""
    started: list[Node] = []

    def start(**changes: float) -> Node:
        started.append(Node(directory, clock, **changes))
        return started[-1]

    yield start
    for node in started:
        node.close()


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("journals/nam/*/*.*"))


def observations_of(path: Path) -> int:
    """A place in the observations of the first commit, which a start does not read."""
    offset, header = next(iter(frames(path)))
    return offset + header.observations_offset + 100


def test_scrub_reads_every_file_once_a_period(
    start: Callable[..., Node], clock: StoppedClock
) -> None:
    node = start(period_s=DAY_S)
    wait_until(lambda: node.scrub.state.is_over)
    assert node.size <= node.scrub.counts.bytes <= node.size + 4096 * 20
    assert node.scrub.age_s == 0
    assert node.scrub.damages() == []
    before = node.scrub.counts.bytes
    node.close()

    clock.now += DAY_S / 2
    node = start(period_s=DAY_S)
    assert (node.scrub.state.is_over, node.scrub.age_s) == (True, DAY_S / 2)
    node.close()
    assert node.scrub.counts.bytes == 0, "a round began before it was due"

    clock.now += DAY_S / 2
    node = start(period_s=DAY_S)
    wait_until(lambda: node.scrub.state.is_over and node.scrub.age_s == 0)
    assert node.scrub.counts.bytes == before


def test_scrub_goes_on_after_a_restart_where_it_was(
    start: Callable[..., Node], directory: Path
) -> None:
    read = 0
    for _ in range(200):
        node = start(bytes_per_s_min=5e6, bytes_per_s_max=5e6)
        begun = node.scrub.state.last
        wait_until(lambda: node.scrub.state.last != begun or node.scrub.state.is_over)  # noqa: B023
        node.close()
        read += node.scrub.counts.bytes
        if node.scrub.state.is_over:
            break
    else:
        pytest.fail("the round does not end")
    size = sum(path.stat().st_size for path in files(directory))
    largest = max(path.stat().st_size for path in files(directory))
    assert read < size + len(files(directory)) * (largest + 4096)
    with Store.open(directory, JournalOptions(durability="none"), wall=lambda: BEGAN) as store:
        data = store.load_record(KIND, NAME)
        assert data is not None
        assert ScrubState.from_bytes(data) == node.scrub.state


@pytest.mark.parametrize(
    ("period_s", "rate"), [(DAY_S, 1e5), (0.01, 1e6)], ids=["much time", "too little time"]
)
def test_scrub_rate_is_bounded(start: Callable[..., Node], period_s: float, rate: float) -> None:
    node = start(calm_s=DAY_S, period_s=period_s, bytes_per_s_min=1e5, bytes_per_s_max=1e6)
    node.scrub.stop()
    waits = Waits()
    node.scrub._woken, node.scrub._is_stopping = waits, False
    node.scrub._round()
    assert node.scrub.counts.bytes >= node.size
    assert waits.waited_s == pytest.approx(node.scrub.counts.bytes / rate)


def test_scrub_reports_damage_of_the_only_copy_until_it_is_mended(
    start: Callable[..., Node],
    directory: Path,
    clock: StoppedClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = files(directory)[1]
    flip(path, observations_of(path))
    node = start(period_s=DAY_S)
    wait_until(lambda: node.scrub.state.is_over)
    (damage,) = node.scrub.damages()
    assert damage.startswith(f"nam/p{path.parent.name}: {path.name} at byte ")
    assert node.scrub.counts.damages == 1
    assert str(path) in caplog.text
    journal = node.catalog.shard("nam").journals[5]
    assert journal.append([dataclasses.replace(commits()[0], batch=99)])[0].sequence == COMMITS + 1
    node.close()

    node = start(period_s=DAY_S)
    assert node.scrub.damages() == [damage], "a restart has forgotten the damage"
    node.close()

    flip(path, observations_of(path))
    clock.now += DAY_S
    node = start(period_s=DAY_S)
    wait_until(lambda: node.scrub.state.is_over and node.scrub.age_s == 0)
    assert node.scrub.damages() == []


@pytest.mark.parametrize("period_s", [DAY_S, math.inf], ids=["days", "never"])
def test_requested_round_begins_at_once(
    start: Callable[..., Node], directory: Path, period_s: float
) -> None:
    node = start(calm_s=DAY_S, period_s=period_s, bytes_per_s_min=1.0, bytes_per_s_max=1.0)
    time.sleep(0.05)
    assert node.scrub.counts.bytes == 0
    for _ in range(2):
        path = files(directory)[-1]
        flip(path, observations_of(path))
        node.scrub.request()
        assert not node.scrub.progress().is_over
        wait_until(lambda: node.scrub.progress().is_over)
        progress = node.scrub.progress()
        assert progress.bytes_done == progress.bytes_total == node.size
    assert progress.damages == ()
    assert node.scrub.counts.damages == 1
    assert 2 * node.size <= node.scrub.counts.bytes <= 2 * node.size + 4096 * 60


def test_request_replaces_slow_round_and_joins_requested_one(
    start: Callable[..., Node], directory: Path
) -> None:
    path = files(directory)[1]
    flip(path, observations_of(path))
    node = start(bytes_per_s_min=1.0, bytes_per_s_max=1.0)
    wait_until(lambda: node.scrub.counts.bytes > 0)
    assert not node.scrub.progress().is_over
    read = node.scrub.counts.bytes
    for _ in range(3):
        node.scrub.request()
    wait_until(lambda: node.scrub.progress().is_over)
    (damage,) = node.scrub.progress().damages
    assert str(path) in damage
    assert node.size <= node.scrub.counts.bytes - read <= 2 * node.size


def test_request_to_failed_scrub_is_refused(
    start: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start(calm_s=DAY_S)
    monkeypatch.setattr(node.scrub, "_round", lambda: 1 / 0)
    node.scrub.request()
    wait_until(lambda: not node.scrub._thread.is_alive())
    with pytest.raises(InternalError, match="restart the node"):
        node.scrub.request()


@pytest.mark.parametrize("what", ["merged", "dropped", "dataset dropped"])
def test_scrub_passes_over_files_that_vanish(
    start: Callable[..., Node], what: str, monkeypatch: pytest.MonkeyPatch, clock: StoppedClock
) -> None:
    """The files vanish after the round has listed them, when it has read the first."""
    node = start(calm_s=DAY_S)
    node.scrub.stop()
    journal = node.catalog.shard("nam").journals[0]
    reads = 0

    def vanish(size: int) -> None:
        nonlocal reads
        reads += 1
        if reads > 1:
            return
        if what == "merged":
            assert journal.merge(CompactionOptions(bytes_min=1), lambda _: True)
        elif what == "dropped":
            assert journal.drop(COMMITS - 1).files > 1
        else:
            node.store.drop_dataset("nam", 1)
            journal.end()
            node.store.delete_dropped()

    node.scrub._is_stopping = False
    monkeypatch.setattr(node.scrub, "_pace", vanish)
    node.scrub._round()
    assert reads > 1 or what == "dataset dropped"
    assert node.scrub.damages() == []
    assert node.scrub.counts.damages == 0
    assert node.scrub.state.is_over


def test_scrub_passes_over_a_damaged_file_that_was_replaced(
    start: Callable[..., Node], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the log had begun anew while it was read."""
    path = files(directory)[0]
    flip(path, observations_of(path))
    node = start(calm_s=DAY_S)
    node.scrub.stop()
    node.scrub._is_stopping = False
    shard = node.catalog.shard("nam")
    journals = dict(shard.journals)
    reads = 0

    def replace(_: int) -> None:
        nonlocal reads
        reads += 1
        if reads == 2:
            shard.journals = {p: journal for p, journal in journals.items() if p != 0}

    monkeypatch.setattr(node.scrub, "_pace", replace)
    node.scrub._round()
    assert reads > 2
    assert node.scrub.damages() == []
