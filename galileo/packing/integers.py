"""Columns of 64-bit numbers in few bytes.

A column is written in one of five encodings, the smallest by an estimate from a sample:

* *plain*: differences to the least, in whole bytes; for few numbers, where choosing costs more;
* *frame of reference* (FOR): differences to the least, in as many bits as most of them need; the
  higher bits of the others (the exceptions) and their positions follow (Zukowski et al.,
  "Super-scalar RAM-CPU cache compression", ICDE 2006);
* *delta*: differences between neighbours, as a frame; numbers wrap around;
* *run length* (RLE): equal neighbours once, with their count;
* *dictionary*: positions in the list of distinct numbers.

The first byte names the encoding; the input need not be sorted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.packing.bits import WORD, Numbers, decode_bits, encode_bits
from galileo.packing.streams import ByteReader, ByteWriter, corrupt

PLAIN_UP_TO = 64
"""Up to so many numbers are written plain."""
SAMPLES, SAMPLE_LENGTH = 32, 33
"""Stretches of a column that are looked at to choose, and their length."""
EXCEPTION_LEVELS_MAX = 2
"""Exceptions may have exceptions of their own up to this depth."""

_LENGTH_BITS = 8
_GAP_BITS = 7
_DICT_FROM_BITS = 12
_DICT_SHARE = 4
_ONE = np.uint64(1)
_WIDTHS = np.arange(WORD + 1)


class _Encoding(enum.IntEnum):
    PLAIN = 0
    FOR = 1
    DELTA = 2
    RLE = 3
    DICT = 4


def encode_numbers(writer: ByteWriter, numbers: Numbers) -> None:
    """Append numbers; their count is not stored."""
    if len(numbers) <= PLAIN_UP_TO:
        _encode_plain(writer, numbers)
        return
    samples = _take_samples(numbers)
    frames = _FrameLayout.from_sample(samples[0]), _FrameLayout.from_sample(samples[1])
    bits = min(frame.bits for frame in frames)
    changes = np.flatnonzero(numbers[1:] != numbers[:-1])
    if (len(changes) + 1) * (bits + _LENGTH_BITS) <= bits * len(numbers):
        _encode_runs(writer, numbers, changes)
    elif (
        bits < _DICT_FROM_BITS
        or not _has_repeats(samples[0])
        or not _encode_dictionary(writer, numbers)
    ):
        _encode_for_or_delta(writer, numbers, *frames)


def decode_numbers(reader: ByteReader, *, count: int) -> Numbers:
    """The inverse of `encode_numbers`."""
    return _DECODERS[reader.read_number(most=_LAST_ENCODING)](reader, count)


def _encode_simple(writer: ByteWriter, numbers: Numbers) -> None:
    """Append numbers in an encoding that does not contain other columns."""
    if len(numbers) <= PLAIN_UP_TO:
        _encode_plain(writer, numbers)
    else:
        plain, steps = _take_samples(numbers)
        _encode_for_or_delta(
            writer, numbers, _FrameLayout.from_sample(plain), _FrameLayout.from_sample(steps)
        )


def _decode_simple(reader: ByteReader, count: int) -> Numbers:
    return _DECODERS[reader.read_number(most=_LAST_SIMPLE_ENCODING)](reader, count)


def _encode_for_or_delta(
    writer: ByteWriter, numbers: Numbers, plain: _FrameLayout, steps: _FrameLayout
) -> None:
    """Append numbers as the smaller of frame of reference and delta."""
    if steps.bits < plain.bits:
        writer.write_number(_Encoding.DELTA)
        writer.write_number(int(numbers[0]))
        _encode_frame(writer, _zigzag(np.diff(numbers)), width=steps.width)
    else:
        low = numbers.min()
        writer.write_number(_Encoding.FOR)
        writer.write_number(int(low))
        _encode_frame(writer, numbers - low, width=plain.width)


# --- plain -----------------------------------------------------------------------------------


def _encode_plain(writer: ByteWriter, numbers: Numbers) -> None:
    writer.write_number(_Encoding.PLAIN)
    if len(numbers) == 0:
        return
    low = numbers.min()
    offsets = numbers - low
    width = -(-int(offsets.max()).bit_length() // 8)
    writer.write_number(int(low))
    writer.write_number(width)
    data = offsets.astype("<u8").view(np.uint8).reshape(-1, 8)
    writer.write(data[:, :width].tobytes())


def _decode_plain(reader: ByteReader, count: int) -> Numbers:
    if count == 0:
        return np.zeros(0, dtype=np.uint64)
    low, width = reader.read_number(), reader.read_number(most=8)
    data = np.zeros((count, 8), dtype=np.uint8)
    data[:, :width] = np.frombuffer(reader.read(count * width), np.uint8).reshape(count, width)
    return data.view("<u8").reshape(-1) + np.uint64(low)


# --- frames and their exceptions ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FrameLayout:
    """The best layout of a frame: its width, and the mean bits of a number."""

    width: int
    bits: float

    @staticmethod
    def from_sample(sample: Numbers) -> _FrameLayout:
        count = len(sample)
        # Rounding may make a number of many bits one bit longer, which an estimate can bear.
        lengths = np.minimum(np.frexp(sample.astype(np.float64))[1], WORD)
        longer = count - np.cumsum(np.bincount(lengths, minlength=WORD + 1))
        excess = np.cumsum(longer[::-1])[::-1]
        costs = _WIDTHS * count + longer * _GAP_BITS + excess
        width = int(costs.argmin())
        return _FrameLayout(width, float(costs[width]) / max(1, count))


def _encode_frame(writer: ByteWriter, offsets: Numbers, *, width: int, level: int = 0) -> None:
    """Append the low bits of all numbers, then the exceptions."""
    exceptions = np.flatnonzero(offsets >> np.uint64(width)) if width < WORD else _NONE
    writer.write_number(width)
    writer.write_number(len(exceptions))
    if len(exceptions) == 0:
        encode_bits(writer, offsets, width=width)
        return
    encode_bits(writer, offsets & np.uint64(2**width - 1), width=width)
    gaps = np.diff(exceptions, prepend=-1).astype(np.uint64) - _ONE
    for numbers in (gaps, offsets[exceptions] >> np.uint64(width)):
        is_last = level + 1 == EXCEPTION_LEVELS_MAX
        own = (
            int(numbers.max()).bit_length() if is_last else _FrameLayout.from_sample(numbers).width
        )
        _encode_frame(writer, numbers, width=own, level=level + 1)


def _decode_frame(reader: ByteReader, count: int, *, level: int = 0) -> Numbers:
    width, exceptions = reader.read_number(most=WORD), reader.read_number(most=count)
    offsets = decode_bits(reader, count=count, width=width)
    if exceptions == 0:
        return offsets
    if level == EXCEPTION_LEVELS_MAX or width == WORD:
        raise corrupt("no exceptions here", str(exceptions))
    gaps = _decode_frame(reader, exceptions, level=level + 1)
    if int(gaps.max()) >= count:
        raise corrupt(f"exceptions among {count} numbers", f"a gap of {gaps.max()}")
    places = np.cumsum(gaps + _ONE).astype(np.int64) - 1
    if places[-1] >= count:
        raise corrupt(f"exceptions among {count} numbers", f"one at {places[-1]}")
    offsets[places] |= _decode_frame(reader, exceptions, level=level + 1) << np.uint64(width)
    return offsets


def _decode_for(reader: ByteReader, count: int) -> Numbers:
    low = np.uint64(reader.read_number())
    offsets = _decode_frame(reader, count)
    offsets += low
    return offsets


def _take_samples(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Samples from all over the column: offsets to their least value, and zigzag deltas."""
    length = min(SAMPLE_LENGTH, len(numbers))
    starts = np.linspace(0, len(numbers) - length, SAMPLES).astype(np.int64)
    stretches = numbers[starts[:, None] + np.arange(length)]
    return (stretches - stretches.min()).reshape(-1), _zigzag(np.diff(stretches)).reshape(-1)


