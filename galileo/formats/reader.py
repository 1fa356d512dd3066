"""The interface that a file format implements for `Source`."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from galileo.errors import GalileoError, InputError
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

    @property
    def others(self) -> Sequence[str]:
        """What of the file cannot be features, such as columns of lists, by name."""
        ...

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """All rows, in an order that depends only on the file and `names`.

        Each table has the columns latitude, longitude (double) and time (`TIME_TYPE`), null where
        the file has none, and then `names`, in the types of the file.
        """
        ...


@contextmanager
def library_errors(name: object, *, format: str) -> Iterator[None]:
    """Turns what the libraries of a format raise about a file or Dataset into an InputError.

    An exception is a library's if the innermost frame of its traceback is not in this package.
    Others are mistakes of this package, and pass.
    """
    try:
        yield
    except (GalileoError, MemoryError):
        raise
    except Exception as error:
        *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
        if str(innermost.f_globals.get("__name__")).startswith("galileo."):
            raise
        notes = [note.partition("\n")[0] for note in getattr(error, "__notes__", ())]
        raise InputError(
            f"expected {name} to be readable {format}, got {type(error).__name__} of its library: "
            f"{'; '.join([str(error), *notes])}; correct or replace it",
            expected="whole_file",
            format=format,
        ) from error


def table_of(
    coordinates: Sequence[pa.Array], columns: Sequence[pa.Array], *, names: Sequence[str]
) -> pa.Table:
    """A table as `Reader.tables` yields it."""
    return pa.table([*coordinates, *columns], names=[*COORDINATES, *names])
