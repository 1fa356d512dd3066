"""Hashes that are stable across processes and versions, in contrast to `hash()`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array

DIGEST_BYTES = 16
_DIGEST: np.dtype[Any] = np.dtype(f"V{DIGEST_BYTES}")


def mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64: a bijection of 64-bit numbers whose every output bit looks random.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def text64(*parts: object) -> int:
    """64 bits of a BLAKE2b digest over the texts of `parts`, kept apart by a zero byte."""
    joined = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")


def digest(text: str) -> bytes:
    """Digest of a text, such as canonical CQL2 JSON; the chance of a collision is 2**-128."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def split_digests(data: bytes) -> list[bytes]:
    """The digests of a multiple of `DIGEST_BYTES` bytes."""
    digests: list[bytes] = np.frombuffer(data, dtype=_DIGEST).tolist()
    return digests


_SEEDS = np.array([0x243F6A8885A308D3, 0x13198A2E03707344], dtype=np.uint64)
"""Of the two halves of a hash of 128 bits; digits of pi."""
_WORD_BYTES = 8
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(_WORD_BYTES + 1)], dtype=np.uint64)
"""Masks of the first bytes of a word, by their number."""
LONG_BYTES = 1 << 10
"""Texts that are longer count in a digest of rows by a digest of their own."""


def hash128(columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """Hashes of 128 bits of the rows of columns without nulls; the same on all machines.

    Each half mixes the row, word by word, into 64 bits. A half is a bijection of a row of one word,
    such as a number. No secret takes part, so rows that collide can be made on purpose.

    Args:
        columns: of one length; texts, bytes, numbers, or times.

    Returns:
        A row of two halves for each row.
    """
    hashes = np.repeat(_SEEDS[:, None], len(columns[0]), axis=1)
    for column in columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            hashes = _mix_texts(hashes, column)
        else:
            if column.type == pa.float32():
                column = column.cast(pa.float64())
            hashes = mix64(hashes ^ column.view(pa.int64()).to_numpy().view(np.uint64))
    return hashes.T


def rows_digest(table: pa.Table) -> int:
    """A digest of the rows of a table in any order, from 1 to 2^63 - 1.

    A column without any value does not count: the feature may have been added since.
    """
    total = np.zeros(2, dtype=np.uint64)
    columns = [column for name in table.column_names for column in _words(table, name)]
    if columns:
        total = mix64(hash128(columns)).sum(axis=0, dtype=np.uint64)
    return max(1, text64(table.num_rows, *total.tolist()) >> 1)


def _words(table: pa.Table, name: str) -> Iterator[pa.Array]:
    """A column as columns without nulls, its name included; nothing of one without values."""
    column = one_array(table.column(name))
    if column.null_count == len(column):
        return
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())
    is_texts = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    present = pc.is_valid(column).cast(pa.int64())
    if is_texts:
        sizes = pc.binary_length(column).cast(pa.int64())
        present = pc.fill_null(pc.add(sizes, 1), 0)
        column = _shortened(column, pc.fill_null(pc.greater(sizes, LONG_BYTES), False))
    yield pc.add(pc.multiply(present, 2), text64(name) >> 2)
    empty = pa.scalar("" if is_texts else 0)
    yield pc.fill_null(column, empty.cast(column.type))


def _shortened(texts: pa.Array, is_long: pa.Array) -> pa.Array:
    """Texts with digests in place of the long ones: `_mix_texts` takes a step for eight bytes."""
    if not is_long.true_count:
        return texts
    digests = [hashlib.blake2b(one.as_buffer()).hexdigest() for one in texts.filter(is_long)]
    return pc.replace_with_mask(texts, is_long, pa.array(digests).cast(texts.type))


def _mix_texts(hashes: npt.NDArray[np.uint64], texts: pa.Array) -> npt.NDArray[np.uint64]:
    """Mixes texts into the hashes of their rows: their lengths, then eight bytes at a time."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[texts.offset :][: len(texts) + 1]
    whole = np.frombuffer(data or b"", dtype=np.uint8)[bounds[0] : bounds[-1]]
    padded = np.concatenate([whole, np.zeros(_WORD_BYTES, dtype=np.uint8)])
    words: npt.NDArray[np.uint64] = np.ndarray(len(whole) + 1, "<u8", padded, strides=(1,))
    starts, sizes = bounds[:-1].astype(np.int64) - bounds[0], np.diff(bounds).astype(np.int64)
    hashes, rows = mix64(hashes ^ sizes.astype(np.uint64)), np.arange(len(sizes))
    for at in range(0, int(sizes.max(initial=0)), _WORD_BYTES):
        rows = rows[sizes.take(rows) > at]
        word = words[starts[rows] + at] & _FIRST_BYTES.take(sizes[rows] - at, mode="clip")
        hashes[:, rows] = mix64(hashes.take(rows, axis=1) ^ word)
    return hashes