# --- delta, run length, dictionary ------------------------------------------------------------


def _zigzag(steps: Numbers) -> Numbers:
    """Small steps up and down as small numbers: 0, -1, 1, -2 … become 0, 1, 2, 3 …"""
    signs = (steps.view(np.int64) >> 63).view(np.uint64)
    signs ^= steps << _ONE
    return signs


def _decode_delta(reader: ByteReader, count: int) -> Numbers:
    if count == 0:
        raise corrupt("steps between numbers", "none")
    numbers = np.empty(count, dtype=np.uint64)
    numbers[0] = reader.read_number()
    steps = _decode_frame(reader, count - 1)
    odd = steps & _ONE
    steps >>= _ONE
    steps ^= np.subtract(np.uint64(0), odd, out=odd)
    numbers[1:] = steps
    return np.cumsum(numbers, out=numbers)


def _encode_runs(writer: ByteWriter, numbers: Numbers, changes: npt.NDArray[np.intp]) -> None:
    starts = np.concatenate(([0], changes + 1))
    lengths = np.diff(np.append(starts, len(numbers))).astype(np.uint64)
    writer.write_number(_Encoding.RLE)
    writer.write_number(len(starts))
    _encode_simple(writer, numbers[starts])
    _encode_simple(writer, lengths - _ONE)


