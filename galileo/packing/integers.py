"""Columns of 64-bit numbers in few bytes.

A column is written in one of five ways, the smallest by an estimate from a sample:

* *narrow*: differences to the least, in whole bytes; for few numbers, where choosing costs more;
* *frame*: differences to the least, in as many bits as most of them need; the higher bits of
  the others (the exceptions) and their places follow (Zukowski et al., "Super-scalar RAM-CPU
  cache compression", ICDE 2006);
* *steps*: differences between neighbours, as a frame; numbers wrap around;
* *runs*: equal neighbours once, with their count;
* *codes*: positions in the list of distinct numbers.

What is written says which, so reading never guesses; nothing here needs sorted input.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.packing.bits import WORD, Numbers, put_bits, take_bits
from galileo.packing.streams import Reader, Writer, damaged

NARROW_UP_TO = 64
"""So few numbers are written without a choice."""
SAMPLES, SAMPLE_LENGTH = 32, 33
"""Stretches of a column that are looked at to choose, and their length."""
EXCEPTION_LEVELS_MAX = 2
"""Exceptions have exceptions of their own no deeper than this."""

_LENGTH_BITS = 8
_GAP_BITS = 7
_CODES_FROM_BITS = 12
_CODES_SHARE = 4
_ONE = np.uint64(1)
_WIDTHS = np.arange(WORD + 1)


class _Way(enum.IntEnum):
    NARROW = 0
    FRAME = 1
    STEPS = 2
    RUNS = 3
    CODES = 4


def put_numbers(writer: Writer, numbers: Numbers) -> None:
    """Appends numbers; how many is for the reader to know."""
    if len(numbers) <= NARROW_UP_TO:
        _put_narrow(writer, numbers)
        return
    samples = _sampled(numbers)
    frames = _Frame.of(samples[0]), _Frame.of(samples[1])
    bits = min(frame.bits for frame in frames)
    changes = np.flatnonzero(numbers[1:] != numbers[:-1])
    if (len(changes) + 1) * (bits + _LENGTH_BITS) <= bits * len(numbers):
        _put_runs(writer, numbers, changes)
    elif bits < _CODES_FROM_BITS or not _repeats(samples[0]) or not _put_codes(writer, numbers):
        _put_close(writer, numbers, *frames)


def take_numbers(reader: Reader, *, count: int) -> Numbers:
    """The numbers that `put_numbers` appended."""
    return _TAKERS[reader.take_number(most=_LAST_WAY)](reader, count)


def _put_simple(writer: Writer, numbers: Numbers) -> None:
    """Appends numbers in none of the ways that are made of other columns."""
    if len(numbers) <= NARROW_UP_TO:
        _put_narrow(writer, numbers)
    else:
        plain, steps = _sampled(numbers)
        _put_close(writer, numbers, _Frame.of(plain), _Frame.of(steps))


def _take_simple(reader: Reader, count: int) -> Numbers:
    return _TAKERS[reader.take_number(most=_LAST_SIMPLE_WAY)](reader, count)


def _put_close(writer: Writer, numbers: Numbers, plain: _Frame, steps: _Frame) -> None:
    """Appends numbers as the smaller of frame and steps."""
    if steps.bits < plain.bits:
        writer.put_number(_Way.STEPS)
        writer.put_number(int(numbers[0]))
        _put_frame(writer, _zigzag(np.diff(numbers)), width=steps.width)
    else:
        low = numbers.min()
        writer.put_number(_Way.FRAME)
        writer.put_number(int(low))
        _put_frame(writer, numbers - low, width=plain.width)


# --- narrow -----------------------------------------------------------------------------------


def _put_narrow(writer: Writer, numbers: Numbers) -> None:
    writer.put_number(_Way.NARROW)
    if len(numbers) == 0:
        return
    low = numbers.min()
    offsets = numbers - low
    width = -(-int(offsets.max()).bit_length() // 8)
    writer.put_number(int(low))
    writer.put_number(width)
    data = offsets.astype("<u8").view(np.uint8).reshape(-1, 8)
    writer.put(data[:, :width].tobytes())


def _take_narrow(reader: Reader, count: int) -> Numbers:
    if count == 0:
        return np.zeros(0, dtype=np.uint64)
    low, width = reader.take_number(), reader.take_number(most=8)
    data = np.zeros((count, 8), dtype=np.uint8)
    data[:, :width] = np.frombuffer(reader.take(count * width), np.uint8).reshape(count, width)
    return data.view("<u8").reshape(-1) + np.uint64(low)


# --- frames and their exceptions ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Frame:
    """How a frame is best laid out: its width, and bits that a number then takes altogether."""

    width: int
    bits: float

    @staticmethod
    def of(sample: Numbers) -> _Frame:
        count = len(sample)
        # Rounding may make a number of many bits one bit longer, which an estimate can bear.
        lengths = np.minimum(np.frexp(sample.astype(np.float64))[1], WORD)
        longer = count - np.cumsum(np.bincount(lengths, minlength=WORD + 1))
        excess = np.cumsum(longer[::-1])[::-1]
        costs = _WIDTHS * count + longer * _GAP_BITS + excess
        width = int(costs.argmin())
        return _Frame(width, float(costs[width]) / max(1, count))


def _put_frame(writer: Writer, offsets: Numbers, *, width: int, level: int = 0) -> None:
    """Appends the lowest bits of all, then the exceptions."""
    exceptions = np.flatnonzero(offsets >> np.uint64(width)) if width < WORD else _NONE
    writer.put_number(width)
    writer.put_number(len(exceptions))
    if len(exceptions) == 0:
        put_bits(writer, offsets, width=width)
        return
    put_bits(writer, offsets & np.uint64(2**width - 1), width=width)
    gaps = np.diff(exceptions, prepend=-1).astype(np.uint64) - _ONE
    for numbers in (gaps, offsets[exceptions] >> np.uint64(width)):
        is_last = level + 1 == EXCEPTION_LEVELS_MAX
        own = int(numbers.max()).bit_length() if is_last else _Frame.of(numbers).width
        _put_frame(writer, numbers, width=own, level=level + 1)


def _take_frame(reader: Reader, count: int, *, level: int = 0) -> Numbers:
    width, exceptions = reader.take_number(most=WORD), reader.take_number(most=count)
    offsets = take_bits(reader, count=count, width=width)
    if exceptions == 0:
        return offsets
    if level == EXCEPTION_LEVELS_MAX or width == WORD:
        raise damaged("no exceptions here", str(exceptions))
    gaps = _take_frame(reader, exceptions, level=level + 1)
    if int(gaps.max()) >= count:
        raise damaged(f"exceptions among {count} numbers", f"a gap of {gaps.max()}")
    places = np.cumsum(gaps + _ONE).astype(np.int64) - 1
    if places[-1] >= count:
        raise damaged(f"exceptions among {count} numbers", f"one at {places[-1]}")
    offsets[places] |= _take_frame(reader, exceptions, level=level + 1) << np.uint64(width)
    return offsets


def _take_offset_frame(reader: Reader, count: int) -> Numbers:
    low = np.uint64(reader.take_number())
    offsets = _take_frame(reader, count)
    offsets += low
    return offsets


def _sampled(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Of stretches all over the column: the offsets to their least, and the zigzag steps."""
    length = min(SAMPLE_LENGTH, len(numbers))
    starts = np.linspace(0, len(numbers) - length, SAMPLES).astype(np.int64)
    stretches = numbers[starts[:, None] + np.arange(length)]
    return (stretches - stretches.min()).reshape(-1), _zigzag(np.diff(stretches)).reshape(-1)


