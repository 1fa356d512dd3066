from __future__ import annotations

import errno
import random
import shutil
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from journal_checks import check_holds
from journals import make_commit, open_journal
from killing_disk import Killed, KillingDisk

from galileo.errors import ConfigError, CorruptData, InputError
from galileo.storage import compacted_segment
from galileo.storage.compacted_segment import CACHED_BLOCKS_MAX, compacted_segment_paths
from galileo.storage.compaction import CompactionOptions
from galileo.storage.disk import RealDisk
from galileo.storage.frame import Buffer
from galileo.storage.journal import Commit
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=8_000)
TWO_BLOCKS = CompactionOptions(bytes_min=1, block_bytes=12_000)


def unhurried(_: int) -> bool:
    return True


def test_journal_merge_keeps_commits_and_sequences(stored: Path, commits: list[Commit]) -> None:
    journal = open_journal(stored, SMALL).journal
    headers = [journal.header(sequence) for sequence in range(1, 13)]
    assert journal.row_sizes(range(1, 13)) == [h.observations_bytes / h.rows for h in headers]
    last = journal._writer.path
    assert journal.merge(EVERYTHING, unhurried)
    assert sorted(path.suffix for path in stored.iterdir()) == [".merged", ".segment"]
    assert last.exists()
    check_holds(journal, commits)
    assert [journal.header(sequence) for sequence in range(1, 13)] == headers
    assert journal.row_sizes(range(1, 13)) == [h.observations_bytes / h.rows for h in headers]
    assert journal.row_sizes([2, 3, 12]) == [journal.row_sizes([n])[0] for n in (2, 3, 12)]
    assert journal.bytes_on_disk == sum(path.stat().st_size for path in stored.iterdir())
    assert not journal.merge(EVERYTHING, unhurried)
    assert journal.append([commits[0]])[0].duplicate
    assert journal.append([make_commit(99)])[0].sequence == 13
    journal.close()

    again = open_journal(stored, SMALL)
    check_holds(again.journal, [*commits, make_commit(99)])
    assert [again.journal.header(sequence) for sequence in range(1, 13)] == headers
    assert [sequence for sequence, _ in again.replayed] == list(range(1, 14))
    for (_, paths), commit in zip(again.replayed, commits, strict=False):
        assert paths.equals(commit.paths)
    for number, commit in enumerate(commits, start=1):
        result = again.journal.append([commit])[0]
        assert (result.sequence, result.duplicate) == (number, True)
    assert again.journal.last_batch("radar 1") == 10


def test_journal_read_ranges_of_merged_commits_are_exact(
    stored: Path, commits: list[Commit]
) -> None:
    journal = open_journal(stored, SMALL).journal
    journal.merge(EVERYTHING, unhurried)
    for sequence in (1, 4, 7):
        rows = commits[sequence - 1].observations
        ranges = ([3, 4, 0], [1, 6, 2])
        wanted = rows.take([3, *range(4, 10), 0, 1])
        assert journal.read(sequence, ranges=ranges).equals(wanted)


