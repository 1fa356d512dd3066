"""Reads the coordinates of the geometries in CQL2 text; the parser gets stand-ins for them.

The `cql2` package rounds coordinates to a neighbor of the nearest double, which can make a polygon
cross itself, does not accept scientific notation in them, and takes microseconds for each. So it is
given, with an index, one vertex in the place of all vertices of a geometry. A geometry with heights
or with a fault gets an index in the place of each coordinate, so that the parser judges it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import copysign, inf
from typing import Any, TypeAlias

_GEOMETRIES = re.compile(
    r"""'(?:[^']|'')*'|"[^"]*"|
    \b(?P<kind>(?:MULTI)?(?:POINT|LINESTRING|POLYGON))\s*+(?P<measures>ZM?|M)?\s*+
    (?P<positions>\([-+.,\dE\s()]*\))""",
    re.IGNORECASE | re.VERBOSE,
)
_COORDINATE = re.compile(
    r"(?<![\w.])(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:E[-+]?[0-9]{1,3})?(?![\w.])", re.IGNORECASE
)
"""Without its sign."""
_PARENTHESES = re.compile(r"[()]")
_SHAPE_LEVELS_MAX = 3
"""Of a multi-polygon."""

_NUMBER = r"[-+]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:E[-+]?+[0-9]{1,3}+)?+"
_SPACE = r"[ \t\r\n]*+"
_VERTEX = rf"{_NUMBER}[ \t\r\n]++{_NUMBER}"


def _list_of(item: str) -> str:
    """The pattern of a list in parentheses."""
    return rf"\({_SPACE}{item}{_SPACE}(?:,{_SPACE}{item}{_SPACE})*+\)"


_LINE = _list_of(_VERTEX)
_POINTS = _list_of(rf"\({_SPACE}{_VERTEX}{_SPACE}\)")
_PLAIN = {
    "MULTIPOINT": f"{_LINE}|{_POINTS}",
    "LINESTRING": _LINE,
    "MULTILINESTRING": _list_of(_LINE),
    "POLYGON": _list_of(_LINE),
    "MULTIPOLYGON": _list_of(_list_of(_LINE)),
}
"""Positions of geometries without a fault, all of two numbers, by kind."""
_PLAIN_PATTERNS = {kind: re.compile(text, re.IGNORECASE) for kind, text in _PLAIN.items()}
_ONE_VERTEX = {
    "MULTIPOINT": "({} 0)",
    "LINESTRING": "({} 0)",
    "MULTILINESTRING": "(({} 0))",
    "POLYGON": "(({} 0))",
    "MULTIPOLYGON": "((({} 0)))",
}
_SEPARATORS = str.maketrans("(),", "   ")
_INNERMOST = re.compile(r"\([^()]*+\)")
_LISTS_OF_INNERMOST = re.compile(r"\([^()]*+(?:\([^()]*+\)[^()]*+)++\)")

Coordinates: TypeAlias = list[Any]
"""Vertices, or lists of them, as in GeoJSON."""


@dataclass(frozen=True, slots=True)
class _StandIn:
    """What the parser reads in a place of the text.

    Attributes:
        start, end: of the place in the text.
        text: with the index of the stand-in.
        value: that the index stands for: a number without its sign, or all coordinates.
    """

    start: int
    end: int
    text: str
    value: float | Coordinates


class ParsableText:
    """A text with stand-ins for the coordinates of its geometries.

    Attributes:
        text: for the parser.
    """

    def __init__(self, source: str) -> None:
        self._stand_ins = _stand_ins(source)
        self.text = _replaced(source, self._stand_ins)

    def original(self, position: int) -> int:
        """The offset in the source of an offset in the text."""
        for one in self._stand_ins:
            if position <= one.start:
                break
            position = max(one.start, position - len(one.text) + one.end - one.start)
        return position

    def infinite(self) -> int | None:
        """The offset in the source of the first number that no double holds, if there is one."""
        return next((one.start for one in self._stand_ins if one.value == inf), None)

    def restored(self, tree: Any) -> Any:
        """The parsed text with the coordinates of its source."""
        if not self._stand_ins:
            return tree
        return _restored(tree, [one.value for one in self._stand_ins])


def end_of_shape(token: re.Match[str]) -> int:
    """The end of a geometry; 0 if its parentheses do not match or are too deep."""
    depth = 0
    for match in _PARENTHESES.finditer(token.string, token.start(), token.end()):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
        if depth > _SHAPE_LEVELS_MAX:
            return 0
    return 0


def _stand_ins(source: str) -> list[_StandIn]:
    stand_ins: list[_StandIn] = []
    for geometry in _GEOMETRIES.finditer(source):
        if not geometry["positions"]:
            continue
        start, end = geometry.start("positions"), end_of_shape(geometry)
        kind, has_measures = geometry["kind"].upper(), geometry["measures"] is not None
        coordinates = None if has_measures else _coordinates(kind, source[start:end])
        if coordinates is not None:
            text = _ONE_VERTEX[kind].format(len(stand_ins))
            stand_ins.append(_StandIn(start, end, text, coordinates))
            continue
        stand_ins += (
            _StandIn(*number.span(), str(index), float(number[0]))
            for index, number in enumerate(_COORDINATE.finditer(source, start, end), len(stand_ins))
        )
    return stand_ins


def _coordinates(kind: str, positions: str) -> Coordinates | None:
    """The coordinates of a geometry; None if the parser must judge them."""
    pattern = _PLAIN_PATTERNS.get(kind)
    if pattern is None or not pattern.fullmatch(positions):
        return None
    numbers = [*map(float, positions.translate(_SEPARATORS).split())]
    if inf in numbers or -inf in numbers:
        return None
    pairs = iter(numbers)
    vertices = map(list, zip(pairs, pairs, strict=True))
    if kind in ("MULTIPOINT", "LINESTRING"):
        return [*vertices]
    if kind != "MULTIPOLYGON":
        return _lines(positions, vertices)
    return [_lines(polygon, vertices) for polygon in _LISTS_OF_INNERMOST.findall(positions[1:-1])]


def _lines(positions: str, vertices: Iterator[list[float]]) -> Coordinates:
    """A list of the vertices of each innermost list."""
    lines = _INNERMOST.findall(positions)
    return [[*islice(vertices, line.count(",") + 1)] for line in lines]


def _replaced(source: str, stand_ins: Sequence[_StandIn]) -> str:
    ends = [0, *(one.end for one in stand_ins)]
    parts = [
        f"{source[end : one.start]}{one.text}" for end, one in zip(ends, stand_ins, strict=False)
    ]
    return "".join([*parts, source[ends[-1] :]])


def _restored(tree: Any, values: Sequence[float | Coordinates]) -> Any:
    if isinstance(tree, list):
        return [_restored(item, values) for item in tree]
    if not isinstance(tree, dict):
        return tree
    return {
        name: (_valued if name == "coordinates" else _restored)(item, values)
        for name, item in tree.items()
    }


def _valued(indexes: Any, values: Sequence[float | Coordinates]) -> Any:
    if not isinstance(indexes, list):
        return copysign(values[int(abs(indexes))], indexes)  # type: ignore[arg-type]
    if isinstance(first := _first_index(indexes), float):
        whole = values[int(abs(first))]
        if isinstance(whole, list):
            return whole
    return [_valued(item, values) for item in indexes]


def _first_index(indexes: Any) -> Any:
    """The first number of nested lists; an empty list if there is none."""
    return _first_index(indexes[0]) if isinstance(indexes, list) and indexes else indexes