# --- steps, runs, codes ---------------------------------------------------------------------------


def _zigzag(steps: Numbers) -> Numbers:
    """Small steps up and down as small numbers: 0, -1, 1, -2 … become 0, 1, 2, 3 …"""
    signs = (steps.view(np.int64) >> 63).view(np.uint64)
    signs ^= steps << _ONE
    return signs


def _take_steps(reader: Reader, count: int) -> Numbers:
    if count == 0:
        raise damaged("steps between numbers", "none")
    numbers = np.empty(count, dtype=np.uint64)
    numbers[0] = reader.take_number()
    steps = _take_frame(reader, count - 1)
    odd = steps & _ONE
    steps >>= _ONE
    steps ^= np.subtract(np.uint64(0), odd, out=odd)
    numbers[1:] = steps
    return np.cumsum(numbers, out=numbers)


def _put_runs(writer: Writer, numbers: Numbers, changes: npt.NDArray[np.intp]) -> None:
    starts = np.concatenate(([0], changes + 1))
    lengths = np.diff(np.append(starts, len(numbers))).astype(np.uint64)
    writer.put_number(_Way.RUNS)
    writer.put_number(len(starts))
    _put_simple(writer, numbers[starts])
    _put_simple(writer, lengths - _ONE)


def _take_runs(reader: Reader, count: int) -> Numbers:
    runs = reader.take_number(most=count)
    values = _take_simple(reader, runs)
    lengths = _take_simple(reader, runs)
    if runs and int(lengths.max()) >= count:
        raise damaged(f"runs of {count} numbers", f"one of {lengths.max()}")
    lengths = lengths + _ONE
    if int(lengths.sum()) != count:
        raise damaged(f"runs of {count} numbers together", str(lengths.sum()))
    return np.repeat(values, lengths.astype(np.int64))


def _repeats(sample: Numbers) -> bool:
    return len(np.unique(sample)) * 2 <= len(sample)


def _put_codes(writer: Writer, numbers: Numbers) -> bool:
    """Appends codes and the numbers that they stand for, where these are few.

    Returns:
        Whether they are; nothing is appended otherwise.
    """
    coded = pa.array(numbers).dictionary_encode()
    distinct = coded.dictionary.to_numpy()
    if len(distinct) * _CODES_SHARE > len(numbers):
        return False
    # In their order, so that they and the codes of neighbours lie close together.
    order = np.argsort(distinct)
    ranks = np.empty(len(order), dtype=np.uint64)
    ranks[order] = np.arange(len(order), dtype=np.uint64)
    writer.put_number(_Way.CODES)
    writer.put_number(len(distinct))
    _put_simple(writer, distinct[order])
    _put_simple(writer, ranks[coded.indices.to_numpy()])
    return True


def _take_codes(reader: Reader, count: int) -> Numbers:
    kinds = reader.take_number(most=count)
    distinct = _take_simple(reader, kinds)
    codes = _take_simple(reader, count)
    return distinct[checked_codes(codes, count=kinds)]


def checked_codes(codes: Numbers, *, count: int) -> npt.NDArray[np.int64]:
    """The codes as positions in a list of `count`.

    Raises:
        DataDamaged: one lies outside.
    """
    if len(codes) and int(codes.max()) >= count:
        raise damaged(f"a code below {count}", str(codes.max()))
    return codes.view(np.int64)


_NONE = np.zeros(0, dtype=np.intp)
_LAST_WAY, _LAST_SIMPLE_WAY = int(max(_Way)), int(_Way.STEPS)
_TAKERS: dict[int, Callable[[Reader, int], Numbers]] = {
    _Way.NARROW: _take_narrow,
    _Way.FRAME: _take_offset_frame,
    _Way.STEPS: _take_steps,
    _Way.RUNS: _take_runs,
    _Way.CODES: _take_codes,
}
