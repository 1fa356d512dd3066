from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from journals import SCHEMA, make_commit

from galileo.errors import ConfigError, CorruptData, InputError, PartitionReadOnly, Unavailable
from galileo.model.schema import Feature, Schema
from galileo.storage.backup import (
    EPOCHS_SKIPPED,
    MANIFEST,
    Manifest,
    StoredFile,
    _BackupWriter,
    backup,
    restore,
)
from galileo.storage.compaction import CompactionOptions
from galileo.storage.disk import REAL_DISK
from galileo.storage.metadata_files import MetadataFiles
from galileo.storage.store import Store
from galileo.storage.verify import verify
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=9_000)
NOW = 1.6e9
COMMITS = 9


def opened(directory: Path) -> Store:
    store = Store.open(directory, SMALL, wall=lambda: 1.5e9)
    store.recover(lambda *_: None)
    return store


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's directory: a merged partition, a plain one, a record, an empty dataset."""
    directory = tmp_path / "node"
    with opened(directory) as store:
        store.create_dataset(SCHEMA)
        store.create_dataset(Schema("empty", [Feature("wind", "m/s")]))
        store.save_record("ccq", "one", b"coordinator")
        for partition in (3, 12):
            for batch in range(COMMITS):
                store.journal("nam", partition).append([make_commit(batch, rows=20)])
        assert store.journal("nam", 3).merge(EVERYTHING, lambda _: True)
        store.journal("nam", 12).append([make_commit(COMMITS, rows=20)])
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def check_node(directory: Path, *, commits: dict[int, int]) -> None:
    assert verify(directory).damages == ()
    with opened(directory) as store:
        assert sorted(store.schemas()) == ["empty", "nam"]
        assert store.load_records("ccq") == {"one": b"coordinator"}
        for partition, last in commits.items():
            journal = store.journal("nam", partition)
            assert journal.last_sequence == last
            for sequence in range(1, last + 1):
                commit = make_commit(sequence - 1, rows=20)
                assert journal.read(sequence).equals(commit.observations)
                assert journal.append([commit])[0].duplicate


@pytest.mark.parametrize("link", [False, True])
def test_backup_and_restore_keeps_every_file(node: Path, tmp_path: Path, link: bool) -> None:
    before, progress = contents(node), []
    manifest = backup(node, tmp_path / "backup", now=NOW, link=link, progress=progress.append)
    assert contents(node) == before
    assert (manifest.commits, manifest.created_at) == (2 * COMMITS + 1, 1.6e9)
    stored = contents(tmp_path / "backup")
    assert {file.path for file in manifest.files} == set(before) - {"lock"}
    assert set(stored) == {*set(before) - {"lock"}, f"{MANIFEST}.record"}
    for file in manifest.files:
        assert stored[file.path] == before[file.path]
        assert file.bytes == len(before[file.path])
    assert sum(progress) == manifest.total_bytes

    progress.clear()
    assert (
        restore(tmp_path / "backup", tmp_path / "again", progress=progress.append, now=1.8e9)
        == manifest
    )
    assert sum(progress) == manifest.total_bytes
    assert contents(tmp_path / "backup") == stored
    check_node(tmp_path / "again", commits={3: COMMITS, 12: COMMITS + 1})
    with opened(node) as store, opened(tmp_path / "again") as restored:
        assert restored.epoch >= store.epoch + EPOCHS_SKIPPED


