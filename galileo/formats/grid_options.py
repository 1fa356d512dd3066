"""Which rows a file of grids, stations or profiles has, where the file does not say it."""

from __future__ import annotations

from dataclasses import dataclass

REFERENCE_TIME, LEAD_TIME = "reference_time", "lead_time"
RUN_ATTRIBUTES = {
    REFERENCE_TIME: {
        "standard_name": "forecast_reference_time",
        "units": "seconds since 1970-01-01",
        "long_name": "reference time of the forecast",
    },
    LEAD_TIME: {
        "standard_name": "forecast_period",
        "units": "h",
        "long_name": "time since the reference time",
    },
}
"""The features of forecasts, with what describes them."""


@dataclass(frozen=True, slots=True)
class GridOptions:
    """How to read a file of grids, stations or profiles, where the file does not say it.

    Args:
        rows: dimensions of a NetCDF file, such as levels or members, whose every index makes rows.
            Empty: those that the file declares by the CF conventions.
        group: the path of a group of a NetCDF file. "": the root group if it has places, else the
            only group that has some.
        reference_time: whether the reference time and the lead time of forecasts become features:
            `reference_time`, in seconds since 1970, and `lead_time`, in hours.

    Example:
        >>> galileo.GridOptions(rows=["N_LEVELS"]).rows
        ('N_LEVELS',)
    """

    rows: tuple[str, ...] = ()
    group: str = ""
    reference_time: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
