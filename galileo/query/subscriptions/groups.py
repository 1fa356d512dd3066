"""Groups of subscriptions that have equal parameters, and so equal matches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import pyarrow as pa

from galileo.geo.regions import Mask
from galileo.query.index.candidates import CandidatePairs
from galileo.query.subscriptions.blocks import Numbers
from galileo.query.subscriptions.row_index import RowIndex


class ValueGroups(Protocol):
    """The distinct values of the parameters, each with a number; not thread-safe."""

    def __len__(self) -> int:
        """How many numbers there are."""
        ...

    @property
    def nbytes(self) -> int: ...

    def numbers_of(self, values: Mapping[str, pa.Array]) -> Numbers:
        """The number of each row; new ones get the next numbers.

        Args:
            values: of the parameters, whose rows are distinct.
        """
        ...

    def keep(self, kept: Mask) -> None:
        """Remove the other groups; the kept ones are numbered anew, in their order."""
        ...

    def match(self, rows: RowIndex, alive: Mask) -> Iterator[CandidatePairs]:
        """The pairs of a group and a row that match exactly; a pair may come more than once.

        Args:
            rows: at least one; pairs have the numbers of their points.
            alive: mask of the groups that are asked for.
        """
        ...
