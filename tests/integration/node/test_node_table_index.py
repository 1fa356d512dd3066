"""The index of a table, and what its cleaner keeps, compared with a list of all versions."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from parameters import keep_quick

from galileo.graph.columns import Commits
from galileo.model.table import Table
from galileo.node import table_index
from galileo.node.table_index import TableIndex, Versions, parts_of

PATHS = Table("t", {"id": "int"}, key="id").path_schema
HALVES = 3
"""Hashes have few values, so that keys often share one half."""


@dataclass(frozen=True)
class Version:
    """One version, the only object of its kind, wherever it is stored."""

    key: tuple[int, int]
    since: int
    is_deletion: bool
    number: int


class Log:
    """All versions of a partition, in order, and where they are stored."""

    def __init__(self, chance: random.Random, partition: int, *, start: int = 0) -> None:
        self.chance, self.partition, self.start = chance, partition, start
        self.clear()

    def clear(self) -> None:
        self.versions: list[Version] = []
        self.stored: dict[tuple[int, int], Version] = {}
        self.last, self.dropped = self.start, 0

    def commit(self) -> tuple[int, list[dict]]:
        """A commit of new versions; some have none."""
        self.last += 1
        paths = []
        for row in range(self.chance.randint(0, 6)):
            key = self.chance.randrange(HALVES), self.chance.randrange(HALVES)
            version = Version(key, self.last, self.chance.random() < 0.3, len(self.versions))
            self.versions.append(version)
            self.stored[self.last, row] = version
            paths.append(path_of(version, since=0))
        return self.last, paths

    def clean(self, index: TableIndex) -> None:
        """Copies what counts up to a bound, and drops it, as the cleaner does."""
        bound = self.chance.randint(max(self.dropped, self.start), self.last)
        kept = index.versions(self.partition, until=bound).kept(bound)
        self.last += 1
        paths = []
        for row, place in enumerate(zip(kept.sequence.tolist(), kept.row.tolist(), strict=True)):
            version = self.stored[self.last, row] = self.stored[place]
            paths.append(path_of(version, since=version.since))
        insert(index, [(self.partition, self.last, paths)])
        index.drop_before(self.partition, bound + 1)
        self.stored = {place: v for place, v in self.stored.items() if place[0] > bound}
        self.dropped = bound

    def newest(self, after: int, until: int) -> dict[tuple[int, int], Version]:
        """The last version of each key; deletions as far as they can be seen."""
        return {v.key: v for v in self.versions if after < v.since <= until}

    def compare(self, index: TableIndex) -> None:
        chance = self.chance
        until = chance.randint(max(self.dropped, self.start), self.last)
        after = chance.choice((None, chance.randint(self.dropped, until)))
        commits = {"after": after or 0, "until": until}
        expected = self.newest(**commits)
        if after is None:  # Rows: keys that are deleted may be found, or not.
            expected = {key: v for key, v in expected.items() if not v.is_deletion}
        found = self.found(index.newest(self.partition, **commits), is_rows=after is None)
        assert found == expected
        keys = [(chance.randrange(HALVES + 1), chance.randrange(HALVES + 1)) for _ in range(4)]
        some = index.find(self.partition, np.array(keys, dtype=np.uint64), **commits)
        assert self.found(some, is_rows=after is None) == {
            key: version for key, version in expected.items() if key in keys
        }

    def found(self, versions: Versions, *, is_rows: bool) -> dict[tuple[int, int], Version]:
        places = zip(versions.sequence.tolist(), versions.row.tolist(), strict=True)
        found = [self.stored[place] for place in places]
        assert [(v.key[0], v.key[1], v.since, v.is_deletion) for v in found] == list(
            zip(
                *(
                    column.tolist()
                    for column in (versions.high, versions.low, versions.since, versions.deleted)
                ),
                strict=True,
            )
        )
        assert len({version.key for version in found}) == len(found), "a key is there twice"
        return {v.key: v for v in found if not (is_rows and v.is_deletion)}


def path_of(version: Version, since: int) -> dict:
    high, low = version.key
    return {"high": high, "low": low, "since": since, "deleted": version.is_deletion}


def insert(index: TableIndex, commits: list[tuple[int, int, list[dict]]]) -> None:
    """Inserts commits, partition, sequence and paths of each, at once."""
    partitions, sequences, paths = zip(*commits, strict=True)
    batch = pa.RecordBatch.from_pylist([path for of_one in paths for path in of_one], PATHS)
    places = Commits(np.array(partitions, dtype=np.int32), np.array(sequences))
    index.insert_many(batch, places, np.array([len(of_one) for of_one in paths]))


def history(seed: int) -> None:
    chance = random.Random(seed)
    index, logs = TableIndex(), [Log(chance, 0), Log(chance, 1, start=(1 << 32) - 30)]
    for _ in range(60):
        step, log = chance.random(), chance.choice(logs)
        if step < 0.6:
            new = [
                (one.partition, *one.commit())
                for one in chance.sample(logs, k=chance.randint(1, 2))
                for _ in range(chance.randint(1, 3))
            ]
            insert(index, new)
        elif step < 0.78:
            index.maintain()
        elif step < 0.9:
            log.clean(index)
        elif step < 0.92:
            index.remove(log.partition)
            log.clear()
        log.compare(index)
    for log in logs:
        assert index.count(log.partition) == len(log.stored)
        assert index.dropped[log.partition] == log.dropped


def histories(count: int) -> None:
    for seed in range(count):
        history(seed)


@pytest.mark.parametrize("memtable", keep_quick([1, 8, 1 << 20], 8))
def test_the_index_answers_as_a_list_of_versions_does(memtable: int, monkeypatch) -> None:
    monkeypatch.setattr(table_index, "MEMTABLE_VERSIONS", memtable)
    histories(20)


def _newest_is_the_first(self):
    return self.take(self.first_of_keys())


def _keys_by_one_half(self):
    return table_index.differs(self.high)


def _unsorted(self):
    return self


def _merged_by_place(parts):
    whole = Versions.concatenate(parts)
    return whole.take(np.lexsort((whole.row, whole.sequence, whole.low, whole.high)))


@pytest.mark.parametrize(
    ("where", "name", "mutant"),
    [
        (Versions, "newest", _newest_is_the_first),
        (Versions, "first_of_keys", _keys_by_one_half),
        (Versions, "sorted_by_key", _unsorted),
        (table_index, "_merged", _merged_by_place),
    ],
)
def test_histories_convict_a_mutant_of_the_index(where, name: str, mutant, monkeypatch) -> None:
    monkeypatch.setattr(table_index, "MEMTABLE_VERSIONS", 8)
    monkeypatch.setattr(where, name, mutant)
    with pytest.raises((AssertionError, KeyError)):
        histories(20)


def _no_deletions(versions: Versions, bound: int) -> Versions:
    newest = versions.newest()
    return newest.take(~newest.deleted & (newest.sequence <= bound))


def _no_rows(versions: Versions, bound: int) -> Versions:
    return versions.take(slice(0, 0))


def _rows_at_the_end(versions: Versions, bound: int) -> Versions:
    """What counts at the bound, without what is replaced by a copy's time."""
    kept = _kept(versions, bound)
    return kept.take(kept.since < bound)


