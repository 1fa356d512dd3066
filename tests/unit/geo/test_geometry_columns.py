"""Columns of geometries: all forms in which they come, and what is refused."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyproj
import pytest
import shapely
from expected_errors import raises
from parameters import keep_quick

from galileo.errors import InputError
from galileo.geo import geoarrow, geometry_columns, regions, wkb
from galileo.geo.geometry_columns import to_geojson, to_stored, to_wkt

SHAPES = [
    shapely.Point(-105.25, 40.1),
    None,
    shapely.box(170, -10, 190, 10),
    shapely.MultiPoint([(1, 2), (3, 4)]),
    shapely.LineString([(0.1, 0.2), (1e-7, -89.123456789012345)]),
    shapely.MultiLineString([[(0, 0), (1, 1)], [(-360, 5), (360, 6)]]),
    shapely.Polygon(shapely.box(0, 0, 9, 9).exterior, [shapely.box(2, 2, 3, 3).exterior]),
    shapely.MultiPolygon([shapely.box(0, 0, 1, 1), shapely.box(2, 2, 3, 3)]),
    shapely.from_wkt("MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)), EMPTY)"),
]
HIGH = shapely.force_3d(SHAPES, z=7)
UNKNOWN_HEIGHT = [shapely.from_wkt("POINT Z (-105.25 40.1 nan)"), *SHAPES[1:]]
KINDS = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT_KINDS = [pa.string(), pa.large_string(), pa.string_view()]


def column(values: Any, kind: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, kind)])


def stored(*shapes: Any) -> pa.ChunkedArray:
    return column(shapely.to_wkb(shapes, byte_order=1, output_dimension=2), pa.binary())


EXPECTED = stored(*SHAPES)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("byte_order", [0, 1])
@pytest.mark.parametrize("flavor", ["iso", "extended"])
@pytest.mark.parametrize("shapes", [SHAPES, HIGH, UNKNOWN_HEIGHT])
def test_wkb_of_any_form_becomes_one(
    kind: pa.DataType, byte_order: int, flavor: str, shapes: Any
) -> None:
    given = shapely.to_wkb(shapes, byte_order=byte_order, flavor=flavor)
    assert to_stored(column(given, kind)).equals(EXPECTED)


def test_wkb_with_an_srid_and_of_one_size_becomes_one() -> None:
    named = shapely.to_wkb(shapely.set_srid(SHAPES, 4326), include_srid=True)
    assert to_stored(column(named, pa.binary())).equals(EXPECTED)
    points = shapely.points([1, 2], [3, 4])
    assert to_stored(column(shapely.to_wkb(points), pa.binary(21))).equals(stored(*points))


def test_stored_wkb_without_parts_is_not_copied() -> None:
    [chunk] = stored(*SHAPES[:3]).chunks
    [again] = to_stored(pa.chunked_array([chunk])).chunks
    assert again.buffers()[2].address == chunk.buffers()[2].address


@pytest.mark.parametrize("kind", TEXT_KINDS, ids=str)
def test_texts_are_read_as_they_are_written(kind: pa.DataType) -> None:
    assert to_stored(column(to_wkt(EXPECTED), kind)).equals(EXPECTED)
    assert to_stored(column(to_geojson(EXPECTED), kind)).equals(EXPECTED)
    mixed = [
        "point (1 2)",
        ' {"type": "Point", "coordinates": [1, 2, 3]}',
        " POINT Z(1 2 3) ",
        None,
    ]
    assert to_stored(column(mixed, kind)).equals(stored(*[shapely.Point(1, 2)] * 3, None))


def test_texts_keep_all_digits() -> None:
    chance = np.random.default_rng(2)
    numbers = chance.uniform(-1, 1, (2, 5_000)) * 10.0 ** chance.integers(-12, 2, (2, 5_000))
    points = stored(*shapely.points(*np.clip(numbers, -90, 90)))
    assert to_stored(column(to_wkt(points))).equals(points)
    assert to_stored(column(to_geojson(points))).equals(points)
    [short] = to_wkt(stored(shapely.Point(1.23456789, 2)), decimals=6).to_pylist()
    assert short == "POINT (1.234568 2)"


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float64()), pa.list_(pa.float64(), 4), pa.large_list(pa.float32())],
    ids=lambda value: repr(value)[:40],
)
def test_boxes_are_those_of_queries(kind: pa.DataType) -> None:
    boxes = [[-110, 35, -100, 42], None, [170, -10, -170, 10], [10, 0, 5, 1], [1, 2, 1, 2]]
    boxes += [[1, 2, 1, 4], [350, 0, -20, 10], [360, 0, -350, 10]]
    shapes = shapely.from_wkb(to_stored(column(boxes, kind)).to_numpy())
    assert shapes[1] is None
    for box, shape in zip(boxes, shapes, strict=True):
        if box is not None:
            region = regions.from_geojson(json.loads(shapely.to_geojson(shape)))
            assert region.extents == regions.from_box(box).extents, box
            assert shape.geom_type == regions.from_box(box).shape.geom_type
    assert shapely.bounds(shapes[3]).tolist() == [-350, 0, 5, 1], "it ended at 365"


@pytest.mark.parametrize(
    "kind", [pa.null(), *KINDS, *TEXT_KINDS, pa.list_(pa.float64()), pa.binary(21)], ids=str
)
def test_columns_without_geometries_stay_so(kind: pa.DataType) -> None:
    for count in (0, 2):
        made = to_stored(column([None] * count, kind))
        assert (made.type, made.null_count) == (pa.binary(), count)
    assert to_stored(pa.chunked_array([], kind)).type == pa.binary()


class Wkb(pa.ExtensionType):  # type: ignore[misc]
    """A type as GeoArrow registers it."""

    def __init__(self) -> None:
        super().__init__(pa.large_binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return b'{"crs": "EPSG:3857"}'

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Wkb:
        return cls()


def test_dictionaries_and_extension_types_are_their_values() -> None:
    coded = pa.chunked_array([EXPECTED.chunk(0).dictionary_encode()])
    assert to_stored(coded).equals(EXPECTED)

    storage = EXPECTED.chunk(0).cast(pa.large_binary())
    typed = pa.table({"g": pa.ExtensionArray.from_storage(Wkb(), storage)})
    assert to_stored(typed.column("g")).equals(EXPECTED)
    with raises(InputError, expected="crs"):
        geoarrow.check_column(typed.schema, "g")


def ring(vertices: int) -> shapely.Polygon:
    angles = np.linspace(0, 2 * np.pi, vertices)[:-1]
    return shapely.Polygon(np.column_stack([np.cos(angles), np.sin(angles)]))


def point(x: float, y: float) -> bytes:
    return struct.pack("<BI2d", 1, 1, x, y)


def line(*numbers: float) -> bytes:
    return struct.pack("<BII4d", 1, 2, 2, *numbers)


POINT = point(1, 2)
CROSSED = shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1), (0, 0)])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "geometry_type"),
        (POINT[:5], "coordinates"),
        (POINT[:-1], "coordinates"),
        (b"\3" + POINT[1:], "geometry_type"),
        (shapely.to_wkb(shapely.GeometryCollection([shapely.Point(1, 2)])), "geometry_type"),
        (shapely.to_wkb(shapely.Point()), "nonempty_geometry"),
        (shapely.to_wkb(shapely.Point(361, 2)), "degrees"),
        (shapely.to_wkb(shapely.Point(1, 90.5)), "degrees"),
        (line(1, 2, math.nan, 3), "finite_coordinates"),
        (line(1, 2, 3, math.inf), "finite_coordinates"),
        (shapely.to_wkb(shapely.LineString([(1, 2), (1, 2)])), "valid_geometry"),
        (shapely.to_wkb(CROSSED), "valid_geometry"),
        (shapely.to_wkb(shapely.from_wkt("MULTILINESTRING((0 0, 1 1), EMPTY)")), "coordinates"),
        (shapely.to_wkb(shapely.set_srid(shapely.Point(1, 2), 3857), include_srid=True), "crs"),
        (shapely.to_wkb(ring(regions.VERTICES_MAX + 1)), "vertices"),
        (POINT + bytes(wkb.BYTES_MAX), "vertices"),
        ("POINT EMPTY", "nonempty_geometry"),
        ("POINT (1 2", "geometry_type"),
        ("POINT (nan 2)", "geometry_type"),
        ("POINT (1e400 2)", "finite_coordinates"),
        ("LINESTRING (1 2)", "coordinates"),
        ("GEOMETRYCOLLECTION (POINT (1 2))", "geometry_type"),
        ("home", "geometry_type"),
        ("{", "geojson"),
        ('{"type": "Point", "coordinates": [1, 2, 3, 4]}', "vertex"),
        ('{"type": "Feature", "geometry": null}', "geometry_type"),
        ("{" + '"a":[' * 100_000, "geojson"),
        ([1.0, 2.0, 3.0], "box"),
        ([0.0, 5.0, 1.0, 4.0], "south_below_north"),
        ([0.0, 5.0, 1.0, None], "box"),
        ([0.0, 5.0, 1.0, 95.0], "degrees"),
    ],
    ids=lambda one: str(one)[:40],  # some values have megabytes
)
def test_geometries_that_queries_refuse_are_refused_with_their_row(
    value: Any, expected: str
) -> None:
    null = pa.array([None] * 3, pa.array([value]).type)
    with raises(InputError, expected=expected, row=4):
        to_stored(pa.chunked_array([null, pa.array([None, value, value])]))


def test_empty_points_of_many_are_left_out() -> None:
    given = struct.pack("<BII", 1, 4, 2) + POINT + point(math.nan, math.nan)
    made = to_stored(column([POINT, given]))
    assert made.equals(stored(shapely.Point(1, 2), shapely.MultiPoint([(1, 2)])))
    assert to_stored(made, is_sent=True).equals(made)
    with raises(InputError, expected="parts", row=1):
        to_stored(column([POINT, given]), is_sent=True)


@pytest.mark.parametrize("values", [[1], [1.5], [True], [{"type": "Point"}]], ids=str)
def test_columns_of_other_types_are_refused(values: Any) -> None:
    with raises(InputError, expected="column_type"):
        to_stored(column(values))


@pytest.mark.slow
def test_largest_geometries_are_accepted() -> None:
    parts = np.arange(regions.VERTICES_MAX // 4) / 200 - 60
    boxes = shapely.box(parts, 0, parts + 0.004, 1)[: regions.VERTICES_MAX // 5]
    ends = np.stack([parts, np.zeros(len(parts)), parts, np.ones(len(parts))], axis=1)
    lines = shapely.linestrings(ends.reshape(-1, 2, 2))
    for shape in (
        ring(regions.VERTICES_MAX),
        shapely.MultiPolygon(list(boxes)),
        shapely.MultiLineString(list(lines) * 2),
        shapely.MultiPoint(shapely.get_coordinates(ring(regions.VERTICES_MAX))),
    ):
        high = shapely.to_wkb(shapely.force_3d(shape), byte_order=0)
        assert to_stored(column([high])).equals(stored(shape))
        assert to_stored(column(to_wkt(stored(shape)))).equals(stored(shape))


def test_rows_of_errors_count_over_pieces_and_chunks() -> None:
    good, wrong = POINT, shapely.to_wkb(shapely.Point(1, 91))
    rows = 2 * geometry_columns.PIECE_ROWS + 7
    chunks = [
        pa.array([good] * 5),
        pa.array([good] * rows),
        pa.array([good] * (rows - 1) + [wrong]),
    ]
    assert len(to_stored(pa.chunked_array(chunks[:2]))) == 5 + rows
    with raises(InputError, row=5 + 2 * rows - 1):
        to_stored(pa.chunked_array(chunks))


def nested(kind: int, depth: int) -> bytes:
    """Parts of parts, the innermost a point."""
    return struct.pack("<BII", 1, kind, 1) * depth + POINT


def empty_parts(kind: int, parts: int) -> bytes:
    return struct.pack("<BII", 1, kind, parts) + struct.pack("<BII", 1, kind - 3, 0) * parts


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("depth", [2, 99, 101, 100_000, 600_000])
@pytest.mark.parametrize("kind", [4, 5, 6])
def test_parts_of_parts_do_not_end_the_process(kind: int, depth: int, is_sent: bool) -> None:
    late = struct.pack("<BII", 1, 4, 2) + POINT + nested(kind, depth)
    for hostile in (nested(kind, depth), nested(kind, depth)[: 9 * depth], late):
        with raises(InputError, expected="coordinates", row=0):
            to_stored(column([hostile]), is_sent=is_sent)


@pytest.mark.parametrize("is_sent", keep_quick([False, True], True))
@pytest.mark.parametrize(
    "hostile",
    [
        *(struct.pack("<BII", 1, kind, 2**32 - 1) for kind in range(2, 7)),
        struct.pack("<BIIBII", 1, 6, 2**32 - 1, 1, 3, 2**32 - 1),
        struct.pack("<BIII", 1, 3, 1, 2**32 - 1) + bytes(64),
        empty_parts(5, 50_000),
        empty_parts(6, 50_000),
        struct.pack("<BII", 1, 3, 1_000_000) + bytes(4_000_000),
    ],
    ids=lambda hostile: hostile[:14].hex(),
)
def test_counts_that_are_too_large_are_refused(hostile: bytes, is_sent: bool) -> None:
    with pytest.raises(InputError):
        to_stored(column([hostile]), is_sent=is_sent)


def test_sent_geometries_are_checked_but_for_their_validity() -> None:
    assert to_stored(EXPECTED, is_sent=True).equals(EXPECTED)
    for shape, expected in (
        (shapely.Point(1, 91), "degrees"),
        (shapely.Point(), "nonempty_geometry"),
        (shapely.from_wkt("MULTILINESTRING((0 0, 1 1), EMPTY)"), "coordinates"),
        (ring(regions.VERTICES_MAX + 1), "vertices"),
    ):
        with raises(InputError, expected=expected, row=0):
            to_stored(stored(shape), is_sent=True)
    with raises(InputError, expected="finite_coordinates", row=1):
        to_stored(column([POINT, line(1, 2, math.nan, 3)]), is_sent=True)
    assert to_stored(stored(CROSSED), is_sent=True).equals(stored(CROSSED))
    for values in (["POINT (1 2)"], [[0.0, 1.0, 2.0, 3.0]], [POINT]):
        kind = pa.large_binary() if values == [POINT] else None
        with raises(InputError, expected="column_type"):
            to_stored(column(values, kind), is_sent=True)


def test_comb_whose_validity_takes_long_is_not_examined_by_nodes() -> None:
    teeth = np.linspace(-50, 50, 20_000)
    line = np.empty((2 * len(teeth), 2))
    line[0::2] = np.column_stack([teeth, np.full(len(teeth), -60.0)])
    line[1::2] = np.column_stack([teeth + 100.00125, np.full(len(teeth), 60.0)])
    comb = shapely.Polygon(np.concatenate([line, [[160, -61], [-60, -61]]]))
    hidden = shapely.MultiPolygon([shapely.Polygon(), comb])
    assert len(to_stored(stored(comb, hidden), is_sent=True)) == 2


# --- coordinate reference systems ------------------------------------------------------------


DEGREES = (4326, 4269, 4979)


def of_file(column: dict[str, Any]) -> pa.Schema:
    geo = json.dumps({"primary_column": "g", "columns": {"g": column}})
    return pa.schema([pa.field("g", pa.binary())], metadata={"geo": geo})


def extension(name: str, **metadata: Any) -> pa.Schema:
    about = {geoarrow.NAME: name, geoarrow.METADATA: json.dumps(metadata)}
    return pa.schema([pa.field("g", pa.binary(), metadata=about)])


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([pa.field("g", pa.string())]),
        extension("geoarrow.wkb"),
        extension("ogc.wkb", crs=None),
        extension("geoarrow.wkt", crs="EPSG:4326", crs_type="authority_code"),
        extension("geoarrow.wkb", crs={"type": "GeographicCRS", "name": "NAD83"}),
        extension("geoarrow.wkb", crs='{"type": "GeographicCRS"}', crs_type="projjson"),
        extension("geoarrow.wkb", crs='GEOGCRS["WGS 84"]', crs_type="wkt2:2019"),
        pa.schema([pa.field("g", pa.binary(), metadata=geoarrow.FIELD_METADATA)]),
        of_file({"encoding": "WKB"}),
        of_file({"encoding": "WKB", "crs": None}),
        of_file({"encoding": "WKB", "crs": {"type": "GeographicCRS"}}),
        *(of_file({"encoding": "WKB", "crs": pyproj.CRS(code).to_json_dict()}) for code in DEGREES),
        *(extension("geoarrow.wkb", crs=pyproj.CRS(code).to_wkt()) for code in DEGREES),
        pa.schema([pa.field("g", pa.binary())], metadata={"geo": "damaged"}),
        pa.schema([pa.field("g", pa.binary())], metadata={"geo": "[1]"}),
    ],
)
def test_columns_in_degrees_are_accepted(schema: pa.Schema) -> None:
    geoarrow.check_column(schema, "g")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (extension("geoarrow.point"), "wkb"),
        (extension("geoarrow.wkb", crs="EPSG:3857"), "crs"),
        (extension("geoarrow.wkb", crs={"type": "ProjectedCRS", "name": "UTM"}), "crs"),
        (extension("geoarrow.wkb", crs='PROJCRS["UTM"]'), "crs"),
        (of_file({"encoding": "WKB", "crs": {"type": "ProjectedCRS", "name": "UTM"}}), "crs"),
        (of_file({"encoding": "polygon"}), "wkb"),
        *(
            (extension("geoarrow.wkb", crs=crs), "crs")
            for code in (4807, 4901, 4810)  # In grads, from Paris, in degrees from Paris.
            for crs in (pyproj.CRS(code).to_json_dict(), pyproj.CRS(code).to_wkt())
        ),
    ],
)
def test_columns_in_other_units_and_encodings_are_refused(schema: pa.Schema, expected: str) -> None:
    with raises(InputError, expected=expected):
        geoarrow.check_column(schema, "g")


def test_marked_fields_are_found_again() -> None:
    table = pa.table({"id": ["a"], "g": [POINT], "note": [b"x"]})
    marked = geoarrow.with_metadata(table, ["g"])
    assert geoarrow.geometry_columns(table.schema) == ()
    assert geoarrow.geometry_columns(marked.schema) == ("g",)
    assert marked.equals(table)
    geoarrow.check_column(marked.schema, "g")
