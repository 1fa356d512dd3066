"""GeoSPARQL: what oxigraph has is checked against shapely, what is added against geometry."""

import math

import numpy as np
import pytest
import shapely
from expected_errors import raises
from hypothesis import given
from hypothesis import strategies as st

from galileo import rdf
from galileo.errors import UnsupportedQuery
from galileo.geo.circles import EARTH_RADIUS_M
from galileo.rdf import geometry, terms

DENVER, BOULDER = "POINT (-104.99 39.74)", "POINT (-105.27 40.02)"
SQUARE, INNER = "POLYGON ((0 0, 2 0, 2 2, 0 2, 0 0))", "POLYGON ((1 1, 2 1, 2 2, 1 2, 1 1))"


@pytest.fixture(scope="module")
def graph(weather):
    with rdf.open_labels(weather) as opened:
        yield opened


def wkt(text):
    return f'"{text}"^^geo:wktLiteral'


def value(graph, expression):
    (row,) = graph.sparql(f"SELECT ({expression} AS ?x) {{}}").rows
    return row["x"]


def box(west, south, width, height):
    return shapely.box(west, south, west + width, south + height)


boxes = st.builds(box, *[st.integers(-3, 3)] * 2, *[st.integers(1, 3)] * 2)
shapes = boxes | st.builds(shapely.Point, st.integers(-3, 4), st.integers(-3, 4))
RELATIONS = {
    "sfEquals": shapely.equals,
    "sfDisjoint": shapely.disjoint,
    "sfIntersects": shapely.intersects,
    "sfTouches": shapely.touches,
    "sfWithin": shapely.within,
    "sfContains": shapely.contains,
    "sfOverlaps": shapely.overlaps,
}


@given(st.lists(st.tuples(shapes, shapes), min_size=1, max_size=10))
def test_relations_random_shapes_equal_shapely(graph, pairs):
    rows = " ".join(f"({wkt(one.wkt)} {wkt(two.wkt)})" for one, two in pairs)
    calls = " ".join(f"(geof:{name}(?a, ?b) AS ?{name})" for name in RELATIONS)
    found = graph.sparql(f"SELECT {calls} {{ VALUES (?a ?b) {{ {rows} }} }}").rows
    expected = [{name: bool(holds(*pair)) for name, holds in RELATIONS.items()} for pair in pairs]
    assert [row | {} for row in found] == expected


def test_geometry_functions_equal_documented_ones():
    assert {name.value for name in geometry.FUNCTIONS} == {
        terms.GEOF + name for name in terms.GEOMETRY_FUNCTIONS
    }
    assert geometry.RADIUS_M == EARTH_RADIUS_M


@given(*[st.floats(-180, 180), st.floats(-89, 89)] * 2)
def test_distance_random_points_is_great_circle(x, y, u, v):
    def vector(longitude, latitude):
        a, b = math.radians(longitude), math.radians(latitude)
        return np.array([math.cos(b) * math.cos(a), math.cos(b) * math.sin(a), math.sin(b)])

    one, two = vector(x, y), vector(u, v)
    angle = math.atan2(np.linalg.norm(np.cross(one, two)), one @ two)
    found = geometry.distance_m(shapely.Point(x, y), shapely.Point(u, v))
    assert found == pytest.approx(angle * EARTH_RADIUS_M, rel=1e-6, abs=0.5)


@pytest.mark.parametrize("latitude", [0.0, 40.0, 60.0, -75.0])
def test_distance_boxes_is_that_of_nearest_points(latitude):
    """Against all pairs of points along the edges of both."""
    one, two = box(10, latitude, 1, 1), box(13, latitude + 2, 1, 1)
    edges = [
        shapely.get_coordinates(shapely.segmentize(shape.exterior, 0.02)) for shape in (one, two)
    ]
    pairs = geometry.great_circle_m(edges[0][:, None, :], edges[1][None, :, :])
    assert geometry.distance_m(one, two) == pytest.approx(pairs.min(), rel=5e-3)


def test_distance_unit_is_converted(graph):
    pair = f"{wkt(DENVER)}, {wkt(BOULDER)}"
    metres = value(graph, f"geof:distance({pair}, <http://www.opengis.net/def/uom/OGC/1.0/metre>)")
    assert 39_000 < metres < 40_500
    assert value(graph, f"geof:distance({pair}, unit:KiloM)") == pytest.approx(metres / 1000)
    assert value(graph, f"geof:distance({pair}, unit:MI)") == pytest.approx(metres / 1609.344)
    assert value(graph, f"geof:metricDistance({pair})") == metres
    assert value(graph, f"geof:distance({pair}, unit:DEG)") == pytest.approx(math.hypot(0.28, 0.28))
    radians = math.radians(math.hypot(0.28, 0.28))
    assert value(graph, f"geof:distance({pair}, unit:RAD)") == pytest.approx(radians)
    assert value(graph, f"geof:distance({pair}, unit:K)") is None


