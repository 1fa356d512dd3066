from __future__ import annotations

import contextlib
import errno
import random
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from expected_errors import raises
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from journals import SCHEMA, make_commit

from galileo.errors import InputError, Unavailable
from galileo.model.forks import first_of
from galileo.storage import partition_files
from galileo.storage.compacted_format import read_index
from galileo.storage.compaction import CompactionOptions
from galileo.storage.disk import RealDisk
from galileo.storage.frame import ALIGNMENT, HEADER_BYTES_MAX, decode_header
from galileo.storage.segment_verify import check_segment
from galileo.storage.sequential_reader import SequentialReader
from galileo.storage.store import Store
from galileo.storage.verify import Report, bytes_to_read, verify
from galileo.storage.writer import JournalOptions


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's directory with two partitions of several segments, and a small record."""
    options = JournalOptions(durability="none", segment_bytes_max=6_000)
    directory = tmp_path / "node"
    with Store.open(directory, options, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        store.create_dataset(SCHEMA)
        store.save_record("ccq", "one", b"coordinator")
        for partition in (3, 12):
            journal = store.journal("nam", partition)
            for batch in range(0, 9, 3):
                journal.append([make_commit(batch + n, rows=20) for n in range(3)])
    return directory


def segments(directory: Path) -> list[Path]:
    found = directory.glob("journals/*/*/*.segment")
    return sorted(found, key=lambda path: (int(path.parent.name), path.name))


def frames(path: Path) -> list[tuple[int, int]]:
    """(sequence, offset) of each frame."""
    stored, offset, found = path.read_bytes(), 0, []
    while offset < len(stored):
        header = decode_header(stored[offset : offset + HEADER_BYTES_MAX])
        found.append((header.sequence, offset))
        offset += header.frame_bytes
    return found


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def snapshot(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_verify_intact_directory_is_ok_and_unchanged(node: Path) -> None:
    before, progress = snapshot(node), []
    report = verify(node, progress=progress.append)
    assert report.ok
    assert report == Report(
        directory=str(node),
        files=len(before) - 1,  # not the lock
        bytes=report.bytes,
        commits=18,
        torn_bytes=0,
        damages=(),
    )
    assert sum(progress) == bytes_to_read(node) == sum(len(before[p]) for p in segments(node))
    assert report.bytes > sum(progress)
    assert snapshot(node) == before
    assert len(segments(node)) == 6


def test_check_segment_any_flipped_byte_is_reported_with_frame(node: Path) -> None:
    path = segments(node)[4]
    places = frames(path)
    size = path.stat().st_size
    for place in [*range(200), *random.Random(5).sample(range(200, size), 400)]:
        flip(path, place)
        found = check_segment(path, partition=12, last=False)
        sequence, offset = max(frame for frame in places if frame[1] <= place)
        assert [(flaw.sequence, flaw.offset) for flaw in found.flaws] == [(sequence, offset)]
        assert found.commits == len(places) - 1
        flip(path, place)
    assert not check_segment(path, partition=12, last=False).flaws


def test_verify_damage_has_dataset_partition_sequence_and_offset(node: Path) -> None:
    first, second = segments(node)[0], segments(node)[4]
    one, other = frames(first)[1], frames(second)[0]
    flip(first, one[1] + 300)
    flip(second, other[1] + 20)
    report = verify(node)
    assert not report.ok
    assert [(d.file, d.dataset, d.partition, d.sequence, d.offset) for d in report.damages] == [
        (str(first), "nam", int(first.parent.name), *one),
        (str(second), "nam", int(second.parent.name), *other),
    ]
    assert report.damages[0].reason == "the checksum of the paths is wrong"
    assert report.damages[1].reason == "the checksum of the frame header is wrong"
    assert report.commits == 16


@examples(40)
@given(data=st.data())
def test_verify_random_damage_is_never_missed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any stretch overwritten with any bytes but the old ones is found, by an independent model."""
    directory = tmp_path_factory.mktemp("damage")
    options = JournalOptions(durability="none", segment_bytes_max=5_000)
    with Store.open(directory, options, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        store.create_dataset(SCHEMA)
        journal = store.journal("nam", 1)
        for batch in range(6):
            journal.append([make_commit(batch, rows=15)])
    paths = segments(directory)
    path = data.draw(st.sampled_from(paths[:-1]))
    stored = path.read_bytes()
    start = data.draw(st.integers(0, len(stored) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=300))[: len(stored) - start]
    path.write_bytes(stored[:start] + patch + stored[start + len(patch) :])
    report = verify(directory)
    assert report.ok == (stored[start : start + len(patch)] == patch)
    whole = sum(stored[a:b] == path.read_bytes()[a:b] for a, b in zip(*edges(stored), strict=True))
    others = 6 - len(edges(stored)[0])
    assert report.commits == others + whole
    shutil.rmtree(directory)


def edges(stored: bytes) -> tuple[list[int], list[int]]:
    starts, offset = [], 0
    while offset < len(stored):
        starts.append(offset)
        offset += decode_header(stored[offset : offset + HEADER_BYTES_MAX]).frame_bytes
    return starts, [*starts[1:], len(stored)]


def test_check_segment_small_window_gives_same_report(node: Path) -> None:
    small = partial(SequentialReader, window_bytes=512)
    for path in segments(node):
        partition = int(path.parent.name)
        whole = check_segment(path, partition=partition, last=True)
        assert check_segment(path, partition=partition, last=True, open_file=small) == whole
        flip(path, 700)
        whole = check_segment(path, partition=partition, last=False)
        assert whole.flaws
        assert check_segment(path, partition=partition, last=False, open_file=small) == whole


def test_verify_torn_tail_is_damage_except_in_last_file(node: Path) -> None:
    for path, is_last in ((segments(node)[2], True), (segments(node)[1], False)):
        stored = path.read_bytes()
        start = frames(path)[-1][1]
        for length in range(start + 1, len(stored), ALIGNMENT - 1):
            path.write_bytes(stored[:length])
            report = verify(node)
            assert report.ok == is_last
            assert report.torn_bytes == (length - start if is_last else 0)
            assert report.commits == 17
        path.write_bytes(stored)


def test_verify_missing_or_foreign_file_is_damage(node: Path) -> None:
    paths = segments(node)
    stored = paths[1].read_bytes()
    paths[1].unlink()
    (damage,) = verify(node).damages
    assert (damage.file, damage.sequence) == (str(paths[2]), 4)
    assert "missing" in damage.reason
    shutil.copy(paths[4], paths[1])
    assert [damage.file for damage in verify(node).damages] == [str(paths[1])]
    paths[1].write_bytes(stored)
    assert verify(node).ok


def test_verify_missing_frame_is_reported_once(node: Path) -> None:
    path = segments(node)[0]
    stored = path.read_bytes()
    (_, second), (_, third) = frames(path)[1:]
    path.write_bytes(stored[:second] + stored[third:])
    (damage,) = verify(node).damages
    assert (damage.sequence, damage.offset) == (2, second)
    assert "expected sequence 2" in damage.reason
    assert verify(node).commits == 17


@pytest.mark.parametrize("name", ["node/epoch", "datasets/nam", "records/ccq/one"])
def test_verify_damaged_record_is_reported(node: Path, name: str) -> None:
    path = node / f"{name}.record"
    flip(path, path.stat().st_size - 1)
    (damage,) = verify(node).damages
    assert damage.file == str(path)
    assert damage.sequence is None


def test_verify_during_writes_is_ok(node: Path) -> None:
    options = JournalOptions(durability="none", segment_bytes_max=20_000)
    with Store.open(node, options, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        journal = store.journal("nam", 3)
        for batch in range(9, 40):
            journal.append([make_commit(batch, rows=20)])
            report = verify(node)
            assert report.ok
            assert report.commits == 9 + batch + 1


EVERYTHING = CompactionOptions(bytes_min=1, block_bytes=9_000)


def merged(node: Path, disk: RealDisk) -> Path:
    """Merges partition 3 with a disk, and gives the new file."""
    options = JournalOptions(durability="none", segment_bytes_max=6_000, disk=disk)
    with Store.open(node, options, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        with contextlib.suppress(OSError):
            store.journal("nam", 3).merge(EVERYTHING, lambda _: True)
    (path,) = node.glob("journals/nam/3/*.merged")
    return path


def test_verify_merged_segment_is_read(node: Path) -> None:
    path = merged(node, RealDisk())
    stored = path.read_bytes()
    report = verify(node)
    assert report.ok
    assert report.commits == 18
    second = read_index(path).blocks[1]
    for place, sequence in (
        (second.offset + 9, second.first_sequence),
        (second.observations_offset, second.first_sequence),
        (len(stored) - 1, None),
    ):
        flip(path, place)
        (damage,) = verify(node).damages
        assert (damage.file, damage.dataset, damage.partition) == (str(path), "nam", 3)
        assert damage.sequence == sequence
        path.write_bytes(stored)
    path.unlink()
    (damage,) = verify(node).damages
    assert damage.sequence == 1
    assert "missing" in damage.reason


def test_verify_leftover_of_merge_is_counted_once(node: Path, faulty_disk: Any) -> None:
    faulty_disk.failing = {"unlink": errno.EROFS}
    merged(node, faulty_disk)
    assert len(segments(node)) == 6
    report = verify(node)
    assert report.ok
    assert report.commits == 18


def test_verify_segments_merged_meanwhile_are_read(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = JournalOptions(durability="none", segment_bytes_max=3_000)
    with Store.open(node, options, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        looks = []

        def looking(look: Callable[[Path], list[Path]]) -> Callable[[Path], list[Path]]:
            def looked(directory: Path) -> list[Path]:
                found = look(directory)
                looks.append(store.journal("nam", 3).merge(EVERYTHING, lambda _: True))
                return found

            return looked

        for name in ("segment_paths", "compacted_segment_paths"):
            look = getattr(partition_files, name)
            monkeypatch.setattr(partition_files, name, looking(look))
        report = verify(node)
    assert (report.damages, report.commits) == ((), 18)
    assert looks[0]
    assert len(looks) > 2, "the segments were gone when they were to be read"


@pytest.mark.slow
def test_verify_during_merges_is_ok(node: Path) -> None:
    options = JournalOptions(durability="none", segment_bytes_max=3_000)
    with Store.open(node, options, wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        journal = store.journal("nam", 3)
        done = threading.Event()

        def write_and_merge() -> None:
            for batch in range(9, 60):
                journal.append([make_commit(batch, rows=20)])
                journal.merge(EVERYTHING, lambda _: True)
            done.set()

        writer = threading.Thread(target=write_and_merge)
        writer.start()
        commits = [18]
        while not done.is_set():
            with contextlib.suppress(Unavailable):
                report = verify(node)
                assert report.damages == ()
                commits.append(report.commits)
        writer.join()
        assert commits == sorted(commits)
        assert verify(node).commits == 18 + 51


def test_verify_other_directory_raises(tmp_path: Path) -> None:
    with raises(InputError, expected="node_directory"):
        verify(tmp_path)


def test_verify_log_that_jumps_is_sound_and_its_missing_file_damage(node: Path) -> None:
    with Store.open(node, JournalOptions(segment_bytes_max=6_000), wall=lambda: 1.5e9) as store:
        store.recover(lambda *_: None)
        journal = store.journal("nam", 3)
        last = journal.last_sequence
        for batch in range(20, 29, 3):
            commits = [make_commit(batch + n, rows=20) for n in range(3)]
            with journal.appending(commits, epoch=first_of(5)) as appending:
                appending.write()
                appending.finish()
        assert journal.forks.pairs == ((last, first_of(5)),)
        with raises(InputError, last_sequence=last):
            journal.read(last + 1)
    assert verify(node).ok
    (jump,) = [path for path in segments(node) if int(path.stem) == first_of(5)]
    jump.unlink()
    (damage,) = verify(node).damages
    assert damage.sequence == last + 1
