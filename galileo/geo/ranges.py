"""Sorted, disjoint, half-open ranges of cells, as two arrays, and their set algebra."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from galileo.geo.geohash import Cells

Ranges: TypeAlias = tuple[Cells, Cells]
Mask: TypeAlias = npt.NDArray[np.bool_]


def none() -> Ranges:
    return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64)


def normalise(lows: npt.ArrayLike, highs: npt.ArrayLike) -> Ranges:
    """Sort half-open ranges, drop empty ones, merge overlapping and adjacent ones."""
    lo, hi = np.asarray(lows, dtype=np.uint64), np.asarray(highs, dtype=np.uint64)
    filled = lo < hi
    lo, hi = lo[filled], hi[filled]
    if len(lo) == 0:
        return none()
    order = np.argsort(lo, kind="stable")
    lo, reach = lo[order], np.maximum.accumulate(hi[order])
    first = np.append(True, lo[1:] > reach[:-1])
    last = np.append(first[1:], True)
    return lo[first], reach[last]


def union(left: Ranges, right: Ranges) -> Ranges:
    return normalise(np.append(left[0], right[0]), np.append(left[1], right[1]))


def intersection(left: Ranges, right: Ranges) -> Ranges:
    edges = np.unique(np.concatenate([*left, *right]))
    if len(edges) == 0:
        return none()
    both = contains(left, edges[:-1]) & contains(right, edges[:-1])
    return normalise(edges[:-1][both], edges[1:][both])


def complement(ranges: Ranges, size: int) -> Ranges:
    """The part of [0, size) outside `ranges`."""
    lo = np.append(np.zeros(1, dtype=np.uint64), ranges[1])
    hi = np.append(ranges[0], np.array([size], dtype=np.uint64))
    return normalise(lo, hi)


def contains(ranges: Ranges, cells: Cells) -> Mask:
    """Mask of cells in one of the ranges."""
    mask: Mask = holds(ranges, cells, cells)
    return mask


def holds(ranges: Ranges, lows: Cells, highs: Cells) -> Mask:
    """Mask of closed intervals [low, high] wholly in one range."""
    lo, hi = ranges
    if len(lo) == 0:
        return np.zeros(len(lows), dtype=np.bool_)
    at = np.searchsorted(lo, lows, side="right").astype(np.int64) - 1
    mask: Mask = (at >= 0) & (highs < hi[np.maximum(at, 0)])
    return mask


def overlaps(ranges: Ranges, lows: Cells, highs: Cells) -> Mask:
    """Mask of closed intervals [low, high] that share a cell with a range."""
    lo, hi = ranges
    if len(lo) == 0:
        return np.zeros(len(lows), dtype=np.bool_)
    at = np.searchsorted(hi, lows, side="right")
    mask: Mask = (at < len(lo)) & (lo[np.minimum(at, len(lo) - 1)] <= highs)
    return mask
