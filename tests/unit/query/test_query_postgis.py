"""Random polygons and circles against PostGIS, as far as it means the same by them.

`scripts/differential --against postgis` runs it; it needs PostgreSQL with PostGIS and starts a
server of its own. Polygons and distances are asked of the same points on both sides, all cases of
a kind in one statement. What the two mean differently is kept out here, and nothing else:

- *The antimeridian.* A geometry of PostGIS ends at its own coordinates, so each point is asked at
  its longitude, and a turn to the west and to the east of it. Edges of both are straight on the
  plane of longitude and latitude; those of a PostGIS geography are great circles, so polygons are
  compared with geometries only.
- *Points nearer than `EDGE` to an edge.* PostGIS decides by the sign of a rounded product, Galileo
  by exact arithmetic (GEOS). So points on edges are compared where all numbers are short enough to
  be exact in both, and corners always. Shapes with an edge shorter than `EDGE` are left out: there
  PostGIS differs even for points farther away.
- *Distances.* PostGIS's sphere has a radius of 6,371,008.7714 m, Galileo's one of 6,371,008.8 m, so
  points that lie within `RING` of a circle, relatively, or within `RING_M`, are not compared.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pytest
import shapely
from shapes import drawn, points_about

from benchmarks import postgis
from galileo.geo import geohash
from galileo.geo.circles import HALFWAY_M, Circle, metres
from galileo.model.schema import Feature, Schema
from galileo.query import parse

CASES = int(os.environ.get("GALILEO_DIFFERENTIAL_CASES", "400"))
SEED = int(os.environ.get("GALILEO_DIFFERENTIAL_SEED", "1"))
SCHEMA = Schema("world", [Feature("t")], geohash_precision=3)
TURNS = (-360, 0, 360)
OPERATIONS = ("s_intersects", "s_within", "s_disjoint")
EDGE = 1e-9
"""Degrees, 0.1 mm."""
RING, RING_M = 1e-7, 1e-3

pytestmark = pytest.mark.skipif(
    os.environ.get("GALILEO_DIFFERENTIAL_AGAINST") != "postgis",
    reason="runs a PostgreSQL server: scripts/differential --against postgis",
)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    try:
        with postgis.running() as running:
            yield running
    except postgis.NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def shared():
    """A directory that the server's client may read, as those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="postgis-differential-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def observations(latitude, longitude):
    columns = {
        "latitude": latitude,
        "longitude": longitude,
        "time": pa.array(np.zeros(len(latitude), np.int64)).cast(pa.timestamp("us", "UTC")),
        "t": pa.nulls(len(latitude), pa.float64()),
    }
    return pa.table(columns, schema=SCHEMA.observation_schema)


def loaded(session, directory, table, name, columns):
    """A new table of the server with the columns of an Arrow table."""
    file = directory / f"{name}.csv"
    pcsv.write_csv(table, file)
    session.ask(f"DROP TABLE IF EXISTS {name}")
    session.ask(f"CREATE TABLE {name} ({columns})")
    session.ask(f"\\copy {name} FROM '{file}' CSV HEADER \nSELECT 1")
    session.ask(f"ANALYZE {name}")


def compared(asked, answered, *, seeds):
    """Asserts that both select the same points; says which case differs, and where."""
    differing = np.flatnonzero(asked["found"].to_numpy(zero_copy_only=False) != answered)
    if len(differing) == 0:
        return
    row = asked.slice(int(differing[0]), 1).to_pylist()[0]
    raise AssertionError(
        f"{len(differing)} of {len(answered)} points differ, the first is {row} of {seeds(row)}"
    )


def answers(session, statement, count):
    """Which of the points, numbered from 0, a statement selects."""
    found = np.zeros(count, dtype=np.bool_)
    found[np.array(session.ask(statement)[1], dtype=np.int64)] = True
    return found


