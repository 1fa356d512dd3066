from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.hashing import mix64, text64

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MASK = 2**64 - 1

words = st.integers(0, MASK)


def splitmix(value: int) -> int:
    """The published algorithm, in numbers without end."""
    z = (value + GOLDEN_GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def one(value: int) -> int:
    return int(mix64(np.array([value], dtype=np.uint64))[0])


def test_mix64_published_sequence_is_equal() -> None:
    states = [(1234567 + number * GOLDEN_GAMMA) & MASK for number in range(5)]
    assert [one(state) for state in states] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.lists(words))
def test_mix64_random_array_equals_splitmix(values: list[int]) -> None:
    mixed = mix64(np.array(values, dtype=np.uint64))
    assert mixed.dtype == np.uint64
    assert mixed.tolist() == [splitmix(value) for value in values]


@given(st.sets(words, max_size=50))
def test_mix64_distinct_numbers_stay_distinct(values: set[int]) -> None:
    assert len({one(value) for value in values}) == len(values)


def test_mix64_flipped_bit_flips_half_of_bits() -> None:
    values = np.arange(1000, dtype=np.uint64)
    for bit in range(64):
        differs = mix64(values) ^ mix64(values ^ np.uint64(1 << bit))
        flipped = np.bitwise_count(differs).mean()
        assert 31 < flipped < 33, f"bit {bit} flips {flipped} bits"


@pytest.mark.parametrize(
    ("parts", "hashed"),
    [
        ((), 0xB4B2797457A0A6E4),
        (("block", "nam"), 0x18AD5B5B402F1BBC),
        (("partition", 7, "node-1"), 0xB0F09BD93FD939DC),
        (("dataset", "nam", "node-2"), 0x074AD80779F1D6AB),
        (("é",), 0x2F19F3EF8BBF1ACB),
    ],
)
def test_text64_pinned_texts_have_pinned_hashes(parts: tuple[object, ...], hashed: int) -> None:
    assert text64(*parts) == hashed


@given(st.lists(st.one_of(st.text(st.characters(codec="utf-8")), st.integers(-9, 9))))
def test_text64_random_parts_equal_blake2b(parts: list[object]) -> None:
    data = "\0".join(map(str, parts)).encode()
    digest = hashlib.blake2b(data, digest_size=8).digest()
    assert text64(*parts) == sum(byte << (8 * place) for place, byte in enumerate(digest))


def test_text64_parts_are_kept_apart() -> None:
    assert text64("ab", "c") != text64("a", "bc") != text64("abc")
