"""Entries: the coarse vertices of a synopsis, in columns, with bounds of the paths under each.

An entry covers one coarse cell and one time interval. Bounds only ever widen, so a repeated or late
entry changes nothing.

The number of paths under an entry grows with every commit. An entry counts as changed only when
this number reaches the next logarithmic bucket, which is an eighth wide: so an entry is sent a
logarithmic number of times, and a receiver knows the number up to its bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from galileo.geo import geohash
from galileo.graph.columns import Array
from galileo.model.schema import Feature, Schema
from galileo.model.times import DAY_US
from galileo.query.columns import Columns, Mask
from galileo.query.zone_maps import FeatureZones, Zones

Keys = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]

_PRECISION_MAX = 3
_MONTH_DAYS = 32
_TIME_BITS = 40
_LEADING_BITS = 4


@dataclass(frozen=True, slots=True)
class EntryGrid:
    """The resolution of the entries of a synopsis.

    Attributes:
        precision: characters of a coarse cell.
        width_us: microseconds of a time interval; None: all of time.
    """

    precision: int
    width_us: int | None

    def keys(self, columns: Columns, schema: Schema) -> Keys:
        """One number per path, equal for all paths of an entry."""
        cell = geohash.coarsen(columns.cell, schema.geohash_precision, self.precision)
        if self.width_us is None:
            return cell.astype(np.int64) << _TIME_BITS
        time = columns.bucket // self.width_us + (1 << (_TIME_BITS - 1))
        return (cell.astype(np.int64) << _TIME_BITS) | time


def grids(schema: Schema) -> tuple[EntryGrid, ...]:
    """From fine to coarse, each nested in the next; the last has at most 32 entries."""
    fine = min(_PRECISION_MAX, schema.geohash_precision)
    day = max(DAY_US, schema.time_bucket_us)
    month = _MONTH_DAYS * day
    steps = [(fine, day), (fine, month), (min(fine, 2), month), (1, month), (1, None)]
    return tuple(dict.fromkeys(EntryGrid(precision, width) for precision, width in steps))


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """k entries, ascending by key.

    Attributes:
        key: of the grid, shape (k,).
        changed: commit sequence at which the bounds last changed, shape (k,).
        bounds: arrays of shape (k,), in the order of `bound_names`.
    """

    key: Keys
    changed: npt.NDArray[np.int64]
    bounds: tuple[Array, ...]

    def __len__(self) -> int:
        return len(self.key)

    @classmethod
    def empty(cls, schema: Schema) -> Entries:
        nothing = np.empty(0, dtype=np.int64)
        bounds = tuple(np.empty(0, dtype) for _, dtype in _layout(schema))
        return cls(nothing, nothing, bounds)

    @classmethod
    def of(cls, schema: Schema, columns: Columns, *, grid: EntryGrid, sequence: int) -> Entries:
        """The entries of the paths of one commit."""
        keys = grid.keys(columns, schema)
        order = np.argsort(keys, kind="stable")
        starts = _starts(keys[order])
        if len(starts) == 0:
            return cls.empty(schema)
        paths = np.diff(starts, append=len(order)).astype(np.int64)
        bounds = (*_bounds_from_zones(schema, Zones.of(columns.take(order), starts)), paths)
        changed = np.full(len(starts), sequence, dtype=np.int64)
        return cls(keys[order][starts], changed, bounds)

    def take(self, rows: Any) -> Entries:
        """The entries of an index array, a mask or a slice."""
        bounds = tuple(bound[rows] for bound in self.bounds)
        return Entries(self.key[rows], self.changed[rows], bounds)

    def widen(self, other: Entries, schema: Schema) -> Entries:
        """The entries of `other`, with the bounds of both.

        They count as changed when those of `other` did if they are wider than these, else as these
        do.
        """
        position, known = self._find(other.key)
        mine = self.take(position[known])
        joined = []
        for old, new, rule in zip(mine.bounds, other.bounds, _rules(schema), strict=True):
            both = new.copy()
            both[known] = rule(old, new[known])
            joined.append(both)
        changed = other.changed.copy()
        same = ~mine.exceeds_bounds(bound[known] for bound in joined)
        changed[np.flatnonzero(known)[same]] = mine.changed[same]
        return Entries(other.key, changed, tuple(joined))

    def with_features(self, features: Sequence[Feature]) -> Entries:
        """The same entries with further features, in which every path has null."""
        rows, nulls = len(self), list[Array]()
        for feature in features:
            if feature.type != "text":
                nulls += [np.full(rows, np.inf), np.full(rows, -np.inf)]
            nulls += [np.ones(rows, np.bool_), np.zeros(rows, np.bool_)]
        return replace(self, bounds=(*self.bounds[:-1], *nulls, self.bounds[-1]))

    def exceeds_bounds(self, bounds: Iterable[Array]) -> Mask:
        """Mask of entries that `bounds` exceed, up to the bucket of their number of paths."""
        *wider, paths = bounds
        apart: Mask = log_buckets(self.paths) != log_buckets(paths)
        for old, new in zip(self.bounds, wider, strict=False):
            apart |= old != new
        return apart

    def update(self, newer: Entries) -> Entries:
        """These entries, replaced by those of `newer` with the same key."""
        position, known = self._find(newer.key)
        fresh = ~known

        def upsert(mine: Array, theirs: Array) -> Array:
            replaced = mine.copy()
            replaced[position[known]] = theirs[known]
            return np.insert(replaced, position[fresh], theirs[fresh]) if fresh.any() else replaced

        bounds = (upsert(*pair) for pair in zip(self.bounds, newer.bounds, strict=True))
        changed = upsert(self.changed, newer.changed)
        return Entries(upsert(self.key, newer.key), changed, tuple(bounds))

    def coarsen(self, schema: Schema, *, grid: EntryGrid, sequence: int) -> Entries:
        """The entries on a coarser grid; all of them count as changed."""
        cell_lo, _, bucket_lo, _ = self.bounds[:4]
        keys = grid.keys(Columns(cell_lo, bucket_lo, {}), schema)
        order = np.argsort(keys, kind="stable")
        starts = _starts(keys[order])
        pairs = zip(self.bounds, _rules(schema), strict=True)
        bounds = tuple(rule.reduceat(bound[order], starts) for bound, rule in pairs)
        changed = np.full(len(starts), sequence, dtype=np.int64)
        return Entries(keys[order][starts], changed, bounds)

    @property
    def paths(self) -> Counts:
        """Paths under each entry; at a receiver a number in the right bucket."""
        counts: Counts = self.bounds[-1]
        return counts

    def zones(self, schema: Schema) -> Zones:
        """The bounds as zones for a query."""
        return zones_from_bounds(schema, self.bounds)

    def _find(self, keys: Keys) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        position = np.searchsorted(self.key, keys)
        known = np.zeros(len(keys), dtype=np.bool_)
        inside = position < len(self.key)
        known[inside] = self.key[position[inside]] == keys[inside]
        return position, known


def bound_names(schema: Schema) -> list[str]:
    """Names of the bounds, in order."""
    return [name for name, _ in _layout(schema)]


def zones_from_bounds(schema: Schema, bounds: Sequence[Array]) -> Zones:
    cell_lo, cell_hi, bucket_lo, bucket_hi, *rest = bounds
    arrays = iter(rest)
    features = {}
    for feature in schema.indexed:
        bare = feature.type == "text"
        lo, hi = (None, None) if bare else (next(arrays), next(arrays))
        features[feature.name] = FeatureZones(lo, hi, next(arrays), next(arrays))
    return Zones(cell_lo, cell_hi, bucket_lo, bucket_hi, features)


def _bounds_from_zones(schema: Schema, zones: Zones) -> tuple[Array, ...]:
    bounds = [zones.features[feature.name] for feature in schema.indexed]
    features = (each for f in bounds for each in (f.lo, f.hi, f.has_null, f.has_value))
    fixed = (zones.cell_lo, zones.cell_hi, zones.bucket_lo, zones.bucket_hi)
    return (*fixed, *(array for array in features if array is not None))


def _layout(schema: Schema) -> list[tuple[str, type[np.generic]]]:
    layout: list[tuple[str, type[np.generic]]] = [
        ("cell_lo", np.uint64),
        ("cell_hi", np.uint64),
        ("bucket_lo", np.int64),
        ("bucket_hi", np.int64),
    ]
    for feature in schema.indexed:
        if feature.type != "text":
            layout += [(f"{feature.name}.lo", np.float64), (f"{feature.name}.hi", np.float64)]
        layout += [(f"{feature.name}.null", np.bool_), (f"{feature.name}.value", np.bool_)]
    return [*layout, ("paths", np.int64)]


def _rules(schema: Schema) -> list[np.ufunc]:
    """How two values of each bound are combined."""
    suffixes = [name.rpartition("_" if "." not in name else ".")[2] for name in bound_names(schema)]
    rules = {"lo": np.minimum, "hi": np.maximum, "paths": np.add}
    return [rules.get(suffix, np.logical_or) for suffix in suffixes]


def log_buckets(counts: Counts) -> Counts:
    """The logarithmic bucket of each count, numbered upwards; a bucket shares the leading four
    bits.
    """
    shift = _shifts(counts)
    return (shift << (_LEADING_BITS - 1)) + (counts >> shift)


def log_bucket_ends(counts: Counts) -> Counts:
    """The greatest numbers in the buckets of counts."""
    shift = _shifts(counts)
    return (((counts >> shift) + 1) << shift) - 1


def _shifts(counts: Counts) -> Counts:
    """Number of bits after the leading four."""
    lengths = np.frexp(counts.astype(np.float64))[1].astype(np.int64)
    return np.maximum(lengths - _LEADING_BITS, 0)


def _starts(ordered: Keys) -> npt.NDArray[np.intp]:
    changed = np.ones(len(ordered), dtype=np.bool_)
    changed[1:] = ordered[1:] != ordered[:-1]
    return np.flatnonzero(changed)
