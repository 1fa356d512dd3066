"""Cells against published vectors, against pygeohash, and against the laws of bisection."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pygeohash
import pytest
from expected_errors import raises
from hypothesis import assume, example, given
from hypothesis import strategies as st

from galileo.errors import InputError
from galileo.geo import geohash

COMPASS = ("n", "ne", "e", "se", "s", "sw", "w", "nw")

precisions = st.integers(1, geohash.PRECISION_MAX)
latitudes = st.floats(-90, 90)
longitudes = st.floats(-180, 180)
texts = st.text(geohash.ALPHABET.decode(), min_size=1, max_size=geohash.PRECISION_MAX)


def rows(directory: Path, name: str) -> list[dict[str, str]]:
    with (directory / "geohash" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def encoded(latitude: float, longitude: float, precision: int) -> str:
    text: str = geohash.to_text(geohash.encode([latitude], [longitude], precision), precision)[
        0
    ].as_py()
    return text


# --- published vectors -----------------------------------------------------------------------


def test_encode_published_vectors_gives_their_geohash(sample_data: Path) -> None:
    vectors = rows(sample_data, "geohash_encode.csv")
    assert vectors
    latitude = [float(row["lat"]) for row in vectors]
    longitude = [float(row["lon"]) for row in vectors]
    cells = geohash.encode(latitude, longitude, 12)
    assert geohash.to_text(cells, 12).to_pylist() == [row["geohash"] for row in vectors]
    # The published numbers interleave 32 and 32 bits; a cell of 12 characters is the first 60.
    wanted = [int(row["uint64_hex"], 16) >> 4 for row in vectors]
    assert cells.tolist() == wanted


def test_encode_lower_precision_gives_prefix(sample_data: Path) -> None:
    vectors = rows(sample_data, "geohash_encode.csv")
    latitude = [float(row["lat"]) for row in vectors]
    longitude = [float(row["lon"]) for row in vectors]
    for precision in range(1, 12):
        cells = geohash.encode(latitude, longitude, precision)
        wanted = [row["geohash"][:precision] for row in vectors]
        assert geohash.to_text(cells, precision).to_pylist() == wanted


def test_bounds_published_vectors_gives_their_edges(sample_data: Path) -> None:
    vectors = rows(sample_data, "geohash_decode.csv")
    assert vectors
    for row in vectors:
        text = row["geohash"]
        west, south, east, north = geohash.bounds([geohash.cell_from_text(text)], len(text))
        # The published edges are rounded to twelve significant digits.
        edges = [float(f"{edge[0]:.12g}") for edge in (south, north, west, east)]
        assert edges == [float(row[k]) for k in ("lat_min", "lat_max", "lon_min", "lon_max")]


def test_neighbors_published_vectors_gives_theirs(sample_data: Path) -> None:
    vectors = rows(sample_data, "geohash_neighbors.csv")
    assert vectors
    for row in vectors:
        around = geohash.neighbors(row["geohash"])
        assert [around[point] for point in COMPASS] == row["neighbors_N_NE_E_SE_S_SW_W_NW"].split()


def test_encode_vectors_of_other_libraries_gives_theirs(sample_data: Path) -> None:
    vectors = rows(sample_data, "geohash_extra.csv")
    assert vectors
    for row in vectors:
        # Redis keeps 52 bits, which are ten characters and two bits, and pads the eleventh
        # character with zero: only the first ten are a geohash.
        kept = 10 if "Redis" in row["source"] else geohash.PRECISION_MAX
        wanted = row["geohash"][:kept]
        assert encoded(float(row["lat"]), float(row["lon"]), len(wanted)) == wanted


# --- the established library -----------------------------------------------------------------


@given(latitudes, longitudes, precisions)
@example(90.0, 180.0, 12)
@example(-90.0, -180.0, 12)
@example(90.0, -180.0, 1)
@example(-90.0, 180.0, 1)
@example(0.0, 0.0, 12)
@example(-0.0, -0.0, 12)
@example(math.nextafter(0.0, -1.0), math.nextafter(0.0, -1.0), 12)
@example(math.nextafter(45.0, 0.0), math.nextafter(90.0, 0.0), 12)
def test_encode_random_place_equals_pygeohash(
    latitude: float, longitude: float, precision: int
) -> None:
    wanted = pygeohash.encode(latitude, longitude, precision=precision)
    assert encoded(latitude, longitude, precision) == wanted


@given(texts)
def test_encode_border_of_cell_equals_pygeohash(text: str) -> None:
    precision = len(text)
    edges = geohash.bounds([geohash.cell_from_text(text)], precision)
    west, south, east, north = (float(edge[0]) for edge in edges)
    for latitude in (south, north, math.nextafter(south, -90), math.nextafter(north, 90)):
        for longitude in (west, east, math.nextafter(west, -180), math.nextafter(east, 180)):
            wanted = pygeohash.encode(latitude, longitude, precision=precision)
            assert encoded(latitude, longitude, precision) == wanted


@given(texts)
def test_bounds_random_cell_equals_pygeohash(text: str) -> None:
    west, south, east, north = geohash.bounds([geohash.cell_from_text(text)], len(text))
    box = pygeohash.get_bounding_box(text)
    found = (south[0], west[0], north[0], east[0])
    assert found == (box.min_lat, box.min_lon, box.max_lat, box.max_lon)


# --- laws ------------------------------------------------------------------------------------


@given(st.lists(texts, min_size=1, max_size=20), precisions)
def test_from_text_random_texts_round_trip_in_order(items: list[str], precision: int) -> None:
    same_length = [item.ljust(precision, "0")[:precision] for item in items]
    cells = geohash.from_text(same_length)
    assert geohash.to_text(cells, precision).to_pylist() == same_length
    by_number = [same_length[i] for i in np.argsort(cells, kind="stable")]
    assert by_number == sorted(same_length)


@given(texts)
def test_bounds_random_cell_includes_south_west_edges_only(text: str) -> None:
    precision = len(text)
    west, south, east, north = (
        float(edge[0]) for edge in geohash.bounds([geohash.cell_from_text(text)], precision)
    )
    assert encoded(south, west, precision) == text
    assert encoded(math.nextafter(north, south), math.nextafter(east, west), precision) == text
    if south > -90:
        assert encoded(math.nextafter(south, -90), west, precision) != text
    if west > -180:
        assert encoded(south, math.nextafter(west, -180), precision) != text
    assert (encoded(north, west, precision) == text) == (north == 90)
    assert (encoded(south, east, precision) == text) == (east == 180)


@given(latitudes, longitudes, precisions, precisions)
def test_coarsen_random_place_equals_encode_coarse(
    latitude: float, longitude: float, one: int, other: int
) -> None:
    coarse, fine = sorted((one, other))
    cells = geohash.encode([latitude], [longitude], fine)
    coarsened = geohash.coarsen(cells, fine, coarse)
    assert coarsened.tolist() == geohash.encode([latitude], [longitude], coarse).tolist()


@given(st.one_of(st.just(""), texts), texts)
def test_prefix_range_random_prefix_holds_its_cells_only(prefix: str, text: str) -> None:
    assume(len(prefix) <= len(text))
    start, stop = geohash.prefix_range(prefix, len(text))
    assert (start <= geohash.cell_from_text(text) < stop) == text.startswith(prefix)


def test_prefix_range_empty_prefix_is_all_cells() -> None:
    assert geohash.prefix_range("", 2) == (0, 1024)


@given(texts)
def test_neighbors_random_cell_lead_back(text: str) -> None:
    around = geohash.neighbors(text)
    assert set(around) == set(COMPASS)
    for point, back in zip(COMPASS, (*COMPASS[4:], *COMPASS[:4]), strict=True):
        neighbor = around[point]
        if neighbor is not None:
            assert geohash.neighbors(neighbor)[back] == text


@given(texts)
def test_neighbors_beyond_pole_is_none(text: str) -> None:
    _, south, _, north = geohash.bounds([geohash.cell_from_text(text)], len(text))
    around = geohash.neighbors(text)
    for point in COMPASS:
        beyond = ("n" in point and north[0] == 90) or ("s" in point and south[0] == -90)
        assert (around[point] is None) == beyond


def test_neighbors_at_antimeridian_wrap() -> None:
    west, east = encoded(10.0, -179.999, 5), encoded(10.0, 179.999, 5)
    assert geohash.neighbors(west)["w"] == east
    assert geohash.neighbors(east)["e"] == west


# --- refusals and edges of arrays ------------------------------------------------------------


@pytest.mark.parametrize("precision", [0, 13, -1])
def test_encode_invalid_precision_raises(precision: int) -> None:
    with raises(InputError, expected="precision", bound=12):
        geohash.encode([0.0], [0.0], precision)


@pytest.mark.parametrize("text", ["9xa", "9X", "9x jb", "é", "9x\u0660"])
def test_cell_from_text_invalid_character_raises(text: str) -> None:
    with raises(InputError, expected="geohash"):
        geohash.cell_from_text(text)


@pytest.mark.parametrize("text", ["", "0123456789bcd"])
def test_cell_from_text_invalid_length_raises(text: str) -> None:
    with raises(InputError, expected="precision", bound=12):
        geohash.cell_from_text(text)


def test_from_text_mixed_lengths_raises() -> None:
    with raises(InputError, expected="geohash"):
        geohash.from_text(["9xjqb", "9xj"])


def test_prefix_range_long_prefix_raises() -> None:
    with raises(InputError, expected="geohash_prefix", bound=2):
        geohash.prefix_range("9xj", 2)


def test_geohash_functions_no_cells_give_empty_arrays() -> None:
    none = geohash.encode([], [], 7)
    assert none.tolist() == []
    assert geohash.to_text(none, 7).to_pylist() == []
    assert geohash.from_text([]).tolist() == []
    assert [edge.tolist() for edge in geohash.bounds(none, 7)] == [[], [], [], []]


@given(st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_cells_intersecting_bbox_random_box_equals_test_of_every_cell(
    precision: int, seed: int
) -> None:
    """Boxes on grid lines and off, shrunk to lines and points, too."""
    random = np.random.default_rng(seed)
    west = float(random.choice([random.uniform(-180, 180), random.integers(-16, 17) * 11.25]))
    south = float(random.choice([random.uniform(-90, 90), random.integers(-16, 17) * 5.625]))
    width, height = random.choice([0.0, 1e-3, 0.5, 3.0, 60.0], 2).tolist()
    east, north = min(west + width, 180.0), min(south + height, 90.0)
    found = geohash.cells_intersecting_bbox(west, south, east, north, precision)
    assert len(found) == geohash.count_cells_intersecting_bbox(west, south, east, north, precision)
    assert (np.diff(found.astype(np.int64)) > 0).all()
    cells = np.arange(32**precision, dtype=np.uint64)
    left, low, right, high = geohash.bounds(cells, precision)
    meets = (left <= east) & (right >= west) & (low <= north) & (high >= south)
    assert found.tolist() == cells[meets].tolist()
