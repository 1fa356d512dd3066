"""Erasing of removed rows in a journal, against a dumb list of observations."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from journals import SCHEMA, make_commit, make_observations, open_journal
from killing_disk import Killed, KillingDisk

from galileo.errors import BatchConflict, DataExpired
from galileo.model import paths as model_paths
from galileo.model.forks import Forks
from galileo.storage.compacted_segment import CompactedSegment, load_index
from galileo.storage.compaction import CompactionOptions
from galileo.storage.erasing import RemovedRows
from galileo.storage.journal import Commit, PartitionJournal, decode_frames
from galileo.storage.retention import TruncatedProducers, _batches_from_file
from galileo.storage.scrub import scrub_file
from galileo.storage.verify import Corruption
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=8_000)


def unhurried(_: int) -> bool:
    return True


def removed_of(
    rows: Iterable[tuple[int, int]], until: int, *, earlier: Mapping[tuple[int, int], int] = {}
) -> RemovedRows:
    """Single rows, (sequence, row), that the commit `until` has removed, and some before."""
    by = {**dict.fromkeys(rows, until), **earlier}
    sequence, row = (np.array(column, np.int64) for column in zip(*by, strict=True))
    ones = np.ones(len(row), dtype=np.int64)
    return RemovedRows.of(
        until, sequence=sequence, row=row, rows=ones, by=np.array([*by.values()], np.int64)
    )


def secret_of(sequence: int, row: int) -> str:
    return f"secret-{sequence:04d}-{row:04d}."


def secret_commit(batch: int, rows: int) -> Commit:
    """Every observation has a text that no other one has; paths have several rows."""
    table = make_observations(rows, batch)
    places = [table.column(name).to_numpy().round(-1) for name in ("latitude", "longitude")]
    table = table.set_column(0, table.schema.field(0), pa.array(places[0]))
    table = table.set_column(1, table.schema.field(1), pa.array(places[1]))
    temperature = pa.array(np.full(rows, 280.0))
    table = table.set_column(3, table.schema.field(3), temperature)
    observations, paths = model_paths.index(SCHEMA, table)
    secrets = pa.array([secret_of(batch, row) for row in range(rows)])
    at = observations.schema.get_field_index("station")
    return Commit("radar", batch, observations.set_column(at, "station", secrets), paths)


def stored_text(journal: PartitionJournal) -> bytes:
    """Every byte of the files, as it is and decompressed."""
    parts = []
    for segment in journal._segments:
        parts.append(segment.path.read_bytes())
        if isinstance(segment, CompactedSegment):
            for _, paths, rows in segment.commits():
                parts += [
                    bytes(b) for batch in (paths, rows) for c in batch for b in c.buffers() if b
                ]
    return b"\n".join(parts)


def holds(text: bytes, sequence: int, row: int) -> bool:
    return secret_of(sequence, row).encode() in text


@dataclass
class Model:
    """What was committed, and which rows are erased."""

    commits: list[Commit] = field(default_factory=list)
    erased: set[tuple[int, int]] = field(default_factory=set)
    removed: dict[tuple[int, int], int] = field(default_factory=dict)

    def check(self, journal: PartitionJournal) -> None:
        for sequence, commit in enumerate(self.commits, start=1):
            rows = commit.observations
            gone = [row for row in range(rows.num_rows) if (sequence, row) in self.erased]
            kept = [row for row in range(rows.num_rows) if (sequence, row) not in self.erased]
            if kept:
                read = journal.read(sequence, ranges=(kept, [1] * len(kept)))
                assert read.equals(pa.table(rows).take(kept))
            for row in {*gone[:1], *gone[-1:]}:
                with pytest.raises(DataExpired):
                    journal.read(sequence, ranges=([*kept[:2], row], [1] * len([*kept[:2], row])))
            header = journal.header(sequence)
            assert (header.rows, header.paths) == (rows.num_rows, commit.paths.num_rows)
            self.check_paths(journal.paths(sequence), sequence, commit.paths)

    def check_paths(self, stored: pa.RecordBatch, sequence: int, paths: pa.RecordBatch) -> None:
        for number, (row, rows) in enumerate(
            zip(paths.column("row").to_pylist(), paths.column("rows").to_pylist(), strict=True)
        ):
            gone = {(sequence, place) for place in range(row, row + rows)} <= self.erased
            if gone:
                assert stored.column("rows")[number].as_py() == 0
                assert stored.column("temperature")[number].as_py() is None
            else:
                assert stored.slice(number, 1).equals(paths.slice(number, 1))


@examples(40)
@given(data=st.data())
def test_journal_random_erasing_equals_list(data: st.DataObject, tmp_path_factory) -> None:
    directory = tmp_path_factory.mktemp("erasing") / "7"
    journal, model = open_journal(directory, SMALL).journal, Model()
    steps = st.sampled_from(["append", "append", "merge", "erase", "erase", "reopen"])
    for step in data.draw(st.lists(steps, min_size=4, max_size=12)):
        if step == "append":
            for size in data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=3)):
                commit = secret_commit(len(model.commits) + 1, size)
                journal.append([commit])
                model.commits.append(commit)
        elif step == "merge":
            journal.merge(EVERYTHING, unhurried)
        elif step == "reopen":
            journal.close()
            journal = open_journal(directory, SMALL).journal
        elif model.commits:
            if data.draw(st.booleans()):
                journal.seal()
            every = [
                (sequence, row)
                for sequence, commit in enumerate(model.commits, start=1)
                for row in range(commit.observations.num_rows)
            ]
            chosen = data.draw(st.sets(st.sampled_from(every), min_size=1, max_size=40))
            before = [journal.header(n + 1) for n in range(len(model.commits))]
            digest = journal.history.digest(0, len(model.commits))
            until = journal.erased + 1
            removed = removed_of(chosen, until, earlier=model.removed)
            done = journal.erase(removed, unhurried)
            model.removed = dict.fromkeys(chosen, until) | model.removed
            writing = next((f.first for f in journal.log_files() if not f.sealed), 10**9)
            new = {place for place in model.removed if place[0] < writing} - model.erased
            assert (done.rows, done.is_over) == (len(new), True)
            assert (done.files > 0) == bool(new)
            model.erased |= new
            text = stored_text(journal)
            assert not any(holds(text, *place) for place in model.erased)
            assert all(holds(text, *place) for place in every if place not in model.erased)
            assert journal.history.digest(0, len(model.commits)) == digest
            for header, now in zip(
                before, (journal.header(n.sequence) for n in before), strict=True
            ):
                same = {n: getattr(now, n) for n in ("batch", "epoch", "observations_crc", "rows")}
                assert same == {name: getattr(header, name) for name in same}
        model.check(journal)
        assert not list(damages(journal))
    journal.close()


def damages(journal: PartitionJournal) -> Iterable[Corruption]:
    for path, length in journal.files():
        flaw = scrub_file(path, partition=7, length=length, on_read=lambda _: None)
        if flaw is not None:
            yield flaw


def erased_journal(directory: Path) -> tuple[PartitionJournal, Model]:
    """Twelve commits, of which half of the rows are erased."""
    journal, model = open_journal(directory, SMALL).journal, Model()
    for batch in range(1, 13):
        model.commits.append(secret_commit(batch, 20))
        journal.append([model.commits[-1]])
    journal.merge(CompactionOptions(bytes_min=1, bytes_max=12_000), unhurried)
    journal.seal()
    rows = {(sequence, row) for sequence in range(1, 13) for row in range(0, 20, 2)}
    assert journal.erase(removed_of(rows, 12), unhurried).rows == len(rows)
    model.erased = rows
    return journal, model


def test_journal_repeated_batch_is_recognised_after_erasing(tmp_path: Path) -> None:
    journal, model = erased_journal(tmp_path / "7")
    for number, commit in enumerate(model.commits, start=1):
        [result] = journal.append([commit])
        assert (result.sequence, result.duplicate) == (number, True)
    other = secret_commit(1, 20)
    changed = other.observations.column("station").to_pylist()
    changed[1] = "another"  # A row that stays.
    at = other.observations.schema.get_field_index("station")
    rows = other.observations.set_column(at, "station", pa.array(changed))
    [result] = journal.append([Commit("radar", 1, rows, other.paths)])
    assert isinstance(result, BatchConflict)
    [result] = journal.append([make_commit(1, rows=3)])
    assert isinstance(result, BatchConflict)
    dropped = TruncatedProducers(_batches_from_file(journal._segments[0]))
    assert dropped.first_result(model.commits[0], SCHEMA).duplicate


def test_journal_copy_of_erased_commits_has_blank_rows_and_the_bound(tmp_path: Path) -> None:
    journal, model = erased_journal(tmp_path / "7")
    copy, after = open_journal(tmp_path / "copy", SMALL).journal, 0

    class Epochs:
        forks = Forks()

        def at(self, _: int) -> int:
            return 0

    while after < 12:
        last, data = journal.frames(after, 12, bytes_max=4_000)
        frames = decode_frames(data, schema=SCHEMA, partition=7, after=after, epochs=Epochs())
        with copy.appending_frames(after, frames) as appending:
            appending.write()
            appending.finish()
        copy.publish(last)
        after = last
    assert copy.erased == journal.erased == 12
    assert copy.history.digest(0, 12) == journal.history.digest(0, 12)
    model.check(copy)
    text = stored_text(copy)
    assert not any(holds(text, *place) for place in model.erased)
    for number, commit in enumerate(model.commits, start=1):
        [result] = copy.append([commit])
        assert (result.sequence, result.duplicate) == (number, True)
    copy.seal()
    assert not copy.erase(removed_of(model.erased, 12), unhurried).files
    copy.merge(EVERYTHING, unhurried)
    copy.close()
    again = open_journal(tmp_path / "copy", SMALL)
    assert again.journal.erased == 12
    model.check(again.journal)
    assert [paths for _, paths in again.replayed] == [again.journal.paths(n + 1) for n in range(12)]


def test_journal_erase_share_of_a_file_decides(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "7", SMALL).journal
    journal.append([secret_commit(1, 20)])
    journal.seal()
    pairs = {(1, row) for row in range(9)}
    few = removed_of(pairs, 2)
    assert not journal.erase(few, unhurried, share=0.5).files
    assert journal.erased == 2, "its rows count no more, wherever their bytes are"
    assert journal.erase(few, unhurried).rows == 9
    more = removed_of({(1, row) for row in range(15)}, 3, earlier=dict.fromkeys(pairs, 2))
    assert journal.erase(more, unhurried, share=0.5).rows == 6
    assert load_index(journal._segments[0].path).numbers("erased").tolist() == [3]


def test_journal_erase_of_a_later_segment_merges_the_segments_before(tmp_path: Path) -> None:
    journal, model = open_journal(tmp_path / "7", SMALL).journal, Model()
    for batch in range(1, 9):
        model.commits.append(secret_commit(batch, 20))
        journal.append([model.commits[-1]])
        journal.seal()
    model.erased = {(5, 1), (5, 2)}
    done = journal.erase(removed_of(model.erased, 9), unhurried)
    assert (done.files, done.rows) == (5, 2)
    model.check(journal)
    journal.close()
    again = open_journal(tmp_path / "7", SMALL).journal
    model.check(again)
    again.merge(EVERYTHING, unhurried)
    model.check(again)


def test_journal_erase_can_be_ended(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "7", SMALL).journal
    for batch in range(1, 5):
        journal.append([secret_commit(batch, 20)])
    journal.seal()
    before = stored_text(journal)
    rows = removed_of({(sequence, 3) for sequence in range(1, 5)}, 4)
    done = journal.erase(rows, lambda _: False)
    assert (done.files, done.rows, done.is_over) == (0, 0, False)
    assert stored_text(journal) == before
    assert journal.erase(rows, unhurried).rows == 4


def test_journal_reader_that_meets_the_new_file_reads_again(tmp_path: Path) -> None:
    journal, model = erased_journal(tmp_path / "7")
    old = journal._segments[0]
    assert isinstance(old, CompactedSegment)
    rows = removed_of({(1, 1)}, 13, earlier=dict.fromkeys(model.erased, 12))
    assert journal.erase(rows, unhurried).rows == 1
    segments, swapped = journal._segments, [False]

    def stale(self: PartitionJournal) -> list:
        """The first look finds the segment that was replaced."""
        if swapped[0]:
            return segments
        swapped[0] = True
        return [old, *segments[1:]]

    journal.__class__ = type("Stale", (PartitionJournal,), {"_segments": property(stale)})
    assert journal.read(2, ranges=([1], [1])).column("station").to_pylist() == [secret_of(2, 1)]
    assert swapped[0]


def erase_killed_at(
    directory: Path, rows: RemovedRows, *, at: int, after: bool
) -> tuple[list[str], bool]:
    journal = open_journal(directory, SMALL).journal
    disk = KillingDisk(at, after=after)
    journal._disk = disk
    try:
        journal.erase(rows, unhurried)
    except Killed:
        return disk.names, True
    finally:
        journal.close()
    return disk.names, False


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_journal_erase_killed_at_any_step_keeps_each_commit_once(
    tmp_path: Path, after: bool
) -> None:
    journal, model = erased_journal(tmp_path / "7")
    journal.append([secret_commit(13, 20)])
    model.commits.append(secret_commit(13, 20))
    journal.append([secret_commit(14, 20)])
    model.commits.append(secret_commit(14, 20))
    journal.seal()
    journal.close()
    rows, seen = model.erased | {(1, 1), (13, 7)}, set[str]()
    removed = removed_of(rows, 20, earlier=dict.fromkeys(model.erased, 12))
    for at in range(1000):
        copy = tmp_path / f"copy {at}"
        shutil.copytree(tmp_path / "7", copy)
        names, died = erase_killed_at(copy, removed, at=at, after=after)
        seen |= set(names)
        again = open_journal(copy, SMALL).journal
        text = stored_text(again)
        left = {place for place in rows if holds(text, *place)}
        Model(model.commits, rows - left).check(again)
        assert again.erased == (20 if left < rows - model.erased else 12)
        assert not list(copy.glob("*.merging"))
        again.erase(removed, unhurried)
        Model(model.commits, rows).check(again)
        again.close()
        shutil.rmtree(copy)
        if not died:
            break
    assert not died
    assert seen == {"create", "write", "fdatasync", "rename", "unlink", "sync_directory"}
