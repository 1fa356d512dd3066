"""Bit packing: whole numbers of `width` bits each.

Many numbers are arranged in as many rows as a word has bits, number i in lane i modulo the number
of lanes, and each lane's numbers fill `width` words: every shift works on all lanes at once. A word
is the narrowest that holds a number. Few numbers take only the bytes that their bits need.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from galileo.packing.streams import ByteReader, ByteWriter

Numbers = npt.NDArray[np.uint64]

WORD = 64
LANES_MIN = 4
"""With fewer lanes the last words would be mostly empty."""
LANES_FEW = 1_024
"""Up to so many lanes the number of calls dominates the cost, not memory traffic."""
_TYPES: dict[int, Any] = {
    8: np.dtype("<u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
    64: np.dtype("<u8"),
}
_WORDS = tuple(next(word for word in _TYPES if width <= word) for width in range(WORD + 1))


def encode_bits(writer: ByteWriter, numbers: Numbers, *, width: int) -> None:
    """Append numbers below 2**width; count and width are not stored."""
    if width == 0 or len(numbers) == 0:
        return
    if width in _TYPES:
        writer.write(numbers.astype(_TYPES[width]).tobytes())
    elif len(numbers) < LANES_MIN * _word(width):
        places = np.arange(width, dtype=np.uint64)
        flags = ((numbers[:, None] >> places) & np.uint64(1)).astype(np.uint8)
        writer.write(np.packbits(flags, bitorder="little").tobytes())
    else:
        writer.write(_to_words(numbers, width).tobytes())


def decode_bits(reader: ByteReader, *, count: int, width: int) -> Numbers:
    """The inverse of `encode_bits`."""
    if width == 0 or count == 0:
        return np.zeros(count, dtype=np.uint64)
    word = _word(width)
    if width in _TYPES:
        data = reader.read(count * width // 8)
        return np.frombuffer(data, dtype=_TYPES[width]).astype(np.uint64)
    if count < LANES_MIN * word:
        bits = np.frombuffer(reader.read(-(-count * width // 8)), dtype=np.uint8)
        flags = np.zeros((count, WORD), dtype=np.uint8)
        flags[:, :width] = np.unpackbits(bits, count=count * width, bitorder="little").reshape(
            count, width
        )
        numbers: Numbers = np.packbits(flags, axis=1, bitorder="little").view("<u8").reshape(-1)
        return numbers
    lanes = -(-count // word)
    words = np.frombuffer(reader.read(word // 8 * width * lanes), dtype=_TYPES[word])
    return _from_words(words.reshape(width, lanes), width)[:count].astype(np.uint64)


def _word(width: int) -> int:
    """Bits of the words for numbers of this width."""
    return _WORDS[width]


def _to_words(numbers: Numbers, width: int) -> npt.NDArray[Any]:
    word = _word(width)
    kind, lanes = _TYPES[word], -(-len(numbers) // word)
    rows = np.zeros(word * lanes, dtype=kind)
    rows[: len(numbers)] = numbers
    rows = rows.reshape(word, lanes)
    words = np.zeros((width, lanes), dtype=kind)
    shifted = np.empty(lanes, dtype=kind)
    for position in range(word):
        at, offset = divmod(position * width, word)
        words[at] |= np.left_shift(rows[position], kind.type(offset), out=shifted)
        if offset + width > word:
            words[at + 1] |= np.right_shift(rows[position], kind.type(word - offset), out=shifted)
    return words


def _from_words(words: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    few = words.shape[1] <= LANES_FEW
    return _from_few_words(words, width) if few else _from_many_words(words, width)


def _from_few_words(words: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Decode all positions at once: few calls, whose temporaries fit the cache of the processor."""
    places = _places(width)
    rows = words[places.at]
    rows >>= places.shifts
    if len(places.over):
        above = words[places.above]
        above <<= places.shifts_above
        rows[places.over] |= above
    rows &= places.mask
    return rows.reshape(-1)


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions of the numbers of a lane.

    Attributes:
        at, shifts: word and bit where each begins.
        over, above, shifts_above: the numbers that continue in the next word, that word, and the
            shift.
        mask: of a number's bits.
    """

    at: npt.NDArray[np.int64]
    shifts: npt.NDArray[Any]
    over: npt.NDArray[np.int64]
    above: npt.NDArray[np.int64]
    shifts_above: npt.NDArray[Any]
    mask: Any


@functools.cache
def _places(width: int) -> _Places:
    word = _word(width)
    kind = _TYPES[word].type
    at, offsets = np.divmod(np.arange(word, dtype=np.int64) * width, word)
    over = np.flatnonzero(offsets + width > word)
    return _Places(
        at,
        offsets.astype(kind)[:, None],
        over,
        at[over] + 1,
        (word - offsets[over]).astype(kind)[:, None],
        kind(2**width - 1),
    )


def _from_many_words(words: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    word, lanes = _word(width), words.shape[1]
    kind = _TYPES[word]
    rows = np.empty((word, lanes), dtype=kind)
    shifted = np.empty(lanes, dtype=kind)
    mask = kind.type(2**width - 1)
    for position in range(word):
        at, offset = divmod(position * width, word)
        row = rows[position]
        np.right_shift(words[at], kind.type(offset), out=row)
        if offset + width > word:
            row |= np.left_shift(words[at + 1], kind.type(word - offset), out=shifted)
        row &= mask
    return rows.reshape(-1)
