from __future__ import annotations

import hashlib
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from galileo.hashing import _SEEDS, LONG_BYTES, hash128, mix64, rows_digest, text64

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


# --- hashes of rows, compared with the same sum over single words --------------------------------


HASHES_OF_TEXTS = [
    [0x6CAB3D99615AF318, 0x1CCCEC03C97E24D9],
    [0x2CB0F69F4ABEA221, 0x3BB548A553E612BA],
]
HASHES_OF_NUMBERS = [
    [0x2CB0F69F4ABEA221, 0x3BB548A553E612BA],
    [0xEDCC99D7F7403620, 0x663747F86ADFC4C1],
]


def mixed(state: int, word: int) -> int:
    return int(mix64(np.array([(state ^ word) & MASK], dtype=np.uint64))[0])


def hash_of(row, seed: int) -> int:
    """One half of the hash of a row, word by word."""
    state = seed
    for value in row:
        if isinstance(value, str):
            data = value.encode()
            state = mixed(state, len(data))
            for at in range(0, len(data), 8):
                state = mixed(state, int.from_bytes(data[at : at + 8], "little"))
        else:
            state = mixed(state, value & MASK)
    return state


def text(chance: random.Random) -> str:
    return "".join(chance.choices("ab\0é😀", k=chance.choice((0, 1, 3, 7, 8, 9, 30))))


def test_hash128_is_that_of_a_walk_over_words_also_of_slices() -> None:
    chance = random.Random(3)
    texts = [text(chance) for _ in range(200)]
    numbers = [chance.choice((-1, 0, 2**63 - 1, -(2**63), chance.getrandbits(40))) for _ in texts]
    columns = pa.array(texts), pa.array(numbers, pa.int64())
    expected = [[hash_of(row, int(s)) for s in _SEEDS] for row in zip(texts, numbers, strict=True)]
    assert hash128(columns).tolist() == expected
    sliced = [column.slice(50, 100) for column in columns]
    assert hash128(sliced).tolist() == expected[50:150]
    assert hash128([column.slice(9, 0) for column in columns]).tolist() == []


def test_hash128_never_changes() -> None:
    """Rows are stored where these numbers say."""
    assert hash128([pa.array(["KDEN", ""])]).tolist() == HASHES_OF_TEXTS
    assert hash128([pa.array([0, 1])]).tolist() == HASHES_OF_NUMBERS


def test_hash128_of_many_rows_differs_in_each_half() -> None:
    numbers = hash128([pa.array(np.arange(100_000))])
    texts = hash128([pa.array([f"station-{n}" for n in range(100_000)])])
    for half in (0, 1):
        assert len(np.unique(numbers[:, half])) == 100_000
        assert len(np.unique(texts[:, half])) == 100_000


DIGESTED = {
    "n": pa.int64(),
    "x": pa.float64(),
    "t": pa.string(),
    "b": pa.bool_(),
    "at": pa.timestamp("us", tz="UTC"),
    "wkb": pa.binary(),
}
VALUES = {
    "n": [0, 1, None],
    "x": [0.0, 1.5, None],
    "t": ["", "a", "ab", None],
    "b": [True, False, None],
    "at": [0, 7, None],
    "wkb": [b"", b"a", None],
}


def test_rows_digest_equals_the_comparison_of_sorted_rows() -> None:
    """Random small tables, so that many differ in one value or in their order alone."""
    chance, digests = random.Random(3), dict[tuple[object, ...], int]()
    for _ in range(1_000):
        names = sorted(chance.sample(list(DIGESTED), 2))
        columns = {name: [chance.choice(VALUES[name]) for _ in range(2)] for name in names}
        table = pa.table({name: pa.array(columns[name], DIGESTED[name]) for name in names})
        present = [name for name in names if columns[name] != [None, None]]
        rows = zip(*(columns[name] for name in present), strict=True)
        same = (*present, *sorted(map(repr, rows))) if present else ()
        digest = rows_digest(table)
        assert digests.setdefault(same, digest) == digest
    assert len({*digests.values()}) == len(digests) > 100
    assert all(0 < one < 2**63 for one in digests.values())


def test_rows_digest_counts_equal_rows_and_takes_dictionaries_and_chunks() -> None:
    table = pa.table({"t": ["a", "b", "a"]})
    assert rows_digest(table) != rows_digest(table.slice(0, 2))
    encoded = pa.table({"t": table.column("t").dictionary_encode()})
    assert rows_digest(table) == rows_digest(encoded)
    assert rows_digest(table) == rows_digest(pa.concat_tables([table.slice(2), table.slice(0, 2)]))
    assert rows_digest(table.slice(0, 0)) > 0


def test_rows_digest_of_long_texts_differs_by_each_byte() -> None:
    """Texts of one length around the bound, of which each byte counts, and nulls beside them."""
    digests = set()
    for size in (LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 5 * LONG_BYTES):
        for at in (0, size // 2, size - 1):
            for letter in "bc":
                text = "a" * at + letter + "a" * (size - at - 1)
                table = pa.table({"t": ["short", text, None]})
                digests.add(rows_digest(table))
                assert rows_digest(table) == rows_digest(table.take([2, 1, 0]))
    assert len(digests) == 24


def test_rows_digest_of_32_bit_floats_differs_by_each_value() -> None:
    values = [4.3, 0.1, None, float("inf")]
    digests = {
        rows_digest(pa.table({"t": pa.array([*values[:n], 7.0], pa.float32())}))
        for n in range(len(values) + 1)
    }
    assert len(digests) == len(values) + 1
