"""Joins of observations with rows of tables: pure functions of columns.

A `Reference` has the rows of a table at one cursor, with what is derived from their columns: hashes
of keys, points, bounds and shapes. Changes make another one, for which only new rows are derived
again.

Places are joined as subscriptions are matched: a grid over the observations finds those near the
bounds of each row, and the same exact tests as of S_INTERSECTS and S_DWITHIN decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from galileo.arrays import one_array
from galileo.errors import MessageTooLarge
from galileo.geo.circles import HALFWAY_M, distances_m
from galileo.geo.regions import Floats
from galileo.hashing import hash128
from galileo.model.enrichment import (
    TIME,
    Lookup,
    Near,
    Nearest,
    Step,
    Within,
    added_columns,
    geometry_column,
    has_distance,
    lookup_columns,
    step_fields,
)
from galileo.model.schema import DELETED
from galileo.model.sort_keys import differs, sort_order
from galileo.model.table import Table
from galileo.model.times import column_micros
from galileo.query.index.candidates import CandidatePairs, pairs_from_ranges
from galileo.query.predicates import ObservationColumns
from galileo.query.subscriptions.hash_index import HashIndex
from galileo.query.subscriptions.parameters import CENTRE
from galileo.query.subscriptions.point_grid import PointGrid
from galileo.query.subscriptions.spatial_tests import (
    AreaTest,
    CircleTest,
    SpatialTest,
    circle_reach,
)
from galileo.query.subscriptions.value_columns import ShapeColumn, Vector, fields_of
from galileo.query.subscriptions.wkb import read_areas

PAIRS_MAX = 1 << 22
"""Pairs of an observation and a row that one step may find."""
ROWS_AT_ONCE = 1 << 16
"""Rows of a table whose bounds are looked up together."""

_HASH_TYPE = pa.binary(16)
_NUMBERS = itertools.count(1)
_Arrays: TypeAlias = tuple[npt.NDArray[Any], ...]
_Numbers: TypeAlias = npt.NDArray[np.intp]


class Reference:
    """The rows of a table at one cursor; it never changes.

    One thread at a time may join it by places: GEOS prepares shapes when they are used.

    Args:
        table: of the rows.
        rows: of `table.arrow_schema`, perhaps with more columns, of each key one.

    Attributes:
        table: of the rows.
        rows: in one chunk.
        number: of this state of the table; later ones have larger numbers.
        since: of each row the number of the state that it came with.
    """

    __slots__ = ("_derived", "_indices", "number", "rows", "since", "table")

    def __init__(self, table: Table, rows: pa.Table) -> None:
        self.table = table
        self.rows = rows.select(table.arrow_schema.names).combine_chunks()
        self.number = next(_NUMBERS)
        self.since: npt.NDArray[np.int64] = np.full(rows.num_rows, self.number)
        self._derived: dict[tuple[str, ...], _Arrays] = {}
        self._indices: dict[tuple[str, ...], HashIndex] = {}

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def nbytes(self) -> int:
        """Size in memory, about."""
        derived = sum(array.nbytes for arrays in self._derived.values() for array in arrays)
        indices = sum(index.nbytes for index in self._indices.values())
        return int(self.rows.nbytes + self.since.nbytes) + derived + indices

    def updated(self, changes: pa.Table) -> Reference:
        """The rows after some changes.

        Args:
            changes: of `table.observation_schema`, of each changed key the last version.
        """
        new = Reference(self.table, changes.filter(pc.invert(changes.column(DELETED))))
        keys = self.table.key_columns
        changed = hashes_of([one_array(changes.column(name)) for name in keys])
        kept = ~are_among(self.hashes(keys), changed)
        merged = Reference(
            self.table, pa.concat_tables([self.rows.filter(pa.array(kept)), new.rows])
        )
        merged.since[: np.count_nonzero(kept)] = self.since[kept]
        for name, arrays in self._derived.items():
            added = _derive(name, new)
            merged._derived[name] = tuple(
                np.concatenate([array[kept], more])
                for array, more in zip(arrays, added, strict=True)
            )
        return merged

    def hashes(self, names: Sequence[str]) -> npt.NDArray[np.void]:
        """Of each row the hash of some columns of its key."""
        return self._get(("hashes", *names))[0]

    def find(self, names: Sequence[str], hashes: npt.NDArray[np.void]) -> _Numbers:
        """The row of each key; -1 for none.

        Args:
            names: of all columns of the key, in any order.
            hashes: of keys, with their columns in that order.
        """
        known, columns = _halves(self.hashes(names)), tuple(names)
        if columns not in self._indices:
            self._indices[columns] = HashIndex(known[:, 0])
        sought = _halves(hashes)
        order = sort_order([sought[:, 0]])
        places, rows = self._indices[columns].find(sought[order, 0])
        places = order[places]
        is_equal = sought[places, 1] == known[rows, 1]
        found = np.full(len(sought), -1, dtype=np.intp)
        found[places[is_equal]] = rows[is_equal]
        return found

    def points(self, geometry: str) -> _Arrays:
        """Longitudes and latitudes of a column, NaN where there is no point."""
        return self._get(("points", geometry))

    def areas(self, geometry: str) -> _Arrays:
        """West, south, east, north, NaN for null, and shapes of a column, None of boxes."""
        return self._get(("areas", geometry))

    def _get(self, name: tuple[str, ...]) -> _Arrays:
        if name not in self._derived:
            self._derived[name] = _derive(name, self)
        return self._derived[name]


def _derive(name: tuple[str, ...], reference: Reference) -> _Arrays:
    """What is derived from the columns of all rows."""
    kind, *columns = name
    values = [one_array(reference.rows.column(column)) for column in columns]
    if kind == "hashes":
        return (hashes_of(values),)
    there = np.flatnonzero(np.asarray(values[0].is_valid()))
    fields = _FIELDS[kind](values[0].drop_null())
    whole = []
    for field in fields:
        empty = None if field.dtype == np.object_ else np.nan
        whole.append(np.full(len(reference), empty, dtype=field.dtype))
        whole[-1][there] = field
    return tuple(whole)


def _area_fields(values: pa.Array) -> _Arrays:
    areas = read_areas(values)
    return areas.west, areas.south, areas.east, areas.north, areas.shapes


def hashes_of(columns: Sequence[pa.Array]) -> npt.NDArray[np.void]:
    """Hashes of 128 bits of the rows of columns without nulls; the identity of a key."""
    if len(columns[0]) == 0:
        return np.empty(0, dtype="V16")
    return np.ascontiguousarray(hash128(columns)).view("V16")[:, 0]


def are_among(hashes: npt.NDArray[np.void], others: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Mask of the hashes that are among others."""
    return np.asarray(pc.is_in(_hashes(hashes), value_set=_hashes(others)), dtype=np.bool_)


