"""The index of a keyed dataset, compared with a list of all versions."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from parameters import keep_quick

from galileo.cursor import EMPTY_CURSOR, Cursor
from galileo.graph import commit_windows, metadata_graph
from galileo.graph.columns import Commits
from galileo.graph.metadata_graph import MetadataGraph
from galileo.graph.snapshot import Snapshot
from galileo.graph.sorted_runs import SortedRun
from galileo.graph.versions import (
    NEVER,
    Choice,
    CurrentPaths,
    Marks,
    VersionArrays,
    VersionFilter,
)
from galileo.graph.versions import Versions as GraphVersions
from galileo.model.keyed import index_versions
from galileo.model.schema import Feature, Schema
from galileo.node import keyed_index, table_index
from galileo.node.keyed_index import KeyedIndex
from galileo.query import parse

STATION, LEVEL, NUMBER = Feature("station", type="text"), Feature("level", type="int"), "number"
SCHEMA = Schema(
    "buoys",
    [STATION, LEVEL, Feature(NUMBER, type="int")],
    geohash_precision=2,
    time_bucket="1h",
    key="station",
)
START = dt.datetime(2012, 3, 1, tzinfo=dt.UTC)
STATIONS = (None, "a", "b")
LATITUDES = (10.0, 50.0)
PARTITIONS = (2, 5)
STEPS = 40

Key: TypeAlias = tuple[float, int, str | None]
Place: TypeAlias = tuple[int, int, int]
"""Partition, sequence and row."""
Row: TypeAlias = tuple[Place, int]
"""Where a version is read, and its number."""


@dataclass(frozen=True)
class Version:
    """One version; `number` is its own, wherever it is stored."""

    key: Key
    since: int
    deleted: bool
    level: int
    number: int

    def to_row(self) -> dict[str, Any]:
        latitude, hour, station = self.key
        return {
            "latitude": latitude,
            "longitude": 20.0,
            "time": START + dt.timedelta(hours=hour, microseconds=self.number),
            "station": station,
            "level": self.level,
            "number": self.number,
            "deleted": self.deleted,
        }


QUERIES: dict[str, Callable[[Version], bool]] = {
    "": lambda version: True,
    "level > 4": lambda version: version.level > 4,
    "station = 'a'": lambda version: version.key[2] == "a",
    "station IS NULL OR level < 2": lambda version: version.key[2] is None or version.level < 2,
    "S_INTERSECTS(geometry, BBOX(0, 40, 90, 60))": lambda version: version.key[0] == 50.0,
}


@dataclass(frozen=True)
class NewCommit:
    """A commit that is not inserted yet."""

    partition: int
    sequence: int
    paths: pa.RecordBatch


class Log:
    """All versions of a partition, and where each is stored.

    Attributes:
        last: the last commit.
        dropped: commits up to it are removed.
        cleaned: readers have cursors from here on.
        planned: up to where a cleaner drops, and what it copies first; None: no cleaner is at work.
        bound: up to where all that counts is copied.
    """

    def __init__(self, chance: random.Random, partition: int) -> None:
        self.chance, self.partition = chance, partition
        self.numbers = 0
        self.clear()

    def clear(self) -> None:
        self.versions: list[Version] = []
        self.stored: dict[tuple[int, int], Version] = {}
        self.last = self.dropped = self.cleaned = self.bound = 0
        self.planned: tuple[int, list[Version]] | None = None

    def commit(self) -> NewCommit:
        """New versions, several of one key among them; some commits have none."""
        chance, rows = self.chance, []
        for _ in range(chance.choice((0, 1, 1, 2, 4, 7))):
            self.numbers += 1
            key = chance.choice(LATITUDES), chance.randrange(2), chance.choice(STATIONS)
            deleted, level = chance.random() < 0.25, chance.randrange(9)
            rows.append(Version(key, self.last + 1, deleted, level, self.numbers))
        self.versions += {version.key: version for version in rows}.values()
        return self._store(rows)

    def plan_copies(self) -> None:
        """What the cleaner would copy, as it is now; it is committed later, if ever."""
        bound = self.chance.randint(max(self.cleaned, self.bound), self.last)
        kept = []
        for version, places in self._newest(bound).values():
            past = [p for p, v in self.stored.items() if v.key == version.key and v.since <= bound]
            has_copies = any(sequence > bound for sequence, _ in past)
            if max(places)[0] <= bound and (has_copies or not version.deleted):
                kept.append(version)
        self.planned = bound, kept

    def copy(self) -> NewCommit:
        assert self.planned is not None
        (self.bound, kept), self.planned = self.planned, None
        return self._store(kept, is_copy=True)

    def _store(self, versions: list[Version], *, is_copy: bool = False) -> NewCommit:
        self.last += 1
        if not versions:
            return NewCommit(self.partition, self.last, nothing())
        rows = pa.Table.from_pylist([one.to_row() for one in versions], SCHEMA.version_schema)
        since = np.array([one.since if is_copy else 0 for one in versions], dtype=np.int64)
        [(stored, paths)] = index_versions(SCHEMA, rows, place=one_place, since=since).values()
        by_number = {version.number: version for version in versions}
        for row, number in enumerate(stored.column(NUMBER).to_pylist()):
            self.stored[self.last, row] = by_number[number]
        return NewCommit(self.partition, self.last, paths)

    def drop(self, index: KeyedIndex) -> None:
        """Drops files that end at the bound, or before it, as those of replicas do."""
        ends = [end for end in range(self.dropped + 1, self.bound + 1) if self._may_drop(end)]
        if not ends:
            return
        self.dropped, self.cleaned = self.chance.choice(ends), max(self.cleaned, self.bound)
        index.drop_before(self.partition, self.dropped + 1)
        self.stored = {place: v for place, v in self.stored.items() if place[0] > self.dropped}

    def _may_drop(self, end: int) -> bool:
        """Whether no key would get back a version that its last one has replaced."""
        for version, places in self._newest(self.bound).values():
            of_key = [p for p, v in self.stored.items() if v.key == version.key]
            has_older = any(self.stored[p].since <= self.bound and p[0] > end for p in of_key)
            if max(places)[0] <= end and has_older:
                return False
        return True

    def _newest(self, until: int) -> dict[Key, tuple[Version, list[tuple[int, int]]]]:
        """The last stored version of each key, and where it is stored."""
        found = dict[Key, Version]()
        for version in sorted(self.stored.values(), key=lambda one: one.since):
            if version.since <= until:
                found[version.key] = version
        return {
            key: (version, [place for place, one in self.stored.items() if one == version])
            for key, version in found.items()
        }

    def changes(self, after: int, until: int) -> dict[Key, Version]:
        """The last version of each key among those since some commits."""
        return {v.key: v for v in self.versions if after < v.since <= until}

    def rows(
        self, until: int, *, after: int = 0, at: int | None = None
    ) -> list[tuple[Place, Version]]:
        """What counts at a cursor since some commits, and where it is read: where it is stored
        first.
        """
        places = dict[int, tuple[int, int]]()
        for place, version in sorted(self.stored.items(), reverse=True):
            places[version.number] = place
        return [
            ((self.partition, *places[version.number]), version)
            for version in self.changes(0, until if at is None else at).values()
            if after < version.since <= until and not version.deleted
        ]


def nothing() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], SCHEMA.path_schema)


def one_place(cells: Any, _: Any) -> Any:
    return np.zeros(len(cells), dtype=np.int32)


class History:
    """An index and its logs, which change at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.index = KeyedIndex(SCHEMA)
        memtable = self.chance.choice((1, 6, 6, 25, 1_000))
        block = self.chance.choice((1, 3, 8))
        self.index.graph = MetadataGraph(SCHEMA, memtable_paths_max=memtable, block_paths=block)
        self.logs = {partition: Log(self.chance, partition) for partition in PARTITIONS}
        self.readers: list[tuple[Iterator[pa.RecordBatch | None], list[Row]]] = []

    def play(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.compare()
        while self.readers:
            self.end_reader()

    def step(self) -> None:
        chance, log = self.chance, self.chance.choice([*self.logs.values()])
        match chance.choices(("commit", "plan", "copy", "drop", "maintain", "remove"), WEIGHTS)[0]:
            case "plan":
                log.plan_copies()
            case "drop":
                log.drop(self.index)
                if chance.random() < 0.5:
                    self.index.maintain()
            case "maintain":
                self.index.maintain()
            case "remove":
                self.index.remove(log.partition)
                log.clear()
            case "copy":
                self.insert(chance.sample([*self.logs.values()], k=2))
            case _:
                self.insert([log])

    def insert(self, logs: list[Log]) -> None:
        """Some commits of each log in one call; those that a cleaner has planned among them."""
        new = []
        for log in logs:
            for _ in range(self.chance.choice((1, 1, 2, 4))):
                is_copied = log.planned is not None and self.chance.random() < 0.6
                new.append(log.copy() if is_copied else log.commit())
        commits = Commits(
            np.array([one.partition for one in new], dtype=np.int32),
            np.array([one.sequence for one in new], dtype=np.int64),
        )
        counts = np.array([one.paths.num_rows for one in new])
        self.index.insert_many(pa.concat_batches([one.paths for one in new]), commits, counts)

    # --- what is read ----------------------------------------------------------------------------

    def compare(self) -> None:
        text = self.chance.choice([*QUERIES])
        until = {p: self.chance.randint(log.cleaned, log.last) for p, log in self.logs.items()}
        after = {p: self.chance.choice((0, 0, self.chance.randint(0, until[p]))) for p in until}
        self.compare_scans(text, after, until)
        self.compare_changes(until)
        match self.chance.randrange(4):
            case 0:
                self.compare_windows(text, until)
            case 3:
                self.compare_choices(text, until)
            case 1:
                self.compare_turns(text, after, until)
            case _:
                self.compare_counts()
        if self.chance.random() < 0.2:
            self.begin_reader(text, until)
        if self.readers and self.chance.random() < 0.15:
            self.end_reader()

    def expected(
        self,
        text: str,
        until: Mapping[int, int],
        after: Mapping[int, int] = EMPTY_CURSOR,
        *,
        at: Mapping[int, int] | None = None,
    ) -> list[Row]:
        return sorted(
            (place, version.number)
            for p, last in until.items()
            for place, version in self.logs[p].rows(
                last, after=after.get(p, 0), at=None if at is None else at[p]
            )
            if QUERIES[text](version)
        )

    def compare_scans(self, text: str, after: dict[int, int], until: dict[int, int]) -> None:
        graph, query = self.index.graph, parse(text, SCHEMA)
        found = graph.scan(query, until=Cursor(until))
        assert rows_of([found]) == self.expected(text, until)
        found = graph.scan(query, after=Cursor(after), until=Cursor(until))
        assert rows_of([found]) == self.expected(text, until, after)
        some = {p: last for p, last in until.items() if self.chance.random() < 0.5}
        found = graph.scan(query, until=Cursor(until), partitions=frozenset(some))
        assert rows_of([found]) == self.expected(text, some)
        last = {p: log.last for p, log in self.logs.items()}
        assert rows_of([graph.scan(query)]) == self.expected(text, last)

    def compare_windows(self, text: str, at: dict[int, int]) -> None:
        """Windows of the commits that store what counts."""
        query, found = parse(text, SCHEMA), list[pa.RecordBatch]()
        begin = dict.fromkeys(self.logs, 0)
        while any(begin[p] < log.last for p, log in self.logs.items()):
            end = {p: self.chance.randint(begin[p], log.last) for p, log in self.logs.items()}
            most = self.chance.choice((1, 3, 50))
            pieces = self.index.graph.scan_pieces(
                query,
                labels_max=most,
                after=Cursor(begin),
                until=Cursor(end),
                choice=Choice.STORED,
                at=Cursor(at),
            )
            some = [piece for piece in pieces if piece is not None]
            assert all(0 < piece.num_rows <= most for piece in some)
            for partition, sequence in places_of(some):
                assert begin[partition] < sequence <= end[partition]
            found, begin = found + some, end
        assert rows_of(found) == self.expected(text, at)

    def compare_choices(self, text: str, until: dict[int, int]) -> None:
        """What counts no more at the end of a range: from before it, and of it."""
        query, found = parse(text, SCHEMA), dict[Choice, list[Row]]()
        after = {p: self.chance.randint(log.cleaned, until[p]) for p, log in self.logs.items()}
        for choice in (Choice.WITHDRAWN, Choice.REPLACED):
            pieces = self.index.graph.scan_pieces(
                query,
                labels_max=4,
                after=Cursor(after),
                until=Cursor(until),
                choice=choice,
                at=Cursor(after) if choice is Choice.WITHDRAWN else None,
            )
            found[choice] = rows_of([piece for piece in pieces if piece is not None])
        last, before = self.expected(text, until), self.expected(text, after)
        assert found[Choice.WITHDRAWN] == [row for row in before if row not in last]
        current = {(place[0], number) for place, number in last}
        replaced = [(place[0], number) for place, number in found[Choice.REPLACED]]
        assert sorted(replaced) == sorted(
            (p, version.number)
            for p, log in self.logs.items()
            for version in log.versions
            if after[p] < version.since <= until[p] and QUERIES[text](version)
            if (p, version.number) not in current
        )

    def compare_turns(self, text: str, after: dict[int, int], until: dict[int, int]) -> None:
        """The first commits of a range, then those that follow, in turns."""
        begin = after
        while begin != until:
            most = self.chance.choice((1, 2, 5, 30))
            table, reached = scan_first(
                self.index.graph, text, after=Cursor(begin), until=Cursor(until), labels_max=most
            )
            end = {p: reached[p] for p in until}
            assert end != begin, "a turn without an end"
            assert all(begin[p] <= end[p] <= until[p] for p in until)
            commits = {
                (p, version.since)
                for p in until
                for _, version in self.logs[p].rows(end[p], after=begin[p], at=until[p])
                if QUERIES[text](version)
            }
            assert table.num_rows <= most or len(commits) == 1
            assert rows_of([table]) == self.expected(text, end, begin, at=until)
            begin = end

    def compare_changes(self, until: dict[int, int]) -> None:
        for partition, log in self.logs.items():
            after, last = self.chance.randint(log.cleaned, until[partition]), until[partition]
            if not log.cleaned and not log.last:
                continue
            newest = self.index.versions.newest(partition, after=after, until=last)
            places = zip(newest.sequence.tolist(), newest.row.tolist(), strict=True)
            found = [log.stored[place] for place in places]
            assert sorted(found, key=str) == sorted(log.changes(after, last).values(), key=str)
            assert newest.deleted.tolist() == [version.deleted for version in found]
            assert newest.since.tolist() == [version.since for version in found]

    def compare_counts(self) -> None:
        some = [p for p in self.logs if self.chance.random() < 0.8]
        rows = [v for p in some for _, v in self.logs[p].rows(self.logs[p].last)]
        described = self.index.graph.describe(frozenset(some))
        stations = Counter(version.key[2] for version in rows)
        assert (described.observations, described.paths) == (len(rows), len(rows))
        assert described.texts["station"].nulls == stations[None]
        assert described.texts["station"].counts == {k: n for k, n in stations.items() if k}
        table = self.index.graph.children(order=["station"], partitions=frozenset(some))
        values, counts = table.column("value").to_pylist(), table.column("paths").to_pylist()
        assert dict(zip(values, counts, strict=True)) == stations

    def begin_reader(self, text: str, until: dict[int, int]) -> None:
        """Begins an answer, which goes on while the index changes."""
        pieces = self.index.graph.scan_pieces(
            parse(text, SCHEMA), labels_max=1, until=Cursor(until)
        )
        begun = next(pieces, None)
        self.readers.append((chained(begun, pieces), self.expected(text, until)))

    def end_reader(self) -> None:
        pieces, expected = self.readers.pop(self.chance.randrange(len(self.readers)))
        assert rows_of([piece for piece in pieces if piece is not None]) == expected


WEIGHTS = (30, 18, 20, 20, 10, 2)


def chained(
    first: pa.RecordBatch | None, pieces: Iterator[pa.RecordBatch | None]
) -> Iterator[pa.RecordBatch | None]:
    yield first
    yield from pieces


def scan_first(graph: MetadataGraph, text: str, **task: Any) -> tuple[pa.Table, Cursor]:
    pieces = graph.scan_first(parse(text, SCHEMA), piece_labels_max=3, **task)
    batches = list[pa.RecordBatch]()
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return pa.Table.from_batches(batches, SCHEMA.label_schema), end.value
        if piece is not None:
            assert 0 < piece.num_rows <= 3
            batches.append(piece)


def rows_of(labels: Iterable[pa.Table | pa.RecordBatch]) -> list[Row]:
    """What labels name, in order."""
    columns = ("partition", "sequence", "row", NUMBER)
    return sorted(
        ((partition, sequence, row), number)
        for table in labels
        for partition, sequence, row, number in zip(
            *(table.column(name).to_pylist() for name in columns), strict=True
        )
    )


def places_of(labels: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [(partition, sequence) for (partition, sequence, _), _ in rows_of(labels)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memtables and windows are so small that a history has many of them."""
    monkeypatch.setattr(table_index, "MEMTABLE_VERSIONS", 8)
    monkeypatch.setattr(metadata_graph, "VERSIONS_MIN", 4)
    monkeypatch.setattr(commit_windows, "WINDOW_PATHS_MIN", 5)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", keep_quick(range(400), *range(3)))
def test_the_index_answers_as_a_list_of_versions_does(seed: int) -> None:
    History(seed).play()


def play_histories(count: int) -> None:
    for seed in range(count):
        History(seed).play()


# --- mutants -----------------------------------------------------------------------------------

_mask, _marks = VersionFilter.mask, keyed_index.marks_of
_current_of, _of_commits = Snapshot.current_of, VersionArrays.of_commits
_append, _mark, _moved = GraphVersions.append, GraphVersions.mark, GraphVersions.moved


def _ignores_origins(self: VersionFilter, *arguments: Any) -> Any:
    """Copies count beside their originals."""
    origin = np.zeros_like(self.versions.origin)
    return _mask(replace(self, versions=replace(self.versions, origin=origin)), *arguments)


def _marks_no_copies(self: GraphVersions, partition: int, marks: Marks) -> None:
    sequences, firsts = self._places[partition].view()
    place = firsts.take(np.searchsorted(sequences, marks.sequence)) + marks.row
    is_original = self.view().since.take(place) == marks.sequence
    columns = (marks.sequence, marks.row, marks.superseded)
    _mark(self, partition, Marks(*(column[is_original] for column in columns)))


def _counts_since_storage(self: GraphVersions, commits: Commits, counts: Any, new: Any) -> Commits:
    return _append(self, commits, counts, replace(new, since=commits.sequence.repeat(counts)))


def _counts_deletions(stored: Any) -> Marks:
    return _marks(replace(stored, deleted=np.zeros_like(stored.deleted)))


def _of_now(self: Snapshot, run: SortedRun) -> CurrentPaths | None:
    """Readers of earlier cursors, too, look at the current paths alone."""
    known = _current_of(self, run)
    return None if known is None else replace(known, reached=EMPTY_CURSOR)


def _counts_no_superseded(self: VersionArrays, commits: Commits) -> Any:
    origin_max, superseded_count = _of_commits(self, commits)
    return origin_max, np.zeros_like(superseded_count)


def _ignores_greatest_origins(self: VersionArrays, commits: Commits) -> Any:
    origin_max, superseded_count = _of_commits(self, commits)
    return np.zeros_like(origin_max), superseded_count


def _forgets_marks(self: GraphVersions, every: Any) -> Any:
    fresh, placed = _moved(self, every)
    fresh.view().superseded[:] = NEVER
    return fresh, placed


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("place", "name", "mutant"),
    [
        (VersionFilter, "mask", _ignores_origins),
        (GraphVersions, "mark", _marks_no_copies),
        (GraphVersions, "append", _counts_since_storage),
        (keyed_index, "marks_of", _counts_deletions),
        (Snapshot, "current_of", _of_now),
        (VersionArrays, "of_commits", _counts_no_superseded),
        pytest.param(
            VersionArrays, "of_commits", _ignores_greatest_origins, marks=pytest.mark.slow
        ),
        pytest.param(GraphVersions, "moved", _forgets_marks, marks=pytest.mark.slow),
    ],
)
def test_histories_convict_a_mutant(
    place: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, mutant)
    with pytest.raises(AssertionError):
        play_histories(40)


def test_a_reader_without_a_cursor_sees_what_its_snapshot_has() -> None:
    """The next commit has marked what it replaces before its own version can be seen."""
    index, version = (
        KeyedIndex(SCHEMA),
        Version((10.0, 0, "a"), 1, deleted=False, level=1, number=1),
    )
    later = replace(version, since=2, level=2, number=2)
    snapshots = []
    for each in (version, later):
        rows = pa.Table.from_pylist([each.to_row()], schema=SCHEMA.version_schema)
        [(_, paths)] = index_versions(SCHEMA, rows, place=one_place).values()
        index.insert_many(paths, Commits.of(2, [each.since]), np.array([1]))
        snapshots.append(index.graph._snapshot)
    before, after = (
        index.graph._descriptions.describe(snapshot, frozenset({2})) for snapshot in snapshots
    )
    assert (before.observations, after.observations) == (1, 1)
    assert before.numbers["level"].maximum == 1
