"""Coordinates of geometries in CQL2 text: read exactly, whatever their form, and in bulk."""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import pytest
from expected_errors import raises

from galileo.errors import QuerySyntaxError
from galileo.geo import regions
from galileo.query.cql_syntax import read

LEVELS = {
    "MultiPoint": 1,
    "LineString": 1,
    "Polygon": 2,
    "MultiLineString": 2,
    "MultiPolygon": 3,
}
VERTICES, CALLS_MAX = 10_000, 500
SPACES, SECONDS_MAX = 10_000, 0.5


def drawn(chance: random.Random, levels: int) -> tuple[list[Any], str]:
    """Coordinates and their text, written in one of many forms."""
    if not levels:
        texts = [number(chance), number(chance)]
        return [*map(float, texts)], chance.choice((" ", "\t", "\n ")).join(texts)
    pairs = [drawn(chance, levels - 1) for _ in range(chance.randrange(1, 5))]
    space = chance.choice(("", " ", "\n"))
    text = f"{space},{space}".join(text for _, text in pairs)
    return [coordinates for coordinates, _ in pairs], f"({space}{text}{space})"


def number(chance: random.Random) -> str:
    value = chance.uniform(-90, 90)
    forms = (repr(value), f"{value:.2e}", f"{value:+.3f}", f"{int(value)}.", "-0", ".25", "007")
    return chance.choice(forms)


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("seed", range(20))
def test_coordinates_are_read_exactly(kind: str, seed: int) -> None:
    chance = random.Random(f"{kind} {seed}")
    coordinates, positions = drawn(chance, LEVELS[kind])
    tree = read(f"raining AND s_within(geometry, {kind.upper()}{positions}) AND a = {seed}")
    assert repr(tree["args"][1]["args"][1]["coordinates"]) == repr(coordinates)
    assert tree["args"][2]["args"][1] == seed


def test_points_in_parentheses_are_read() -> None:
    tree = read("S_INTERSECTS(geometry, MULTIPOINT((1 2), ( 3 4 )))")
    assert tree["args"][1]["coordinates"] == [[1, 2], [3, 4]]


def test_text_with_a_geometry_in_it_stays() -> None:
    text = "LINESTRING(1 2, 3 4)"
    tree = read(f"note = '{text}' AND S_INTERSECTS(geometry, {text})")
    assert tree["args"][0]["args"][1] == text
    assert tree["args"][1]["args"][1]["coordinates"] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("behind", "position"),
    [(" temperature", 1), (" AND a IN 3", 10), (" AND (" * 70, 389), (" AND POINT(1E400 2)", 11)],
    ids=["syntax", "list", "nesting", "number"],
)
def test_errors_behind_a_geometry_point_at_their_place(behind: str, position: int) -> None:
    geometry = "S_INTERSECTS(geometry, LINESTRING(1.25 2.75, 3E1 -4, 5 6))"
    with raises(QuerySyntaxError) as caught:
        read(geometry + behind)
    assert caught.value.details["position"] == len(geometry) + position


@pytest.mark.parametrize("form", ["text", "JSON"])
def test_long_geometry_takes_few_calls_of_functions(form: str) -> None:
    ring = [[number / 1e3, number % 2] for number in range(VERTICES)]
    text = ", ".join(f"{x} {y}" for x, y in ring)
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        if form == "text":
            read(f"S_INTERSECTS(geometry, LINESTRING({text}))")
        else:
            regions.from_geojson({"type": "LineString", "coordinates": ring})
    finally:
        sys.setprofile(None)
    assert calls < CALLS_MAX


@pytest.mark.parametrize(
    "text", [f"S_INTERSECTS(geometry, POINT{' ' * SPACES}x)", f"POINT{' ' * SPACES}EMPTY"]
)
def test_many_spaces_behind_the_name_of_a_geometry_take_no_time(text: str) -> None:
    started = time.thread_time()
    with raises(QuerySyntaxError):
        read(text)
    assert time.thread_time() - started < SECONDS_MAX
