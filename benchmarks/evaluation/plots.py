"""Plots as small SVG, the same bytes for the same values."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

WIDTH_IN, HEIGHT_IN = 6.4, 3.6
BLUE, ORANGE, GREEN, GREY = "#2b6cb0", "#c05621", "#2f855a", "#a0aec0"
COLOURS = (BLUE, ORANGE, GREEN, "#6b46c1", "#b83280")
MARKERS = ("o", "s", "^", "D", "v")
INK = "#2d3748"
_STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "galileo",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e2e8f0",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "white",
}
NO_MARKS: Mapping[str, float] = {}
_BLANK_ENDS = re.compile(r"[ \t]+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Line:
    """Points that belong together; `low` and `high`, where given, are drawn around them."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """Attributes:
    x, y: what the axes are, with units.
    log_x, log_y: whether they are logarithmic.
    x_ticks: where they have to be; empty for anywhere.
    """

    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    x_ticks: Sequence[float] = ()


def lines(axes: Axes, drawn: Sequence[Line]) -> bytes:
    """Lines with markers; a band from the lowest to the highest."""

    def draw(area: Any) -> None:
        solid = 0
        for line in drawn:
            if line.dashed:
                area.plot(line.x, line.y, "--", color=GREY, label=line.name, linewidth=1.2)
                continue
            colour, marker = COLOURS[solid % len(COLOURS)], MARKERS[solid % len(MARKERS)]
            solid += 1
            area.plot(line.x, line.y, color=colour, marker=marker, markersize=4, label=line.name)
            if line.low:
                area.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, lw=0)
        _scale(area, axes)
        if len(drawn) > 1:
            area.legend()

    return _drawn(axes, draw)


def bars(
    axes: Axes,
    names: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    *,
    marked: Mapping[str, float] = NO_MARKS,
) -> bytes:
    """For each name one bar of each group, side by side; `marked` are named heights."""

    def draw(area: Any) -> None:
        width = 0.8 / len(groups)
        for number, (group, values) in enumerate(groups.items()):
            places = [at - 0.4 + width * (number + 0.5) for at in range(len(names))]
            colour = (GREY, *COLOURS)[number if len(groups) > 1 else 1]
            area.bar(places, values, width=0.92 * width, color=colour, label=group)
        for name, at in marked.items():
            area.axhline(at, color=GREY, linestyle="--", linewidth=1.2)
            place = (len(names) - 0.5, at)
            area.annotate(name, place, xytext=(0, 3), textcoords="offset points", ha="right")
        area.set_xticks(range(len(names)), names)
        if axes.log_y:
            area.set_yscale("log")
        if len(groups) > 1:
            area.legend(ncols=len(groups), loc="upper left", bbox_to_anchor=(0, -0.15))

    return _drawn(axes, draw)


def steps(axes: Axes, values: Sequence[float], *, marked: Mapping[str, float]) -> bytes:
    """The share of values up to each of them; `marked` are named places on the x axis."""

    def draw(area: Any) -> None:
        ordered = sorted(values)
        shares = [100 * (number + 1) / len(ordered) for number in range(len(ordered))]
        area.step([ordered[0], *ordered], [0.0, *shares], where="post", color=BLUE)
        for name, at in marked.items():
            area.axvline(at, color=GREY, linestyle="--", linewidth=1.2, label=name)
        area.set_ylim(0, 104)
        area.set_xlim(left=0)
        area.legend()

    return _drawn(axes, draw)


def _scale(area: Any, axes: Axes) -> None:
    if axes.log_x:
        area.set_xscale("log")
    if axes.log_y:
        area.set_yscale("log")
        area.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    else:
        area.set_ylim(bottom=0)
    plain = FuncFormatter(_plain)
    if axes.x_ticks:
        area.set_xticks(axes.x_ticks)
    area.minorticks_off()
    area.xaxis.set_major_formatter(plain)
    area.yaxis.set_major_formatter(plain)


def _plain(value: float, position: int | None) -> str:
    """Never an exponent."""
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _drawn(axes: Axes, draw: Callable[[Any], None]) -> bytes:
    with mpl.rc_context(dict(_STYLE)):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        area = figure.subplots()
        draw(area)
        area.set_title(axes.title)
        area.set_xlabel(axes.x)
        area.set_ylabel(axes.y)
        data = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(data, metadata={"Date": None, "Creator": None})
    text = data.getvalue().decode()
    return (_BLANK_ENDS.sub("", text).rstrip() + "\n").encode()
