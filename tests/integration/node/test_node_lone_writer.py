"""Commits of one dataset at a node that is alone: group commit."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from lone_nodes import LoneOwner
from node_cluster import SCHEMA, make_observations

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import BatchConflict, Overloaded, PartitionMoved, PartitionReadOnly, Unavailable
from galileo.graph.metadata_graph import MetadataGraph
from galileo.model import paths
from galileo.node.dataset_shard import DatasetShard
from galileo.node.replication.log_writer import LogWriter
from galileo.node.shard import Results, Shard
from galileo.query import parse
from galileo.storage.disk import RealDisk
from galileo.storage.journal import Commit, Committed
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

PARTITION = 3
TIMEOUT_S = 300.0


class GatedDisk(RealDisk):
    """Counts syncs; they wait while the gate is shut, and fail on request."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        self.forget()

    def forget(self) -> None:
        self.syncs = 0
        self.entered = threading.Semaphore(0)

    def fdatasync(self, descriptor: int) -> None:
        self.syncs += 1
        self.entered.release()
        assert self.gate.wait(TIMEOUT_S), "the gate was not opened"
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(descriptor)


def outcome(results: Results) -> Committed:
    """The result of the one part of a batch."""
    (result,) = results.values()
    if isinstance(result, Exception):
        raise result
    return result


@dataclass
class Bench:
    """One partition whose disk can be held up."""

    disk: GatedDisk
    shard: DatasetShard
    writer: LogWriter
    store: Store

    def start(
        self, batch: int, *, rows: int = 5, seed: int | None = None
    ) -> asyncio.Task[Committed]:
        commit = self.indexed(batch, rows=rows, seed=seed)
        return asyncio.create_task(self.commit(commit))

    async def commit(self, commit: Commit) -> Committed:
        return outcome(await asyncio.wrap_future(self.submit(commit)))

    def submit(self, commit: Commit) -> Future[Results]:
        return self.writer.submit({PARTITION: commit})

    def indexed(self, batch: int, *, rows: int = 5, seed: int | None = None) -> Commit:
        table = make_observations(rows, seed=batch if seed is None else seed)
        return Commit("p", batch, *paths.index(self.shard.schema, table))

    async def hold(self) -> asyncio.Task[Committed]:
        """A first commit that is at the disk and stays there until `gate.set()`."""
        self.disk.gate.clear()
        first = self.start(0)
        assert await asyncio.to_thread(self.disk.entered.acquire, timeout=TIMEOUT_S)
        return first

    async def until_waiting(self, count: int) -> None:
        """Returns when so many wait behind the first one."""
        async with asyncio.timeout(TIMEOUT_S):
            while self.writer.waiting.get(PARTITION, 0) < count + 1:  # noqa: ASYNC110
                await asyncio.sleep(0)

    def seen(self) -> list[int]:
        """Sequences that a scan finds."""
        query = parse("", self.shard.schema)
        table = self.shard.graph.scan(query, after=EMPTY_CURSOR, until=self.shard.published())
        return sorted(set(table.column("sequence").to_pylist()))


def writer_of(shard: Shard, executor: Executor, syncing: Executor) -> LogWriter:
    """A writer that is alone, of logs that are open."""

    def refuse(*_: object) -> None:
        raise AssertionError("all logs are open")

    return LogWriter(
        shard,
        machines=LoneOwner(),
        open_journal=refuse,
        restart_journal=refuse,
        executor=executor,
        syncing=syncing,
        waiting_max=21,
    )


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    disk = GatedDisk()
    with Store.open(tmp_path, JournalOptions(disk=disk), wall=lambda: 0.0) as store:
        store.create_dataset(SCHEMA)
        store.recover(lambda *_: None)
        shard = DatasetShard(SCHEMA)
        shard.attach(PARTITION, store.journal(SCHEMA.name, PARTITION))
        with ThreadPoolExecutor(4) as executor, ThreadPoolExecutor(4) as syncing:
            disk.forget()
            writer = writer_of(shard, executor, syncing)
            yield Bench(disk, shard, writer, store)
            disk.gate.set()
            await writer.drained()


async def test_writer_of_waiting_commits_syncs_once(bench: Bench) -> None:
    first = await bench.hold()
    others = [bench.start(batch) for batch in range(1, 11)]
    await bench.until_waiting(10)
    assert bench.disk.syncs == 1
    bench.disk.gate.set()
    results = await asyncio.gather(first, *others)
    assert bench.disk.syncs == 2
    assert sorted(result.sequence for result in results) == list(range(1, 12))
    assert bench.shard.published() == Cursor({PARTITION: 11})
    assert bench.seen() == list(range(1, 12))


async def test_writer_of_successive_commits_syncs_each(bench: Bench) -> None:
    for batch in range(3):
        assert (await bench.start(batch)).sequence == batch + 1
    assert bench.disk.syncs == 3


