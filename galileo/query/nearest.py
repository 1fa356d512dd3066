"""Exact search for the k nearest observations to a point, as a sequence of queries.

There are two kinds of request. `CountBlocks` requests the labels within a circle: their cells and
row counts bound the distance of the k-th observation, since every observation of a block is nearer
than the farthest point of its cell. `ReadObservations` requests the observations within that bound.
If only features restrict the search, the counts are exact and two requests suffice: one count, one
read. There are more if

- the first circle holds too few observations: it grows, by its density, at most eight times, until
  it is the whole earth;
- conditions on place or time exclude observations that the counts of their blocks include: then the
  bound was too low. The next one uses more rows, and reads only the ring between the two.

The search does no input or output: `search` is a generator of requests that is sent their answers,
and `nearest` drives it with a function that answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.errors import InputError
from galileo.geo import geohash
from galileo.geo.circles import HALFWAY_M, Circle, metres
from galileo.geo.geohash import Floats
from galileo.model.schema import Schema
from galileo.query.predicates import Node, conjunction
from galileo.query.query import Query
from galileo.query.spatial_predicates import WithinDistance

COUNT_MAX = 100_000
"""Most observations of one search."""
FIRST_M = 50_000.0
"""Default radius of the first circle."""

_GROWTH = (2.0, 8.0)
"""Least and greatest factor of the next circle's radius."""
_MORE = (2.0, 64.0)
"""Least and greatest factor of the next number of rows."""
_SPARE = 1.5
"""Safety factor of estimates."""
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class CountBlocks:
    """Requests the matching labels, as a table with at least "cell" and "rows"."""

    query: Query


@dataclass(frozen=True, slots=True)
class ReadObservations:
    """Requests the matching observations, as a table of the observation schema."""

    query: Query


Question: TypeAlias = CountBlocks | ReadObservations


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """Observations, nearest first.

    Attributes:
        observations: of `schema.observation_schema`.
        distance_m: of each, metres along a great circle; not decreasing.
    """

    observations: pa.Table
    distance_m: Floats


@dataclass(frozen=True, slots=True)
class NearestTo:
    """Parameters of a search.

    Attributes:
        latitude: of the point, degrees in [-90, 90].
        longitude: of the point, degrees in [-180, 180].
        count: most observations.
        among: query that the observations must match.
        first_m: radius of the first circle; any value is correct, a good one saves a request.
        within_m: greatest distance of an observation, metres.
    """

    latitude: float
    longitude: float
    count: int
    among: Query
    first_m: float = FIRST_M
    within_m: float = HALFWAY_M

    def __post_init__(self) -> None:
        if not (abs(self.latitude) <= 90 and abs(self.longitude) <= 180):
            raise InputError(
                "expected a latitude from -90 to 90 and a longitude from -180 to 180 degrees, "
                f"got {self.latitude!r} and {self.longitude!r}",
                parameter="longitude" if abs(self.latitude) <= 90 else "latitude",
                expected="degrees",
            )
        if not 1 <= self.count <= COUNT_MAX:
            raise InputError(
                f"expected a count from 1 to {COUNT_MAX:,}, got {self.count!r}",
                parameter="count",
                bound=COUNT_MAX,
            )
        if not 0 < self.first_m < math.inf:
            raise InputError(
                f"expected a first radius above 0 metres, got {self.first_m!r}", parameter="first_m"
            )
        if not self.within_m >= 0:
            raise InputError(
                f"expected a greatest distance of 0 metres or more, got {self.within_m!r}",
                parameter="within_m",
            )

    @property
    def schema(self) -> Schema:
        return self.among.schema

    @property
    def limit_m(self) -> float:
        """The radius beyond which there is no result."""
        return min(self.within_m, HALFWAY_M)

    def circle(self, radius_m: float) -> Circle:
        return Circle(float(self.latitude), float(self.longitude), radius_m)

    def within(self, radius_m: float, *, beyond_m: float | None = None) -> Query:
        """The query for observations within a radius, and outside of another."""
        precision = self.schema.geohash_precision
        parts: list[Node] = [WithinDistance(self.circle(radius_m), precision)]
        if beyond_m is not None:
            parts.append(WithinDistance(self.circle(beyond_m), precision, negated=True))
        return Query(self.schema, conjunction([self.among.tree, *parts]))


