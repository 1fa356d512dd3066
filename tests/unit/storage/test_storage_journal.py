from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from journal_checks import check_holds
from journals import make_commit, open_journal

from galileo.errors import BatchConflict, ConfigError, InputError, InvalidObservations
from galileo.storage.journal import Commit, Committed
from galileo.storage.segment import MAPPED_SEGMENTS_MAX
from galileo.storage.writer import JournalOptions

TINY = JournalOptions(durability="none", segment_bytes_max=1)
"""A segment for every group."""


@examples(25)
@given(
    groups=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), max_size=5),
    segment_bytes_max=st.sampled_from([1, 3000, 64 << 20]),
)
def test_journal_random_groups_are_read_after_reopen(
    groups: list[list[int]], segment_bytes_max: int
) -> None:
    options = JournalOptions(durability="none", segment_bytes_max=segment_bytes_max)
    with tempfile.TemporaryDirectory() as name:
        directory, commits = Path(name) / "7", []
        journal = open_journal(directory, options).journal
        for sizes in groups:
            group = [make_commit(len(commits) + n, rows=rows) for n, rows in enumerate(sizes)]
            first = len(commits) + 1
            assert journal.append(group) == [
                Committed(first + n, c.observations.num_rows, c.paths.num_rows, duplicate=False)
                for n, c in enumerate(group)
            ]
            commits += group
        check_holds(journal, commits)
        files = sum(path.stat().st_size for path in directory.iterdir())
        assert journal.bytes_on_disk == files
        journal.close()

        again = open_journal(directory, options)
        check_holds(again.journal, commits)
        assert again.journal.torn_bytes == 0
        assert again.journal.bytes_on_disk == files
        assert [sequence for sequence, _ in again.replayed] == list(range(1, len(commits) + 1))
        for (_, paths), commit in zip(again.replayed, commits, strict=True):
            assert paths.equals(commit.paths)
        again.journal.close()


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8))
def test_journal_read_random_ranges_keeps_order(rows: int, pairs: list[tuple[int, int]]) -> None:
    pairs = [(row, count) for row, count in pairs if row + count <= rows]
    ranges = tuple(np.array([pair[n] for pair in pairs], dtype=np.int32) for n in (0, 1))
    with tempfile.TemporaryDirectory() as name:
        journal = open_journal(Path(name)).journal
        journal.append([make_commit(0, rows=rows)])
        everything = journal.read(1).to_pylist()
        wanted = [row for start, count in pairs for row in everything[start : start + count]]
        assert journal.read(1, ranges=ranges).to_pylist() == wanted
        journal.close()


@pytest.mark.parametrize(
    "ranges", [([-1], [1]), ([0], [4]), ([3], [1]), ([1], [-1]), ([0, 1], [1])]
)
def test_journal_read_rows_out_of_range_raises(
    tmp_path: Path, ranges: tuple[list[int], list[int]]
) -> None:
    journal = open_journal(tmp_path).journal
    journal.append([make_commit(0, rows=3)])
    with pytest.raises(InputError):
        journal.read(1, ranges=(np.array(ranges[0]), np.array(ranges[1])))


@pytest.mark.parametrize("sequence", [-1, 0, 2])
def test_journal_read_unknown_sequence_raises(tmp_path: Path, sequence: int) -> None:
    journal = open_journal(tmp_path).journal
    journal.append([make_commit(0)])
    for read in (journal.read, journal.paths, journal.header):
        with raises(InputError, last_sequence=1):
            read(sequence)