def _decode_runs(reader: ByteReader, count: int) -> Numbers:
    runs = reader.read_number(most=count)
    values = _decode_simple(reader, runs)
    lengths = _decode_simple(reader, runs)
    if runs and int(lengths.max()) >= count:
        raise corrupt(f"runs of {count} numbers", f"one of {lengths.max()}")
    lengths = lengths + _ONE
    if int(lengths.sum()) != count:
        raise corrupt(f"runs of {count} numbers together", str(lengths.sum()))
    return np.repeat(values, lengths.astype(np.int64))


def _has_repeats(sample: Numbers) -> bool:
    return len(np.unique(sample)) * 2 <= len(sample)


def _encode_dictionary(writer: ByteWriter, numbers: Numbers) -> bool:
    """Append codes and the distinct numbers, if these are few.

    Returns:
        Whether they are; nothing is appended otherwise.
    """
    coded = pa.array(numbers).dictionary_encode()
    distinct = coded.dictionary.to_numpy()
    if len(distinct) * _DICT_SHARE > len(numbers):
        return False
    # In their order, so that they and the codes of neighbours lie close together.
    order = np.argsort(distinct)
    ranks = np.empty(len(order), dtype=np.uint64)
    ranks[order] = np.arange(len(order), dtype=np.uint64)
    writer.write_number(_Encoding.DICT)
    writer.write_number(len(distinct))
    _encode_simple(writer, distinct[order])
    _encode_simple(writer, ranks[coded.indices.to_numpy()])
    return True


def _decode_dictionary(reader: ByteReader, count: int) -> Numbers:
    kinds = reader.read_number(most=count)
    distinct = _decode_simple(reader, kinds)
    codes = _decode_simple(reader, count)
    return distinct[checked_codes(codes, count=kinds)]


def checked_codes(codes: Numbers, *, count: int) -> npt.NDArray[np.int64]:
    """The codes as positions in a list of `count`.

    Raises:
        CorruptData: a code is out of range.
    """
    if len(codes) and int(codes.max()) >= count:
        raise corrupt(f"a code below {count}", str(codes.max()))
    return codes.view(np.int64)


_NONE = np.zeros(0, dtype=np.intp)
_LAST_ENCODING, _LAST_SIMPLE_ENCODING = int(max(_Encoding)), int(_Encoding.DELTA)
_DECODERS: dict[int, Callable[[ByteReader, int], Numbers]] = {
    _Encoding.PLAIN: _decode_plain,
    _Encoding.FOR: _decode_for,
    _Encoding.DELTA: _decode_delta,
    _Encoding.RLE: _decode_runs,
    _Encoding.DICT: _decode_dictionary,
}
