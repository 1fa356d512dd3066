"""Changed inputs, for where nothing guides the changes by coverage: a test's quick pass."""

from __future__ import annotations

import numpy as np

INTERESTING = (b"\0", b"\xff", b"\x80", b"\x7f", b"(", b'"', b"-1", b"1e999", b"\xff" * 8)
STEPS_MAX = 6


def mutated(seeds: list[bytes], rng: np.random.Generator, *, bytes_max: int) -> bytes:
    """A seed with a few bytes flipped, replaced, removed, doubled, or taken from another seed."""
    data = bytearray(seeds[rng.integers(len(seeds))])
    for _ in range(rng.integers(1, STEPS_MAX + 1)):
        start = int(rng.integers(len(data) + 1))
        stop = min(len(data), start + int(rng.geometric(0.2)))
        match rng.integers(6):
            case 0 if start < len(data):
                data[start] ^= 1 << int(rng.integers(8))
            case 1 if start < len(data):
                data[start] = int(rng.integers(256))
            case 2:
                del data[start:stop]
            case 3:
                data[start:start] = data[start:stop]
            case 4:
                data[start:stop] = INTERESTING[rng.integers(len(INTERESTING))]
            case _:
                other = seeds[rng.integers(len(seeds))]
                cut = int(rng.integers(len(other) + 1))
                data[start:] = other[cut:]
    return bytes(data[:bytes_max])
