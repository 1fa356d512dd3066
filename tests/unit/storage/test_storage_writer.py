from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from journals import make_commit, open_journal

from galileo.errors import PartitionReadOnly
from galileo.storage.writer import JournalOptions


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def options(faulty_disk: Any, time: Time) -> JournalOptions:
    return JournalOptions(disk=faulty_disk, monotonic=time, retry_after_s=3.0)


def all_stopped(results: list[Any]) -> bool:
    return all(isinstance(result, PartitionReadOnly) for result in results)


def test_journal_append_group_is_synced_once(
    tmp_path: Path, options: Any, faulty_disk: Any
) -> None:
    journal = open_journal(tmp_path, options).journal
    journal.append([make_commit(0)])
    assert faulty_disk.calls[-4:] == ["create", "sync_directory", "write", "fdatasync"]
    faulty_disk.calls.clear()
    journal.append([make_commit(batch) for batch in range(1, 9)])
    assert faulty_disk.calls == ["write", "fdatasync"]


def test_journal_append_without_durability_syncs_nothing(tmp_path: Path, faulty_disk: Any) -> None:
    journal = open_journal(tmp_path, JournalOptions(disk=faulty_disk, durability="none")).journal
    journal.append([make_commit(0)])
    assert "fdatasync" not in faulty_disk.calls


@pytest.mark.parametrize("operation", ["fdatasync", "sync_directory"])
def test_journal_append_after_failed_sync_stays_read_only(
    tmp_path: Path, options: Any, faulty_disk: Any, time: Time, operation: str
) -> None:
    options = JournalOptions(
        disk=faulty_disk, monotonic=time, retry_after_s=3.0, segment_bytes_max=1
    )
    journal = open_journal(tmp_path, options).journal
    kept = make_commit(0)
    journal.append([kept])
    faulty_disk.failing = {operation: errno.EIO}
    assert all_stopped(journal.append([make_commit(1), make_commit(2), make_commit(1)]))
    assert "EIO" in journal.stopped
    assert journal.last_sequence == 1

    faulty_disk.failing, time.now = {}, 1e6
    faulty_disk.calls.clear()
    again = journal.append([make_commit(1), kept])
    assert isinstance(again[0], PartitionReadOnly)
    assert again[1].duplicate
    assert faulty_disk.calls == []
    assert journal.read(1).equals(kept.observations)
    journal.close()

    reopened = open_journal(tmp_path).journal
    assert reopened.last_sequence == 1
    assert reopened.append([make_commit(1)])[0].sequence == 2


def test_journal_append_retry_of_batch_not_undone_finds_it_once(
    tmp_path: Path, options: Any, faulty_disk: Any
) -> None:
    """It was never acknowledged, but it is whole on the disk, and recovery cannot tell why."""
    journal = open_journal(tmp_path, options).journal
    journal.append([make_commit(0)])
    faulty_disk.failing = {"fdatasync": errno.EIO, "truncate": errno.EIO}
    assert all_stopped(journal.append([make_commit(1)]))
    assert journal.last_sequence == 1
    journal.close()
    reopened = open_journal(tmp_path).journal
    result = reopened.append([make_commit(1)])[0]
    assert (result.sequence, result.duplicate) == (2, True)
    assert reopened.last_sequence == 2


@pytest.mark.parametrize("torn_bytes", [0, 1, 100, 700])
def test_journal_append_full_disk_pauses_until_room(
    tmp_path: Path, options: Any, faulty_disk: Any, time: Time, torn_bytes: int
) -> None:
    journal = open_journal(tmp_path, options).journal
    kept = make_commit(0)
    journal.append([kept])
    size = journal.bytes_on_disk
    faulty_disk.failing, faulty_disk.torn_bytes = {"write": errno.ENOSPC}, torn_bytes
    refused = journal.append([make_commit(1), make_commit(2)])
    assert all_stopped(refused)
    assert refused[0].details == {"after_s": 3.0}
    assert "ENOSPC" in journal.stopped
    assert next(tmp_path.iterdir()).stat().st_size == size
    assert journal.read(1).equals(kept.observations)

    time.now += 2.9
    faulty_disk.calls.clear()
    assert all_stopped(journal.append([make_commit(1)]))
    assert faulty_disk.calls == []
    time.now += 0.2
    assert all_stopped(journal.append([make_commit(1)]))
    assert "write" in faulty_disk.calls

    faulty_disk.failing, time.now = {}, time.now + 3.0
    assert [result.sequence for result in journal.append([make_commit(1), make_commit(2)])] == [
        2,
        3,
    ]
    assert journal.stopped is None
    journal.close()
    assert open_journal(tmp_path).journal.last_sequence == 3


def test_journal_append_segment_not_created_pauses(
    tmp_path: Path, options: Any, faulty_disk: Any, time: Time
) -> None:
    journal = open_journal(tmp_path, options).journal
    faulty_disk.failing = {"create": errno.ENOSPC}
    assert all_stopped(journal.append([make_commit(0)]))
    assert list(tmp_path.iterdir()) == []
    faulty_disk.failing, time.now = {}, time.now + 3.0
    assert journal.append([make_commit(0)])[0].sequence == 1


def test_journal_append_failed_write_not_undone_stays_read_only(
    tmp_path: Path, options: Any, faulty_disk: Any, time: Time
) -> None:
    journal = open_journal(tmp_path, options).journal
    journal.append([make_commit(0)])
    faulty_disk.failing = {"write": errno.EIO, "truncate": errno.EIO}
    faulty_disk.torn_bytes = 200
    assert all_stopped(journal.append([make_commit(1)]))
    faulty_disk.failing, time.now = {}, 1e6
    assert all_stopped(journal.append([make_commit(1)]))
    assert "so did undoing it" in journal.stopped
    journal.close()
    reopened = open_journal(tmp_path).journal
    assert (reopened.last_sequence, reopened.torn_bytes) == (1, 200)


def test_journal_append_interrupted_leaves_nothing(tmp_path: Path, faulty_disk: Any) -> None:
    """A whole unacknowledged group behind a shorter new one must not come alive."""

    class Interrupted(type(faulty_disk)):  # type: ignore[misc]
        armed = False

        def fdatasync(self, descriptor: int) -> None:
            if self.armed:
                raise KeyboardInterrupt
            super().fdatasync(descriptor)

    disk = Interrupted()
    journal = open_journal(tmp_path, JournalOptions(disk=disk)).journal
    disk.armed = True
    with pytest.raises(KeyboardInterrupt):
        journal.append([make_commit(0), make_commit(1)])
    disk.armed = False
    assert journal.append([make_commit(0)])[0].sequence == 1
    journal.close()
    assert open_journal(tmp_path).journal.last_sequence == 1


def test_journal_append_closed_is_refused(tmp_path: Path) -> None:
    journal = open_journal(tmp_path).journal
    journal.close()
    assert all_stopped(journal.append([make_commit(0)]))
    assert list(tmp_path.iterdir()) == []
    journal.close()


def test_recovery_syncs_commits_before_they_are_read(tmp_path: Path, faulty_disk: Any) -> None:
    journal = open_journal(tmp_path).journal
    journal.append([make_commit(0)])
    journal.close()
    faulty_disk.failing = {"fdatasync": errno.EIO}
    with raises(PartitionReadOnly, after_s=5.0):
        open_journal(tmp_path, JournalOptions(disk=faulty_disk))
    faulty_disk.failing = {}
    faulty_disk.calls.clear()
    assert open_journal(tmp_path, JournalOptions(disk=faulty_disk)).journal.last_sequence == 1
    assert faulty_disk.calls == ["sync_directory", "fdatasync", "sync_directory"]
