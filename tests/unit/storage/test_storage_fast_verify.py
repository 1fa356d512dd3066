from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from journals import make_commit, open_journal

from galileo.storage.fast_verify import skip_valid_frames
from galileo.storage.frame import FORMAT_VERSION, HEADER_BYTES_MAX, checksum, decode_header
from galileo.storage.writer import JournalOptions

PARTITION = 7


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Five commits, the third by a producer with a long name."""
    directory: Path = tmp_path_factory.mktemp("sound")
    journal = open_journal(directory, JournalOptions(durability="none")).journal
    for batch in range(5):
        journal.append([make_commit(batch, producer="radar" * (40 if batch == 2 else 1))])
    journal.close()
    (path,) = directory.glob("*.segment")
    return path.read_bytes()


def starts(stored: bytes) -> Iterator[int]:
    """Where each frame begins, and where the last one ends; by the code that makes objects."""
    offset = 0
    while offset < len(stored):
        yield offset
        offset += decode_header(stored[offset : offset + HEADER_BYTES_MAX]).frame_bytes
    yield offset


def walked(stored: bytes, place: int = 0, *, sequence: int = 1) -> tuple[int, int]:
    return skip_valid_frames(pa.py_buffer(stored), place, partition=PARTITION, sequence=sequence)


def test_skip_valid_frames_intact_segment_reaches_end(segment: bytes) -> None:
    places = list(starts(segment))
    assert walked(segment) == (len(segment), 6)
    for number, place in enumerate(places):
        assert walked(segment, place, sequence=number + 1) == (len(segment), 6)


def test_skip_valid_frames_truncated_stops_at_last_whole_frame(segment: bytes) -> None:
    places = list(starts(segment))
    for length in range(0, len(segment), 61):
        whole = max(n for n, place in enumerate(places) if place <= length)
        assert walked(segment[:length]) == (places[whole], whole + 1)


def test_skip_valid_frames_any_flipped_byte_stops_before_frame(segment: bytes) -> None:
    places = list(starts(segment))
    for place in range(len(segment)):
        damaged = bytearray(segment)
        damaged[place] ^= 1 << place % 8
        frame = max(n for n, start in enumerate(places) if start <= place)
        assert walked(bytes(damaged)) == (places[frame], frame + 1)


def test_skip_valid_frames_foreign_frame_stops_before_it(segment: bytes) -> None:
    places = list(starts(segment))
    assert walked(segment, sequence=2) == (0, 2)
    memory = pa.py_buffer(segment)
    assert skip_valid_frames(memory, 0, partition=8, sequence=1) == (0, 1)
    assert walked(segment[: places[1]] + segment[places[2] :]) == (places[1], 2)


def test_skip_valid_frames_later_format_stops_before_it(segment: bytes) -> None:
    end = list(starts(segment))[1]
    header = bytearray(segment[: decode_header(segment).header_bytes])
    header[8:10] = struct.pack("<H", FORMAT_VERSION + 1)
    header[-4:] = struct.pack("<I", checksum([bytes(header[:-4])]))
    assert walked(bytes(header) + segment[len(header) : end]) == (0, 1)
