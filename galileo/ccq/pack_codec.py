"""Codec of packs with their lists of commits, for spill files and for holders.

    magic "GSPL", version                                         4, 2 bytes
    number of added features of the labels, number of packs       2, 4 bytes
    for each pack: labels, commits, bytes of data                 3 times 8 bytes
                   commits (4 rows of int64), data
    CRC-32C of all before                                         4 bytes

All numbers are little-endian. The data of packs is validated when it is unpacked.
"""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np

from galileo.errors import CorruptData
from galileo.model.schema import Schema
from galileo.packing import ROWS_MAX, Compression
from galileo.packs import Commits, Pack, PackedLabels

FORMAT_VERSION = 1
_MAGIC = b"GSPL"
_HEAD = struct.Struct("<4sHHI")
_PACK = struct.Struct("<QQQ")
_CHECKSUM = struct.Struct("<I")
_COMMIT_BYTES = 4 * 8


def to_bytes(labels: PackedLabels, compression: Compression) -> bytes:
    """The packs as bytes; packs with labels of other CCQs, or dropped ones, are packed anew.

    Takes time in proportion to the bytes, more where labels are packed.
    """
    packs = [pack.alone(labels.schema, compression) for pack in labels.packs]
    parts = [_HEAD.pack(_MAGIC, FORMAT_VERSION, labels.schema.added, len(packs))]
    for pack in packs:
        parts.append(_PACK.pack(pack.rows, pack.commits.shape[1], len(pack.data)))
        parts += [np.ascontiguousarray(pack.commits, dtype="<i8").tobytes(), pack.data]
    body = b"".join(parts)
    return body + _CHECKSUM.pack(google_crc32c.value(body))


def from_bytes(data: bytes, schema: Schema) -> PackedLabels:
    """The packs.

    Args:
        data: of `to_bytes`.
        schema: of the labels.

    Raises:
        CorruptData: the bytes were not made by `to_bytes`, or are damaged, or the labels have
            another number of added features.
    """
    body = data[: -_CHECKSUM.size]
    if len(body) < _HEAD.size or _CHECKSUM.pack(google_crc32c.value(body)) != data[len(body) :]:
        raise CorruptData(f"expected packs with their checksum, got {len(data)} corrupt bytes")
    magic, version, added, count = _HEAD.unpack_from(body)
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise CorruptData(
            f"expected packs of format {FORMAT_VERSION}, got {magic!r} of format {version}; "
            "run one version of Galileo on all nodes",
            expected="format_version",
        )
    packs, at = [], _HEAD.size
    if added != schema.added:
        raise CorruptData(f"expected packs with {schema.added} added features, got {added}")
    for _ in range(count):
        pack, at = _read(body, at)
        packs.append(pack)
    return PackedLabels(schema, tuple(packs))


def _read(body: bytes, at: int) -> tuple[Pack, int]:
    if at + _PACK.size > len(body):
        raise CorruptData("expected one more pack, got the end of the bytes")
    rows, commits, size = _PACK.unpack_from(body, at)
    start = at + _PACK.size
    middle = start + commits * _COMMIT_BYTES
    end = middle + size
    if end > len(body):
        raise CorruptData(f"expected {end} bytes of packs, got {len(body)}")
    columns = np.frombuffer(body, dtype="<i8", count=4 * commits, offset=start)
    commits_by_row = columns.reshape(4, commits).astype(np.int64)
    _check(commits_by_row, rows)
    return Pack(body[middle:end], rows, commits_by_row), end


def _check(commits: Commits, rows: int) -> None:
    """Raise CorruptData unless the commits partition the labels of the pack."""
    _, _, starts, counts = commits[:, np.argsort(commits[2], kind="stable")]
    is_sound = rows <= ROWS_MAX and bool(((counts > 0) & (counts <= rows)).all())
    if not is_sound or int(counts.sum()) != rows or (starts != np.cumsum(counts) - counts).any():
        raise CorruptData(
            f"expected commits that share {rows:,} labels of a pack, got others",
            expected="labels_of_pack",
        )
