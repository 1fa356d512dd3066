"""The seam between one file format and `Source`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from galileo.formats.variables import VariableInfo
from galileo.model.schema import COORDINATES


class Reader(Protocol):
    """What a format must offer. One pass over `tables` reads every variable once at most."""

    @property
    def rows(self) -> int | None:
        """How many rows there are, about; None where only reading would tell."""
        ...

    def variables(self) -> Sequence[VariableInfo]:
        """What the file offers, coordinates excepted, in the file's order."""
        ...

    def coordinate_variables(self) -> Sequence[VariableInfo]:
        """What of the file the coordinates of rows come from; nothing where the format says it."""
        ...

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """All rows, in an order that depends on nothing but the file and `names`.

        Each table has the columns latitude, longitude (double), time (`TIME_TYPE`), any of them
        null where the file does not say, and then `names`, of the types that the file has.
        """
        ...


def table_of(
    coordinates: Sequence[pa.Array], columns: Sequence[pa.Array], *, names: Sequence[str]
) -> pa.Table:
    """The table that `Reader.tables` yields."""
    return pa.table([*coordinates, *columns], names=[*COORDINATES, *names])