def test_distance_over_antimeridian_is_short(graph):
    pair = f"{wkt('POINT (179.5 0)')}, {wkt('POINT (-179.5 0)')}"
    assert value(graph, f"geof:distance({pair}, unit:KiloM)") == pytest.approx(111.195, rel=1e-4)


@pytest.mark.parametrize(("west", "south", "width", "height"), [(0, 0, 1, 1), (-30, 55, 8, 20)])
def test_area_of_cell_is_exact(graph, west, south, width, height):
    strip = math.sin(math.radians(south + height)) - math.sin(math.radians(south))
    exact = EARTH_RADIUS_M**2 * math.radians(width) * strip
    text = wkt(box(west, south, width, height).wkt)
    assert value(graph, f"geof:metricArea({text})") == pytest.approx(exact, rel=1e-9)
    assert value(graph, f"geof:area({text}, unit:KiloM2)") == pytest.approx(exact / 1e6, rel=1e-9)


def test_length_and_buffer_are_metric(graph):
    around = math.radians(1) * EARTH_RADIUS_M
    line = wkt("LINESTRING (10 0, 10 1, 11 1)")
    expected = around * (1 + math.cos(math.radians(1)))
    assert value(graph, f"geof:metricLength({line})") == pytest.approx(expected, rel=1e-5)
    wide = f"geof:buffer({wkt(DENVER)}, 10, unit:KiloM)"
    assert value(graph, f"geof:area({wide}, unit:KiloM2)") == pytest.approx(math.pi * 100, rel=1e-2)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f"geof:intersection({wkt(SQUARE)}, {wkt(INNER)})", INNER),
        (f"geof:union({wkt(SQUARE)}, {wkt(INNER)})", SQUARE),
        (f"geof:boundary({wkt('LINESTRING (0 0, 1 1)')})", "MULTIPOINT (0 0, 1 1)"),
        (f"geof:geometryN({wkt('MULTIPOINT (0 0, 1 1)')}, 2)", "POINT (1 1)"),
        (f"geof:difference({wkt(INNER)}, {wkt(SQUARE)})", "POLYGON EMPTY"),
        (f"geof:symDifference({wkt(SQUARE)}, {wkt(SQUARE)})", "POLYGON EMPTY"),
    ],
)
def test_geometry_function_gives_geometry(graph, expression, expected):
    found = shapely.from_wkt(value(graph, expression))
    assert shapely.equals(found, shapely.from_wkt(expected))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f"geof:numGeometries({wkt('MULTIPOINT (0 0, 1 1)')})", 2),
        (f"geof:relate({wkt(INNER)}, {wkt(SQUARE)}, 'T*F**F***')", True),
        (f"geof:minX({wkt(INNER)}) + geof:maxY({wkt(INNER)})", 3.0),
        (f"geof:minY({wkt(INNER)}) + geof:maxX({wkt(INNER)})", 3.0),
        (f"geof:geometryN({wkt(SQUARE)}, 2)", None),
        ("geof:metricArea('no shape')", None),
        ("geof:metricArea(<urn:x>)", None),
        (f"geof:metricDistance({wkt('POINT (1 x)')}, {wkt(DENVER)})", None),
    ],
)
def test_geometry_function_gives_number(graph, expression, expected):
    assert value(graph, expression) == expected


def test_geometry_literal_of_other_crs_or_json_is_read(graph):
    crs84 = "<http://www.opengis.net/def/crs/OGC/1.3/CRS84> POINT (3 1)"
    epsg = "<http://www.opengis.net/def/crs/EPSG/0/4326> POINT (1 3)"
    json = '\'{"type": "Point", "coordinates": [3, 1]}\'^^geo:geoJSONLiteral'
    for one in (wkt(crs84), wkt(epsg), json):
        assert value(graph, f"geof:metricDistance({one}, {wkt('POINT (3 1)')})") == 0
    other = "<http://www.opengis.net/def/crs/EPSG/0/3857> POINT (1 3)"
    assert value(graph, f"geof:metricDistance({wkt(other)}, {wkt(DENVER)})") is None


def test_geometry_unknown_function_raises(graph):
    with raises(UnsupportedQuery, expected="function"):
        graph.sparql("SELECT (geof:levitate(1) AS ?x) {}")


def test_geometry_filter_by_distance_finds_cells(graph, weather):
    text = f"""SELECT ?h {{ ?c a g:Cell ; g:value ?h ; geo:hasGeometry/geo:asWKT ?w
        FILTER(geof:distance(?w, {wkt(DENVER)}, unit:KiloM) < 50) }}"""
    assert graph.sparql(text).rows == [{"h": "9xj"}]


def test_geometry_functions_after_plain_query_are_available(graph):
    assert graph.sparql("ASK { ?p a g:Path }")
    renamed = "PREFIX q: <http://www.opengis.net/def/function/geosparql/> SELECT (q:minX(?w) AS ?x)"
    assert len(graph.sparql(f"{renamed} {{ ?g geo:asWKT ?w }}")) == 3
    assert graph.sparql("ASK { ?p a g:Path }")
