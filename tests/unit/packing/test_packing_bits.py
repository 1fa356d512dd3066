"""Numbers of few bits: every width and count, as few lanes and as many, comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.packing import bits
from galileo.packing.bits import decode_bits, encode_bits
from galileo.packing.streams import ByteReader, ByteWriter


def numbers_of(count: int, width: int) -> np.ndarray:
    drawn = np.random.default_rng(width).integers(0, 2**63, count, dtype=np.uint64)
    return (drawn << np.uint64(1) | np.uint64(1)) >> np.uint64(64 - width) if width else drawn * 0


def there_and_back(numbers: np.ndarray, width: int) -> np.ndarray:
    writer = ByteWriter()
    encode_bits(writer, numbers, width=width)
    reader = ByteReader(writer.bytes())
    taken = decode_bits(reader, count=len(numbers), width=width)
    assert reader.is_at_end
    return taken


@pytest.mark.parametrize("width", range(65))
def test_bits_any_width_round_trips(width: int) -> None:
    for count in (0, 1, 31, 257, 5_000):
        numbers = numbers_of(count, width)
        assert np.array_equal(there_and_back(numbers, width), numbers)


@pytest.mark.parametrize("width", [w for w in range(1, 65) if w not in (8, 16, 32, 64)])
def test_bits_few_lanes_equals_many_lanes(width: int) -> None:
    word = bits._word(width)
    drawn = np.random.default_rng(5).integers(0, 256, width * 37 * word // 8, dtype=np.uint8)
    words = drawn.view(f"<u{word // 8}").reshape(width, 37)
    few, many = bits._from_few_words(words, width), bits._from_many_words(words, width)
    assert np.array_equal(few, many)
    assert few.dtype == many.dtype


def test_bits_more_than_few_lanes_round_trip() -> None:
    numbers = numbers_of(8 * (bits.LANES_FEW + 3), 5)
    assert np.array_equal(there_and_back(numbers, 5), numbers)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 130), max_size=20))
def test_write_number_random_numbers_round_trip(numbers: list[int]) -> None:
    writer = ByteWriter()
    for number in numbers:
        writer.write_number(number)
    reader = ByteReader(writer.bytes())
    assert [reader.read_number() for _ in numbers] == numbers
    assert reader.is_at_end
