from __future__ import annotations

import errno
import struct
import tempfile
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from galileo.errors import ConfigError, CorruptData, InputError, PartitionReadOnly
from galileo.storage.disk import REAL_DISK
from galileo.storage.metadata_files import FORMAT_VERSION, MetadataFiles

NAMES = st.text("abz09_.-", min_size=1, max_size=8) | st.sampled_from([".", "..", "a.record"])


@examples(20)
@given(st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=50)), max_size=15))
def test_metadata_files_random_changes_equals_dict(changes: list[tuple[str, bytes | None]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        expected: dict[str, bytes] = {}
        for record, data in changes:
            records = MetadataFiles(Path(name) / "kind", REAL_DISK)
            if data is None:
                records.delete(record)
                expected.pop(record, None)
            else:
                records.save(record, data)
                expected[record] = data
            assert records.load(record) == expected.get(record)
        found = MetadataFiles(Path(name) / "kind", REAL_DISK).load_all()
        assert found == expected
        assert list(Path(name).iterdir()) in ([], [Path(name) / "kind"])


@pytest.mark.parametrize("name", ["", "x" * 65, "A", "a/b", "../a", "ü", "a b", "a\n", "a\0"])
def test_metadata_files_invalid_name_raises(tmp_path: Path, name: str) -> None:
    records = MetadataFiles(tmp_path, REAL_DISK)
    for use in (lambda: records.save(name, b""), lambda: records.load(name)):
        with pytest.raises(InputError):
            use()
    with pytest.raises(InputError):
        records.delete(name)


def test_metadata_files_any_damage_raises_corrupt_data(tmp_path: Path) -> None:
    records = MetadataFiles(tmp_path, REAL_DISK)
    records.save("ccq", b"state of a query")
    path = tmp_path / "ccq.record"
    stored = path.read_bytes()
    for bit in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with raises(CorruptData, offset=0):
            records.load("ccq")
    for length in range(len(stored)):
        path.write_bytes(stored[:length])
        with pytest.raises(CorruptData):
            records.load_all()


def test_metadata_files_of_another_format_are_refused(tmp_path: Path) -> None:
    records, path, data = MetadataFiles(tmp_path, REAL_DISK), tmp_path / "ccq.record", b"state"
    records.save("ccq", data)
    front = bytearray(path.read_bytes()[:16])
    front[7] = FORMAT_VERSION + 1
    path.write_bytes(front + struct.pack("<I", google_crc32c.value(bytes(front) + data)) + data)
    with raises(ConfigError, expected="format_version", file=str(path)):
        records.load("ccq")


@pytest.mark.parametrize("operation", ["create", "write", "fdatasync"])
def test_metadata_files_disk_error_keeps_old_record(
    tmp_path: Path, faulty_disk: Any, operation: str
) -> None:
    records = MetadataFiles(tmp_path, faulty_disk)
    records.save("ccq", b"old")
    faulty_disk.failing, faulty_disk.torn_bytes = {operation: errno.ENOSPC}, 10
    with raises(PartitionReadOnly, file=str(tmp_path / "ccq.record")):
        records.save("ccq", b"new")
    assert records.load_all() == {"ccq": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["ccq.record"]
    faulty_disk.failing = {}
    records.save("ccq", b"new")
    assert records.load_all() == {"ccq": b"new"}


def test_metadata_files_temporary_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "ccq.record.tmp").write_bytes(b"half")
    records = MetadataFiles(tmp_path, REAL_DISK)
    assert records.load_all() == {}
    records.save("ccq", b"whole")
    assert records.load_all() == {"ccq": b"whole"}


def test_metadata_files_save_syncs_file_and_directory(tmp_path: Path, faulty_disk: Any) -> None:
    records = MetadataFiles(tmp_path, faulty_disk)
    records.save("ccq", b"x")
    faulty_disk.calls.clear()
    records.save("ccq", b"y")
    assert faulty_disk.calls == ["create", "write", "fdatasync", "sync_directory"]
    faulty_disk.calls.clear()
    records.delete("ccq")
    assert faulty_disk.calls == ["sync_directory"]