async def test_commit_is_invisible_before_its_sync(bench: Bench) -> None:
    first = await bench.hold()
    assert not first.done()
    assert bench.shard.published() == EMPTY_CURSOR
    assert bench.seen() == []
    bench.disk.gate.set()
    assert await first == Committed(1, 5, 5, duplicate=False)
    assert bench.seen() == [1]


async def test_commit_to_a_full_queue_is_overloaded(bench: Bench) -> None:
    first = await bench.hold()
    others = [bench.start(batch) for batch in range(1, 21)]
    await bench.until_waiting(20)
    with raises(Overloaded, partition=PARTITION, bound=21, after_s=0.2):
        await bench.start(99)
    bench.disk.gate.set()
    await asyncio.gather(first, *others)
    assert bench.shard.published() == Cursor({PARTITION: 21})
    assert (await bench.start(99)).sequence == 22


async def test_commit_queue_is_bounded_for_concurrent_commits(bench: Bench) -> None:
    first = await bench.hold()
    others = [bench.start(batch) for batch in range(1, 51)]
    await bench.until_waiting(20)
    bench.disk.gate.set()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    refused = [result for result in results if isinstance(result, Overloaded)]
    assert len(refused) == 30
    assert bench.shard.published() == Cursor({PARTITION: 21})


async def test_sync_error_fails_all_waiting_commits(bench: Bench) -> None:
    first = await bench.hold()
    others = [bench.start(batch) for batch in range(1, 6)]
    await bench.until_waiting(5)
    bench.disk.fails = True
    bench.disk.gate.set()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(result) for result in results] == [PartitionReadOnly] * 6
    assert bench.shard.published() == EMPTY_CURSOR
    assert bench.seen() == []
    with raises(PartitionReadOnly):
        await bench.start(9)


def _no_memory(*_: Any, **__: Any) -> None:
    raise MemoryError


async def test_unexpected_error_fails_all_waiting_commits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await bench.hold()
    others = [bench.start(batch) for batch in (1, 2)]
    await bench.until_waiting(2)
    with monkeypatch.context() as patched:
        patched.setattr(bench.shard, "commit", _no_memory)
        bench.disk.gate.set()
        results = await asyncio.gather(*others, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable, Unavailable]
    assert (await first).sequence == 1
    assert (await bench.start(3)).sequence == 2


