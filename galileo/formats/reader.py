"""The interface that a file format implements for `Source`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from galileo.formats.variables import VariableInfo
from galileo.model.schema import COORDINATES


class Reader(Protocol):
    """A reader of one file. A pass over `tables` reads each variable at most once."""

    @property
    def rows(self) -> int | None:
        """The number of rows, exact or estimated; None if unknown before reading."""
        ...

    def variables(self) -> Sequence[VariableInfo]:
        """The variables of the file without coordinates, in the order of the file."""
        ...

    def coordinate_variables(self) -> Sequence[VariableInfo]:
        """The variables of the coordinates; none if the format defines coordinates itself."""
        ...

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """All rows, in an order that depends only on the file and `names`.

        Each table has the columns latitude, longitude (double) and time (`TIME_TYPE`), null where
        the file has none, and then `names`, in the types of the file.
        """
        ...


def table_of(
    coordinates: Sequence[pa.Array], columns: Sequence[pa.Array], *, names: Sequence[str]
) -> pa.Table:
    """A table as `Reader.tables` yields it."""
    return pa.table([*coordinates, *columns], names=[*COORDINATES, *names])