def _halves(hashes: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Hashes as two numbers each, shape (k, 2), which share their memory."""
    return hashes.view(np.uint64).reshape(-1, 2)


def _hashes(hashes: npt.NDArray[np.void]) -> pa.Array:
    """Hashes as an Arrow array, which shares their memory."""
    return pa.Array.from_buffers(_HASH_TYPE, len(hashes), [None, pa.py_buffer(hashes)])


# --- the steps --------------------------------------------------------------------------------


def enrich(
    observations: pa.Table, steps: Sequence[Step], references: Mapping[str, Reference]
) -> pa.Table:
    """Observations with the columns that steps add.

    Args:
        observations: with the columns that the steps need.
        steps: in their order.
        references: by the names of the tables; of a lookup at least the rows of `keys_of`.

    Raises:
        MessageTooLarge: a step finds more than `PAIRS_MAX` rows.
    """
    enriched = observations  # With the metadata of its schema, which may name missing partitions.
    for step in steps:
        reference = references[step.table]
        if isinstance(step, Lookup):
            columns = _look_up(observations, step, reference)
        else:
            columns = [_collect(observations, step, reference)]
        for field, column in zip(step_fields(step, reference.table), columns, strict=True):
            enriched = enriched.append_column(field, column)
    return enriched


def keys_of(observations: pa.Table, step: Lookup, table: Table) -> pa.Table:
    """The different keys of observations that a lookup without `as_of` reads.

    Returns:
        The columns of the key, in its order.
    """
    names = lookup_columns(step, table)
    keys = observations.select(list(names.values())).rename_columns(list(names))
    return keys.drop_null().group_by(list(names)).aggregate([]).cast(table.key_schema)


def _look_up(observations: pa.Table, step: Lookup, reference: Reference) -> list[pa.Array]:
    """The columns that a lookup adds."""
    names = lookup_columns(step, reference.table)
    keys = [one_array(observations.column(name)) for name in names.values()]
    there = np.flatnonzero(np.logical_and.reduce([np.asarray(key.is_valid()) for key in keys]))
    sought = hashes_of([key.take(pa.array(there)) for key in keys])
    if step.as_of:
        times = column_micros(observations.column(TIME))[there]
        known = _hashes(reference.hashes(tuple(names)))
        found = _valid_rows(_hashes(sought), times, step, reference, known)
    else:
        found = reference.find(tuple(names), sought)
    rows = np.full(observations.num_rows, -1, dtype=np.intp)
    rows[there] = found
    taken = pa.array(rows, mask=rows < 0)
    added = reference.rows.select(added_columns(step, reference.table))
    return [one_array(column).take(taken) for column in added.columns]


def _valid_rows(
    sought: pa.Array,
    times: npt.NDArray[np.int64],
    step: Lookup,
    reference: Reference,
    known: pa.Array,
) -> _Numbers:
    """For each key and time the row that is valid then; -1 for none.

    Rows and observations are sorted by key and time, rows first; the last row before an observation
    is its row.
    """
    candidates = np.flatnonzero(np.asarray(pc.is_in(known, value_set=sought)))
    valid_from = column_micros(reference.rows.column(step.as_of))[candidates]
    both = pa.concat_arrays([known.take(pa.array(candidates)), sought])
    codes = both.dictionary_encode().indices.to_numpy()
    is_observation = np.arange(len(both)) >= len(candidates)
    order = np.lexsort((is_observation, np.concatenate([valid_from, times]), codes))
    place = np.where(is_observation[order], -1, np.arange(len(both)))
    last = np.maximum.accumulate(place)
    row = order[np.maximum(last, 0)]
    is_found = (last >= 0) & (codes[row] == codes[order]) & is_observation[order]
    found = np.full(len(sought), -1, dtype=np.intp)
    found[order[is_found] - len(candidates)] = candidates[row[is_found]]
    if step.until:
        found[_has_ended(found, times, reference.rows.column(step.until))] = -1
    return found


def _has_ended(
    rows: _Numbers, times: npt.NDArray[np.int64], ends: pa.ChunkedArray
) -> npt.NDArray[np.bool_]:
    """Which rows are valid no more at their times."""
    taken = one_array(ends).take(pa.array(rows, mask=rows < 0))
    is_over = np.asarray(taken.is_valid())
    is_over[is_over] = column_micros(taken.drop_null()) <= times[is_over]
    return is_over


def _collect(
    observations: pa.Table, step: Within | Near | Nearest, reference: Reference
) -> pa.ListArray:
    """The lists that a step adds, in the order of distance and key."""
    pairs = _Pairs.empty() if len(reference) == 0 else _find(observations, step, reference)
    rows = reference.rows.take(pa.array(pairs.rows))
    members = [one_array(rows.column(name)) for name in added_columns(step, reference.table)]
    if has_distance(step):
        members.append(pa.array(pairs.distance_m))
    kind = step_fields(step, reference.table)[0].type
    counts = np.bincount(pairs.observations, minlength=observations.num_rows)
    offsets = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
    structs = pa.StructArray.from_arrays(members, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(offsets, structs, type=kind)


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Pairs of an observation and a row, with their distances, 0 where none is asked for."""

    observations: _Numbers
    rows: _Numbers
    distance_m: Floats

    @staticmethod
    def empty() -> _Pairs:
        nothing = np.empty(0, dtype=np.intp)
        return _Pairs(nothing, nothing, np.empty(0))

    @staticmethod
    def concatenate(parts: Sequence[_Pairs]) -> _Pairs:
        names = ("observations", "rows", "distance_m")
        return _Pairs(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Any) -> _Pairs:
        return _Pairs(self.observations[places], self.rows[places], self.distance_m[places])

    def sorted_each_once(self, reference: Reference) -> _Pairs:
        """By observation, distance and key; a pair that is there twice is there once."""
        keys = reference.rows.select(reference.table.key_columns).take(pa.array(self.rows))
        sorting = pa.table(
            [pa.array(self.observations), pa.array(self.distance_m), *keys.columns],
            names=[str(number) for number in range(2 + keys.num_columns)],
        )
        by = [(name, "ascending") for name in sorting.column_names]
        ordered = self.take(pc.sort_indices(sorting, sort_keys=by).to_numpy())
        return ordered.take(differs(ordered.observations) | differs(ordered.rows))

    def first(self, count: int) -> _Pairs:
        """The first ones of each observation, of pairs that are sorted."""
        starts = np.flatnonzero(differs(self.observations))
        lengths = np.diff(np.append(starts, len(self)))
        return self.take(np.arange(len(self)) - np.repeat(starts, lengths) < count)


def _find(observations: pa.Table, step: Within | Near | Nearest, reference: Reference) -> _Pairs:
    """The pairs of a step."""
    latitude, longitude = (
        np.asarray(one_array(observations.column(name))) for name in ("latitude", "longitude")
    )
    test, distances = _test(step, reference, latitude, longitude)
    points = ObservationColumns(latitude, longitude, np.empty(0, dtype=np.int64), {})
    found = [_Pairs.empty()]
    count = 0
    for pairs in _matches(test, points, len(reference)):
        rows = pairs.slots.astype(np.intp)
        found.append(_Pairs(pairs.rows, rows, distances(pairs.rows, rows)))
        count += len(pairs)
        if isinstance(step, Nearest) and count > PAIRS_MAX // 16:
            found = [_Pairs.concatenate(found).sorted_each_once(reference).first(step.count)]
            count = len(found[0])
        if count > PAIRS_MAX:
            raise MessageTooLarge(
                f"expected at most {PAIRS_MAX:,} rows of table {step.table!r} for "
                f"{len(latitude):,} observations; enrich fewer, or with a smaller distance",
                bound=PAIRS_MAX,
            )
    whole = _Pairs.concatenate(found).sorted_each_once(reference)
    return whole.first(step.count) if isinstance(step, Nearest) else whole


_Distances: TypeAlias = Callable[[_Numbers, _Numbers], Floats]


def _test(
    step: Within | Near | Nearest, reference: Reference, latitude: Floats, longitude: Floats
) -> tuple[SpatialTest, _Distances]:
    """The exact test of a step, whose groups are rows, and the distances of pairs."""
    geometry = geometry_column(step, reference.table)
    if isinstance(step, Within):
        *bounds, shapes = reference.areas(geometry)
        fields = [*map(Vector, bounds), ShapeColumn(shapes)]
        return AreaTest(fields, interior=False), lambda places, _: np.zeros(len(places))
    x, y = reference.points(geometry)
    reach = circle_reach(y, np.full(len(y), step.within_m))
    circles = CircleTest(Vector(x), Vector(y), min(step.within_m, HALFWAY_M), Vector(reach))
    return circles, lambda places, rows: distances_m(
        latitude[places], longitude[places], y[rows], x[rows]
    )


def _matches(test: SpatialTest, points: ObservationColumns, count: int) -> Iterator[CandidatePairs]:
    """The pairs of a row, as slot, and an observation for which a test is true; some are twice."""
    if len(points.latitude) == 0:
        return
    grid = PointGrid(points.latitude, points.longitude)
    for start in range(0, count, ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, count), dtype=np.int32)
        boxes, _ = grid.near(test.boxes(rows))
        for ranges in grid.ranges(boxes):
            for pairs in pairs_from_ranges(ranges, grid.rows):
                yield pairs.where(test.accepts(pairs, points))


_FIELDS: dict[str, Callable[[pa.Array], _Arrays]] = {
    "points": lambda values: fields_of(values, {CENTRE}),
    "areas": _area_fields,
}
