"""Labels as pictures: a map of their cells, and their course in time.

Drawn with matplotlib, which comes with `galileo-store[plots]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from galileo.client.curvilinear_grid import contiguous
from galileo.errors import InputError
from galileo.geo import geohash
from galileo.labels import LabelSet
from galileo.optional_imports import library

Floats = npt.NDArray[np.float64]

COUNT = "observations"
ASPECT_MAX = 10.0
"""How much a map near a pole is stretched from north to south, at most."""


def plot_map(labels: LabelSet, by: str | None = None, *, ax: Any = None, cmap: str = "") -> Any:
    """Draws the rectangles of the labels' cells, coloured by observations or by a feature's mean.

    Args:
        labels: what to draw.
        by: an indexed feature of type float, int or bool; None for the number of observations.
        ax: axes of matplotlib to draw on; new ones if absent.
        cmap: of the colours, by matplotlib's name.

    Returns:
        The axes. Of cells across the antimeridian the eastern ones are drawn beyond 180.

    Raises:
        InputError: there is no such feature, or it has no numbers.
        MissingExtra: matplotlib is not installed.
    """
    axes = _axes(ax)
    cells, which = np.unique(labels.cells, return_inverse=True)
    values = _means(labels, by, groups=which, count=len(cells))
    west, south, east, north = geohash.bounds(cells, labels.schema.geohash_precision)
    middle = (west + east) / 2
    turn = contiguous(middle) - middle
    corners = [(west, south), (east, south), (east, north), (west, north)]
    boxes = np.stack([np.stack([x + turn, y], axis=1) for x, y in corners], axis=1)
    drawn = _boxes(boxes, values, cmap or "viridis")
    axes.add_collection(drawn)
    axes.autoscale_view()
    if len(cells):
        flat = np.cos(np.radians((south.min() + north.max()) / 2))
        axes.set_aspect(min(1 / max(flat, 1e-9), ASPECT_MAX))
        axes.figure.colorbar(drawn, ax=axes, label=_name(labels, by))
    axes.set_xlabel("longitude, degrees")
    axes.set_ylabel("latitude, degrees")
    axes.set_title(_title(labels))
    return axes


def plot_time(labels: LabelSet, by: str | None = None, *, ax: Any = None) -> Any:
    """Draws observations by time bucket, or a feature's mean between its extremes.

    Arguments, errors and result as `plot_map`.
    """
    axes = _axes(ax)
    buckets, which = np.unique(labels.buckets, return_inverse=True)
    values = _means(labels, by, groups=which, count=len(buckets))
    times = buckets.astype("datetime64[us]")
    if by is None:
        width = np.timedelta64(labels.schema.time_bucket_us, "us")
        axes.bar(times, values, width=width, align="edge")
    else:
        low, high = _extremes(numbers(labels, by), groups=which, count=len(buckets))
        axes.fill_between(times, low, high, alpha=0.3, linewidth=0)
        axes.plot(times, values, marker=".")
    axes.set_xlabel("time, UTC")
    axes.set_ylabel(_name(labels, by))
    axes.set_title(_title(labels))
    axes.figure.autofmt_xdate()
    return axes


def numbers(labels: LabelSet, by: str) -> Floats:
    """A feature's values, NaN where missing.

    Raises:
        InputError: it is not indexed, or has no numbers.
    """
    known = [feature.name for feature in labels.schema.indexed if feature.type != "text"]
    if by not in known:
        raise InputError(
            f"expected an indexed feature of dataset {labels.schema.name!r} with numbers "
            f"({', '.join(known) or 'it has none'}), got {by!r}"
        )
    column = labels.table.column(by).combine_chunks().cast(pa.float64(), safe=False)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _means(labels: LabelSet, by: str | None, *, groups: npt.NDArray[np.intp], count: int) -> Floats:
    """Of each group the observations, or the mean over those that have a value."""
    rows = np.asarray(labels.table.column("rows").to_numpy(), dtype=np.float64)
    if by is None:
        return np.asarray(np.bincount(groups, weights=rows, minlength=count), dtype=np.float64)
    values = numbers(labels, by)
    there = ~np.isnan(values)
    weight = np.where(there, rows, 0.0)
    total = np.bincount(groups, weights=weight, minlength=count)
    summed = np.bincount(groups, weights=weight * np.where(there, values, 0.0), minlength=count)
    means: Floats = np.divide(summed, total, out=np.full(count, np.nan), where=total > 0)
    return means


def _extremes(values: Floats, *, groups: npt.NDArray[np.intp], count: int) -> tuple[Floats, Floats]:
    """The least and the greatest value of each group; NaN where it has none."""
    low, high = np.full(count, np.nan), np.full(count, np.nan)
    np.fmin.at(low, groups, values)
    np.fmax.at(high, groups, values)
    return low, high


def _name(labels: LabelSet, by: str | None) -> str:
    feature = labels.schema.feature(by) if by else None
    if feature is None:
        return COUNT
    return f"{feature.name}, {feature.unit}" if feature.unit else feature.name


def _title(labels: LabelSet) -> str:
    partial = "" if labels.complete else " (partial)"
    return f"{labels.schema.name}: {len(labels):,} labels{partial}"


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    return library("matplotlib.pyplot", purpose="a plot").subplots()[1]


def _boxes(corners: Floats, values: Floats, cmap: str) -> Any:
    collections = library("matplotlib.collections", purpose="a plot")
    return collections.PolyCollection(
        list(corners), array=values, cmap=cmap, edgecolors="face", linewidths=0.2
    )
