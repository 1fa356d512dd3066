"""Which rows a file of grids, stations or profiles has, where the file does not say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GridOptions:
    """How to read a file of grids, stations or profiles, where the file does not say it.

    Args:
        rows: dimensions of a NetCDF file, such as levels or members, whose every index makes rows.
            Empty: those that the file declares by the CF conventions.
        group: the path of a group of a NetCDF file. "": the root group if it has places, else the
            only group that has some.

    Example:
        >>> galileo.GridOptions(rows=["N_LEVELS"]).rows
        ('N_LEVELS',)
    """

    rows: tuple[str, ...] = ()
    group: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
