"""Patterns of geohash texts: characters that are given, among others that may be any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from galileo.errors import InputError
from galileo.geo import geohash
from galileo.geo.geohash import Cells, Floats
from galileo.geo.ranges import Mask

ANY = "_"
"""Stands for any one character."""

_LETTERS = frozenset(geohash.ALPHABET.decode() + ANY)


@dataclass(frozen=True, slots=True)
class Pattern:
    """All geohash texts that begin with characters as given.

    Attributes:
        text: at most `geohash.PRECISION_MAX` characters, `ANY` among them; the last is given.

    Raises:
        InputError: it is empty, too long or ends in `ANY`, or has a character that geohash lacks.
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
        """Which cells hold a place whose text begins so."""
        compared = min(precision, len(self.text))
        given = geohash.coarsen(cells, precision, compared) & self._given(compared)
        found: Mask = given == self._wanted(compared)
        return found

    def covers(self, cells: Cells, precision: int) -> Mask:
        """Which cells hold no other places than such."""
        if precision < len(self.text):
            return np.zeros(len(cells), dtype=np.bool_)
        return self.intersects(cells, precision)

    def intersects_points(self, latitude: Floats, longitude: Floats) -> Mask:
        """Which points have such a text."""
        length = len(self.text)
        return self.intersects(geohash.encode(latitude, longitude, length), length)

    def _given(self, length: int) -> np.uint64:
        """The bits of the first characters that are given."""
        return _bits(0 if letter == ANY else 31 for letter in self.text[:length])

    def _wanted(self, length: int) -> np.uint64:
        """What these bits must be."""
        return np.uint64(geohash.cell_from_text(self.text[:length].replace(ANY, "0")))


def _bits(digits: Iterable[int]) -> np.uint64:
    number = 0
    for digit in digits:
        number = number << 5 | digit
    return np.uint64(number)
