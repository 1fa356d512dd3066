"""Arrays that grow together, written only behind what readers have."""

from __future__ import annotations

import numpy as np

from galileo.graph.columns import Array

_CAPACITY_MIN = 64


class Buffer:
    """Arrays of one common length that grow by doubling; one writer at a time."""

    __slots__ = ("_arrays", "length")

    def __init__(self, kinds: tuple[type[np.generic], ...]) -> None:
        self._arrays: tuple[Array, ...] = tuple(np.empty(_CAPACITY_MIN, kind) for kind in kinds)
        self.length = 0

    @property
    def nbytes(self) -> int:
        return sum(self.length * array.itemsize for array in self._arrays)

    def extend(self, columns: tuple[Array, ...]) -> None:
        stop = self.length + len(columns[0])
        if stop > len(self._arrays[0]):
            self._grow(stop)
        for array, column in zip(self._arrays, columns, strict=True):
            array[self.length : stop] = column
        self.length = stop

    def view(self) -> tuple[Array, ...]:
        return tuple(array[: self.length] for array in self._arrays)

    def _grow(self, needed: int) -> None:
        """Moves to new arrays; views keep the old ones."""
        capacity = max(needed, 2 * len(self._arrays[0]))
        grown = tuple(np.empty(capacity, array.dtype) for array in self._arrays)
        for new, old in zip(grown, self._arrays, strict=True):
            new[: self.length] = old[: self.length]
        self._arrays = grown