def test_backup_has_the_record_that_replaced_another_meanwhile(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a log of records merges its batches."""
    records = MetadataFiles(node / "records" / "ccq", REAL_DISK)
    names = _BackupWriter._names

    def replacing(self: _BackupWriter, place: str) -> list[Path]:
        listed = names(self, place)
        if place == "records/ccq" and "one" in records.names():
            records.save("two", b"coordinator")
            records.delete("one")
        return listed

    monkeypatch.setattr(_BackupWriter, "_names", replacing)
    backup(node, tmp_path / "backup", now=NOW)
    restore(tmp_path / "backup", tmp_path / "restored", now=1.8e9)
    with opened(tmp_path / "restored") as store:
        assert store.load_records("ccq") == {"two": b"coordinator"}


def test_backup_by_link_shares_sealed_segments_only(node: Path, tmp_path: Path) -> None:
    backup(node, tmp_path / "backup", now=NOW, link=True)
    for partition in (3, 12):
        place = f"journals/nam/{partition}"
        sealed = sorted((node / place).iterdir(), key=lambda path: (path.suffix, path.name))
        for path in sealed:
            copy = tmp_path / "backup" / place / path.name
            assert copy.samefile(path) == (path != sealed[-1])
    backup(node, tmp_path / "copy", now=NOW)
    for path in (tmp_path / "copy").rglob("*.segment"):
        assert path.stat().st_nlink == 1


def test_backup_by_link_source_merged_and_removed_is_kept(node: Path, tmp_path: Path) -> None:
    backup(node, tmp_path / "backup", now=NOW, link=True)
    before = contents(tmp_path / "backup")
    with opened(node) as store:
        journal = store.journal("nam", 12)
        for batch in range(COMMITS + 1, 30):
            journal.append([make_commit(batch, rows=20)])
        assert journal.merge(EVERYTHING, lambda _: True)
    assert contents(tmp_path / "backup") == before
    restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)
    check_node(tmp_path / "again", commits={3: COMMITS, 12: COMMITS + 1})


def test_backup_torn_tail_is_left_out(node: Path, tmp_path: Path) -> None:
    last = sorted((node / "journals/nam/12").glob("*.segment"))[-1]
    last.write_bytes(last.read_bytes()[:-100])
    torn = verify(node).torn_bytes
    assert torn > 0
    manifest = backup(node, tmp_path / "backup", now=NOW)
    copy = tmp_path / "backup" / last.relative_to(node)
    assert copy.read_bytes() == last.read_bytes()[:-torn]
    (file,) = (file for file in manifest.files if file.path == str(last.relative_to(node)))
    assert file.bytes == copy.stat().st_size
    restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)
    check_node(tmp_path / "again", commits={3: COMMITS, 12: COMMITS})


@pytest.mark.parametrize("link", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_backup_during_writes_and_merges_has_acknowledged_commits(
    node: Path, tmp_path: Path, link: bool
) -> None:
    """What was acknowledged before the backup began is in it."""
    done = threading.Event()
    with opened(node) as store:
        journal = store.journal("nam", 12)

        def write_and_merge() -> None:
            for batch in range(COMMITS + 1, 80):
                journal.append([make_commit(batch, rows=20)])
                if batch % 7 == 0:
                    journal.merge(EVERYTHING, lambda _: True)
            done.set()

        writer = threading.Thread(target=write_and_merge)
        writer.start()
        taken: list[tuple[Path, int]] = []
        while not done.is_set() or not taken:
            place, acknowledged = tmp_path / f"backup {len(taken)}", journal.last_sequence
            try:
                manifest = backup(node, place, now=NOW, link=link)
            except Unavailable:
                assert not place.exists()
                continue
            assert manifest.commits >= COMMITS + acknowledged
            taken.append((place, manifest.commits - COMMITS))
        writer.join()
    for place, last in dict.fromkeys((taken[0], taken[-1])):  # maybe one and the same
        restore(place, place.with_name(f"{place.name} again"), now=1.8e9)
        restored = place.with_name(f"{place.name} again")
        check_node(restored, commits={3: COMMITS, 12: last})


def test_backup_of_files_that_are_dropped_before_their_mark_is_copied_begins_again(
    node: Path, tmp_path: Path
) -> None:
    with opened(node) as store:
        journal = store.journal("nam", 12)
        newest = journal.files()[-1][0].relative_to(node)

        def drop_once(_: int) -> None:
            """Drops all files as soon as the newest one is copied."""
            if journal.dropped == 0 and (tmp_path / "backup.partial" / newest).exists():
                journal.seal()
                journal.append([make_commit(COMMITS + 1, rows=20)])
                journal.drop(COMMITS + 1)

        backup(node, tmp_path / "backup", now=NOW, progress=drop_once)
    restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)
    with opened(tmp_path / "again") as store:
        journal = store.journal("nam", 12)
        assert (journal.dropped, journal.last_sequence) == (COMMITS + 1, COMMITS + 2)
        commit = make_commit(COMMITS + 1, rows=20)
        assert journal.read(COMMITS + 2).equals(commit.observations)


def test_backup_damaged_segment_raises_corrupt_data(node: Path, tmp_path: Path) -> None:
    for pattern in ("*/3/*.merged", "*/12/*.segment"):
        path = min(node.glob(f"journals/{pattern}"))
        stored = bytearray(path.read_bytes())
        stored[700] ^= 1
        path.write_bytes(stored)
        for link in (False, True):
            with pytest.raises(CorruptData) as caught:
                backup(node, tmp_path / "backup", now=NOW, link=link)
            assert caught.value.details["file"] == str(path)
        stored[700] ^= 1
        path.write_bytes(stored)
    assert {path.name for path in tmp_path.iterdir()} == {"node"}


def test_restore_any_damage_raises_corrupt_data(node: Path, tmp_path: Path) -> None:
    backup(node, tmp_path / "backup", now=NOW)
    for path in sorted((tmp_path / "backup").rglob("*.*")):
        stored = path.read_bytes()
        changed = stored[:50] + bytes([stored[50] ^ 1]) + stored[51:] if len(stored) > 50 else b""
        for wrong in (changed, stored[:-1], stored + b"x"):
            path.write_bytes(wrong)
            with pytest.raises(CorruptData):
                restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)
        path.write_bytes(stored)
    assert {path.name for path in tmp_path.iterdir()} == {"node", "backup"}
    restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)


def test_restore_missing_file_raises(node: Path, tmp_path: Path) -> None:
    backup(node, tmp_path / "backup", now=NOW)
    min((tmp_path / "backup").rglob("*.segment")).unlink()
    with raises(PartitionReadOnly, expected="disk"):
        restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)
    assert not (tmp_path / "again").exists()


def test_backup_and_restore_existing_directory_raises(node: Path, tmp_path: Path) -> None:
    for name in ("there", "there.partial"):
        (tmp_path / name).mkdir()
        with raises(InputError, expected="new_directory"):
            backup(node, tmp_path / "there", now=NOW)
        (tmp_path / name).rmdir()
    backup(node, tmp_path / "backup", now=NOW)
    before = contents(node)
    with raises(InputError, expected="new_directory"):
        restore(tmp_path / "backup", node, now=1.8e9)
    assert contents(node) == before


def test_backup_of_other_directory_raises(node: Path, tmp_path: Path) -> None:
    with raises(InputError, expected="node_directory"):
        backup(tmp_path, tmp_path / "backup", now=NOW)
    with raises(InputError, expected="backup"):
        restore(node, tmp_path / "again", now=1.8e9)


OPERATIONS = ["create", "write", "fdatasync", "sync_directory"]


@pytest.mark.parametrize(
    ("operation", "spare"), [("rename", 0), *((name, n) for name in OPERATIONS for n in (0, 1, 5))]
)
def test_backup_disk_error_leaves_nothing(
    node: Path, tmp_path: Path, faulty_disk: Any, operation: str, spare: int
) -> None:
    backup(node, tmp_path / "good", now=NOW)
    faulty_disk.failing, faulty_disk.spare = {operation: errno.ENOSPC}, spare
    with raises(PartitionReadOnly, expected="disk"):
        backup(node, tmp_path / "backup", now=NOW, disk=faulty_disk)
    faulty_disk.calls.clear()
    with raises(PartitionReadOnly, expected="disk"):
        restore(tmp_path / "good", tmp_path / "again", disk=faulty_disk, now=1.8e9)
    assert {path.name for path in tmp_path.iterdir()} == {"node", "good"}


def test_restore_file_outside_or_later_format_raises(tmp_path: Path) -> None:
    records = MetadataFiles(tmp_path / "backup", REAL_DISK)
    for path in ("../other", "/etc/passwd", "node/../../x"):
        manifest = Manifest(0.0, 0, (StoredFile(path, 0, 0),))
        assert Manifest.from_bytes(manifest.to_bytes()) == manifest
        records.save(MANIFEST, manifest.to_bytes())
        with raises(InputError, expected="file_of_backup"):
            restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)
    later = json.loads(manifest.to_bytes()) | {"format": 9}
    records.save(MANIFEST, json.dumps(later).encode())
    with raises(ConfigError, expected="format_version"):
        restore(tmp_path / "backup", tmp_path / "again", now=1.8e9)
