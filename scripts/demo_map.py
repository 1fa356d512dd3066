"""The polygon and the map of the demo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import shapely

mpl.use("Agg")

from matplotlib import pyplot as plt
from PIL import Image

BACKGROUND_POINTS_MAX = 40_000
COLOURS = 96
"""Palette size of the picture, which keeps the file small."""


def middle_polygon(frame: pd.DataFrame) -> list[tuple[float, float]]:
    """A pentagon over the middle half of the data."""
    west, east = frame["longitude"].quantile([0.3, 0.7])
    south, north = frame["latitude"].quantile([0.25, 0.75])
    middle = (west + east) / 2
    corners = [(west, south), (east, south), (east, north), (middle, north + 1.5), (west, north)]
    rounded = [(round(float(lon), 2), round(float(lat), 2)) for lon, lat in corners]
    return [*rounded, rounded[0]]


def inside(frame: pd.DataFrame, polygon: Sequence[tuple[float, float]]) -> npt.NDArray[np.bool_]:
    """Whether each row lies in the polygon or on its edge, decided by GEOS alone."""
    area = shapely.Polygon(polygon)
    flags: npt.NDArray[np.bool_] = shapely.intersects_xy(
        area, frame["longitude"].to_numpy(), frame["latitude"].to_numpy()
    )
    return flags


def draw(
    rows: pa.Table,
    frame: pd.DataFrame,
    polygon: Sequence[tuple[float, float]],
    *,
    title: str,
    path: Path,
) -> None:
    """Draws all points in grey, the points of `rows` in colour, and the polygon around them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    step = max(1, len(frame) // BACKGROUND_POINTS_MAX)
    background = frame.iloc[::step]
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    axes.scatter(background["longitude"], background["latitude"], s=2, c="#cccccc", linewidths=0)
    drawn = axes.scatter(
        rows.column("longitude").to_numpy(),
        rows.column("latitude").to_numpy(),
        s=6,
        c=rows.column("temperature").to_numpy(),
        cmap="inferno",
        linewidths=0,
    )
    axes.plot(*zip(*polygon, strict=True), color="black", linewidth=1.2)
    figure.colorbar(drawn, label="temperature (K)", shrink=0.8)
    axes.set(xlabel="longitude (°)", ylabel="latitude (°)", aspect=1.2)
    axes.set_title(f"{rows.num_rows:,} observations with {title} in the polygon (a sample)")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS)
    small.save(path, optimize=True)
