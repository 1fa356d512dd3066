"""Dropping the beginning of a log: against a dict, at every step of the disk, beside all else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from journal_checks import check_knows, seal_and_drop
from journals import SCHEMA, make_commit, open_journal
from mortal_disk import Died, MortalDisk

from galileo.errors import BatchConflict, ConfigError, CorruptData, GalileoError, PartitionReadOnly
from galileo.model.forks import Forks
from galileo.storage.commits import Commit, Committed
from galileo.storage.compaction import CompactionOptions
from galileo.storage.journal import PartitionJournal
from galileo.storage.retention import (
    BATCHES,
    BATCHES_KEPT_MAX,
    LOG_START_BYTES_MAX,
    LogStart,
    TruncatedProducers,
    log_start_path,
)
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=8_000)


def unhurried(_: int) -> bool:
    return True


def test_journal_drop_prefix_of_files_is_permanent(stored: Path, commits: list[Commit]) -> None:
    journal = open_journal(stored, SMALL).journal
    pieces = journal.log_files()
    assert [piece.sealed for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert pieces[0].first == 1
    assert pieces[-1].last == len(commits)
    table, sizes = journal.read(1), journal.row_sizes(range(1, len(commits) + 1))
    until = pieces[1].last
    dropped = journal.drop(until)
    assert journal.row_sizes(range(1, len(commits) + 1)) == [0.0] * until + sizes[until:]
    assert (dropped.until, dropped.commits, dropped.files) == (until, until, 2)
    assert dropped.bytes == pieces[0].bytes + pieces[1].bytes
    assert table.equals(commits[0].observations), "what was read stays valid"
    assert journal.bytes_on_disk == sum(p.stat().st_size for p in stored.glob("*.segment"))
    check_knows(journal, commits, dropped=until)
    assert journal.drop(until).files == 0
    assert journal.drop(until - 1).files == 0
    journal.close()
    again = open_journal(stored, SMALL)
    assert [sequence for sequence, _ in again.replayed] == list(range(until + 1, len(commits) + 1))
    check_knows(again.journal, commits, dropped=until)
    assert again.journal.log_files() == pieces[2:]


def test_journal_drop_open_segment_needs_seal(stored: Path, commits: list[Commit]) -> None:
    journal = open_journal(stored, SMALL).journal
    last = len(commits)
    assert journal.drop(last).until < last
    journal.seal()
    journal.seal()  # an empty segment is none
    assert journal.drop(last).until == last
    assert [path.name for path in stored.glob("*.segment")] == [f"{last + 1:020d}.segment"]
    check_knows(journal, commits, dropped=last)
    journal.close()
    again = open_journal(stored, SMALL)
    assert again.replayed == []
    check_knows(again.journal, commits, dropped=last)
    assert again.journal.append([make_commit(99)])[0].sequence == last + 1
    check_knows(again.journal, [*commits, make_commit(99)], dropped=last)


def test_log_files_newest_us_is_end_of_newest_bucket(stored: Path, commits: list[Commit]) -> None:
    def newest(first: int, last: int) -> int:
        times = [c.observations.column("time").cast("int64").to_numpy() for c in commits]
        top = int(max(column.max() for column in times[first - 1 : last]))
        return top - top % SCHEMA.time_bucket_us + SCHEMA.time_bucket_us

    journal = open_journal(stored, SMALL).journal
    for opened in (journal, open_journal(stored, SMALL).journal):
        for piece in opened.log_files():
            assert piece.newest_us == newest(piece.first, piece.last)
    assert journal.merge(EVERYTHING, unhurried)
    merged = journal.log_files()
    assert len(merged) == 2
    assert [p.newest_us for p in merged] == [newest(p.first, p.last) for p in merged]
    assert open_journal(stored, SMALL).journal.log_files() == merged


def test_journal_drop_merged_file_is_whole_or_nothing(stored: Path, commits: list[Commit]) -> None:
    journal = open_journal(stored, SMALL).journal
    journal.merge(EVERYTHING, unhurried)
    [merged, _] = journal.log_files()
    table = journal.read(2)
    assert journal.drop(merged.last - 1).files == 0, "never a part of a file"
    assert journal.drop(merged.last).files == 1
    assert table.equals(commits[1].observations)
    check_knows(journal, commits, dropped=merged.last)
    journal.close()
    check_knows(open_journal(stored, SMALL).journal, commits, dropped=merged.last)


def test_journal_append_dropped_batch_with_other_rows_is_batch_conflict(
    stored: Path, commits: list[Commit]
) -> None:
    journal = open_journal(stored, SMALL).journal
    journal.drop(journal.log_files()[0].last)
    other = make_commit(0, rows=7, producer=commits[0].producer)
    [result] = journal.append([other])
    assert isinstance(result, BatchConflict)
    assert result.details["sequence"] == 1
    rows = commits[0].observations.num_rows
    same_size = make_commit(99, rows=rows, producer=commits[0].producer)
    for known in (journal, open_journal(stored, SMALL).journal):
        [result] = known.append([replace(same_size, batch=0)])
        assert isinstance(result, BatchConflict)
    assert journal.last_batch(commits[0].producer) == 9
    journal.seal()
    journal.drop(len(commits))
    assert journal.last_batch(commits[0].producer) == 9
    assert journal.last_batch("unknown") is None


def test_dropped_batch_is_known_however_its_rows_were_sent(stored: Path) -> None:
    journal = open_journal(stored, SMALL).journal
    sent = make_commit(5, rows=20, producer="other way")
    journal.append([sent])
    journal.seal()
    journal.drop(journal.log_files()[-1].last)
    between = pa.concat_tables([sent.observations, sent.observations, sent.observations])
    again = between.combine_chunks().slice(20, 20)
    assert again.equals(sent.observations)

    [result] = journal.append([replace(sent, observations=again)])

    assert isinstance(result, Committed)
    assert result.duplicate


def dropped_batches(names: Sequence[str]) -> pa.Table:
    """One batch of each producer, in this order."""
    count = len(names)
    return pa.table(
        [names, range(count), range(1, count + 1), *[np.ones(count, np.int64)] * 3], schema=BATCHES
    )


def test_truncated_producers_keeps_newest_batches() -> None:
    count = BATCHES_KEPT_MAX + 4
    batches = dropped_batches(["radar"] * count)
    known = TruncatedProducers(batches.slice(0, count - 5)).merge(batches.slice(count - 5))
    assert len(known) == BATCHES_KEPT_MAX
    assert known.find("radar", count - 1) == Committed(count, 1, 1, duplicate=True)
    assert known.find("radar", 4) == Committed(5, 1, 1, duplicate=True)
    assert known.find("radar", 3) is None


@pytest.mark.slow
def test_log_start_many_batches_is_cut_to_record_size() -> None:
    rng = np.random.default_rng(1)
    letters = rng.integers(97, 122, (BATCHES_KEPT_MAX, 100), dtype=np.uint8)
    names = letters.view("S100").ravel().astype(str).tolist()
    news = dropped_batches(names)
    whole = LogStart().advance(2000, news.slice(0, 2000), Forks(), bound=2000)
    assert len(whole.batches) == 2000
    assert LogStart.from_bytes(whole.to_bytes()).batches.batches.equals(whole.batches.batches)
    cut = LogStart().advance(len(names), news, Forks(), bound=len(names))
    assert len(cut.to_bytes()) <= LOG_START_BYTES_MAX
    assert len(names) // 8 < len(cut.batches) < len(names)
    last = len(names)
    assert cut.batches.find(names[-1], last - 1) == Committed(last, 1, 1, duplicate=True)
    assert cut.batches.find(names[0], 0) is None


batch_rows = st.lists(
    st.tuples(st.sampled_from("abcä"), st.integers(0, 2**64 - 1), st.integers(1, 9)),
    unique_by=lambda row: row[:2],
    max_size=30,
)


@given(batch_rows, st.integers(0, 30))
def test_truncated_producers_random_batches_equals_dict(
    rows: list[tuple[str, int, int]], split: int
) -> None:
    table = pa.table(
        [
            [producer for producer, _, _ in rows],
            pa.array([batch for _, batch, _ in rows], pa.uint64()),
            range(1, len(rows) + 1),
            [count for *_, count in rows],
            [1] * len(rows),
            [1] * len(rows),
        ],
        schema=BATCHES,
    )
    found = TruncatedProducers(table.slice(0, split)).merge(table.slice(split))
    for sequence, (producer, batch, count) in enumerate(rows, start=1):
        assert found.find(producer, batch) == Committed(sequence, count, 1, duplicate=True)
        assert found.find("unknown", batch) is None
        if (producer, batch + 1) not in {row[:2] for row in rows} and batch < 2**64 - 1:
            assert found.find(producer, batch + 1) is None
    for producer in "abcäz":
        mine = [batch for name, batch, _ in rows if name == producer]
        assert found.last_batch(producer) == max(mine, default=None)


# --- the model ---------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("retry"), st.integers(0, 30)),
        st.tuples(st.just("drop"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["seal", "merge", "restart"]), st.just(0)),
    ),
    max_size=25,
)


@examples(60)
@given(steps=steps)
def test_journal_random_appends_and_drops_equals_dict(steps: list[tuple[str, int]]) -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        play(directory, steps)
    finally:
        shutil.rmtree(directory)


def play(directory: Path, steps: list[tuple[str, int]]) -> None:
    journal, history, dropped = open_journal(directory, SMALL).journal, [], 0
    for step, number in steps:
        if step == "append":
            news = [make_commit(len(history) + n, rows=20) for n in range(number)]
            results = journal.append(news)
            assert [r.sequence for r in results] == [len(history) + 1 + n for n in range(number)]
            history += news
        elif step == "retry" and history:
            [again] = journal.append([history[number % len(history)]])
            assert (again.sequence, again.duplicate) == (number % len(history) + 1, True)
        elif step == "drop":
            ends = [piece.last for piece in journal.log_files() if piece.sealed]
            before, dropped = dropped, max([dropped, *(end for end in ends if end <= number)])
            assert journal.drop(number).commits == dropped - before
        elif step == "seal":
            journal.seal()
        elif step == "merge":
            journal.merge(EVERYTHING, unhurried)
        elif step == "restart":
            journal.close()
            opened = open_journal(directory, SMALL)
            journal = opened.journal
            assert [s for s, _ in opened.replayed] == list(range(dropped + 1, len(history) + 1))
    check_knows(journal, history, dropped=dropped)
    journal.close()
    check_knows(open_journal(directory, SMALL).journal, history, dropped=dropped)


# --- crashes -----------------------------------------------------------------------------------


def steps_of(stored: Path, tmp_path: Path) -> int:
    """How many operations of the disk a seal with a drop takes."""
    shutil.copytree(stored, tmp_path / "count")
    disk = MortalDisk()
    journal = open_journal(tmp_path / "count", JournalOptions(disk=disk)).journal
    disk.calls.clear()
    seal_and_drop(journal)
    assert disk.calls.count("unlink") > 3
    assert disk.calls.index("fdatasync") < disk.calls.index("unlink"), "the mark is durable first"
    return len(disk.calls)


@pytest.mark.parametrize("error", [Died, OSError])
def test_journal_drop_interrupted_at_any_step_is_whole_or_nothing(
    stored: Path, tmp_path: Path, commits: list[Commit], error: type
) -> None:
    outcomes = set()
    for spare in range(steps_of(stored, tmp_path)):
        directory = tmp_path / f"{error.__name__} {spare}"
        shutil.copytree(stored, directory)
        disk = MortalDisk(error=error)
        journal = open_journal(directory, JournalOptions(disk=disk)).journal
        disk.left = spare
        with pytest.raises((Died, OSError, PartitionReadOnly)):
            seal_and_drop(journal)
        if error is OSError:
            disk.left = 1 << 30
            check_readable(journal, commits)
        again = open_journal(directory, SMALL).journal
        assert again.dropped in (0, len(commits))
        check_knows(again, commits, dropped=again.dropped)
        files = [int(path.stem) for path in directory.glob("*.segment")]
        assert min(files) == again.dropped + 1
        assert not list(directory.glob("*.tmp")) or again.dropped == 0
        outcomes.add(again.dropped)
        again.close()
    assert outcomes == {0, len(commits)}


def test_journal_drop_of_merged_file_interrupted_before_its_deletion_goes_on(
    stored: Path, commits: list[Commit]
) -> None:
    disk = MortalDisk()
    journal = open_journal(stored, JournalOptions(disk=disk, segment_bytes_max=6_000)).journal
    assert journal.merge(EVERYTHING, unhurried)
    disk.unlink = refuse_unlink  # type: ignore[method-assign]
    with pytest.raises(Died):
        seal_and_drop(journal)
    again = open_journal(stored, SMALL).journal
    assert again.dropped == len(commits)
    check_knows(again, commits, dropped=again.dropped)
    assert not list(stored.glob("*.merged"))


def refuse_unlink(path: Path) -> None:
    raise Died


def check_readable(journal: PartitionJournal, commits: Sequence[Commit]) -> None:
    """After an error of the disk the process goes on, and says the same as its disk."""
    for sequence, commit in enumerate(commits, start=1):
        if sequence > journal.dropped:
            assert journal.read(sequence).equals(commit.observations)
        [result] = journal.append([commit])
        assert not isinstance(result, GalileoError)
        assert (result.sequence, result.duplicate) == (sequence, True)


def test_journal_open_missing_file_raises_unless_dropped(
    stored: Path, commits: list[Commit]
) -> None:
    journal = open_journal(stored, SMALL).journal
    pieces = journal.log_files()
    journal.drop(pieces[1].last)
    journal.close()
    path = stored / f"{pieces[2].first:020d}.segment"
    held = path.read_bytes()
    path.unlink()
    with raises(CorruptData, offset=0):
        open_journal(stored, SMALL)
    path.write_bytes(held)
    check_knows(open_journal(stored, SMALL).journal, commits, dropped=pieces[1].last)
    mark = log_start_path(stored).read_bytes()
    log_start_path(stored).unlink()
    with raises(CorruptData, offset=0):
        open_journal(stored, SMALL)
    log_start_path(stored).write_bytes(mark[:-1] + b"?")
    with raises(CorruptData, offset=0):
        open_journal(stored, SMALL)


def test_log_start_later_format_raises() -> None:
    stamp = {"format": "2", "until": "7", "forks": "[]", "bound": "7"}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCHES.with_metadata(stamp)) as writer:
        writer.write_table(BATCHES.empty_table().replace_schema_metadata(stamp))
    with raises(ConfigError, expected="format_version"):
        LogStart.from_bytes(sink.getvalue())
    with raises(CorruptData, expected="mark"):
        LogStart.from_bytes(b"anything")
