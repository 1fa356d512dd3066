"""The exact search for the k nearest observations to a point, as a sequence of queries.

A search asks two kinds of question. `CountBlocks` wants the labels within a circle: their cells
and row counts bound how far away the k-th observation can be, since every observation of a
block is nearer than the farthest point of its cell. `ReadObservations` wants the observations
within that bound. Where features alone restrict the search, the counts are exact and two
questions do: one count, one read. They are more where

- the first circle holds too few observations: it grows, by what its density suggests, eight
  times at most, until it is the whole earth;
- conditions on place or time keep observations out that their blocks' counts include: then the
  bound was too low. The next counts on more rows, and reads the ring between the two alone.

The search does no input or output: `search` is a generator of questions that is sent their
answers, and `nearest` drives it with a function that answers.
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
"""Observations of one search."""
FIRST_M = 50_000.0
"""Radius of the first circle, by default."""

_GROWTH = (2.0, 8.0)
"""Least and greatest factor of the next circle's radius."""
_MORE = (2.0, 64.0)
"""Least and greatest factor of the next number of rows to count on."""
_SPARE = 1.5
"""How many times more than its estimate a next step reckons with."""
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class CountBlocks:
    """Asks for the labels that match, as a table with at least "cell" and "rows"."""

    query: Query


@dataclass(frozen=True, slots=True)
class ReadObservations:
    """Asks for the observations that match exactly, as a table of the observation schema."""

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
    """What is searched.

    Attributes:
        latitude: of the point, degrees in [-90, 90].
        longitude: of the point, degrees in [-180, 180].
        count: how many observations at most.
        among: which observations come into question.
        first_m: radius of the first circle; any is right, a good guess saves a question.
        within_m: greatest distance of an observation that comes into question, metres.
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
                f"got {self.latitude!r} and {self.longitude!r}"
            )
        if not 1 <= self.count <= COUNT_MAX:
            raise InputError(f"expected a count from 1 to {COUNT_MAX:,}, got {self.count!r}")
        if not 0 < self.first_m < math.inf:
            raise InputError(f"expected a first radius above 0 metres, got {self.first_m!r}")
        if not self.within_m >= 0:
            raise InputError(
                f"expected a greatest distance of 0 metres or more, got {self.within_m!r}"
            )

    @property
    def schema(self) -> Schema:
        return self.among.schema

    @property
    def limit_m(self) -> float:
        """The radius beyond which nothing is to be found."""
        return min(self.within_m, HALFWAY_M)

    def circle(self, radius_m: float) -> Circle:
        return Circle(float(self.latitude), float(self.longitude), radius_m)

    def within(self, radius_m: float, *, beyond_m: float | None = None) -> Query:
        """What comes into question within a radius, and farther away than another."""
        precision = self.schema.geohash_precision
        parts: list[Node] = [WithinDistance(self.circle(radius_m), precision)]
        if beyond_m is not None:
            parts.append(WithinDistance(self.circle(beyond_m), precision, negated=True))
        return Query(self.schema, conjunction([self.among.tree, *parts]))


def nearest(answer: Callable[[Question], pa.Table], sought: NearestTo) -> Neighbours:
    """The observations nearest to a point, and their distances.

    All that are missing are at least as far away as the last one. Of those equally far away the
    earlier come first, then those farther south, farther west, and with lesser feature values
    in schema order, missing ones last; so the result does not depend on the order of answers.
    It is exact for one state of the data: answer from one (up to one cursor) where it matters.

    Args:
        answer: the table that a question asks for.
        sought: what is searched.
    """
    asking = search(sought)
    try:
        question = next(asking)
        while True:
            question = asking.send(answer(question))
    except StopIteration as done:
        found: Neighbours = done.value
        return found


def search(sought: NearestTo) -> Generator[Question, pa.Table, Neighbours]:
    """The questions of a search one by one; each is sent its answer, the last one's is returned.

    Of the observations that a question asks for, an answer may leave out all but the `count`
    that `first` puts first.
    """
    radius = min(sought.first_m, sought.limit_m)
    blocks = _Blocks.of((yield _count(sought, radius)), sought, radius)
    wanted, read_m, found = sought.count, None, [sought.schema.observation_schema.empty_table()]
    while True:
        reach = blocks.reach_m(wanted)
        if reach is None:
            wider = blocks.wider_m(wanted)
            blocks = _Blocks.of((yield _count(sought, wider)), sought, wider)
            continue
        if read_m is None or reach > read_m:
            found.append((yield ReadObservations(sought.within(reach, beyond_m=read_m))))
            read_m = reach
        rows = sum(table.num_rows for table in found)
        if rows >= sought.count or read_m >= sought.limit_m:
            return first(found, sought)
        wanted = math.ceil(wanted * _bounded(_SPARE * sought.count / max(rows, 1), _MORE))


def _count(sought: NearestTo, radius_m: float) -> CountBlocks:
    return CountBlocks(sought.within(radius_m))


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """The blocks that a circle meets, those with the nearest farthest point first.

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

    def reach_m(self, wanted: int) -> float | None:
        """How far away the last of so many rows can be; None if a wider circle has to say."""
        at = int(np.searchsorted(self.rows, wanted))
        if at < len(self.rows):
            bound = float(metres(self.farthest[at : at + 1])[0])
            return min(bound * _ROUNDING + 1e-3, self.limit_m)
        return self.limit_m if self.radius_m >= self.limit_m else None

    def wider_m(self, wanted: int) -> float:
        """The radius at which this density gives so many rows, within bounds."""
        held = int(self.rows[-1]) if len(self.rows) else 0
        factor = (
            _bounded(_SPARE * math.sqrt(wanted / max(held, 1)), _GROWTH) if held else _GROWTH[1]
        )
        return min(self.radius_m * factor, self.limit_m)


def _bounded(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


def first(found: Sequence[pa.Table], sought: NearestTo) -> Neighbours:
    """The nearest of all rows, in the order that `nearest` promises.

    So the first of several answers' firsts are the first of all.

    Args:
        found: at least one table of the observation schema.
        sought: what is searched; its count is how many are kept.
    """
    table = pa.concat_tables(found).combine_chunks()
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
