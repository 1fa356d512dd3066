"""The demo's polygon and its map."""

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

BACKGROUND_POINTS_MAX = 40_000


def middle_polygon(frame: pd.DataFrame) -> list[tuple[float, float]]:
    """A pentagon over the middle half of the data."""
    west, east = frame["longitude"].quantile([0.3, 0.7])
    south, north = frame["latitude"].quantile([0.25, 0.75])
    middle = (west + east) / 2
    corners = [(west, south), (east, south), (east, north), (middle, north + 1.5), (west, north)]
    rounded = [(round(float(lon), 2), round(float(lat), 2)) for lon, lat in corners]
    return [*rounded, rounded[0]]


def inside(frame: pd.DataFrame, polygon: Sequence[tuple[float, float]]) -> npt.NDArray[np.bool_]:
    """Which points the polygon holds, counted by GEOS alone."""
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
    """All points in grey, what was found in colour, the polygon around it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    step = max(1, len(frame) // BACKGROUND_POINTS_MAX)
    background = frame.iloc[::step]
    figure, axes = plt.subplots(figsize=(10, 6.5), layout="constrained")
    axes.scatter(background["longitude"], background["latitude"], s=2, c="#dddddd", linewidths=0)
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
    axes.set_title(f"{rows.num_rows:,} sampled observations with {title} inside the polygon")
    figure.savefig(path, dpi=130)
    plt.close(figure)