def test_query_random_polygons_select_points_of_postgis(session, shared, capsys):
    shapes, asked, near, slivers = [], [], 0, 0
    for seed in range(SEED, SEED + CASES):
        random = np.random.default_rng(seed)
        shape, op = drawn(random), str(random.choice(OPERATIONS))
        if shape is None:
            continue
        shape = holed(shape) if random.random() < 0.4 else shape
        if shortest_edge(shape) < EDGE:
            slivers += 1
            continue
        longitude, latitude = points_about(shape, random)
        clear = ~doubtful(shape, longitude, latitude)
        near += int((~clear).sum())
        longitude, latitude = longitude[clear], latitude[clear]
        found = by_galileo(op, shape, latitude, longitude)
        shapes.append((len(shapes), op, shapely.to_wkb(shape, hex=True), seed))
        asked.append(rows_of(len(asked), latitude, longitude, found))
    table = numbered(asked)
    polygons = pa.table(
        dict(zip(("at", "op", "shape", "seed"), zip(*shapes, strict=True), strict=True))
    )
    loaded(session, shared, polygons, "polygons", "at int, op text, shape geometry, seed int")
    loaded(session, shared, table.drop(["found"]), "places", PLACES)
    answered = answers(session, BY_POLYGON, table.num_rows)
    compared(table, answered, seeds=lambda row: polygons.slice(row["at"], 1).to_pylist())
    kinds = shapely.from_wkb([bytes.fromhex(wkb) for wkb in polygons["shape"].to_pylist()])
    holes = sum(shapely.get_num_interior_rings(shapely.get_parts(kind)).sum() > 0 for kind in kinds)
    assert 2 * len(shapes) >= CASES
    assert 10 * holes >= CASES
    assert 0 < answered.sum() < len(answered)
    with capsys.disabled():
        print(
            f"\n{len(shapes):,} polygons ({holes:,} with holes), {len(answered):,} points, "
            f"{int(answered.sum()):,} selected; {near:,} too near to an edge to compare, "
            f"{slivers} shapes with too short a one"
        )


def holed(shape):
    """The shape without a square in its middle, on numbers that are exact in either arithmetic."""
    x, y = shapely.get_coordinates(shapely.point_on_surface(shape))[0]
    far = shapely.distance(shapely.boundary(shape), shapely.Point(x, y))
    west, south, width = (np.floor(number * 2.0**10) / 2.0**10 for number in (x, y, far / 2))
    return shape - shapely.box(west, south, west + width, south + width)


PLACES = "number int, at int, longitude float8, latitude float8"
BY_POLYGON = """
SELECT number FROM places JOIN polygons USING (at), LATERAL (
    SELECT bool_or(ST_Intersects(shape, point)) AS meets, bool_or(ST_Within(point, shape)) AS within
    FROM (SELECT ST_SetSRID(ST_MakePoint(longitude + turn, latitude), ST_SRID(shape)) AS point
          FROM unnest(ARRAY[-360, 0, 360]) AS turn) AS turned
) AS reported
WHERE CASE op WHEN 's_intersects' THEN meets WHEN 's_within' THEN within ELSE NOT meets END
"""


def shortest_edge(shape):
    corners, ring = shapely.get_coordinates(shapely.boundary(shape), return_index=True)
    return np.hypot(*np.diff(corners, axis=0).T)[np.diff(ring) == 0].min()


def doubtful(shape, longitude, latitude):
    """Which points lie so near to an edge that rounding decides; corners do not."""
    edges = shapely.boundary(shape)
    corners = shapely.get_coordinates(edges)
    if (corners * 2.0**20 % 1 == 0).all():
        return np.zeros(len(longitude), dtype=np.bool_)
    gaps = [shapely.distance(edges, shapely.points(longitude + t, latitude)) for t in TURNS]
    known = {(x % 360, y) for x, y in corners.tolist()}
    at_corner = [(x % 360, y) in known for x, y in zip(longitude, latitude, strict=True)]
    return (np.minimum.reduce(gaps) < EDGE) & ~np.array(at_corner)


def by_galileo(op, shape, latitude, longitude):
    """The points that match; their cells must, too."""
    raw = {"op": op, "args": [{"property": "geometry"}, shapely.geometry.mapping(shape)]}
    return matching(parse(raw, SCHEMA), latitude, longitude)


def matching(query, latitude, longitude):
    found = query.match_observations(observations(latitude, longitude))
    cell = geohash.encode(latitude, longitude, SCHEMA.geohash_precision)
    columns = {"cell": cell, "bucket": np.zeros(len(cell), dtype=np.int64)}
    assert query.match_paths(columns)[found].all()
    assert found[query.must_match_paths(columns)].all()
    return found


def rows_of(at, latitude, longitude, found):
    number = np.full(len(found), at, dtype=np.int64)
    return pa.table(
        {"at": number, "longitude": longitude, "latitude": latitude, "found": pa.array(found)}
    )


