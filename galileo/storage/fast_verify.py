"""Skips valid frames in memory, quickly.

Small commits make millions of frames. Here each costs one unpacking and three checksums, and no
objects. Slower code reports what is wrong with the first invalid frame.
"""

from __future__ import annotations

import struct

import pyarrow as pa
from google_crc32c import value as crc32c

from galileo.storage.frame import (
    ALIGNMENT,
    FORMAT_VERSION,
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    MAGIC,
)

# As in `frame`: magic, version, header bytes, partition, sequence; then, behind group, committed,
# batch, rows, paths and the time, the lengths of the bodies, the epoch, and their checksums.
_FRONT = struct.Struct("<8sHHIQ")
_BODIES = struct.Struct("<IIQII")
_BODIES_PLACE = 56
_CRC = struct.Struct("<I")
_SIZES = frozenset(range(HEADER_BYTES_MIN, HEADER_BYTES_MAX + 1, ALIGNMENT))


def skip_valid_frames(
    memory: pa.Buffer, place: int, *, partition: int, sequence: int
) -> tuple[int, int]:
    """Goes from frame to frame as long as every byte of them is right.

    Args:
        memory: of a segment, or of a stretch of one.
        place: in `memory`, where the frame of `sequence` begins.
        partition: that the frames must be of.
        sequence: of the first of them; the next ones must follow it.

    Returns:
        Where the first frame begins that is not sound, or not all in `memory`, and the sequence
        that it should have.
    """
    view, cut, size = memoryview(memory), memory.slice, memory.size
    front, bodies, crc_at = _FRONT.unpack_from, _BODIES.unpack_from, _CRC.unpack_from
    while place + HEADER_BYTES_MIN <= size:
        magic, version, length, of, number = front(view, place)
        if magic != MAGIC or version != FORMAT_VERSION or length not in _SIZES:
            break
        paths_length, observations_length, _, paths_crc, observations_crc = bodies(
            view, place + _BODIES_PLACE
        )
        paths_bytes = paths_length * ALIGNMENT
        observations_bytes = observations_length * ALIGNMENT
        paths = place + length
        observations = paths + paths_bytes
        end = observations + observations_bytes
        if (of, number) != (partition, sequence) or end > size:
            break
        if crc32c(cut(place, length - _CRC.size)) != crc_at(view, paths - _CRC.size)[0]:
            break
        if crc32c(cut(paths, paths_bytes)) != paths_crc:
            break
        if crc32c(cut(observations, observations_bytes)) != observations_crc:
            break
        place, sequence = end, sequence + 1
    return place, sequence
