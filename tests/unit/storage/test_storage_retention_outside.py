"""Verify, backup and restore where retention has dropped the beginning of a log."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from journal_checks import check_knows, seal_and_drop
from journals import SCHEMA, make_commit

from galileo.model.forks import first_of
from galileo.storage.backup import backup, restore
from galileo.storage.compaction import CompactionOptions, pick_compaction
from galileo.storage.partition_files import Partition
from galileo.storage.retention import load_log_start, log_start_path
from galileo.storage.store import Store
from galileo.storage.verify import verify
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's directory whose only partition lost its first files to retention."""
    directory = tmp_path / "node"
    with Store.open(directory, SMALL, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        store.create_dataset(SCHEMA)
        journal = store.journal("nam", 3)
        for batch in range(12):
            journal.append([make_commit(batch, rows=20)])
        journal.drop(journal.log_files()[1].last)
    return directory


def test_verify_and_backup_after_drop_ignore_dropped_commits(node: Path, tmp_path: Path) -> None:
    commits = [make_commit(batch, rows=20) for batch in range(12)]
    until = load_log_start(node / "journals/nam/3").until
    assert until > 0
    report = verify(node)
    assert report.damages == ()
    assert report.commits == 12 - until
    for link in (False, True):
        manifest = backup(node, tmp_path / f"backup {link}", now=1.6e9, link=link)
        assert "journals/nam/3/dropped.record" in {file.path for file in manifest.files}
        restore(tmp_path / f"backup {link}", tmp_path / f"again {link}", now=1.8e9)
        with Store.open(tmp_path / f"again {link}", SMALL, wall=lambda: 1.5e9) as store:
            store.recover(lambda *_: None)
            check_knows(store.journal("nam", 3), commits, dropped=until, partition=3)


def test_verify_missing_file_after_drop_is_damage(node: Path) -> None:
    partition = node / "journals/nam/3"
    until = load_log_start(partition).until
    left = sorted(partition.glob("*.segment"))
    left[0].unlink()
    [damage] = verify(node).damages
    assert f"expected the file of sequence {until + 1} next" in damage.reason
    for path in left[1:]:
        path.unlink()
    [damage] = verify(node).damages
    assert (damage.file, damage.sequence) == (str(log_start_path(partition)), until + 1)
    assert "the file behind that is missing" in damage.reason
    stored = bytearray(log_start_path(partition).read_bytes())
    stored[40] ^= 1
    log_start_path(partition).write_bytes(stored)
    assert [damage.file for damage in verify(node).damages] == [str(log_start_path(partition))]


def test_verify_leftover_below_mark_is_no_damage(node: Path, tmp_path: Path) -> None:
    partition = node / "journals/nam/3"
    leftover = partition / f"{1:020d}.segment"
    leftover.write_bytes(b"half deleted")
    assert verify(node).damages == ()
    backup(node, tmp_path / "backup", now=1.6e9)
    commits = [make_commit(batch, rows=20) for batch in range(12)]
    with Store.open(node, SMALL, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        assert not leftover.exists()
        check_knows(
            store.journal("nam", 3), commits, dropped=load_log_start(partition).until, partition=3
        )


def test_backup_during_drop_is_of_before_or_after(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drop happens after the files were listed and copied, before the mark is."""
    commits = [make_commit(batch, rows=20) for batch in range(12)]
    with Store.open(node, SMALL, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        journal = store.journal("nam", 3)
        listed = []
        files = Partition.files

        def files_then_drop(partition: Any) -> list[Path]:
            found = files(partition)
            if partition.directory.is_relative_to(node):
                listed.append(found)
            if len(listed) == 1:
                hold = {path: path.read_bytes() for path in found}
                seal_and_drop(journal)
                for path, data in hold.items():  # as if they had been copied before
                    path.write_bytes(data)
            return found

        monkeypatch.setattr("galileo.storage.partition_files.Partition.files", files_then_drop)
        backup(node, tmp_path / "backup", now=1.6e9)
        monkeypatch.undo()
        assert len(listed) >= 2, "the first attempt did not fit together"
    restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)
    with Store.open(tmp_path / "again", SMALL, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        check_knows(store.journal("nam", 3), commits, dropped=12, partition=3)


def test_pick_compaction_segments_beyond_span_are_kept_apart() -> None:
    @dataclasses.dataclass
    class Sealed:
        length: int
        newest_us: int
        first_sequence: int = 1
        next_sequence: int = 1

    sealed: Any = [Sealed(10, t) for t in (0, 4, 9, 11, 13, 30)]
    options = CompactionOptions(bytes_min=1000, bytes_max=2000, span_us=10)
    assert [one.newest_us for one in pick_compaction(sealed, options)] == [0, 4, 9]
    assert [one.newest_us for one in pick_compaction(sealed[3:], options)] == [11, 13]
    assert pick_compaction(sealed[5:], options) == (), "more may come"
    assert pick_compaction(sealed, dataclasses.replace(options, span_us=None)) == ()
    later: Any = Sealed(10, 4, first_sequence=first_of(5))
    assert pick_compaction([*sealed[:2], later], options) == tuple(sealed[:2]), "the log jumps"
