"""How CSV files are written, where their text does not show it."""

from __future__ import annotations

import codecs
import os
import zoneinfo
from dataclasses import dataclass
from typing import Any

from galileo.errors import InputError

NULL_WORDS = (
    *("", "NA", "N/A", "n/a", "#N/A", "M", "NaN", "nan", "NAN", "Nan", "-nan"),
    *("null", "NULL", "Null", "None"),
)
"""Words that mean a missing value where a number, a truth value or a time is expected. In a text,
only an empty field without quotation marks is missing."""


@dataclass(frozen=True, slots=True)
class CsvOptions:
    r"""How to read a CSV file, where its text does not show it.

    Args:
        separator: the character between two fields; `" "` is any white space. "": that which
            splits the first lines best.
        quote: the character around texts that contain separators.
        encoding: of the text, such as "latin-1". "": UTF-8, or UTF-16 with a byte order mark.
        decimal: the character before fractions of numbers. Where it is ",", points separate groups
            of three digits.
        skip: lines before the header.
        names: of the columns, of a file without a header.
        units: whether the line after the header has units, as files of ERDDAP and IBTrACS do.
        time_format: of times, as of `strptime`; "": ISO 8601.
        time_zone: of times that say none, such as "America/Denver" or "-08:00"; "": UTC.
        bad_rows: a file that gets the rows with a mistake, with their line numbers and what is
            wrong. None: a mistake is an error.

    Example:
        >>> galileo.CsvOptions(separator=";", decimal=",", encoding="latin-1").quote
        '"'
    """

    separator: str = ""
    quote: str = '"'
    encoding: str = ""
    decimal: str = "."
    skip: int = 0
    names: tuple[str, ...] = ()
    units: bool = False
    time_format: str = ""
    time_zone: str = ""
    bad_rows: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        for name in ("separator", "quote"):
            character = getattr(self, name)
            is_one = len(character) == 1 and character.isascii() and character not in "\r\n"
            if not is_one and (character or name == "quote"):
                raise _wrong(name, "one ASCII character", character)
        if self.decimal not in (".", ","):
            raise _wrong("decimal", "'.' or ','", self.decimal)
        if not isinstance(self.skip, int) or self.skip < 0:
            raise _wrong("skip", "a number of lines", self.skip)
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError as error:
            raise _wrong("encoding", "one such as 'latin-1'", self.encoding) from error
        try:
            if self.time_zone and self.time_zone[0] not in "+-":
                zoneinfo.ZoneInfo(self.time_zone)
        except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
            raise _wrong("time_zone", "one such as 'America/Denver'", self.time_zone) from error

    def to_dict(self) -> dict[str, Any]:
        """What determines the rows of a file, for a digest.

        Example:
            >>> galileo.CsvOptions(separator=";").to_dict()["separator"]
            ';'
        """
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"bad_rows": self.bad_rows is not None}


def _wrong(name: str, expected: str, got: object) -> InputError:
    return InputError(f"expected {name}, {expected}, got {got!r}", option=name)
