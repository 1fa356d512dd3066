"""Subscriptions of one query with parameters, in the memory of one partition.

Four worlds: millions of subscriptions that share a few areas; circles and boxes of which each
subscription has its own; and polygons. Places cluster around fifty hubs; the rows of a run are new
ones. Only the index works: nothing is sent or stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import shapely

from benchmarks.figures import Figure, Goal, Spread, in_turn, seconds
from benchmarks.query_world import World, schema
from benchmarks.sizes import Bench
from galileo.query.subscriptions import ParameterQuery, RowIndex, SubscriptionIndex

DATASET = "air"
AREAS = 400
BROKERS = 4
PART = 250_000
"""Subscriptions that are added in one call."""
CHANGED = 1_000
"""Subscriptions of a small change."""
FEW_ROWS, MANY_ROWS = 160, 10_000
AREA = "S_INTERSECTS(geometry, :area)"
CIRCLE = "S_DWITHIN(geometry, :place, :radius)"


@dataclass(frozen=True, slots=True)
class _Case:
    """One world.

    Attributes:
        name: in words.
        text: the query.
        count: of subscriptions.
        values: the parameters of so many subscriptions.
        rows: new ones of one call.
        goals: bytes of a subscription without its id, and subscriptions added a second.
    """

    name: str
    text: str
    count: int
    values: Callable[[World, int], dict[str, pa.Array]]
    rows: int
    goals: tuple[float, float]


def measure(bench: Bench) -> Iterator[Figure]:
    many, own = bench.sizes.subscriptions, bench.sizes.own_subscriptions
    polygons = bench.sizes.many_polygons
    cases = (
        _Case(f"{many:,} in {AREAS} areas", AREA, many, _shared_areas, FEW_ROWS, (28, 1e6)),
        _Case(f"{own:,} with circles", CIRCLE, own, _circles, FEW_ROWS, (120, 3e5)),
        _Case(f"{own:,} with boxes", AREA, own, _boxes, MANY_ROWS, (120, 3e5)),
        _Case(f"{polygons:,} with polygons", AREA, polygons, _polygons, MANY_ROWS, (1_500, 1e5)),
    )
    for case in cases:
        yield from _of(bench, case)


def _of(bench: Bench, case: _Case) -> Iterator[Figure]:
    world, query = World(4), ParameterQuery(case.text, schema(DATASET))
    index = SubscriptionIndex(query)
    changes = list(_changes(case, world))
    took_s = sum(seconds(lambda part=part: index.apply(part)) for part in changes)  # type: ignore[misc]
    bytes_max, per_s = case.goals
    added = Spread.of([case.count / took_s])
    yield Figure(f"{case.name}: added", "subscriptions/s", added, (), (Goal("at least", per_s),))
    id_bytes = 8
    size = Spread.of([index.nbytes / case.count - id_bytes])
    name = f"{case.name}: memory of one besides its id of {id_bytes} bytes"
    yield Figure(name, "B", size, (), (Goal("at most", bytes_max),))
    small = changes[0].slice(0, CHANGED)
    [changing] = in_turn(lambda: index.apply(small), runs=bench.sizes.runs)
    yield Figure(f"{case.name}: {small.num_rows:,} of them replaced", "s", changing)
    rows = world.observations(case.rows)
    batch = index.match(RowIndex(index.query, rows))
    matches = sum(
        len(record["rows"]) * len(record["subscriptions"])
        for record in batch.select(["rows", "subscriptions"]).to_pylist()
    )
    [matching] = in_turn(lambda: index.match(RowIndex(index.query, rows)), runs=bench.sizes.runs)
    yield Figure(f"{case.name}: {case.rows:,} rows with {matches:,} matches", "s", matching)


def _changes(case: _Case, world: World) -> Iterator[pa.Table]:
    values = case.values(world, case.count)
    ids = pa.array([f"{number:08x}" for number in range(case.count)])
    brokers = np.array([f"broker-{number}" for number in range(BROKERS)], dtype=object)
    table = pa.table(
        {
            "id": ids,
            "broker": pa.array(brokers[np.arange(case.count) % BROKERS], pa.string()),
            "deleted": pa.array(np.zeros(case.count, dtype=np.bool_)),
            **values,
        }
    )
    for start in range(0, case.count, PART):
        yield table.slice(start, PART)


def _shared_areas(world: World, count: int) -> dict[str, pa.Array]:
    areas = pa.array(shapely.to_wkb(_box_around(world.places(AREAS), 0.2)), pa.binary())
    return {"area": areas.take(pa.array(np.random.default_rng(1).integers(0, AREAS, count)))}


def _circles(world: World, count: int) -> dict[str, pa.Array]:
    places = shapely.to_wkb(shapely.points(world.places(count)))
    radii_m = np.random.default_rng(1).uniform(1_000, 10_000, count)
    return {"place": pa.array(places, pa.binary()), "radius": pa.array(radii_m)}


def _boxes(world: World, count: int) -> dict[str, pa.Array]:
    boxes = _box_around(world.places(count), 0.05)
    return {"area": pa.array(shapely.to_wkb(boxes), pa.binary())}


def _polygons(world: World, count: int) -> dict[str, pa.Array]:
    polygons = shapely.from_wkt(world.polygons(count))
    return {"area": pa.array(shapely.to_wkb(polygons), pa.binary())}


def _box_around(places: npt.NDArray[np.float64], half: float) -> npt.NDArray[Any]:
    west, south = (places - half).T
    east, north = (places + half).T
    return np.asarray(shapely.box(west, south, east, north))
