from __future__ import annotations

import os
from pathlib import Path

import pytest
from recording_disk import RecordingDisk, Violation

from galileo import private_ca
from galileo.cli.positions import PositionFile
from galileo.cursor import Cursor
from galileo.durable_files import replace_file
from galileo.rpc import token_store
from galileo.rpc.access import Principal, Role
from galileo.wire import token as resume


def test_replace_file_is_durable_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with RecordingDisk(tmp_path) as disk:
        for data in (b"one", b"two", b""):
            replace_file(path, data)
            disk.check()
            assert path.read_bytes() == data
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("ignored", ["files", "directories"])
def test_recording_disk_convicts_replace_file_without_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    replace_file(tmp_path / "file", b"one")
    with RecordingDisk(tmp_path) as disk:
        watched = os.fsync

        def fsync(descriptor: int) -> None:
            is_directory = Path(f"/proc/self/fd/{descriptor}").is_dir()
            if is_directory != (ignored == "directories"):
                watched(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        replace_file(tmp_path / "file", b"two")
        with pytest.raises(Violation):
            disk.check()
        disk.violations.clear()


def test_token_store_change_is_durable(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    with RecordingDisk(tmp_path) as disk:
        for name in ("ann", "ben"):
            token_store.add(path, Principal(name, frozenset({Role.READER}), frozenset({"nam"})))
            disk.check()
        token_store.remove(path, "ann")
        disk.check()


def test_private_ca_keys_and_certificates_are_durable(tmp_path: Path) -> None:
    authority, target = tmp_path / "authority", tmp_path / "a"
    for directory in (authority, target):
        directory.mkdir()
    with RecordingDisk(tmp_path) as disk:
        private_ca.make_authority(authority, cluster="demo")
        disk.check()
        private_ca.issue(authority, private_ca.Subject("node", "a", ["localhost"]), target=target)
        disk.check()


def test_position_file_is_durable(tmp_path: Path) -> None:
    file = PositionFile(tmp_path / "position", "ccq")
    with RecordingDisk(tmp_path) as disk:
        for sequence in (1, 2):
            file.save(resume.encode("ccq", Cursor({0: sequence})))
            disk.check()