def numbered(tables):
    table = pa.concat_tables(tables).combine_chunks()
    return table.add_column(0, "number", pa.array(np.arange(table.num_rows)))


def test_query_random_distances_select_points_of_postgis(session, shared, capsys):
    circles, asked, near = [], [], 0
    for seed in range(SEED, SEED + CASES):
        random = np.random.default_rng(seed)
        circle, negated = a_circle(random), bool(random.random() < 0.3)
        latitude, longitude = places_about(circle, random)
        distance = metres(circle.half_chords(latitude, longitude))
        clear = np.abs(distance - circle.radius_m) > RING * circle.radius_m + RING_M
        # A place that is the centre is at no distance for both, whatever the radius.
        clear |= (latitude == circle.latitude) & (longitude == circle.longitude)
        near += int((~clear).sum())
        latitude, longitude = latitude[clear], longitude[clear]
        found = matching(distant(circle, negated), latitude, longitude)
        centre = circle.longitude, circle.latitude, circle.radius_m
        circles.append((len(circles), *centre, negated, seed))
        asked.append(rows_of(len(asked), latitude, longitude, found))
    table = numbered(asked)
    names = ("at", "west_east", "south_north", "radius", "negated", "seed")
    known = pa.table(dict(zip(names, zip(*circles, strict=True), strict=True)))
    columns = "at int, west_east float8, south_north float8, radius float8, negated bool, seed int"
    loaded(session, shared, known, "circles", columns)
    loaded(session, shared, table.drop(["found"]), "places", PLACES)
    answered = answers(session, BY_CIRCLE, table.num_rows)
    compared(table, answered, seeds=lambda row: known.slice(row["at"], 1).to_pylist())
    assert 0 < answered.sum() < len(answered)
    with capsys.disabled():
        print(
            f"\n{len(circles):,} circles, {len(answered):,} points, {int(answered.sum()):,} "
            f"selected; {near:,} too near to the circle to compare"
        )


BY_CIRCLE = """
SELECT number FROM places JOIN circles USING (at)
WHERE negated <> ST_DWithin(
    ST_MakePoint(longitude, latitude)::geography,
    ST_MakePoint(west_east, south_north)::geography,
    radius, false)
"""


def a_circle(random):
    """Of a few metres to half of the earth, anywhere, at poles and the antimeridian, too."""
    latitude = random.choice([-90, -89.9, -45, 0, 40, 89.99, 90, random.uniform(-90, 90)])
    longitude = random.choice([-180, -179.99, 0, 90, 179.9, 180, random.uniform(-180, 180)])
    radius_m = random.choice([0, 1, 5e4, 1e6, 1e7, HALFWAY_M / 2, random.uniform(0, 1.9e7)])
    return Circle(float(latitude), float(longitude), float(radius_m))


def distant(circle, negated):
    point = {"type": "Point", "coordinates": [circle.longitude, circle.latitude]}
    raw = {"op": "s_dwithin", "args": [{"property": "geometry"}, point, circle.radius_m]}
    return parse({"op": "not", "args": [raw]} if negated else raw, SCHEMA)


def places_about(circle, random):
    """Latitudes and longitudes from all over, from near the circle, its centre and the poles."""
    angle = circle.radius_m / 6_371_008.8 * random.choice([0.5, 0.999, 0.99999, 1.00001, 1.01], 40)
    bearing, up = random.uniform(0, 2 * np.pi, 40), np.radians(circle.latitude)
    sine = np.sin(up) * np.cos(angle) + np.cos(up) * np.sin(angle) * np.cos(bearing)
    east = np.arctan2(
        np.sin(bearing) * np.sin(angle) * np.cos(up), np.cos(angle) - np.sin(up) * sine
    )
    around = (circle.longitude + np.degrees(east) + 180) % 360 - 180
    latitude = np.concatenate(
        [np.degrees(np.arcsin(np.clip(sine, -1, 1))), random.uniform(-90, 90, 20)]
    )
    longitude = np.concatenate([around, random.uniform(-180, 180, 20)])
    far = [[90, 0], [-90, 50], [circle.latitude, -180], [circle.latitude, 180]]
    known = np.array([*far, [circle.latitude, circle.longitude]], dtype=np.float64)
    return np.append(latitude, known[:, 0]), np.append(longitude, known[:, 1])
