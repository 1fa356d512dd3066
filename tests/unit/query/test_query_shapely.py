"""Random polygons against Shapely, on the plane of longitude and latitude of docs/queries.md.

Polygons have parts and holes, lie anywhere, also across the antimeridian and up to the poles; the
points are their own corners and places on their edges as well as random ones.
`scripts/differential --cases 10000` runs many more cases than the tests do.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import shapely
from shapes import drawn, points_about

from galileo.geo import geohash
from galileo.geo.ranges import contains
from galileo.model.schema import Feature, Schema
from galileo.query import parse

CASES = int(os.environ.get("GALILEO_DIFFERENTIAL_CASES", "150"))
SEED = int(os.environ.get("GALILEO_DIFFERENTIAL_SEED", "1"))
SCHEMA = Schema("world", [Feature("t")], geohash_precision=3)
TURNS = (-360.0, 0.0, 360.0)
MEETS, INSIDE, ELSEWHERE = "s_intersects", "s_within", "s_disjoint"


def query_of(op, shape):
    raw = shapely.geometry.mapping(shape)
    return parse({"op": op, "args": [{"property": "geometry"}, raw]}, SCHEMA)


def expected(op, shape, point):
    """By single points, wherever a whole turn brings them."""
    around = [shapely.Point(point[0] + turn, point[1]) for turn in TURNS]
    if op == INSIDE:
        return any(one.within(shape) for one in around)
    return any(one.intersects(shape) for one in around) == (op == MEETS)


def check(seed):
    """What sort of polygon this seed made, None for none."""
    random = np.random.default_rng(seed)
    shape, op = drawn(random), str(random.choice([MEETS, INSIDE, ELSEWHERE]))
    if shape is None:
        return None
    longitude, latitude = points_about(shape, random)
    query = query_of(op, shape)
    found = query.match_observations(observations(latitude, longitude))
    wanted = [expected(op, shape, point) for point in zip(longitude, latitude, strict=True)]
    again = f"{op} {shape.wkt}\nrepeat it: scripts/differential --cases 1 --seed {seed}"
    assert found.tolist() == wanted, again
    cell = geohash.encode(latitude, longitude, SCHEMA.geohash_precision)
    columns = {"cell": cell, "bucket": np.zeros(len(cell), dtype=np.int64)}
    assert query.match_paths(columns)[found].all(), again
    assert found[query.must_match_paths(columns)].all(), again
    if (ranges := query.cell_ranges()) is not None:
        assert contains(ranges, cell[found]).all(), again
    west, south, east, north = shape.bounds
    return any(west < at < east for at in (-180, 180)), max(-south, north) == 90


def observations(latitude, longitude):
    columns = {
        "latitude": latitude,
        "longitude": longitude,
        "time": pa.array(np.zeros(len(latitude), np.int64)).cast(pa.timestamp("us", "UTC")),
        "t": pa.nulls(len(latitude), pa.float64()),
    }
    return pa.table(columns, schema=SCHEMA.observation_schema)


def test_query_random_polygons_select_points_of_shapely():
    sorts = [check(seed) for seed in range(SEED, SEED + CASES)]
    made = [sort for sort in sorts if sort is not None]
    assert len(made) >= CASES // 2
    assert sum(across for across, _ in made) >= CASES // 20
    assert sum(polar for _, polar in made) >= CASES // 20
