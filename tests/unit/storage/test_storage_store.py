from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from fault_injection.disks import MemoryDisk
from fault_injection.requirements import memory_disk_missing
from journals import SCHEMA, make_commit

from galileo.errors import (
    ConfigError,
    CorruptData,
    DatasetExists,
    InputError,
    InternalError,
    PartitionReadOnly,
    UnknownDataset,
)
from galileo.model.schema import Feature, Schema
from galileo.storage.journal import PartitionJournal
from galileo.storage.recovery import Replayed
from galileo.storage.store import Store
from galileo.storage.writer import JournalOptions


def wall() -> float:
    return 1.5e9


def opened(directory: Path, options: JournalOptions | None = None) -> Store:
    store = Store.open(directory, options, wall=wall)
    store.recover(lambda *_: None)
    return store


def test_store_reopened_has_datasets_and_commits(tmp_path: Path) -> None:
    other = Schema("radar", [Feature("reflectivity", "dBZ")])
    with opened(tmp_path / "new" / "node") as store:
        assert store.create_dataset(SCHEMA)
        assert store.create_dataset(other)
        for partition, batches in ((3, 2), (11, 1)):
            journal = store.journal("nam", partition)
            journal.append([make_commit(batch) for batch in range(batches)])
            assert store.journal("nam", partition) is journal

    replayed: list[tuple[str, int, Replayed]] = []
    with Store.open(tmp_path / "new" / "node", wall=wall) as store:
        assert store.schemas() == {"nam": SCHEMA, "radar": other}
        store.recover(lambda *frame: replayed.append(frame))
        assert [commits[:2] for commits in replayed] == [("nam", 3), ("nam", 11)]
        both = replayed[0][2]
        assert (both.first_sequence, both.last_sequence, both.counts.tolist()) == (1, 2, [3, 3])
        assert both.paths.slice(3).equals(make_commit(1).paths)
        assert set(store.journals()) == {("nam", 3), ("nam", 11)}
        assert store.journal("nam", 3).read(2).equals(make_commit(1).observations)


def test_store_create_dataset_other_schema_raises(tmp_path: Path) -> None:
    different = Schema("nam", SCHEMA.features, geohash_precision=6)
    with opened(tmp_path) as store:
        assert store.create_dataset(SCHEMA)
        assert not store.create_dataset(SCHEMA)
        with raises(DatasetExists, same=False):
            store.create_dataset(different)
    with opened(tmp_path) as store:
        assert not store.create_dataset(SCHEMA)
        with pytest.raises(DatasetExists):
            store.create_dataset(different)


def test_store_create_dataset_disk_error_leaves_none(tmp_path: Path, faulty_disk: Any) -> None:
    with opened(tmp_path, JournalOptions(disk=faulty_disk)) as store:
        faulty_disk.failing = {"fdatasync": 28}
        with pytest.raises(PartitionReadOnly):
            store.create_dataset(SCHEMA)
        assert store.schemas() == {}
        faulty_disk.failing = {}
        assert store.create_dataset(SCHEMA)


