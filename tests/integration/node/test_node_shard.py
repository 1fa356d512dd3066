"""The one write path: what a scan sees is what is published."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lone_nodes import commit_alone
from node_cluster import SCHEMA, make_observations

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.errors import GalileoError, PartitionReadOnly
from galileo.graph.feature_graph import FeatureGraph
from galileo.graph.synopsis import Synopsis
from galileo.model import paths
from galileo.model.schema import Schema
from galileo.model.times import column_micros
from galileo.model.windows import ClockStep
from galileo.node.dataset_shard import DatasetShard
from galileo.node.shard import PublishedCommits
from galileo.query import parse
from galileo.storage.journal import Commit, Committed, PartitionJournal
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions

PARTITION = 3


@contextmanager
def opened(
    directory: Path,
    schema: Schema,
    *partitions: int,
    cls: type[DatasetShard] = DatasetShard,
    journals: JournalOptions | None = None,
    **named: Any,
) -> Iterator[DatasetShard]:
    """A shard in a new store, with these partitions, which are empty."""
    options = journals or JournalOptions(durability="none")
    with Store.open(directory, options, wall=lambda: 0.0) as store:
        store.create_dataset(schema)
        store.recover(lambda *_: None)
        shard = cls(schema, **named)
        for partition in partitions:
            shard.attach(partition, store.journal(schema.name, partition))
        yield shard


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[DatasetShard]:
    """A shard with an empty partition."""
    with opened(tmp_path, SCHEMA, PARTITION) as shard:
        yield shard


def commits_of(shard: DatasetShard, count: int, *, rows: int = 3) -> list[Commit]:
    batches = ((n, make_observations(rows, seed=n)) for n in range(count))
    return [Commit("p", n, *paths.index(shard.schema, table)) for n, table in batches]


def write(shard: DatasetShard, commits: list[Commit]) -> list[Committed | GalileoError]:
    return commit_alone(shard, {PARTITION: commits})[PARTITION]


async def test_scan_during_writes_sees_all_published_commits(stored: DatasetShard) -> None:
    """The reason why a continuous query cannot miss, with a writer in another thread."""
    commits = commits_of(stored, 60)
    query = parse("", stored.schema)

    def seen(until: Cursor) -> set[int]:
        table = stored.graph.scan(query, after=EMPTY_CURSOR, until=until)
        return set(table.column("sequence").to_pylist())

    done, looked = threading.Event(), threading.Semaphore(0)

    def write_one(number: int, commit: Commit) -> list[Committed | GalileoError]:
        if number % 20 == 10:  # not all may be written before the first look
            looked.acquire(timeout=60)
        return write(stored, [commit])

    def write_all() -> list[list[Committed | GalileoError]]:
        try:
            return [write_one(number, commit) for number, commit in enumerate(commits)]
        finally:
            done.set()

    with ThreadPoolExecutor(1) as executor:
        writing = asyncio.get_running_loop().run_in_executor(executor, write_all)
        looks = 0
        while not done.is_set():
            published = stored.published()
            assert seen(published) == set(range(1, published[PARTITION] + 1))
            looks += 1
            looked.release()
            await asyncio.sleep(0)
        await writing
    assert looks > 1
    assert seen(stored.published()) == set(range(1, 61))


def _no_memory(*_: Any, **__: Any) -> None:
    raise MemoryError


@pytest.mark.parametrize("has_joined", [True, False])
def test_replica_is_readable_where_it_has_all_that_is_asked(
    tmp_path: Path, has_joined: bool
) -> None:
    options = JournalOptions(durability="none", segment_bytes_max=1)
    with opened(
        tmp_path,
        SCHEMA,
        PARTITION,
        journals=options,
        owned=lambda: (),
        may_follow=lambda _: has_joined,
    ) as shard:
        for commit in commits_of(shard, 6):
            write(shard, [commit])
        shard.drop(PARTITION, 4)
        assert shard.journals[PARTITION].dropped == 4

        def is_readable(after: int, until: int) -> bool:
            bounds = Cursor({PARTITION: after}), Cursor({PARTITION: until})
            return shard.readable([PARTITION], after=bounds[0], until=bounds[1]) == {PARTITION}

        readable = {(a, u) for a in range(8) for u in range(8) if is_readable(a, u)}
        expected = {(a, u) for a in range(4, 8) for u in range(1, 7)}
        assert readable == (expected if has_joined else set())
        assert not shard.readable([PARTITION], after=Cursor({PARTITION: 4}), until=None)


def test_shard_publishes_nothing_after_a_commit_that_failed_to_index(
    stored: DatasetShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later sequence would make readers skip the missing commit."""
    commits = commits_of(stored, 4)
    write(stored, commits[:1])
    with monkeypatch.context() as patched:
        patched.setattr(stored.graph, "insert_many", _no_memory)
        with pytest.raises(MemoryError):
            write(stored, commits[1:3])
    (again, refused) = write(stored, [commits[2], commits[3]])
    assert isinstance(again, Committed), "it is on the disk"
    assert isinstance(refused, PartitionReadOnly)
    assert "could not be indexed: MemoryError" in refused.message
    assert "Check the disk" not in refused.message, "the disk did its part"
    assert stored.published() == Cursor({PARTITION: 1})
    assert set(stored.graph.scan(parse("", stored.schema)).column("sequence").to_pylist()) == {1}
    anew = DatasetShard(stored.schema)
    journal = PartitionJournal.open(
        stored.journals[PARTITION].files()[0][0].parent,
        schema=stored.schema,
        partition=PARTITION,
        options=JournalOptions(durability="none"),
        replay=lambda replayed: anew.replay(PARTITION, replayed),
        wall=lambda: 0.0,
    )
    anew.attach(PARTITION, journal)
    assert anew.published() == Cursor({PARTITION: 3})
    journal.close()


