"""Arenas: the memory of a run's arrays, taken from the system in one piece and given back as one.

The C library's heap keeps what is freed below something that lives on. Merging leaves so many
holes there that a node would hold half as much again as its paths take.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np

from galileo.graph.columns import Array

_ALIGNMENT = 64
_HUGE_PAGES_MIN = 1 << 22


def allocate(dtypes: Sequence[np.dtype[np.generic]], length: int) -> list[Array]:
    """Arrays of a common length in one arena, which lives as long as the last of them."""
    sizes = [dtype.itemsize * length for dtype in dtypes]
    starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
    arena = mmap.mmap(-1, max(starts[-1], 1))
    if starts[-1] >= _HUGE_PAGES_MIN and hasattr(mmap, "MADV_HUGEPAGE"):
        arena.madvise(mmap.MADV_HUGEPAGE)
    pairs = zip(dtypes, starts, strict=False)
    return [np.frombuffer(arena, dtype, length, start) for dtype, start in pairs]
