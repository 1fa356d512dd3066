"""Spill files: written, read, deleted, and nothing lost where they are damaged or left over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simulator.logs import SCHEMA, to_labels, to_paths

from galileo.ccq.events import LoadPacks, PacksLoaded, PacksSpilled, SpillPacks
from galileo.ccq.model import CcqDefinition
from galileo.packing import Compression
from galileo.server import spill_files as module
from galileo.server.spill_files import DIRECTORY, SpillFiles

CCQ = CcqDefinition("q", SCHEMA.name, "", 1.0, 0.0)
PATHS = [(0, sequence, row, row) for sequence in (1, 2) for row in range(50)]


def opened(directory: Path) -> SpillFiles:
    return SpillFiles(
        directory, schema=lambda name, added: {SCHEMA.name: SCHEMA}[name].narrowed(added)
    )


def spill(*, compression: Compression = Compression.NONE) -> SpillPacks:
    labels = to_labels(PATHS)
    assert labels is not None
    return SpillPacks(1, replace(CCQ, compression=compression), labels)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
async def test_spill_file_returns_its_labels_until_dropped(
    tmp_path: Path, compression: Compression
) -> None:
    spills = opened(tmp_path)
    written = await spills.write(spill(compression=compression))
    path = tmp_path / DIRECTORY / "1.packs"
    assert written == PacksSpilled(1, path.stat().st_size)
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = await spills.read(LoadPacks(1, CCQ))
    assert (loaded.number, loaded.ccq_id) == (1, "q")
    assert to_paths(loaded.labels) == PATHS
    spills.drop((1, 2))
    assert await spills.read(LoadPacks(1, CCQ)) == PacksLoaded(1, "q", None)
    spills.close()
    assert list((tmp_path / DIRECTORY).iterdir()) == []


async def test_spill_file_damaged_or_truncated_returns_nothing(tmp_path: Path) -> None:
    spills = opened(tmp_path)
    path = tmp_path / DIRECTORY / "1.packs"
    await spills.write(spill())
    data = path.read_bytes()
    for damaged in (data[:-9], data[:30] + b"?" + data[31:], b""):
        path.write_bytes(damaged)
        assert (await spills.read(LoadPacks(1, CCQ))).labels is None
    path.write_bytes(data)
    assert (await spills.read(LoadPacks(1, CCQ))).labels is not None
    spills.close()


async def test_spill_file_write_error_leaves_no_file(tmp_path: Path) -> None:
    spills = opened(tmp_path)
    directory = tmp_path / DIRECTORY
    (directory / "1.packs").mkdir()
    assert await spills.write(spill()) == PacksSpilled(1, None)
    (directory / "1.packs").rmdir()
    assert (await spills.write(spill())).bytes
    spills.close()


async def test_spill_file_unexpected_error_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts on it: what it has no answer about is never written, or loaded, again."""

    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    spills = opened(tmp_path)
    for name in ("to_bytes", "from_bytes"):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, fails)
            written = await spills.write(spill())
            if written.bytes is not None:
                assert await spills.read(LoadPacks(1, CCQ)) == PacksLoaded(1, "q", None)
            else:
                assert list((tmp_path / DIRECTORY).iterdir()) == []
    assert (await spills.read(LoadPacks(1, CCQ))).labels is not None
    spills.close()


async def test_spill_files_of_an_earlier_run_are_deleted(tmp_path: Path) -> None:
    directory = tmp_path / DIRECTORY
    directory.mkdir()
    for name in ("7.packs", "12.packs", "notes.txt", "x.packs"):
        (directory / name).write_bytes(b"old")
    spills = opened(tmp_path)
    assert sorted(path.name for path in directory.iterdir()) == ["notes.txt", "x.packs"]
    spills.close()
