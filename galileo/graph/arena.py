"""Arenas: the memory of many arrays, mapped from the system as one piece and returned as one.

The C library's heap cannot return memory below a live allocation. Compaction of runs fragments it
so much that a node would use half as much memory again as its paths take. The heap also returns
free memory at its end beyond `HEAP_BYTES` at once, so that a large answer would fault it in again
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
"""The most free memory that the heap keeps at its end (M_TRIM_THRESHOLD of glibc)."""

_ALIGNMENT = 64
_HUGE_PAGES_MIN = 1 << 22


def allocate(dtypes: Sequence[np.dtype[np.generic]], length: int) -> list[Array]:
    """Arrays of a common length in one arena, which is freed with the last of them."""
    sizes = [dtype.itemsize * length for dtype in dtypes]
    starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
    # Private: memory that could be shared has large pages only where the system is set up for it.
    arena = mmap.mmap(-1, max(starts[-1], 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if starts[-1] >= _HUGE_PAGES_MIN and hasattr(mmap, "MADV_HUGEPAGE"):
        arena.madvise(mmap.MADV_HUGEPAGE)
    pairs = zip(dtypes, starts, strict=False)
    return [np.frombuffer(arena, dtype, length, start) for dtype, start in pairs]


def gather(arrays: Sequence[Array], rows: npt.NDArray[np.integer[Any]]) -> list[Array]:
    """The rows of each array, in one arena; constant arrays (without strides) stay constant."""
    dense = [array.dtype for array in arrays if array.strides != (0,)]
    slots = iter(allocate(dense, len(rows)))
    return [_gather(array, rows, slots) for array in arrays]


def _gather(array: Array, rows: npt.NDArray[np.integer[Any]], slots: Iterator[Array]) -> Array:
    if array.strides == (0,):
        return np.broadcast_to(array[0], len(rows))
    slot = next(slots)
    array.take(rows, out=slot, mode="clip")
    return slot
