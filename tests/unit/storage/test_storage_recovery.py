from __future__ import annotations

import errno
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from expected_errors import raises
from generated import every
from journals import SCHEMA, make_commit, make_observations, open_journal

from galileo.errors import ConfigError, CorruptData, PartitionReadOnly
from galileo.model import paths as model_paths
from galileo.storage.frame import HEADER_BYTES_MAX, decode_header, encode_header
from galileo.storage.journal import Commit
from galileo.storage.recovery import PAGE_BYTES
from galileo.storage.writer import JournalOptions

FIRST = f"{1:020d}.segment"
SEALING = JournalOptions(durability="none", segment_bytes_max=1)


def frame_ends(stored: bytes) -> list[int]:
    ends, offset = [], 0
    while offset < len(stored):
        offset += decode_header(stored[offset : offset + HEADER_BYTES_MAX]).frame_bytes
        ends.append(offset)
    return ends


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A segment of three commits, each synced by itself."""
    journal = open_journal(tmp_path / "whole").journal
    for batch in range(3):
        journal.append([make_commit(batch)])
    journal.close()
    return tmp_path / "whole" / FIRST


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A segment of one commit, and then three large ones that were synced together."""
    journal = open_journal(tmp_path / "group").journal
    journal.append([make_commit(0)])
    journal.append([make_commit(batch, rows=400) for batch in (1, 2, 3)])
    journal.close()
    return tmp_path / "group" / FIRST


def test_recovery_torn_tail_is_cut_and_batch_accepted_again(three: Path, tmp_path: Path) -> None:
    stored = three.read_bytes()
    ends = frame_ends(stored)
    torn = tmp_path / "torn"
    torn.mkdir()
    for length in range(ends[1], ends[2], every(7)):
        (torn / FIRST).write_bytes(stored[:length])
        again = open_journal(torn)
        assert [sequence for sequence, _ in again.replayed] == [1, 2]
        assert again.journal.torn_bytes == length - ends[1]
        assert again.journal.append([make_commit(2)])[0].sequence == 3
        again.journal.close()
        assert (torn / FIRST).read_bytes() == stored


def test_recovery_tail_of_foreign_bytes_is_cut(three: Path) -> None:
    stored = three.read_bytes()
    stray = encode_header(replace(decode_header(stored), sequence=10**6))
    for tail in (bytes(5000), b"\xff" * 700, stored[:64], stored[:8] * 50, bytes(64) + stray):
        three.write_bytes(stored + tail)
        again = open_journal(three.parent)
        assert again.journal.last_sequence == 3
        assert again.journal.torn_bytes == len(tail)
        again.journal.close()
        assert three.read_bytes() == stored


def test_recovery_empty_segment_is_used(tmp_path: Path) -> None:
    (tmp_path / FIRST).touch()
    journal = open_journal(tmp_path).journal
    assert journal.append([make_commit(0)])[0].sequence == 1
    journal.close()
    (tmp_path / f"{2:020d}.segment").write_bytes(b"\0" * 100)
    again = open_journal(tmp_path)
    assert again.journal.torn_bytes == 100
    assert again.journal.append([make_commit(1)])[0].sequence == 2
    assert again.journal.segments == 2


def test_recovery_flipped_byte_in_early_frame_raises_corrupt_data(three: Path) -> None:
    stored = bytearray(three.read_bytes())
    ends = frame_ends(bytes(stored))
    for place in range(0, ends[1], every(7)):
        stored[place] ^= 1 << place % 8
        three.write_bytes(stored)
        with pytest.raises(CorruptData) as caught:
            open_journal(three.parent)
        frame = 0 if place < ends[0] else ends[0]
        assert caught.value.details == {"file": str(three), "offset": frame}
        assert three.read_bytes() == stored
        stored[place] ^= 1 << place % 8


def test_recovery_flipped_byte_in_sealed_segment_is_detected(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, SEALING).journal
    journal.append([make_commit(0)])
    journal.append([make_commit(1)])
    journal.close()
    stored = bytearray((tmp_path / FIRST).read_bytes())
    observations = decode_header(bytes(stored)).observations_offset
    for place in range(0, len(stored), every(7)):
        stored[place] ^= 1 << place % 8
        (tmp_path / FIRST).write_bytes(stored)
        if place < observations:
            with pytest.raises(CorruptData) as caught:
                open_journal(tmp_path)
            assert caught.value.details == {"file": str(tmp_path / FIRST), "offset": 0}
        else:
            journal = open_journal(tmp_path).journal
            assert journal.read(2).num_rows == 3
            for _ in range(2):
                with raises(CorruptData, offset=576):
                    journal.read(1)
            journal.close()
        stored[place] ^= 1 << place % 8


def test_journal_read_damage_while_open_raises_corrupt_data(three: Path) -> None:
    journal = open_journal(three.parent).journal
    header = decode_header(three.read_bytes())
    for read, place in ((journal.paths, header.observations_offset - 1), (journal.header, 20)):
        flip(three, place)
        with pytest.raises(CorruptData):
            read(1)


