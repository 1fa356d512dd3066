from __future__ import annotations

import errno
import struct
import tempfile
from pathlib import Path

import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import CorruptData, InputError, PartitionReadOnly
from galileo.storage import metadata_log
from galileo.storage.disk import RealDisk
from galileo.storage.metadata_files import MetadataFiles
from galileo.storage.metadata_log import MetadataLog


class CountingDisk(RealDisk):
    """Does not wait for the disk; counts, and can fail at the n-th step."""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.syncs = 0
        self.steps = 0
        self.fails_at = fails_at

    def create(self, path: Path) -> int:
        self._step()
        return super().create(path)

    def fdatasync(self, descriptor: int) -> None:
        self._step()
        self.syncs += 1

    def sync_directory(self, directory: Path) -> None:
        self._step()

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.fails_at:
            raise OSError(errno.EIO, "the disk fails")


VALUES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.none() | st.binary(max_size=40), min_size=1, max_size=6
)


@examples(40)
@given(st.lists(st.tuples(VALUES, st.booleans()), max_size=14), st.integers(1, 4))
def test_metadata_log_random_changes_equals_dict(
    changes: list[tuple[dict[str, bytes | None], bool]], batches_max: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory, disk = Path(name) / "kind", CountingDisk()
        expected: dict[str, bytes] = {}
        batches = MetadataLog(directory, disk, batches_max=batches_max)
        for values, reopens in changes:
            batches.save(values)
            expected = {k: v for k, v in {**expected, **values}.items() if v is not None}
            if reopens:
                batches = MetadataLog(directory, disk, batches_max=batches_max)
            assert batches.load_all() == expected
        assert MetadataLog(directory, disk).load_all() == expected


def test_metadata_log_keeps_a_deletion_while_an_older_batch_has_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_log, "SMALL_BYTES", 0)
    batches = MetadataLog(tmp_path, CountingDisk(), batches_max=3)
    large = bytes(100)
    for values in ({"a": b"1", "b": large}, {"a": None, "c": large}, {"c": large}, {"d": large}):
        batches.save(values)
    left = sorted(path.stem for path in tmp_path.iterdir())
    assert left == [f"{number:016d}" for number in (1, 3, 4, 5)], "of 2 the deletion is left"
    assert MetadataLog(tmp_path, CountingDisk()).load_all().keys() == {"b", "c", "d"}


@examples(60)
@given(st.lists(VALUES, min_size=2, max_size=9), st.integers(1, 40))
def test_metadata_log_disk_error_at_any_step_keeps_saved_values(
    changes: list[dict[str, bytes | None]], fails_at: int
) -> None:
    """Each value is the old or the new one of the save that failed; and merging loses nothing."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "kind"
        batches = MetadataLog(directory, CountingDisk(fails_at=fails_at), batches_max=2)
        before: dict[str, bytes | None] = {}
        for values in changes:
            try:
                batches.save(values)
            except PartitionReadOnly:
                after = {**before, **values}
                found = MetadataLog(directory, CountingDisk(), batches_max=2).load_all()
                for key in "abcdefgh":
                    assert found.get(key) in (before.get(key), after.get(key))
                return
            before = {**before, **values}


def test_metadata_log_batch_costs_one_sync(tmp_path: Path) -> None:
    disk = CountingDisk()
    batches = MetadataLog(tmp_path / "kind", disk)
    batches.save({f"ccq-{number}": b"record" for number in range(1_000)})
    assert disk.syncs == 1


def test_metadata_log_many_saves_keeps_files_and_bytes_bounded(tmp_path: Path) -> None:
    batches = MetadataLog(tmp_path, CountingDisk(), batches_max=8)
    batches.save({f"q{number}": bytes(100_000) for number in range(30)})
    for turn in range(200):
        batches.save({f"q{turn % 30}": bytes(100_000), "small": b"%d" % turn})
        assert len(list(tmp_path.iterdir())) <= 8 + 12
    stored = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert stored < 2 * 3_000_000 + 8 * 100_100
    assert MetadataLog(tmp_path, CountingDisk()).load_all()["small"] == b"199"


def test_metadata_log_invalid_name_saves_nothing(tmp_path: Path) -> None:
    batches = MetadataLog(tmp_path, CountingDisk())
    with pytest.raises(InputError):
        batches.save({"good": b"1", "a/b": b"2"})
    assert batches.load_all() == {}


def test_metadata_log_damaged_or_foreign_file_raises_corrupt_data(tmp_path: Path) -> None:
    MetadataLog(tmp_path, CountingDisk()).save({"a": b"value"})
    (path,) = tmp_path.iterdir()
    stored = path.read_bytes()
    path.write_bytes(stored[:-1])
    with raises(CorruptData, offset=0):
        MetadataLog(tmp_path, CountingDisk())
    path.write_bytes(stored)
    MetadataFiles(tmp_path, CountingDisk()).save("other", b"")
    with raises(CorruptData, offset=0):
        MetadataLog(tmp_path, CountingDisk())
    (tmp_path / "other.record").unlink()
    MetadataFiles(tmp_path, CountingDisk()).save(f"{2:016d}", b"\x01\x00\xff")
    with pytest.raises(CorruptData):
        MetadataLog(tmp_path, CountingDisk())


def test_metadata_log_invalid_length_raises_corrupt_data(tmp_path: Path) -> None:
    entry = struct.pack("<Hq", 1, -5) + b"a"
    MetadataFiles(tmp_path, CountingDisk()).save(f"{1:016d}", entry)
    with raises(CorruptData, offset=0):
        MetadataLog(tmp_path, CountingDisk())