def test_store_journal_unknown_dataset_or_partition_raises(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_dataset(SCHEMA)
        with raises(UnknownDataset, dataset="../nam"):
            store.journal("../nam", 0)
        for partition in (-1, 2**31):
            with pytest.raises(InputError):
                store.journal("nam", partition)
    assert not (tmp_path / "journals").exists()


def test_store_journal_before_recovery_raises(tmp_path: Path) -> None:
    with Store.open(tmp_path, wall=wall) as store:
        store.create_dataset(SCHEMA)
        with raises(InternalError, expected="recovery"):
            store.journal("nam", 0)
        store.recover(lambda *_: None)
        with raises(InternalError, expected="one_recovery"):
            store.recover(lambda *_: None)


def test_store_journal_concurrent_calls_share_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_dataset(SCHEMA)
        found: list[PartitionJournal] = []
        threads = [
            threading.Thread(target=lambda: found.append(store.journal("nam", 5))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len({id(journal) for journal in found}) == 1


def test_store_epoch_increases_with_each_open(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        with Store.open(tmp_path, wall=wall) as store:
            epochs.append(store.epoch)
    assert epochs == [1, 2, 3]


def test_store_open_lost_or_damaged_epoch_raises_corrupt_data(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_dataset(SCHEMA)
    path = tmp_path / "node" / "epoch.record"
    path.write_bytes(path.read_bytes()[:-1] + b"9")
    with raises(CorruptData, offset=0):
        Store.open(tmp_path, wall=wall)
    path.unlink()
    with raises(CorruptData, offset=0):
        Store.open(tmp_path, wall=wall)


def test_store_recover_commits_without_schema_raises_corrupt_data(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_dataset(SCHEMA)
        store.journal("nam", 0).append([make_commit(0)])
    (tmp_path / "datasets" / "nam.record").unlink()
    with Store.open(tmp_path, wall=wall) as store, raises(CorruptData, offset=0):
        store.recover(lambda *_: None)


def test_store_open_directory_in_use_raises_with_pid(tmp_path: Path) -> None:
    with Store.open(tmp_path, wall=wall) as store:
        with raises(ConfigError, expected="only_user", pid=str(os.getpid())):
            Store.open(tmp_path, wall=wall)
        assert store.epoch == 1
    with Store.open(tmp_path, wall=wall) as store:
        assert store.epoch == 2


HOLDER = """
import sys
from pathlib import Path
from galileo.storage.store import Store
store = Store.open(Path(sys.argv[1]), wall=lambda: 0.0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_store_lock_of_other_process_ends_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as holder:
        assert holder.stdout.readline() == "held\n"
        with raises(ConfigError, expected="only_user", pid=str(holder.pid)):
            Store.open(tmp_path, wall=wall)
        holder.kill()
        holder.wait()
        with Store.open(tmp_path, wall=wall) as store:
            assert store.epoch == 2


def test_store_records_are_kept_by_kind(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.save_record("ccq", "b", b"first")
        store.save_record("ccq", "b", b"second")
        store.save_record("ccq", "a", b"")
        store.save_record("tracker", "b", b"other")
        store.save_record("ccq", "c", b"gone")
        store.delete_record("ccq", "c")
        store.delete_record("ccq", "never")
        for kind in (".", "..", "a/b", ""):
            with pytest.raises(InputError):
                store.save_record(kind, "a", b"")
    with opened(tmp_path) as store:
        assert list(store.load_records("ccq").items()) == [("a", b""), ("b", b"second")]
        assert store.load_records("tracker") == {"b": b"other"}
        assert store.load_records("nothing") == {}


def test_store_open_file_as_directory_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with raises(ConfigError, expected="directory"):
        Store.open(tmp_path / "file", wall=wall)


def test_store_recover_damaged_partition_raises_with_file_and_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_dataset(SCHEMA)
        journal = store.journal("nam", 0)
        journal.append([make_commit(0)])
        journal.append([make_commit(1)])
    path = tmp_path / "journals" / "nam" / "0" / f"{1:020d}.segment"
    stored = bytearray(path.read_bytes())
    stored[200] ^= 1
    path.write_bytes(stored)
    for _ in range(2):
        with Store.open(tmp_path, wall=wall) as store:
            store.recover(lambda *_: None)
            [(place, error)] = store.damaged.items()
        assert place == ("nam", 0)
        assert error.details == {"file": str(path), "offset": 0}


def test_store_deletes_a_partition_and_what_is_left_of_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_dataset(SCHEMA)
        for partition in (3, 11):
            store.journal("nam", partition).append([make_commit(0)])
        store.delete_partition(3)
        assert set(store.partitions_on_disk()) == {("nam", 11)}
        assert not store.partition_directory("nam", 3).exists()
    (tmp_path / "journals" / "nam" / "7.removed").mkdir()  # as a crash amid a deletion leaves it
    with opened(tmp_path) as store:
        assert store.journals().keys() == {("nam", 11)}
        assert [path.name for path in (tmp_path / "journals" / "nam").iterdir()] == ["11"]


def test_store_save_record_during_delete_partition_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large files take the file system seconds, and what waits may be the node's event loop."""
    saved, rmtree = threading.Event(), shutil.rmtree

    def save() -> None:
        store.save_record("kind", "name", b"value")
        saved.set()

    def delete(path: Path) -> None:
        threading.Thread(target=save).start()
        assert saved.wait(60.0)
        rmtree(path)

    with opened(tmp_path) as store:
        store.create_dataset(SCHEMA)
        store.journal("nam", 3)
        monkeypatch.setattr(shutil, "rmtree", delete)
        store.delete_partition(3)
        assert not set(store.partitions_on_disk())


def test_store_delete_partition_after_failed_delete_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(5, "the disk has failed")

    with opened(tmp_path) as store:
        store.create_dataset(SCHEMA)
        store.journal("nam", 3)
        (store.partition_directory("nam", 3) / "left").touch()
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", refuse)
            with pytest.raises(OSError, match="has failed"):
                store.delete_partition(3)
        store.journal("nam", 3)
        store.delete_partition(3)
        assert [*(tmp_path / "journals" / "nam").iterdir()] == []


@pytest.mark.skipif(memory_disk_missing() is not None, reason=str(memory_disk_missing()))
def test_free_bytes_read_only_disk_is_zero(tmp_path: Path) -> None:
    def mount(*arguments: object) -> None:
        subprocess.run(["mount", *map(str, arguments)], check=True)

    with MemoryDisk(tmp_path / "disk", size_bytes=1 << 20) as disk:
        seen = tmp_path / "seen"
        seen.mkdir()
        mount("--bind", disk.directory, seen)
        try:
            mount("-o", "remount,bind,ro", seen)
            free = {
                place: Store(place, JournalOptions(), wall=wall).free_bytes()
                for place in (disk.directory, seen)
            }
        finally:
            subprocess.run(["umount", seen], check=True)
        assert free == {disk.directory: 1 << 20, seen: 0}