def test_journal_read_adjacent_ranges_copies_nothing(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    journal.append([make_commit(0, rows=1000)])
    journal.read(1)
    before = pa.total_allocated_bytes()
    table = journal.read(1, ranges=(np.array([0, 500]), np.array([500, 400])))
    assert table.num_rows == 900
    assert pa.total_allocated_bytes() == before


def test_journal_closed_keeps_tables_valid(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    commit = make_commit(0, rows=1000)
    journal.append([commit])
    table = journal.read(1)
    journal.close()
    assert table.equals(commit.observations)


def test_journal_append_retried_batch_gives_first_result(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    first, other = make_commit(5), make_commit(5, producer="satellite")
    results = journal.append([first, other, first])
    repeated = Committed(1, 3, first.paths.num_rows, duplicate=True)
    assert [result.sequence for result in results] == [1, 2, 1]
    assert [result.duplicate for result in results] == [False, False, True]
    assert journal.append([make_commit(6), first])[1] == repeated
    journal.close()

    journal = open_journal(tmp_path).journal
    assert journal.append([first]) == [repeated]
    assert journal.last_sequence == 3
    assert journal.last_batch("radar") == 6
    assert journal.last_batch("satellite") == 5
    assert journal.last_batch("unknown") is None


def test_journal_append_reused_batch_number_is_batch_conflict(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    results = journal.append([make_commit(0), make_commit(0, rows=4), make_commit(1)])
    assert isinstance(results[1], BatchConflict)
    assert [results[0].sequence, results[2].sequence] == [1, 2]
    later = journal.append([make_commit(1, rows=2)])
    assert isinstance(later[0], BatchConflict)
    assert later[0].details == {"sequence": 2}
    assert journal.last_sequence == 2


def test_journal_append_invalid_commit_is_refused_alone(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    good = make_commit(0)
    wrong = good.observations.rename_columns(["lat", *good.observations.column_names[1:]])
    results = journal.append(
        [
            Commit("radar", 1, wrong, good.paths),
            Commit("radar", 2, good.observations, good.paths.drop_columns("cell")),
            Commit("radar", 3, good.observations.slice(0, 0), good.paths),
            Commit("", 4, good.observations, good.paths),
            Commit("radar", -1, good.observations, good.paths),
            good,
        ]
    )
    assert [type(result) for result in results] == [
        *(InvalidObservations, InvalidObservations, InvalidObservations),
        *(InputError, InputError, Committed),
    ]
    assert journal.read(1).equals(good.observations)


def test_journal_append_batch_or_chunks_stores_same_rows(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    whole = make_commit(0, rows=10)
    table = whole.observations
    chunked = pa.concat_tables([table.slice(0, 4), table.slice(4)])
    journal.append(
        [
            Commit("batch", 0, table.to_batches()[0], whole.paths),
            Commit("chunks", 0, chunked, whole.paths),
        ]
    )
    assert journal.read(1).equals(table)
    assert journal.read(2).equals(table)


def test_journal_append_group_beyond_segment_starts_new_one(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    journal.append([make_commit(0)])
    size = journal.bytes_on_disk
    journal.close()
    options = JournalOptions(durability="none", segment_bytes_max=3 * size)
    journal = open_journal(tmp_path, options).journal
    for batch in range(1, 7):
        journal.append([make_commit(batch)])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"{first:020d}.segment" for first in (1, 4, 7)]
    assert journal.segments == 3


def test_journal_many_segments_are_all_readable(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, TINY).journal
    commits = [make_commit(batch) for batch in range(MAPPED_SEGMENTS_MAX + 3)]
    for commit in commits:
        journal.append([commit])
    assert journal.segments == len(commits)
    check_holds(journal, commits)
    check_holds(journal, commits)


def test_journal_read_during_appends_sees_whole_commits(tmp_path: Path) -> None:
    options = JournalOptions(durability="none", segment_bytes_max=20_000)
    journal = open_journal(tmp_path, options).journal
    commits = [make_commit(batch, rows=20) for batch in range(120)]
    failures: list[BaseException] = []
    done = threading.Event()

    def read_newest() -> None:
        try:
            while not done.is_set():
                for sequence in range(max(1, journal.last_sequence - 5), journal.last_sequence + 1):
                    assert journal.read(sequence).equals(commits[sequence - 1].observations)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read_newest) for _ in range(3)]
    for reader in readers:
        reader.start()
    for start in range(0, 120, 3):
        journal.append(commits[start : start + 3])
    done.set()
    for reader in readers:
        reader.join()
    assert not failures
    check_holds(journal, commits)


def test_journal_concurrent_appends_have_gapless_sequences(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    results: dict[str, list[Any]] = {}

    def produce(name: str) -> None:
        results[name] = [
            journal.append([make_commit(batch, producer=name)])[0] for batch in range(20)
        ]

    threads = [threading.Thread(target=produce, args=(f"producer {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sequences = [result.sequence for produced in results.values() for result in produced]
    assert sorted(sequences) == list(range(1, 81))
    for name, produced in results.items():
        for batch, result in enumerate(produced):
            header = journal.header(result.sequence)
            assert (header.producer, header.batch) == (name, batch)


def test_journal_header_has_time_of_commit(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    journal.append([make_commit(0)])
    assert journal.header(1).committed_at_us == 1_330_581_600_250_000


@pytest.mark.parametrize("wrong", [{"segment_bytes_max": 0}, {"durability": "maybe"}])
def test_journal_options_invalid_value_raises(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        JournalOptions(**wrong)