def test_merged_commits_have_their_rows_counted_without_a_file(
    stored: Path, commits: list[Commit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion asks for each commit that it names."""
    journal = open_journal(stored, SMALL).journal
    assert journal.merge(EVERYTHING, unhurried)
    counts = [commit.observations.num_rows for commit in commits]
    monkeypatch.delattr(compacted_segment, "load_index")
    assert [journal.row_count(n) for n in range(1, len(commits) + 1)] == counts
    with pytest.raises(InputError):
        journal.row_count(len(commits) + 1)


def test_journal_merge_waits_for_bytes_min_and_cuts_at_bytes_max(stored: Path) -> None:
    journal = open_journal(stored, SMALL).journal
    sizes = [path.stat().st_size for path in sorted(stored.iterdir())][:-1]
    assert not journal.merge(CompactionOptions(bytes_min=sum(sizes) + 1), unhurried)
    two = CompactionOptions(bytes_min=1, bytes_max=sizes[0] + sizes[1])
    rounds = 0
    while journal.merge(two, unhurried):
        rounds += 1
    assert rounds == -(-len(sizes) // 2)
    assert len(compacted_segment_paths(stored)) == rounds
    assert not list(stored.glob("*.merging"))


def test_journal_merge_does_not_wait_for_what_is_too_large_to_join(stored: Path) -> None:
    journal = open_journal(stored, SMALL).journal
    sizes = [path.stat().st_size for path in sorted(stored.iterdir())][:-1]
    both = sizes[0] + sizes[1] - 1
    assert sizes[0] < both
    assert journal.merge(CompactionOptions(bytes_min=both, bytes_max=both), unhurried)


def test_journal_merge_open_segment_is_left_alone(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, SMALL).journal
    assert not journal.merge(EVERYTHING, unhurried)


def test_journal_merge_rate_limit_gets_every_byte_and_can_stop(
    stored: Path, commits: list[Commit]
) -> None:
    journal = open_journal(stored, SMALL).journal
    before = {path: path.read_bytes() for path in stored.iterdir()}
    progress: list[int] = []

    def ends(size: int) -> bool:
        progress.append(size)
        return len(progress) < 2

    assert not journal.merge(EVERYTHING, ends)
    assert {path: path.read_bytes() for path in stored.iterdir()} == before
    progress.clear()
    assert journal.merge(EVERYTHING, lambda size: progress.append(size) is None)
    sealed = sorted(before)[:-1]
    assert sum(progress) == sum(len(before[path]) for path in sealed)
    check_holds(journal, commits)


class NotedLock:
    """A lock that shows when a thread wants it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_wanted = threading.Event()

    def __enter__(self) -> None:
        self.is_wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_journal_drop_ends_a_merge(stored: Path, commits: list[Commit]) -> None:
    """The thread that drops writes for all partitions, and a merge takes many seconds."""
    journal = open_journal(stored, SMALL).journal
    journal._merging = lock = NotedLock()
    last = journal._segments[0].next_sequence - 1
    drops: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as executor:

        def drop(_: int) -> bool:
            if not drops:
                lock.is_wanted.clear()
                drops.append(executor.submit(journal.drop, last))
                assert lock.is_wanted.wait(60)
            return True

        assert not journal.merge(EVERYTHING, drop)
        drops[0].result()
    assert journal.dropped == last
    assert not list(stored.glob("*.merging"))
    assert journal.merge(EVERYTHING, unhurried)
    rest = journal.read(last + 1)
    assert rest.equals(commits[last].observations)


def test_journal_drop_of_nothing_leaves_a_merge_alone(stored: Path) -> None:
    journal = open_journal(stored, SMALL).journal
    assert journal.merge(EVERYTHING, lambda _: journal.drop(0).until == 0)


@examples(30)
@given(data=st.data())
def test_journal_random_appends_and_merges_equals_list(data: st.DataObject) -> None:
    """Appends, merges of any size and restarts in any order, against a list of commits."""
    segment_bytes_max = data.draw(st.sampled_from([1, 5_000, 12_000]))
    options = JournalOptions(durability="none", segment_bytes_max=segment_bytes_max)
    steps = data.draw(st.lists(st.sampled_from(["append", "merge", "reopen"]), max_size=12))
    model: list[Commit] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "7"
        journal = open_journal(directory, options).journal
        for step in steps:
            if step == "append":
                sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
                producer = data.draw(st.sampled_from(["radar", "satellite"]))
                group = [
                    make_commit(1000 - 7 * (len(model) + n), rows=rows, producer=producer)
                    for n, rows in enumerate(sizes)
                ]
                assert [r.sequence for r in journal.append(group)] == [
                    len(model) + 1 + n for n in range(len(group))
                ]
                model += group
            elif step == "merge":
                bytes_max = data.draw(st.sampled_from([1, 9_000, 10**9]))
                block_bytes = data.draw(st.sampled_from([1, 5_000, 10**9]))
                journal.merge(
                    CompactionOptions(bytes_min=1, bytes_max=bytes_max, block_bytes=block_bytes),
                    unhurried,
                )
            else:
                journal.close()
                again = open_journal(directory, options)
                journal = again.journal
                assert [paths for _, paths in again.replayed] == [c.paths for c in model]
            check_holds(journal, model)
            if model:
                repeated = data.draw(st.sampled_from(range(len(model))))
                result = journal.append([model[repeated]])[0]
                assert (result.sequence, result.duplicate) == (repeated + 1, True)
        journal.close()


def merge_killed_at(directory: Path, *, at: int, after: bool) -> tuple[list[str], bool]:
    """Merges with a process that dies at an operation; which ones it did, and whether it died."""
    journal = open_journal(directory, SMALL).journal
    disk = KillingDisk(at, after=after)
    journal._disk = disk
    try:
        journal.merge(TWO_BLOCKS, unhurried)
    except Killed:
        return disk.names, True
    finally:
        journal.close()
    return disk.names, False


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_journal_merge_killed_at_any_step_keeps_each_commit_once(
    stored: Path, tmp_path: Path, commits: list[Commit], after: bool
) -> None:
    seen: set[str] = set()
    for at in range(1000):
        copy = tmp_path / f"copy {at}"
        shutil.copytree(stored, copy)
        names, died = merge_killed_at(copy, at=at, after=after)
        seen |= set(names)
        check_one_version(copy, commits)
        if not died:
            break
        shutil.rmtree(copy)
    assert not died
    assert seen == {"create", "write", "fdatasync", "rename", "unlink", "sync_directory"}


def check_one_version(directory: Path, commits: list[Commit]) -> None:
    again = open_journal(directory, SMALL)
    check_holds(again.journal, commits)
    assert [sequence for sequence, _ in again.replayed] == list(range(1, 13))
    held = [*compacted_segment_paths(directory), *sorted(directory.glob("*.segment"))]
    assert sorted(held) == sorted(directory.iterdir())
    firsts = [int(path.stem) for path in held]
    assert firsts == sorted(set(firsts))
    assert again.journal.bytes_on_disk == sum(path.stat().st_size for path in held)
    again.journal.merge(EVERYTHING, unhurried)
    check_holds(again.journal, commits)
    again.journal.close()


@pytest.mark.slow
def test_journal_recovery_killed_during_cleanup_is_repeated(
    tmp_path: Path, commits: list[Commit]
) -> None:
    make_again(tmp_path / "whole", commits)
    names, _ = merge_killed_at(tmp_path / "whole", at=10**6, after=False)
    for at in range(names.count("unlink") + 1):
        place = tmp_path / f"{at}"
        make_again(place, commits)
        merge_killed_at(place, at=names.index("unlink"), after=False)
        left = len(list(place.glob("*.segment")))
        disk = KillingDisk(at + 1, after=True)  # the first one looks for the directory
        with pytest.raises(Killed):
            open_journal(place, JournalOptions(segment_bytes_max=6_000, disk=disk))
        assert disk.names[-1] in ("unlink", "sync_directory")
        assert len(list(place.glob("*.segment"))) == left - disk.names.count("unlink")
        check_one_version(place, commits)


def make_again(directory: Path, commits: list[Commit]) -> None:
    journal = open_journal(directory, SMALL).journal
    for commit in commits:
        journal.append([commit])
    journal.close()


@pytest.mark.parametrize("operation", ["create", "write", "fdatasync", "rename"])
def test_journal_merge_disk_error_changes_nothing(
    stored: Path, commits: list[Commit], faulty_disk: Any, operation: str
) -> None:
    journal = open_journal(stored, SMALL).journal
    before = {path: path.read_bytes() for path in stored.iterdir()}
    journal._disk = faulty_disk
    faulty_disk.failing = {operation: errno.ENOSPC}
    with pytest.raises(OSError, match="ENOSPC"):
        journal.merge(EVERYTHING, unhurried)
    assert {path: path.read_bytes() for path in stored.iterdir()} == before
    check_holds(journal, commits)
    faulty_disk.failing = {}
    assert journal.merge(EVERYTHING, unhurried)
    check_holds(journal, commits)


def test_journal_merge_undeleted_sources_are_deleted_at_next_open(
    stored: Path, commits: list[Commit], faulty_disk: Any
) -> None:
    journal = open_journal(stored, SMALL).journal
    segments = len(list(stored.iterdir()))
    journal._disk = faulty_disk
    faulty_disk.failing = {"unlink": errno.EROFS}
    with pytest.raises(OSError, match="EROFS"):
        journal.merge(EVERYTHING, unhurried)
    assert len(list(stored.iterdir())) == segments + 1
    check_holds(journal, commits)
    journal.close()
    check_one_version(stored, commits)


def test_journal_merge_damaged_segment_raises_corrupt_data(stored: Path) -> None:
    journal = open_journal(stored, SMALL).journal
    path = sorted(stored.iterdir())[1]
    held = bytearray(path.read_bytes())
    for place in random.Random(1).sample(range(len(held)), 60):
        held[place] ^= 1
        path.write_bytes(held)
        with pytest.raises(CorruptData) as caught:
            journal.merge(EVERYTHING, unhurried)
        assert caught.value.details["file"] == str(path)
        assert not list(stored.glob("*.merg*"))
        held[place] ^= 1
    path.write_bytes(held)
    assert journal.merge(EVERYTHING, unhurried)


def test_journal_open_missing_segment_keeps_leftover_of_merge(stored: Path) -> None:
    """In doubt nothing is deleted."""
    names, _ = merge_killed_at(stored, at=10**6, after=False)
    assert names.count("unlink") >= 3
    (newest,) = stored.glob("*.segment")
    leftover = stored / f"{2:020d}.segment"
    newest.rename(leftover)
    with raises(CorruptData, offset=0):
        open_journal(stored, SMALL)
    assert leftover.exists()


def test_journal_merge_during_reads_and_writes_is_invisible(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, SMALL).journal
    commits = [make_commit(batch, rows=20) for batch in range(50)]
    for commit in commits[:30]:
        journal.append([commit])
    failures: list[BaseException] = []
    done = threading.Event()

    def read_all() -> None:
        rng = random.Random(2)
        try:
            while not done.is_set():
                sequence = rng.randint(1, journal.last_sequence)
                commit = commits[sequence - 1]
                assert journal.read(sequence).equals(commit.observations)
                assert journal.paths(sequence).equals(commit.paths)
                assert journal.header(sequence).batch == commit.batch
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read_all) for _ in range(3)]
    for reader in readers:
        reader.start()
    for commit in commits[30:]:
        journal.append([commit])
        journal.merge(EVERYTHING, unhurried)
    done.set()
    for reader in readers:
        reader.join()
    assert not failures
    check_holds(journal, commits)
    journal.close()
    check_holds(open_journal(tmp_path, SMALL).journal, commits)


