"""Spatial thinning to a minimum distance.

Labels are considered in an order drawn by hashing; one is kept where no kept one is nearer than
the distance (simple sequential inhibition). All at once: a label comes next wherever it is the
first of its neighbourhood, so each round keeps the first of every neighbourhood and drops what
lies too near to one, until none is left. The result is that of going through them one by one; the
rounds grow with the logarithm of the labels (Blelloch, Fineman, Shun, "Greedy sequential maximal
independent set and matching are parallel on average", SPAA 2012).

Places are points on the unit sphere, in a grid of cubes whose side is the distance as a chord:
what is too near lies in the 27 cubes about a label, at the poles and the antimeridian too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from galileo.labels import LabelSet
from galileo.samplers import Scope, label_hashes, positions
from galileo_samplers.lowest import Ints, Mask, codes_of, starts_run
from galileo_samplers.options import checked_distance_m, checked_scope

Points = npt.NDArray[np.float64]

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius, as of `galileo`'s own distances."""
_AXIS_BITS = 21
_SIDE_MIN = 2.0 ** (2 - _AXIS_BITS)
"""Of a cube, so that three axes and a margin fit 63 bits; 24 m on the ground."""
_STEPS = (-1, 0, 1)
_LAST = np.iinfo(np.int64).max
_PAIRS_MAX = 1 << 20
"""Of points that are compared at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinning:
    """Keeps labels that are at least a distance apart, as many as chance and room allow.

    The distance is that between the centres of cells, along the great circle; of labels of the
    same cell one is kept.

    Args:
        distance_m: metres.
        scope: within what it is kept: within each commit, each node's labels, or everything.
    """

    distance_m: float
    scope: Scope = "global"
    regroups: ClassVar[bool] = False
    needs_columns: ClassVar[tuple[str, ...]] = ("cell",)

    def __post_init__(self) -> None:
        checked_distance_m(self.distance_m)
        checked_scope(self.scope)

    def sample(self, labels: LabelSet, *, seed: int) -> Mask:
        commits = codes_of((labels.partitions, labels.sequences), size=len(labels))
        return self._thinned(labels, commits, seed=seed)

    def merge(self, labels: LabelSet, *, seed: int) -> Mask:
        return self._thinned(labels, np.zeros(len(labels), dtype=np.int64), seed=seed)

    def _thinned(self, labels: LabelSet, groups: Ints, *, seed: int) -> Mask:
        order = _order(labels, seed=seed)
        firsts = order[_firsts_of_places(groups[order], labels.cells[order])]
        latitude, longitude = positions(labels)
        points = _points(latitude[firsts], longitude[firsts])
        chord = 2 * math.sin(self.distance_m / (2 * EARTH_RADIUS_M))
        mask = np.zeros(len(labels), dtype=np.bool_)
        mask[firsts] = spread_out(points, groups[firsts], chord=chord)
        return mask


def spread_out(points: Points, groups: Ints, *, chord: float) -> Mask:
    """Which points are kept when each is, in their order, unless a kept one of its group is near.

    Args:
        points: on the unit sphere, shape (n, 3).
        groups: points of different groups do not see each other.
        chord: the least distance.
    """
    grid = _Grid.of(points, groups, side=max(chord, _SIDE_MIN))
    undecided = np.ones(len(points), dtype=np.bool_)
    kept = np.zeros(len(points), dtype=np.bool_)
    while undecided.any():
        first = grid.firsts(undecided)
        kept[first] = True
        undecided[first] = False
        for one, other in grid.pairs(first):
            left = undecided[other]
            one, other = one[left], other[left]
            apart = points[one] - points[other]
            near = np.einsum("ij,ij->i", apart, apart) < chord * chord
            undecided[other[near]] = False
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """Points in cubes; a cube holds those of one group.

    Attributes:
        members: the points sorted by cube, then by number; shape (n,).
        starts: where each cube's members begin, and the end; shape (cubes + 1,).
        cubes: of each point.
        around: the neighbours of each cube, itself among them, one behind the other.
        around_starts: where those of each cube begin, and the end; shape (cubes + 1,).
    """

    members: Ints
    starts: Ints
    cubes: Ints
    around: Ints
    around_starts: Ints

    @classmethod
    def of(cls, points: Points, groups: Ints, *, side: float) -> _Grid:
        keys = _packed(np.floor((points + 1.0) / side).astype(np.int64) + 1)
        known, numbers = np.unique(keys, return_inverse=True)
        combined = groups * len(known) + numbers.reshape(-1)
        members = np.argsort(combined, kind="stable").astype(np.int64)
        starts = np.flatnonzero(starts_run([combined[members]]))
        places = combined[members[starts]]
        cubes = np.empty(len(points), dtype=np.int64)
        sizes = np.diff(np.append(starts, len(points)))
        cubes[members] = np.repeat(np.arange(len(starts)), sizes)
        own, near = _neighbours(places, known)
        counts = np.bincount(own, minlength=len(places))
        around = near[np.argsort(own, kind="stable")]
        ends = np.append(0, np.cumsum(counts)).astype(np.int64)
        return cls(members, np.append(starts, len(points)).astype(np.int64), cubes, around, ends)

    def firsts(self, undecided: Mask) -> Ints:
        """The points that come before every other undecided one of the cubes about them."""
        numbers = np.where(undecided[self.members], self.members, _LAST)
        first = np.minimum.reduceat(numbers, self.starts[:-1])
        nearby = np.minimum.reduceat(first[self.around], self.around_starts[:-1])
        found: Ints = first[(first == nearby) & (first != _LAST)]
        return found

    def pairs(self, points: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Each point with all points of the cubes about it, in pieces of bounded size."""
        cubes, whose = _spans(self.around_starts, self.cubes[points], of=self.around)
        sizes = np.diff(self.starts)[cubes]
        ends = np.cumsum(sizes)
        start = 0
        while start < len(cubes):
            room = (ends[start - 1] if start else 0) + _PAIRS_MAX
            stop = max(start + 1, int(np.searchsorted(ends, room, side="right")))
            others, which = _spans(self.starts, cubes[start:stop], of=self.members)
            yield points[whose[start:stop][which]], others
            start = stop


