"""Patterns of geohash texts with wildcards for single characters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from galileo.errors import InputError
from galileo.geo import geohash
from galileo.geo.geohash import Cells, Floats
from galileo.geo.ranges import Mask

ANY = "_"
"""Wildcard for one character."""

_LETTERS = frozenset(geohash.ALPHABET.decode() + ANY)


@dataclass(frozen=True, slots=True)
class Pattern:
    """All geohash texts with a prefix that may contain wildcards.

    Attributes:
        text: at most `geohash.PRECISION_MAX` characters, with `ANY` for wildcards; the last is
            none.

    Raises:
        InputError: it is empty, too long, ends in `ANY`, or has an invalid character.
    """

    text: str

    def __post_init__(self) -> None:
        if not self.text or self.text.endswith(ANY) or len(self.text) > geohash.PRECISION_MAX:
            raise InputError(
                f"expected a pattern of 1 to {geohash.PRECISION_MAX} characters whose last one is "
                f"given, got {self.text!r}"
            )
        if not set(self.text) <= _LETTERS:
            raise InputError(
                f"expected characters of a geohash ({geohash.ALPHABET.decode()}) and {ANY}, "
                f"got {self.text!r}; use lower case, without the letters a, i, l and o"
            )

    def intersects(self, cells: Cells, precision: int) -> Mask:
        """Mask of cells with a matching point."""
        compared = min(precision, len(self.text))
        given = geohash.coarsen(cells, precision, compared) & self._given(compared)
        mask: Mask = given == self._wanted(compared)
        return mask

    def covers(self, cells: Cells, precision: int) -> Mask:
        """Mask of cells in which all points match."""
        if precision < len(self.text):
            return np.zeros(len(cells), dtype=np.bool_)
        return self.intersects(cells, precision)

    def intersects_points(self, latitude: Floats, longitude: Floats) -> Mask:
        """Mask of points whose text matches."""
        length = len(self.text)
        return self.intersects(geohash.encode(latitude, longitude, length), length)

    def _given(self, length: int) -> np.uint64:
        """Mask of the bits of the first characters that are not wildcards."""
        return _bits(0 if letter == ANY else 31 for letter in self.text[:length])

    def _wanted(self, length: int) -> np.uint64:
        """Values of these bits."""
        return np.uint64(geohash.cell_from_text(self.text[:length].replace(ANY, "0")))


def _bits(digits: Iterable[int]) -> np.uint64:
    number = 0
    for digit in digits:
        number = number << 5 | digit
    return np.uint64(number)