_kept = Versions.kept


@pytest.mark.parametrize("mutant", [_no_deletions, _no_rows, _rows_at_the_end])
def test_histories_convict_a_mutant_of_the_cleaner(mutant, monkeypatch) -> None:
    monkeypatch.setattr(Versions, "kept", mutant)
    with pytest.raises((AssertionError, KeyError)):
        histories(60)


def test_readers_and_merges_go_on_while_commits_come(monkeypatch) -> None:
    monkeypatch.setattr(table_index, "MEMTABLE_VERSIONS", 4)
    index, is_over, published, errors = TableIndex(), threading.Event(), [0], []

    def maintain() -> None:
        while not is_over.is_set():
            index.maintain()

    def read() -> None:
        while not is_over.is_set() and not errors:
            until = published[0]
            versions = index.newest(0, until=until)
            last = {key: until - (until - key) % 10 for key in range(10)}
            expected = {key: sequence for key, sequence in last.items() if sequence > 0}
            found = dict(zip(versions.high.tolist(), versions.sequence.tolist(), strict=True))
            if found != expected:
                errors.append((until, found))

    threads = [threading.Thread(target=work) for work in (maintain, read, read)]
    for thread in threads:
        thread.start()
    for sequence in range(1, 400):
        path = {"high": sequence % 10, "low": 0, "since": 0, "deleted": False}
        insert(index, [(0, sequence, [path])])
        published[0] = sequence
    is_over.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_runs_stay_few_and_memory_is_told() -> None:
    index, chance = TableIndex(), np.random.default_rng(0)
    for sequence in range(1, 200):
        hashes = chance.integers(0, 1 << 63, (2_000, 2), dtype=np.uint64)
        columns = [hashes[:, 0], hashes[:, 1], np.zeros(2_000, dtype=np.int64)]
        arrays = [*map(pa.array, columns), pa.array([False] * 2_000)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=PATHS)
        index.insert_many(batch, Commits.of(0, [sequence]), np.array([2_000]))
        index.maintain()
    sizes = [len(run) for run in index._of(0).runs_after(0)]
    assert sum(sizes) == index.count(0) == 199 * 2_000
    assert len(sizes) < 10, sizes
    assert index.memory_bytes() == 29 * index.count(0)


def test_commits_of_one_version_make_few_runs() -> None:
    """A read merges the runs of a memtable, so their number must not grow with the commits."""
    index = TableIndex()
    for sequence in range(1, 2_000):
        insert(index, [(0, sequence, [{"high": 1, "low": 2, "since": 0, "deleted": False}])])
        assert len(index._of(0).runs_after(0)) <= 2 * sequence.bit_length()
        assert len(index._of(0).runs_after(sequence - 1)) == 1
    assert index.find(0, np.array([[1, 2]], dtype=np.uint64), until=1_500).sequence.tolist() == [
        1_500
    ]


def test_rows_that_follow_each_other_are_one_part() -> None:
    numbers = np.arange(6)
    sequence, row = np.array([2, 1, 1, 2, 1, 1]), np.array([1, 5, 0, 0, 1, 3], dtype=np.int32)
    versions = Versions(
        numbers.astype(np.uint64), numbers.astype(np.uint64), sequence, sequence, row, numbers > 9
    )
    assert [tuple(part.values()) for part in parts_of(7, versions).to_pylist()] == [
        (7, 1, 0, 2),
        (7, 1, 3, 1),
        (7, 1, 5, 1),
        (7, 2, 0, 2),
    ]
