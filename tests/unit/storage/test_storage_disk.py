from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.storage.disk import IOV_MAX, RealDisk, make_directory, read_at, write_all
from galileo.storage.frame import Buffer


class ShortDisk(RealDisk):
    """Writes at most `limit` bytes a call, which every operating system may do."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        assert len(buffers) <= IOV_MAX
        return os.pwrite(descriptor, b"".join(buffers)[: self.limit], offset)


class DeadDisk(RealDisk):
    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        return 0


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 50), st.integers(0, 9))
def test_write_all_short_writes_are_continued(
    buffers: list[bytes], limit: int, offset: int
) -> None:
    with tempfile.TemporaryFile() as file:
        write_all(ShortDisk(limit), file.fileno(), buffers, offset=offset)
        assert read_at(file.fileno(), 1000, offset=offset) == b"".join(buffers)


def test_write_all_many_buffers_are_written(tmp_path: Path) -> None:
    buffers = [bytes([number % 251]) * (number % 5) for number in range(3 * IOV_MAX)]
    descriptor = RealDisk().create(tmp_path / "file")
    write_all(RealDisk(), descriptor, buffers, offset=0)
    os.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b"".join(buffers)


def test_write_all_no_progress_raises_os_error(tmp_path: Path) -> None:
    descriptor = RealDisk().create(tmp_path / "file")
    with pytest.raises(OSError, match="wrote nothing"):
        write_all(DeadDisk(), descriptor, [b"data"], offset=0)
    os.close(descriptor)


def test_read_at_end_of_file_is_short(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with (tmp_path / "file").open("rb") as file:
        assert read_at(file.fileno(), 4, offset=8) == b"89"
        assert read_at(file.fileno(), 4, offset=80) == b""


def test_make_directory_syncs_every_parent(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Watched(RealDisk):
        def sync_directory(self, directory: Path) -> None:
            synced.append(directory)
            super().sync_directory(directory)

    make_directory(Watched(), tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path.parent, tmp_path, tmp_path / "a"]
    make_directory(Watched(), tmp_path / "a" / "b")
    assert synced[3:] == [tmp_path / "a"]


def test_create_existing_file_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        RealDisk().create(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"precious"
