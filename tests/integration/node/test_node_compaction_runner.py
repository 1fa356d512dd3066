from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lone_nodes import LoneOwner, commit_alone

from galileo.cursor import Cursor
from galileo.generate import NamLike
from galileo.model import paths
from galileo.node.catalog import Catalog, CatalogOptions
from galileo.node.compaction_runner import CompactionRunner, CompactionRunnerOptions
from galileo.node.dataset_shard import DatasetShard
from galileo.query import parse
from galileo.storage.compaction import CompactionOptions
from galileo.storage.disk import RealDisk
from galileo.storage.journal import Commit
from galileo.storage.recovery import Replayed
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

WEATHER = NamLike(stride=40)
SCHEMA = WEATHER.schema()
COMMITS = 12
PATIENCE_S = 300.0
EAGER = CompactionRunnerOptions(
    CompactionOptions(bytes_min=1), bytes_per_s=1 << 30, interval_s=0.01
)


def commits() -> list[Commit]:
    tables = WEATHER.stream("2012-03-01", hours=COMMITS)
    return [Commit("model", n, *paths.index(SCHEMA, table)) for n, table in enumerate(tables)]


class BrokenDisk(RealDisk):
    """Refuses to rename, and tells when it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def rename(self, path: Path, name: Path) -> None:
        self.asked += 1
        raise OSError(errno.EIO, "EIO")


LIMITS = CatalogOptions()


def opened(
    directory: Path, options: JournalOptions, limits: CatalogOptions = LIMITS
) -> tuple[Store, Catalog]:
    store = Store.open(directory, options, wall=lambda: 1.5e9)
    executor = ThreadPoolExecutor(1)
    return store, Catalog(
        store, executor=executor, syncing=executor, machines=LoneOwner(), options=limits
    )


@pytest.fixture
def options() -> JournalOptions:
    return JournalOptions(durability="none", segment_bytes_max=50_000)


@pytest.fixture
def directory(tmp_path: Path, options: JournalOptions) -> Path:
    """Two partitions with the same commits, each in several segments."""
    with Store.open(tmp_path / "node", options, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        store.create_dataset(SCHEMA)
        for partition in (0, 5):
            for commit in commits():
                store.journal("nam", partition).append([commit])
            assert store.journal("nam", partition).segments > 2
    return tmp_path / "node"


@pytest.fixture
def running() -> Iterator[Callable[[Catalog, CompactionRunnerOptions], CompactionRunner]]:
    """Starts merging; stops it at the end."""
    started: list[CompactionRunner] = []

    def start(catalog: Catalog, options: CompactionRunnerOptions) -> CompactionRunner:
        started.append(CompactionRunner(catalog, options))
        return started[-1]

    yield start
    for merging in started:
        merging.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def labels(catalog: Catalog, text: str) -> pa.Table:
    table = catalog.shard("nam").graph.scan(parse(text, SCHEMA))
    order = ["partition", "sequence", "row"]
    return table.sort_by([(name, "ascending") for name in order])


def check_answers(catalog: Catalog, before: pa.Table) -> None:
    """Labels from before a merge are found again, and lead to the same observations."""
    assert labels(catalog, "temperature > 280").equals(before)
    journals = catalog.shard("nam").journals
    by_sequence = {n: commit.observations for n, commit in enumerate(commits(), start=1)}
    for label in before.slice(0, 40).to_pylist():
        ranges = (np.array([label["row"]]), np.array([label["rows"]]))
        read = journals[label["partition"]].read(label["sequence"], ranges=ranges)
        wanted = by_sequence[label["sequence"]].slice(label["row"], label["rows"])
        assert read.equals(wanted)


def test_compaction_merges_every_partition_and_keeps_labels_readable(
    directory: Path, options: JournalOptions, running: Callable[..., CompactionRunner]
) -> None:
    store, catalog = opened(directory, options)
    before = labels(catalog, "temperature > 280")
    assert before.num_rows > 100
    merging = running(catalog, EAGER)
    journals = catalog.shard("nam").journals
    wait_until(lambda: all(journal.segments == 2 for journal in journals.values()))
    merging.stop()
    check_answers(catalog, before)
    asyncio.run(catalog.close())
    store.close()
    assert len(list(directory.glob("journals/nam/*/*.merged"))) == 2

    store, catalog = opened(directory, options)
    check_answers(catalog, before)
    assert catalog.shard("nam").published() == Cursor({0: COMMITS, 5: COMMITS})
    asyncio.run(catalog.close())
    store.close()


def test_compaction_stop_ends_a_running_merge(directory: Path, options: JournalOptions) -> None:
    store, catalog = opened(directory, options)
    slow = CompactionRunnerOptions(
        CompactionOptions(bytes_min=1, block_bytes=1), bytes_per_s=1, interval_s=0.01
    )
    merging = CompactionRunner(catalog, slow)
    wait_until(lambda: bool(list(directory.glob("journals/nam/*/*.merging"))))
    merging.stop()
    assert not list(directory.glob("journals/nam/*/*.merg*"))
    assert not any(thread.name == "merging" for thread in threading.enumerate())
    asyncio.run(catalog.close())
    store.close()


def test_compaction_skips_a_failed_partition_and_continues(
    directory: Path, options: JournalOptions, running: Callable[..., CompactionRunner]
) -> None:
    store, catalog = opened(directory, options)
    journals = catalog.shard("nam").journals
    disk = journals[0]._disk = BrokenDisk()
    running(catalog, EAGER)
    wait_until(lambda: journals[5].segments == 2 and disk.asked > 0)
    time.sleep(20 * EAGER.interval_s)
    assert disk.asked == 1
    assert journals[0].segments > 2
    for partition in (0, 5):
        assert journals[partition].read(1).num_rows == WEATHER.rows
    asyncio.run(catalog.close())
    store.close()


def test_replay_restores_graph_and_synopses(directory: Path, options: JournalOptions) -> None:
    """Graph and synopsis, whether the synopsis takes commits in one by one or many at once."""
    written = DatasetShard(SCHEMA)
    for partition in (0, 5):
        for sequence, commit in enumerate(commits(), start=1):
            counts = np.array([commit.paths.num_rows])
            written.replay(partition, Replayed(np.array([sequence]), counts, commit.paths))
            written.synopses()
    for paths_max in (1, 400, 10**9):
        limits = CatalogOptions(unsummarised_paths_max=paths_max)
        store, catalog = opened(directory, options, limits)
        replayed = catalog.shard("nam")
        assert replayed.graph.count() == written.graph.count()
        for partition in (0, 5):
            ours = replayed.synopses()[partition].changes_since(None).state
            theirs = written.synopses()[partition].changes_since(None).state
            assert ours.version.sequence == theirs.version.sequence == COMMITS
            assert ours.step == theirs.step
            assert ours.entries.key.tolist() == theirs.entries.key.tolist()
            for mine, other in zip(ours.entries.bounds, theirs.entries.bounds, strict=True):
                np.testing.assert_array_equal(mine, other)
            replayed.synopses()[partition].check()
            result = commit_alone(replayed, {partition: commits()[:1]})[partition][0]
            assert result.duplicate
        asyncio.run(catalog.close())
        store.close()
