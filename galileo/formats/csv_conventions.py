"""What headers of well-known sources say about a text file: ERDDAP, THREDDS, NDBC and USGS NWIS."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.formats.columns import COORDINATE_UNITS, USUAL_NAMES
from galileo.formats.reader import Scan

_NAME_WITH_UNIT = re.compile(r"(.*\S) \(([^()]*)\)|(.*?)\[unit=\"(.*)\"\]")
"""Of ERDDAP, `sst (degree_C)`, and of THREDDS, `sst[unit="K"]`."""
_NDBC_TIMES = (("YY", "MM", "DD", "hh", "mm"), ("YYYY", "MM", "DD", "hh", "mm"))
_NDBC_MISSING = (
    ("", "MM"),
    *((name, "99") for name in ("WSPD", "GST", "WVHT", "DPD", "APD", "VIS", "TIDE")),
    *((name, "999") for name in ("WDIR", "MWD", "ATMP", "WTMP", "DEWP")),
    ("PRES", "9999"),
)
"""https://www.ndbc.noaa.gov/faq/measdes.shtml: MM in recent files, nines in those of past years."""
_NWIS, _NWIS_TIME, _NWIS_ZONE = ("agency_cd", "site_no"), "datetime", "tz_cd"
_NWIS_HOURS = {
    **{"UTC": 0, "GMT": 0, "AST": -4, "ADT": -3, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5},
    **{"MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "AKST": -9, "AKDT": -8, "HST": -10, "HDT": -9},
}
"""From UTC, by the code of a zone: https://help.waterdata.usgs.gov/code/tz_query."""


def are_units(names: Sequence[str], fields: Sequence[str]) -> bool:
    """Whether a line after the header has units: one of a latitude, a longitude or a time."""
    return len(names) == len(fields) and any(map(_is_unit_of_coordinate, names, fields))


def split_units(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names and units of columns whose names end in units; without units, the names as they are.

    The name of a coordinate tells such files from others with parentheses in names.
    """
    matches = [_NAME_WITH_UNIT.fullmatch(name) for name in names]
    pairs = [
        (match[1] or match[3], match[2] or match[4] or "") if match else (name, "")
        for name, match in zip(names, matches, strict=True)
    ]
    if not any(_is_unit_of_coordinate(*pair) for pair in pairs):
        return list(names), []
    return [name for name, _ in pairs], [unit for _, unit in pairs]


def _is_unit_of_coordinate(name: str, unit: str) -> bool:
    return any(
        unit.lower() in units and any(name.lower() in group for group in USUAL_NAMES[coordinate])
        for coordinate, units in COORDINATE_UNITS.items()
    )


def time_of(names: Sequence[str]) -> str | None:
    """The columns of the time in files of NDBC, as in `Mapping.time`; None in other files."""
    return ",".join(names[:5]) if tuple(names[:5]) in _NDBC_TIMES else None


def missing_of(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The values that mean a missing one in files of NDBC, as in `Mapping.missing`."""
    return _NDBC_MISSING if time_of(names) else ()


def with_zones(names: Sequence[str], scan: Scan) -> Scan:
    """A scan of a file of NWIS whose local times get the offset of their zone; others as they are.

    The scan raises InputError if a code of a zone is unknown.
    """
    if tuple(names[:2]) != _NWIS or not {_NWIS_TIME, _NWIS_ZONE} <= {*names}:
        return scan
    codes = pa.array(list(_NWIS_HOURS))
    offsets = pa.array([f"{hours:+03}:00" for hours in _NWIS_HOURS.values()])

    def zoned(columns: Sequence[str]) -> Iterator[pa.Table]:
        for table in scan(list(dict.fromkeys([*columns, _NWIS_TIME, _NWIS_ZONE]))):
            zones = table.column(_NWIS_ZONE)
            unknown = pc.unique(zones.filter(pc.invert(pc.is_in(zones, codes)))).drop_null()
            if len(unknown):
                raise InputError(
                    f"expected zones such as EST in column {_NWIS_ZONE!r}, got "
                    f"{unknown[0].as_py()!r:.100}; write the times in UTC",
                    expected="time_zone",
                    column=_NWIS_ZONE,
                )
            shift = offsets.take(pc.index_in(zones, codes).combine_chunks())
            place = table.column_names.index(_NWIS_TIME)
            times = pc.binary_join_element_wise(table.column(_NWIS_TIME), shift, "")
            yield table.set_column(place, _NWIS_TIME, times).select(list(columns))

    return zoned
