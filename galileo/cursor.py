"""Cursors: for each partition, the commit sequence up to which something is done.

A partition that a cursor does not name stands at 0: nothing of it is done. Cursors are
immutable; the three combinators are pointwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt


class Cursor(Mapping[int, int]):
    """An immutable map from partition to commit sequence; absent means 0, and 0 is absent."""

    __slots__ = ("_positions",)

    def __init__(self, positions: Mapping[int, int] | None = None) -> None:
        items = sorted((positions or {}).items())
        if any(sequence < 0 for _, sequence in items):
            raise ValueError(f"expected sequences of at least 0, got {dict(items)}")
        self._positions = {int(p): int(s) for p, s in items if s > 0}

    def __getitem__(self, partition: int) -> int:
        return self._positions.get(partition, 0)

    def __iter__(self) -> Iterator[int]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, partition: object) -> bool:
        return partition in self._positions

    def __hash__(self) -> int:
        return hash(tuple(self._positions.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cursor) and self._positions == other._positions

    def __repr__(self) -> str:
        return f"Cursor({self._positions})"

    def covers(self, other: Mapping[int, int]) -> bool:
        """Whether this cursor is at or past `other` in every partition."""
        return all(self[partition] >= sequence for partition, sequence in other.items())

    def join(self, other: Mapping[int, int]) -> Cursor:
        """The later of both, partition by partition."""
        partitions = {**self._positions, **other}
        return Cursor({p: max(self[p], other.get(p, 0)) for p in partitions})

    def meet(self, other: Mapping[int, int]) -> Cursor:
        """The earlier of both, partition by partition."""
        return Cursor({p: min(self[p], other.get(p, 0)) for p in self._positions})

    def past(self, partitions: npt.NDArray[np.int32], sequences: npt.NDArray[np.int64]) -> Mask:
        """Which commits lie after this cursor, for columns of partitions and sequences."""
        if len(partitions) == 0:
            return np.zeros(0, dtype=np.bool_)
        positions = np.zeros(int(partitions.max()) + 1, dtype=np.int64)
        for partition, sequence in self._positions.items():
            if partition < len(positions):
                positions[partition] = sequence
        after: Mask = sequences > positions[partitions]
        return after


Mask = npt.NDArray[np.bool_]
ORIGIN = Cursor()