def test_journal_read_truncated_while_open_raises_corrupt_data(three: Path) -> None:
    journal = open_journal(three.parent).journal
    three.write_bytes(three.read_bytes()[:100])
    with raises(CorruptData, offset=2176):
        journal.read(3)


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_recovery_truncated_sealed_segment_raises_corrupt_data(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, SEALING).journal
    journal.append([make_commit(0), make_commit(1)])
    journal.append([make_commit(2)])
    journal.close()
    stored = (tmp_path / FIRST).read_bytes()
    ends = frame_ends(stored)
    for length in (len(stored) - 1, ends[0], ends[0] + 10, 0):
        (tmp_path / FIRST).write_bytes(stored[:length])
        with pytest.raises(CorruptData):
            open_journal(tmp_path)
    (tmp_path / FIRST).unlink()
    with raises(CorruptData, offset=0):
        open_journal(tmp_path)


def test_recovery_files_of_other_partition_raises_corrupt_data(three: Path) -> None:
    with raises(CorruptData, offset=0):
        open_journal(three.parent, partition=8)


def test_recovery_frame_out_of_sequence_raises_corrupt_data(three: Path) -> None:
    stored = three.read_bytes()
    ends = frame_ends(stored)
    three.write_bytes(stored[: ends[0]] + stored[ends[1] :])
    with raises(CorruptData, offset=1088):
        open_journal(three.parent)


def test_recovery_later_format_raises_and_is_kept(three: Path) -> None:
    stored = bytearray(three.read_bytes())
    start = frame_ends(bytes(stored))[1]
    size = decode_header(bytes(stored[start:])).header_bytes
    stored[start + 8 : start + 10] = struct.pack("<H", 9)
    crc = google_crc32c.value(bytes(stored[start : start + size - 4]))
    stored[start + size - 4 : start + size] = struct.pack("<I", crc)
    three.write_bytes(stored)
    with raises(ConfigError, expected="format_version"):
        open_journal(three.parent)
    assert three.read_bytes() == stored


def test_recovery_frame_within_observations_is_ignored(three: Path) -> None:
    stored = three.read_bytes()
    bait = replace(decode_header(stored), sequence=5, group=5, batch=0, producer="x")
    header = encode_header(bait)
    table = make_observations(1)
    column = pa.StringArray.from_buffers(
        1, pa.py_buffer(struct.pack("<ii", 0, len(header))), pa.py_buffer(header)
    )
    table = table.set_column(4, SCHEMA.observation_schema.field(4), column)
    journal = open_journal(three.parent).journal
    journal.append([Commit("bait", 0, *model_paths.index(SCHEMA, table))])
    journal.close()
    baited = three.read_bytes()
    assert baited.count(header) == 1
    for length in (len(baited) - 1, len(baited) - 64):
        three.write_bytes(baited[:length])
        journal = open_journal(three.parent).journal
        assert journal.last_sequence == 3
        journal.close()
        assert three.read_bytes() == stored


def first_page(stored: bytes, frame: int) -> int:
    """Where the first whole page within a frame begins."""
    start = frame_ends(stored)[frame - 1]
    return -(-start // PAGE_BYTES) * PAGE_BYTES


def test_recovery_group_with_lost_page_is_cut_from_there(group: Path) -> None:
    stored = group.read_bytes()
    place = first_page(stored, 2)
    group.write_bytes(stored[:place] + bytes(PAGE_BYTES) + stored[place + PAGE_BYTES :])
    again = open_journal(group.parent)
    assert again.journal.last_sequence == 2
    assert again.journal.torn_bytes == len(stored) - frame_ends(stored)[1]
    retried = again.journal.append([make_commit(batch, rows=400) for batch in (1, 2, 3)])
    assert [(result.sequence, result.duplicate) for result in retried] == [
        (2, True),
        (3, False),
        (4, False),
    ]


def test_recovery_group_with_lost_header_is_cut(group: Path) -> None:
    stored = group.read_bytes()
    start = frame_ends(stored)[0]
    lost = PAGE_BYTES - start
    group.write_bytes(stored[:start] + bytes(lost) + stored[PAGE_BYTES:])
    assert open_journal(group.parent).journal.last_sequence == 1


def test_recovery_flipped_byte_in_group_raises_corrupt_data(group: Path) -> None:
    stored = group.read_bytes()
    for frame in (1, 2):
        for place in (0, 200, 5000):
            flip(group, frame_ends(stored)[frame - 1] + place)
            with pytest.raises(CorruptData):
                open_journal(group.parent)
            group.write_bytes(stored)


def test_recovery_lost_page_before_synced_group_raises_corrupt_data(group: Path) -> None:
    journal = open_journal(group.parent).journal
    journal.append([make_commit(9)])
    journal.close()
    stored = group.read_bytes()
    place = first_page(stored, 2)
    group.write_bytes(stored[:place] + bytes(PAGE_BYTES) + stored[place + PAGE_BYTES :])
    with pytest.raises(CorruptData):
        open_journal(group.parent)


def test_recovery_interrupted_is_repeated(three: Path, faulty_disk: Any) -> None:
    """What an interrupted recovery leaves is recovered just the same."""
    stored = three.read_bytes()
    three.write_bytes(stored[:-1])
    faulty_disk.failing = {"truncate": errno.EIO}
    with raises(PartitionReadOnly, after_s=5.0):
        open_journal(three.parent, JournalOptions(disk=faulty_disk))
    assert three.read_bytes() == stored[:-1]
    assert open_journal(three.parent).journal.last_sequence == 2
