"""Curvilinear grids, found in scattered positions by walking from neighbour to neighbour.

Positions are laid on a plane (stereographic, about their middle), where a grid of a map projection
is nearly straight from one point to the next. The walk starts in the middle with the two directions
to the nearest neighbours. It goes in waves: each point that has a row and a column predicts, by the
steps that led to it, where its four neighbours are; whatever position lies there gets the next row
or column. A set of positions is a grid if all are reached and no two get the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import shapely

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Plane = npt.NDArray[np.float64]
"""Positions or steps on a plane, shape (k, 2)."""

POINTS_MIN = 9
NEAR_MAX = 0.35
"""How far from the prediction a neighbour may lie, as a share of the step to it."""
SPREAD_MIN = 0.15
"""Of a unit sphere's radius: how far the middle of all positions is from its centre, at least.

Positions all around the earth can be laid on no plane."""

_SIDES = ((0, 1), (0, -1), (1, 0), (-1, 0))
"""Row and column steps to the neighbours."""


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Rows go north and columns east, as far as a curved grid does so."""

    row: Whole
    column: Whole

    @property
    def rows(self) -> int:
        return int(self.row.max()) + 1

    @property
    def columns(self) -> int:
        return int(self.column.max()) + 1


def walk(latitude: Floats, longitude: Floats) -> Lattice | None:
    """The rows and columns of distinct positions; None where they are no curvilinear grid."""
    flat = None if len(latitude) < POINTS_MIN else _flat(latitude, longitude)
    steps = None if flat is None else _first_steps(flat)
    if flat is None or steps is None:
        return None
    visited = _Walk(flat, *steps).run()
    if (visited.row == _UNSEEN).any():
        return None
    lattice = Lattice(visited.row - visited.row.min(), visited.column - visited.column.min())
    return lattice if _distinct(lattice) and min(lattice.rows, lattice.columns) > 1 else None


def contiguous(longitude: Floats) -> Floats:
    """The same longitudes, those east of the antimeridian beyond 180 where the data spans it.

    They begin behind the widest gap, unless that makes them start where they do anyway.
    """
    known = np.unique(longitude)
    if len(known) < 2:
        return longitude
    gaps = np.diff(known)
    widest = int(gaps.argmax())
    if gaps[widest] <= known[0] + 360.0 - known[-1]:
        return longitude
    shifted: Floats = np.where(longitude <= known[widest], longitude + 360.0, longitude)
    return shifted


def _distinct(lattice: Lattice) -> bool:
    places = lattice.row * lattice.columns + lattice.column
    return len(np.unique(places)) == len(places)


def _flat(latitude: Floats, longitude: Floats) -> Plane | None:
    """Stereographic, about the middle, x to the east and y to the north of it."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    sphere = np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)])
    middle = sphere.mean(axis=1)
    length = float(np.linalg.norm(middle))
    if length < SPREAD_MIN:
        return None
    up = middle / length
    east = np.array([-up[1], up[0], 0.0])
    east = east / np.linalg.norm(east) if np.linalg.norm(east) > 1e-9 else np.array([0.0, 1.0, 0.0])
    axes = np.stack([east, np.cross(up, east)])
    return np.asarray(((axes @ sphere) / (1.0 + up @ sphere + 1e-9)).T)


def _first_steps(flat: Plane) -> tuple[int, Plane, Plane] | None:
    """A point in the middle, and the steps from it to the next column and to the next row."""
    start = int(np.argmin(np.square(flat - np.median(flat, axis=0)).sum(axis=1)))
    away = flat - flat[start]
    distance = np.hypot(away[:, 0], away[:, 1])
    near = np.argsort(distance, kind="stable")[1:POINTS_MIN]
    first = away[near[0]]
    # The nearest that does not lie in the same direction, or the opposite one.
    across = np.abs(first[0] * away[near, 1] - first[1] * away[near, 0])
    aside = near[across > 0.5 * distance[near] * np.hypot(*first)]
    if not len(aside):
        return None
    second = away[aside[0]]
    column, row = (first, second) if abs(first[0]) >= abs(second[0]) else (second, first)
    return start, column * _sign(column[0]), row * _sign(row[1])


def _sign(value: float) -> float:
    return -1.0 if value < 0 else 1.0


_UNSEEN = np.iinfo(np.int64).min


class _Walk:
    """Rows and columns as they are found, and the steps that led to each point."""

    def __init__(self, flat: Plane, start: int, along: Plane, up: Plane) -> None:
        self.row = np.full(len(flat), _UNSEEN)
        self.column = np.full(len(flat), _UNSEEN)
        self._flat = flat
        self._along, self._up = np.zeros_like(flat), np.zeros_like(flat)
        self._along[start], self._up[start] = along, up
        self.row[start] = self.column[start] = 0
        self._tree = shapely.STRtree(np.asarray(shapely.points(flat)))
        self._front = np.array([start])

    def run(self) -> _Walk:
        """Goes on until no neighbour is left; each wave reaches a point that none did before."""
        while len(self._front):
            reached = [self._step(rows, columns) for rows, columns in _SIDES]
            self._front = np.concatenate(reached)
        return self

    def _step(self, rows: int, columns: int) -> Whole:
        """Looks for the neighbours of the front on one side; gives those that are new."""
        front = self._front
        steps = rows * self._up[front] + columns * self._along[front]
        expected = self._flat[front] + steps
        nearest = self._tree.nearest(shapely.points(expected))
        off = self._flat[nearest] - expected
        limit = NEAR_MAX * np.hypot(steps[:, 0], steps[:, 1])
        hit = (np.hypot(off[:, 0], off[:, 1]) <= limit) & (self.row[nearest] == _UNSEEN)
        new, first = np.unique(nearest[hit], return_index=True)
        from_ = front[hit][first]
        self.row[new], self.column[new] = self.row[from_] + rows, self.column[from_] + columns
        went = (self._flat[new] - self._flat[from_]) * (rows + columns)
        self._up[new] = went if rows else self._up[from_]
        self._along[new] = went if columns else self._along[from_]
        return np.asarray(new)