def _spans(starts: Ints, chosen: Ints, *, of: Ints) -> tuple[Ints, Ints]:
    """The items of the chosen runs one behind the other, and of which chosen each is."""
    sizes = starts[chosen + 1] - starts[chosen]
    which = np.repeat(np.arange(len(chosen)), sizes)
    within = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return of[starts[chosen][which] + within], which


def _neighbours(places: Ints, known: Ints) -> tuple[Ints, Ints]:
    """Pairs of numbers of cubes that touch, each with itself too.

    Args:
        places: of the cubes, ascending: group times len(known) plus the place of its key.
        known: the keys that occur, ascending.
    """
    groups, keys = places // len(known), known[places % len(known)]
    own, near = [], []
    for dx in _STEPS:
        for dy in _STEPS:
            for dz in _STEPS:
                step = _packed(np.array([[dx, dy, dz]]))[0]
                at, there = _found(known, keys + step)
                at, also = _found(places, groups * len(known) + at, among=there)
                own.append(np.flatnonzero(also))
                near.append(at[also])
    return np.concatenate(own).astype(np.int64), np.concatenate(near).astype(np.int64)


def _found(ascending: Ints, wanted: Ints, *, among: Mask | None = None) -> tuple[Ints, Mask]:
    """The position of each wanted value, and whether it is there."""
    at = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    there = ascending[at] == wanted
    return at, there if among is None else there & among


def _packed(axes: npt.NDArray[np.int64]) -> Ints:
    """Three small numbers in one; sums of packed numbers are packed sums."""
    keys: Ints = (axes[:, 0] << (2 * _AXIS_BITS)) + (axes[:, 1] << _AXIS_BITS) + axes[:, 2]
    return keys


def _order(labels: LabelSet, *, seed: int) -> Ints:
    """The labels in the order in which they are considered."""
    identity = (labels.rows, labels.sequences, labels.partitions)
    return np.lexsort((*identity, label_hashes(labels, seed=seed))).astype(np.int64)


def _firsts_of_places(groups: Ints, cells: npt.NDArray[np.uint64]) -> Ints:
    """The first of each group in each cell: no other one of that cell can be kept."""
    order = np.lexsort((cells, groups))
    starts = np.flatnonzero(starts_run([groups[order], cells[order]]))
    return np.sort(order[starts]).astype(np.int64)


def _points(latitude: Points, longitude: Points) -> Points:
    """On the unit sphere, shape (n, 3)."""
    north, east = np.radians(latitude), np.radians(longitude)
    level = np.cos(north)
    return np.stack([level * np.cos(east), level * np.sin(east), np.sin(north)], axis=1)
