from __future__ import annotations

import contextlib
import errno
import os
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fault_injection.damage import flip
from journals import open_journal

from galileo.storage import sequential_reader
from galileo.storage.compacted_format import read_index
from galileo.storage.compacted_segment import compacted_segment_paths
from galileo.storage.compaction import CompactionOptions
from galileo.storage.scrub import ATTEMPTS, ScrubState, order, scrub_file
from galileo.storage.segment import segment_paths
from galileo.storage.segment_verify import Corruption, check_segment
from galileo.storage.sequential_reader import DISK_BLOCK_BYTES, DiskReader, SequentialReader
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=8_000)


def ignore(_: int) -> None:
    """Reads at full speed."""


def scrubbed(path: Path, length: int | None = None) -> Corruption | None:
    length = path.stat().st_size if length is None else length
    return scrub_file(path, partition=7, length=length, on_read=ignore)


@pytest.fixture(params=["direct", "through the page cache"])
def cached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With direct I/O, where this file system has it, and without."""
    if request.param != "direct":
        monkeypatch.setattr(os, "O_DIRECT", 0)


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("window_bytes", [512, 5_000, 1 << 20])
def test_disk_reader_gives_the_same_bytes_and_checksums(tmp_path: Path, window_bytes: int) -> None:
    chosen, path = random.Random(1), tmp_path / "file"
    path.write_bytes(chosen.randbytes(3 * DISK_BLOCK_BYTES + 77))
    read: list[int] = []
    with (
        SequentialReader(path) as plain,
        DiskReader(path, on_read=read.append, window_bytes=window_bytes) as disk,
    ):
        assert disk.size == plain.size
        for _ in range(200):
            offset, size = chosen.randrange(plain.size), chosen.randrange(9_000)
            assert disk.checksum(offset, size) == plain.checksum(offset, size)
            assert disk.all_bytes_at(offset, size) == plain.all_bytes_at(offset, size)
            memory, place = disk.is_loaded(offset, 300)
            expected = plain.bytes_at(offset, 300)
            assert memory[place : place + len(expected)].to_pybytes() == expected
    assert sum(read) >= plain.size


def test_disk_reader_of_a_part_ends_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)))
    with DiskReader(path, length=100, on_read=ignore) as disk:
        assert (disk.size, disk.bytes_at(90, 50)) == (100, bytes(range(90, 100)))
        assert disk.checksum(90, 11) is None


def is_cached(path: Path) -> bool:
    """Whether the first byte of a file is in the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def on_disk_only(path: Path) -> None:
    """Makes a file of one block, of which the page cache has nothing."""
    path.write_bytes(bytes(DISK_BLOCK_BYTES))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.fixture
def disk_path(tmp_path: Path) -> Iterator[Path]:
    """A file on a disk with a page cache in front of it, which memory file systems have not."""
    for place in (tmp_path, Path("/var/tmp")):
        with tempfile.TemporaryDirectory(dir=place) as directory:
            path = Path(directory) / "file"
            on_disk_only(path)
            with contextlib.suppress(OSError):
                if not is_cached(path):
                    path.unlink()
                    on_disk_only(path)  # The question has begun to read it.
                    yield path
                    return
    pytest.skip("no file system on a disk, or one whose page cache cannot be asked")


def test_disk_reader_reads_past_the_page_cache(disk_path: Path) -> None:
    try:
        os.close(os.open(disk_path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system has no direct I/O")
    with DiskReader(disk_path, on_read=ignore) as disk:
        assert disk.is_direct
        assert disk.checksum(0, disk.size) is not None
    assert not is_cached(disk_path)
    with SequentialReader(disk_path) as plain:
        plain.checksum(0, plain.size)
    assert is_cached(disk_path)


@pytest.mark.usefixtures("cached")
def test_scrub_file_any_kind_of_file_is_sound(stored: Path) -> None:
    journal = open_journal(stored, SMALL).journal
    journal.merge(EVERYTHING, lambda _: True)
    assert {path.suffix for path, _ in journal.files()} == {".merged", ".segment"}
    for path, length in journal.files():
        assert scrubbed(path, length) is None


@pytest.mark.usefixtures("cached")
def test_scrub_file_any_flipped_byte_is_damage(stored: Path) -> None:
    journal = open_journal(stored, SMALL).journal
    journal.merge(EVERYTHING, lambda _: True)
    (merged,) = compacted_segment_paths(stored)
    for path in (merged, segment_paths(stored)[-1]):
        for place in range(0, path.stat().st_size, 97):
            flip(path, place)
            assert scrubbed(path) is not None, place
            flip(path, place)
    assert read_index(merged).commits.num_rows


def test_scrub_file_reads_only_what_is_published(stored: Path) -> None:
    path = segment_paths(stored)[-1]
    length = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"half a frame, which is being written")
    assert scrubbed(path, length) is None
    assert scrubbed(path) is not None


def test_scrub_file_that_lacks_its_end_is_damaged(stored: Path) -> None:
    first = segment_paths(stored)[0]
    length = first.stat().st_size
    frame = check_segment(first, partition=7, last=False)
    assert frame.commits > 1
    os.truncate(first, 0)
    assert scrubbed(first, length) == Corruption(
        0, None, f"expected {length} bytes, the file ends before"
    )


def test_scrub_file_that_is_gone_raises(stored: Path) -> None:
    first = segment_paths(stored)[0]
    length = first.stat().st_size
    first.unlink()
    with pytest.raises(FileNotFoundError):
        scrubbed(first, length)


def test_scrub_file_that_reads_right_the_second_time_is_sound(stored: Path) -> None:
    """Memory and cables make errors that are not on the disk."""
    path = segment_paths(stored)[0]
    flip(path, 700)
    reads = 0

    def mend(_: int) -> None:
        nonlocal reads
        reads += 1
        if reads == 1:
            flip(path, 700)

    size = path.stat().st_size
    assert scrub_file(path, partition=7, length=size, on_read=mend) is None
    assert reads == ATTEMPTS


def test_scrub_file_that_cannot_be_opened_is_no_damage_if_files_are_short(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = segment_paths(stored)[0]

    def refuse(number: int, *_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sequential_reader.os, "open", partial(refuse, errno.EMFILE))
    with pytest.raises(OSError, match="Too many open files"):
        scrubbed(path, 100)
    monkeypatch.setattr(sequential_reader.os, "open", partial(refuse, errno.EIO))
    damage = scrubbed(path, 100)
    assert damage is not None
    assert "the disk cannot read it" in damage.reason


def test_scrub_state_survives_encoding() -> None:
    state = ScrubState(7.5, ("nam", 3, "00000000000000000001.segment"), complete_at=2.0)
    assert ScrubState.from_bytes(state.to_bytes()) == state
    place = ("nam@2", 12, "00000000000000000004.merged")
    damaged = state.with_damage(place, Corruption(64, None, "the checksum is wrong")).ended()
    assert ScrubState.from_bytes(damaged.to_bytes()) == damaged
    assert damaged.is_over
    assert damaged.complete_at == damaged.begun(9.0).complete_at == 7.5
    assert damaged.with_damage(place, None).damages == {}


def test_scrub_order_puts_a_merged_file_in_place_of_its_first_segment() -> None:
    names = ["00000000000000000009.segment", "00000000000000000010.merged"]
    assert sorted(names, key=lambda name: order(("nam", 2, name))) == names
    assert order(("nam", 2, names[0])) < order(("nam", 10, names[0])) < order(("obs", 0, names[0]))