def test_journal_read_segment_merged_meanwhile_finds_commit(
    stored: Path, commits: list[Commit]
) -> None:
    journal = open_journal(stored, SMALL).journal
    asked: list[Any] = []

    def read_late(segment: Any) -> Any:
        if not asked:
            assert journal.merge(EVERYTHING, unhurried)
        asked.append(segment)
        return segment.observations(1)

    observations = journal._from_segment(1, read_late)
    assert observations.equals(commits[0].observations.to_batches()[0])
    assert [segment.path.suffix for segment in asked] == [".segment", ".merged"]


def test_journal_merged_blocks_cache_is_bounded(stored: Path, commits: list[Commit]) -> None:
    journal = open_journal(stored, SMALL).journal
    journal.merge(CompactionOptions(bytes_min=1, block_bytes=1), unhurried)
    check_holds(journal, commits)
    assert len(journal._blocks._blocks) == CACHED_BLOCKS_MAX
    table = journal.read(1)
    journal.close()
    assert not journal._blocks._blocks
    assert table.equals(commits[0].observations)


@pytest.mark.parametrize(
    "wrong", [{"bytes_min": 0}, {"bytes_min": 2, "bytes_max": 1}, {"block_bytes": 0}]
)
def test_compaction_options_invalid_threshold_raises(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        CompactionOptions(**wrong)


def test_journal_merge_file_reads_differently_is_discarded(
    stored: Path, commits: list[Commit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that stores other bytes than it was given."""

    class LyingDisk(RealDisk):
        def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
            data = bytearray(b"".join(map(bytes, buffers)))
            data[len(data) // 2] ^= 1
            return RealDisk.write(self, descriptor, [bytes(data)], offset)

    journal = open_journal(stored, SMALL).journal
    before = sorted(stored.iterdir())
    journal._disk = LyingDisk()
    with raises(CorruptData, offset=19904):
        journal.merge(EVERYTHING, unhurried)
    assert sorted(stored.iterdir()) == before
    check_holds(journal, commits)


def test_journal_open_deletes_unfinished_merge(stored: Path) -> None:
    unfinished = stored / f"{1:020d}.merging"
    unfinished.write_bytes(b"half of it")
    open_journal(stored, SMALL)
    assert not unfinished.exists()
