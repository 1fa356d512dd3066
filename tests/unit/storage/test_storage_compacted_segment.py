from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from expected_errors import raises
from journals import open_journal

from galileo.errors import ConfigError, CorruptData
from galileo.storage.compacted_format import FORMAT_VERSION, TRAILER_BYTES, read_index
from galileo.storage.compacted_segment import compacted_segment_paths
from galileo.storage.compaction import CompactionOptions
from galileo.storage.frame import ALIGNMENT, checksum
from galileo.storage.journal import Commit
from galileo.storage.segment_verify import check_compacted
from galileo.storage.writer import JournalOptions

SMALL = JournalOptions(durability="none", segment_bytes_max=6_000)
TWO_BLOCKS = CompactionOptions(bytes_min=1, block_bytes=12_000)


@pytest.fixture
def merged(stored: Path) -> Path:
    """A merged segment of several blocks."""
    journal = open_journal(stored, SMALL).journal
    journal.merge(TWO_BLOCKS, lambda _: True)
    journal.close()
    (path,) = compacted_segment_paths(stored)
    assert len(read_index(path).blocks) > 2
    return path


def outcome(path: Path, commits: list[Commit]) -> set[int] | None:
    """The sequences whose observations cannot be read, None where the start is refused."""
    try:
        journal = open_journal(path.parent, SMALL).journal
    except CorruptData:
        return None
    lost = set()
    for sequence, commit in enumerate(commits, start=1):
        try:
            assert journal.read(sequence).equals(commit.observations)
        except CorruptData:
            lost.add(sequence)
    journal.close()
    return lost


@pytest.mark.slow
def test_compacted_segment_any_flipped_byte_is_detected(
    merged: Path, commits: list[Commit]
) -> None:
    """At the start where paths or index are hit, else when the block is read; verify tells all."""
    stored, index = merged.read_bytes(), read_index(merged)
    first = index.blocks[0]
    places = [
        *(0, 5, first.observations_offset - 1, first.observations_offset),
        *(index.blocks[1].offset, index.blocks[1].observations_offset + 70),
        *(len(stored) - 1, len(stored) - TRAILER_BYTES, len(stored) - TRAILER_BYTES - 1),
        *random.Random(3).sample(range(len(stored)), 150),
    ]
    for place in places:
        changed = bytearray(stored)
        changed[place] ^= 1 << place % 8
        merged.write_bytes(changed)
        report = check_compacted(merged, partition=7)
        assert len(report.flaws) == 1
        hit = [b for b in index.blocks if b.offset <= place < b.observations_offset]
        data = [
            b
            for b in index.blocks
            if b.observations_offset <= place < b.observations_offset + b.entry.observations_bytes
        ]
        lost = outcome(merged, commits)
        if data:
            assert lost == set(range(data[0].first_sequence, data[0].last_sequence + 1))
            assert report.flaws[0].sequence == data[0].first_sequence
            assert report.flaws[0].offset == data[0].observations_offset
        else:
            assert lost is None
            assert report.flaws[0].sequence == (hit[0].first_sequence if hit else None)
    merged.write_bytes(stored)
    assert outcome(merged, commits) == set()
    assert not check_compacted(merged, partition=7).flaws


def test_compacted_segment_other_length_raises_corrupt_data(merged: Path) -> None:
    stored = merged.read_bytes()
    for length in (0, 63, 64, len(stored) // 2, len(stored) - ALIGNMENT, len(stored) - 1):
        merged.write_bytes(stored[:length])
        with pytest.raises(CorruptData):
            open_journal(merged.parent, SMALL)
        assert check_compacted(merged, partition=7).flaws
    merged.write_bytes(stored + bytes(ALIGNMENT))
    with pytest.raises(CorruptData):
        open_journal(merged.parent, SMALL)


def test_compacted_segment_wrong_place_raises_corrupt_data(merged: Path, tmp_path: Path) -> None:
    other = tmp_path / "8"
    shutil.copytree(merged.parent, other)
    with raises(CorruptData, offset=0):
        open_journal(other, SMALL, partition=8)
    assert check_compacted(merged, partition=8).flaws
    (tmp_path / "9").mkdir()
    misnamed = tmp_path / "9" / f"{2:020d}.merged"
    shutil.copy(merged, misnamed)
    with raises(CorruptData, offset=0):
        open_journal(tmp_path / "9", SMALL)
    assert check_compacted(misnamed, partition=7).flaws


def test_compacted_segment_later_format_raises_and_is_kept(merged: Path) -> None:
    stored = bytearray(merged.read_bytes())
    trailer = memoryview(stored)[-TRAILER_BYTES:]
    trailer[8:12] = (FORMAT_VERSION + 1).to_bytes(4, "little")
    trailer[-4:] = checksum([bytes(trailer[:-4])]).to_bytes(4, "little")
    merged.write_bytes(stored)
    with raises(ConfigError, expected="format_version"):
        open_journal(merged.parent, SMALL)
    assert merged.read_bytes() == stored
