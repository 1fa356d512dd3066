"""Copies of a partition: whole, durable, checked, and not the node's before it is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def test_a_copy_made_in_pieces_is_the_same_and_opens(
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


def test_a_copy_of_damage_is_refused(tmp_path: Path, source: Path) -> None:
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 1
    with Store.open(tmp_path / "target", wall=lambda: 1.5e9) as store:
        copy = store.partition_copy("nam", 3)
        copy.write(source.name, bytes(data), offset=0)
        with pytest.raises(CorruptData, match="was damaged before it was copied"):
            copy.check(source.name, is_last=True)
        with pytest.raises(CorruptData, match="expected 9999999 bytes"):
            copy.checksum(source.name, size=9_999_999)
        copy.delete(source.name)
        assert copy.length(source.name) == 0
