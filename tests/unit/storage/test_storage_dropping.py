"""Dropping a whole dataset: by one write, whatever happens to the process or the disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from journals import SCHEMA, make_commit
from mortal_disk import Died, MortalDisk

from galileo.errors import DataExpired, PartitionReadOnly, UnknownDataset
from galileo.model.schema import Feature, Schema
from galileo.storage.backup import backup
from galileo.storage.journal import Committed
from galileo.storage.store import Store
from galileo.storage.verify import verify
from galileo.storage.writer import JournalOptions

OTHER = Schema("radar", [Feature("reflectivity", "dBZ")])
NEW = Schema("nam", [Feature("depth", "m")]).of_generation(1)


def opened(directory: Path, disk: MortalDisk | None = None) -> Store:
    options = JournalOptions(disk=disk or MortalDisk())
    store = Store.open(directory, options, wall=lambda: 1.5e9)
    store.recover(lambda *_: None)
    return store


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The directory of a node with two datasets, one of them with two partitions."""
    with opened(tmp_path / "node") as store:
        for dataset in (SCHEMA, OTHER):
            store.create_dataset(dataset)
        for partition in (3, 11):
            store.journal("nam", partition).append([make_commit(n) for n in range(3)])
        store.journal("radar", 3)
    return tmp_path / "node"


def drop(store: Store) -> None:
    """As the catalog does it."""
    keys = store.drop_dataset("nam", 1)
    for (dataset, _), journal in store.journals().items():
        if dataset in keys:
            journal.end()
    store.delete_dropped()


def files_of(directory: Path, key: str) -> list[Path]:
    return [path for path in directory.rglob("*") if path.name.split(".")[0] == key]


def check_whole_or_nothing(directory: Path) -> bool:
    """Opens the directory twice; whether the dataset is dropped."""
    for _ in range(2):
        with opened(directory) as store:
            assert "radar" in store.schemas()
            is_dropped = "nam" not in store.schemas()
            assert is_dropped == store.is_dropped("nam")
            ends = {key: journal.last_sequence for key, journal in store.journals().items()}
            left = {} if is_dropped else {("nam", 3): 3, ("nam", 11): 3}
            assert ends == left | {("radar", 3): 0}
            assert store.create_dataset(NEW) if is_dropped else True
            assert not is_dropped or store.journal("nam@1", 3).last_sequence == 0
        assert bool(files_of(directory / "journals", "nam")) is not is_dropped
        assert not list(directory.rglob("*@removed"))
        if is_dropped:
            (directory / "datasets" / "nam@1.record").unlink()
            shutil.rmtree(directory / "journals" / "nam@1")
    return is_dropped


def test_drop_dataset_removes_all_but_generation(stored: Path) -> None:
    with opened(stored) as store:
        drop(store)
        assert store.schemas() == {"radar": OTHER}
        assert store.generations == {"nam": 1}
        assert (store.is_dropped("nam"), store.is_dropped("nam@1")) == (True, False)
        with pytest.raises(UnknownDataset):
            store.journal("nam", 3)
        assert store.drop_dataset("nam", 1) == [], "again is harmless"
    assert not files_of(stored, "nam")
    assert verify(stored).ok
    assert check_whole_or_nothing(stored)


def test_dropped_names_are_entries_of_a_log_not_files(tmp_path: Path) -> None:
    with opened(tmp_path / "node") as store:
        for number in range(300):
            store.create_dataset(Schema(f"n{number}", [Feature("depth", "m")]))
            store.drop_dataset(f"n{number}", 1)
            store.delete_dropped()
    with opened(tmp_path / "node") as store:
        assert store.generations == {f"n{number}": 1 for number in range(300)}
        assert not store.schemas()
    assert len(list((tmp_path / "node").rglob("*.record"))) < 300


def test_drop_dataset_name_can_be_used_again(stored: Path) -> None:
    with opened(stored) as store:
        drop(store)
        store.create_dataset(NEW)
        assert store.journal("nam@1", 3).last_sequence == 0
        again = SCHEMA.of_generation(1)
    with opened(stored) as store:
        assert store.schemas()["nam@1"] == NEW != again
        assert store.drop_dataset("nam", 1) == [], "that was the one before"
        assert store.drop_dataset("nam", 2) == ["nam@1"]


def test_drop_dataset_interrupted_is_finished_at_open(stored: Path) -> None:
    with opened(stored) as store:
        store.drop_dataset("nam", 1)
    (stored / "journals" / "nam@removed" / "7").mkdir(parents=True)  # of a drop before this one
    assert check_whole_or_nothing(stored)


@pytest.mark.parametrize("error", [Died, OSError])
def test_drop_dataset_interrupted_at_any_step_is_whole_or_nothing(
    stored: Path, tmp_path: Path, error: type
) -> None:
    shutil.copytree(stored, tmp_path / "count")
    disk = MortalDisk()
    with opened(tmp_path / "count", disk) as store:
        disk.calls.clear()
        drop(store)
        assert disk.calls.index("fdatasync") < disk.calls.index("rename"), "first it is durable"
        steps = len(disk.calls)
    outcomes = []
    for spare in range(steps):
        directory = tmp_path / f"{error.__name__} {spare}"
        shutil.copytree(stored, directory)
        disk = MortalDisk(error=error)
        with opened(directory, disk) as store:
            disk.left = spare
            with pytest.raises((Died, OSError, PartitionReadOnly)):
                drop(store)
            disk.left = 1 << 30
        outcomes.append(check_whole_or_nothing(directory))
    assert outcomes == sorted(outcomes), "never again after it was gone once"
    assert set(outcomes) == {False, True}


def test_journal_read_of_dropped_dataset_raises_data_expired(stored: Path) -> None:
    with opened(stored) as store:
        journal = store.journal("nam", 3)
        rows = journal.read(2)
        drop(store)
        with pytest.raises(DataExpired):
            journal.read(2)
        assert rows.num_rows == 3, "what was read stays"
        (refused,) = journal.append([make_commit(9)])
        assert not isinstance(refused, Committed)
        journal.seal()
        assert not files_of(stored / "journals", "nam")


def test_backup_dataset_being_deleted_is_left_out(stored: Path, tmp_path: Path) -> None:
    with opened(stored) as store:
        drop(store)
    (stored / "journals" / "nam@removed" / "3").mkdir(parents=True)
    backup(stored, tmp_path / "backup", now=1.6e9)
    with opened(tmp_path / "backup") as restored:
        assert restored.schemas() == {"radar": OTHER}
        assert restored.is_dropped("nam")
