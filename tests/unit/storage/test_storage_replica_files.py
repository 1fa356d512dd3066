"""Copies of a partition: whole, durable, checked, and not the node's before it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises

from galileo.errors import CorruptData
from galileo.model.schema import Schema
from galileo.storage.partition_files import INCOMING_KIND, partitions
from galileo.storage.replica_files import file_checksum, read_piece
from galileo.storage.store import Store
from galileo.storage.verify import verify


@pytest.fixture
def source(tmp_path: Path, schema: Schema, make_commit: Callable[..., Any]) -> Path:
    """The only file of a partition."""
    with Store.open(tmp_path / "source", wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        store.create_dataset(schema)
        store.journal("nam", 3).append([make_commit(number) for number in range(5)])
        ((path, size),) = store.journal("nam", 3).files()
        assert path.stat().st_size == size
        return path


def test_partition_copy_in_pieces_equals_source(
    tmp_path: Path, source: Path, schema: Schema
) -> None:
    data = source.read_bytes()
    with Store.open(tmp_path / "target", wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        store.create_dataset(schema)
        store.save_record(INCOMING_KIND, "3", b"{}")
        copy = store.partition_copy("nam", 3)
        copy.write("00000000000000000099.segment", b"left by an earlier copy", offset=0)
        copy.keep_only({source.name})
        while (offset := copy.length(source.name)) < len(data):
            copy.write(source.name, read_piece(source, offset=offset, size=100), offset=offset)
        copy.write(source.name, b"more than was listed", offset=len(data))
        copy.finish(source.name, size=len(data))
        copy.check(source.name, is_last=True)
        expected = file_checksum(source, size=len(data))
        assert copy.checksum(source.name, size=len(data)) == expected
        assert list(partitions(tmp_path / "target")) == [], "it is not the node's yet"
        assert verify(tmp_path / "target").damages == ()
        store.delete_record(INCOMING_KIND, "3")
        assert [one.number for one in partitions(tmp_path / "target")] == [3]
        assert store.open_partition("nam", 3, lambda *_: None).last_sequence == 5


def test_partition_copy_damaged_source_raises_corrupt_data(tmp_path: Path, source: Path) -> None:
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 1
    with Store.open(tmp_path / "target", wall=lambda: 1.5e9) as store:
        copy = store.partition_copy("nam", 3)
        copy.write(source.name, bytes(data), offset=0)
        with raises(CorruptData, expected="whole_file", file="00000000000000000001.segment"):
            copy.check(source.name, is_last=True)
        with raises(CorruptData, expected="size"):
            copy.checksum(source.name, size=9_999_999)
        copy.delete(source.name)
        assert copy.length(source.name) == 0
