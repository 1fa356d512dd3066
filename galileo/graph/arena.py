"""Arenas: the memory of many arrays, taken from the system in one piece and given back as one.

The C library's heap keeps what is freed below something that lives on. Merging runs leaves so many
holes there that a node would hold half as much again as its paths take. And it gives back at once
what is freed at its end beyond `HEAP_BYTES`, so that a large answer would fault its memory in again
page by page; an arena has large pages.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

HEAP_BYTES = 64 << 20
"""The most that the heap keeps at its end for what is allocated next (glibc's M_TRIM_THRESHOLD)."""

_ALIGNMENT = 64
_HUGE_PAGES_MIN = 1 << 22


def allocate(dtypes: Sequence[np.dtype[np.generic]], length: int) -> list[Array]:
    """Arrays of a common length in one arena, which lives as long as the last of them."""
    sizes = [dtype.itemsize * length for dtype in dtypes]
    starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
    # Private: memory that could be shared has large pages only where the system is set up for it.
    arena = mmap.mmap(-1, max(starts[-1], 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if starts[-1] >= _HUGE_PAGES_MIN and hasattr(mmap, "MADV_HUGEPAGE"):
        arena.madvise(mmap.MADV_HUGEPAGE)
    pairs = zip(dtypes, starts, strict=False)
    return [np.frombuffer(arena, dtype, length, start) for dtype, start in pairs]


def gather(arrays: Sequence[Array], rows: npt.NDArray[np.integer[Any]]) -> list[Array]:
    """The rows of each array, in one arena; one value that stands for all stays so."""
    dense = [array.dtype for array in arrays if array.strides != (0,)]
    slots = iter(allocate(dense, len(rows)))
    return [_gather(array, rows, slots) for array in arrays]


def _gather(array: Array, rows: npt.NDArray[np.integer[Any]], slots: Iterator[Array]) -> Array:
    if array.strides == (0,):
        return np.broadcast_to(array[0], len(rows))
    slot = next(slots)
    array.take(rows, out=slot, mode="clip")
    return slot