async def test_unexpected_error_settles_each_part_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that was refused before the error keeps its result, and counts as waiting no more."""
    commit = bench.indexed(1)
    monkeypatch.setattr(bench.shard, "commit", _no_memory)
    results = await asyncio.wrap_future(bench.writer.submit({PARTITION: commit, 4: commit}))
    await bench.writer.drained()
    assert bench.writer.waiting == {PARTITION: 0, 4: 0}
    assert {p: type(result) for p, result in results.items()} == {
        PARTITION: Unavailable,
        4: PartitionMoved,
    }


async def test_commit_to_a_partition_that_left_fails_alone(bench: Bench) -> None:
    commit = bench.indexed(1)
    results = await asyncio.wrap_future(bench.writer.submit({PARTITION: commit, 4: commit}))
    assert results[PARTITION] == Committed(1, 5, 5, duplicate=False)
    assert isinstance(results[4], PartitionMoved)


async def test_commits_of_several_partitions_are_visible_together(bench: Bench) -> None:
    commits = {partition: bench.indexed(partition) for partition in (PARTITION, 1, 2)}
    for partition in (1, 2):
        bench.shard.attach(partition, bench.store.journal(bench.shard.schema.name, partition))
    results = await asyncio.wrap_future(bench.writer.submit(commits))
    assert set(results.values()) == {Committed(1, 5, 5, duplicate=False)}
    assert bench.shard.published() == Cursor({PARTITION: 1, 1: 1, 2: 1})
    assert bench.shard.graph.count() == 15


async def test_sync_error_of_one_partition_leaves_others_intact(bench: Bench) -> None:
    bench.shard.attach(1, bench.store.journal(bench.shard.schema.name, 1))
    bench.shard.journals[1].stop("it was lost")
    commits = {partition: bench.indexed(1) for partition in (PARTITION, 1)}
    results = await asyncio.wrap_future(bench.writer.submit(commits))
    assert results[PARTITION] == Committed(1, 5, 5, duplicate=False)
    assert isinstance(results[1], PartitionReadOnly)
    assert bench.shard.published() == Cursor({PARTITION: 1})


async def test_conflicting_commit_fails_alone(bench: Bench) -> None:
    await bench.start(0, rows=7)
    wrong, right = bench.start(0, rows=8), bench.start(1)
    results = await asyncio.gather(wrong, right, return_exceptions=True)
    assert isinstance(results[0], BatchConflict)
    assert results[1] == Committed(2, 5, 5, duplicate=False)


async def test_commit_repeated_while_waiting_is_a_duplicate(bench: Bench) -> None:
    first = await bench.hold()
    twice = [bench.start(1), bench.start(1)]
    await bench.until_waiting(2)
    bench.disk.gate.set()
    results = await asyncio.gather(first, *twice)
    assert [result.sequence for result in results] == [1, 2, 2]
    assert sorted(result.duplicate for result in results[1:]) == [False, True]
    assert bench.seen() == [1, 2]
    assert bench.shard.journals[PARTITION].rows_total == 10


async def test_commits_of_one_batch_number_in_a_group_conflict(bench: Bench) -> None:
    first = await bench.hold()
    twice = [bench.start(1), bench.start(1, seed=77)]
    await bench.until_waiting(2)
    bench.disk.gate.set()
    results = await asyncio.gather(first, *twice, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results[1:]) == ["BatchConflict", "Committed"]
    assert bench.seen() == [1, 2]


async def test_cancelled_commit_leaves_other_commits_intact(bench: Bench) -> None:
    first = await bench.hold()
    gone, *others = [bench.start(batch) for batch in range(1, 4)]
    await bench.until_waiting(3)
    gone.cancel()
    bench.disk.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await gone
    sequences = [result.sequence for result in await asyncio.gather(first, *others)]
    assert len(set(sequences)) == 3
    again = await bench.start(1)
    assert again.duplicate, "it had been taken, and is recognised"
    assert bench.shard.published() == Cursor({PARTITION: 4})


async def test_drained_waits_for_running_writes(bench: Bench) -> None:
    first = await bench.hold()
    drained = asyncio.ensure_future(bench.writer.drained())
    done, _ = await asyncio.wait([drained], timeout=0.05)
    assert not done
    bench.disk.gate.set()
    await drained
    assert first.done()


# --- from other threads --------------------------------------------------------------------------


async def test_submit_from_many_threads_commits_all(bench: Bench) -> None:
    commits = [bench.indexed(batch) for batch in range(18)]
    with ThreadPoolExecutor(6) as threads:
        futures = list(threads.map(bench.submit, commits))
        results = [outcome(future.result(TIMEOUT_S)) for future in futures]
    assert sorted(result.sequence for result in results) == list(range(1, 19))
    assert bench.shard.published() == Cursor({PARTITION: 18})
    await bench.writer.drained()
    assert bench.seen() == list(range(1, 19))


async def test_submit_to_a_full_queue_is_overloaded(bench: Bench) -> None:
    first = await bench.hold()
    futures = [bench.submit(bench.indexed(batch)) for batch in range(1, 21)]
    with pytest.raises(Overloaded):
        outcome(bench.submit(bench.indexed(99)).result(0))
    bench.disk.gate.set()
    assert [outcome(future.result(TIMEOUT_S)).sequence for future in futures] == list(range(2, 22))
    assert (await first).sequence == 1


async def test_submit_after_idle_writes_again(bench: Bench) -> None:
    for batch in range(3):
        done = bench.submit(bench.indexed(batch))
        assert outcome(done.result(TIMEOUT_S)).sequence == batch + 1
        await bench.writer.drained()
    assert bench.disk.syncs == 3


async def test_writer_merges_sorted_runs_after_new_ones(tmp_path: Path) -> None:
    class Watched(DatasetShard):
        maintained = 0

        def maintain(self) -> None:
            self.maintained += 1
            super().maintain()

    with Store.open(tmp_path, JournalOptions(durability="none"), wall=lambda: 0.0) as store:
        store.create_dataset(SCHEMA)
        store.recover(lambda *_: None)
        shard = Watched(SCHEMA)
        shard.index = MetadataGraph(SCHEMA, memtable_paths_max=50)
        shard.attach(PARTITION, store.journal(SCHEMA.name, PARTITION))
        with ThreadPoolExecutor(2) as executor:
            writer = writer_of(shard, executor, executor)
            for batch in range(40):
                rows = make_observations(60 if batch else 10, seed=batch)
                commit = Commit("p", batch, *paths.index(SCHEMA, rows))
                await asyncio.wrap_future(writer.submit({PARTITION: commit}))
                if batch == 0:
                    await writer.drained()
                    assert shard.maintained == 0, "the head is no run yet"
            await writer.drained()
        assert shard.maintained > 1
        assert shard.graph.runs < 39
        assert shard.graph.count() == 10 + 39 * 60


async def test_barrier_is_passed_when_what_was_submitted_before_is_durable(bench: Bench) -> None:
    first = await bench.hold()
    others = [bench.start(batch) for batch in range(1, 4)]
    await bench.until_waiting(3)
    ends = asyncio.Queue[int]()
    bench.writer.pass_barrier(PARTITION, ends.put_nowait)
    bench.writer.pass_barrier(7, ends.put_nowait)  # It has no log.
    await asyncio.sleep(0.05)
    assert ends.empty()
    bench.disk.gate.set()
    await asyncio.gather(first, *others)
    async with asyncio.timeout(TIMEOUT_S):
        assert {await ends.get(), await ends.get()} == {0, 4}