def nearest(answer: Callable[[Question], pa.Table], sought: NearestTo) -> Neighbours:
    """The observations nearest to a point, and their distances.

    All others are at least as far away as the last one. Of those equally far away the earlier come
    first, then those farther south, farther west, and with lesser feature values in schema order,
    missing ones last; so the result does not depend on the order of answers. It is exact for one
    state of the data: answer from one snapshot (up to one cursor) if that matters.

    Args:
        answer: returns the table for a request.
        sought: parameters of the search.
    """
    asking = search(sought)
    try:
        question = next(asking)
        while True:
            question = asking.send(answer(question))
    except StopIteration as done:
        neighbours: Neighbours = done.value
        return neighbours


def search(sought: NearestTo) -> Generator[Question, pa.Table, Neighbours]:
    """Yield the requests of a search; send each its answer; the result is the last answer's rows.

    An answer may be reduced to the `count` observations that `first` puts first.
    """
    radius = min(sought.first_m, sought.limit_m)
    blocks = _Blocks.of((yield _count(sought, radius)), sought, radius)
    wanted, read_m, tables = sought.count, None, [sought.schema.observation_schema.empty_table()]
    while True:
        reach = blocks.reach_m(wanted)
        if reach is None:
            wider = blocks.wider_m(wanted)
            blocks = _Blocks.of((yield _count(sought, wider)), sought, wider)
            continue
        if read_m is None or reach > read_m:
            tables.append((yield ReadObservations(sought.within(reach, beyond_m=read_m))))
            read_m = reach
        rows = sum(table.num_rows for table in tables)
        if rows >= sought.count or read_m >= sought.limit_m:
            return first(tables, sought)
        wanted = math.ceil(wanted * _bounded(_SPARE * sought.count / max(rows, 1), _MORE))


def _count(sought: NearestTo, radius_m: float) -> CountBlocks:
    return CountBlocks(sought.within(radius_m))


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """The blocks that intersect a circle, ordered by the distance of their farthest point.

    Attributes:
        radius_m: of the circle.
        limit_m: of all circles.
        farthest: half chords from its centre to the farthest point of each cell.
        rows: of each block and those before it.
    """

    radius_m: float
    limit_m: float
    farthest: Floats
    rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, labels: pa.Table, sought: NearestTo, radius_m: float) -> _Blocks:
        cells = np.asarray(labels.column("cell").to_numpy(), dtype=np.uint64)
        boxes = geohash.bounds(cells, sought.schema.geohash_precision)
        farthest = sought.circle(radius_m).farthest(boxes)
        order = np.argsort(farthest, kind="stable")
        rows = np.cumsum(labels.column("rows").to_numpy()[order], dtype=np.int64)
        return cls(radius_m, sought.limit_m, farthest[order], rows)

    def reach_m(self, count: int) -> float | None:
        """Upper bound of the distance of so many rows; None if a wider circle is needed."""
        at = int(np.searchsorted(self.rows, count))
        if at < len(self.rows):
            bound = float(metres(self.farthest[at : at + 1])[0])
            return min(bound * _ROUNDING + 1e-3, self.limit_m)
        return self.limit_m if self.radius_m >= self.limit_m else None

    def wider_m(self, count: int) -> float:
        """The radius at which this density gives so many rows, within bounds."""
        held = int(self.rows[-1]) if len(self.rows) else 0
        factor = _bounded(_SPARE * math.sqrt(count / max(held, 1)), _GROWTH) if held else _GROWTH[1]
        return min(self.radius_m * factor, self.limit_m)


def _bounded(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


def first(tables: Sequence[pa.Table], sought: NearestTo) -> Neighbours:
    """The nearest of all rows, in the order of `nearest`.

    Applied to parts first, the result is the same.

    Args:
        tables: at least one, of the observation schema.
        sought: parameters of the search; its count is how many are kept.
    """
    table = pa.concat_tables(tables).combine_chunks()
    places = [np.asarray(table.column(name).to_numpy()) for name in ("latitude", "longitude")]
    chords = sought.circle(0.0).half_chords(*places)
    if table.num_rows > sought.count:
        last = np.partition(chords, sought.count - 1)[sought.count - 1]
        near = np.flatnonzero(chords <= last)
        table, chords = table.take(pa.array(near)), chords[near]
    order = _order(table, chords)[: sought.count]
    return Neighbours(table.take(order), metres(chords[order.to_numpy()]))


def _order(table: pa.Table, chords: Floats) -> pa.Array:
    """Positions by half chord, time, latitude, longitude and features."""
    names = ["time", "latitude", "longitude", *table.column_names[3:]]
    keys = [pa.array(chords), *(table.column(name) for name in names)]
    numbered = {str(number): key for number, key in enumerate(keys)}
    return pc.sort_indices(pa.table(numbered), sort_keys=[(name, "ascending") for name in numbered])
