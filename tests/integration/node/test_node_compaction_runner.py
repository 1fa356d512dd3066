from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lone_nodes import commit_alone
from waiting import wait_until
from weather_node import COMMITS, SCHEMA, WEATHER, commits, fill, opened

from galileo.cursor import Cursor
from galileo.node import dataset_shard
from galileo.node.catalog import Catalog
from galileo.node.compaction_runner import CompactionRunner, CompactionRunnerOptions
from galileo.node.dataset_shard import DatasetShard
from galileo.query import parse
from galileo.storage.compaction import CompactionOptions
from galileo.storage.disk import RealDisk
from galileo.storage.recovery import Replayed

EAGER = CompactionRunnerOptions(
    CompactionOptions(bytes_min=1), bytes_per_s=1 << 30, interval_s=0.01
)


class BrokenDisk(RealDisk):
    """Refuses to rename, and tells when it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def rename(self, path: Path, name: Path) -> None:
        self.asked += 1
        raise OSError(errno.EIO, "EIO")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return fill(tmp_path / "node")


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
    directory: Path, running: Callable[..., CompactionRunner]
) -> None:
    store, catalog = opened(directory)
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

    store, catalog = opened(directory)
    check_answers(catalog, before)
    assert catalog.shard("nam").published() == Cursor({0: COMMITS, 5: COMMITS})
    asyncio.run(catalog.close())
    store.close()


def test_compaction_stop_ends_a_running_merge(directory: Path) -> None:
    store, catalog = opened(directory)
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
    directory: Path, running: Callable[..., CompactionRunner]
) -> None:
    store, catalog = opened(directory)
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


def test_replay_restores_graph_and_synopses(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graph and synopsis, whether the synopsis takes commits in one by one or many at once."""
    written = DatasetShard(SCHEMA)
    for partition in (0, 5):
        for sequence, commit in enumerate(commits(), start=1):
            counts = np.array([commit.paths.num_rows])
            written.replay(partition, Replayed(np.array([sequence]), counts, commit.paths))
            written.synopses()
    for paths_max in (1, 400, 10**9):
        monkeypatch.setattr(dataset_shard, "UNSUMMARISED_PATHS_MAX", paths_max)
        store, catalog = opened(directory)
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