def test_synopsis_after_a_failed_add_counts_all_commits(
    stored: DatasetShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = commits_of(stored, 2, rows=40)
    write(stored, commits[:1])
    with monkeypatch.context() as patched:
        patched.setattr(Synopsis, "add", _no_memory)
        with pytest.raises(MemoryError):
            stored.synopses()
    write(stored, commits[1:])
    graph = FeatureGraph(stored.schema)
    graph.apply(stored.synopses()[PARTITION].changes_since(None))
    estimate = graph.estimate(parse("", stored.schema))
    assert estimate.low == sum(commit.paths.num_rows for commit in commits)


def test_synopses_leave_out_a_detached_partition(tmp_path: Path) -> None:
    def owned() -> range:
        shard.journals = {}  # As `detach` does, in another thread.
        return range(10)

    with opened(tmp_path, SCHEMA, PARTITION, owned=owned) as shard:
        assert shard.synopses() == {}


def test_shard_journals_iteration_survives_attach(tmp_path: Path) -> None:
    """Partitions are opened in threads, while others count over those that are there."""
    with Store.open(tmp_path, JournalOptions(), wall=lambda: 0.0) as store:
        store.create_dataset(SCHEMA)
        store.recover(lambda *_: None)
        shard = DatasetShard(SCHEMA)
        shard.attach(0, store.journal(SCHEMA.name, 0))
        for partition in shard.journals:
            shard.attach(partition + 1, store.journal(SCHEMA.name, partition + 1))
        assert sorted(shard.journals) == [0, 1]


def test_event_clock_is_the_newest_bucket_after_restart_too(tmp_path: Path) -> None:
    with opened(tmp_path, SCHEMA, PARTITION) as shard:
        commits = commits_of(shard, 12)
        buckets = [int(column_micros(commit.paths.column("bucket")).max()) for commit in commits]
        newest = [max(buckets[: number + 1]) for number in range(12)]
        assert shard.event_clock() == ()
        for number, commit in enumerate(commits):
            write(shard, [commit])
            (step,) = shard.event_clock()
            assert step.bucket_us == newest[number]
            assert step.sequence == newest.index(step.bucket_us) + 1
    again = DatasetShard(SCHEMA)
    with Store.open(tmp_path, JournalOptions(), wall=lambda: 0.0) as store:
        store.recover(lambda _, partition, replayed: again.replay(partition, replayed))
    (step,) = again.event_clock()
    assert (step.partition, step.bucket_us) == (PARTITION, newest[-1])
    assert newest.index(newest[-1]) < step.sequence <= 12


def test_event_clock_advances_before_a_commit_is_published(tmp_path: Path) -> None:
    """Else a reader could hold a commit that the clock of its windows knows nothing of."""
    ahead: list[bool] = []

    class Watched(DatasetShard):
        def _wind(self, step: ClockStep) -> None:
            ahead.append(self.published()[step.partition] >= step.sequence)
            super()._wind(step)

    with opened(tmp_path, SCHEMA, PARTITION, cls=Watched) as shard:
        assert write(shard, commits_of(shard, 1))
    assert ahead[-1:] == [False]


def test_event_clock_group_to_several_partitions_has_the_newest_bucket_of_each(
    tmp_path: Path,
) -> None:
    """One write has all of them, with commits and paths of different numbers."""
    partitions = (3, 5, 9)
    with opened(tmp_path, SCHEMA, *partitions) as shard:
        made = commits_of(shard, 6)
        groups = dict(zip(partitions, (made[:1], made[1:3], made[3:]), strict=True))
        assert not any(
            isinstance(r, GalileoError) for g in commit_alone(shard, groups).values() for r in g
        )
        expected = {
            ClockStep(p, len(group), max(newest_bucket(commit) for commit in group))
            for p, group in groups.items()
        }
        assert len({step.bucket_us for step in expected}) > 1, "the partitions differ"
        assert set(shard.event_clock()) == expected


def newest_bucket(commit: Commit) -> int:
    return max(column_micros(commit.paths.column("bucket")).tolist())


def test_own_published_is_one_object_until_it_changes(tmp_path: Path) -> None:
    owned = [frozenset({PARTITION, 5})]
    with Store.open(tmp_path, JournalOptions(), wall=lambda: 0.0) as store:
        store.create_dataset(SCHEMA)
        store.recover(lambda *_: None)
        shard = DatasetShard(SCHEMA, owned=lambda: owned[0])
        seen = [shard.own_published()]

        def is_new() -> bool:
            seen.append(shard.own_published())
            return seen[-1] is not seen[-2]

        def write(partition: int, batch: int) -> None:
            commit = Commit("p", batch, *paths.index(SCHEMA, make_observations(3)))
            commit_alone(shard, {partition: [commit]})

        for partition in (PARTITION, 5):
            shard.attach(partition, store.journal(SCHEMA.name, partition))
        assert (is_new(), is_new()) == (True, False)
        write(PARTITION, 0)
        assert (is_new(), is_new()) == (True, False)
        assert seen[-1].sequences == Cursor({PARTITION: 1})
        write(5, 1)
        assert is_new()
        assert seen[-1].sequences == Cursor({PARTITION: 1, 5: 1})
        assert [step.partition for step in seen[-1].clock] == [PARTITION, 5]
        shard.drop(5, 0)
        assert not is_new()
        shard._narrow(5)
        assert is_new(), "a synopsis was made anew"
        owned[0] = frozenset({5})
        assert (is_new(), is_new()) == (True, False)
        assert seen[-1].sequences == Cursor({5: 1})
        assert [step.partition for step in seen[-1].clock] == [5]
        shard.detach(5)
        assert is_new()
        assert seen[-1] == PublishedCommits(EMPTY_CURSOR, ())


def test_own_published_includes_the_last_commit_of_many_threads(tmp_path: Path) -> None:
    """Whatever the order in which they end, and however often readers look meanwhile."""
    partitions, batches = range(4), 25
    with Store.open(tmp_path, JournalOptions(durability="none"), wall=lambda: 0.0) as store:
        store.create_dataset(SCHEMA)
        store.recover(lambda *_: None)
        shard = DatasetShard(SCHEMA)
        for partition in partitions:
            shard.attach(partition, store.journal(SCHEMA.name, partition))

        def write(partition: int) -> None:
            for batch in range(batches):
                commit = Commit(f"p{partition}", batch, *paths.index(SCHEMA, make_observations(1)))
                commit_alone(shard, {partition: [commit]})
                assert shard.own_published().sequences[partition] == batch + 1

        with ThreadPoolExecutor(len(partitions)) as pool:
            for done in [pool.submit(write, partition) for partition in partitions]:
                done.result()
        assert shard.own_published().sequences == Cursor(dict.fromkeys(partitions, batches))
